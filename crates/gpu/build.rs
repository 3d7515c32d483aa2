//! Writes the bindings of the kernels and their source text into `OUT_DIR`.

use std::error::Error;
use std::path::Path;
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels");
    println!("cargo::rerun-if-changed={}", kernels.display());
    let folders: &[&str] = if env::var_os("CARGO_FEATURE_ABLATE").is_some() { &["ablate"] } else { &[] };
    let library = lily_msl::Library::parse_with(&kernels, folders)?;
    let out = env::var("OUT_DIR")?;
    fs::write(Path::new(&out).join("kernels.rs"), library.rust_bindings())?;
    fs::write(Path::new(&out).join("kernels.metal"), library.metal_source())?;
    fs::write(Path::new(&out).join("kernels.cu"), library.cuda_source())?;
    Ok(())
}

//! Writes the bindings of the kernels and their source text into `OUT_DIR`, and names this crate's code.

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
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rustc-env=LILY_GPU_CODE={:016x}", hash(Path::new("src"))?);
    Ok(())
}

/// FNV-1a of all source files below a folder, with their names, in order. What editors leave beside them, links among it, is
/// none.
fn hash(path: &Path) -> Result<u64, Box<dyn Error>> {
    let mut files = Vec::new();
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let (kind, path) = (entry.file_type()?, entry.path());
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() && path.extension().is_some_and(|end| end == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for file in files {
        let text = fs::read(&file)?;
        let parts = [file.to_string_lossy().as_bytes(), &text.len().to_le_bytes(), &text].concat();
        hash = parts.into_iter().fold(hash, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    }
    Ok(hash)
}

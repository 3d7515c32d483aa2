//! Writes what `lily-msl` makes of a folder of kernels: `emit KERNELS OUTPUT host|check|cuda|metal|rust`.

use std::path::Path;
use std::process::ExitCode;

use lily_msl::Library;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kernels, output, what] = arguments.as_slice() else {
        eprintln!("usage: emit KERNELS OUTPUT host|check|cuda|metal|rust");
        return ExitCode::FAILURE;
    };
    match emit(Path::new(kernels), Path::new(output), what) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn emit(kernels: &Path, output: &Path, what: &str) -> Result<(), Box<dyn std::error::Error>> {
    let library = Library::parse(kernels)?;
    std::fs::create_dir_all(output)?;
    match what {
        "host" => {
            for file in library.files() {
                std::fs::write(output.join(file).with_extension("cpp"), library.host_source(file))?;
            }
        }
        "metal" => std::fs::write(output.join("kernels.metal"), library.metal_source())?,
        "check" => {
            for file in library.files() {
                std::fs::write(output.join(file).with_extension("cl"), library.check_source(file))?;
            }
        }
        "cuda" => std::fs::write(output.join("kernels.cu"), library.cuda_source())?,
        "rust" => std::fs::write(output.join("kernels.rs"), library.rust_bindings())?,
        other => return Err(format!("`{other}` is none of host, check, cuda, metal, rust").into()),
    }
    Ok(())
}

//! Evidence that the kernels are right beyond their results:
//!
//! ```text
//! cargo run -p lily-host --bin kernel-evidence race       no two threads touch one place with no barrier between
//! cargo run -p lily-host --bin kernel-evidence bounds     no thread leaves its buffers and arrays
//! cargo run -p lily-host --bin kernel-evidence mutants    and without any one barrier some test fails
//! ```
//!
//! The first two run the kernels' tests under ThreadSanitizer and AddressSanitizer. `mutants` removes barriers one at a
//! time and names those that nothing missed.

mod mutants;
mod tests;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{env, fs};

use lily_host::compile::{Compiler, Flavour, KERNELS};

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["race"] => sanitized(Flavour::Thread),
        ["bounds"] => sanitized(Flavour::Address),
        ["mutants", ref files @ ..] => mutants::run(files),
        _ => Err("usage: kernel-evidence race | bounds | mutants [file of kernels/]…".into()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("kernel-evidence: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs all tests of kernels under a sanitizer.
fn sanitized(flavour: Flavour) -> Result<bool, Failure> {
    let library = lily_msl::Library::parse(Path::new(KERNELS))?;
    let folder = work(flavour.name())?;
    let compiler = Compiler::native();
    let objects = compiler.objects(flavour, &library, &folder)?;
    let shared = folder.join("kernels.so");
    compiler.link(flavour, &objects, &shared)?;
    let all = AtomicBool::new(true);
    tests::at_once(&tests::of_kernels()?, |test| {
        let outcome = test.run(&compiler, flavour, &shared)?;
        println!("{}: {} ({:.1} s)", test.name, if outcome.passed { "passed" } else { "FAILED" }, outcome.seconds);
        if !outcome.passed {
            println!("{}", outcome.output);
            all.store(false, Ordering::Relaxed);
        }
        Ok(())
    })?;
    Ok(all.into_inner())
}

/// A folder for what is compiled here.
fn work(name: &str) -> Result<PathBuf, Failure> {
    let target =
        env::current_exe()?.ancestors().nth(2).map(Path::to_path_buf).ok_or("the program is in no target folder")?;
    let folder = target.join("kernel-evidence").join(name);
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

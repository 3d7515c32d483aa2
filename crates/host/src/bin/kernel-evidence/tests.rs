//! The test programs that launch kernels.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use lily_host::Kernels;
use lily_host::compile::{Compiler, Flavour, KERNELS};

use crate::Failure;

/// After this long a test hangs.
const LIMIT: Duration = Duration::from_secs(300);

/// A compiled test program.
pub(crate) struct Test {
    pub(crate) name: String,
    program: PathBuf,
    /// Its source, to see which kernels it names.
    pub(crate) source: String,
}

/// How a test ended.
pub(crate) struct Outcome {
    pub(crate) passed: bool,
    pub(crate) seconds: f64,
    pub(crate) output: String,
}

/// The tests in `crates/host/tests` whose kernels are those of `kernels/`, compiled by cargo if need be.
pub(crate) fn of_kernels() -> Result<Vec<Test>, Failure> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["test", "--quiet", "-p", "lily-host", "--tests", "--no-run", "--message-format=json"]);
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err("the tests do not compile".into());
    }
    let mut tests = Vec::new();
    for line in String::from_utf8(output.stdout)?.lines() {
        let message: serde_json::Value = serde_json::from_str(line)?;
        let (target, program) = (&message["target"], &message["executable"]);
        let (Some(name), Some(path)) = (target["name"].as_str(), target["src_path"].as_str()) else { continue };
        let Some(program) = program.as_str().filter(|_| target["kind"][0] == "test") else { continue };
        let source = fs::read_to_string(path)?;
        if source.contains("launch(") {
            tests.push(Test { name: name.to_owned(), program: program.into(), source });
        }
    }
    tests.retain(|test| test.name != "faults");
    tests.sort_by(|a, b| a.name.cmp(&b.name));
    let library = lily_msl::Library::parse(Path::new(KERNELS))?;
    let mut functions = library.kernels().iter().map(|kernel| kernel.function.as_str());
    if let Some(kernel) = functions.find(|name| !tests.iter().any(|test| test.source.contains(name))) {
        return Err(format!("no test names the kernel {kernel}").into());
    }
    Ok(tests)
}

/// Does something with each test, with as many at once as there are processors. The error is one of those there were.
pub(crate) fn at_once(tests: &[Test], act: impl Fn(&Test) -> Result<(), Failure> + Sync) -> Result<(), Failure> {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(test) = tests.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(error) = act(test) {
                        *failed.lock().expect("no panic holds it") = Some(error.to_string());
                    }
                }
            });
        }
    });
    failed.into_inner()?.map_or(Ok(()), |error: String| Err(error.into()))
}

impl Test {
    /// Runs it with the kernels of a shared object.
    pub(crate) fn run(&self, compiler: &Compiler, flavour: Flavour, kernels: &Path) -> Result<Outcome, Failure> {
        let mut command = compiler.runner(flavour, &self.program.display().to_string());
        command.arg("--test-threads=1").env(Kernels::VARIABLE, kernels).env("RUST_BACKTRACE", "0");
        if flavour != Flavour::Plain {
            // What a sanitizer finds does not depend on the order; one at random will do.
            command.env("LILY_HOST_SEEDS", "7");
        }
        let log = kernels.with_extension(format!("{}.log", self.name));
        let file = fs::File::create(&log)?;
        let start = Instant::now();
        let mut child = command.stdout(file.try_clone()?).stderr(file).spawn()?;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break Some(status);
            }
            if start.elapsed() > LIMIT {
                child.kill()?;
                child.wait()?;
                break None;
            }
            thread::sleep(Duration::from_millis(5));
        };
        Ok(Outcome {
            passed: status.is_some_and(|status| status.success()),
            seconds: start.elapsed().as_secs_f64(),
            output: String::from_utf8_lossy(&fs::read(&log)?).into_owned(),
        })
    }
}

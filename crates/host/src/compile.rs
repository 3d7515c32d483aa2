//! Compiles the kernels and the runtime for this machine; used by the build script and, for mutants and the sanitizers'
//! flavours, at run time.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{fs, io};

use lily_msl::Library;

/// The folder of the kernels.
pub const KERNELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernels");
/// Folders in it that this build takes too.
pub const FOLDERS: &[&str] = if cfg!(feature = "ablate") { &["ablate"] } else { &[] };
const RUNTIME: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/runtime");
/// The runtime's sources, besides headers.
const RUNTIME_FILES: [&str; 4] = ["arena.cpp", "fiber.cpp", "launch.cpp", "worker.cpp"];

/// What the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// As they are.
    Plain,
    /// Under ThreadSanitizer: a run reports accesses that no barrier orders.
    Thread,
    /// Under AddressSanitizer: a run reports accesses outside a buffer or a threadgroup array.
    Address,
}

impl Flavour {
    /// As in messages and paths.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Thread => "thread",
            Self::Address => "address",
        }
    }

    /// What all is compiled and linked with.
    const fn kernel_flags(self) -> &'static [&'static str] {
        match self {
            Self::Plain => &[],
            Self::Thread => &["-fsanitize=thread", "-g1"],
            Self::Address => &["-fsanitize=address", "-g1"],
        }
    }

    /// The runtime tells the sanitizers what it does but is not watched itself.
    const fn runtime_flags(self) -> &'static [&'static str] {
        match self {
            Self::Plain => &[],
            Self::Thread => &["-DLILY_HOST_THREAD"],
            Self::Address => &["-DLILY_HOST_ADDRESS"],
        }
    }
}

/// Why the kernels could not be compiled.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The sources leave the dialect.
    #[error("{0}")]
    Dialect(#[from] lily_msl::Error),
    /// A file could not be read or written, or the compiler not be started.
    #[error("{0}: {1}")]
    Io(String, io::Error),
    /// The compiler refused.
    #[error("{command}\n{output}")]
    Compiler {
        /// Its command line.
        command: String,
        /// What it said.
        output: String,
    },
}

/// A C++ compiler with the flags that every file gets.
#[derive(Clone, Debug)]
pub struct Compiler {
    /// Its path.
    pub program: String,
    /// Flags for the machine, and those that compilers spell differently.
    pub flags: Vec<String>,
}

impl Compiler {
    /// Compiles each `.metal` file of a library, and the runtime, into `folder`: the object files, in order of the
    /// files, the runtime's last. An object that is already there, of the same text, is not made again.
    ///
    /// # Errors
    /// What the compiler says; file and line are the kernel's.
    pub fn objects(&self, flavour: Flavour, library: &Library, folder: &Path) -> Result<Vec<PathBuf>, Error> {
        let files: Vec<String> = library.files().map(str::to_owned).collect();
        let mut objects = self.kernels(flavour, library, &files, folder)?;
        objects.extend(self.runtime(flavour, folder)?);
        Ok(objects)
    }

    /// Compiles some of a library's files, without the runtime.
    ///
    /// # Errors
    /// As [`objects`](Self::objects).
    pub fn kernels(
        &self,
        flavour: Flavour,
        library: &Library,
        files: &[String],
        folder: &Path,
    ) -> Result<Vec<PathBuf>, Error> {
        fs::create_dir_all(folder).map_err(|error| Error::Io(folder.display().to_string(), error))?;
        let (mut jobs, mut objects) = (Vec::new(), Vec::new());
        for file in files {
            let source = folder.join(file).with_extension("cpp");
            let object = source.with_extension("o");
            if self.write(&source, &library.host_source(file))? || headers_are_newer(&object) {
                jobs.push(self.command(flavour.kernel_flags(), &source, &object));
            }
            objects.push(object);
        }
        run_all(jobs)?;
        Ok(objects)
    }

    fn runtime(&self, flavour: Flavour, folder: &Path) -> Result<Vec<PathBuf>, Error> {
        let (mut jobs, mut objects) = (Vec::new(), Vec::new());
        for file in RUNTIME_FILES {
            let object = folder.join(format!("runtime-{file}")).with_extension("o");
            let source = Path::new(RUNTIME).join(file);
            if newer(&source, &object) || headers_are_newer(&object) {
                jobs.push(self.command(flavour.runtime_flags(), &source, &object));
            }
            objects.push(object);
        }
        run_all(jobs)?;
        Ok(objects)
    }

    /// Links objects into a shared object.
    ///
    /// # Errors
    /// What the linker says.
    pub fn link(&self, flavour: Flavour, objects: &[PathBuf], to: &Path) -> Result<(), Error> {
        let mut command = Command::new(&self.program);
        command.args(&self.flags).arg("-shared").args(flavour.kernel_flags()).args(objects).arg("-o").arg(to);
        run_all(vec![command])
    }

    /// Merges objects into one.
    ///
    /// # Errors
    /// What the linker says.
    pub fn merge(&self, objects: &[PathBuf], to: &Path) -> Result<(), Error> {
        let mut command = Command::new(&self.program);
        command.args(["-r", "-nostdlib"]).args(objects).arg("-o").arg(to);
        run_all(vec![command])
    }

    fn command(&self, flags: &[&str], source: &Path, object: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.flags);
        // The numbers are those of separate operations, whatever the machine has; half and float share storage.
        command.args([
            "-std=c++20",
            "-O2",
            "-fPIC",
            "-fvisibility=hidden",
            "-ffp-contract=off",
            "-fno-strict-aliasing",
        ]);
        command.args([
            "-Wall",
            "-Wno-unknown-pragmas",
            "-Wno-unused-function",
            "-Wno-unused-variable",
            "-D__METAL_VERSION__=400",
            "-I",
            lily_msl::SHIM_DIRECTORY,
            "-I",
            RUNTIME,
        ]);
        command.args(flags).arg("-c").arg(source).arg("-o").arg(object);
        command
    }

    /// Writes a source unless it is there already; true if it was written. An object of the old one is removed.
    fn write(&self, path: &Path, text: &str) -> Result<bool, Error> {
        if fs::read_to_string(path).is_ok_and(|old| old == text) {
            return Ok(false);
        }
        let _ = fs::remove_file(path.with_extension("o"));
        fs::write(path, text).map_err(|error| Error::Io(path.display().to_string(), error))?;
        Ok(true)
    }
}

/// Whether an object must be made: it is missing, or older than its source.
fn newer(source: &Path, object: &Path) -> bool {
    let time = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
    time(object).is_none_or(|object| time(source).is_none_or(|source| source > object))
}

/// Whether an object is missing or older than a header of Metal's stand-ins or of the runtime.
fn headers_are_newer(object: &Path) -> bool {
    [lily_msl::SHIM_DIRECTORY, RUNTIME].iter().any(|folder| {
        let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        files.filter(|path| path.extension().is_none_or(|extension| extension == "h")).any(|path| newer(&path, object))
    })
}

/// Runs commands, as many at a time as there are processors. All are run; the error has what every one that failed said.
fn run_all(commands: Vec<Command>) -> Result<(), Error> {
    let limit = std::thread::available_parallelism().map_or(1, usize::from);
    let mut running: VecDeque<(String, Child)> = VecDeque::new();
    let mut commands = commands.into_iter();
    let (mut failed, mut outputs) = (Vec::new(), String::new());
    loop {
        while running.len() < limit {
            let Some(mut command) = commands.next() else { break };
            let line = format!("{command:?}");
            let child = command.stderr(Stdio::piped()).spawn().map_err(|error| Error::Io(line.clone(), error))?;
            running.push_back((line, child));
        }
        let Some((line, child)) = running.pop_front() else { break };
        let output = child.wait_with_output().map_err(|error| Error::Io(line.clone(), error))?;
        if !output.status.success() {
            failed.push(line);
            outputs.push_str(&String::from_utf8_lossy(&output.stderr));
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(Error::Compiler { command: failed.join("\n"), output: outputs }) }
}

//! The compiler that compiled this program's kernels, for more of them at run time.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::compile::{Compiler, Flavour};

const SUPPRESSIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/runtime/thread.supp");

impl Compiler {
    /// The build script's.
    #[must_use]
    pub fn native() -> Self {
        Self {
            program: env!("LILY_HOST_COMPILER").to_owned(),
            flags: env!("LILY_HOST_FLAGS").split_whitespace().map(str::to_owned).collect(),
        }
    }

    /// Where the build script has put the objects of [`Flavour::Plain`].
    #[must_use]
    pub fn objects_of_the_build() -> &'static Path {
        Path::new(env!("LILY_HOST_OBJECTS"))
    }

    /// A command that runs a program which will load kernels of a flavour. A sanitizer wants to be in a process from its
    /// start, with the address space laid out as it expects.
    #[must_use]
    pub fn runner(&self, flavour: Flavour, program: &str) -> Command {
        let library = match flavour {
            Flavour::Plain => return Command::new(program),
            Flavour::Thread => "libtsan.so",
            Flavour::Address => "libasan.so",
        };
        let mut command = Command::new("setarch");
        command.args(["--addr-no-randomize", program]);
        if let Some(path) = self.library(library) {
            command.env("LD_PRELOAD", path);
        }
        command.env("TSAN_OPTIONS", format!("exitcode=66 suppressions={}", SUPPRESSIONS));
        // What a kernel's fibers leave behind when they are stopped is no leak.
        command.env("ASAN_OPTIONS", "detect_leaks=0");
        command
    }

    /// Where the compiler has a library.
    fn library(&self, name: &str) -> Option<PathBuf> {
        let output = Command::new(&self.program).arg(format!("-print-file-name={name}")).output().ok()?;
        let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
        path.is_absolute().then_some(path)
    }
}

//! What is wrong with a kernel source, and where.

use std::fmt;

/// A fault in one line of a source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// The file's name within the kernels' directory.
    pub file: String,
    /// Counted from 1; 0 if the fault is the file's as a whole.
    pub line: u32,
    /// What is wrong and what to write instead.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "error: {}", self.message),
            line => write!(f, "kernels/{}:{line}: error: {}", self.file, self.message),
        }
    }
}

/// Everything found wrong with a set of sources, in order of file and line; never empty.
#[derive(Debug, Clone)]
pub struct Error {
    faults: Vec<Fault>,
}

impl Error {
    /// An error of at least one fault.
    pub(crate) fn new(mut faults: Vec<Fault>) -> Self {
        assert!(!faults.is_empty(), "an error needs a fault");
        faults.sort();
        faults.dedup();
        Self { faults }
    }

    /// The faults, in order of file and line.
    pub fn faults(&self) -> &[Fault] {
        &self.faults
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.faults.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            fault.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

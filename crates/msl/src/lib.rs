//! Reads the kernels of Lily, which are written in a dialect of the Metal Shading Language, and makes of them what else
//! is needed: Rust bindings, and sources for the host's C++ compiler, for clang's strict front end and for CUDA.
//!
//! The dialect is stated in `kernels/README.md`; a source that leaves it is an [`Error`] with file and line. The way
//! through the code: `token` cuts a file into tokens, `parse` makes a `tree` of it, `body` and `evaluate` read what a
//! kernel declares, `library` joins the files, `dialect` and `pointers` look for what is forbidden, and the modules of
//! `emit` edit the very text that Metal compiles, so that lines stay what they are.

mod body;
mod brackets;
mod dialect;
mod emit;
mod error;
mod evaluate;
mod kernel;
mod layout;
mod library;
mod parse;
mod pointers;
mod token;
mod tree;

pub use error::{Error, Fault};
pub use kernel::{Access, Argument, Kernel, Position};
pub use library::{FunctionConstant, Library};

/// The folder of the headers that the emitted sources include.
pub const SHIM_DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/shim");

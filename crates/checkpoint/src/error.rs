//! What can go wrong with a checkpoint, in words that say what to do about it.

use std::io;
use std::path::PathBuf;

/// The checkpoint that Lily is made for.
pub const CHECKPOINT: &str = "mlx-community/Qwen3.6-35B-A3B-4bit";

/// Its revision that Lily was tested against.
pub const REVISION: &str = "38740b847e4cb78f352aba30aa41c76e08e6eb46";

/// Why a checkpoint cannot be used, or not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The path leads nowhere.
    #[error("{} does not exist: give the directory of a downloaded {CHECKPOINT}", path.display())]
    NotFound {
        /// As given.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// Its reason.
        source: io::Error,
    },
    /// The operating system refused.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Its reason.
        source: io::Error,
    },
    /// Writing was called off.
    #[error("interrupted")]
    Interrupted,
    /// A checkpoint, perhaps a good one, but not one that Lily can run.
    #[error("{}: {what}. Lily runs {CHECKPOINT}", path.display())]
    OtherFormat {
        /// The file or directory.
        path: PathBuf,
        /// What it is.
        what: String,
    },
    /// `config.json` describes another model, or one whose shapes the kernels do not have.
    #[error("config.json: {0}. Lily runs {CHECKPOINT} and other sizes of that architecture")]
    Config(String),
    /// The tensors are named or turned as in another layout than MLX's.
    #[error("{0}. Lily runs {CHECKPOINT}")]
    Layout(String),
    /// Part of the checkpoint is not there.
    #[error("{}: {what}: is the download complete?", path.display())]
    Incomplete {
        /// The file or directory.
        path: PathBuf,
        /// What is missing.
        what: String,
    },
    /// A file contradicts itself or its own format.
    #[error("{file}: {problem}")]
    Corrupt {
        /// The file's name.
        file: String,
        /// What and where.
        problem: String,
    },
    /// The tensors are not those that the config asks for.
    #[error("{0}: is the download complete?")]
    Tensor(String),
}

//! What the cache may take, and its counters.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::disk::Folder;

/// How much is kept of what prompts and replies have been read, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// Bytes of memory at most; 0 switches the cache off.
    pub bytes: u64,
    /// Of these, what copies on their way to the disk and from it may take, which are in the machine's memory wherever the
    /// snapshots are.
    pub transit: u64,
    /// Tokens that begin a message, `<|im_start|>` in ChatML: the state before one is kept.
    pub boundaries: Vec<u32>,
    /// And the state every so many tokens; at least 1.
    pub interval: usize,
    /// Fewer tokens than these are read again rather than kept or waited for; at least 1.
    pub spacing: usize,
    /// A second tier that outlives the process.
    pub disk: Option<DiskOptions>,
}

impl CacheOptions {
    /// Nothing is kept.
    #[must_use]
    pub fn off() -> Self {
        Self::new(0)
    }

    /// Every 1,024 tokens, at least 256 apart, no boundaries, no disk. Half of it may be on its way, which one snapshot that has
    /// room, and its copy too, does not exceed.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self { bytes, transit: bytes / 2, boundaries: Vec::new(), interval: 1024, spacing: 256, disk: None }
    }
}

/// Where and how much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskOptions {
    /// The directory; made if it is not there. One process at a time uses it.
    pub directory: PathBuf,
    /// Bytes at most.
    pub bytes: u64,
    /// Tells checkpoints apart: whatever decides what the model computes, its sizes and weights.
    pub model: Vec<u8>,
    /// Fewer tokens than these past what is in another file get none of their own; at least 1. A file has a whole state
    /// beside them, 61 MiB at the 35B, 63 on a GPU.
    pub spacing: usize,
    /// How long a request waits for the disk at most; then it begins with what is in memory.
    pub patience: Duration,
}

impl DiskOptions {
    /// Makes the directory if it is not there, for its owner alone: prompts are nobody else's business.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn make(directory: &Path) -> io::Result<()> {
        Folder::make(directory)
    }

    /// Whether a process keeps a cache in the directory: another one could not.
    ///
    /// # Errors
    /// If that cannot be told.
    pub fn is_taken(directory: &Path) -> io::Result<bool> {
        Folder::is_taken(directory)
    }

    /// A file every 1,024 tokens at most, and a minute's patience.
    #[must_use]
    pub fn new(directory: PathBuf, bytes: u64, model: Vec<u8>) -> Self {
        Self { directory, bytes, model, spacing: 1024, patience: Duration::from_secs(60) }
    }
}

/// What the cache holds and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Requests that began with part of their prompt read.
    pub hits: u64,
    /// Requests that began with none.
    pub misses: u64,
    /// Prompt tokens that did not have to be read.
    pub cached_tokens: u64,
    /// Snapshots in memory.
    pub snapshots: usize,
    /// Bytes they hold, what they share counted once.
    pub bytes: u64,
    /// Snapshots that had to make room.
    pub evictions: u64,
    /// Snapshots on disk.
    pub disk_snapshots: usize,
    /// Snapshots that wait to be written.
    pub disk_waiting: usize,
    /// Bytes of all files, those of other models and those to be written among them.
    pub disk_bytes: u64,
    /// Snapshots written since the start.
    pub disk_writes: u64,
    /// Bytes of them.
    pub disk_written_bytes: u64,
    /// Snapshots read back.
    pub disk_reads: u64,
    /// Files removed to make room.
    pub disk_evictions: u64,
    /// Files that could not be written or were of no use.
    pub disk_errors: u64,
}

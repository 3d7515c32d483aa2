//! The folder: what is in it at the start, and how a file gets into it whole or not at all.
//!
//! Snapshots are `KEY.lilysnap`; they are written as `KEY.lilysnap.tmp`, synced, then renamed. Anything else in the
//! folder is left alone.

use std::fs::{self, DirBuilder, File, FileTimes, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::file::{Header, Key};

const SUFFIX: &str = ".lilysnap";
const UNFINISHED: &str = ".lilysnap.tmp";
const LOCK: &str = "lily.lock";

/// A folder that belongs to this process as long as this lives.
pub(crate) struct Folder {
    path: PathBuf,
    _lock: File,
}

/// A snapshot found at the start.
pub(crate) struct Found {
    pub(crate) header: Header,
    pub(crate) tokens: Vec<u32>,
    pub(crate) used: SystemTime,
}

/// A sound file of another model, or written by another version's rules.
pub(crate) struct Stranger {
    pub(crate) key: Key,
    pub(crate) bytes: u64,
    pub(crate) used: SystemTime,
}

/// What a scan found.
pub(crate) struct Contents {
    pub(crate) found: Vec<Found>,
    pub(crate) strangers: Vec<Stranger>,
    /// Files that were damaged and are gone.
    pub(crate) removed: u64,
}

impl Folder {
    /// Makes the folder if it is not there, and takes it.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        private_folders().recursive(true).create(path)?;
        let lock = private_files().create(true).truncate(false).open(path.join(LOCK))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(io::Error::other("another process uses it")),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Reads all headers, and removes what is damaged or unfinished.
    pub(crate) fn scan(&self, fingerprint: &Key) -> io::Result<Contents> {
        let mut contents = Contents { found: Vec::new(), strangers: Vec::new(), removed: 0 };
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if name.ends_with(UNFINISHED) {
                let _next_time_then = fs::remove_file(entry.path());
                continue;
            }
            let Some(key) = name.strip_suffix(SUFFIX) else { continue };
            match read(&entry.path()) {
                Ok((header, ..)) if name_of(&header.key) != key => self.discard(&entry.path(), &mut contents),
                Ok((header, tokens, used)) if header.fingerprint == *fingerprint => {
                    contents.found.push(Found { header, tokens, used });
                }
                Ok((header, _, used)) => {
                    let bytes = header.file_bytes().unwrap_or(0);
                    contents.strangers.push(Stranger { key: header.key, bytes, used });
                }
                Err(error) => {
                    tracing::debug!(file = name, %error, "removed from the prefix cache");
                    self.discard(&entry.path(), &mut contents);
                }
            }
        }
        Ok(contents)
    }

    fn discard(&self, path: &Path, contents: &mut Contents) {
        contents.removed += u64::from(fs::remove_file(path).is_ok());
    }

    fn path(&self, key: &Key, suffix: &str) -> PathBuf {
        self.path.join(name_of(key) + suffix)
    }

    /// Writes a file so that it is there with all its bytes, whatever happens, or not at all.
    pub(crate) fn write(&self, key: &Key, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        let unfinished = self.path(key, UNFINISHED);
        // What lies there is of a process that was killed, or a trap: a link to follow.
        let _nothing_there = fs::remove_file(&unfinished);
        let written = private_files().create_new(true).open(&unfinished).and_then(|file| {
            let mut file = BufWriter::with_capacity(1 << 18, file);
            fill(&mut file)?;
            file.into_inner().map_err(|error| error.into_error())?.sync_all()?;
            fs::rename(&unfinished, self.path(key, SUFFIX))?;
            // The name is durable only when the folder is.
            File::open(&self.path)?.sync_all()
        });
        if written.is_err() {
            let _nothing_there = fs::remove_file(&unfinished);
        }
        written
    }

    /// Opens a file; says also how long it is.
    pub(crate) fn read(&self, key: &Key) -> io::Result<(File, u64)> {
        let file = File::open(self.path(key, SUFFIX))?;
        let size = file.metadata()?.len();
        Ok((file, size))
    }

    /// It need not be there.
    pub(crate) fn remove(&self, key: &Key) {
        let _nothing_there = fs::remove_file(self.path(key, SUFFIX));
    }

    /// Notes that a file was of use now, for the order in which a later process removes them.
    pub(crate) fn touch(&self, key: &Key) {
        let times = FileTimes::new().set_modified(SystemTime::now());
        // A file that cannot be touched is only removed earlier.
        let _not_vital =
            File::options().append(true).open(self.path(key, SUFFIX)).and_then(|file| file.set_times(times));
    }
}

fn read(path: &Path) -> Result<(Header, Vec<u32>, SystemTime), super::file::Fault> {
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    let (header, tokens) = Header::read(&mut file, metadata.len())?;
    Ok((header, tokens, metadata.modified()?))
}

/// Prompts are nobody else's business: what is made here only its owner may read.
fn private_files() -> OpenOptions {
    let mut options = File::options();
    options.write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

fn private_folders() -> DirBuilder {
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder
}

fn name_of(key: &Key) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

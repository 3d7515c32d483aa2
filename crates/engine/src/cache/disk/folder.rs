//! The folder: what is in it at the start, and how a file gets into it whole or not at all.
//!
//! Snapshots are `KEY.lilysnap`; they are written as `KEY.lilysnap.tmp`, synced, then renamed. Anything else in the
//! folder is left alone, and so is what another user has put there, or what is no plain file: it could say anything.

use std::fs::{self, DirBuilder, File, FileTimes, Metadata, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::file::{Fault, Header, Key};

const SUFFIX: &str = ".lilysnap";
const UNFINISHED: &str = ".lilysnap.tmp";
const LOCK: &str = "lily.lock";
/// How long another's lock is waited for.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);

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
    /// Files that were damaged and are gone, or could not be read.
    pub(crate) bad: u64,
}

impl Folder {
    /// Makes the folder, and those that it is in, if they are not there.
    pub(crate) fn make(path: &Path) -> io::Result<()> {
        private_folders().recursive(true).create(path)
    }

    /// Makes the folder if it is not there, and takes it.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Self::make(path)?;
        let lock = private_files().create(true).truncate(false).open(path.join(LOCK))?;
        // What a process has open its child has too, until that runs its own program: a lock may outlive its owner by that.
        let began = Instant::now();
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(Self { path: path.to_owned(), _lock: lock }),
                Err(TryLockError::WouldBlock) if began.elapsed() < LOCK_PATIENCE => thread::sleep(LOCK_PATIENCE / 50),
                Err(TryLockError::WouldBlock) => return Err(io::Error::other("another process uses it")),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }

    /// Whether a process has the folder of this path.
    pub(crate) fn is_taken(path: &Path) -> io::Result<bool> {
        let lock = match File::open(path.join(LOCK)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            opened => opened?,
        };
        match lock.try_lock() {
            Ok(()) => Ok(false),
            Err(TryLockError::WouldBlock) => Ok(true),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Reads all headers, and removes what is damaged or unfinished.
    pub(crate) fn scan(&self, fingerprint: &Key) -> io::Result<Contents> {
        let mut contents = Contents { found: Vec::new(), strangers: Vec::new(), bad: 0 };
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if name.ends_with(UNFINISHED) {
                let _next_time_then = fs::remove_file(entry.path());
                continue;
            }
            let Some(key) = name.strip_suffix(SUFFIX) else { continue };
            let path = entry.path();
            let Seen { bytes, used, content } = match look_at(&path) {
                Ok(Some(seen)) => seen,
                Ok(None) => {
                    tracing::warn!(file = %path.display(), "left alone: another user's, or no plain file");
                    continue;
                }
                Err(error) => {
                    // Too many open files, say.
                    tracing::warn!(file = %path.display(), %error, "a snapshot cannot be read now");
                    contents.bad += 1;
                    continue;
                }
            };
            let problem = match (content, key_of(key)) {
                (Ok((header, _)), named) if named != Some(header.key) => "another file's name".into(),
                (Ok((header, tokens)), _) if header.fingerprint == *fingerprint => {
                    contents.found.push(Found { header, tokens, used });
                    continue;
                }
                (Ok(_) | Err(Fault::OtherVersion), Some(key)) => {
                    contents.strangers.push(Stranger { key, bytes, used });
                    continue;
                }
                (Err(error), _) if error.is_the_disks() => {
                    tracing::warn!(file = %path.display(), %error, "a snapshot cannot be read now");
                    contents.bad += 1;
                    continue;
                }
                (Err(error), _) => error.to_string(),
                (Ok(_), None) => "no snapshot's name".into(),
            };
            tracing::debug!(file = %path.display(), problem, "removed from the prefix cache");
            let _it_stays_then = fs::remove_file(&path);
            contents.bad += 1;
        }
        Ok(contents)
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
            // The name is durable only when the folder is. Some file systems cannot do that; the file is there all the same.
            let _best_effort = File::open(&self.path).and_then(|folder| folder.sync_all());
            Ok(())
        });
        if written.is_err() {
            let _nothing_there = fs::remove_file(&unfinished);
        }
        written
    }

    /// Opens a file; says also how long it is.
    pub(crate) fn read(&self, key: &Key) -> io::Result<(File, u64)> {
        let file = plain_files().read(true).open(self.path(key, SUFFIX))?;
        let metadata = file.metadata()?;
        if !is_own(&metadata) {
            return Err(io::Error::new(io::ErrorKind::NotFound, "another user's, or no plain file"));
        }
        Ok((file, metadata.len()))
    }

    /// For messages.
    pub(crate) fn name(&self, key: &Key) -> String {
        self.path(key, SUFFIX).display().to_string()
    }

    /// It need not be there.
    pub(crate) fn remove(&self, key: &Key) {
        let _nothing_there = fs::remove_file(self.path(key, SUFFIX));
    }

    /// Notes that a file was of use now, for the order in which a later process removes them.
    pub(crate) fn touch(&self, key: &Key) {
        let times = FileTimes::new().set_modified(SystemTime::now());
        // A file that cannot be touched is only removed earlier.
        let _not_vital = plain_files().append(true).open(self.path(key, SUFFIX)).and_then(|file| file.set_times(times));
    }
}

/// What a file looks like.
struct Seen {
    bytes: u64,
    used: SystemTime,
    content: Result<(Header, Vec<u32>), Fault>,
}

/// Looks at a file; `None` if it is another user's or no plain file.
fn look_at(path: &Path) -> io::Result<Option<Seen>> {
    if !fs::symlink_metadata(path)?.is_file() {
        return Ok(None);
    }
    let mut file = plain_files().read(true).open(path)?;
    let metadata = file.metadata()?;
    if !is_own(&metadata) {
        return Ok(None);
    }
    let (bytes, used) = (metadata.len(), metadata.modified()?);
    Ok(Some(Seen { bytes, used, content: Header::read(&mut file, bytes) }))
}

/// Whether it is a plain file of the user that runs this.
#[cfg(unix)]
fn is_own(metadata: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    metadata.is_file() && metadata.uid() == rustix::process::geteuid().as_raw()
}

#[cfg(not(unix))]
fn is_own(metadata: &Metadata) -> bool {
    metadata.is_file()
}

/// Options that follow no link and do not wait for the other end of a pipe.
fn plain_files() -> OpenOptions {
    #[cfg_attr(not(unix), expect(unused_mut, reason = "only Unix has such flags"))]
    let mut options = File::options();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(
        &mut options,
        (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits() as i32,
    );
    options
}

/// Prompts are nobody else's business: what is made here only its owner may read.
fn private_files() -> OpenOptions {
    let mut options = plain_files();
    options.write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

fn private_folders() -> DirBuilder {
    #[cfg_attr(not(unix), expect(unused_mut, reason = "only Unix has modes"))]
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder
}

fn name_of(key: &Key) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The key that a name spells, if it does.
fn key_of(name: &str) -> Option<Key> {
    let mut key = Key::default();
    for (index, byte) in key.iter_mut().enumerate() {
        *byte = u8::from_str_radix(name.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    (name_of(&key) == name).then_some(key)
}

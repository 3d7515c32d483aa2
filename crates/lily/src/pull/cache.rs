//! The Hugging Face cache: files under the names of their digests, and a directory of links to them for each revision.

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use lily_checkpoint::{CHECKPOINT, Environment, REVISION};

use super::listing::RemoteFile;

/// The repository's entry in the cache.
pub(super) struct Cache {
    entry: PathBuf,
    locks: PathBuf,
}

/// The entry is this process's as long as this lives.
pub(super) struct Lock {
    _file: File,
}

impl Cache {
    /// Where it is or will be; nothing is made.
    pub(super) fn of(environment: &Environment) -> Result<Self> {
        let (Some(hub), Some(entry)) = (environment.hub_cache(), environment.cache_entry(CHECKPOINT)) else {
            bail!("there is no home directory to download to: set HF_HOME to a folder");
        };
        let locks = hub.join(".locks").join(entry.file_name().unwrap_or_default());
        Ok(Self { entry, locks })
    }

    /// Makes the entry if it is not there, and takes it. Another `lily pull` must not be at work in it.
    pub(super) fn take(&self) -> Result<Lock> {
        let Self { entry, locks } = self;
        for folder in [&entry.join("blobs"), &self.snapshot(), locks] {
            fs::create_dir_all(folder).with_context(|| {
                format!("cannot make {}: HF_HOME or HF_HUB_CACHE can name another folder", folder.display())
            })?;
        }
        let path = locks.join("lily-pull.lock");
        let lock = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        match lock.try_lock() {
            Ok(()) => Ok(Lock { _file: lock }),
            Err(TryLockError::WouldBlock) => {
                bail!("another `lily pull` is downloading to {}: let it end, or stop it", entry.display())
            }
            Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("cannot lock {}", path.display())),
        }
    }

    pub(super) fn entry(&self) -> &Path {
        &self.entry
    }

    /// The checkpoint's directory.
    pub(super) fn snapshot(&self) -> PathBuf {
        self.entry.join("snapshots").join(REVISION)
    }

    /// Where a file's bytes are.
    pub(super) fn blob(&self, file: &RemoteFile) -> PathBuf {
        self.entry.join("blobs").join(file.digest.to_string())
    }

    /// Where a file is under its own name.
    pub(super) fn linked(&self, file: &RemoteFile) -> PathBuf {
        self.snapshot().join(&file.name)
    }

    /// Whether a file is there, by its size; then it is under its own name, too.
    pub(super) fn link_if_there(&self, file: &RemoteFile) -> Result<bool> {
        let has_size = |path: &Path| fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() == file.size);
        if has_size(&self.linked(file)) {
            return Ok(true);
        }
        if !has_size(&self.blob(file)) {
            return Ok(false);
        }
        self.link(file)?;
        Ok(true)
    }

    /// Puts a file whose bytes are there under its own name.
    pub(super) fn link(&self, file: &RemoteFile) -> Result<()> {
        let path = self.linked(file);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        // A relative link, as others make it: the cache can be moved.
        let up = "../".repeat(2 + Path::new(&file.name).components().count() - 1);
        let target = PathBuf::from(format!("{up}blobs/{}", file.digest));
        remove_if_there(&path)?;
        symlink(&target, &path)
            .with_context(|| format!("cannot make the link {}: does the file system have links?", path.display()))
    }

    /// Removes a file that is not as it should be.
    pub(super) fn remove(&self, file: &RemoteFile) -> Result<()> {
        remove_if_there(&self.linked(file))?;
        remove_if_there(&self.blob(file))
    }
}

fn remove_if_there(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

//! Which checkpoint to run when several could be meant.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::CHECKPOINT;
use crate::{Checkpoint, Error, directory};

/// Where a checkpoint is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// In a directory.
    Directory(PathBuf),
    /// In the program.
    Embedded,
}

impl Source {
    /// Opens it.
    ///
    /// # Errors
    /// As [`Checkpoint::open`] and [`Checkpoint::embedded`].
    pub fn open(&self) -> Result<Checkpoint, Error> {
        match self {
            Self::Directory(dir) => Checkpoint::open(dir),
            Self::Embedded => Checkpoint::embedded(),
        }
    }
}

/// What [`locate`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// What to open.
    pub source: Source,
    /// Whether `LILY_MODEL` names it.
    pub by_variable: bool,
    /// Sentences for people, about downloads that were passed over because they are not complete.
    pub notes: Vec<String>,
}

/// The environment variables that matter. Empty ones count as unset.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// `LILY_MODEL`: a checkpoint's directory.
    pub lily_model: Option<PathBuf>,
    /// `HF_HUB_CACHE`: the Hugging Face cache itself.
    pub hf_hub_cache: Option<PathBuf>,
    /// `HF_HOME`: the cache is its `hub`.
    pub hf_home: Option<PathBuf>,
    /// The user's home: else the cache is its `.cache/huggingface/hub`.
    pub home: Option<PathBuf>,
}

impl Environment {
    /// That of this process.
    #[must_use]
    pub fn of_process() -> Self {
        let path = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Self {
            lily_model: path("LILY_MODEL"),
            hf_hub_cache: path("HF_HUB_CACHE"),
            hf_home: path("HF_HOME"),
            home: env::home_dir().filter(|home| !home.as_os_str().is_empty()),
        }
    }

    /// The Hugging Face cache; `None` without any of the variables and without a home.
    #[must_use]
    pub fn hub_cache(&self) -> Option<PathBuf> {
        (self.hf_hub_cache.clone())
            .or_else(|| self.hf_home.as_ref().map(|home| home.join("hub")))
            .or_else(|| self.home.as_ref().map(|home| home.join(".cache/huggingface/hub")))
    }

    /// The folder of a repository (`owner/name`) in the cache.
    #[must_use]
    pub fn cache_entry(&self, repository: &str) -> Option<PathBuf> {
        Some(self.hub_cache()?.join(format!("models--{}", repository.replace('/', "--"))))
    }
}

/// Decides which checkpoint to run: the one asked for (`explicit`), else `$LILY_MODEL`, else a complete download of
/// the 35B in the Hugging Face cache, else the embedded one. Whether the first two are any good shows when they are
/// opened: what somebody asked for is never replaced by something else.
#[must_use]
pub fn locate(explicit: Option<&Path>, environment: &Environment) -> Located {
    let mut notes = Vec::new();
    let by_variable = explicit.is_none() && environment.lily_model.is_some();
    let asked = explicit.or(environment.lily_model.as_deref()).map(Path::to_owned);
    let source = asked
        .or_else(|| downloaded(&environment.cache_entry(CHECKPOINT)?, &mut notes))
        .map_or(Source::Embedded, Source::Directory);
    Located { source, by_variable, notes }
}

/// The snapshot that `refs/main` names, else the newest other one; only a complete one.
fn downloaded(entry: &Path, notes: &mut Vec<String>) -> Option<PathBuf> {
    let main = fs::read_to_string(entry.join("refs/main")).unwrap_or_default();
    let mut snapshots: Vec<(bool, SystemTime, PathBuf)> = fs::read_dir(entry.join("snapshots"))
        .ok()?
        .flatten()
        .filter(|snapshot| snapshot.path().is_dir())
        .map(|snapshot| {
            let modified = snapshot.metadata().and_then(|metadata| metadata.modified());
            let is_main = snapshot.file_name().to_str() == Some(main.trim());
            (is_main, modified.unwrap_or(SystemTime::UNIX_EPOCH), snapshot.path())
        })
        .collect();
    snapshots.sort();
    snapshots.into_iter().rev().map(|(_, _, dir)| dir).find(|dir| match directory::check_complete(dir) {
        Ok(()) => true,
        Err(error) => {
            notes.push(format!("passed over a download of {CHECKPOINT}: {error}"));
            false
        }
    })
}

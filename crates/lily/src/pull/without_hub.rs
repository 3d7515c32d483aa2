//! `lily pull --check` where the hub cannot be reached: what is there is read, as the cache names each file by its digest.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use lily_checkpoint::CHECKPOINT;

use super::cache::Cache;
use super::digest::Digest;
use crate::terminal::tell;

/// Reads every file of the snapshot and fails if there is none, one is not as it should be, or nothing tells what it should be.
pub(super) fn check(cache: &Cache, failure: &str) -> Result<()> {
    let snapshot = cache.snapshot();
    let files = if snapshot.is_dir() { files(&snapshot)? } else { Vec::new() };
    if files.is_empty() {
        bail!(
            "there is nothing to check: {CHECKPOINT} is not in {}; `lily pull` downloads it once the hub can be reached ({failure})",
            cache.entry().display()
        );
    }
    let _lock = cache.take()?;
    tell(format_args!(
        "{failure}\noffline: only what is there is checked, each file against the digest that the cache names it by"
    ));
    let (mut faults, mut untold) = (0, 0);
    for path in &files {
        let found = State::of(path);
        let words = match &found {
            State::Intact => "as it should be",
            State::Untold(why) => {
                untold += 1;
                why
            }
            State::Faulty(fault) => {
                faults += 1;
                fault
            }
        };
        tell(format_args!("{}: {words}", path.strip_prefix(&snapshot).unwrap_or(path).display()));
    }
    let once_reached = "once the hub can be reached";
    match (faults, untold) {
        (0, 0) => Ok(()),
        (0, _) => bail!(
            "{untold} of {} files cannot be checked, as the cache does not name them by their digests: `lily pull --check` checks them {once_reached}",
            files.len()
        ),
        (1, _) => bail!("one file is not as it should be: `lily pull --check` downloads it anew {once_reached}"),
        _ => bail!("{faults} files are not as they should be: `lily pull --check` downloads them anew {once_reached}"),
    }
}

/// All files below a directory, in order.
fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let cannot = || format!("{} cannot be read", directory.display());
    for entry in fs::read_dir(directory).with_context(cannot)? {
        let path = entry.with_context(cannot)?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// What a file is.
enum State {
    /// It has the digest that its link's target is named by.
    Intact,
    /// Nothing tells what it should be; why.
    Untold(&'static str),
    /// It is damaged or cannot be read.
    Faulty(String),
}

impl State {
    fn of(path: &Path) -> Self {
        let Ok(target) = fs::read_link(path) else {
            return Self::Untold("no link into the cache: nothing tells what it should be");
        };
        let name = target.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let sha256 = Digest::new(Some(name), None);
        let Some(digest) = sha256.or_else(|| Digest::new(None, Some(name))) else {
            return Self::Untold("its link names no digest: nothing tells what it should be");
        };
        match digest.matches(path) {
            Ok(true) => Self::Intact,
            Ok(false) => Self::Faulty("damaged".into()),
            Err(error) => Self::Faulty(format!("cannot be read: {error}")),
        }
    }
}

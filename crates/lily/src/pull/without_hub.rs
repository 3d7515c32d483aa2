//! `lily pull --check` where the hub cannot be reached: what is there is read, as the cache names each file by its digest.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::cache::Cache;
use super::digest::Digest;
use crate::terminal::tell;

/// Reads every file of the snapshot and fails if one is not as it should be. `false` if there is none.
pub(super) fn check(cache: &Cache, failure: &str) -> Result<bool> {
    let snapshot = cache.snapshot();
    let files = files(&snapshot)?;
    if files.is_empty() {
        return Ok(false);
    }
    tell(format_args!(
        "{failure}\noffline: only what is there is checked, each file against the digest that the cache names it by"
    ));
    let mut faults = 0;
    for path in &files {
        let found = state(path);
        faults += usize::from(found.is_err());
        let words = found.unwrap_or_else(|fault| fault);
        tell(format_args!("{}: {words}", path.strip_prefix(&snapshot).unwrap_or(path).display()));
    }
    match faults {
        0 => Ok(true),
        1 => {
            bail!("one file is not as it should be: `lily pull --check` downloads it anew once the hub can be reached")
        }
        several => {
            bail!(
                "{several} files are not as they should be: `lily pull --check` downloads them anew once the hub can be reached"
            )
        }
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

/// What a file is, in words; an error if it is not what its link's target is named by.
fn state(path: &Path) -> Result<String, String> {
    let Ok(target) = fs::read_link(path) else {
        return Ok("no link into the cache: nothing tells what it should be".into());
    };
    let name = target.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let sha256 = Digest::new(Some(name), None);
    let Some(digest) = sha256.or_else(|| Digest::new(None, Some(name))) else {
        return Ok("its link names no digest: nothing tells what it should be".into());
    };
    match digest.matches(path) {
        Ok(true) => Ok("as it should be".into()),
        Ok(false) => Err("damaged".into()),
        Err(error) => Err(format!("cannot be read: {error}")),
    }
}

//! What the repository holds at the revision.

use std::path::{Component, Path};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Result, bail};
use lily_checkpoint::{CHECKPOINT, REVISION};
use serde::Deserialize;

use super::digest::Digest;
use super::hub::{Hub, parse, read_all};
use super::patience::{Failure, Patience};
use crate::terminal::tell;

/// Somebody waits for the first word.
const TRIES: u32 = 3;
const LONGEST_AFTER: Duration = Duration::from_secs(30);
/// No repository's list is that long.
const LONGEST: u64 = 32 << 20;
/// No checkpoint's file is that large; sums of sizes and counts of parts stay far from their types' ends.
const LARGEST: u64 = 1 << 40;

/// One file of the repository.
#[derive(Clone, Debug)]
pub(super) struct RemoteFile {
    /// Its path, checked: it leads nowhere but below the checkpoint's directory.
    pub(super) name: String,
    pub(super) size: u64,
    pub(super) digest: Digest,
}

#[derive(Deserialize)]
struct Revision {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

impl Hub {
    /// What the hub tells of the revision; [`read`] makes its files of that.
    pub(super) fn listing(&self) -> Result<Vec<u8>, Failure> {
        let url = self.listing_url();
        let mut patience = Patience::new(TRIES, LONGEST_AFTER);
        loop {
            match self.open(&url, None).and_then(|opened| read_all(opened, LONGEST)) {
                Ok(json) => return Ok(json),
                Err(failure) => patience.wait(failure, &AtomicBool::new(false), |what, wait| {
                    tell(format_args!("{what}; trying again in {} s", wait.as_secs()));
                })?,
            }
        }
    }
}

/// The revision's files, small ones first.
pub(super) fn read(hub: &Hub, json: &[u8]) -> Result<Vec<RemoteFile>> {
    files(&parse(&hub.listing_url(), json)?)
}

fn files(revision: &Revision) -> Result<Vec<RemoteFile>> {
    if revision.sha != REVISION {
        bail!(
            "the hub tells of revision {:?} of {CHECKPOINT}, not of {REVISION}: is HF_ENDPOINT a whole mirror?",
            revision.sha
        );
    }
    let mut files = revision.siblings.iter().map(file).collect::<Result<Vec<_>>>()?;
    files.sort_by_key(|file| file.size);
    Ok(files)
}

fn file(sibling: &Sibling) -> Result<RemoteFile> {
    let name = &sibling.rfilename;
    let path = Path::new(name);
    if name.is_empty() || name.ends_with('/') || !path.components().all(|part| matches!(part, Component::Normal(_))) {
        bail!("the hub tells of a file named {name:?}, which no checkpoint has: is HF_ENDPOINT right?");
    }
    let digest = Digest::new(sibling.lfs.as_ref().map(|lfs| lfs.sha256.as_str()), sibling.blob_id.as_deref());
    let size = sibling.lfs.as_ref().map(|lfs| lfs.size).or(sibling.size);
    match (digest, size) {
        (Some(_), Some(size)) if size > LARGEST => {
            bail!("the hub tells of {name} with {size} bytes, which no checkpoint's file has: is HF_ENDPOINT right?")
        }
        (Some(digest), Some(size)) => Ok(RemoteFile { name: name.clone(), size, digest }),
        _ => bail!("the hub tells neither size nor digest of {name}: is HF_ENDPOINT a whole mirror?"),
    }
}

#[cfg(test)]
mod tests {
    use super::REVISION;
    use serde_json::{Value, json};

    fn listed(sibling: Value) -> Result<Vec<(String, u64)>, String> {
        let revision = json!({"sha": REVISION, "siblings": [sibling]});
        let files = super::files(&serde_json::from_value(revision).unwrap()).map_err(|error| error.to_string())?;
        Ok(files.into_iter().map(|file| (file.name, file.size)).collect())
    }

    #[test]
    fn names_lead_nowhere_else() {
        let blob = "ce013625030ba8dba906f756967f9e9ca394464a";
        let named = |name: &str| listed(json!({"rfilename": name, "size": 6, "blobId": blob}));
        assert_eq!(named("config.json").unwrap(), [("config.json".into(), 6)]);
        assert_eq!(named("a/b c.txt").unwrap(), [("a/b c.txt".into(), 6)]);
        for bad in ["", "/etc/passwd", "../x", "a/../../x", "a/", ".", "./x"] {
            assert!(named(bad).unwrap_err().contains("no checkpoint has"), "{bad}");
        }
    }

    #[test]
    fn a_size_is_one_that_a_file_may_have() {
        let sized =
            |size: u64| listed(json!({"rfilename": "x", "size": 1, "lfs": {"sha256": "0".repeat(64), "size": size}}));
        assert_eq!(sized(1 << 40).unwrap(), [("x".into(), 1 << 40)]);
        assert!(sized(u64::MAX).unwrap_err().contains("which no checkpoint's file has"));
    }

    #[test]
    fn a_file_without_a_digest_is_not_taken() {
        for (sibling, wanted) in [
            (json!({"rfilename": "x", "size": 6}), "neither size nor digest of x"),
            (json!({"rfilename": "x", "blobId": "ce013625030ba8dba906f756967f9e9ca394464a"}), "neither"),
            (json!({"rfilename": "x", "size": 1, "lfs": {"sha256": "..", "size": 6}}), "neither"),
        ] {
            assert!(listed(sibling).unwrap_err().contains(wanted));
        }
    }
}

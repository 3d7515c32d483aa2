//! What tells whether a file is the one the hub has.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

const BUFFER: usize = 1 << 20;

/// As the hub tells it of a file; its hexadecimal form is the file's name in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Digest {
    /// SHA-256 of a large file.
    Sha256(String),
    /// Git's name of a small one: SHA-1 of its length and bytes.
    GitBlob(String),
}

impl Digest {
    /// From the hub's words: hexadecimal, small letters, of the right length; else `None`.
    pub(super) fn new(sha256: Option<&str>, git_blob: Option<&str>) -> Option<Self> {
        let valid = |text: &str, length| {
            text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        match (sha256, git_blob) {
            (Some(sha256), _) => valid(sha256, 64).then(|| Self::Sha256(sha256.into())),
            (None, Some(blob)) => valid(blob, 40).then(|| Self::GitBlob(blob.into())),
            (None, None) => None,
        }
    }

    /// Reads a file and says whether it is the one.
    pub(super) fn matches(&self, path: &Path) -> io::Result<bool> {
        let mut file = File::open(path)?;
        let mut context = match self {
            Self::Sha256(_) => Context::new(&SHA256),
            Self::GitBlob(_) => {
                let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
                context.update(format!("blob {}\0", file.metadata()?.len()).as_bytes());
                context
            }
        };
        let mut buffer = vec![0; BUFFER];
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                read => context.update(&buffer[..read]),
            }
        }
        let hexadecimal: String = context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(hexadecimal == self.to_string())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Sha256(text) | Self::GitBlob(text)) = self;
        f.write_str(text)
    }
}

#[cfg(test)]
mod tests {
    use super::Digest;

    #[test]
    fn both_kinds_are_as_git_and_sha256sum_have_them() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "hello\n").unwrap();
        let git = Digest::new(None, Some("ce013625030ba8dba906f756967f9e9ca394464a")).unwrap();
        assert!(git.matches(file.path()).unwrap());
        let sha256 = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        let large = Digest::new(Some(sha256), Some("ce013625030ba8dba906f756967f9e9ca394464a")).unwrap();
        assert_eq!(large, Digest::Sha256(sha256.into()));
        assert!(large.matches(file.path()).unwrap());
        std::fs::write(file.path(), "hellO\n").unwrap();
        assert!(!git.matches(file.path()).unwrap() && !large.matches(file.path()).unwrap());
    }

    #[test]
    fn what_is_no_digest_is_none() {
        for bad in ["", "../../x", "CE013625030BA8DBA906F756967F9E9CA394464A", "ce01"] {
            assert_eq!(Digest::new(None, Some(bad)), None);
            assert_eq!(Digest::new(Some(bad), None), None);
        }
        assert_eq!(Digest::new(None, None), None);
    }
}

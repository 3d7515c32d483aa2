//! Shared, immutable bytes that are never copied: a range of a mapped file, of static memory or of a vector.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::sync::Arc;

use memmap2::Mmap;

/// A range of bytes that keeps its owner alive. Cloning and slicing are cheap. No alignment is promised: a safetensors
/// header may have any length, and what follows it is as aligned as that.
#[derive(Clone)]
pub struct Bytes {
    owner: Owner,
    range: Range<usize>,
}

#[derive(Clone)]
enum Owner {
    Mapped(Arc<Mmap>),
    Static(&'static [u8]),
    Vector(Arc<Vec<u8>>),
}

impl Owner {
    fn all(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Static(bytes) => bytes,
            Self::Vector(bytes) => bytes,
        }
    }
}

impl Bytes {
    /// Maps a whole file for reading. Nothing is read until it is looked at.
    pub(crate) fn map(file: &File) -> io::Result<Self> {
        // SAFETY: the mapping is read-only and lives as long as the last `Bytes` that refers to it. The one way to
        // break it is another process that changes the file meanwhile; as with every program that maps its weights,
        // a checkpoint in use must be left alone, and downloaders replace files by renaming, which keeps this intact.
        let map = unsafe { Mmap::map(file)? };
        Ok(Self { range: 0..map.len(), owner: Owner::Mapped(Arc::new(map)) })
    }

    /// Asks that the whole mapped file is read in huge pages from now on, where the system can: products that stream gigabytes a
    /// token are slowed by the processor's search for small ones. A system that cannot says so, and loses nothing else.
    pub(crate) fn prefer_huge_pages(&self) {
        #[cfg(target_os = "linux")]
        if let Owner::Mapped(map) = &self.owner {
            let _ = map.advise(memmap2::Advice::HugePage);
        }
    }

    /// Bytes of the program itself.
    #[must_use]
    pub const fn from_static(bytes: &'static [u8]) -> Self {
        Self { owner: Owner::Static(bytes), range: 0..bytes.len() }
    }

    /// True if they lie in a mapped file: the pages that hold them hold nothing but that file.
    #[must_use]
    pub const fn is_mapped(&self) -> bool {
        matches!(self.owner, Owner::Mapped(_))
    }

    /// A part, without a copy.
    ///
    /// # Panics
    /// If `range` is not within these bytes.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} of {} bytes", self.len());
        Self { owner: self.owner.clone(), range: self.range.start + range.start..self.range.start + range.end }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.owner.all()[self.range.clone()]
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self { range: 0..bytes.len(), owner: Owner::Vector(Arc::new(bytes)) }
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.owner {
            Owner::Mapped(_) => "mapped",
            Owner::Static(_) => "static",
            Owner::Vector(_) => "owned",
        };
        write!(f, "Bytes({} {kind})", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_of_slices_keep_their_place() {
        for bytes in [Bytes::from_static(b"0123456789"), Bytes::from(b"0123456789".to_vec())] {
            let middle = bytes.slice(2..8);
            assert_eq!(&*middle, b"234567");
            assert_eq!(&*middle.slice(1..3), b"34");
            assert!(middle.slice(6..6).is_empty());
        }
    }

    #[test]
    #[should_panic(expected = "of 6 bytes")]
    fn a_slice_cannot_leave_its_parent() {
        let _ = Bytes::from_static(b"0123456789").slice(2..8).slice(0..7);
    }

    #[test]
    fn a_mapped_file_outlives_its_handle() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"weights").unwrap();
        let bytes = Bytes::map(&File::open(file.path()).unwrap()).unwrap().slice(1..7);
        drop(file);
        assert_eq!(&*bytes, b"eights");
    }
}

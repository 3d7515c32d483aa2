//! A file that is not whole yet: its bytes as far as they are there, and beside it a journal of the parts that are.
//!
//! Both have names that other downloaders do not use, which would take the file's length for what is there of it.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Bytes of a part: lost if the program is killed within it, and worth a request of its own.
pub(super) const PART: u64 = 8 << 20;

/// In the journal, after its first line: a byte for each part.
const THERE: u8 = b'1';
const ABSENT: u8 = b'0';

/// An incomplete file, open for several threads to write to.
pub(super) struct Partial {
    data: File,
    journal: File,
    paths: Paths,
    size: u64,
    /// At the time it was opened.
    there: Vec<bool>,
}

struct Paths {
    data: PathBuf,
    journal: PathBuf,
}

impl Paths {
    fn of(blob: &Path) -> Self {
        let with = |ending: &str| {
            let mut path = OsString::from(blob);
            path.push(ending);
            PathBuf::from(path)
        };
        Self { data: with(".lily.incomplete"), journal: with(".lily.parts") }
    }
}

/// How many bytes of a file are there from an earlier run.
pub(super) fn bytes_there(blob: &Path, size: u64) -> u64 {
    let there = read_journal(&Paths::of(blob), size).unwrap_or_default();
    there.iter().enumerate().filter(|&(_, &there)| there).map(|(part, _)| length(&range(part, size))).sum()
}

fn first_line(size: u64) -> String {
    format!("lily pull 1, {size} bytes in parts of {PART}\n")
}

fn parts(size: u64) -> usize {
    // An empty file has one, empty part.
    size.div_ceil(PART).max(1) as usize
}

fn range(part: usize, size: u64) -> Range<u64> {
    let start = part as u64 * PART;
    start..size.min(start + PART)
}

fn length(range: &Range<u64>) -> u64 {
    range.end - range.start
}

/// Which parts are there; `None` if there is no journal of this file, or no file to it.
fn read_journal(paths: &Paths, size: u64) -> Option<Vec<bool>> {
    let journal = fs::read(&paths.journal).ok()?;
    let marks = journal.strip_prefix(first_line(size).as_bytes())?;
    let fits = marks.len() == parts(size) && fs::metadata(&paths.data).ok()?.len() == size;
    fits.then(|| marks.iter().map(|&mark| mark == THERE).collect())
}

impl Partial {
    /// Goes on with what there is of the file that is to be `blob`, or begins.
    pub(super) fn open(blob: &Path, size: u64) -> Result<Self> {
        let paths = Paths::of(blob);
        let there = read_journal(&paths, size);
        let open =
            |path: &Path| OpenOptions::new().read(true).write(true).create(true).truncate(there.is_none()).open(path);
        let cannot = |path: &Path| format!("cannot write {}", path.display());
        let data = open(&paths.data).with_context(|| cannot(&paths.data))?;
        let journal = open(&paths.journal).with_context(|| cannot(&paths.journal))?;
        let fresh = there.is_none();
        let there = there.unwrap_or_else(|| vec![false; parts(size)]);
        let partial = Self { data, journal, paths, size, there };
        if fresh {
            partial.reset().with_context(|| cannot(&partial.paths.data))?;
        }
        Ok(partial)
    }

    /// The parts that were not there when it was opened.
    pub(super) fn absent(&self) -> Vec<usize> {
        (0..self.parts()).filter(|&part| !self.there[part]).collect()
    }

    pub(super) fn parts(&self) -> usize {
        self.there.len()
    }

    pub(super) fn range(&self, part: usize) -> Range<u64> {
        range(part, self.size)
    }

    pub(super) fn path(&self) -> &Path {
        &self.paths.data
    }

    pub(super) fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.data.write_all_at(bytes, at)
    }

    /// Notes that a part is there, once it surely is.
    pub(super) fn finish(&self, part: usize) -> io::Result<()> {
        self.data.sync_data()?;
        self.journal.write_all_at(&[THERE], (first_line(self.size).len() + part) as u64)
    }

    /// Nothing is there, whatever was.
    pub(super) fn reset(&self) -> io::Result<()> {
        let mut journal = first_line(self.size).into_bytes();
        journal.resize(journal.len() + self.parts(), ABSENT);
        self.journal.set_len(0)?;
        self.data.set_len(self.size)?;
        self.journal.write_all_at(&journal, 0)
    }

    /// The file is whole: it gets its name.
    pub(super) fn keep(&self, blob: &Path) -> Result<()> {
        let kept = self.data.sync_all().and_then(|()| fs::rename(&self.paths.data, blob));
        kept.with_context(|| format!("cannot rename {} to {}", self.paths.data.display(), blob.display()))?;
        // Without its file it means nothing.
        let _left_over = fs::remove_file(&self.paths.journal);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{PART, Partial, bytes_there};

    #[test]
    fn what_is_noted_is_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let blob = folder.path().join("blob");
        let size = 2 * PART + 5;
        let partial = Partial::open(&blob, size).unwrap();
        assert_eq!(partial.absent(), [0, 1, 2]);
        assert_eq!(partial.range(2), 2 * PART..size);
        partial.write(b"abcde", 2 * PART).unwrap();
        partial.finish(2).unwrap();
        drop(partial);
        assert_eq!(bytes_there(&blob, size), 5);
        let partial = Partial::open(&blob, size).unwrap();
        assert_eq!(partial.absent(), [0, 1]);
        partial.reset().unwrap();
        assert_eq!((bytes_there(&blob, size), Partial::open(&blob, size).unwrap().absent().len()), (0, 3));
        partial.keep(&blob).unwrap();
        assert_eq!(
            (std::fs::metadata(&blob).unwrap().len(), std::fs::read_dir(folder.path()).unwrap().count()),
            (size, 1)
        );
    }

    #[test]
    fn a_journal_of_another_file_or_a_cut_one_counts_for_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let blob = folder.path().join("blob");
        let begin = |size| {
            let partial = Partial::open(&blob, size).unwrap();
            partial.finish(0).unwrap();
            partial
        };
        begin(PART);
        assert_eq!(bytes_there(&blob, PART), PART);
        assert_eq!(bytes_there(&blob, PART + 1), 0);
        let cut = begin(PART);
        cut.data.set_len(3).unwrap();
        assert_eq!(bytes_there(&blob, PART), 0);
        assert_eq!(Partial::open(&blob, PART).unwrap().absent(), [0]);
        std::fs::write(&cut.paths.journal, "nonsense").unwrap();
        assert_eq!(Partial::open(&blob, 0).unwrap().absent(), [0]);
    }
}

//! One snapshot in one file. All numbers are little-endian.
//!
//! ```text
//! magic 8 · version 4 · fingerprint 32 · key 32 · parent 32 · from 8 · length 8 · history 8 · state 8
//! tokens from..length, 4 each
//! BLAKE3 of all the above, 32
//! history bytes, and their BLAKE3 keyed with `key`, 32
//! state bytes, and theirs, 32
//! ```
//!
//! The checksums make the sections readable one by one: a scan reads only the first, a chain of files all histories but
//! only the last state. The key in them keeps a section of another file from being taken for this one's.

use std::io::{self, BufReader, Read, Write};

use blake3::Hasher;

/// Names a sequence of tokens of a model: BLAKE3 of the tokens, keyed with the model's fingerprint.
pub(crate) type Key = [u8; 32];

/// The parent of a file that has none.
pub(crate) const NO_PARENT: Key = [0; 32];

const MAGIC: [u8; 8] = *b"LILYSNAP";
/// Of what this file says.
pub(crate) const VERSION: u32 = 1;
/// Tokens that no context holds: more are damage, before as much memory is asked for.
const TOO_LONG: u64 = 1 << 24;
const SUM: u64 = 32;
const FIXED: usize = 8 + 4 + 3 * 32 + 4 * 8;

/// The key of a sequence.
pub(crate) fn key(fingerprint: &Key, tokens: &[u32]) -> Key {
    let mut hasher = Hasher::new_keyed(fingerprint);
    for tokens in tokens.chunks(1024) {
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        hasher.update(&bytes);
    }
    *hasher.finalize().as_bytes()
}

/// What a file says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Of the model and of whatever else decides the bits.
    pub(crate) fingerprint: Key,
    /// Of all tokens, the parent's too.
    pub(crate) key: Key,
    /// The file that holds what comes before `from`, or [`NO_PARENT`].
    pub(crate) parent: Key,
    /// The first token whose history is in this file.
    pub(crate) from: u64,
    /// Tokens of the snapshot.
    pub(crate) length: u64,
    /// Bytes of the history.
    pub(crate) history: u64,
    /// Bytes of the state.
    pub(crate) state: u64,
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// It cannot be read, or ends too early.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is something else than was meant.
    #[error("not the snapshot it should be")]
    Foreign,
    /// It is of another version, and may be sound.
    #[error("a snapshot of another version")]
    OtherVersion,
    /// A checksum or a size is wrong.
    #[error("{0} are damaged")]
    Damaged(&'static str),
}

impl Fault {
    /// Whether the disk failed and not the file: it may be sound.
    pub(crate) fn is_the_disks(&self) -> bool {
        let Self::Io(error) = self else { return false };
        match error.kind() {
            io::ErrorKind::NotFound => false,
            io::ErrorKind::OutOfMemory => true,
            _ => error.raw_os_error().is_some(),
        }
    }
}

impl Header {
    /// The whole file's size; `None` if the lengths cannot be true.
    pub(crate) fn file_bytes(&self) -> Option<u64> {
        let tokens = self.length.checked_sub(self.from)?.checked_mul(4)?;
        let fixed = FIXED as u64 + 3 * SUM;
        fixed.checked_add(tokens)?.checked_add(self.history)?.checked_add(self.state)
    }

    fn to_bytes(&self, tokens: &[u32]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FIXED + tokens.len() * 4);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        for hash in [&self.fingerprint, &self.key, &self.parent] {
            bytes.extend(hash);
        }
        for number in [self.from, self.length, self.history, self.state] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        bytes
    }

    /// Reads a header and its tokens, of a file of `size` bytes.
    pub(crate) fn read(from: &mut dyn Read, size: u64) -> Result<(Self, Vec<u32>), Fault> {
        let mut fixed = [0; FIXED];
        from.read_exact(&mut fixed).map_err(short)?;
        if fixed[..8] != MAGIC {
            return Err(Fault::Foreign);
        }
        if fixed[8..12] != VERSION.to_le_bytes() {
            return Err(Fault::OtherVersion);
        }
        let hash = |index: usize| Key::try_from(&fixed[12 + index * 32..][..32]).expect("32 bytes");
        let number = |index: usize| u64::from_le_bytes(fixed[108 + index * 8..][..8].try_into().expect("8 bytes"));
        let header = Self {
            fingerprint: hash(0),
            key: hash(1),
            parent: hash(2),
            from: number(0),
            length: number(1),
            history: number(2),
            state: number(3),
        };
        // Before anything of those lengths is allocated.
        if header.file_bytes() != Some(size) || header.length >= TOO_LONG {
            return Err(Fault::Damaged("the sizes"));
        }
        let mut tokens = vec![0; (header.length - header.from) as usize * 4];
        from.read_exact(&mut tokens).map_err(short)?;
        let mut sum = [0; SUM as usize];
        from.read_exact(&mut sum).map_err(short)?;
        let mut hasher = Hasher::new();
        if hasher.update(&fixed).update(&tokens).finalize() != sum {
            return Err(Fault::Damaged("header or tokens"));
        }
        let (tokens, _) = tokens.as_chunks::<4>();
        Ok((header, tokens.iter().map(|token| u32::from_le_bytes(*token)).collect()))
    }

    /// Reads past a header that is known to begin the file.
    pub(crate) fn open(from: impl Read, size: u64) -> Result<(Self, impl Read), Fault> {
        let mut from = BufReader::with_capacity(1 << 18, from);
        let (header, _) = Self::read(&mut from, size)?;
        Ok((header, from))
    }
}

/// An early end is damage, not trouble with the disk.
fn short(error: io::Error) -> Fault {
    if error.kind() == io::ErrorKind::UnexpectedEof { Fault::Damaged("the sizes") } else { error.into() }
}

/// Writes a file: the header, then each section by the closure given for it.
pub(crate) fn write(
    to: &mut dyn Write,
    header: &Header,
    tokens: &[u32],
    history: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    state: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let bytes = header.to_bytes(tokens);
    to.write_all(&bytes)?;
    to.write_all(blake3::hash(&bytes).as_bytes())?;
    let mut section = Section::new(&mut *to, header, header.history);
    history(&mut section)?;
    section.end_of_writing()?;
    let mut section = Section::new(to, header, header.state);
    state(&mut section)?;
    section.end_of_writing()
}

/// Reads a section by the closure, then its checksum.
pub(crate) fn read_section<T>(
    from: &mut dyn Read,
    header: &Header,
    bytes: u64,
    name: &'static str,
    read: impl FnOnce(&mut dyn Read) -> io::Result<T>,
) -> Result<T, Fault> {
    let mut section = Section::new(from, header, bytes);
    let value = read(&mut section).map_err(short)?;
    let Section { inner, hasher, left } = section;
    let mut sum = [0; SUM as usize];
    inner.read_exact(&mut sum).map_err(short)?;
    if left > 0 || hasher.finalize() != sum {
        return Err(Fault::Damaged(name));
    }
    Ok(value)
}

/// Hashes what passes, and lets no more pass than there is.
struct Section<'a, T: ?Sized> {
    inner: &'a mut T,
    hasher: Hasher,
    left: u64,
}

impl<'a, T: ?Sized> Section<'a, T> {
    fn new(inner: &'a mut T, header: &Header, bytes: u64) -> Self {
        Self { inner, hasher: Hasher::new_keyed(&header.key), left: bytes }
    }
}

impl Section<'_, dyn Write + '_> {
    fn end_of_writing(self) -> io::Result<()> {
        if self.left > 0 {
            return Err(io::Error::other(format!("a section is {} bytes short", self.left)));
        }
        self.inner.write_all(self.hasher.finalize().as_bytes())
    }
}

impl<T: Write + ?Sized> Write for Section<'_, T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.left {
            return Err(io::Error::other("a section is longer than it was said to be"));
        }
        let written = self.inner.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        self.left -= written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<T: Read + ?Sized> Read for Section<'_, T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let most = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let read = self.inner.read(&mut bytes[..most])?;
        self.hasher.update(&bytes[..read]);
        self.left -= read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKENS: [u32; 3] = [5, 6, 70_000];

    fn header() -> Header {
        let fingerprint = [3; 32];
        let key = key(&fingerprint, &[1, 2, 5, 6, 70_000]);
        Header { fingerprint, key, parent: [9; 32], from: 2, length: 5, history: 7, state: 4 }
    }

    fn file() -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&mut bytes, &header(), &TOKENS, |to| to.write_all(b"history"), |to| to.write_all(b"stat")).unwrap();
        bytes
    }

    fn read(bytes: &[u8]) -> Result<(Header, Vec<u32>, Vec<u8>), Fault> {
        let mut from = bytes;
        let (header, tokens) = Header::read(&mut from, bytes.len() as u64)?;
        let mut body = Vec::new();
        read_section(&mut from, &header, header.history, "history", |from| from.read_to_end(&mut body))?;
        read_section(&mut from, &header, header.state, "state", |from| from.read_to_end(&mut body))?;
        Ok((header, tokens, body))
    }

    #[test]
    fn is_read_as_it_was_written() {
        let bytes = file();
        assert_eq!(Some(bytes.len() as u64), header().file_bytes());
        assert_eq!(read(&bytes).unwrap(), (header(), TOKENS.to_vec(), b"historystat".to_vec()));
    }

    /// Every bit of every byte counts, and so does every length.
    #[test]
    fn no_damage_is_overlooked() {
        let whole = file();
        for byte in 0..whole.len() {
            for bit in 0..8 {
                let mut bytes = whole.clone();
                bytes[byte] ^= 1 << bit;
                assert!(read(&bytes).is_err(), "bit {bit} of byte {byte}");
            }
        }
        for length in 0..whole.len() {
            assert!(read(&whole[..length]).is_err(), "cut to {length}");
        }
        assert!(read(&[&whole[..], b"x"].concat()).is_err());
    }

    /// A section of another file is no section of this one, checksum or not.
    #[test]
    fn sections_belong_to_their_file() {
        let other = Header { key: [8; 32], ..header() };
        let mut foreign = Vec::new();
        write(&mut foreign, &other, &TOKENS, |to| to.write_all(b"strange"), |to| to.write_all(b"stat")).unwrap();
        let own = file();
        let body = own.len() - (7 + 32 + 4 + 32);
        assert!(read(&[&own[..body], &foreign[body..]].concat()).is_err());
    }

    #[test]
    fn a_section_of_another_length_is_no_section() {
        let write = |history: &'static [u8]| {
            write(&mut Vec::new(), &header(), &TOKENS, |to| to.write_all(history), |to| to.write_all(b"stat"))
        };
        assert!(write(b"short").is_err());
        assert!(write(b"too long").is_err());
    }

    /// A header of a file with holes may promise any length.
    #[test]
    fn nothing_is_allocated_for_a_promise() {
        let promised = Header { length: 1 << 40, ..header() };
        let bytes = promised.to_bytes(&[]);
        let size = promised.file_bytes().unwrap();
        assert!(matches!(Header::read(&mut &bytes[..], size), Err(Fault::Damaged("the sizes"))));
    }

    #[test]
    fn what_the_disk_did_is_no_damage() {
        let fault = |error: io::Error| Fault::from(error).is_the_disks();
        assert!(fault(io::Error::from_raw_os_error(5)), "EIO");
        assert!(fault(io::Error::from_raw_os_error(24)), "EMFILE");
        assert!(!fault(io::ErrorKind::NotFound.into()));
        assert!(!fault(io::Error::other("the archive's")));
        assert!(!Fault::Damaged("it").is_the_disks() && !Fault::OtherVersion.is_the_disks());
    }

    #[test]
    fn keys_tell_models_and_tokens_apart() {
        let keys = [key(&[1; 32], &[1, 2]), key(&[2; 32], &[1, 2]), key(&[1; 32], &[2, 1]), key(&[1; 32], &[1])];
        for (index, one) in keys.iter().enumerate() {
            assert!(!keys[..index].contains(one));
        }
    }
}

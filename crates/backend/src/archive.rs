//! Snapshots as bytes, so that they outlive the process.

use std::io::{self, Read, Write};

/// One allocation that a snapshot holds. Snapshots that share it name it by the same `id`, so that whoever adds up
/// what they hold counts it once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The same in every snapshot that holds the piece, and no other piece's as long as one of them lives.
    pub id: u64,
    /// Its size.
    pub bytes: u64,
}

/// Turns snapshots into bytes and back, away from the thread that owns the backend. What it writes has been through
/// [`Backend::fetch`](crate::Backend::fetch), what it reads goes through [`Backend::adopt`](crate::Backend::adopt).
///
/// A snapshot is written in two sections. The history is what grows with the tokens (keys and values): only the part
/// after a parent, whose own file holds the rest. The state is what has one size at any length, and of a chain of files
/// only the last one's is ever read back. What the bytes are is the implementation's business; they need no checksum,
/// the caller has one.
pub trait Archive<S>: Send + Sync + 'static {
    /// Names the bytes' meaning: another format, version, model shape or numerical behaviour is another name.
    fn format(&self) -> String;

    /// Bytes of the history of tokens `from..to`.
    fn history_bytes(&self, from: usize, to: usize) -> u64;

    /// Bytes of the state.
    fn state_bytes(&self) -> u64;

    /// Bytes in memory of a snapshot of `length` tokens that shares nothing.
    fn memory_bytes(&self, length: usize) -> u64;

    /// Bytes of the machine's memory that tokens `from..to` and the state take on their way to or from the disk, beside the
    /// snapshot: 0 where the archive works on the snapshot itself.
    fn transit_bytes(&self, _from: usize, _to: usize) -> u64 {
        0
    }

    /// Writes the history from token `from`, at most the snapshot's length, to its end:
    /// [`history_bytes`](Self::history_bytes), exactly.
    ///
    /// # Errors
    /// The writer's.
    fn write_history(&self, snapshot: &S, from: usize, to: &mut dyn Write) -> io::Result<()>;

    /// Writes the state: [`state_bytes`](Self::state_bytes), exactly.
    ///
    /// # Errors
    /// The writer's.
    fn write_state(&self, snapshot: &S, to: &mut dyn Write) -> io::Result<()>;

    /// Reads the history of tokens `from..to` behind what `onto` holds, which are `from` tokens or more (those past `from`
    /// are replaced), and `None` if `from` is 0. What comes of it has no state: it can be read onto, and be completed by
    /// [`read_state`](Self::read_state), nothing else.
    ///
    /// # Errors
    /// The reader's; [`io::ErrorKind::InvalidInput`] if `onto` is too short; [`io::ErrorKind::OutOfMemory`].
    fn read_history(&self, onto: Option<&S>, from: usize, to: usize, bytes: &mut dyn Read) -> io::Result<S>;

    /// Completes what [`read_history`](Self::read_history) gave.
    ///
    /// # Errors
    /// The reader's; [`io::ErrorKind::OutOfMemory`].
    fn read_state(&self, history: S, bytes: &mut dyn Read) -> io::Result<S>;
}

/// Refuses what [`Archive::read_history`] may not be asked for: tokens `from..to` behind `held` ones.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`]
pub fn check_follows(held: usize, from: usize, to: usize) -> io::Result<()> {
    if held < from || to < from {
        let problem = format!("tokens {from}..{to} cannot follow {held}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check_follows;

    #[test]
    fn only_what_follows_is_read() {
        for (held, from, to) in [(70, 64, 70), (64, 64, 130), (0, 0, 0)] {
            assert!(check_follows(held, from, to).is_ok(), "{from}..{to} behind {held}");
        }
        for (held, from, to) in [(63, 64, 70), (0, 1, 2), (70, 64, 63)] {
            assert!(check_follows(held, from, to).is_err(), "{from}..{to} behind {held}");
        }
    }
}

//! Who holds what: adds up pieces that several snapshots share, each once.

use std::collections::HashMap;

use lily_backend::Piece;

/// Counts holders of pieces.
#[derive(Default)]
pub(crate) struct Ledger {
    holders: HashMap<u64, u32>,
    bytes: u64,
}

impl Ledger {
    /// Bytes of all pieces that somebody holds.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of those of these that nobody holds yet.
    pub(crate) fn missing(&self, pieces: &[Piece]) -> u64 {
        pieces.iter().filter(|piece| !self.holders.contains_key(&piece.id)).map(|piece| piece.bytes).sum()
    }

    /// Whether somebody holds all of these.
    pub(crate) fn has(&self, pieces: &[Piece]) -> bool {
        pieces.iter().all(|piece| self.holders.contains_key(&piece.id))
    }

    /// Somebody holds these.
    pub(crate) fn add(&mut self, pieces: &[Piece]) {
        for piece in pieces {
            let holders = self.holders.entry(piece.id).or_default();
            *holders += 1;
            if *holders == 1 {
                self.bytes += piece.bytes;
            }
        }
    }

    /// Somebody who held these does no more; to be called while they still exist.
    pub(crate) fn remove(&mut self, pieces: &[Piece]) {
        for piece in pieces {
            let Some(holders) = self.holders.get_mut(&piece.id) else { continue };
            *holders -= 1;
            if *holders == 0 {
                self.holders.remove(&piece.id);
                self.bytes -= piece.bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lily_backend::Piece;

    use super::Ledger;

    #[test]
    fn what_is_shared_counts_once() {
        let piece = |id| Piece { id, bytes: 10 };
        let mut ledger = Ledger::default();
        ledger.add(&[piece(1), piece(2)]);
        ledger.add(&[piece(2), piece(3)]);
        assert_eq!(ledger.bytes(), 30);
        assert_eq!(ledger.missing(&[piece(1), piece(3), piece(4), piece(5)]), 20);
        assert!(ledger.has(&[piece(1), piece(3)]) && !ledger.has(&[piece(1), piece(4)]));
        ledger.remove(&[piece(1), piece(2)]);
        assert_eq!(ledger.bytes(), 20);
        ledger.remove(&[piece(2), piece(3)]);
        assert_eq!((ledger.bytes(), ledger.holders.len()), (0, 0));
    }
}

//! What is read from the disk, and whether there is room for it.

use lily_backend::Piece;

use crate::cache::Cache;
use crate::cache::disk::{Header, Read};
use crate::cache::tree::Id;

/// What a read that is under way holds: the bytes that it will bring, those of the copy until then, and the pieces that it
/// builds on.
pub(super) struct Arriving {
    pub(super) bytes: u64,
    pub(super) transit: u64,
    pub(super) base: Vec<Piece>,
}

/// What came of the wish to read a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// It is under way.
    UnderWay,
    /// There is no room beside what else the disk has under way.
    NoRoomNow,
    /// There is no room.
    NoRoom,
}

/// What a read takes.
struct Course {
    files: Vec<(Id, Header)>,
    bytes: u64,
    transit: u64,
}

impl<S: Clone + Send + Sync + 'static> Cache<S> {
    /// The files of a node and those before it that are not in memory at `base`.
    fn course(&self, id: Id, base: Option<Id>) -> Option<Course> {
        let archive = &self.tier.as_ref()?.archive;
        let length = self.tree.get(id)?.length;
        let base_length = base.and_then(|id| self.tree.get(id)).map_or(0, |entry| entry.length);
        let mut files = Vec::new();
        let mut at = Some(id);
        while let Some(node) = at
            && let Some(entry) = self.tree.get(node)
            && let Some(on_disk) = &entry.disk
            && (entry.length > base_length || node == id)
        {
            files.push((node, on_disk.header.clone()));
            at = on_disk.parent;
        }
        files.reverse();
        // What comes before the first of them is the base's.
        let from = files.first()?.1.from as usize;
        let shared = archive.memory_bytes(from).saturating_sub(archive.memory_bytes(0));
        let bytes = archive.memory_bytes(length).saturating_sub(shared);
        Some(Course { files, bytes, transit: archive.transit_bytes(from, length) })
    }

    /// Whether there is room for a copy of so many bytes, and so many more beside it and these pieces, if the disk has nothing else
    /// under way.
    pub(super) fn fits_alone(&self, transit: u64, bytes: u64, pieces: &[Piece]) -> bool {
        let pinned: u64 = pieces.iter().map(|piece| piece.bytes).sum();
        transit <= self.options.transit && self.tree.bytes() + pinned + bytes + transit <= self.options.bytes
    }

    fn pieces_at(&self, base: Option<Id>) -> &[Piece] {
        let held = base.and_then(|id| self.tree.get(id)).and_then(|entry| entry.memory.as_ref());
        held.map_or(&[], |held| &held.pieces)
    }

    /// Whether a node can be read from disk into memory, onto what is there at `base`.
    pub(in crate::cache) fn readable(&self, id: Id, base: Option<Id>) -> bool {
        let is_there = |id| self.tree.get(id)?.disk.as_ref().filter(|on_disk| on_disk.writing.is_none());
        let course = is_there(id).and_then(|_| self.course(id, base));
        course.is_some_and(|course| self.fits_alone(course.transit, course.bytes, self.pieces_at(base)))
    }

    /// Begins to read a node's snapshot, if that is not under way and there is room.
    pub(crate) fn read(&mut self, id: Id) -> Reading {
        self.touch_on_disk(id);
        let path = self.tree.path(&self.tree.tokens(id));
        let base = path.into_iter().rev().find(|&id| self.tree.get(id).is_some_and(|entry| entry.memory.is_some()));
        if let Some(base) = base {
            self.touch(base);
        }
        if self.is_reading(id) {
            return Reading::UnderWay;
        }
        let Some(Course { files, bytes, transit }) = self.course(id, base) else { return Reading::NoRoom };
        let pieces = self.pieces_at(base).to_vec();
        if !self.has_room(bytes + transit + self.in_use.missing(&pieces)) || !self.has_way(transit) {
            let alone = self.fits_alone(transit, bytes, &pieces);
            return if alone { Reading::NoRoomNow } else { Reading::NoRoom };
        }
        let held = base.and_then(|id| self.tree.get(id)).and_then(|entry| entry.memory.as_ref());
        let base = held.map(|held| held.snapshot.clone());
        self.ledger.add(&pieces);
        self.in_use.add(&pieces);
        self.arriving += bytes;
        self.transit += transit;
        if let Some(tier) = &mut self.tier {
            tier.unplaced.remove(&id);
            tier.reading.insert(id, Arriving { bytes, transit, base: pieces });
            tier.disk.read(Read { id, base, files });
        }
        self.make_room(0);
        Reading::UnderWay
    }

    /// Whether a snapshot is being read.
    pub(crate) fn is_reading(&self, id: Id) -> bool {
        self.tier.as_ref().is_some_and(|tier| tier.reading.contains_key(&id))
    }

    /// Whether a snapshot was read, last, and the backend had no room for it.
    pub(crate) fn is_unplaced(&self, id: Id) -> bool {
        self.tier.as_ref().is_some_and(|tier| tier.unplaced.contains(&id))
    }

    /// Reads and writes that have ended so far.
    pub(crate) fn disk_done(&self) -> u64 {
        self.tier.as_ref().map_or(0, |tier| tier.done)
    }
}

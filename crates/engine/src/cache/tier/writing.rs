//! Which snapshots are written to the disk.

use lily_backend::Piece;

use super::{OnDisk, Tier};
use crate::cache::disk::{self, Header, NO_PARENT, Write};
use crate::cache::tree::Id;
use crate::cache::{Cache, Lasts};

/// Snapshots that may wait to be written.
const QUEUE: usize = 4;

/// A snapshot that could be written.
struct Draft {
    id: Id,
    length: usize,
    /// The node of the file that it builds on, and the tokens of that.
    parent: Option<Id>,
    from: usize,
    transit: u64,
    /// The one that is not written then.
    instead_of: Option<Id>,
}

impl<S: Clone + Send + Sync + 'static> Cache<S> {
    /// Has a snapshot in memory written, if it is far enough from what is on disk and there is room. One that is too much at once
    /// has one that it builds on written first. Where others are in the way, one that it builds on gives way as long as it only waits:
    /// of a prompt that is read faster than it is written, the longest is found after a restart.
    pub(in crate::cache) fn keep_on_disk(&mut self, id: Id, tokens: &[u32]) {
        let Some(tier) = &self.tier else { return };
        if self.for_disk(id).is_none() || self.on_disk(id).is_some() {
            return;
        }
        let path = self.tree.path(tokens);
        let known = path.iter().copied().rfind(|&id| self.on_disk(id).is_some());
        let least = self.length(known) + tier.spacing;
        if tokens.len() < least {
            return;
        }
        let longest = |parent, instead_of| self.longest(&path, least, parent, instead_of);
        let Some(draft) = longest(known, None) else {
            if let Some(tier) = self.tier.as_mut().filter(|tier| !tier.told) {
                tier.told = true;
                let (tokens, from) = (tokens.len(), self.length(known));
                tracing::warn!(
                    tokens,
                    from,
                    "a snapshot is not kept on disk: it is more than may be on its way there at once"
                );
            }
            return;
        };
        let instead = || longest(self.on_disk(known?)?.parent, known).filter(|draft| self.has_place(draft));
        let placed = Some(draft).filter(|draft| self.has_place(draft)).or_else(instead);
        let Some(tier) = &mut self.tier else { return };
        tier.missed = Some(id);
        let Some(draft) = placed else { return };
        if tier.left_out > 0 {
            tier.left_out -= 1;
        } else {
            self.enqueue(draft, tokens);
        }
    }

    /// Tries again with the last one that was not written, or only one that it builds on.
    pub(super) fn keep_missed(&mut self) {
        let Some(id) = self.tier.as_mut().and_then(|tier| tier.missed.take()) else { return };
        let tokens = self.tree.tokens(id);
        self.keep_on_disk(id, &tokens);
    }

    /// Says whether a request waits for room to read: then nothing else is begun to be written, or what is written would go on taking
    /// that room.
    pub(crate) fn hold_writes(&mut self, hold: bool) {
        let Some(tier) = &mut self.tier else { return };
        if std::mem::replace(&mut tier.held, hold) && !hold {
            self.keep_missed();
        }
    }

    fn length(&self, id: Option<Id>) -> usize {
        id.and_then(|id| self.tree.get(id)).map_or(0, |entry| entry.length)
    }

    fn on_disk(&self, id: Id) -> Option<&OnDisk> {
        self.tree.get(id)?.disk.as_ref()
    }

    /// A snapshot in memory and its pieces, if it may be written.
    fn for_disk(&self, id: Id) -> Option<(&S, &[Piece])> {
        let held = self.tree.get(id)?.memory.as_ref().filter(|held| held.lasts == Lasts::OnDisk)?;
        Some((&held.snapshot, &held.pieces))
    }

    /// The longest on a path, of `least` tokens or more, that could be written onto `parent` if nothing else were under way.
    fn longest(&self, path: &[Id], least: usize, parent: Option<Id>, instead_of: Option<Id>) -> Option<Draft> {
        let archive = &self.tier.as_ref()?.archive;
        let from = self.length(parent);
        let draft = |&id: &Id| {
            let length = Some(self.length(Some(id))).filter(|&length| length >= least)?;
            let transit = archive.transit_bytes(from, length);
            self.for_disk(id).filter(|(_, pieces)| self.fits_alone(transit, 0, pieces))?;
            Some(Draft { id, length, parent, from, transit, instead_of })
        };
        path.iter().rev().find_map(draft)
    }

    /// Whether there is room for it beside what else is under way. What waits to be written cannot be let go: of several together
    /// there is never more than half.
    fn has_place(&self, draft: &Draft) -> bool {
        let (Some(tier), Some((_, pieces))) = (&self.tier, self.for_disk(draft.id)) else { return false };
        let (waiting, way) = match draft.instead_of {
            None => (tier.waiting, 0),
            Some(id) => {
                let waits = |on_disk: &&OnDisk| on_disk.writing.is_some() && on_disk.children == 0;
                let Some(OnDisk { header, .. }) = self.on_disk(id).filter(waits) else { return false };
                (tier.waiting - 1, tier.archive.transit_bytes(header.from as usize, header.length as usize))
            }
        };
        // Its pieces may stay, as far as the other has them too.
        let pinned = (self.in_use.missing(pieces) + draft.transit).saturating_sub(way);
        let crowded = waiting > 0 && self.in_use.bytes() + self.transit + pinned > self.options.bytes / 2;
        !tier.held
            && waiting < QUEUE
            && !crowded
            && self.has_room(pinned)
            && self.has_way(draft.transit.saturating_sub(way))
    }

    /// Has it written, if there is room on the disk, and the one that gives way has not begun.
    fn enqueue(&mut self, draft: Draft, tokens: &[u32]) {
        let Draft { id, length, parent, from, transit, instead_of } = draft;
        let (Some(tier), Some((snapshot, pieces))) = (&self.tier, self.for_disk(id)) else { return };
        let (snapshot, pieces) = (snapshot.clone(), pieces.to_vec());
        let header = Header {
            fingerprint: tier.fingerprint,
            key: disk::key(&tier.fingerprint, &tokens[..length]),
            parent: parent.and_then(|id| self.on_disk(id)).map_or(NO_PARENT, |on_disk| on_disk.header.key),
            from: from as u64,
            length: length as u64,
            history: tier.archive.history_bytes(from, length),
            state: tier.archive.state_bytes(),
        };
        let gone = instead_of.and_then(|id| self.on_disk(id)).map_or(0, |on_disk| on_disk.bytes);
        let bytes = header.file_bytes().unwrap_or(u64::MAX);
        if !self.make_room_on_disk(bytes.saturating_sub(gone), parent) || !instead_of.is_none_or(|id| self.withdraw(id))
        {
            return;
        }
        let Some(tier) = &mut self.tier else { return };
        // One by the same name, of another version say, is replaced.
        if let Some(index) = tier.strangers.iter().position(|stranger| stranger.key == header.key) {
            tier.bytes -= tier.strangers.remove(index).bytes;
        }
        tier.missed = tier.missed.filter(|&missed| missed != id);
        tier.waiting += 1;
        tier.writes += 1;
        *tier.keys.entry(header.key).or_default() += 1;
        let number = tier.writes;
        self.ledger.add(&pieces);
        self.in_use.add(&pieces);
        self.transit += transit;
        self.add_file(id, header.clone(), parent, Some(number));
        if let Some(tier) = &mut self.tier {
            let tokens = tokens[from..length].to_vec();
            tier.outgoing.push_back(Write { id, number, header, tokens, snapshot, pieces });
        }
        self.make_room(0);
    }

    /// Has one not written that only waits for that; false if it has begun meanwhile.
    fn withdraw(&mut self, id: Id) -> bool {
        let Some(number) = self.on_disk(id).and_then(|on_disk| on_disk.writing) else { return false };
        let Some(write) = self.tier.as_mut().and_then(|tier| tier.take_back(number)) else { return false };
        self.ledger.remove(&write.pieces);
        self.in_use.remove(&write.pieces);
        self.end_write(&write.header);
        self.drop_file(id);
        // An earlier write of the same may have ended.
        self.remove_if_unknown(&write.header.key);
        true
    }
}

impl<S: Clone + Send + Sync + 'static> Tier<S> {
    /// Takes a write back that has not begun. The first that goes out has: the backend holds what it has fetched of it.
    fn take_back(&mut self, number: u64) -> Option<Write<S>> {
        let going = self.outgoing.iter().skip(1).position(|write| write.number == number);
        going.and_then(|index| self.outgoing.remove(index + 1)).or_else(|| self.disk.take_back(number))
    }
}

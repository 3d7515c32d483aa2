//! What the disk's threads have done, taken into the books.

use lily_backend::Piece;

use super::Incoming;
use super::reading::Arriving;
use crate::cache::disk::{Done, Header, Key, WriteFailure};
use crate::cache::tree::Id;
use crate::cache::{Cache, Lasts};

/// After so many failures in a row the number of snapshots that are not written doubles no more.
const MOST_DOUBLINGS: u32 = 6;

impl<S: Clone + Send + Sync + 'static> Cache<S> {
    /// Takes in what the disk's threads have done.
    pub(super) fn poll(&mut self) {
        let done = self.tier.as_ref().map_or_else(Vec::new, |tier| tier.disk.done());
        done.into_iter().for_each(|done| self.take_in(done));
    }

    /// The same at the end, for a snapshot that found no place among those that wait: as long as it has none, what is to be written
    /// next is waited for. False if there is none, or it finds none.
    pub(super) fn wait_for_a_place(&mut self) -> bool {
        let Some(tier) = self.tier.as_ref().filter(|tier| tier.missed.is_some() && tier.waiting > 0) else {
            return false;
        };
        let Some(done) = tier.disk.next_done() else { return false };
        self.take_in(done);
        true
    }

    fn take_in(&mut self, done: Done<S>) {
        match done {
            Done::Written { id, number, header, snapshot, pieces, result } => {
                self.ledger.remove(&pieces);
                self.in_use.remove(&pieces);
                drop(snapshot);
                self.written(id, number, &header, result);
            }
            Done::Read { id, base, result: Ok(read) } => {
                if let Some(tier) = &mut self.tier {
                    tier.incoming.push_back(Incoming { id, read, base });
                }
            }
            Done::Read { id, base, result: Err(failure) } => {
                self.stats.disk_errors += 1;
                self.arrived(id, base, None);
                if let Some(useless) = failure {
                    self.drop_file(useless);
                }
            }
        }
    }

    /// Ends a read that was built on `base`, with what came of it.
    pub(super) fn arrived(&mut self, id: Id, base: Option<S>, snapshot: Option<(S, Vec<Piece>)>) {
        let Some(tier) = &mut self.tier else { return };
        tier.done += 1;
        let Arriving { bytes, transit, base: pieces_of_base } =
            tier.reading.remove(&id).unwrap_or(Arriving { bytes: 0, transit: 0, base: Vec::new() });
        self.arriving -= bytes;
        self.transit -= transit;
        if let Some((snapshot, pieces)) = snapshot {
            self.hold(id, snapshot, pieces, Lasts::OnDisk);
        }
        self.ledger.remove(&pieces_of_base);
        self.in_use.remove(&pieces_of_base);
        drop(base);
        self.make_room(0);
    }

    /// Takes in what came of the write of that number.
    pub(super) fn written(&mut self, id: Id, number: u64, header: &Header, result: Result<(), WriteFailure>) {
        self.end_write(header);
        let own = self.tree.get_mut(id).and_then(|entry| entry.disk.as_mut());
        let own = own.filter(|on_disk| on_disk.writing == Some(number));
        match result {
            Ok(()) => {
                self.stats.disk_writes += 1;
                self.stats.disk_written_bytes += header.file_bytes().unwrap_or(0);
                if let Some(on_disk) = own {
                    on_disk.writing = None;
                } else {
                    // It was given up meanwhile.
                    self.remove_if_unknown(&header.key);
                }
                if let Some(tier) = self.tier.as_mut().filter(|tier| tier.failures > 0) {
                    (tier.failures, tier.left_out) = (0, 0);
                    tracing::info!("snapshots are written to the cache directory again");
                }
                self.keep_missed();
            }
            Err(failure) => {
                self.stats.disk_errors += 1;
                let Some(parent) = own.map(|on_disk| on_disk.parent) else { return };
                match (failure, parent) {
                    // It goes, and so does what builds on it, this one too.
                    (WriteFailure::NoParent, Some(parent)) => self.drop_file(parent),
                    (failure, parent) => {
                        self.drop_file(id);
                        if failure.is_for_want_of_room() {
                            // The disk holds less than it was said to: what was used longest ago makes room for the next one.
                            let there = self.tier.as_ref().map_or(0, |tier| tier.bytes);
                            self.remove_down_to(there.saturating_sub(header.file_bytes().unwrap_or(0)), parent);
                        }
                        self.leave_some_out(&failure);
                    }
                }
            }
        }
    }

    /// A write has ended.
    pub(super) fn end_write(&mut self, header: &Header) {
        let Some(tier) = &mut self.tier else { return };
        tier.done += 1;
        tier.waiting -= 1;
        self.transit -= tier.archive.transit_bytes(header.from as usize, header.length as usize);
        let left = tier.keys.get(&header.key).map_or(0, |writes| writes - 1);
        if left > 0 {
            tier.keys.insert(header.key, left);
        } else {
            tier.keys.remove(&header.key);
        }
    }

    /// After a failure: a full disk would only fail again, and again.
    fn leave_some_out(&mut self, failure: &WriteFailure) {
        let Some(tier) = &mut self.tier else { return };
        if tier.failures == 0 {
            tracing::warn!(%failure, "a snapshot could not be written to the cache directory; fewer are tried until one can");
        }
        tier.left_out = 1 << tier.failures.min(MOST_DOUBLINGS);
        tier.failures += 1;
    }

    /// Removes the file by this key if no node has it and no write is still to make it.
    pub(super) fn remove_if_unknown(&self, key: &Key) {
        let Some(tier) = &self.tier else { return };
        let mut files = tier.files.iter().filter_map(|&id| self.tree.get(id)?.disk.as_ref());
        if !tier.keys.contains_key(key) && !files.any(|on_disk| on_disk.header.key == *key) {
            self.remove_file(*key);
        }
    }
}

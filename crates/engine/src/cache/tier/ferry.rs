//! The way between the backend and the disk's threads, which reach no GPU.

use lily_backend::{Backend, BackendError, Piece};

use super::{Incoming, Tier};
use crate::cache::Cache;
use crate::cache::disk::{Write, WriteFailure};
use crate::run::guarded;

/// Parts that are carried one after another at most, however long the last step took: somebody may come meanwhile.
const MOST_PARTS: usize = 64;
/// Of the parts carried while something comes in, one of so many goes out.
const OUTWARD: u64 = 4;

/// What of a backend the way needs.
pub(crate) trait Carrier<S> {
    /// [`Backend::fetch`]
    fn fetch(&mut self, snapshot: &S, from: usize) -> Result<Option<S>, BackendError>;
    /// [`Backend::adopt`]
    fn adopt(&mut self, read: &S) -> Result<Option<S>, BackendError>;
    /// [`Backend::evictions_for`]
    fn evictions_for(&self, read: &S, snapshots: &[&S]) -> Option<Vec<usize>>;
    /// [`Backend::pieces`]
    fn pieces(&self, snapshot: &S) -> Vec<Piece>;
}

impl<B: Backend> Carrier<B::Snapshot> for B {
    fn fetch(&mut self, snapshot: &B::Snapshot, from: usize) -> Result<Option<B::Snapshot>, BackendError> {
        guarded(|| Backend::fetch(self, snapshot, from))
    }

    fn adopt(&mut self, read: &B::Snapshot) -> Result<Option<B::Snapshot>, BackendError> {
        guarded(|| Backend::adopt(self, read))
    }

    fn evictions_for(&self, read: &B::Snapshot, snapshots: &[&B::Snapshot]) -> Option<Vec<usize>> {
        Backend::evictions_for(self, read, snapshots)
    }

    fn pieces(&self, snapshot: &B::Snapshot) -> Vec<Piece> {
        Backend::pieces(self, snapshot)
    }
}

impl<S> Tier<S> {
    /// Whether the next part comes in. Somebody waits for that, but what goes out must get there too.
    fn is_inward(&mut self) -> bool {
        if self.incoming.is_empty() {
            return false;
        }
        self.inward += 1;
        self.outgoing.is_empty() || !self.inward.is_multiple_of(OUTWARD)
    }
}

impl<S: Clone + Send + Sync + 'static> Cache<S> {
    /// Whether there is something to carry.
    pub(crate) fn has_cargo(&self) -> bool {
        self.tier.as_ref().is_some_and(|tier| !tier.outgoing.is_empty() || !tier.incoming.is_empty())
    }

    /// Carries parts, one at least, as long as there is `time`; says whether there is more to carry.
    pub(crate) fn carry_while(&mut self, carrier: &mut impl Carrier<S>, time: impl Fn() -> bool) -> bool {
        for _ in 0..MOST_PARTS {
            if !self.carry(carrier) {
                return false;
            }
            if !time() {
                break;
            }
        }
        true
    }

    /// Takes in what the disk's threads have done, and carries one part of what is on its way from them or to them; says whether
    /// there is more to carry.
    pub(in crate::cache) fn carry(&mut self, carrier: &mut impl Carrier<S>) -> bool {
        self.poll();
        if self.tier.as_mut().is_some_and(Tier::is_inward) {
            self.carry_in(carrier);
        } else {
            self.carry_out(carrier);
        }
        self.has_cargo()
    }

    /// The same at the end: what is to be written goes to the disk, also what found no place yet, and nobody waits for what comes in.
    pub(crate) fn carry_the_rest(&mut self, carrier: &mut impl Carrier<S>) -> bool {
        self.hold_writes(false);
        self.poll();
        while let Some(Incoming { id, read, base }) = self.tier.as_mut().and_then(|tier| tier.incoming.pop_front()) {
            drop(read);
            self.arrived(id, base, None);
        }
        self.carry_out(carrier);
        self.has_cargo() || self.wait_for_a_place()
    }

    /// Carries all of the first that goes out, as what it holds is needed; false if there is none.
    pub(crate) fn send_one_off(&mut self, carrier: &mut impl Carrier<S>) -> bool {
        let first = |cache: &Self| Some(cache.tier.as_ref()?.outgoing.front()?.number);
        let number = first(self);
        while number.is_some() && first(self) == number {
            self.carry_out(carrier);
        }
        number.is_some()
    }

    /// A part of the first that goes out, or what came of it.
    fn carry_out(&mut self, carrier: &mut impl Carrier<S>) {
        let Some(tier) = &mut self.tier else { return };
        let Some(write) = tier.outgoing.front() else { return };
        let (from, length) = (write.header.from as usize, write.header.length as usize);
        let fetched = match carrier.fetch(&write.snapshot, from) {
            Ok(None) => return,
            Ok(Some(fetched)) => Ok(fetched),
            Err(error) => Err(error),
        };
        let Some(mut write) = tier.outgoing.pop_front() else { return };
        if fetched.is_err() || tier.archive.transit_bytes(from, length) > 0 {
            // What is to be written, if anything, is the copy.
            self.ledger.remove(&write.pieces);
            self.in_use.remove(&write.pieces);
            write.pieces.clear();
        }
        match fetched {
            Ok(snapshot) => {
                tier.disk.write(Write { snapshot, ..write });
                self.keep_missed();
            }
            Err(error) => self.written(write.id, write.number, &write.header, Err(WriteFailure::NotFetched(error))),
        }
    }

    /// A part of the first that comes in, or what came of it.
    fn carry_in(&mut self, carrier: &mut impl Carrier<S>) {
        let adopted = loop {
            let Some(tier) = &self.tier else { return };
            let Some(Incoming { read, .. }) = tier.incoming.front() else { return };
            match carrier.adopt(read) {
                Ok(None) => return,
                Ok(Some(adopted)) => break Ok(adopted),
                Err(BackendError::Full(_)) if self.make_room_in(carrier) || self.send_one_off(carrier) => {}
                Err(error) => break Err(error),
            }
        };
        let Some(Incoming { id, read, base }) = self.tier.as_mut().and_then(|tier| tier.incoming.pop_front()) else {
            return;
        };
        drop(read);
        if let (Err(BackendError::Full(_)), Some(tier)) = (&adopted, &mut self.tier) {
            tier.unplaced.insert(id);
        }
        match adopted {
            Ok(snapshot) => {
                self.stats.disk_reads += 1;
                let pieces = carrier.pieces(&snapshot);
                self.arrived(id, base, Some((snapshot, pieces)));
            }
            Err(error) => {
                tracing::warn!(%error, "a snapshot that was read from disk cannot be used now");
                // Without room its file is as good as before.
                self.stats.disk_errors += u64::from(!matches!(error, BackendError::Full(_)));
                self.arrived(id, base, None);
            }
        }
    }

    /// Lets go what the backend needs for the first that comes in, the least recently used first; nothing if it were in vain.
    fn make_room_in(&mut self, carrier: &impl Carrier<S>) -> bool {
        let Some(Incoming { read, .. }) = self.tier.as_ref().and_then(|tier| tier.incoming.front()) else {
            return false;
        };
        let needed = self.needed();
        let others = self.order.iter().filter(|(_, id)| !needed.contains(id));
        let (used, snapshots): (Vec<u64>, Vec<&S>) =
            others.filter_map(|(&used, &id)| Some((used, &self.tree.get(id)?.memory.as_ref()?.snapshot))).unzip();
        let in_the_way = carrier.evictions_for(read, &snapshots).unwrap_or_default();
        in_the_way.iter().for_each(|&index| self.evict(used[index]));
        !in_the_way.is_empty()
    }
}

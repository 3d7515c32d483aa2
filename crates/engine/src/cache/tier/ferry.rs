//! The way between the backend and the disk's threads, which reach no GPU.

use lily_backend::{Backend, BackendError, Piece};

use super::Incoming;
use crate::cache::Cache;
use crate::cache::disk::{Write, WriteFailure};
use crate::run::guarded;

/// What of a backend the way needs.
pub(crate) trait Carrier<S> {
    /// [`Backend::fetch`]
    fn fetch(&mut self, snapshot: &S, from: usize) -> Result<Option<S>, BackendError>;
    /// [`Backend::adopt`]
    fn adopt(&mut self, read: &S) -> Result<Option<S>, BackendError>;
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

    fn pieces(&self, snapshot: &B::Snapshot) -> Vec<Piece> {
        Backend::pieces(self, snapshot)
    }
}

impl<S: Clone + Send + Sync + 'static> Cache<S> {
    /// Whether there is something to carry.
    pub(crate) fn has_cargo(&self) -> bool {
        self.tier.as_ref().is_some_and(|tier| !tier.outgoing.is_empty() || !tier.incoming.is_empty())
    }

    /// Takes in what the disk's threads have done, and carries a part of what is on its way to them and from them; says whether
    /// there is more to carry.
    pub(crate) fn carry(&mut self, carrier: &mut impl Carrier<S>) -> bool {
        self.poll();
        let leaving = self.carry_out(carrier);
        self.carry_in(carrier) || leaving
    }

    fn carry_out(&mut self, carrier: &mut impl Carrier<S>) -> bool {
        while let Some(tier) = &mut self.tier
            && let Some(write) = tier.outgoing.front()
        {
            let (from, length) = (write.header.from as usize, write.header.length as usize);
            let fetched = match carrier.fetch(&write.snapshot, from) {
                Ok(None) => return true,
                Ok(Some(fetched)) => Ok(fetched),
                Err(error) => Err(error),
            };
            self.leaving -= tier.archive.transit_bytes(from, length);
            let Some(write) = tier.outgoing.pop_front() else { return false };
            let fetched = fetched.map(|fetched| (carrier.pieces(&fetched), fetched));
            if let Ok((pieces, _)) = &fetched {
                self.ledger.add(pieces);
                self.in_use.add(pieces);
            }
            self.ledger.remove(&write.pieces);
            self.in_use.remove(&write.pieces);
            match (fetched, &self.tier) {
                (Ok((pieces, snapshot)), Some(tier)) => tier.disk.write(Write { snapshot, pieces, ..write }),
                (Ok(_), None) => {}
                (Err(error), _) => {
                    self.written(write.id, write.number, &write.header, Err(WriteFailure::NotFetched(error)));
                }
            }
        }
        false
    }

    fn carry_in(&mut self, carrier: &mut impl Carrier<S>) -> bool {
        while let Some(Incoming { read, .. }) = self.tier.as_ref().and_then(|tier| tier.incoming.front()) {
            let adopted = match carrier.adopt(read) {
                Ok(None) => return true,
                Ok(Some(adopted)) => Ok(adopted),
                Err(BackendError::Full(_)) if self.let_one_go() => continue,
                Err(error) => Err(error),
            };
            let Some(Incoming { id, read, base }) = self.tier.as_mut().and_then(|tier| tier.incoming.pop_front())
            else {
                return false;
            };
            drop(read);
            match adopted {
                Ok(snapshot) => {
                    self.stats.disk_reads += 1;
                    let pieces = carrier.pieces(&snapshot);
                    self.arrived(id, base, Some((snapshot, pieces)));
                }
                Err(error) => {
                    tracing::warn!(%error, "a snapshot that was read from disk cannot be used now");
                    self.stats.disk_errors += 1;
                    self.arrived(id, base, None);
                }
            }
        }
        false
    }
}

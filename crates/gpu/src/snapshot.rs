//! Snapshots: on the device, where sequences go on from them, and in the host's memory, on their way to the disk or from it.

use std::sync::Arc;

use crate::device::Buffer;
use crate::journal::Moment;
use crate::pool::{Lease, Returned, give_back};

/// A frozen sequence.
#[derive(Clone)]
pub struct Snapshot(pub(crate) Held);

/// Where it is.
#[derive(Clone)]
pub(crate) enum Held {
    /// Where sequences can go on from it.
    Device(Arc<Frozen>),
    /// On its way to the disk or from it.
    Host(Arc<Copied>),
}

impl Snapshot {
    /// Its tokens.
    pub(crate) fn length(&self) -> usize {
        match &self.0 {
            Held::Device(frozen) => frozen.length,
            Held::Host(copied) => copied.length,
        }
    }

    /// Whether it has a page that no sequence and no other snapshot has.
    pub(crate) fn holds_a_page_alone(&self) -> bool {
        let Held::Device(frozen) = &self.0 else { return false };
        Arc::strong_count(frozen) == 1 && frozen.pages.iter().rev().any(|page| Arc::strong_count(page) == 1)
    }
}

pub(crate) struct Frozen {
    pub(crate) length: usize,
    pub(crate) pages: Vec<Arc<Lease>>,
    /// Windows and states of all DeltaNet layers.
    pub(crate) recurrent: Buffer,
    /// When they were copied.
    pub(crate) made: Moment,
    pub(crate) returned: Returned<Buffer>,
}

impl Drop for Frozen {
    fn drop(&mut self) {
        give_back(&self.returned, self.recurrent);
    }
}

/// A snapshot, or some of one, in the host's memory.
pub(crate) struct Copied {
    pub(crate) length: usize,
    /// How many pages come before those here.
    pub(crate) first: usize,
    /// Has them, of one that was read.
    pub(crate) base: Option<Arc<Frozen>>,
    /// Keys and values of a page each: of all layers the keys, then the values, `[kv_heads][64][256]`.
    pub(crate) pages: Vec<Arc<Vec<u8>>>,
    /// Window, then state, of all DeltaNet layers; empty as long as it has not been read.
    pub(crate) recurrent: Vec<u8>,
}

impl Copied {
    /// What it takes.
    pub(crate) fn bytes(&self) -> u64 {
        let pages: usize = self.pages.iter().map(|page| page.capacity()).sum();
        (pages + self.recurrent.capacity()) as u64
    }
}

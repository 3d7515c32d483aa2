//! Snapshots between the device and the host's memory, a part at a time: sequences that run wait for no more than that.

use std::sync::Arc;

use lily_backend::BackendError;

use crate::device::Device;
use crate::journal::Moment;
use crate::runner::Runner;
use crate::shapes::{HEAD, PAGE};
use crate::snapshot::{Copied, Frozen, Held, Snapshot};
use crate::state::States;

/// A part is at most one in so many of the recurrent states, 1 MiB at the 35B: a millisecond of copying.
const PARTS: u64 = 64;

/// What is on its way; one snapshot in each direction.
#[derive(Default)]
pub(crate) struct Ferry {
    leaving: Option<Leaving>,
    arriving: Option<Arriving>,
}

struct Leaving {
    frozen: Arc<Frozen>,
    /// As far as it has come.
    copied: Copied,
}

struct Arriving {
    read: Arc<Copied>,
    /// As far as it has come.
    frozen: Frozen,
    pages: usize,
    recurrent: u64,
    began: Moment,
    /// Bytes stored since a moment, which the device may keep beside the snapshot until it has run.
    kept: (Moment, u64),
}

/// The most that a part is: a page of keys and values is not divided.
fn most_of_a_part(states: &States) -> u64 {
    states.recurrent_bytes().div_ceil(PARTS).max(states.page_bytes())
}

impl Ferry {
    /// Copies a part of a snapshot, from token `from` on, to the host; gives it when all is there.
    pub(crate) fn fetch<D: Device>(
        &mut self,
        runner: &mut Runner<D>,
        states: &States,
        snapshot: &Snapshot,
        from: usize,
    ) -> Result<Option<Snapshot>, BackendError> {
        let Held::Device(frozen) = &snapshot.0 else { return Ok(Some(snapshot.clone())) };
        let first = from / PAGE;
        let is_this = |leaving: &Leaving| Arc::ptr_eq(&leaving.frozen, frozen) && leaving.copied.first == first;
        let mut leaving = match self.leaving.take().filter(is_this) {
            Some(leaving) => leaving,
            None => {
                runner.settle(frozen.made)?;
                runner.journal.check(frozen.made, "the snapshot")?;
                let recurrent = Vec::with_capacity(frozen.recurrent.bytes as usize);
                let (length, pages) = (frozen.length, Vec::new());
                Leaving { frozen: Arc::clone(frozen), copied: Copied { length, first, base: None, pages, recurrent } }
            }
        };
        // Nobody writes to what a snapshot holds: a sequence that shares its last page takes a copy of it first.
        let Copied { pages, recurrent, length, .. } = &mut leaving.copied;
        let mut left = most_of_a_part(states);
        let missing = frozen.recurrent.bytes - recurrent.len() as u64;
        let part = missing.min(left);
        if part > 0 {
            let begin = recurrent.len();
            recurrent.resize(begin + part as usize, 0);
            runner.fetch(frozen.recurrent.all().part(begin as u64, part), &mut recurrent[begin..])?;
            left -= part;
        }
        for page in &frozen.pages[first + pages.len()..] {
            if left < states.page_bytes() {
                break;
            }
            let mut bytes = Vec::with_capacity(states.page_bytes() as usize);
            for range in states.page_parts(&runner.memory, page.index) {
                let begin = bytes.len();
                bytes.resize(begin + range.bytes as usize, 0);
                runner.fetch(range, &mut bytes[begin..])?;
            }
            left -= bytes.len() as u64;
            pages.push(Arc::new(bytes));
        }
        if first + pages.len() < frozen.pages.len() || (recurrent.len() as u64) < frozen.recurrent.bytes {
            self.leaving = Some(leaving);
            return Ok(None);
        }
        if let Some(last) = pages.last_mut().and_then(Arc::get_mut).filter(|_| *length % PAGE > 0) {
            // What lies behind the end is nobody's, or was another sequence's.
            for head in last.chunks_mut(PAGE * HEAD * 2) {
                head[*length % PAGE * HEAD * 2..].fill(0);
            }
        }
        Ok(Some(Snapshot(Held::Host(Arc::new(leaving.copied)))))
    }

    /// Copies a part of a snapshot that was read to the device; gives it when all is there.
    pub(crate) fn adopt<D: Device>(
        &mut self,
        runner: &mut Runner<D>,
        states: &States,
        snapshot: &Snapshot,
    ) -> Result<Option<Snapshot>, BackendError> {
        let Held::Host(read) = &snapshot.0 else { return Ok(Some(snapshot.clone())) };
        let mut arriving = match self.arriving.take().filter(|arriving| Arc::ptr_eq(&arriving.read, read)) {
            Some(arriving) => arriving,
            None => {
                // A device may keep what is stored until all that it was given before has run, and nothing else may come that
                // makes it run.
                runner.settle(runner.journal.now())?;
                if let Some(base) = &read.base {
                    runner.journal.check(base.made, "the snapshot that it builds on")?;
                }
                let frozen = states.unfilled(&mut runner.device, read, runner.journal.now())?;
                let (read, began) = (Arc::clone(read), runner.journal.now());
                Arriving { read, frozen, pages: 0, recurrent: 0, began, kept: (began, 0) }
            }
        };
        let Arriving { frozen, pages, recurrent, began, kept, .. } = &mut arriving;
        let most = most_of_a_part(states);
        if kept.0 == runner.journal.now() && kept.1 + most > states.recurrent_bytes() {
            // A reply that has ended, say, left the device something to do, and there may be no step.
            runner.settle(kept.0)?;
        }
        if kept.0 != runner.journal.now() {
            *kept = (runner.journal.now(), 0);
        }
        let mut left = most;
        let part = (read.recurrent.len() as u64 - *recurrent).min(left);
        if part > 0 {
            let bytes = &read.recurrent[*recurrent as usize..][..part as usize];
            runner.store(frozen.recurrent.all().part(*recurrent, part), bytes)?;
            *recurrent += part;
            left -= part;
        }
        for (page, bytes) in frozen.pages[read.first..].iter().zip(&read.pages).skip(*pages) {
            if left < states.page_bytes() {
                break;
            }
            let mut begin = 0;
            for range in states.page_parts(&runner.memory, page.index) {
                let end = begin + range.bytes as usize;
                runner.store(range, &bytes[begin..end])?;
                begin = end;
            }
            left -= bytes.len() as u64;
            *pages += 1;
        }
        kept.1 += most - left;
        if *pages < read.pages.len() || *recurrent < read.recurrent.len() as u64 {
            self.arriving = Some(arriving);
            return Ok(None);
        }
        let began = *began;
        runner.settle(runner.journal.now())?;
        let mut frozen = arriving.frozen;
        frozen.made = runner.journal.check_since(began, "a snapshot from the disk")?;
        Ok(Some(Snapshot(Held::Device(Arc::new(frozen)))))
    }
}

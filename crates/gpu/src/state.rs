//! What a sequence holds on the device: a slot for its recurrent states, and pages of keys and values.

use std::collections::HashMap;
use std::sync::Arc;

use lily_backend::{BackendError, Piece};
use lily_checkpoint::LayerKind;

use crate::device::{Buffer, Device, Range};
use crate::journal::{Journal, Moment};
use crate::kernel::Slice;
use crate::kernels::Sequence;
use crate::memory::{Memory, Sizes};
use crate::pool::{Lease, Pool, Returned, taken};
use crate::shapes::{PAGE, Shapes};
use crate::snapshot::{Copied, Frozen, Held, Snapshot};

/// A sequence. Its recurrent states lie in its slot, twice: a step reads the current copy and writes the other, so that
/// a step that ran ahead is undone by not following it.
pub struct State {
    pub(crate) slot: Lease,
    /// Never used again.
    pub(crate) id: u64,
    pub(crate) length: usize,
    /// Which copy is current, 0 or 1.
    pub(crate) flip: u32,
    /// Enough for `length` tokens, perhaps more.
    pages: Vec<Arc<Lease>>,
    /// How many of the pages the device's table knows.
    listed: usize,
    /// When it, or a page of it, was last made by a copy.
    made: Moment,
}

/// Gives out states and snapshots, and knows where they lie.
pub(crate) struct States {
    shapes: Shapes,
    sizes: Sizes,
    slots: Pool,
    pages: Pool,
    /// Buffers of dropped snapshots.
    returned: Returned<Buffer>,
    next_id: u64,
}

impl States {
    pub(crate) fn new(shapes: &Shapes, sizes: &Sizes) -> Self {
        Self {
            shapes: shapes.clone(),
            sizes: *sizes,
            slots: Pool::new(sizes.slots),
            pages: Pool::new(sizes.pages),
            returned: Returned::default(),
            next_id: 0,
        }
    }

    /// An empty sequence.
    pub(crate) fn create(
        &mut self,
        device: &mut impl Device,
        memory: &Memory,
        journal: &mut Journal,
    ) -> Result<State, BackendError> {
        let state = self.unset(0, Vec::new(), journal.now())?;
        device.clear(&self.recurrent(memory, &state)).map_err(|error| journal.failed(&error))?;
        Ok(state)
    }

    /// A new sequence whose recurrent states are still to be set.
    fn unset(&mut self, length: usize, pages: Vec<Arc<Lease>>, made: Moment) -> Result<State, BackendError> {
        self.next_id += 1;
        let exhausted = || BackendError::Device(format!("all {} sequence slots are in use", self.sizes.slots));
        let slot = self.slots.take().ok_or_else(exhausted)?;
        Ok(State { slot, id: self.next_id, length, flip: 0, pages, listed: 0, made })
    }

    /// Windows and states of a sequence, those that are current, layer by layer.
    fn recurrent(&self, memory: &Memory, state: &State) -> Vec<Range> {
        let copy = u64::from(state.slot.index) * 2 + u64::from(state.flip);
        let current = |all: Slice<f32>, values: usize| all.part(copy * values as u64, values as u64).range;
        let layers = memory.recurrent.iter();
        layers
            .flat_map(|layer| {
                [current(layer.windows, self.shapes.window()), current(layer.states, self.shapes.state())]
            })
            .collect()
    }

    /// Back to an empty sequence.
    pub(crate) fn reset(
        &self,
        device: &mut impl Device,
        memory: &Memory,
        journal: &mut Journal,
        state: &mut State,
    ) -> Result<(), BackendError> {
        (state.length, state.flip, state.listed, state.made) = (0, 0, 0, journal.now());
        state.pages.clear();
        device.clear(&self.recurrent(memory, state)).map_err(|error| journal.failed(&error))
    }

    /// Makes room for `tokens` more: afterwards every page that they touch exists, belongs to this sequence alone and is in
    /// the device's table.
    ///
    /// # Errors
    /// [`BackendError::Full`] if there are not enough pages; the sequence keeps those it got, and holds what it held.
    pub(crate) fn reserve(
        &self,
        device: &mut impl Device,
        memory: &Memory,
        journal: &mut Journal,
        state: &mut State,
        tokens: usize,
    ) -> Result<(), BackendError> {
        let (length, needed) = (state.length, (state.length + tokens).div_ceil(PAGE));
        while state.pages.len() < needed {
            state.pages.push(Arc::new(self.page_of_own()?));
        }
        let mut copies = Vec::new();
        for (index, page) in state.pages.iter_mut().enumerate().skip(length / PAGE) {
            if Arc::get_mut(page).is_none() {
                // Only one can be shared, the one that the sequence has begun: nothing has changed yet.
                let own = self.page_of_own()?;
                copies.extend(self.page_parts(memory, page.index).into_iter().zip(self.page_parts(memory, own.index)));
                *page = Arc::new(own);
                state.listed = state.listed.min(index);
            }
        }
        if !copies.is_empty() {
            state.made = journal.now();
            device.copy(&copies).map_err(|error| journal.failed(&error))?;
        }
        if state.listed < state.pages.len() {
            let indices = state.pages[state.listed..].iter().flat_map(|page| page.index.to_ne_bytes());
            let bytes: Vec<u8> = indices.collect();
            let row = state.slot.index as usize * self.sizes.max_pages();
            let count = state.pages.len() - state.listed;
            let entries = memory.pages.part((row + state.listed) as u64, count as u64);
            device.write(entries.range, &bytes).map_err(|error| journal.failed(&error))?;
            state.listed = state.pages.len();
        }
        Ok(())
    }

    fn page_of_own(&self) -> Result<Lease, BackendError> {
        let full = || {
            let pages = self.sizes.pages;
            BackendError::Full(format!(
                "all {pages} pages of the KV cache are in use, by sequences and the prefix cache"
            ))
        };
        self.pages.take().ok_or_else(full)
    }

    /// Where a page lies: of each attention layer the keys, then the values.
    pub(crate) fn page_parts(&self, memory: &Memory, index: u32) -> Vec<Range> {
        memory.caches.iter().flat_map(|cache| [cache.keys, cache.values].map(|all| self.page(all, index))).collect()
    }

    fn page<T>(&self, all: Slice<T>, index: u32) -> Range {
        let values = (PAGE * self.shapes.kv_size()) as u64;
        all.part(u64::from(index) * values, values).range
    }

    /// Freezes a sequence: pages are shared, recurrent states copied.
    pub(crate) fn snapshot(
        &self,
        device: &mut impl Device,
        memory: &Memory,
        journal: &mut Journal,
        state: &State,
    ) -> Result<Snapshot, BackendError> {
        state.check(journal)?;
        let current = self.recurrent(memory, state);
        let bytes = current.iter().map(|range| range.bytes).sum();
        let recurrent =
            device.allocate(bytes, "a snapshot").map_err(|error| BackendError::Device(error.to_string()))?;
        let pages = state.pages[..state.length.div_ceil(PAGE)].to_vec();
        let (made, returned) = (journal.now(), Arc::clone(&self.returned));
        let frozen = Frozen { length: state.length, pages, recurrent, made, returned };
        let copies: Vec<_> = current.iter().zip(parts(recurrent, &current)).map(|(&from, to)| (from, to)).collect();
        device.copy(&copies).map_err(|error| journal.failed(&error))?;
        Ok(Snapshot(Held::Device(Arc::new(frozen))))
    }

    /// A new sequence that goes on from a snapshot.
    pub(crate) fn restore(
        &mut self,
        device: &mut impl Device,
        memory: &Memory,
        journal: &mut Journal,
        Snapshot(held): &Snapshot,
    ) -> Result<State, BackendError> {
        let Held::Device(frozen) = held else {
            return Err(BackendError::Device("the snapshot is still on its way from the disk".into()));
        };
        journal.check(frozen.made, "the snapshot")?;
        let state = self.unset(frozen.length, frozen.pages.clone(), journal.now())?;
        let current = self.recurrent(memory, &state);
        let copies: Vec<_> = parts(frozen.recurrent, &current).into_iter().zip(current).collect();
        device.copy(&copies).map_err(|error| journal.failed(&error))?;
        Ok(state)
    }

    /// The snapshot that a read one will be: with the pages of what it builds on, and all else still to be set.
    ///
    /// # Errors
    /// [`BackendError::Full`] if there are not enough pages, [`BackendError::Device`] if there is no memory.
    pub(crate) fn unfilled(
        &self,
        device: &mut impl Device,
        read: &Copied,
        made: Moment,
    ) -> Result<Frozen, BackendError> {
        self.collect(device);
        let mut pages = read.base.as_ref().map_or_else(Vec::new, |base| base.pages[..read.first].to_vec());
        for _ in &read.pages {
            pages.push(Arc::new(self.page_of_own()?));
        }
        let recurrent = device
            .allocate(self.recurrent_bytes(), "a snapshot from disk")
            .map_err(|error| BackendError::Device(error.to_string()))?;
        Ok(Frozen { length: read.length, pages, recurrent, made, returned: Arc::clone(&self.returned) })
    }

    /// Which of these snapshots have to go, the first ones if there is a choice, so that [`unfilled`](Self::unfilled) finds enough pages;
    /// `None` if all of them would not do.
    pub(crate) fn evictions_for(&self, Snapshot(read): &Snapshot, snapshots: &[&Snapshot]) -> Option<Vec<usize>> {
        let needed = if let Held::Host(read) = read { read.pages.len() } else { 0 };
        let mut free = self.pages.free();
        // Of each page, those that would still hold it.
        let mut holders: HashMap<*const Lease, usize> = HashMap::new();
        let mut gone = Vec::new();
        for (index, Snapshot(held)) in snapshots.iter().enumerate() {
            if free >= needed {
                break;
            }
            let Held::Device(frozen) = held else { continue };
            if Arc::strong_count(frozen) > 1 {
                continue;
            }
            for page in &frozen.pages {
                let left = holders.entry(Arc::as_ptr(page)).or_insert_with(|| Arc::strong_count(page));
                *left -= 1;
                free += usize::from(*left == 0);
            }
            gone.push((index, frozen));
        }
        let frees = |frozen: &Frozen| frozen.pages.iter().any(|page| holders.get(&Arc::as_ptr(page)) == Some(&0));
        let indices = gone.iter().filter(|(_, frozen)| frees(frozen)).map(|&(index, _)| index);
        (free >= needed).then(|| indices.collect())
    }

    /// Bytes of keys and values of a page, of all layers.
    pub(crate) fn page_bytes(&self) -> u64 {
        page_bytes(&self.shapes)
    }

    /// Bytes of a sequence's windows and states, one copy of them.
    pub(crate) fn recurrent_bytes(&self) -> u64 {
        let layer = (self.shapes.window() + self.shapes.state()) * size_of::<f32>();
        (self.shapes.count(LayerKind::DeltaNet) * layer) as u64
    }

    /// What a snapshot holds: its recurrent states, and its pages.
    pub(crate) fn pieces(&self, Snapshot(held): &Snapshot) -> Vec<Piece> {
        let page = self.page_bytes();
        let frozen = match held {
            Held::Device(frozen) => frozen,
            Held::Host(copied) => return vec![Piece { id: Arc::as_ptr(copied) as u64, bytes: copied.bytes() }],
        };
        // Addresses: no two things that live at the same time have one.
        let pages = frozen.pages.iter().map(|lease| Piece { id: Arc::as_ptr(lease) as u64, bytes: page });
        let recurrent = Piece { id: Arc::as_ptr(frozen) as u64, bytes: frozen.recurrent.bytes };
        std::iter::once(recurrent).chain(pages).collect()
    }

    /// Gives the buffers of dropped snapshots back to the device.
    pub(crate) fn collect(&self, device: &mut impl Device) {
        taken(&self.returned).into_iter().for_each(|buffer| device.release(buffer));
    }
}

impl State {
    /// Refuses it if what it was made of was lost.
    pub(crate) fn check(&self, journal: &Journal) -> Result<(), BackendError> {
        journal.check(self.made, "a sequence")
    }

    /// Its record as it must be before a step; `generated` is the counter of the draw, `token` what follows its last row.
    pub(crate) fn record(&self, generated: u64, token: u32) -> Sequence {
        Sequence { position: self.length as u32, flip: self.flip, generated: generated as u32, token }
    }

    /// A step has appended so many tokens.
    pub(crate) fn advance(&mut self, tokens: usize) {
        self.length += tokens;
        self.flip ^= 1;
    }
}

/// Keys and values of a page, of all layers.
pub(crate) fn page_bytes(shapes: &Shapes) -> u64 {
    (shapes.count(LayerKind::Attention) * 2 * PAGE * shapes.kv_size() * 2) as u64
}

/// Pieces of a buffer, one after another, of the sizes of `like`.
fn parts(buffer: Buffer, like: &[Range]) -> Vec<Range> {
    let mut offset = 0;
    let piece = |range: &Range| {
        let part = buffer.all().part(offset, range.bytes);
        offset += range.bytes;
        part
    };
    like.iter().map(piece).collect()
}

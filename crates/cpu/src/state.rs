//! What a sequence remembers: pages of keys and values for the attention layers, and for each DeltaNet layer a recurrent
//! state and the last inputs of its convolution.

use std::collections::TryReserveError;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use half::f16;
use half::slice::HalfFloatSliceExt;
use lily_backend::{BackendError, Piece};
use lily_checkpoint::{Config, LayerKind};
use rayon::prelude::*;

/// Tokens of a page. Attention works on whole pages too: a block of its softmax is a page.
pub(crate) const PAGE_TOKENS: usize = 64;

/// The sizes of a state, from the model's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    attention_layers: usize,
    delta_net_layers: usize,
    kv_heads: usize,
    /// Of attention: the width of a key and of a value.
    head_dim: usize,
    /// fp32 values of a DeltaNet layer's recurrent state.
    recurrent: usize,
    /// fp32 values of a DeltaNet layer's window: `[conv_width - 1, conv_channels]`.
    window: usize,
}

impl Layout {
    pub(crate) fn new(config: &Config) -> Self {
        let delta_net = &config.delta_net;
        let channels = (2 * delta_net.key_heads + delta_net.value_heads) * delta_net.head_dim;
        let layers = |kind| config.layers.iter().filter(|&&layer| layer == kind).count();
        Self {
            attention_layers: layers(LayerKind::Attention),
            delta_net_layers: layers(LayerKind::DeltaNet),
            kv_heads: config.attention.kv_heads,
            head_dim: config.attention.head_dim,
            recurrent: delta_net.value_heads * delta_net.head_dim * delta_net.head_dim,
            window: (delta_net.conv_width - 1) * channels,
        }
    }

    /// Bytes of keys and values a token adds.
    pub(crate) fn kv_bytes_per_token(&self) -> u64 {
        (self.page_values() / PAGE_TOKENS * size_of::<f16>()) as u64
    }

    /// Bytes of recurrent state and windows, at any length.
    pub(crate) fn recurrent_bytes(&self) -> u64 {
        (self.delta_net_layers * (self.recurrent + self.window) * size_of::<f32>()) as u64
    }

    /// Bytes of a page.
    pub(crate) fn page_bytes(&self) -> u64 {
        (self.page_values() * size_of::<f16>()) as u64
    }

    fn page_values(&self) -> usize {
        self.attention_layers * self.kv_heads * 2 * self.block()
    }

    /// Values of the keys, or of the values, that one head of one layer has in a page.
    fn block(&self) -> usize {
        PAGE_TOKENS * self.head_dim
    }

    /// Where in a page a head of an attention layer (counted among those) has its keys; its values follow.
    fn keys(&self, layer: usize, head: usize) -> Range<usize> {
        let start = (layer * self.kv_heads + head) * 2 * self.block();
        start..start + self.block()
    }
}

/// Keys and values of [`PAGE_TOKENS`] tokens in all attention layers: `[layers, kv_heads, keys | values, tokens,
/// head_dim]`. States that grew from one snapshot share their full pages.
pub(crate) struct Page(Vec<f16>);

impl Page {
    fn new(layout: &Layout) -> Result<Self, BackendError> {
        let mut values = Vec::new();
        values.try_reserve_exact(layout.page_values()).map_err(exhausted)?;
        values.resize(layout.page_values(), f16::ZERO);
        Ok(Self(values))
    }

    /// All of it, in the order that [`Page`] lays down.
    pub(crate) fn values(&self) -> &[f16] {
        &self.0
    }

    /// A page of such values.
    pub(crate) fn filled(layout: &Layout, fill: impl FnOnce(&mut [f16]) -> io::Result<()>) -> io::Result<Self> {
        let mut page = Self::new(layout).map_err(|_| io::ErrorKind::OutOfMemory)?;
        fill(&mut page.0)?;
        Ok(page)
    }

    fn copy(&self) -> Result<Self, BackendError> {
        let mut values = Vec::new();
        values.try_reserve_exact(self.0.len()).map_err(exhausted)?;
        values.extend_from_slice(&self.0);
        Ok(Self(values))
    }

    /// Keys and values of one head, `[PAGE_TOKENS, head_dim]` each.
    pub(crate) fn head(&self, layout: &Layout, layer: usize, head: usize) -> (&[f16], &[f16]) {
        let keys = layout.keys(layer, head);
        self.0[keys.start..keys.end + layout.block()].split_at(layout.block())
    }

    /// Stores a token's key and value of all heads, `[kv_heads, head_dim]` each, at place `slot`. What f16 cannot hold
    /// becomes its largest value, because an infinity would make the softmax NaN.
    pub(crate) fn store(&mut self, layout: &Layout, layer: usize, slot: usize, keys: &[f32], values: &[f32]) {
        let dim = layout.head_dim;
        for (head, (key, value)) in keys.chunks_exact(dim).zip(values.chunks_exact(dim)).enumerate() {
            let start = layout.keys(layer, head).start + slot * dim;
            store_saturated(key, &mut self.0[start..start + dim]);
            store_saturated(value, &mut self.0[start + layout.block()..][..dim]);
        }
    }
}

fn store_saturated(from: &[f32], to: &mut [f16]) {
    let (largest, smallest) = (f16::MAX.to_f32(), f16::MIN.to_f32());
    for (from, to) in from.chunks(64).zip(to.chunks_mut(64)) {
        let mut clamped = [0.0; 64];
        for (clamped, from) in clamped.iter_mut().zip(from) {
            *clamped = from.clamp(smallest, largest);
        }
        to.convert_from_f32_slice(&clamped[..from.len()]);
    }
}

/// A DeltaNet layer's memory of a sequence.
#[derive(Clone)]
pub(crate) struct Recurrent {
    /// S of each value head, in the order [`crate::delta_net`] lays down.
    pub(crate) state: Vec<f32>,
    /// `[conv_width - 1, conv_channels]`: the last inputs of the convolution, oldest first.
    pub(crate) window: Vec<f32>,
}

/// A sequence.
pub struct State {
    pub(crate) length: usize,
    /// Enough for `length` tokens, perhaps more.
    pub(crate) pages: Vec<Arc<Page>>,
    /// One for each DeltaNet layer, first to last.
    pub(crate) recurrent: Vec<Recurrent>,
}

impl State {
    /// An empty sequence.
    pub(crate) fn new(layout: &Layout) -> Result<Self, BackendError> {
        let mut recurrent = Vec::new();
        for _ in 0..layout.delta_net_layers {
            recurrent.push(Recurrent { state: zeros(layout.recurrent)?, window: zeros(layout.window)? });
        }
        Ok(Self { length: 0, pages: Vec::new(), recurrent })
    }

    /// Makes room for `tokens` more: afterwards every page that they touch exists and belongs to this state alone.
    pub(crate) fn reserve(&mut self, layout: &Layout, tokens: usize) -> Result<(), BackendError> {
        for page in self.pages.iter_mut().skip(self.length / PAGE_TOKENS) {
            if Arc::get_mut(page).is_none() {
                *page = Arc::new(page.copy()?);
            }
        }
        while self.pages.len() < (self.length + tokens).div_ceil(PAGE_TOKENS) {
            self.pages.push(Arc::new(Page::new(layout)?));
        }
        Ok(())
    }

    /// Back to an empty sequence.
    pub(crate) fn clear(&mut self) {
        self.length = 0;
        self.pages.clear();
        for recurrent in &mut self.recurrent {
            recurrent.state.fill(0.0);
            recurrent.window.fill(0.0);
        }
    }

    /// The same sequence once more: pages are shared, recurrent states copied.
    pub(crate) fn fork(&self) -> Result<Self, BackendError> {
        // Much the most of it, on all threads: a fork is between a client and its first token.
        let recurrent = self
            .recurrent
            .par_iter()
            .map(|from| Ok(Recurrent { state: copied(&from.state)?, window: copied(&from.window)? }))
            .collect::<Result<_, BackendError>>()?;
        Ok(Self { length: self.length, pages: self.pages[..self.length.div_ceil(PAGE_TOKENS)].to_vec(), recurrent })
    }
}

/// A frozen sequence.
#[derive(Clone)]
pub struct Snapshot(pub(crate) Arc<State>);

impl Snapshot {
    /// What is left of a state that goes no further, without a copy.
    pub(crate) fn of(mut state: State) -> Self {
        state.pages.truncate(state.length.div_ceil(PAGE_TOKENS));
        Self(Arc::new(state))
    }

    /// Its recurrent state, and its pages.
    pub(crate) fn pieces(&self, layout: &Layout) -> Vec<Piece> {
        let state = Piece { id: Arc::as_ptr(&self.0) as u64, bytes: layout.recurrent_bytes() };
        let page = |page: &Arc<Page>| Piece { id: Arc::as_ptr(page) as u64, bytes: layout.page_bytes() };
        std::iter::once(state).chain(self.0.pages.iter().map(page)).collect()
    }
}

fn zeros(length: usize) -> Result<Vec<f32>, BackendError> {
    let mut values = Vec::new();
    values.try_reserve_exact(length).map_err(exhausted)?;
    values.resize(length, 0.0);
    Ok(values)
}

fn copied(from: &[f32]) -> Result<Vec<f32>, BackendError> {
    let mut values = Vec::new();
    values.try_reserve_exact(from.len()).map_err(exhausted)?;
    values.extend_from_slice(from);
    Ok(values)
}

fn exhausted(error: TryReserveError) -> BackendError {
    BackendError::Full(format!("no memory for a sequence's state: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout =
        Layout { attention_layers: 2, delta_net_layers: 1, kv_heads: 2, head_dim: 16, recurrent: 64, window: 24 };

    #[test]
    fn stores_where_it_reads_and_saturates() {
        let mut page = Page::new(&LAYOUT).expect("memory");
        let keys: Vec<f32> = (0..32).map(|value| value as f32).collect();
        let values: Vec<f32> = keys.iter().map(|key| key * 1e4 - 1e5).collect();
        page.store(&LAYOUT, 1, 5, &keys, &values);
        for head in 0..2 {
            let (stored_keys, stored_values) = page.head(&LAYOUT, 1, head);
            for dim in 0..16 {
                assert_eq!(stored_keys[5 * 16 + dim].to_f32(), keys[head * 16 + dim]);
                let value = values[head * 16 + dim].clamp(-65504.0, 65504.0);
                assert_eq!(stored_values[5 * 16 + dim], f16::from_f32(value));
            }
        }
        assert_eq!(page.0.iter().filter(|&&value| value != f16::ZERO).count(), 31 + 31);
    }

    #[test]
    fn a_shared_last_page_is_copied_and_full_ones_are_not() {
        let mut first = State::new(&LAYOUT).expect("memory");
        first.reserve(&LAYOUT, 70).expect("memory");
        first.length = 70;
        let mut second = first.fork().expect("memory");
        assert!(Arc::ptr_eq(&first.pages[1], &second.pages[1]));
        second.reserve(&LAYOUT, 1).expect("memory");
        assert!(Arc::ptr_eq(&first.pages[0], &second.pages[0]), "a full page is shared");
        assert!(!Arc::ptr_eq(&first.pages[1], &second.pages[1]), "a page that grows is not");
        let last = Arc::as_ptr(&first.pages[1]);
        first.reserve(&LAYOUT, 1).expect("memory");
        assert_eq!(Arc::as_ptr(&first.pages[1]), last, "whoever is left alone keeps the original");
    }

    /// Field case 34: what is kept of a sequence is as large as what it needs, whatever it was cut from.
    #[test]
    fn what_is_kept_holds_nothing_besides() {
        let exact = |state: &State| {
            assert_eq!(state.pages.len(), 2);
            assert!(state.recurrent.iter().all(|of| of.state.capacity() == 64 && of.window.capacity() == 24));
        };
        let mut state = State::new(&LAYOUT).expect("memory");
        // Room for a long chunk, of which little was read.
        state.reserve(&LAYOUT, 1000).expect("memory");
        state.length = 70;
        assert_eq!(state.pages.len(), 16);
        let kept = state.fork().expect("memory");
        exact(&kept);
        let unused = Arc::downgrade(&state.pages[2]);
        let frozen = Snapshot::of(state);
        exact(&frozen.0);
        assert!(unused.upgrade().is_none(), "the pages that nothing is in are free");
        let bytes: u64 = frozen.pieces(&LAYOUT).iter().map(|piece| piece.bytes).sum();
        assert_eq!(bytes, LAYOUT.recurrent_bytes() + 2 * LAYOUT.page_bytes());
    }

    #[test]
    fn memory_grows_with_the_tokens_held() {
        let mut state = State::new(&LAYOUT).expect("memory");
        assert_eq!(state.pages.len(), 0);
        for (tokens, pages) in [(1, 1), (63, 1), (1, 2), (127, 3)] {
            state.reserve(&LAYOUT, tokens).expect("memory");
            state.length += tokens;
            assert_eq!(state.pages.len(), pages, "at {} tokens", state.length);
        }
        state.clear();
        assert_eq!((state.length, state.pages.len()), (0, 0));
        assert_eq!(LAYOUT.kv_bytes_per_token(), 2 * 2 * 2 * 16 * 2);
        assert_eq!(LAYOUT.recurrent_bytes(), 4 * (64 + 24));
    }
}

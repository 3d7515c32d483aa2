//! Snapshots as bytes: the history is whole pages, the state the recurrent states and windows of all layers; all numbers
//! little-endian.

use std::io::{self, Read, Write};
use std::sync::Arc;

use half::f16;
use half::slice::HalfFloatSliceExt;
use lily_backend::{Archive, check_follows};

use crate::state::{Layout, PAGE_TOKENS, Page, Recurrent, Snapshot, State};

/// Counts changes of the format and of what the numbers in it mean, the order within a recurrent state for example.
const VERSION: u32 = 1;
/// Bytes converted at once.
const BUFFER: usize = 1 << 16;

/// The CPU backend's [`Archive`].
pub(crate) struct CpuArchive {
    layout: Layout,
}

impl CpuArchive {
    pub(crate) fn new(layout: Layout) -> Self {
        Self { layout }
    }

    fn pages(from: usize, to: usize) -> u64 {
        (to.div_ceil(PAGE_TOKENS) - from / PAGE_TOKENS) as u64
    }
}

impl Archive<Snapshot> for CpuArchive {
    fn format(&self) -> String {
        format!("cpu {VERSION}, pages of {PAGE_TOKENS}, {:?}", self.layout)
    }

    fn history_bytes(&self, from: usize, to: usize) -> u64 {
        Self::pages(from, to) * self.layout.page_bytes()
    }

    fn state_bytes(&self) -> u64 {
        self.layout.recurrent_bytes()
    }

    fn memory_bytes(&self, length: usize) -> u64 {
        self.history_bytes(0, length) + self.state_bytes()
    }

    fn write_history(&self, snapshot: &Snapshot, from: usize, to: &mut dyn Write) -> io::Result<()> {
        let mut buffer = Vec::with_capacity(BUFFER);
        for page in snapshot.0.pages.iter().skip(from / PAGE_TOKENS) {
            for values in page.values().chunks(BUFFER / size_of::<f16>()) {
                buffer.clear();
                buffer.extend(values.reinterpret_cast().iter().flat_map(|value: &u16| value.to_le_bytes()));
                to.write_all(&buffer)?;
            }
        }
        Ok(())
    }

    fn write_state(&self, snapshot: &Snapshot, to: &mut dyn Write) -> io::Result<()> {
        let mut buffer = Vec::with_capacity(BUFFER);
        for Recurrent { state, window } in &snapshot.0.recurrent {
            for values in [state, window].into_iter().flat_map(|values| values.chunks(BUFFER / size_of::<f32>())) {
                buffer.clear();
                buffer.extend(values.iter().flat_map(|value| value.to_le_bytes()));
                to.write_all(&buffer)?;
            }
        }
        Ok(())
    }

    fn read_history(
        &self,
        onto: Option<&Snapshot>,
        from: usize,
        to: usize,
        bytes: &mut dyn Read,
    ) -> io::Result<Snapshot> {
        check_follows(onto.map_or(0, |onto| onto.0.length), from, to)?;
        let before = onto.map_or(&[][..], |onto| &onto.0.pages[..from / PAGE_TOKENS]);
        let mut pages = before.to_vec();
        let mut buffer = vec![0; BUFFER];
        for _ in 0..Self::pages(from, to) {
            let page = Page::filled(&self.layout, |values| read(values, bytes, &mut buffer, f16::from_le_bytes))?;
            pages.push(Arc::new(page));
        }
        Ok(Snapshot(Arc::new(State { length: to, pages, recurrent: Vec::new() })))
    }

    fn read_state(&self, history: Snapshot, bytes: &mut dyn Read) -> io::Result<Snapshot> {
        let mut state = State::new(&self.layout).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mut buffer = vec![0; BUFFER];
        for Recurrent { state, window } in &mut state.recurrent {
            for values in [state, window] {
                read(values, bytes, &mut buffer, f32::from_le_bytes)?;
            }
        }
        Ok(Snapshot(Arc::new(State { length: history.0.length, pages: history.0.pages.clone(), ..state })))
    }
}

/// Fills `values` with numbers of `SIZE` bytes.
fn read<T, const SIZE: usize>(
    values: &mut [T],
    from: &mut dyn Read,
    buffer: &mut [u8],
    number: impl Fn([u8; SIZE]) -> T,
) -> io::Result<()> {
    for values in values.chunks_mut(buffer.len() / SIZE) {
        let bytes = &mut buffer[..values.len() * SIZE];
        from.read_exact(bytes)?;
        for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
            *value = number(*bytes);
        }
    }
    Ok(())
}

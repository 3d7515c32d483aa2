//! The way of bytes between the host's pageable memory and the GPU.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUdeviceptr};

use super::driver::{Context, check};
use super::memory::Pinned;
use super::queue::{Event, Stream};

/// Bytes that may be on their way to the GPU before the host waits, twice: while one half is filled the other is copied.
const HALF: usize = 16 << 20;
/// Bytes that come back at once: a row of the 35B's logits.
const LANDING: usize = 1 << 20;
/// Where pieces begin in a half.
const ALIGNMENT: usize = 64;

/// Copies to the GPU, in the order of a stream.
#[derive(Debug)]
pub(super) struct Uploads {
    halves: [Half; 2],
    current: usize,
    used: usize,
}

#[derive(Debug)]
struct Half {
    memory: Pinned,
    /// Behind the last copy from it.
    copied: Event,
}

impl Uploads {
    /// Its memory. The context is the thread's.
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, String> {
        let half = || {
            let (memory, copied) = (Pinned::new(Arc::clone(context), HALF)?, Event::new(Arc::clone(context))?);
            Ok::<_, String>(Half { memory, copied })
        };
        Ok(Self { halves: [half()?, half()?], current: 0, used: 0 })
    }

    /// Puts a copy into the stream. `bytes` are free when it returns; `to` has room for them.
    pub(super) fn copy(&mut self, stream: &Stream, to: CUdeviceptr, bytes: &[u8]) -> Result<(), String> {
        for (index, piece) in bytes.chunks(HALF).enumerate() {
            if self.used + piece.len() > HALF {
                self.halves[self.current].copied.record(stream)?;
                self.current ^= 1;
                self.used = 0;
                self.halves[self.current].copied.wait()?;
            }
            let memory = &mut self.halves[self.current].memory;
            memory.bytes()[self.used..][..piece.len()].copy_from_slice(piece);
            // SAFETY: `used` is within the memory.
            let from = unsafe { memory.as_ptr().byte_add(self.used) };
            // SAFETY: the caller vouches for `to`. The piece stays as it is until the copy is done: it is overwritten only
            // when the stream has passed the event behind it.
            let copied =
                unsafe { sys::cuMemcpyHtoDAsync_v2(to + (index * HALF) as u64, from, piece.len(), stream.as_ptr()) };
            check(copied, "cuMemcpyHtoDAsync")?;
            self.used = (self.used + piece.len()).next_multiple_of(ALIGNMENT);
        }
        Ok(())
    }
}

/// Copies from the GPU, beside whatever runs there.
#[derive(Debug)]
pub(super) struct Downloads {
    stream: Stream,
    memory: Pinned,
}

impl Downloads {
    /// Its memory and stream. The context is the thread's.
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, String> {
        Ok(Self { stream: Stream::new(Arc::clone(context))?, memory: Pinned::new(Arc::clone(context), LANDING)? })
    }

    /// Fills `bytes` from `from`, which has as many that nothing is writing.
    pub(super) fn copy(&mut self, from: CUdeviceptr, bytes: &mut [u8]) -> Result<(), String> {
        for (index, piece) in bytes.chunks_mut(LANDING).enumerate() {
            let from = from + (index * LANDING) as u64;
            // SAFETY: the caller vouches for `from`; the memory has room for a piece.
            let copied =
                unsafe { sys::cuMemcpyDtoHAsync_v2(self.memory.as_ptr(), from, piece.len(), self.stream.as_ptr()) };
            check(copied, "cuMemcpyDtoHAsync")?;
            self.stream.wait()?;
            piece.copy_from_slice(&self.memory.bytes()[..piece.len()]);
        }
        Ok(())
    }
}

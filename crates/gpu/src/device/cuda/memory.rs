//! Memory of the GPU, and memory of the host that the GPU reaches by itself.

use std::ffi::c_void;
use std::ptr;
use std::slice;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUdeviceptr};

use super::driver::{Context, check};

/// Memory of the GPU.
#[derive(Debug)]
pub(super) struct Memory {
    start: CUdeviceptr,
    bytes: u64,
    context: Arc<Context>,
}

impl Memory {
    /// New memory, aligned to 256 bytes. The context is the thread's.
    pub(super) fn new(context: Arc<Context>, bytes: u64) -> Result<Self, String> {
        let mut start = 0;
        // SAFETY: `start` outlives the call. A size of 0 is refused by the driver.
        check(unsafe { sys::cuMemAlloc_v2(&raw mut start, bytes.max(1) as usize) }, "cuMemAlloc")?;
        Ok(Self { start, bytes, context })
    }

    /// The address of `bytes` bytes at `offset`, if they are within it.
    pub(super) fn at(&self, offset: u64, bytes: u64) -> Option<CUdeviceptr> {
        let end = offset.checked_add(bytes)?;
        (end <= self.bytes).then(|| self.start + offset)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: allocated by `new`; the driver waits for what still runs.
            let _ = unsafe { sys::cuMemFree_v2(self.start) };
        }
    }
}

/// Memory of the host that never moves.
#[derive(Debug)]
pub(super) struct Pinned {
    start: *mut c_void,
    bytes: usize,
    context: Arc<Context>,
}

// SAFETY: nothing else knows the memory.
unsafe impl Send for Pinned {}

impl Pinned {
    /// New memory, all zeros. The context is the thread's.
    pub(super) fn new(context: Arc<Context>, bytes: usize) -> Result<Self, String> {
        let mut start = ptr::null_mut();
        // SAFETY: `start` outlives the call; then it points to as many bytes.
        unsafe {
            check(sys::cuMemHostAlloc(&raw mut start, bytes, 0), "cuMemHostAlloc")?;
            start.cast::<u8>().write_bytes(0, bytes);
        }
        Ok(Self { start, bytes, context })
    }

    /// For the driver.
    pub(super) const fn as_ptr(&self) -> *mut c_void {
        self.start
    }

    /// All of it. The caller knows that the GPU does not touch it now.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `new` initialised as many bytes, which are this value's own.
        unsafe { slice::from_raw_parts_mut(self.start.cast(), self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: allocated by `new`; the driver waits for copies that still run.
            let _ = unsafe { sys::cuMemFreeHost(self.start) };
        }
    }
}

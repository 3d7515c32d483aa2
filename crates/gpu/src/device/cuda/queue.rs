//! Streams, which run what they are given in order, and marks in them that can be waited for.

use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUevent, CUevent_flags, CUresult, CUstream, CUstream_flags};

use super::driver::{Context, check};

/// A queue of the GPU.
#[derive(Debug)]
pub(super) struct Stream {
    stream: CUstream,
    context: Arc<Context>,
}

// SAFETY: the driver's objects may be used from any thread.
unsafe impl Send for Stream {}

impl Stream {
    /// A queue that waits for no other. The context is the thread's.
    pub(super) fn new(context: Arc<Context>) -> Result<Self, String> {
        let mut stream = ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: `stream` outlives the call.
        check(unsafe { sys::cuStreamCreate(&raw mut stream, flags) }, "cuStreamCreate")?;
        Ok(Self { stream, context })
    }

    /// For the driver.
    pub(super) const fn as_ptr(&self) -> CUstream {
        self.stream
    }

    /// Waits for all it was given.
    pub(super) fn wait(&self) -> Result<(), String> {
        // SAFETY: the stream is there.
        check(unsafe { sys::cuStreamSynchronize(self.stream) }, "the GPU")
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: made by `new`; the driver lets it finish.
            let _ = unsafe { sys::cuStreamDestroy_v2(self.stream) };
        }
    }
}

/// A mark in a stream.
#[derive(Debug)]
pub(super) struct Event {
    event: CUevent,
    context: Arc<Context>,
}

// SAFETY: the driver's objects may be used from any thread.
unsafe impl Send for Event {}

impl Event {
    /// A mark that is nowhere yet, and so counts as passed. The context is the thread's.
    pub(super) fn new(context: Arc<Context>) -> Result<Self, String> {
        let mut event = ptr::null_mut();
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: `event` outlives the call.
        check(unsafe { sys::cuEventCreate(&raw mut event, flags) }, "cuEventCreate")?;
        Ok(Self { event, context })
    }

    /// Puts it behind all that the stream was given.
    pub(super) fn record(&self, stream: &Stream) -> Result<(), String> {
        // SAFETY: both are there, of one context.
        check(unsafe { sys::cuEventRecord(self.event, stream.stream) }, "cuEventRecord")
    }

    /// Waits until the stream has passed it.
    pub(super) fn wait(&self) -> Result<(), String> {
        // SAFETY: the event is there.
        check(unsafe { sys::cuEventSynchronize(self.event) }, "the GPU")
    }

    /// Whether the stream has passed it.
    pub(super) fn passed(&self) -> bool {
        // SAFETY: the event is there.
        unsafe { sys::cuEventQuery(self.event) == CUresult::CUDA_SUCCESS }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: made by `new`, and nothing else has it.
            let _ = unsafe { sys::cuEventDestroy_v2(self.event) };
        }
    }
}

//! One dispatch as CUDA has it.

use std::ffi::c_void;

use cudarc::driver::sys::{self, CUDA_KERNEL_NODE_PARAMS, CUdeviceptr, CUfunction};

use super::driver::check;
use super::queue::Stream;
use crate::device::DeviceError;

/// A kernel with its arguments: buffers by address in the order of their slots, then the parameter struct by value.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) kernel: &'static str,
    pub(super) place: String,
    pub(super) function: CUfunction,
    pub(super) addresses: Vec<CUdeviceptr>,
    /// Empty if the kernel has none.
    pub(super) parameters: Vec<u8>,
    pub(super) grid: [u32; 3],
    pub(super) threads: u32,
    /// Beside the kernel's own arrays.
    pub(super) shared_bytes: u32,
    /// It waits for the one before it itself.
    pub(super) begins_early: bool,
}

// SAFETY: the driver's objects may be used from any thread; the function's library is held by the plan.
unsafe impl Send for Launch {}

impl Launch {
    /// Where each argument lies.
    fn arguments(&self) -> Vec<*mut c_void> {
        let mut arguments: Vec<*mut c_void> =
            self.addresses.iter().map(|address| (&raw const *address).cast_mut().cast()).collect();
        if !self.parameters.is_empty() {
            arguments.push(self.parameters.as_ptr().cast_mut().cast());
        }
        arguments
    }

    /// Calls `with` with what a graph's node is made of. The driver copies the arguments.
    pub(super) fn describe<T>(&self, with: impl FnOnce(&CUDA_KERNEL_NODE_PARAMS) -> T) -> T {
        let mut arguments = self.arguments();
        let [x, y, z] = self.grid;
        with(&CUDA_KERNEL_NODE_PARAMS {
            func: self.function,
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: self.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared_bytes,
            kernelParams: arguments.as_mut_ptr(),
            extra: std::ptr::null_mut(),
            kern: std::ptr::null_mut(),
            ctx: std::ptr::null_mut(),
        })
    }

    /// Runs it by itself and waits for it, so that what goes wrong is known to be its fault.
    pub(super) fn run(&self, stream: &Stream) -> Result<(), DeviceError> {
        let mut arguments = self.arguments();
        let [x, y, z] = self.grid;
        // SAFETY: the arguments are those of the kernel's signature, which `Launch` was made from.
        let launched = unsafe {
            sys::cuLaunchKernel(
                self.function,
                x,
                y,
                z,
                self.threads,
                1,
                1,
                self.shared_bytes,
                stream.as_ptr(),
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        check(launched, "cuLaunchKernel").and_then(|()| stream.wait()).map_err(|problem| self.failed(&problem))
    }

    /// Says whose fault it is.
    pub(super) fn failed(&self, problem: &str) -> DeviceError {
        DeviceError::Kernel { kernel: self.kernel.to_owned(), problem: format!("{problem}, at {}", self.place) }
    }
}

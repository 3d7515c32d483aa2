//! NVIDIA GPUs, through CUDA.
//!
//! The kernels are compiled by NVRTC from the source that lily-msl makes of `kernels/`, and kept on disk. A plan becomes a
//! graph with the plan's own edges. The driver and NVRTC are loaded when a device is opened, so a program with this in it
//! starts on machines that have neither.

mod driver;
mod execute;
mod graph;
mod launch;
mod library;
mod memory;
mod queue;
mod staging;

pub use driver::count;
pub use execute::{CudaDevice, Options};
pub use graph::CudaPlan;
pub use library::{compile, has_compiler};

//! Runs the model on the CPU: the backend for machines without a GPU, and the specification of what a GPU must compute.
//!
//! A sequence's results are the same bits however its tokens are cut into segments, whatever else is in a call,
//! however many threads there are, and on every instruction set: no reduction's order depends on anything but absolute
//! positions and the sizes of the model.
//!
//! The way through the code: [`CpuBackend`] checks what it is asked and cuts it into steps; `model` takes a step through
//! `delta_net`, `attention` and `moe`, which multiply through `matmul` and do the rest in kernels over `vector`.

mod activations;
mod archive;
mod attention;
mod backend;
mod delta_net;
mod embedding;
pub mod functions;
mod math;
mod matmul;
pub mod measure;
mod model;
mod moe;
#[cfg(target_arch = "aarch64")]
mod neon;
mod norm;
mod rope;
mod simd;
mod state;
mod step;
mod vector;
mod workspace;

pub use backend::{CpuBackend, Error, Options};
pub use simd::Simd;
pub use state::{Snapshot, State};

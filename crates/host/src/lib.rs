//! The kernels of `kernels/`, compiled for the CPU by the C++ compiler, to test on any machine what a GPU is to run.
//!
//! Each GPU thread is a fiber. A threadgroup's threads run one at a time until they meet at a barrier or a SIMD-group
//! operation; what Metal leaves undefined there (a barrier that not all threads reach, threadgroup memory read before
//! it is written or beyond 32 KB) is an error or a NaN. The runtime is C++ (`runtime/`), for the kernels are; the headers
//! that stand for Metal's are `crates/msl/shim`.

pub mod compile;
mod device;
mod kernels;
mod native;

pub use device::{HostDevice, Options};
pub use kernels::{Argument, Error, Kernels, Launch};

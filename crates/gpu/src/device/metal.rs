//! Apple GPUs, through Metal.
//!
//! A plan becomes command buffers of bounded length, each with one compute pass that runs its dispatches concurrently
//! and has memory barriers between stages, nowhere else. docs/metal.md tells how to bring this up on a Mac.

#[cfg(any(target_os = "macos", test))]
mod batches;
#[cfg(any(target_os = "macos", test))]
mod mapping;
#[cfg(any(target_os = "macos", test))]
mod residency;

#[cfg(target_os = "macos")]
mod archive;
#[cfg(target_os = "macos")]
mod chip;
#[cfg(target_os = "macos")]
mod execute;
#[cfg(target_os = "macos")]
mod library;
#[cfg(target_os = "macos")]
mod memory;
#[cfg(target_os = "macos")]
mod queue;

#[cfg(target_os = "macos")]
pub use execute::{MetalDevice, MetalPlan};

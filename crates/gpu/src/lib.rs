//! Runs the model on a GPU: a step is recorded once as a plan of kernel dispatches and replayed.

#[cfg(feature = "ablate")]
pub mod ablate;
mod ahead;
mod archive;
mod backend;
mod batch;
pub mod device;
mod error;
mod ferry;
mod journal;
pub mod kernel;
mod memory;
mod outline;
mod part;
pub mod plan;
mod pool;
mod recent;
pub mod recorder;
mod runner;
mod shapes;
mod snapshot;
mod state;
mod step;
mod weights;

pub use backend::{GpuBackend, Options};
pub use error::Error;
pub use outline::{Outline, Step};
pub use shapes::Shapes;
pub use snapshot::Snapshot;
pub use state::State;

/// Bindings of the kernels, made from their signatures in `kernels/`.
pub mod kernels {
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// All of `kernels/` as one text that Metal compiles.
pub const METAL_SOURCE: &str = include_str!(concat!(env!("OUT_DIR"), "/kernels.metal"));

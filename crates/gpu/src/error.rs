//! Why no backend could be made.

use crate::device::DeviceError;

/// Why no backend could be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernels are not made for this model.
    #[error("the GPU kernels cannot run this model: {0}")]
    Unsupported(String),
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

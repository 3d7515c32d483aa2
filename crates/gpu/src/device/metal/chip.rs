//! The GPU of this Mac: whether Lily runs on it, and by which path.

use objc2::available;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSProcessInfo;
use objc2_metal::{MTLCreateSystemDefaultDevice, MTLDevice, MTLGPUFamily};

use crate::device::{DeviceError, Limits};

// MTLCreateSystemDefaultDevice finds nothing in a command-line program that has not loaded CoreGraphics.
#[link(name = "CoreGraphics", kind = "framework")]
unsafe extern "C" {}

/// A GPU that Lily runs on.
pub(super) struct Chip {
    pub(super) device: Retained<ProtocolObject<dyn MTLDevice>>,
    /// `Apple M4 Max`.
    pub(super) name: String,
    /// Its instruction set: `applegpu_g16s`.
    pub(super) architecture: String,
    /// `Version 15.3 (Build 24D60)`.
    pub(super) system: String,
    /// Whether it multiplies matrices in hardware of its own (M5 and later) and the system gives kernels the way to it.
    pub(super) tensors: bool,
}

impl Chip {
    /// The GPU of this Mac.
    pub(super) fn find() -> Result<Self, DeviceError> {
        let failed = |name: &str, problem: String| DeviceError::Failed { name: name.to_owned(), problem };
        let system = NSProcessInfo::processInfo().operatingSystemVersionString().to_string();
        if !available!(macos = 15.0) {
            return Err(failed(
                "Metal",
                format!("macOS 15 or later is needed, this is {system}; --device cpu runs here"),
            ));
        }
        let device = MTLCreateSystemDefaultDevice().ok_or_else(|| {
            failed(
                "Metal",
                "this Mac shows no GPU to this process (is it a virtual machine?); --device cpu runs".into(),
            )
        })?;
        let name = device.name().to_string();
        // A virtual machine's GPU is the host's, of which it tells less than is true.
        let is_virtual = name.contains("Paravirtual");
        if !device.supportsFamily(MTLGPUFamily::Apple7) && !is_virtual {
            let problem =
                "it is older than the M1 (Apple GPU family 7), which the kernels are written for; --device cpu runs";
            return Err(failed(&name, problem.into()));
        }
        let tensors = available!(macos = 26.2)
            && device.supportsFamily(MTLGPUFamily::Metal4)
            && device.supportsFamily(MTLGPUFamily::Apple10);
        let architecture = device.architecture().name().to_string();
        Ok(Self { device, name, architecture, system, tensors })
    }

    /// What the system says it should be given.
    pub(super) fn limits(&self) -> Limits {
        Limits {
            recommended_bytes: self.device.recommendedMaxWorkingSetSize(),
            buffer_bytes: self.device.maxBufferLength() as u64,
        }
    }
}

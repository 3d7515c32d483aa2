//! What runs the model: the processor, or the GPU where this build has one.

use anyhow::Result;
use clap::ValueEnum;
#[cfg(target_os = "macos")]
pub(crate) use metal::{MetalBackend, metal};

/// As `--device` has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceChoice {
    /// The fastest that is proved to be right here: for now the processor.
    #[default]
    Auto,
    /// The processor.
    Cpu,
    /// The GPU of a Mac.
    #[cfg_attr(not(target_os = "macos"), value(hide = true))]
    Metal,
}

/// What was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// The processor.
    Cpu,
    /// The GPU of a Mac, and as many bytes as it should be given.
    #[cfg(target_os = "macos")]
    Metal { recommended_bytes: u64 },
}

impl DeviceChoice {
    /// The device that is meant.
    #[cfg(not(target_os = "macos"))]
    pub(crate) fn resolve(self) -> Result<Device> {
        match self {
            Self::Auto | Self::Cpu => Ok(Device::Cpu),
            Self::Metal => anyhow::bail!(
                "--device metal: there is Metal on macOS only, and this is {}; --device cpu computes here, as it does \
                 without the option",
                std::env::consts::OS
            ),
        }
    }

    /// The device that is meant. `auto` does not take Metal until a Mac has run it (docs/metal.md): a wrong answer is worse
    /// than a slow one.
    #[cfg(target_os = "macos")]
    pub(crate) fn resolve(self) -> Result<Device> {
        match self {
            Self::Cpu => Ok(Device::Cpu),
            Self::Auto => {
                crate::terminal::tell(format_args!(
                    "note: the processor computes; --device metal tries the GPU, which no Mac has proved yet (docs/metal.md)"
                ));
                Ok(Device::Cpu)
            }
            Self::Metal => Ok(Device::Metal { recommended_bytes: metal::recommended_bytes()? }),
        }
    }
}

impl Device {
    /// As `--device` has it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            #[cfg(target_os = "macos")]
            Self::Metal { .. } => "metal",
        }
    }

    /// Whether what its sequences hold can be kept on disk.
    pub(crate) fn keeps_on_disk(self) -> bool {
        self == Self::Cpu
    }

    /// Whose memory a plan has to fit in.
    pub(crate) fn memory_name(self) -> &'static str {
        match self {
            Self::Cpu => "this machine",
            #[cfg(target_os = "macos")]
            Self::Metal { .. } => "the GPU",
        }
    }
}

#[cfg(target_os = "macos")]
mod metal {
    use anyhow::Result;
    use lily_checkpoint::Checkpoint;
    use lily_gpu::device::metal::MetalDevice;
    use lily_gpu::device::{Device as _, DeviceError};
    use lily_gpu::{GpuBackend, Options};

    pub(crate) type MetalBackend = GpuBackend<MetalDevice>;

    /// Bytes that macOS recommends to give the GPU.
    pub(super) fn recommended_bytes() -> Result<u64, DeviceError> {
        Ok(MetalDevice::open()?.limits().recommended_bytes)
    }

    /// The backend, its kernels compiled.
    pub(crate) fn metal(checkpoint: &Checkpoint, options: &Options) -> Result<MetalBackend> {
        Ok(GpuBackend::new(MetalDevice::open()?, checkpoint, *options)?)
    }
}

//! What runs the model: the processor, or the GPU that this build can use: Metal's on macOS, CUDA's on Linux.

use anyhow::Result;
use clap::ValueEnum;
use lily_checkpoint::{Checkpoint, Config};
#[cfg(target_os = "linux")]
use lily_gpu::device::cuda::{self, CudaDevice as GpuDevice};
#[cfg(target_os = "macos")]
use lily_gpu::device::metal::MetalDevice as GpuDevice;
use lily_gpu::device::{Device as _, Tiles};
use lily_gpu::{GpuBackend, Options, Shapes};

use crate::terminal::tell;

/// The model on this build's GPU.
pub(crate) type Gpu = GpuBackend<GpuDevice>;

/// Of what a GPU's system recommends to give it, the share that a plan may take; the rest is for what drivers round up and
/// what we misjudge.
const SHARE_OF_GPU: f64 = 0.98;

/// Tokens of a step: as many as it takes to fill the GPU.
const PREFILL_ROWS: usize = if cfg!(target_os = "macos") { 2048 } else { 4096 };

/// As `--device` has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceChoice {
    /// The fastest that is proved to be right here.
    #[default]
    Auto,
    /// The processor.
    Cpu,
    /// The GPU of a Mac.
    #[cfg_attr(not(target_os = "macos"), value(hide = true))]
    Metal,
    /// An NVIDIA GPU.
    #[cfg(target_os = "linux")]
    Cuda,
}

/// What was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// The processor.
    Cpu,
    /// The GPU, as many bytes of it as a plan may take, and what it makes products of.
    Gpu { bytes: u64, tiles: Tiles },
}

impl DeviceChoice {
    /// The device that is meant. `auto` does not take Metal until a Mac has run it (docs/metal.md): a wrong answer is worse
    /// than a slow one.
    #[cfg(target_os = "macos")]
    pub(crate) fn resolve(self) -> Result<Device> {
        match self {
            Self::Cpu => Ok(Device::Cpu),
            Self::Auto => {
                tell(format_args!(
                    "note: the processor computes; --device metal tries the GPU, which no Mac has proved yet (docs/metal.md)"
                ));
                Ok(Device::Cpu)
            }
            Self::Metal => gpu(),
        }
    }

    /// The device that is meant. `auto` takes a GPU if there is one and what compiles its kernels.
    #[cfg(target_os = "linux")]
    pub(crate) fn resolve(self) -> Result<Device> {
        match self {
            Self::Cpu => Ok(Device::Cpu),
            Self::Cuda => gpu(),
            Self::Metal => anyhow::bail!(
                "--device metal: there is Metal on macOS only, and this is {}; --device cpu and --device cuda compute here",
                std::env::consts::OS
            ),
            Self::Auto if cuda::count() == 0 => Ok(Device::Cpu),
            Self::Auto if !cuda::has_compiler() => {
                tell(format_args!("note: the processor computes; --device cuda tells what the GPU lacks"));
                Ok(Device::Cpu)
            }
            Self::Auto => Ok(gpu().unwrap_or_else(|error| {
                tell(format_args!("note: the processor computes, as the GPU cannot: {error}"));
                Device::Cpu
            })),
        }
    }

    /// The device that is meant and what `plan` makes for it. With `auto` it is the processor where that fails for the GPU, too
    /// small for the model, say.
    pub(crate) fn choose<Plan>(self, plan: impl Fn(Device) -> Result<Plan>) -> Result<(Device, Plan)> {
        let device = self.resolve()?;
        match plan(device) {
            Err(error) if self == Self::Auto && device != Device::Cpu => {
                tell(format_args!("note: the processor computes, as the GPU cannot: {error:#}"));
                Ok((Device::Cpu, plan(Device::Cpu)?))
            }
            made => Ok((device, made?)),
        }
    }

    /// As [`choose`](Self::choose), for a model that is to run: `auto` also turns back where the kernels cannot be made for it.
    /// What the GPU's compiler makes of them is kept.
    pub(crate) fn choose_to_run<Plan>(
        self,
        config: &Config,
        plan: impl Fn(Device) -> Result<Plan>,
    ) -> Result<(Device, Plan)> {
        self.choose(|device| {
            let made = plan(device)?;
            if self == Self::Auto && device != Device::Cpu {
                open()?.specialise(&Shapes::new(config)?.constants())?;
            }
            Ok(made)
        })
    }
}

impl Device {
    /// As `--device` has it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Gpu { .. } if cfg!(target_os = "macos") => "metal",
            Self::Gpu { .. } => "cuda",
        }
    }

    /// Whose memory a plan has to fit in.
    pub(crate) fn memory_name(self) -> &'static str {
        match self {
            Self::Cpu => "this machine",
            Self::Gpu { .. } => "the GPU",
        }
    }

    /// Tokens of a prompt between two snapshots of the prefix cache, if not the engine's own: no step reads past one, and a GPU is
    /// fastest with all the rows that a step can have.
    pub(crate) fn cache_interval(self) -> Option<usize> {
        match self {
            Self::Cpu => None,
            Self::Gpu { .. } => Some(PREFILL_ROWS),
        }
    }
}

fn open() -> Result<GpuDevice> {
    #[cfg(target_os = "macos")]
    let device = GpuDevice::open()?;
    #[cfg(target_os = "linux")]
    let device = {
        // Named by the device's message after a fault.
        let serial = std::env::var_os("LILY_CUDA_SERIAL").is_some_and(|value| value == "1");
        GpuDevice::open(cuda::Options { serial, ..cuda::Options::default() })?
    };
    Ok(device)
}

fn gpu() -> Result<Device> {
    let device = open()?;
    let bytes = (device.limits().recommended_bytes as f64 * SHARE_OF_GPU) as u64;
    Ok(Device::Gpu { bytes, tiles: device.tiles() })
}

/// What the GPU is to hold for so many sequences of so many tokens.
pub(crate) fn options(context: usize, sequences: usize) -> Options {
    Options { prefill_rows: PREFILL_ROWS, ..Options::new(context, sequences) }
}

/// The model on the GPU, its kernels compiled.
pub(crate) fn backend(checkpoint: &Checkpoint, options: &Options) -> Result<Gpu> {
    Ok(GpuBackend::new(open()?, checkpoint, *options)?)
}

/// The same on a device that can leave out an idea.
#[cfg(feature = "ablate")]
pub(crate) fn ablated(
    checkpoint: &Checkpoint,
    options: &Options,
) -> Result<GpuBackend<lily_gpu::ablate::Ablated<GpuDevice>>> {
    Ok(GpuBackend::new(lily_gpu::ablate::Ablated::new(open()?), checkpoint, *options)?)
}

#[cfg(test)]
mod tests {
    use lily_gpu::device::Tiles;

    use super::{Device, options};

    /// A snapshot within a step would make two of it.
    #[test]
    fn the_cache_cuts_no_step_of_a_gpu() {
        let gpu = Device::Gpu { bytes: 1 << 30, tiles: Tiles::Simdgroup };
        assert_eq!(gpu.cache_interval(), Some(options(4096, 1).prefill_rows));
        assert_eq!(Device::Cpu.cache_interval(), None);
    }
}

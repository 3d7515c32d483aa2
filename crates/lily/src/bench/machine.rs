//! The machine: what it is, what it does at best, and whether it is busy with something else.

use anyhow::{Context, Result, bail};
use lily_cpu::{Simd, measure};
use serde::Serialize;
use sysinfo::System;

use crate::load::machine_memory;
use crate::terminal::tell;

/// Bytes read to find the bandwidth: above all caches, which go up to some hundred MiB.
const READ_BYTES: u64 = 1 << 30;
/// From this load average on, something else is likely at work.
const BUSY: f64 = 0.5;

/// A machine.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    /// The processor's name for itself.
    pub(crate) processor: String,
    /// Logical cores.
    pub(crate) cores: usize,
    /// Bytes.
    pub(crate) memory: u64,
    /// Over the last minute, before anything was measured; `None` where the system does not tell.
    pub(crate) load_average: Option<f64>,
    /// What the processor does at best; `None` where something else computes.
    #[serde(flatten)]
    pub(crate) roofs: Option<Roofs>,
}

/// What a processor does at best.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Roofs {
    /// What the threads of the run read from memory together, in GB (10⁹ bytes) a second.
    pub(crate) read_gb_per_second: f64,
    /// 8-bit integer multiply-accumulates of those threads, in 10⁹ a second.
    pub(crate) peak_gmac_per_second: f64,
}

impl Machine {
    /// Looks at the machine; warns of a busy one.
    pub(crate) fn new() -> Result<Self> {
        let load_average = System::load_average().ok().map(|load| load.one);
        if let Some(load) = load_average
            && load > BUSY
        {
            tell(format_args!(
                "warning: the load average is {load:.2}: other work takes cores and bandwidth, these figures will be low"
            ));
        }
        let mut system = System::new().context("this machine cannot be told")?;
        system.refresh_cpu_list(sysinfo::CpuRefreshKind::nothing());
        let processor = system.cpus().first().map_or("", |cpu| cpu.brand()).trim();
        Ok(Self {
            processor: if processor.is_empty() { std::env::consts::ARCH } else { processor }.to_owned(),
            cores: system.cpus().len(),
            memory: machine_memory()?,
            load_average,
            roofs: None,
        })
    }

    /// With what its processor does at best.
    pub(crate) fn measured(simd: Simd, threads: usize) -> Result<(Self, Roofs)> {
        let machine = Self::new()?;
        let roofs = Roofs::measure(simd, threads)?;
        Ok((Self { roofs: Some(roofs), ..machine }, roofs))
    }
}

impl Roofs {
    fn measure(simd: Simd, threads: usize) -> Result<Self> {
        let mut system = System::new().context("this machine's memory cannot be told")?;
        system.refresh_memory();
        let bytes = READ_BYTES.min(system.available_memory() / 2).min(machine_memory()? / 2);
        if bytes < 1 << 20 {
            bail!("there is no memory left to measure its bandwidth");
        }
        let read = measure::read_bandwidth(simd, threads, bytes as usize)
            .context("no memory to measure its bandwidth with")?;
        Ok(Self {
            read_gb_per_second: read / 1e9,
            peak_gmac_per_second: measure::multiply_accumulate_peak(simd, threads) / 1e9,
        })
    }
}

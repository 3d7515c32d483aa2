//! The process that measures one length: started by `lily bench`, and what runs in it.

use std::io::{Write, stdout};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use lily_checkpoint::{Environment, locate};
use lily_cpu::{CpuBackend, Simd};
use serde::{Deserialize, Serialize};

use super::measure::{Contract, Measured, measure};
use crate::cli::{BenchLengthArgs, ModelArgs};
use crate::device::{self, Device};

/// What the process tells, as a line of JSON.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Told {
    pub(crate) measured: Measured,
    /// The most memory the process held, in bytes, pages of mapped weights too; `None` where the system does not tell.
    pub(crate) peak_memory: Option<u64>,
}

/// Measures in a fresh process. `model` says where the checkpoint is and how many threads to use.
pub(crate) fn start(model: &ModelArgs, device: Device, simd: Simd, contract: &Contract) -> Result<Told> {
    let program = std::env::current_exe().context("where this program lies cannot be told")?;
    let mut command = Command::new(program);
    command.arg("bench-length");
    if let Some(dir) = &model.model {
        command.arg("--model").arg(dir);
    }
    let numbers = [
        ("--threads", model.threads),
        ("--max-context", contract.length + contract.steps),
        ("--length", contract.length),
        ("--steps", contract.steps),
        ("--repeats", contract.repeats),
        ("--chunk", contract.chunk),
        ("--vocabulary", contract.vocabulary),
    ];
    for (name, value) in numbers {
        command.arg(name).arg(value.to_string());
    }
    command.arg("--simd").arg(simd.to_string()).arg("--device").arg(device.name());
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("no process can be started")?;
    if !output.status.success() {
        bail!("the process that measured {} tokens ended with {}", contract.length, output.status);
    }
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("the process that measured {} tokens told something else", contract.length))
}

/// `lily bench-length`: measures one length and tells it on stdout.
pub(crate) fn measure_length(args: &BenchLengthArgs) -> Result<()> {
    let contract = Contract {
        length: args.length as usize,
        steps: args.steps as usize,
        repeats: args.repeats as usize,
        chunk: args.chunk as usize,
        vocabulary: args.vocabulary as usize,
    };
    // Whatever there is to say about the choice, `lily bench` has said.
    let checkpoint = locate(args.model.model.as_deref(), &Environment::of_process()).source.open()?;
    let max_context = contract.length + contract.steps;
    let measured = match args.model.device.resolve()? {
        Device::Cpu => {
            let options = lily_cpu::Options { threads: args.model.threads, max_context, simd: Some(args.simd) };
            measure(&mut CpuBackend::new(Arc::new(checkpoint), options)?, &contract)?
        }
        Device::Gpu { .. } => {
            let options = device::options(max_context, 1);
            measure(&mut device::backend(&checkpoint, &options)?, &contract)?
        }
    };
    let told = Told { measured, peak_memory: peak_memory() };
    writeln!(stdout(), "{}", serde_json::to_string(&told)?)?;
    Ok(())
}

/// From /proc, not getrusage: the latter's peak survives `exec`, so it starts with that of the parent.
#[cfg(target_os = "linux")]
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()? * 1024)
}

/// macOS counts in bytes.
#[cfg(target_os = "macos")]
fn peak_memory() -> Option<u64> {
    use nix::sys::resource::{UsageWho, getrusage};
    u64::try_from(getrusage(UsageWho::RUSAGE_SELF).ok()?.max_rss()).ok()
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
fn peak_memory() -> Option<u64> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #[test]
    fn the_peak_grows_with_what_is_held() {
        let before = super::peak_memory().unwrap();
        let held = std::hint::black_box(vec![1u8; 256 << 20]);
        assert!(super::peak_memory().unwrap() >= before.max(256 << 20));
        drop(held);
    }
}

//! The device, the memory, the disk.

use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use lily_backend::MemoryPlan;
use lily_checkpoint::{CHECKPOINT, Checkpoint, Environment, Source, locate};
use lily_cpu::Simd;
use lily_engine::DiskOptions;
use serde_json::json;
use sysinfo::System;

use crate::cache::{self, CacheSize};
use crate::cli::{ModelArgs, ServeArgs};
use crate::device::Device;
use crate::doctor::port::Running;
use crate::doctor::report::Finding;
use crate::load::{machine_memory, plan, too_many_threads};
use crate::serve::bytes;

/// Bytes that a download of the 35B takes.
const DOWNLOAD: u64 = 20_430_000_000;

/// What computes.
pub(super) fn device(model: &ModelArgs) -> Result<(Finding, Device)> {
    let device = model.device.resolve()?;
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = if model.threads == 0 { cores } else { model.threads };
    let simd = Simd::best();
    let mut system = System::new().context("this machine cannot be told")?;
    system.refresh_cpu_list(sysinfo::CpuRefreshKind::nothing());
    let brand = system.cpus().first().map_or("", |cpu| cpu.brand()).trim().to_owned();
    let processor = if brand.is_empty() { std::env::consts::ARCH.to_owned() } else { brand };
    let mut finding =
        Finding::good(format!("{}: {processor}, {cores} cores, {simd}, {threads} threads", device.name()))
            .with("device", json!(device.name()))
            .with("processor", json!(processor))
            .with("cores", json!(cores))
            .with("simd", json!(simd.to_string()))
            .with("threads", json!(threads));
    if let Some(warning) = too_many_threads(threads) {
        finding = finding.warn(warning);
    }
    if simd == Simd::Scalar {
        finding =
            finding.warn("no instructions that the kernels are made for: the portable ones are many times slower");
    }
    Ok((finding, device))
}

/// Whether what will be held fits.
pub(super) fn memory(
    checkpoint: &Checkpoint,
    serve: &ServeArgs,
    device: Device,
    cache: CacheSize,
    running: Option<&Running>,
) -> Result<(Finding, MemoryPlan)> {
    let weights = checkpoint.weights.summary().bytes();
    let plan = plan(&checkpoint.config, weights, serve.model.max_context, serve.parallel, device, cache)?;
    if serve.cache_dir.is_some() {
        cache::has_memory(&plan)?;
    }
    let mut system = System::new().context("this machine's memory cannot be told")?;
    system.refresh_memory();
    let (whole, free) = (machine_memory()?, system.available_memory());
    let says = format!(
        "{} planned of {}, {} free now: up to {} requests at once, of up to {} tokens each, prefix cache {}",
        bytes(plan.total()),
        bytes(whole),
        bytes(free),
        plan.parallel,
        plan.context,
        bytes(plan.cache)
    );
    let mut finding = Finding::good(says)
        .with("planned_bytes", json!(plan.total()))
        .with("machine_bytes", json!(whole))
        .with("free_bytes", json!(free))
        .with("context", json!(plan.context))
        .with("parallel", json!(plan.parallel))
        .with("prefix_cache_bytes", json!(plan.cache));
    let held = running.map_or(0, |running| running.bytes);
    if plan.total() > free.saturating_add(held) {
        finding =
            finding.warn("more than is free now: other programs have to give memory back first, or it will be slow");
    } else if plan.total() > free {
        let process = running
            .and_then(|running| running.process)
            .map_or_else(String::new, |process| format!(", process {process}"));
        finding = finding.note(format!(
            "more than is free now, but {} of the rest are the running server's{process}: not both at once",
            bytes(held)
        ));
    }
    Ok((finding, plan))
}

/// Whether what is to be written has room.
pub(super) fn disk(serve: &ServeArgs) -> Result<(Finding, ())> {
    if let Some(directory) = &serve.cache_dir {
        return cache_directory(directory, serve.cache_disk).map(|finding| (finding, ()));
    }
    if locate(serve.model.model.as_deref(), &Environment::of_process()).source == Source::Embedded {
        return download().map(|finding| (finding, ()));
    }
    Ok((Finding::good("nothing is written: no --cache-dir"), ()))
}

/// The directory is made, as `serve` would, and tried.
fn cache_directory(directory: &Path, limit: u64) -> Result<Finding> {
    let name = || format!("--cache-dir {}", directory.display());
    cache::make_directory(directory)?;
    tempfile::NamedTempFile::new_in(directory).with_context(|| format!("{}: nothing can be written there", name()))?;
    let free = free_bytes(directory)?;
    let used: u64 = fs::read_dir(directory)
        .with_context(name)?
        .filter_map(|entry| entry.ok()?.metadata().ok())
        .map(|metadata| metadata.len())
        .sum();
    let says = format!("{}: {} kept, {} allowed, {} free", directory.display(), bytes(used), bytes(limit), bytes(free));
    let finding = Finding::good(says).with("cache_dir", json!(directory)).with("free_bytes", json!(free));
    let finding = finding.with("used_bytes", json!(used)).with("limit_bytes", json!(limit));
    if DiskOptions::is_taken(directory).with_context(name)? {
        return Ok(finding.warn("another process uses it: a server that is started now keeps its cache in memory only"));
    }
    let wanted = limit.saturating_sub(used);
    if free < wanted {
        return Ok(finding
            .warn(format!("the disk will be full before --cache-disk is: {} more may be written", bytes(wanted))));
    }
    Ok(finding)
}

/// Only the embedded model is there: is there room for the real one?
fn download() -> Result<Finding> {
    let hub = Environment::of_process().hub_cache().context("there is no home directory to keep a download in")?;
    let there = hub.ancestors().find(|path| path.is_dir()).map_or_else(|| PathBuf::from("/"), Path::to_owned);
    let free = free_bytes(&there)?;
    let says = format!("{} free for a download of {CHECKPOINT}, which takes {}", bytes(free), bytes(DOWNLOAD));
    let finding = Finding::good(says).with("download_dir", json!(hub)).with("free_bytes", json!(free));
    if free < DOWNLOAD {
        return Ok(finding.warn(format!("too little in {}; HF_HOME takes another place", hub.display())));
    }
    Ok(finding)
}

fn free_bytes(directory: &Path) -> Result<u64> {
    let disk = rustix::fs::statvfs(directory)
        .with_context(|| format!("cannot tell the free space in {}", directory.display()))?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

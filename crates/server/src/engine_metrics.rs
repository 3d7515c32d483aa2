//! What the engine and the process say of themselves, read when Prometheus asks.

use lily_backend::MemoryPlan;
use lily_engine::{CacheStats, Engine, Stats};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;
use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System, get_current_pid};

/// Reads the counters of an engine and the memory of this process.
pub(crate) struct EngineMetrics {
    pub(crate) engine: Engine,
    pub(crate) plan: Option<MemoryPlan>,
}

impl fmt::Debug for EngineMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineMetrics").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl Collector for EngineMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Stats { running, queued, steps, prefilled_tokens, generated_tokens, cache, .. } = self.engine.stats();
        let out = &mut encoder;
        gauge(out, "lily_requests_running", "Sequences that run", running as u64)?;
        gauge(out, "lily_requests_queued", "Requests that wait for a place", queued as u64)?;
        counter(out, "lily_steps", "Steps of the engine", steps)?;
        counter(out, "lily_prefilled_tokens", "Prompt tokens read", prefilled_tokens)?;
        counter(out, "lily_cached_tokens", "Prompt tokens that the prefix cache had", cache.cached_tokens)?;
        counter(out, "lily_generated_tokens", "Tokens generated", generated_tokens)?;
        encode_cache(out, &cache)?;
        if let Some(plan) = &self.plan {
            let help = "Memory planned at the start, by what for";
            let mut family = out.encode_descriptor("lily_planned_memory_bytes", help, None, MetricType::Gauge)?;
            for (part, bytes) in parts(plan) {
                ConstGauge::new(bytes).encode(family.encode_family(&[("part", part)])?)?;
            }
        }
        match resident_bytes() {
            Some(bytes) => {
                gauge(out, "process_resident_memory_bytes", "Memory of the process, mapped weights too", bytes)
            }
            None => Ok(()),
        }
    }
}

fn encode_cache(out: &mut DescriptorEncoder<'_>, cache: &CacheStats) -> fmt::Result {
    counter(out, "lily_cache_hits", "Requests that began with part of their prompt read", cache.hits)?;
    counter(out, "lily_cache_misses", "Requests that began with none", cache.misses)?;
    counter(out, "lily_cache_evictions", "Snapshots that had to make room in memory", cache.evictions)?;
    gauge(out, "lily_cache_bytes", "Memory of the prefix cache", cache.bytes)?;
    gauge(out, "lily_cache_snapshots", "Snapshots in memory", cache.snapshots as u64)?;
    gauge(out, "lily_cache_disk_bytes", "Files of the prefix cache", cache.disk_bytes)?;
    gauge(out, "lily_cache_disk_snapshots", "Snapshots on disk", cache.disk_snapshots as u64)?;
    gauge(out, "lily_cache_disk_waiting", "Snapshots that wait to be written", cache.disk_waiting as u64)?;
    counter(out, "lily_cache_disk_writes", "Snapshots written", cache.disk_writes)?;
    counter(out, "lily_cache_disk_written_bytes", "Bytes of them", cache.disk_written_bytes)?;
    counter(out, "lily_cache_disk_reads", "Snapshots read back", cache.disk_reads)?;
    counter(out, "lily_cache_disk_evictions", "Files removed to make room", cache.disk_evictions)?;
    counter(out, "lily_cache_disk_errors", "Files that could not be written or were of no use", cache.disk_errors)
}

fn gauge(out: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    ConstGauge::new(value).encode(out.encode_descriptor(name, help, None, MetricType::Gauge)?)
}

fn counter(out: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    ConstCounter::new(value).encode(out.encode_descriptor(name, help, None, MetricType::Counter)?)
}

/// What a plan's memory is for.
pub(crate) fn parts(plan: &MemoryPlan) -> [(&'static str, u64); 5] {
    let states = plan.parallel as u64 * plan.state;
    [
        ("weights", plan.weights),
        ("workspace", plan.workspace),
        ("states", states),
        ("kv_cache", plan.sequences() - states),
        ("prefix_cache", plan.cache),
    ]
}

/// Memory of this process, as far as the system tells.
pub(crate) fn resident_bytes() -> Option<u64> {
    let process = get_current_pid().ok()?;
    let mut system = System::new().ok()?;
    let memory = ProcessRefreshKind::nothing().with_memory();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[process]), false, memory);
    system.process(process).map(|process| process.memory())
}

#[cfg(test)]
mod tests {
    use super::{parts, resident_bytes};
    use lily_backend::MemoryPlan;

    #[test]
    fn parts_are_all_there_is() {
        let plan =
            MemoryPlan { context: 10, parallel: 3, weights: 1, workspace: 20, state: 300, kv_per_token: 7, cache: 5 };
        assert_eq!(parts(&plan).iter().map(|(_, bytes)| bytes).sum::<u64>(), plan.total());
    }

    #[test]
    fn this_process_has_memory() {
        assert!(resident_bytes().expect("a system that tells") > 1 << 20);
    }
}

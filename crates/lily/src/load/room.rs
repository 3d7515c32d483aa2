//! What is said of a plan that does not fit, and what would.

use anyhow::{Error, anyhow};
use lily_backend::MemoryPlan;

use crate::cache::CacheSize;
use crate::device::Device;

/// So many sequences, in words.
pub(crate) fn sequences(count: usize) -> String {
    if count == 1 { "1 sequence".into() } else { format!("{count} sequences") }
}

/// Why `plan` cannot be had of `memory` bytes, of which `available` may be planned, and which flags would make it fit. `asked`: whether
/// somebody asked for its context.
pub(super) fn refusal(plan: &MemoryPlan, asked: bool, device: Device, (memory, available): (u64, u64)) -> Error {
    let what = if asked {
        format!("a context of {} tokens for {}", plan.context, sequences(plan.parallel))
    } else {
        "the model".to_owned()
    };
    let cache = match plan.cache {
        0 => String::new(),
        bytes => format!(" with a prefix cache of {} MiB", bytes >> 20),
    };
    let reserve = match memory - available {
        0 => String::new(),
        rest => format!(", of which {} MiB stay free for the system: {} MiB", rest >> 20, available >> 20),
    };
    let help = match ways(plan, asked, available).as_slice() {
        [] => String::new(),
        [only] => format!("\n{only} would fit"),
        [several @ .., last] => format!("\n{} or {last} would fit", several.join(", ")),
    };
    anyhow!("{what}{cache} does not fit in {}'s {} MiB{reserve}:\n{plan}{help}", device.memory_name(), memory >> 20)
}

/// Flags each of which would make it fit; if none does, all that do together.
fn ways(plan: &MemoryPlan, asked: bool, available: u64) -> Vec<String> {
    // Without a context that was asked for the longest that fits will do.
    let least = if asked { plan.context } else { plan.context.min(1024) };
    let fits = |plan: &MemoryPlan| MemoryPlan { context: least, ..*plan }.total() <= available;
    let shorter = |plan: &MemoryPlan| plan.largest_context(plan.context, available).filter(|_| asked);
    let mut ways = Vec::new();
    ways.extend(shorter(plan).map(|smaller| format!("--max-context {}", smaller.context)));
    let fewer = (1..plan.parallel).rev().find(|&parallel| fits(&MemoryPlan { parallel, ..*plan }));
    ways.extend(fewer.map(|parallel| format!("--parallel {parallel}")));
    if plan.cache > 0 {
        let without = MemoryPlan { cache: 0, ..*plan };
        ways.extend(smaller_cache(&without, asked, available).map(|bytes| format!("--cache {}", size(bytes))));
        if ways.is_empty() {
            let all = shorter(&MemoryPlan { parallel: 1, ..without });
            ways.extend(
                all.map(|smaller| format!("--max-context {} with --parallel 1 and --cache 0", smaller.context)),
            );
        }
    } else if ways.is_empty() && plan.parallel > 1 {
        let all = shorter(&MemoryPlan { parallel: 1, ..*plan });
        ways.extend(all.map(|smaller| format!("--max-context {} with --parallel 1", smaller.context)));
    }
    ways
}

/// The largest cache beside a plan without one: beside the longest context that leaves it a share, if none was asked for.
fn smaller_cache(without: &MemoryPlan, asked: bool, available: u64) -> Option<u64> {
    if asked {
        return available.checked_sub(without.total());
    }
    CacheSize::Share.largest(without, available).map(|plan| plan.cache)
}

/// Bytes as `--cache` takes them, not more.
fn size(bytes: u64) -> String {
    match bytes {
        0..0x10_0000 => "0".into(),
        0x10_0000..0x1_0000_0000 => format!("{}M", bytes >> 20),
        _ => format!("{}G", bytes >> 30),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    /// About the 35B's.
    const PLAN: MemoryPlan = MemoryPlan {
        context: 65_536,
        parallel: 4,
        weights: 18_000 * MIB,
        workspace: 500 * MIB,
        state: 62 * MIB,
        kv_per_token: 20 << 10,
        cache: 0,
    };

    fn said(plan: &MemoryPlan, asked: bool, memory: u64) -> String {
        refusal(plan, asked, Device::Cpu, (memory, memory / 20 * 19)).to_string()
    }

    #[test]
    fn all_that_helps_is_named_with_numbers_that_fit() {
        let memory = 23_500 * MIB;
        let available = memory / 20 * 19;
        let text = said(&PLAN, true, memory);
        assert!(text.contains("--max-context 45056 or --parallel 2 would fit"), "{text}");
        for plan in [MemoryPlan { context: 45_056, ..PLAN }, MemoryPlan { parallel: 2, ..PLAN }] {
            assert!(plan.total() <= available, "{plan}");
        }
        for plan in [MemoryPlan { context: 46_080, ..PLAN }, MemoryPlan { parallel: 3, ..PLAN }] {
            assert!(plan.total() > available, "{plan}");
        }
    }

    #[test]
    fn what_stays_free_is_told() {
        // Its total is below the machine's memory, and over what may be planned of it.
        let text = said(&PLAN, true, 24_000 * MIB);
        assert!(PLAN.total() < 24_000 * MIB, "{text}");
        assert!(text.contains("24000 MiB, of which 1200 MiB stay free for the system: 22800 MiB"), "{text}");
    }

    #[test]
    fn a_cache_that_is_too_large_is_blamed() {
        let large = MemoryPlan { cache: 99 << 40, context: 32_768, ..PLAN };
        let text = said(&large, false, 32_000 * MIB);
        assert!(text.starts_with("the model with a prefix cache of 103809024 MiB does not fit"), "{text}");
        assert!(text.ends_with("\n--cache 4G would fit"), "{text}");
        let text = said(&large, true, 32_000 * MIB);
        assert!(text.ends_with("\n--cache 8G would fit"), "{text}");
    }

    #[test]
    fn what_helps_only_together_is_told_so() {
        let large = MemoryPlan { cache: 99 << 40, ..PLAN };
        let text = said(&large, true, 21_000 * MIB);
        assert!(text.ends_with("--max-context 65536 with --parallel 1 and --cache 0 would fit"), "{text}");
        let text = said(&PLAN, true, 19_000 * MIB);
        assert!(!text.contains("would fit"), "{text}");
    }

    #[test]
    fn one_is_no_plural() {
        assert!(said(&MemoryPlan { parallel: 1, ..PLAN }, true, 19_000 * MIB).contains("for 1 sequence does"));
    }
}

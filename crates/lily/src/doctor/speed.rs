//! How fast the model can be here: what the machine reads from memory in a second against what a token has to read.

use std::num::NonZero;

use anyhow::Result;
use lily_backend::MemoryPlan;
use lily_checkpoint::Checkpoint;
use lily_cpu::Simd;
use serde_json::json;

use crate::bench::{Cost, Machine};
use crate::device::Device;
use crate::doctor::report::Finding;

/// Caches of processors hold up to this much, and then the memory does not say how fast the model is.
const CACHES: u64 = 512 << 20;
/// Contexts of which to tell, and the longest.
const CONTEXTS: [usize; 2] = [512, 8192];

/// The most that can be expected of decoding.
pub(super) fn estimate(
    checkpoint: &Checkpoint,
    plan: &MemoryPlan,
    device: Device,
    threads: usize,
) -> Result<(Finding, ())> {
    let cost = Cost::new(&checkpoint.config, &checkpoint.weights, plan);
    let per_token = cost.decode_bytes(0, 1);
    if per_token < CACHES && plan.weights < CACHES {
        let says = "no estimate: a model so small runs from the processor's caches; lily bench measures it";
        return Ok((Finding::good(says).with("bytes_per_token", json!(per_token)), ()));
    }
    if device != Device::Cpu {
        let says = format!("no estimate for {}; lily bench measures it", device.name());
        return Ok((Finding::good(says).with("bytes_per_token", json!(per_token)), ()));
    }
    let threads = if threads == 0 { std::thread::available_parallelism().map_or(1, NonZero::get) } else { threads };
    let (machine, roofs) = Machine::measured(Simd::best(), threads)?;
    let read = roofs.read_gb_per_second * 1e9;
    let longest = plan.context.saturating_sub(1);
    let lengths: Vec<usize> = CONTEXTS.into_iter().filter(|&length| length < longest).chain([longest]).collect();
    let decode: Vec<(usize, f64)> =
        lengths.into_iter().map(|length| (length, read / cost.decode_bytes(length, 1) as f64)).collect();
    let rates: Vec<String> =
        decode.iter().map(|(length, rate)| format!("{rate:.1} tokens/s after {length} tokens")).collect();
    let says = format!(
        "decode at most {}: {:.1} GB/s are read, {:.2} GB a token",
        rates.join(", "),
        roofs.read_gb_per_second,
        per_token as f64 / 1e9
    );
    let prefill = roofs.peak_gmac_per_second * 1e9 / cost.layer_multiplications as f64;
    let figures: Vec<_> =
        decode.iter().map(|(length, rate)| json!({"context": length, "tokens_per_second": rate})).collect();
    let finding = Finding::good(says)
        .note(format!("prefill at most {prefill:.0} tokens/s by the processor's peak; lily bench measures both"))
        .with("bytes_per_token", json!(per_token))
        .with("machine", json!(machine))
        .with("decode_at_most", json!(figures))
        .with("prefill_at_most", json!(prefill));
    Ok((finding, ()))
}

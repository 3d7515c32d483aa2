//! How a plan is cut into command buffers.
//!
//! macOS ends a command buffer that keeps the GPU from drawing the screen for too long, be it one dispatch or many. So
//! no command buffer is to take longer than [`LONGEST`] on the slowest chip that Lily runs on, by an estimate that
//! needs no measurement: what it moves over that chip's memory bandwidth, and what it multiplies over that chip's
//! arithmetic. On a faster chip the command buffers are shorter, which costs nothing that can be noticed: the queue
//! holds the next one ready.

use crate::plan::Cost;

/// Seconds a command buffer may take by the estimate. Kills are reported from a few hundred milliseconds on.
const LONGEST: f64 = 0.05;

/// Bytes a second of the slowest chip, an M1, in practice.
const BANDWIDTH: f64 = 60e9;

/// Multiply-adds a second of an M1's 7 cores in kernels that reach half of what it can do.
const ARITHMETIC: f64 = 0.6e12;

/// Seconds a dispatch takes there at most, within what such an estimate can say.
fn seconds(cost: Cost) -> f64 {
    cost.bytes as f64 / BANDWIDTH + cost.multiply_adds as f64 / ARITHMETIC
}

/// The dispatches of a command buffer by their index in the plan, in stages with a barrier between each two.
pub(super) type Batch = Vec<Vec<usize>>;

/// Cuts `stages` into command buffers. A stage goes whole into one unless it is too much for one by itself: its
/// dispatches don't depend on each other, so it may be cut anywhere. A single dispatch is never cut.
pub(super) fn batches(stages: &[Vec<usize>], cost: impl Fn(usize) -> Cost) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    let mut filled = f64::INFINITY;
    for stage in stages.iter().filter(|stage| !stage.is_empty()) {
        let costs: Vec<f64> = stage.iter().map(|&dispatch| seconds(cost(dispatch))).collect();
        let whole: f64 = costs.iter().sum();
        if filled + whole <= LONGEST
            && let Some(batch) = batches.last_mut()
        {
            batch.push(stage.clone());
            filled += whole;
            continue;
        }
        batches.push(vec![Vec::new()]);
        filled = 0.0;
        for (&dispatch, seconds) in stage.iter().zip(costs) {
            if filled > 0.0 && filled + seconds > LONGEST {
                batches.push(vec![Vec::new()]);
                filled = 0.0;
            }
            if let Some(part) = batches.last_mut().and_then(|batch| batch.last_mut()) {
                part.push(dispatch);
            }
            filled += seconds;
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use lily_checkpoint::Config;
    use proptest::prelude::*;

    use super::*;
    use crate::{Outline, Step};

    /// Milliseconds of memory traffic.
    fn milliseconds(count: u64) -> Cost {
        Cost { bytes: count * 60_000_000, multiply_adds: 0 }
    }

    #[test]
    fn a_short_plan_is_one_command_buffer() {
        let stages = [vec![0], vec![1, 2], vec![3]];
        assert_eq!(batches(&stages, |_| milliseconds(12)), [stages.to_vec()]);
        assert!(batches(&[], |_| milliseconds(1)).is_empty());
    }

    #[test]
    fn cuts_fall_between_stages() {
        let stages = [vec![0], vec![1, 2], vec![3]];
        assert_eq!(batches(&stages, |_| milliseconds(20)), [vec![vec![0]], vec![vec![1, 2]], vec![vec![3]]]);
    }

    #[test]
    fn a_stage_that_is_too_much_is_cut_itself() {
        let stages = [vec![0], vec![1, 2, 3], vec![4]];
        let work = |dispatch| milliseconds(if dispatch == 2 { 500 } else { 20 });
        let expected = [vec![vec![0]], vec![vec![1]], vec![vec![2]], vec![vec![3], vec![4]]];
        assert_eq!(batches(&stages, work), expected);
    }

    #[test]
    fn arithmetic_counts() {
        let stages = [vec![0], vec![1]];
        let work = |_| Cost { bytes: 0, multiply_adds: 20_000_000_000 };
        assert_eq!(batches(&stages, work).len(), 2);
    }

    /// Field case 35: no single dispatch may be long, for it cannot be cut; and a token must not wait for many command buffers.
    #[test]
    fn steps_of_the_35b_are_cut_as_they_should() {
        let config = include_bytes!("../../../../../models/qwen3.6-35b-a3b/config.json");
        let config = Config::parse(config).expect("a sound config");
        for (step, context) in [
            (Step::Decode(1), 1024),
            (Step::Decode(8), 32_768),
            (Step::Prefill(2048), 4096),
            (Step::Prefill(2048), 262_144),
            // Eight chats, each with a long history and something new.
            (Step::Together(2048, 8), 131_072),
            (Step::Together(1024, 16), 131_072),
        ] {
            let plan = Outline::new(&config, step, context).expect("supported").plan;
            let costs: Vec<f64> = plan.dispatches.iter().map(|dispatch| seconds(dispatch.cost)).collect();
            let longest = costs.iter().copied().fold(0.0, f64::max);
            let count = batches(&plan.stages, |dispatch| plan.dispatches[dispatch].cost).len();
            println!("{step:?}, context {context}: {count} command buffers, longest dispatch {longest:.3} s");
            assert!(longest < 4.0 * LONGEST, "{step:?}, context {context}: {longest}");
            assert!(count as f64 <= 1.0 + 2.0 * costs.iter().sum::<f64>() / LONGEST);
            assert!(!matches!(step, Step::Decode(1)) || count == 1, "{count}");
        }
    }

    proptest! {
        #[test]
        fn nothing_is_lost_reordered_or_too_long(
            costs in proptest::collection::vec(proptest::collection::vec(0u64..70, 0..6), 0..30)
        ) {
            let mut next = 0;
            let stages: Vec<Vec<usize>> = costs.iter().map(|stage| stage.iter().map(|_| { next += 1; next - 1 }).collect()).collect();
            let flat: Vec<u64> = costs.concat();
            let batches = batches(&stages, |dispatch| milliseconds(flat[dispatch]));
            let order: Vec<usize> = batches.iter().flatten().flatten().copied().collect();
            prop_assert_eq!(order, (0..flat.len()).collect::<Vec<_>>());
            for batch in &batches {
                let dispatches = batch.concat();
                let cost: u64 = dispatches.iter().map(|&dispatch| flat[dispatch]).sum();
                prop_assert!(cost <= 50 || dispatches.iter().filter(|&&dispatch| flat[dispatch] > 0).count() == 1);
            }
        }
    }
}

//! What a step holds: one token of every sequence that generates, and prompt tokens as far as the step's time goes.
//!
//! Among prompts the shortest remainder goes first, which gives the least mean wait; but every fourth step goes first to
//! the prompt that has waited longest, so that a stream of short ones cannot hold up a long one for ever.
//!
//! On a slow machine few tokens fit into a step's time, and they cost much more each than many would: a chunk of a prompt
//! reads most of the experts whatever its length. There a backend that can pause reads a whole chunk in slices of that
//! time, and the step is between two of them. At the 35B on two AVX2 cores 128 tokens take 4.3 s and 512 take 12.1 s, which
//! is 0.3 s a layer.

use std::time::Duration;

/// How long a step may take, or a slice of a chunk while there is anybody else.
pub(crate) const STEP: Duration = Duration::from_millis(250);
/// Prompt tokens in a step before anything has been measured.
const FIRST_CHUNK: usize = 16;
/// Prompt tokens in a step at least. A step has costs that do not shrink with it, so that fewer would save little time,
/// and the prompt would never end.
const LEAST_CHUNK: usize = 8;
/// The same for a backend that is cut after whole grains, a GPU: it cannot pause, and below some hundred rows a chunk's time is that
/// of reading nearly all experts.
const LEAST_COARSE_CHUNK: usize = 512;
/// One step in so many that hold several prompts goes to the one that has waited longest.
const AGING: u64 = 4;

/// What a sequence needs, as far as scheduling goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    /// Prompt tokens read.
    pub(crate) position: usize,
    /// Prompt tokens to be read; 0 if the sequence generates.
    pub(crate) remaining: usize,
    /// The same of whichever is nearest its end: the sequence, or a request that waits for what it reads.
    pub(crate) urgency: usize,
    /// Prompt tokens until a snapshot is to be taken; no step reads past it.
    pub(crate) stop: usize,
    /// The step that last read of the prompt.
    pub(crate) served: u64,
}

impl Need {
    fn wanted(&self) -> usize {
        self.remaining.min(self.stop)
    }
}

/// What is to be done next.
#[derive(Debug, PartialEq)]
pub(crate) struct Plan {
    /// How many tokens each sequence gets in the next step.
    pub(crate) tokens: Vec<usize>,
    /// The sequence of which a chunk of so many tokens is begun, to be read in slices.
    pub(crate) chunk: Option<(usize, usize)>,
}

/// Decides what each step holds. It knows no clock: what steps took is told it.
pub(crate) struct Scheduler {
    /// The most prompt tokens in a step, `grain` at least.
    chunk: usize,
    /// Prompts are cut after multiples of this and nowhere else.
    grain: usize,
    /// A chunk can be read in slices.
    pausable: bool,
    pace: Pace,
    /// Steps so far for which several prompts competed, slices of a chunk not among them.
    contended: u64,
}

impl Scheduler {
    pub(crate) fn new(chunk: usize, grain: usize, pausable: bool) -> Self {
        Self { chunk: chunk.max(grain), grain, pausable: pausable && grain == 1, pace: Pace::default(), contended: 0 }
    }

    /// What is done next for these, in order of arrival; the sequence `under_way` is being read in slices. Where there is
    /// any need, somebody gets something.
    pub(crate) fn plan(&mut self, needs: &[Need], under_way: Option<usize>) -> Plan {
        let mut tokens: Vec<usize> = needs.iter().map(|need| usize::from(need.remaining == 0)).collect();
        let budget = self.budget();
        let mut order = self.order(needs, under_way);
        if let Some(index) = under_way {
            // Whoever has more before it waits for the end of that chunk.
            order.retain(|&other| needs[other].urgency < needs[index].urgency);
        } else if let Some(&first) = order.first().filter(|_| self.pausable) {
            let chunk = needs[first].wanted().min(self.chunk);
            if chunk > budget {
                return Plan { tokens, chunk: Some((first, chunk)) };
            }
        }
        let mut left = budget;
        for index in order {
            let need = &needs[index];
            let wanted = need.wanted();
            let cut = (need.position + left) / self.grain * self.grain;
            let share = if wanted <= left { wanted } else { cut.saturating_sub(need.position) };
            let scrap = share < wanted && share < LEAST_CHUNK && left < budget;
            if !scrap {
                tokens[index] = share;
                left -= share;
            }
        }
        Plan { tokens, chunk: None }
    }

    /// A step with `tokens` of prompts, or a chunk of so many, took `time`.
    pub(crate) fn measured(&mut self, tokens: usize, time: Duration) {
        self.pace.record(tokens, time);
    }

    fn budget(&self) -> usize {
        let tokens = self.pace.tokens_in(STEP).unwrap_or(FIRST_CHUNK);
        let tokens = if self.grain > 1 { rung(tokens.max(LEAST_COARSE_CHUNK)) } else { tokens.max(LEAST_CHUNK) };
        tokens.min(self.chunk)
    }

    /// The sequences with prompts to read but the one under way, in the order in which the budget is offered to them.
    fn order(&mut self, needs: &[Need], under_way: Option<usize>) -> Vec<usize> {
        let reads = |&index: &usize| needs[index].remaining > 0 && Some(index) != under_way;
        let mut order: Vec<usize> = (0..needs.len()).filter(reads).collect();
        order.sort_by_key(|&index| needs[index].urgency);
        // While a chunk is under way nobody's turn comes, so none is counted.
        if order.len() > 1 && under_way.is_none() {
            self.contended += 1;
            if self.contended.is_multiple_of(AGING) {
                let oldest = (0..order.len()).min_by_key(|&place| (needs[order[place]].served, order[place]));
                order[..=oldest.unwrap_or(0)].rotate_right(1);
            }
        }
        order
    }
}

/// The largest of 2, 3, 4, 6, 8, 12, 16, … up to `tokens`: a GPU keeps a recorded step for each number of rows that it has
/// seen, and a pace that wanders must not ask for another one each time.
fn rung(tokens: usize) -> usize {
    let power = 1 << tokens.max(2).ilog2();
    if tokens >= power + power / 2 { power + power / 2 } else { power }
}

/// A moving mean of what a prompt token costs, weighted by tokens, the last step as much as all before it. A step's fixed
/// costs are in it: chunks sized by it settle where the step as a whole takes its time.
#[derive(Default)]
struct Pace {
    tokens: f64,
    seconds: f64,
}

impl Pace {
    fn record(&mut self, tokens: usize, time: Duration) {
        self.tokens = 0.5 * self.tokens + tokens as f64;
        self.seconds = 0.5 * self.seconds + time.as_secs_f64();
    }

    /// `None` before the first measurement.
    fn tokens_in(&self, time: Duration) -> Option<usize> {
        // Nanoseconds keep a step too fast for the clock from giving infinity; the cast saturates.
        (self.tokens > 0.0).then(|| (time.as_secs_f64() * self.tokens / self.seconds.max(1e-9)) as usize)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::{LEAST_CHUNK, Need, Plan, Scheduler};

    fn prompt(remaining: usize) -> Need {
        Need { position: 0, remaining, urgency: remaining, stop: usize::MAX, served: 0 }
    }

    const GENERATES: Need = Need { position: 5, remaining: 0, urgency: 0, stop: usize::MAX, served: 0 };

    /// A scheduler that has seen `rate` tokens a second.
    fn paced(chunk: usize, rate: usize) -> Scheduler {
        let mut scheduler = Scheduler::new(chunk, 1, false);
        scheduler.measured(rate, Duration::from_secs(1));
        scheduler
    }

    fn pausable(chunk: usize, rate: usize) -> Scheduler {
        Scheduler { pausable: true, ..paced(chunk, rate) }
    }

    impl Scheduler {
        fn tokens(&mut self, needs: &[Need]) -> Vec<usize> {
            let Plan { tokens, chunk } = self.plan(needs, None);
            assert_eq!(chunk, None);
            tokens
        }
    }

    /// Gives the prompts among `needs` what was planned for them; says which got something.
    fn read(needs: &mut [Need], tokens: &[usize], step: u64) -> Vec<bool> {
        let serve = |(need, &tokens): (&mut Need, &usize)| {
            let served = need.remaining > 0 && tokens > 0;
            if served {
                let (position, remaining) = (need.position + tokens, need.remaining - tokens);
                *need = Need { position, remaining, urgency: remaining, served: step, ..*need };
            }
            served
        };
        needs.iter_mut().zip(tokens).map(serve).collect()
    }

    /// Runs until all prompts are read; gives for each the step in which that happened.
    fn simulate(scheduler: &mut Scheduler, needs: &mut [Need]) -> Vec<u64> {
        let mut done = vec![0; needs.len()];
        for step in 1.. {
            let tokens = scheduler.tokens(needs);
            for (done, served) in done.iter_mut().zip(read(needs, &tokens, step)) {
                *done = if served { step } else { *done };
            }
            if needs.iter().all(|need| need.remaining == 0) {
                break;
            }
        }
        done
    }

    #[test]
    fn a_prompt_gets_what_the_time_allows() {
        let mut fast = paced(512, 100_000);
        assert_eq!(fast.tokens(&[prompt(5000)]), [512]);
        assert_eq!(fast.tokens(&[prompt(5000), GENERATES]), [512, 1]);
        let mut slow = paced(512, 40);
        assert_eq!(slow.tokens(&[prompt(5000)]), [10]);
        assert_eq!(slow.tokens(&[prompt(5000), GENERATES]), [10, 1]);
        assert_eq!(paced(512, 1).tokens(&[prompt(5000), GENERATES]), [LEAST_CHUNK, 1]);
    }

    #[test]
    fn prompts_are_cut_after_whole_grains() {
        let mut scheduler = Scheduler::new(2048, 64, false);
        assert_eq!(scheduler.tokens(&[prompt(5000)]), [512], "no fewer");
        scheduler.measured(4000, Duration::from_secs(1));
        assert_eq!(scheduler.tokens(&[prompt(5000), GENERATES]), [768, 1], "1000 in a quarter of a second");
        assert_eq!(scheduler.tokens(&[prompt(5000), prompt(70)]), [640, 70]);
        assert_eq!(scheduler.tokens(&[prompt(5000), prompt(768)]), [0, 768]);
    }

    /// From a GPU as slow as can be to one as fast, whatever the pace of the last step.
    #[test]
    fn a_wandering_pace_gives_a_gpu_few_sizes_of_chunk() {
        let mut sizes: Vec<usize> = (1..1000)
            .map(|rate| {
                let mut scheduler = Scheduler::new(2048, 64, false);
                scheduler.measured(10 * rate, Duration::from_secs(1));
                scheduler.tokens(&[prompt(100_000)])[0]
            })
            .collect();
        sizes.dedup();
        assert_eq!(sizes, [512, 768, 1024, 1536, 2048]);
    }

    #[test]
    fn the_first_step_is_careful() {
        assert_eq!(Scheduler::new(512, 1, false).tokens(&[prompt(5000)]), [16]);
        assert_eq!(Scheduler::new(4, 1, false).tokens(&[prompt(5000)]), [4]);
    }

    /// What a step's time is too short for is read in slices, as much at once as a chunk holds.
    #[test]
    fn a_backend_that_can_pause_reads_whole_chunks() {
        let mut slow = pausable(512, 40);
        let begun = |tokens: &[usize], index, count| Plan { tokens: tokens.to_vec(), chunk: Some((index, count)) };
        assert_eq!(slow.plan(&[prompt(5000)], None), begun(&[0], 0, 512));
        assert_eq!(slow.plan(&[GENERATES, prompt(300)], None), begun(&[1, 0], 1, 300));
        let stopping = Need { stop: 70, ..prompt(5000) };
        assert_eq!(slow.plan(&[stopping, prompt(6000)], None), begun(&[0, 0], 0, 70));
        // Ten tokens are a step.
        assert_eq!(slow.tokens(&[prompt(10), prompt(5000)]), [10, 0]);
        // While one is under way, others go on, and prompts that are nearer their end.
        let needs = [prompt(5000), GENERATES, prompt(300), prompt(6000)];
        assert_eq!(slow.plan(&needs, Some(0)), Plan { tokens: vec![0, 1, 10, 0], chunk: None });
        assert_eq!(slow.plan(&needs[..1], Some(0)), Plan { tokens: vec![0], chunk: None });
        let mut fast = pausable(512, 100_000);
        assert_eq!(fast.tokens(&[prompt(5000), GENERATES]), [512, 1]);
        assert_eq!(Scheduler::new(512, 1, true).plan(&[prompt(5000)], None), begun(&[0], 0, 512));
        assert_eq!(Scheduler::new(512, 512, true).tokens(&[prompt(5000)]), [512]);
    }

    /// With a step of 100 ms plus 5 ms a token, 30 tokens take 250 ms.
    #[test]
    fn chunks_settle_at_the_time_of_a_step() {
        let mut scheduler = Scheduler::new(512, 1, false);
        let mut tokens = 0;
        for _ in 0..30 {
            tokens = scheduler.tokens(&[prompt(100_000), GENERATES])[0];
            scheduler.measured(tokens, Duration::from_millis(100 + 5 * tokens as u64));
        }
        assert!((27..=31).contains(&tokens), "{tokens}");
    }

    /// The last chunk of a prompt can be one token, whose cost is all fixed cost.
    #[test]
    fn a_tiny_chunk_does_not_spoil_the_pace() {
        let mut scheduler = paced(512, 10_000);
        scheduler.measured(1, Duration::from_millis(100));
        assert_eq!(scheduler.tokens(&[prompt(5000), GENERATES]), [512, 1]);
    }

    #[test]
    fn the_rest_of_a_budget_goes_to_the_next_prompt_unless_it_is_a_scrap() {
        let mut scheduler = paced(64, 1_000_000);
        assert_eq!(scheduler.tokens(&[prompt(1000), prompt(20)]), [44, 20]);
        assert_eq!(scheduler.tokens(&[prompt(1000), prompt(60)]), [0, 60]);
        assert_eq!(scheduler.tokens(&[prompt(62), prompt(60)]), [0, 60]);
    }

    #[test]
    fn short_prompts_overtake_long_ones() {
        let mut needs = [prompt(10_000), prompt(100), prompt(300)];
        let done = simulate(&mut paced(64, 1_000_000), &mut needs);
        assert!(done[1] <= 3 && done[2] <= 9, "{done:?}");
    }

    /// A long prompt that a short request waits for is as urgent as that one.
    #[test]
    fn who_is_waited_for_goes_as_first_as_who_waits() {
        let mut scheduler = paced(64, 1_000_000);
        let waited_for = Need { urgency: 100, ..prompt(10_000) };
        assert_eq!(scheduler.tokens(&[prompt(300), waited_for, prompt(5000)]), [0, 64, 0]);
        assert_eq!(scheduler.tokens(&[prompt(90), waited_for]), [64, 0]);
    }

    /// Whenever the short prompt is read, another takes its place.
    #[test]
    fn a_stream_of_short_prompts_does_not_starve_long_ones() {
        for grain in [1, 64] {
            let mut scheduler = Scheduler::new(64, grain, false);
            scheduler.measured(1_000_000, Duration::from_secs(1));
            let mut long = [prompt(640), prompt(640)];
            let ended = (1..=160).find(|&step| {
                let tokens = scheduler.tokens(&[long[0], long[1], Need { served: step, ..prompt(64) }]);
                read(&mut long, &tokens, step);
                long.iter().all(|need| need.remaining == 0)
            });
            assert!(ended.is_some_and(|step| step >= 60), "starved, or the short ones had no precedence: {ended:?}");
        }
    }

    /// However many slices a chunk takes.
    #[test]
    fn a_stream_of_short_chunks_does_not_starve_long_ones() {
        for slices in 1..=8 {
            let mut scheduler = pausable(64, 10);
            let mut long = prompt(640);
            let ended = (1..=160).find(|&turn| {
                // A short prompt is there that is as far from its end as the one before.
                let needs = [long, Need { served: turn, ..prompt(64) }, Need { served: turn, ..prompt(64) }];
                let (first, chunk) = scheduler.plan(&needs, None).chunk.expect("more than a step's time allows");
                for _ in 0..slices {
                    scheduler.plan(&needs, Some(first));
                }
                if first == 0 {
                    read(std::slice::from_mut(&mut long), &[chunk], turn);
                }
                long.remaining == 0
            });
            assert!(ended.is_some(), "starved by chunks of {slices} slices");
        }
    }

    #[test]
    fn equal_prompts_end_in_order_of_arrival() {
        let done = simulate(&mut paced(64, 1_000_000), &mut [prompt(640); 3]);
        assert!(done.is_sorted(), "{done:?}");
    }

    proptest! {
        #[test]
        fn any_plan_is_sound(
            needs in prop::collection::vec((0usize..5000, 0usize..5000, 1usize..5000, 0u64..50, 0usize..5000), 1..9),
            chunk in 1usize..600,
            rate in prop::option::of(0usize..100_000),
            grain in prop::sample::select(vec![1usize, 7, 64]),
            pausable: bool,
            under_way in prop::option::of(0usize..9),
            turns in 1usize..6,
        ) {
            let needs: Vec<Need> =
                needs.into_iter().map(|(position, remaining, stop, served, urgency)| {
                    // Snapshots lie where a prompt may be cut.
                    let stop = (position + stop).next_multiple_of(grain) - position;
                    Need { position, remaining, urgency: urgency.min(remaining), stop, served }
                }).collect();
            let under_way = under_way.filter(|&index| pausable && grain == 1 && needs.get(index).is_some_and(|n| n.remaining > 0));
            let mut scheduler = Scheduler::new(chunk, grain, pausable);
            if let Some(rate) = rate {
                scheduler.measured(rate, Duration::from_secs(1));
            }
            for _ in 0..turns {
                let Plan { tokens, chunk: begun } = scheduler.plan(&needs, under_way);
                prop_assert_eq!(tokens.len(), needs.len());
                let mut prefill = 0;
                for (index, (need, &tokens)) in needs.iter().zip(&tokens).enumerate() {
                    if need.remaining == 0 {
                        prop_assert_eq!(tokens, 1);
                        continue;
                    }
                    prop_assert!(tokens <= need.remaining.min(need.stop));
                    prop_assert!(tokens == 0 || Some(index) != under_way);
                    if tokens > 0 {
                        let end = need.position + tokens;
                        prop_assert!(tokens == need.remaining || end % grain == 0);
                    }
                    prefill += tokens;
                }
                prop_assert!(prefill <= chunk.max(grain));
                if let Some((index, tokens)) = begun {
                    prop_assert!(pausable && grain == 1 && under_way.is_none() && prefill == 0);
                    prop_assert!((1..=chunk.min(needs[index].remaining).min(needs[index].stop)).contains(&tokens));
                }
                let some = prefill > 0 || begun.is_some() || under_way.is_some();
                prop_assert!(some || needs.iter().all(|need| need.remaining == 0));
            }
        }
    }
}

//! What a step holds: one token of every sequence that generates, and prompt tokens as far as the step's time goes.
//!
//! Among prompts the shortest remainder goes first, which gives the least mean wait; but every fourth step goes first to
//! the prompt that has waited longest, so that a stream of short ones cannot hold up a long one for ever.

use std::time::Duration;

/// How long a step may take while others wait for its end: those that generate, in the queue, or with a prompt of their
/// own.
const SHARED_STEP: Duration = Duration::from_millis(250);
/// How long a step may take that nobody else waits for; a cancel takes effect after it, and who comes meanwhile
/// waits for its end. A chunk reads most of the experts
/// whatever its length, so that on a slow machine shorter steps would spend their time on little else.
const LONE_STEP: Duration = Duration::from_secs(4);
/// Prompt tokens in a step before anything has been measured.
const FIRST_CHUNK: usize = 16;
/// Prompt tokens in a step at least. A step has costs that do not shrink with it, so that fewer would save little time,
/// and the prompt would never end.
const LEAST_CHUNK: usize = 8;
/// One step in so many that hold several prompts goes to the one that has waited longest.
const AGING: u64 = 4;

/// What a sequence needs, as far as scheduling goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    /// Prompt tokens read.
    pub(crate) position: usize,
    /// Prompt tokens to be read; 0 if the sequence generates.
    pub(crate) remaining: usize,
    /// Prompt tokens until a snapshot is to be taken; no step reads past it.
    pub(crate) stop: usize,
    /// The step that last read of the prompt.
    pub(crate) served: u64,
}

/// Decides what each step holds. It knows no clock: what steps took is told it.
pub(crate) struct Scheduler {
    /// The most prompt tokens in a step.
    chunk: usize,
    /// Prompts are cut at multiples of `chunk` and nowhere else.
    uniform: bool,
    pace: Pace,
    /// Steps so far for which several prompts competed.
    contended: u64,
}

impl Scheduler {
    pub(crate) fn new(chunk: usize, uniform: bool) -> Self {
        Self { chunk, uniform, pace: Pace::default(), contended: 0 }
    }

    /// How many tokens each sequence gets in the next step; `needs` are in order of arrival, `waiting` requests are in
    /// the queue. Where there is any need, somebody gets something.
    pub(crate) fn plan(&mut self, needs: &[Need], waiting: usize) -> Vec<usize> {
        let mut tokens: Vec<usize> = needs.iter().map(|need| usize::from(need.remaining == 0)).collect();
        let budget = self.budget(needs.len() > 1 || waiting > 0);
        let mut left = budget;
        for index in self.order(needs) {
            let Need { position, remaining, stop, .. } = needs[index];
            let wanted = remaining.min(stop);
            let share = if self.uniform { wanted.min(self.chunk - position % self.chunk) } else { wanted.min(left) };
            let scrap = share < wanted && share < LEAST_CHUNK && left < budget && !self.uniform;
            if share <= left && !scrap {
                tokens[index] = share;
                left -= share;
            }
        }
        tokens
    }

    /// A step with `tokens` of prompts took `time`.
    pub(crate) fn measured(&mut self, tokens: usize, time: Duration) {
        self.pace.record(tokens, time);
    }

    fn budget(&self, shared: bool) -> usize {
        if self.uniform {
            return self.chunk;
        }
        let time = if shared { SHARED_STEP } else { LONE_STEP };
        self.pace.tokens_in(time).unwrap_or(FIRST_CHUNK).max(LEAST_CHUNK).min(self.chunk)
    }

    /// The sequences with prompts to read, in the order in which the budget is offered to them.
    fn order(&mut self, needs: &[Need]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..needs.len()).filter(|&index| needs[index].remaining > 0).collect();
        order.sort_by_key(|&index| needs[index].remaining);
        if order.len() > 1 {
            self.contended += 1;
            if self.contended.is_multiple_of(AGING) {
                let oldest = (0..order.len()).min_by_key(|&place| (needs[order[place]].served, order[place]));
                order[..=oldest.unwrap_or(0)].rotate_right(1);
            }
        }
        order
    }
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

    use super::{LEAST_CHUNK, Need, Scheduler};

    fn prompt(remaining: usize) -> Need {
        Need { position: 0, remaining, stop: usize::MAX, served: 0 }
    }

    const GENERATES: Need = Need { position: 5, remaining: 0, stop: usize::MAX, served: 0 };

    /// A scheduler that has seen `rate` tokens a second.
    fn paced(chunk: usize, rate: usize) -> Scheduler {
        let mut scheduler = Scheduler::new(chunk, false);
        scheduler.measured(rate, Duration::from_secs(1));
        scheduler
    }

    /// Gives the prompts among `needs` what was planned for them; says which got something.
    fn read(needs: &mut [Need], tokens: &[usize], step: u64) -> Vec<bool> {
        let serve = |(need, &tokens): (&mut Need, &usize)| {
            let served = need.remaining > 0 && tokens > 0;
            if served {
                let (position, remaining) = (need.position + tokens, need.remaining - tokens);
                *need = Need { position, remaining, served: step, ..*need };
            }
            served
        };
        needs.iter_mut().zip(tokens).map(serve).collect()
    }

    /// Runs until all prompts are read; gives for each the step in which that happened.
    fn simulate(scheduler: &mut Scheduler, needs: &mut [Need]) -> Vec<u64> {
        let mut done = vec![0; needs.len()];
        for step in 1.. {
            let tokens = scheduler.plan(needs, 0);
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
    fn a_lone_prompt_gets_the_whole_chunk_and_a_shared_one_what_the_time_allows() {
        let mut fast = paced(512, 100_000);
        assert_eq!(fast.plan(&[prompt(5000)], 0), [512]);
        assert_eq!(fast.plan(&[prompt(5000), GENERATES], 0), [512, 1]);
        let mut slow = paced(512, 40);
        assert_eq!(slow.plan(&[prompt(5000)], 0), [160]);
        assert_eq!(slow.plan(&[prompt(5000), GENERATES], 0), [10, 1]);
        assert_eq!(slow.plan(&[prompt(5000)], 3), [10]);
        assert_eq!(paced(512, 1).plan(&[prompt(5000), GENERATES], 0), [LEAST_CHUNK, 1]);
    }

    #[test]
    fn the_first_step_is_careful() {
        assert_eq!(Scheduler::new(512, false).plan(&[prompt(5000)], 0), [16]);
        assert_eq!(Scheduler::new(4, false).plan(&[prompt(5000)], 0), [4]);
    }

    /// With a step of 100 ms plus 5 ms a token, 30 tokens take 250 ms.
    #[test]
    fn chunks_settle_at_the_time_of_a_step() {
        let mut scheduler = Scheduler::new(512, false);
        let mut tokens = 0;
        for _ in 0..30 {
            tokens = scheduler.plan(&[prompt(100_000), GENERATES], 0)[0];
            scheduler.measured(tokens, Duration::from_millis(100 + 5 * tokens as u64));
        }
        assert!((27..=31).contains(&tokens), "{tokens}");
    }

    /// The last chunk of a prompt can be one token, whose cost is all fixed cost.
    #[test]
    fn a_tiny_chunk_does_not_spoil_the_pace() {
        let mut scheduler = paced(512, 10_000);
        scheduler.measured(1, Duration::from_millis(100));
        assert_eq!(scheduler.plan(&[prompt(5000), GENERATES], 0), [512, 1]);
    }

    #[test]
    fn the_rest_of_a_budget_goes_to_the_next_prompt_unless_it_is_a_scrap() {
        let mut scheduler = paced(64, 1_000_000);
        assert_eq!(scheduler.plan(&[prompt(1000), prompt(20)], 0), [44, 20]);
        assert_eq!(scheduler.plan(&[prompt(1000), prompt(60)], 0), [0, 60]);
        assert_eq!(scheduler.plan(&[prompt(62), prompt(60)], 0), [0, 60]);
    }

    #[test]
    fn short_prompts_overtake_long_ones() {
        let mut needs = [prompt(10_000), prompt(100), prompt(300)];
        let done = simulate(&mut paced(64, 1_000_000), &mut needs);
        assert!(done[1] <= 3 && done[2] <= 9, "{done:?}");
    }

    /// Whenever the short prompt is read, another takes its place.
    #[test]
    fn a_stream_of_short_prompts_does_not_starve_long_ones() {
        for uniform in [false, true] {
            let mut scheduler = Scheduler::new(64, uniform);
            scheduler.measured(1_000_000, Duration::from_secs(1));
            let mut long = [prompt(640), prompt(640)];
            let ended = (1..=160).find(|&step| {
                let tokens = scheduler.plan(&[long[0], long[1], Need { served: step, ..prompt(64) }], 5);
                read(&mut long, &tokens, step);
                long.iter().all(|need| need.remaining == 0)
            });
            assert!(ended.is_some_and(|step| step >= 60), "starved, or the short ones had no precedence: {ended:?}");
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
            needs in prop::collection::vec((0usize..5000, 0usize..5000, 1usize..5000, 0u64..50), 1..9),
            chunk in 1usize..600,
            rate in prop::option::of(0usize..100_000),
            waiting in 0usize..3,
            uniform: bool,
            turns in 1usize..6,
        ) {
            let needs: Vec<Need> =
                needs.into_iter().map(|(position, remaining, stop, served)| {
                    // A snapshot of a backend that depends on chunks lies at the end of one.
                    let stop = if uniform { (position + stop).next_multiple_of(chunk) - position } else { stop };
                    Need { position, remaining, stop, served }
                }).collect();
            let mut scheduler = Scheduler::new(chunk, uniform);
            if let Some(rate) = rate {
                scheduler.measured(rate, Duration::from_secs(1));
            }
            for _ in 0..turns {
                let tokens = scheduler.plan(&needs, waiting);
                prop_assert_eq!(tokens.len(), needs.len());
                let mut prefill = 0;
                for (need, &tokens) in needs.iter().zip(&tokens) {
                    if need.remaining == 0 {
                        prop_assert_eq!(tokens, 1);
                        continue;
                    }
                    prop_assert!(tokens <= need.remaining.min(need.stop));
                    if uniform && tokens > 0 {
                        let end = need.position + tokens;
                        prop_assert!(tokens == need.remaining || end % chunk == 0);
                    }
                    prefill += tokens;
                }
                prop_assert!(prefill <= chunk);
                prop_assert!(prefill > 0 || needs.iter().all(|need| need.remaining == 0));
            }
        }
    }
}

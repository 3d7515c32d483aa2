//! The draw of a token, and its reference implementation.
//!
//! Order, as the field has it: the mask, penalties and bias on the raw logits, temperature, top-k, top-p, min-p, one draw. The
//! kept set is described by the last kept candidate in (logit descending, id ascending) order, and the draw walks the kept
//! ids in ascending order, so that a device needs a threshold and a prefix sum but no sort of the vocabulary.

use std::borrow::Cow;
use std::cmp::Ordering;

use crate::TokenSet;
use crate::random::uniform;

/// How a token is chosen from the adjusted logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the largest logit; ties go to the lower id. Otherwise logits are divided by it.
    pub temperature: f32,
    /// Keep this many; 0 keeps all.
    pub top_k: usize,
    /// Keep the fewest most probable whose mass reaches this; 1 keeps all.
    pub top_p: f32,
    /// Keep those at least this share of the most probable; 0 keeps all.
    pub min_p: f32,
}

impl Sampling {
    /// The largest logit.
    pub const GREEDY: Self = Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0 };
}

/// A change to one token's logit before anything else: first the repetition penalty (a positive logit is divided by it,
/// a negative one multiplied), then the sum of bias and presence and frequency penalties.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adjustment {
    /// Whose logit.
    pub token: u32,
    /// 1 leaves it.
    pub repetition: f32,
    /// Added after.
    pub add: f32,
    /// What `add` will be at the sequence's next draw if this one takes the token.
    pub add_once_drawn: f32,
}

/// What penalties make of a token once it is drawn: the adjustment of one that had none. One that had one gets this
/// `repetition` and its own [`Adjustment::add_once_drawn`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalty {
    /// As [`Adjustment::repetition`].
    pub repetition: f32,
    /// As [`Adjustment::add`].
    pub add: f32,
}

/// Everything that decides one draw.
#[derive(Clone, Copy, Debug)]
pub struct Draw<'a> {
    /// Ids from here on are padding rows of the embedding and are never chosen.
    pub vocabulary: usize,
    /// How to choose.
    pub sampling: Sampling,
    /// The sequence's random stream.
    pub seed: u64,
    /// The place in that stream: the index of the generated token.
    pub counter: u64,
    /// One a token at most.
    pub adjustments: &'a [Adjustment],
    /// The only tokens that may be chosen; `None` if all may.
    pub allowed: Option<&'a TokenSet>,
    /// How the next draw's adjustments follow from these and the token, so that a device may go on before anybody has seen it;
    /// `None` if they stay as they are.
    pub penalty: Option<Penalty>,
    /// Report the chosen token's log-probability and those of this many most probable ones.
    pub top_logprobs: Option<usize>,
}

impl Draw<'_> {
    /// The most probable of the ids below `vocabulary`, and nothing about the others.
    #[must_use]
    pub const fn greedy(vocabulary: usize) -> Self {
        Self {
            vocabulary,
            sampling: Sampling::GREEDY,
            seed: 0,
            counter: 0,
            adjustments: &[],
            allowed: None,
            penalty: None,
            top_logprobs: None,
        }
    }

    /// The adjustments of the sequence's next draw if this one takes `token`; of a second time nothing is told.
    #[must_use]
    pub fn adjustments_once_drawn(&self, token: u32) -> Vec<Adjustment> {
        let mut adjustments = self.adjustments.to_vec();
        let Some(Penalty { repetition, add }) = self.penalty else { return adjustments };
        match adjustments.iter_mut().find(|change| change.token == token) {
            Some(change) => (change.repetition, change.add) = (repetition, change.add_once_drawn),
            None => adjustments.push(Adjustment { token, repetition, add, add_once_drawn: add }),
        }
        adjustments
    }
}

/// A token and its log-probability under the model itself: log-softmax of the raw logits over the vocabulary, before
/// mask, adjustments and temperature.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: u32,
    /// Natural logarithm.
    pub logprob: f32,
}

/// A drawn token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The token.
    pub token: u32,
    /// Its log-probability, if asked for.
    pub logprob: Option<f32>,
    /// The most probable tokens, best first; empty unless asked for.
    pub top: Vec<TokenLogprob>,
}

/// The reference draw from one row of raw logits; `None` if no logit that may be chosen is finite, which is the answer
/// [`Output::NoFiniteLogit`](crate::Output::NoFiniteLogit).
#[must_use]
pub fn sample(logits: &[f32], draw: &Draw<'_>) -> Option<Sample> {
    let raw = &logits[..draw.vocabulary.min(logits.len())];
    // A row of the 35B is a megabyte: it is copied only to be changed.
    let mut adjusted = Cow::Borrowed(raw);
    if let Some(allowed) = draw.allowed {
        mask(adjusted.to_mut(), allowed);
    }
    if !adjusted.iter().any(|logit| logit.is_finite()) {
        return None;
    }
    if !draw.adjustments.is_empty() {
        adjust(adjusted.to_mut(), draw.adjustments);
    }
    let token = if draw.sampling.temperature <= 0.0 {
        greedy(&adjusted)
    } else {
        stochastic(&adjusted, &draw.sampling, uniform(draw.seed, draw.counter))
    };
    let Some(count) = draw.top_logprobs else { return Some(Sample { token, logprob: None, top: Vec::new() }) };
    let normaliser = log_sum_exp(raw);
    let logprob = |token: u32| raw[token as usize] - normaliser;
    let top = largest(raw, count).into_iter().map(|token| TokenLogprob { token, logprob: logprob(token) }).collect();
    Some(Sample { token, logprob: Some(logprob(token)), top })
}

/// Makes what is not allowed NaN, which nothing below ever chooses.
fn mask(logits: &mut [f32], allowed: &TokenSet) {
    let words = allowed.words().iter().copied().chain(std::iter::repeat(0));
    for (logits, word) in logits.chunks_mut(32).zip(words) {
        match word {
            0 => logits.fill(f32::NAN),
            u32::MAX => {}
            _ => {
                let bits = (0..32).map(|bit| word >> bit & 1 == 1);
                logits.iter_mut().zip(bits).filter(|(_, allowed)| !allowed).for_each(|(logit, _)| *logit = f32::NAN);
            }
        }
    }
}

fn adjust(logits: &mut [f32], adjustments: &[Adjustment]) {
    for change in adjustments {
        if let Some(logit) = logits.get_mut(change.token as usize) {
            *logit = if *logit > 0.0 { *logit / change.repetition } else { *logit * change.repetition } + change.add;
        }
    }
}

fn greedy(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, &logit) in logits.iter().enumerate() {
        if logit > logits[best] || logits[best].is_nan() {
            best = id;
        }
    }
    best as u32
}

fn stochastic(logits: &[f32], sampling: &Sampling, random: f32) -> u32 {
    let peak = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |token: u32| f64::from((logits[token as usize] - peak) / sampling.temperature).exp();
    let mut kept = if sampling.top_k > 0 {
        largest(logits, sampling.top_k)
    } else if sampling.top_p < 1.0 {
        most_probable(logits, sampling.top_p, &weight)
    } else {
        (0..logits.len() as u32).filter(|&token| !logits[token as usize].is_nan()).collect()
    };
    if sampling.top_k > 0 && sampling.top_p < 1.0 {
        let total: f64 = kept.iter().map(|&token| weight(token)).sum();
        kept.truncate(prefix_reaching(&kept, f64::from(sampling.top_p) * total, &weight).unwrap_or(kept.len()));
    }
    // The most probable token has weight 1, so that min-p is a bound on the weight itself.
    kept.retain(|&token| weight(token) >= f64::from(sampling.min_p));
    kept.sort_unstable();
    let total: f64 = kept.iter().map(|&token| weight(token)).sum();
    let mut left = f64::from(random) * total;
    for &token in &kept {
        left -= weight(token);
        if left < 0.0 {
            return token;
        }
    }
    // Rounding can leave a hair; the last token with any weight takes it.
    kept.iter().rev().copied().find(|&token| weight(token) > 0.0).unwrap_or_else(|| greedy(logits))
}

/// The `count` tokens of largest logit, best first; ties go to the lower id, NaN is never among them.
fn largest(logits: &[f32], count: usize) -> Vec<u32> {
    // Without NaN this is a total order, in which 0.0 and -0.0 are equal as they are for `greedy`.
    let descending = |a: u32, b: u32| logits[b as usize].partial_cmp(&logits[a as usize]).unwrap_or(Ordering::Equal);
    let order = |&a: &u32, &b: &u32| descending(a, b).then(a.cmp(&b));
    let mut ids: Vec<u32> = (0..logits.len() as u32).filter(|&token| !logits[token as usize].is_nan()).collect();
    if count < ids.len() {
        if count > 0 {
            ids.select_nth_unstable_by(count - 1, order);
        }
        ids.truncate(count);
    }
    ids.sort_unstable_by(order);
    ids
}

/// The fewest most probable tokens whose weight reaches `share` of all, best first. Most often a few hundred hold it, so
/// that sorting the whole vocabulary is the last resort.
fn most_probable(logits: &[f32], share: f32, weight: &impl Fn(u32) -> f64) -> Vec<u32> {
    let total: f64 = (0..logits.len() as u32).filter(|&token| !logits[token as usize].is_nan()).map(weight).sum();
    let mut count = 256;
    loop {
        let mut ids = largest(logits, count);
        if let Some(length) = prefix_reaching(&ids, f64::from(share) * total, weight) {
            ids.truncate(length);
            return ids;
        }
        if count >= logits.len() {
            return ids;
        }
        count *= 8;
    }
}

/// How many of `ids` it takes to reach `mass`, at least one; `None` if all together do not.
fn prefix_reaching(ids: &[u32], mass: f64, weight: &impl Fn(u32) -> f64) -> Option<usize> {
    let mut sum = 0.0;
    for (index, &token) in ids.iter().enumerate() {
        sum += weight(token);
        if sum >= mass {
            return Some(index + 1);
        }
    }
    None
}

fn log_sum_exp(logits: &[f32]) -> f32 {
    let peak = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().filter(|logit| !logit.is_nan()).map(|&logit| f64::from(logit - peak).exp()).sum();
    (f64::from(peak) + sum.ln()) as f32
}

#[cfg(test)]
mod tests {
    use super::{Adjustment, Draw, Sampling, sample};
    use crate::TokenSet;
    use proptest::prelude::*;

    fn draw(sampling: Sampling) -> Draw<'static> {
        Draw { sampling, seed: 1, ..Draw::greedy(usize::MAX) }
    }

    fn histogram(logits: &[f32], draw: &Draw<'_>, draws: u64) -> Vec<f64> {
        let mut counts = vec![0.0; logits.len()];
        for counter in 0..draws {
            let sample = sample(logits, &Draw { counter, ..*draw }).expect("finite");
            counts[sample.token as usize] += 1.0 / draws as f64;
        }
        counts
    }

    #[test]
    fn greedy_takes_the_first_of_equals_and_never_padding() {
        let logits = [1.0, 3.0, 3.0, 9.0];
        let greedy = Draw { vocabulary: 3, ..draw(Sampling::GREEDY) };
        assert_eq!(sample(&logits, &greedy).expect("finite").token, 1);
    }

    #[test]
    fn without_a_finite_logit_there_is_no_token() {
        assert_eq!(sample(&[f32::NAN, f32::NEG_INFINITY], &draw(Sampling::GREEDY)), None);
        assert_eq!(sample(&[f32::NAN, 1.0], &Draw { vocabulary: 1, ..draw(Sampling::GREEDY) }), None);
    }

    #[test]
    fn both_zeros_are_equal() {
        let warm = Sampling { temperature: 1.0, top_k: 1, ..Sampling::GREEDY };
        for sampling in [Sampling::GREEDY, warm, Sampling { top_k: 0, top_p: 0.1, ..warm }] {
            assert_eq!(sample(&[-1.0, -0.0, 0.0], &draw(sampling)).expect("finite").token, 1, "{sampling:?}");
        }
    }

    #[test]
    fn one_nan_is_passed_over() {
        let warm = Sampling { temperature: 1.0, ..Sampling::GREEDY };
        for sampling in [Sampling::GREEDY, warm, Sampling { top_k: 2, ..warm }, Sampling { top_p: 0.9, ..warm }] {
            assert_ne!(sample(&[f32::NAN, 1.0, 0.5], &draw(sampling)).expect("finite").token, 0, "{sampling:?}");
        }
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        let logits = [0.0, 1.0, 2.0, -1.0];
        let warm = draw(Sampling { temperature: 0.7, ..Sampling::GREEDY });
        let seen = histogram(&logits, &warm, 20_000);
        let total: f64 = logits.iter().map(|&logit| f64::from(logit / 0.7).exp()).sum();
        for (logit, seen) in logits.iter().zip(seen) {
            let expected = f64::from(logit / 0.7).exp() / total;
            assert!((seen - expected).abs() < 0.015, "{seen} against {expected}");
        }
    }

    #[test]
    fn top_k_top_p_and_min_p_cut_the_tail() {
        // Probabilities 0.4, 0.3, 0.2, 0.1.
        let logits: Vec<f32> = [0.4f32, 0.3, 0.2, 0.1].iter().map(|p| p.ln()).collect();
        let base = Sampling { temperature: 1.0, ..Sampling::GREEDY };
        let kept = |sampling| histogram(&logits, &draw(sampling), 2_000).iter().filter(|&&share| share > 0.0).count();
        assert_eq!(kept(base), 4);
        assert_eq!(kept(Sampling { top_k: 2, ..base }), 2);
        assert_eq!(kept(Sampling { top_p: 0.65, ..base }), 2);
        assert_eq!(kept(Sampling { top_p: 0.75, ..base }), 3);
        assert_eq!(kept(Sampling { min_p: 0.6, ..base }), 2);
        // Within the top 3 the masses are 4/9, 3/9, 2/9.
        assert_eq!(kept(Sampling { top_k: 3, top_p: 0.75, ..base }), 2);
        assert_eq!(kept(Sampling { top_p: 0.0, ..base }), 1);
    }

    #[test]
    fn adjustments_come_first() {
        let logits = [2.0, 1.5, -1.0];
        let change = |token, repetition, add| [Adjustment { token, repetition, add, add_once_drawn: add }];
        let chosen = |adjustments: &[Adjustment]| {
            sample(&logits, &Draw { adjustments, ..draw(Sampling::GREEDY) }).expect("finite").token
        };
        assert_eq!(chosen(&change(0, 2.0, 0.0)), 1);
        assert_eq!(chosen(&change(2, 1.0, 4.0)), 2);
        assert_eq!(chosen(&change(2, 0.5, 2.4)), 0);
        assert_eq!(chosen(&change(99, 2.0, 0.0)), 0);
    }

    #[test]
    fn logprobs_are_the_models_own() {
        let logits = [1.0, 2.0, 3.0, 50.0];
        let adjusted = [Adjustment { token: 2, repetition: 1.0, add: -100.0, add_once_drawn: -100.0 }];
        let asked = Draw { vocabulary: 3, adjustments: &adjusted, top_logprobs: Some(2), ..draw(Sampling::GREEDY) };
        let sample = sample(&logits, &asked).expect("finite");
        let normaliser = (1f32.exp() + 2f32.exp() + 3f32.exp()).ln();
        assert_eq!(sample.token, 1);
        assert!((sample.logprob.expect("asked") - (2.0 - normaliser)).abs() < 1e-6);
        assert_eq!(sample.top.iter().map(|top| top.token).collect::<Vec<_>>(), [2, 1]);
        assert!((sample.top[0].logprob - (3.0 - normaliser)).abs() < 1e-6);
    }

    #[test]
    fn a_mask_leaves_its_tokens_and_the_logprobs_of_all() {
        let logits = [3.0, 1.0, 2.0, 2.0];
        let allowed: TokenSet = [1, 3].into_iter().collect();
        let masked = Draw { allowed: Some(&allowed), top_logprobs: Some(1), ..draw(Sampling::GREEDY) };
        let greedy = sample(&logits, &masked).expect("finite");
        let free = sample(&logits, &Draw { top_logprobs: Some(4), ..draw(Sampling::GREEDY) }).expect("finite");
        assert_eq!((greedy.token, greedy.top[0].token), (3, 0));
        let own = free.top.iter().find(|top| top.token == 3).map(|top| top.logprob);
        assert_eq!(greedy.logprob, own, "the mask is no part of the model");

        let warm = Sampling { temperature: 1.0, ..Sampling::GREEDY };
        let seen = histogram(&logits, &Draw { allowed: Some(&allowed), ..draw(warm) }, 20_000);
        let share = 1f64 / (1.0 + 1f64.exp());
        assert!((seen[1] - share).abs() < 0.015, "{seen:?}");
        assert_eq!(seen[0] + seen[2], 0.0);
        // A bias cannot bring back what is not allowed.
        let biased = [Adjustment { token: 0, repetition: 1.0, add: 100.0, add_once_drawn: 100.0 }];
        assert_eq!(sample(&logits, &Draw { adjustments: &biased, ..masked }).expect("finite").token, 3);
    }

    #[test]
    fn without_a_finite_logit_that_is_allowed_there_is_no_token() {
        let allowed: TokenSet = [1].into_iter().collect();
        for (logits, allowed) in [(&[0.0, f32::NAN][..], &allowed), (&[0.0], &allowed), (&[0.0], &TokenSet::default())]
        {
            assert_eq!(sample(logits, &Draw { allowed: Some(allowed), ..draw(Sampling::GREEDY) }), None);
        }
    }

    proptest! {
        /// A draw under a mask is the draw from the allowed logits alone.
        #[test]
        fn a_masked_draw_is_a_draw_from_what_is_allowed(
            logits in prop::collection::vec(-50f32..50.0, 1..400),
            mask in prop::collection::vec(prop::bool::weighted(0.3), 400),
            temperature in 0f32..3.0,
            top_k in 0usize..50,
            top_p in 0f32..=1.0,
            min_p in 0f32..=1.0,
            seed: u64,
        ) {
            let allowed: TokenSet = (0..400).filter(|&token| mask[token as usize]).collect();
            let (ids, left): (Vec<u32>, Vec<f32>) =
                (0..).zip(&logits).filter(|(id, _)| allowed.contains(*id)).map(|(id, logit)| (id, *logit)).unzip();
            let alone = Draw { seed, ..draw(Sampling { temperature, top_k, top_p, min_p }) };
            let masked = sample(&logits, &Draw { allowed: Some(&allowed), ..alone }).map(|sample| sample.token);
            prop_assert_eq!(masked, sample(&left, &alone).map(|sample| ids[sample.token as usize]));
        }

        /// Whatever the logits and parameters, the token is in the vocabulary, among the top k, and repeatable.
        #[test]
        fn any_draw_is_valid(
            logits in prop::collection::vec(-50f32..50.0, 1..400),
            temperature in 0f32..3.0,
            top_k in 0usize..50,
            top_p in 0f32..=1.0,
            min_p in 0f32..=1.0,
            seed: u64,
            counter: u64,
        ) {
            let sampling = Sampling { temperature, top_k, top_p, min_p };
            let request = Draw { seed, counter, top_logprobs: Some(3), ..draw(sampling) };
            let first = sample(&logits, &request).expect("finite");
            prop_assert!((first.token as usize) < logits.len());
            let better = logits.iter().filter(|&&logit| logit > logits[first.token as usize]).count();
            prop_assert!(temperature > 0.0 || better == 0);
            prop_assert!(top_k == 0 || better < top_k);
            prop_assert!(first.logprob.expect("asked") <= 1e-5);
            prop_assert_eq!(first, sample(&logits, &request).expect("finite"));
        }
    }
}

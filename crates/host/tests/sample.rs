//! `sample_blocks.metal`, `sample_final.metal`, `advance.metal`: the draw on the device against `lily_backend::sample`.

mod common;

use common::{Argument, QWEN, Random, Shape, TINY, full_size, launch};
use lily_backend::{Adjustment, Draw, Penalty, Sampling, TokenSet, sample};

const NONE: u32 = u32::MAX;
const BLOCK: usize = 1024;
const RING: usize = 64;
/// Log-probabilities are differences of fp32 numbers up to about 100.
const LOGPROB: f32 = 3e-5;

/// One draw: the logits of its row, the order, and the bits of a mask.
struct Case {
    logits: Vec<f32>,
    vocabulary: usize,
    sampling: Sampling,
    seed: u64,
    counter: u64,
    adjustments: Vec<Adjustment>,
    /// The token drawn last, if the adjustments are still without it, and what it makes of them.
    unseen: Option<(u32, Penalty)>,
    /// Whether each token is allowed.
    mask: Option<Vec<bool>>,
}

impl Case {
    fn new(logits: Vec<f32>, sampling: Sampling) -> Self {
        let vocabulary = logits.len();
        Self { logits, vocabulary, sampling, seed: 1, counter: 0, adjustments: Vec::new(), unseen: None, mask: None }
    }

    /// What the reference draws.
    fn expected(&self) -> Option<(u32, f32)> {
        let mask = self.mask.as_ref();
        let allowed: Option<TokenSet> =
            mask.map(|mask| (0..).zip(mask).filter(|&(_, &allowed)| allowed).map(|(token, _)| token).collect());
        let before = Draw {
            vocabulary: self.vocabulary,
            sampling: self.sampling,
            seed: self.seed,
            counter: self.counter,
            adjustments: &self.adjustments,
            allowed: allowed.as_ref(),
            penalty: self.unseen.map(|(_, penalty)| penalty),
            top_logprobs: Some(0),
        };
        let seen = self.unseen.map(|(token, _)| before.adjustments_once_drawn(token));
        let draw = Draw { adjustments: seen.as_ref().unwrap_or(&self.adjustments), ..before };
        let sample = sample(&self.logits, &draw)?;
        Some((sample.token, sample.logprob?))
    }
}

/// Draws all cases in one launch of each kernel; token and log-probability of each.
fn draw_all(vocabulary: usize, cases: &[Case]) -> Vec<(u32, f32)> {
    let shape = Shape { vocabulary, ..TINY };
    let (blocks, words) = (vocabulary.div_ceil(BLOCK), vocabulary.div_ceil(32));
    let slots = cases.len() + 1;
    let (mut logits, mut draws, mut adjustments) = (Vec::new(), Vec::new(), Vec::<[u32; 4]>::new());
    let mut mask = vec![0u32; cases.len() * words];
    let mut sequences = vec![[9, 1, 0, 77]; slots];
    for (index, case) in cases.iter().enumerate() {
        assert_eq!(case.logits.len(), vocabulary);
        logits.extend_from_slice(&case.logits);
        let mut changes = case.adjustments.clone();
        changes.sort_by_key(|change| change.token);
        let slot = slots - 1 - index; // not the draw's own number
        let Sampling { temperature, top_k, top_p, min_p } = case.sampling;
        let (first, count) = (adjustments.len() as u32, changes.len() as u32);
        draws.push([
            slot as u32,
            case.vocabulary as u32,
            temperature.to_bits(),
            top_k as u32,
            top_p.to_bits(),
            min_p.to_bits(),
            case.seed as u32,
            (case.seed >> 32) as u32,
            (case.counter >> 32) as u32,
            first,
            count,
            u32::from(case.mask.is_some()),
            u32::from(case.unseen.is_some()),
            case.unseen.map_or(0, |(_, penalty)| penalty.repetition.to_bits()),
            case.unseen.map_or(0, |(_, penalty)| penalty.add.to_bits()),
        ]);
        sequences[slot][2] = case.counter as u32;
        sequences[slot][3] = case.unseen.map_or(77, |(token, _)| token);
        adjustments.extend(changes.iter().map(|c| {
            let [repetition, add, once_drawn] = [c.repetition, c.add, c.add_once_drawn].map(f32::to_bits);
            [c.token, repetition, add, once_drawn]
        }));
        for token in (0..vocabulary).filter(|&token| case.mask.as_ref().is_some_and(|mask| mask[token])) {
            mask[index * words + token / 32] |= 1 << (token % 32);
        }
    }
    // A draw that pads, and something to bind where there are no adjustments.
    draws.push([NONE; 15]);
    adjustments.push([0; 4]);
    logits.extend(vec![1.0; vocabulary]);
    let mut keys = vec![NONE; draws.len() * blocks * BLOCK];
    let mut summaries = vec![[NONE; 5]; draws.len() * blocks];
    launch(
        "sample_blocks",
        &shape,
        &mut [
            Argument::read(&logits),
            Argument::read(&draws),
            Argument::read(&adjustments),
            Argument::read(&mask),
            Argument::read(&sequences),
            Argument::write(&mut keys),
            Argument::write(&mut summaries),
        ],
        &[],
        [blocks as u32, draws.len() as u32, 1],
        256,
    );
    let mut drawn = vec![[0u32; 2]; slots * RING];
    let before = sequences.clone();
    launch(
        "sample_final",
        &shape,
        &mut [
            Argument::read(&logits),
            Argument::read(&keys),
            Argument::read(&summaries),
            Argument::read(&draws),
            Argument::write(&mut sequences),
            Argument::write(&mut drawn),
        ],
        &[],
        [draws.len() as u32, 1, 1],
        512,
    );
    assert_eq!(sequences[0], before[0], "no draw is of slot 0");
    let outcome = |draw: &[u32; 15]| {
        let slot = draw[0] as usize;
        let [token, logprob] = drawn[slot * RING + sequences[slot][2] as usize % RING];
        assert_eq!(sequences[slot], [9, 1, before[slot][2], token], "only the token of a sequence changes");
        (token, f32::from_bits(logprob))
    };
    draws[..cases.len()].iter().map(outcome).collect()
}

/// Asserts that each case draws what the reference draws.
fn check(vocabulary: usize, cases: &[Case]) {
    for (index, (case, (token, logprob))) in cases.iter().zip(draw_all(vocabulary, cases)).enumerate() {
        let what = format!(
            "case {index}: {:?}, vocabulary {}, seed {}, counter {}",
            case.sampling, case.vocabulary, case.seed, case.counter
        );
        match case.expected() {
            None => assert_eq!(token, NONE, "{what}"),
            Some((expected, expected_logprob)) => {
                assert_eq!(token, expected, "{what}");
                let error = (logprob - expected_logprob).abs();
                assert!(error <= LOGPROB, "{what}: logprob {logprob} instead of {expected_logprob}");
            }
        }
    }
}

/// Logits of several kinds: smooth, in steps with many ties, of both zeros, with NaN and −∞.
fn logits(random: &mut Random, vocabulary: usize) -> Vec<f32> {
    let kind = random.below(5);
    let scale = [1.0, 6.0, 25.0][random.below(3)];
    let mut logits = random.floats(vocabulary, scale);
    match kind {
        0 => logits.iter_mut().for_each(|x| *x = (*x * 2.0).round() / 2.0),
        1 => logits.iter_mut().for_each(|x| *x = [0.0, -0.0, 1.0, -1.0][(x.to_bits() % 4) as usize]),
        2 => logits.iter_mut().filter(|x| x.to_bits() % 3 == 0).for_each(|x| *x = f32::NAN),
        3 => logits.iter_mut().filter(|x| x.to_bits() % 7 == 0).for_each(|x| *x = f32::NEG_INFINITY),
        _ => {}
    }
    logits
}

fn case(random: &mut Random, vocabulary: usize) -> Case {
    let sampling = Sampling {
        temperature: [0.0, 0.3, 0.7, 1.0, 2.0][random.below(5)],
        top_k: [0, 1, 5, 20, 300, vocabulary + 5][random.below(6)],
        top_p: [1.0, 0.95, 0.5, 0.1, 0.0][random.below(5)],
        min_p: [0.0, 0.0, 0.05, 1.0][random.below(4)],
    };
    let count = random.below(60);
    let adjustments: Vec<Adjustment> = random
        .permutation(vocabulary)
        .into_iter()
        .take(count)
        .map(|token| {
            let [add, add_once_drawn] = [random.float() * 4.0, random.float() * 4.0];
            Adjustment { token, repetition: 1.25 + random.float() * 0.75, add, add_once_drawn }
        })
        .collect();
    let mask = (random.below(3) == 0).then(|| {
        let every = [1, 2, 100, vocabulary][random.below(4)];
        let first = random.below(every);
        (0..vocabulary).map(|token| token % every == first).collect()
    });
    // One that has an adjustment, or any.
    let drawn = match adjustments.get(random.below(2 * adjustments.len() + 1)) {
        Some(change) => change.token,
        None => random.below(vocabulary) as u32,
    };
    let penalty = Penalty { repetition: 1.5, add: random.float() * 4.0 };
    Case {
        unseen: (random.below(2) == 0).then_some((drawn, penalty)),
        vocabulary: [vocabulary, vocabulary - 3, vocabulary / 2, 1][random.below(4)],
        logits: logits(random, vocabulary),
        sampling,
        seed: random.bits(),
        counter: random.bits() >> random.below(64),
        adjustments,
        mask,
    }
}

#[test]
fn draws_what_the_reference_draws() {
    for (vocabulary, rounds) in [(40, 8), (1000, 8), (6144, 3)] {
        let mut random = Random::new(vocabulary as u64);
        for _ in 0..rounds {
            let cases: Vec<Case> = (0..5).map(|_| case(&mut random, vocabulary)).collect();
            check(vocabulary, &cases);
        }
    }
}

#[test]
fn draws_from_the_whole_vocabulary() {
    if full_size() {
        let mut random = Random::new(7);
        let samplings = [
            Sampling { temperature: 1.0, top_k: 20, top_p: 0.95, min_p: 0.0 },
            Sampling { temperature: 1.0, top_k: 0, top_p: 0.9, min_p: 0.0 },
            Sampling { temperature: 0.6, top_k: 0, top_p: 1.0, min_p: 0.01 },
        ];
        let of = |sampling| Case { vocabulary: 248_077, ..Case::new(random.floats(QWEN.vocabulary, 12.0), sampling) };
        let cases: Vec<Case> = samplings.map(of).into();
        check(QWEN.vocabulary, &cases);
    }
}

#[test]
fn equal_logits() {
    let warm = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 };
    let samplings = [
        Sampling::GREEDY,
        warm,
        Sampling { top_k: 7, ..warm },
        Sampling { top_k: 1500, top_p: 0.5, ..warm },
        Sampling { top_p: 0.001, ..warm },
        Sampling { min_p: 1.0, ..warm },
    ];
    for counter in 0..4 {
        let of = |sampling| Case { counter, ..Case::new(vec![0.25; 3000], sampling) };
        check(3000, &samplings.map(of));
    }
}

/// Without a finite logit, or with nothing that the mask allows, the token says so, and the others are drawn all the same.
#[test]
fn no_token_can_be_drawn() {
    let warm = Sampling { temperature: 1.0, top_k: 20, top_p: 0.95, min_p: 0.0 };
    let mut last = vec![f32::NAN; 2000];
    last[1999] = 3.0;
    let mut few = vec![f32::NEG_INFINITY; 2000];
    few[5] = 1.0;
    let all_but_5 = (0..2000).map(|token| token != 5).collect();
    let cases = [
        Case::new(vec![f32::NAN; 2000], Sampling::GREEDY),
        Case::new(vec![f32::NEG_INFINITY; 2000], warm),
        Case { vocabulary: 1999, ..Case::new(last.clone(), warm) },
        Case::new(last, warm),
        Case { mask: Some(vec![false; 2000]), ..Case::new(vec![1.0; 2000], warm) },
        Case { mask: Some(all_but_5), ..Case::new(few, warm) },
        Case::new((0..2000).map(|token| token as f32 / 100.0).collect(), warm),
    ];
    let tokens: Vec<u32> = draw_all(2000, &cases).iter().map(|drawn| drawn.0).collect();
    assert_eq!(tokens[..6], [NONE, NONE, NONE, 1999, NONE, NONE]);
    for (case, token) in cases.iter().zip(tokens) {
        assert_eq!(case.expected().map_or(NONE, |expected| expected.0), token);
    }
}

#[test]
fn sequences_advance() {
    let segments = [[2, 0, 5, 0], [NONE, 0, 0, NONE], [0, 5, 1, NONE]];
    let mut sequences = [[10, 1, 3, 8], [1, 0, 1, 1], [NONE - 9, 0, 7, 2]];
    let mut buffers = [Argument::read(&segments), Argument::write(&mut sequences)];
    launch("advance", &TINY, &mut buffers, &[3], [1, 1, 1], 64);
    assert_eq!(sequences, [[11, 0, 3, 8], [1, 0, 1, 1], [NONE - 4, 1, 8, 2]]);
    // More than a threadgroup has threads.
    for count in [64, 65, 130] {
        let segments: Vec<[u32; 4]> = (0..count).map(|slot| [slot, 2 * slot, 2, slot % 2 * NONE]).collect();
        let mut sequences: Vec<[u32; 4]> = (0..count + 1).map(|slot| [slot, 0, 5, slot]).collect();
        let mut buffers = [Argument::read(&segments), Argument::write(&mut sequences)];
        launch("advance", &TINY, &mut buffers, &[count], [count.div_ceil(64), 1, 1], 64);
        for (slot, sequence) in (0..).zip(&sequences[..count as usize]) {
            assert_eq!(*sequence, [slot + 2, 1, 6 - slot % 2, slot]);
        }
        assert_eq!(sequences[count as usize], [count, 0, 5, count], "no segment's");
    }
}

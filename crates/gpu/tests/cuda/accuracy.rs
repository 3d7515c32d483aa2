//! Logits of the 35B's shapes with random weights: the GPU's two ways through the model and the CPU backend, each against a
//! reference that rounds less than all of them.
//!
//! Random weights spread what rounding changes from layer to layer, and no bound holds for all of them. But the CPU backend, which
//! rounds what 4-bit weights meet to 8 bits, shows how far: the GPU, which keeps 11 bits or 24, has to be nearer to the truth
//! than the CPU, and so no farther from the CPU than both errors together.

use std::iter;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use lily_backend::{Backend, Want, uniform};
use lily_cpu::CpuBackend;

use crate::full::{CONTEXT, gpu, numbers, prompt};
use crate::reference;
use crate::support::{Agreement, logits, relative, run};

/// Tokens of prompts.
const LENGTHS: [usize; 4] = [1, 17, 512, 5000];
/// The longest of them that the reference is asked about, which takes a core some seconds a token.
const REFERENCE: usize = 512;
/// Positions told of a part of a long prompt.
const WINDOW: usize = 64;

/// The GPU's error in parts of the CPU's: less than what makes it the farther of the two.
const NEARER: f64 = 0.75;
/// The largest logits are to be the same where the truth's two largest are apart by as many times the error's root mean square.
/// The error of their difference is √2 of it: 6 is more than four standard deviations.
const APART: f64 = 6.0;
/// Of the CPU's farthest position, what no position may be farther off than.
const FARTHEST: f64 = 1.5;
/// One position of so many may be farther from the truth than the CPU's median is.
const FAR: usize = 20;

/// Positions whose logits are told: all, or the first, some in the middle and the last.
fn windows(length: usize) -> Vec<Range<usize>> {
    let (middle, last) = (length / 2 / WINDOW * WINDOW, (length / WINDOW).saturating_sub(1) * WINDOW);
    if middle < WINDOW || last < middle + WINDOW {
        return iter::once(0..length).collect();
    }
    vec![0..WINDOW, middle..middle + WINDOW, last..length]
}

/// Their logits, of a prompt that comes in parts of at most `most` tokens.
fn told<B: Backend>(backend: &mut B, tokens: &[u32], most: usize) -> Vec<f32> {
    let start = Instant::now();
    let mut state = backend.create().expect("a slot");
    let (mut told, mut first) = (Vec::new(), 0);
    for window in windows(tokens.len()) {
        for part in tokens[first..window.start].chunks(most) {
            run(backend, &mut state, part, Want::Nothing);
        }
        for part in tokens[window.clone()].chunks(most) {
            told.extend(logits(backend, &mut state, part));
        }
        first = window.end;
    }
    println!("{} tokens by {}: {:.1?}", tokens.len(), backend.description().name, start.elapsed());
    told
}

/// How far each position is from the truth, over the length of its logits.
fn errors(ours: &[f32], truth: &[f32], vocabulary: usize) -> Vec<f64> {
    ours.chunks(vocabulary).zip(truth.chunks(vocabulary)).map(|(ours, truth)| relative(ours, truth)).collect()
}

/// The least, the median, what one in ten, in twenty and in a hundred is beyond, and the most.
fn spread(errors: &[f64]) -> String {
    let mut sorted = errors.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |part: f64| format!("{:.1e}", sorted[((sorted.len() - 1) as f64 * part).round() as usize]);
    [0.0, 0.5, 0.9, 0.95, 0.99, 1.0].map(at).join(" ")
}

/// What is wrong with logits whose truth and whose errors on the CPU are known. Where rounding made another expert the eighth, a
/// position is far from the truth on either: how far at most, and how many are, the CPU says, as no position may say it of itself.
fn judge(ours: &[f32], truth: &[f32], on_cpu: &[f64], vocabulary: usize) -> Result<String, String> {
    let errors = errors(ours, truth, vocabulary);
    let mut sorted = on_cpu.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (median, farthest) = (sorted[sorted.len() / 2], sorted[sorted.len() - 1]);
    let (mut far, mut clear) = (0, 0);
    let rows = ours.chunks(vocabulary).zip(truth.chunks(vocabulary));
    for (position, (&error, (ours, truth))) in errors.iter().zip(rows).enumerate() {
        if error.is_nan() || error > FARTHEST * farthest {
            return Err(format!("position {position} is off by {error}, the CPU's farthest by {farthest}"));
        }
        if error > median {
            far += 1;
            continue;
        }
        let apart = APART * Agreement::root_mean_square(ours, truth);
        let position_clear = Agreement::new(ours, truth, vocabulary, apart as f32);
        clear += position_clear.clear;
        if position_clear.clear_equal < position_clear.clear {
            return Err(format!("position {position} is off by {error} and has another largest logit"));
        }
    }
    if far > errors.len().div_ceil(FAR) {
        return Err(format!("{far} of {} positions are off by more than {median}, the CPU's median", errors.len()));
    }
    let most = errors.iter().copied().fold(0.0, f64::max);
    Ok(format!("{far} of {} farther than {median:.5}, at most {most:.5} of {farthest:.5}; {clear} clear", errors.len()))
}

#[test]
fn large_logits_are_nearer_to_the_truth_than_the_cpus() {
    let Some((mut gpu, checkpoint)) = gpu(1) else { return };
    let vocabulary = checkpoint.config.vocab_size;
    let options = lily_cpu::Options { threads: 0, max_context: CONTEXT, simd: None };
    let mut cpu = CpuBackend::new(Arc::clone(&checkpoint), options).expect("threads");
    let mut wrong = Vec::new();
    for length in numbers("LILY_CUDA_ACCURACY", &LENGTHS) {
        let tokens = prompt(vocabulary, length);
        let of_cpu = told(&mut cpu, &tokens, usize::MAX);
        let few = told(&mut gpu, &tokens, 8);
        let many = told(&mut gpu, &tokens, usize::MAX);
        let start = Instant::now();
        let referred = length <= numbers("LILY_CUDA_REFERENCE", &[REFERENCE])[0];
        // Kernels of few rows keep 24 bits of what weights meet, and were compared with the reference for shorter prompts.
        let truth = if referred {
            &reference::logits(&checkpoint.config, &checkpoint.weights, &tokens, &windows(length))
        } else {
            &few
        };
        println!(
            "{length} tokens: the truth by {} in {:.1?}",
            ["few rows", "the reference"][usize::from(referred)],
            start.elapsed()
        );
        let (cpu, on_cpu) = (Agreement::new(&of_cpu, truth, vocabulary, 0.0), errors(&of_cpu, truth, vocabulary));
        println!("{length} tokens, the CPU: {cpu:?}; positions {}", spread(&on_cpu));
        for (ours, rows) in [(&few, "few rows"), (&many, "many rows")] {
            let what = format!("{length} tokens, {rows}");
            let [true_to, beside] = [truth, &of_cpu].map(|theirs| Agreement::new(ours, theirs, vocabulary, 0.0));
            println!("{what}: {true_to:?}; positions {}", spread(&errors(ours, truth, vocabulary)));
            println!("{what}, against the CPU: {beside:?}");
            match judge(ours, truth, &on_cpu, vocabulary) {
                Ok(judged) => println!("{what}: {judged}"),
                Err(problem) => wrong.push(format!("{what}: {problem}")),
            }
            let bounds = [
                (true_to.relative, NEARER * cpu.relative),
                (beside.relative, (1.0 + NEARER) * cpu.relative),
                (true_to.relative, if length > 1 { f64::INFINITY } else { 0.001 }),
            ];
            for (relative, bound) in bounds {
                if relative.is_nan() || relative >= bound {
                    wrong.push(format!("{what}: {relative}, the bound is {bound}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Needs no GPU: what one position has wrong must not be lost among the others.
#[test]
fn one_wrong_position_is_seen() {
    const POSITIONS: usize = 192;
    const VOCABULARY: usize = 5000;
    let noise = |seed, place: usize| uniform(seed, place as u64) - 0.5;
    let mut truth: Vec<f32> = (0..POSITIONS * VOCABULARY).map(|place| noise(1, place)).collect();
    // The largest is clear.
    truth.chunks_mut(VOCABULARY).for_each(|row| row[9] = 1.0);
    let off = |seed, by: f32| -> Vec<f32> {
        truth.iter().enumerate().map(|(place, truth)| truth + by * noise(seed, place)).collect()
    };
    let on_cpu = errors(&off(2, 0.19), &truth, VOCABULARY);
    let judged = |change: &dyn Fn(usize, &mut [f32])| {
        let mut ours = off(3, 0.07);
        ours.chunks_mut(VOCABULARY).enumerate().for_each(|(position, row)| change(position, row));
        judge(&ours, &truth, &on_cpu, VOCABULARY)
    };
    judged(&|_, _| {}).expect("no error");
    let of_another = |position: usize, row: &mut [f32]| {
        if position == 127 {
            row.copy_from_slice(&truth[..VOCABULARY]);
        }
    };
    for (wrong, change) in [
        ("another position's logits", &of_another as &dyn Fn(usize, &mut [f32])),
        ("nothing", &|position, row| {
            if position == 64 {
                row.fill(0.0);
            }
        }),
        ("not a number", &|position, row| {
            if position == 191 {
                row[7] = f32::NAN;
            }
        }),
        ("another largest", &|position, row| {
            if position == 5 {
                row[7] = 1.5;
            }
        }),
        ("somewhat off at every tenth", &|position, row| {
            if position % 10 == 3 {
                row.iter_mut().step_by(16).for_each(|logit| *logit = 0.0);
            }
        }),
    ] {
        assert!(judged(change).is_err(), "{wrong}");
    }
}

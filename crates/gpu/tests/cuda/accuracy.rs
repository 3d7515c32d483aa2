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

use lily_backend::{Backend, Want};
use lily_cpu::CpuBackend;

use crate::full::{CONTEXT, gpu, numbers, prompt};
use crate::reference;
use crate::support::{Agreement, logits, run};

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

/// How near, and whether the largest logits are the same where they are clear: each position has an error of its own, since where
/// rounding made another expert the eighth it is far larger.
fn agreement(ours: &[f32], truth: &[f32], vocabulary: usize) -> Agreement {
    let (mut clear, mut clear_equal) = (0, 0);
    for (ours, truth) in ours.chunks(vocabulary).zip(truth.chunks(vocabulary)) {
        let apart = APART * Agreement::root_mean_square(ours, truth);
        let position = Agreement::new(ours, truth, vocabulary, apart as f32);
        clear += position.clear;
        clear_equal += position.clear_equal;
    }
    Agreement { clear, clear_equal, ..Agreement::new(ours, truth, vocabulary, 0.0) }
}

#[test]
fn large_logits_are_nearer_to_the_truth_than_the_cpus() {
    let Some((mut gpu, checkpoint)) = gpu(1) else { return };
    let vocabulary = checkpoint.config.vocab_size;
    let options = lily_cpu::Options { threads: 0, max_context: CONTEXT, simd: None };
    let mut cpu = CpuBackend::new(Arc::clone(&checkpoint), options).expect("threads");
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
        let cpu = agreement(&of_cpu, truth, vocabulary);
        println!("{length} tokens, the CPU: {cpu:?}");
        for (ours, rows) in [(&few, "few rows"), (&many, "many rows")] {
            let what = format!("{length} tokens, {rows}");
            let (true_to, beside) = (agreement(ours, truth, vocabulary), agreement(ours, &of_cpu, vocabulary));
            println!("{what}: {true_to:?}\n{what}, against the CPU: {beside:?}");
            assert!(true_to.relative < NEARER * cpu.relative, "{what}: {} and {}", true_to.relative, cpu.relative);
            assert!(
                beside.relative < (1.0 + NEARER) * cpu.relative,
                "{what}: {} and {}",
                beside.relative,
                cpu.relative
            );
            assert_eq!(true_to.clear_equal, true_to.clear, "{what}: {true_to:?}");
            assert!(length > 1 || true_to.relative < 0.001, "{what}: {true_to:?}");
        }
    }
}

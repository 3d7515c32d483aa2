//! The embedded checkpoint on the GPU against the CPU backend.

use std::slice;
use std::sync::Arc;

use lily_backend::Backend;
use lily_checkpoint::Checkpoint;
use lily_cpu::CpuBackend;
use lily_gpu::device::cuda::CudaDevice;
use lily_gpu::{GpuBackend, Options};

use crate::reference;
use crate::support::{Agreement, TINY_VOCABULARY, device, greedy, logits, next, text};

/// Tokens a sequence may hold.
const CONTEXT: usize = 1024;
/// Of single logits, where the CPU's int8 activations and the GPU's fp16 part.
const NEAR: f32 = 2.0;
/// The CPU's two largest logits are apart: noise doesn't turn them.
const APART: f32 = 0.25;

fn backends() -> Option<(GpuBackend<CudaDevice>, CpuBackend)> {
    let device = device()?;
    let checkpoint = Arc::new(Checkpoint::embedded().expect("the embedded checkpoint is whole"));
    let options = Options { prefill_rows: 256, ..Options::new(CONTEXT, 2) };
    let gpu = GpuBackend::new(device, &checkpoint, options).unwrap_or_else(|error| panic!("{error}"));
    let options = lily_cpu::Options { threads: 2, max_context: CONTEXT, simd: None };
    Some((gpu, CpuBackend::new(checkpoint, options).expect("threads")))
}

fn logits_are_near(lengths: &[usize]) {
    let Some((mut gpu, mut cpu)) = backends() else { return };
    let vocabulary = gpu.description().logits;
    for &length in lengths {
        let tokens = text(length * 7, length);
        let (mut on_gpu, mut on_cpu) = (gpu.create().expect("a slot"), cpu.create().expect("memory"));
        let theirs = logits(&mut cpu, &mut on_cpu, &tokens);
        let ours = logits(&mut gpu, &mut on_gpu, &tokens);
        let agreement = Agreement::new(&ours, &theirs, vocabulary, APART);
        println!("{length} tokens: {agreement:?}");
        assert!(agreement.largest < NEAR && agreement.relative < 0.02, "{length} tokens: {agreement:?}");
        assert_eq!(agreement.clear_equal, agreement.clear, "{length} tokens: {agreement:?}");
    }
}

#[test]
fn short_prompts_logits_are_near_the_cpus() {
    logits_are_near(&[1, 9, 17]);
}

#[test]
fn long_prompts_logits_are_near_the_cpus() {
    logits_are_near(&[100, 600]);
}

/// With a step ahead in flight; teacher-forced by the CPU, so that one close call does not end the comparison.
fn greedy_is_the_cpus(lengths: &[usize], steps: u64) {
    let Some((mut gpu, mut cpu)) = backends() else { return };
    for &length in lengths {
        let (mut on_gpu, mut on_cpu) = (gpu.create().expect("a slot"), cpu.create().expect("memory"));
        let (mut tokens, mut equal, mut clear) = (text(length * 3, length), 0, 0);
        for step in 0..steps {
            let draw = greedy(TINY_VOCABULARY, step);
            let (ours, _) = next(&mut gpu, &mut on_gpu, &tokens, draw);
            let (theirs, ahead) =
                next(&mut cpu, &mut on_cpu, &tokens, lily_backend::Draw { top_logprobs: Some(2), ..draw });
            equal += u64::from(ours == theirs);
            clear += u64::from(ahead > APART);
            assert!(
                ours == theirs || ahead <= APART,
                "after {length} tokens, step {step}: {ours}, not {theirs} by {ahead}"
            );
            tokens = vec![theirs];
        }
        println!("after {length} tokens: {equal} of {steps} equal, {clear} clear");
    }
}

#[test]
fn greedy_tokens_are_the_cpus() {
    greedy_is_the_cpus(&[1, 9, 17, 100, 600], 64);
}

/// Short enough for a sanitizer.
#[test]
fn a_few_tokens_both_ways() {
    greedy_is_the_cpus(&[3, 40], 3);
}

/// The GPU against what is nearer to the truth than the CPU backend, in either way through the model.
#[test]
fn logits_are_the_references() {
    let Some((mut gpu, _)) = backends() else { return };
    let checkpoint = Checkpoint::embedded().expect("the embedded checkpoint is whole");
    for length in [1, 9, 40] {
        let tokens = text(length * 11, length);
        let theirs = reference::logits(&checkpoint.config, &checkpoint.weights, &tokens, slice::from_ref(&(0..length)));
        for chunk in [8, length] {
            let mut state = gpu.create().expect("a slot");
            let ours: Vec<f32> = tokens.chunks(chunk).flat_map(|part| logits(&mut gpu, &mut state, part)).collect();
            let agreement = Agreement::new(&ours, &theirs, gpu.description().logits, APART);
            println!("{length} tokens, {chunk} at once: {agreement:?}");
            assert!(agreement.relative < 0.01, "{length} tokens, {chunk} at once: {agreement:?}");
        }
    }
}

//! Every ablated plan computes what the whole one does: the embedded checkpoint through both.

use lily_backend::{Backend, Output, Segment, Want};
use lily_checkpoint::Checkpoint;
use lily_gpu::ablate::{Ablated, Ablation};
use lily_gpu::device::Device;
use lily_gpu::{GpuBackend, Options, Snapshot, State};
use lily_host::HostDevice;

type Gpu = GpuBackend<Ablated<HostDevice>>;

/// Tokens of a prompt's steps: one with tiles of 64 rows and experts' tiles of 32, and one of 32 rows with a ragged end.
const CHUNKS: [usize; 2] = [64, 21];
/// Of the context that is decoded from: two blocks.
const CONTEXT: usize = 270;
const STEPS: usize = 2;

/// Of logits, where only the order of fp32 sums differs: 1.2e-5 was seen.
const NEAR: f32 = 1e-4;

fn tokens(length: usize) -> Vec<u32> {
    (0..length as u32).map(|place| place.wrapping_mul(2_654_435_761) % 6000).collect()
}

fn forward(gpu: &mut Gpu, state: &mut State, tokens: &[u32], want: Want<'_>) -> Vec<f32> {
    let outputs = gpu.forward(&mut [Segment { state, tokens, want }]).expect("a sound segment");
    outputs
        .into_iter()
        .flat_map(|output| if let Output::Logits(logits) = output { logits } else { Vec::new() })
        .collect()
}

/// The logits of a prompt's second step.
fn prefill(gpu: &mut Gpu) -> Vec<f32> {
    let mut state = gpu.create().expect("a slot");
    let tokens = tokens(CHUNKS.iter().sum());
    let (first, second) = tokens.split_at(CHUNKS[0]);
    forward(gpu, &mut state, first, Want::Nothing);
    forward(gpu, &mut state, second, Want::Logits)
}

/// The logits of each token decoded.
fn decode(gpu: &mut Gpu, context: &Snapshot) -> Vec<f32> {
    let mut state = gpu.restore(context).expect("a slot");
    (1..=STEPS).flat_map(|step| forward(gpu, &mut state, &[step as u32], Want::Logits)).collect()
}

/// Runs the model without an idea, `whole` being what it gives with all of them.
fn compare(gpu: &mut Gpu, idea: Ablation, whole: &[f32], run: impl Fn(&mut Gpu) -> Vec<f32>) {
    gpu.device().leave_out(Some(idea));
    let before = gpu.device().inner().submissions();
    let ablated = run(gpu);
    let submissions = gpu.device().inner().submissions() - before;
    gpu.device().leave_out(None);
    assert_eq!(ablated.len(), whole.len());
    let far = whole.iter().zip(&ablated).map(|(one, other)| (one - other).abs()).fold(0.0, far);
    println!("without {idea:?}: {far} at most, {submissions} submissions");
    assert!(far < NEAR, "without {idea:?} a logit is {far} away");
}

#[test]
fn every_ablation_computes_the_same() {
    let checkpoint = Checkpoint::embedded().expect("the embedded checkpoint is whole");
    let device = Ablated::new(HostDevice::new(lily_host::Options::new(1)));
    let options = Options { prefill_rows: 128, run_ahead: false, spare_pages: 2, ..Options::new(512, 2) };
    let mut gpu = GpuBackend::new(device, &checkpoint, options).expect("a backend");
    let whole = prefill(&mut gpu);
    assert_eq!(whole.len(), CHUNKS[1] * checkpoint.config.vocab_size);
    for idea in Ablation::ALL.into_iter().filter(|idea| idea.changes_prefill()) {
        compare(&mut gpu, idea, &whole, prefill);
    }
    let mut state = gpu.create().expect("a slot");
    forward(&mut gpu, &mut state, &tokens(CONTEXT), Want::Nothing);
    let context = gpu.snapshot(&state).expect("memory");
    let whole = decode(&mut gpu, &context);
    for idea in Ablation::ALL.into_iter().filter(|idea| idea.changes_decode()) {
        // One part: two blocks of such a context.
        let idea = if let Ablation::FixedParts(_) = idea { Ablation::FixedParts(1) } else { idea };
        compare(&mut gpu, idea, &whole, |gpu| decode(gpu, &context));
    }
}

/// What is left out may change bits.
#[test]
fn an_ablation_has_a_name_of_its_own() {
    let device = Ablated::new(HostDevice::new(lily_host::Options::new(1)));
    let whole = device.fingerprint();
    let mut names: Vec<String> = Ablation::ALL
        .into_iter()
        .map(|idea| {
            device.leave_out(Some(idea));
            device.fingerprint()
        })
        .collect();
    names.push(whole.clone());
    names.sort();
    names.dedup();
    assert_eq!(names.len(), Ablation::ALL.len() + 1);
    device.leave_out(None);
    assert_eq!(device.fingerprint(), whole);
}

/// A NaN is as far as can be.
fn far(far: f32, one: f32) -> f32 {
    if one.is_nan() { f32::INFINITY } else { far.max(one) }
}

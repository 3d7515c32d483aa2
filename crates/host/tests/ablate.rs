//! Every ablated plan computes what the whole one does: the embedded checkpoint through both.

use lily_backend::{Backend, Output, Segment, Want};
use lily_checkpoint::Checkpoint;
use lily_gpu::ablate::{Ablated, Ablation};
use lily_gpu::{GpuBackend, Options};
use lily_host::HostDevice;

type Gpu = GpuBackend<Ablated<HostDevice>>;

/// Tokens of the prompt: a many-row step with tiles of 64 rows and experts' tiles of 32, and one of 16 rows with a ragged end.
const CHUNKS: [usize; 2] = [448, 121];
/// Decoded one by one after it, from a context of three blocks.
const STEPS: usize = 3;

/// Of logits, where only the order of fp32 sums differs: about twice what was seen.
const NEAR: f32 = 2e-2;

/// The logits of every position of the prompt's last chunk and of the steps.
fn logits(gpu: &mut Gpu) -> Vec<f32> {
    let mut state = gpu.create().expect("a slot");
    let mut next = (0_u32..).map(|place| place.wrapping_mul(2_654_435_761) % 6000);
    let mut logits = Vec::new();
    for length in CHUNKS.into_iter().chain([1; STEPS]) {
        let tokens: Vec<u32> = next.by_ref().take(length).collect();
        let want = if length == CHUNKS[0] { Want::Nothing } else { Want::Logits };
        let outputs =
            gpu.forward(&mut [Segment { state: &mut state, tokens: &tokens, want }]).expect("a sound segment");
        if let [Output::Logits(more)] = outputs.as_slice() {
            logits.extend(more);
        }
    }
    logits
}

#[test]
fn every_ablation_computes_the_same() {
    let checkpoint = Checkpoint::embedded().expect("the embedded checkpoint is whole");
    let device = Ablated::new(HostDevice::new(lily_host::Options::new(1)));
    let options = Options { prefill_rows: 448, run_ahead: false, ..Options::new(1024, 1) };
    let mut gpu = GpuBackend::new(device, &checkpoint, options).expect("a backend");
    let whole = logits(&mut gpu);
    assert_eq!(whole.len(), (CHUNKS[1] + STEPS) * checkpoint.config.vocab_size);
    // Two parts, of which this context has three blocks.
    let all = Ablation::ALL.map(|idea| if let Ablation::FixedParts(_) = idea { Ablation::FixedParts(2) } else { idea });
    for idea in all {
        gpu.device().leave_out(Some(idea));
        let before = gpu.device().inner().submissions();
        let ablated = logits(&mut gpu);
        let far = whole.iter().zip(&ablated).map(|(one, other)| (one - other).abs()).fold(0.0, far);
        println!("without {idea:?}: {far} at most, {} submissions", gpu.device().inner().submissions() - before);
        assert!(far < NEAR, "without {idea:?} a logit is {far} away");
    }
    gpu.device().leave_out(None);
    assert_eq!(logits(&mut gpu), whole);
}

/// A NaN is as far as can be.
fn far(far: f32, one: f32) -> f32 {
    if one.is_nan() { f32::INFINITY } else { far.max(one) }
}

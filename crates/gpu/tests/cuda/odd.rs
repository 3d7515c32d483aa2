//! Weights as checkpoints rarely have them.

use std::slice;

use half::bf16;
use lily_backend::{Backend, Draw, Output, Want};
use lily_checkpoint::{Checkpoint, Config, Experts, Layer, Matrices, Mixer, Weights};
use lily_cpu::CpuBackend;
use lily_gpu::device::cuda::CudaDevice;
use lily_gpu::{GpuBackend, Options};

use crate::reference;
use crate::support::{Agreement, TINY_VOCABULARY, device, logits, run, text, tiles};
use crate::watched::{Seen, Watch, Watched};

/// Tokens of a prompt: of the few-row way, and of both.
const LENGTHS: [usize; 3] = [8, 40, 200];

/// A backend with the kernels of either kind.
fn backends(config: &Config, weights: &Weights) -> Vec<GpuBackend<Watched<CudaDevice>>> {
    let backend = |tiles| {
        let device = Watched::new(device().expect("a GPU"), Watch::new(tiles), Seen::default());
        let options = Options { prefill_rows: 256, ..Options::new(1024, 1) };
        GpuBackend::from_weights(device, config, weights, options).unwrap_or_else(|error| panic!("{error}"))
    };
    tiles().into_iter().map(backend).collect()
}

fn experts(experts: &mut Experts) -> [&mut Matrices; 3] {
    [&mut experts.gate_proj, &mut experts.up_proj, &mut experts.down_proj]
}

fn matrices(layer: &mut Layer) -> Vec<&mut Matrices> {
    let mut all: Vec<&mut Matrices> = match &mut layer.mixer {
        Mixer::DeltaNet(mixer) => {
            vec![
                &mut mixer.in_proj_qkv,
                &mut mixer.in_proj_z,
                &mut mixer.in_proj_a,
                &mut mixer.in_proj_b,
                &mut mixer.out_proj,
            ]
        }
        Mixer::Attention(mixer) => vec![&mut mixer.q_proj, &mut mixer.k_proj, &mut mixer.v_proj, &mut mixer.o_proj],
    };
    all.extend([&mut layer.moe.gate, &mut layer.moe.shared_expert_gate]);
    all.extend(experts(&mut layer.moe.experts));
    all.extend(experts(&mut layer.moe.shared_expert));
    all
}

/// Multiplies the weights of some groups by powers of two that bring their scales below the least half with all its bits, or below
/// the least of all.
fn make_some_tiny(matrices: &mut Matrices) {
    let groups = matrices.scales.len() / 2 / matrices.rows / matrices.count;
    let scaled = |bytes: &[u8]| -> Vec<u8> {
        let factor = |place: usize| match (place / groups % matrices.rows, place % groups) {
            (row, group) if row % 16 == 7 || (row + group) % 5 == 1 => 2f32.powi(-12),
            (row, group) if (row + group) % 5 == 3 => 2f32.powi(-24),
            _ => 1.0,
        };
        let values = bytes.as_chunks().0.iter().map(|bytes| bf16::from_le_bytes(*bytes).to_f32()).enumerate();
        values.flat_map(|(place, value)| bf16::from_f32(value * factor(place)).to_le_bytes()).collect()
    };
    let (scales, biases) = (scaled(&matrices.scales), scaled(&matrices.biases));
    (matrices.scales, matrices.biases) = (scales.into(), biases.into());
}

/// Halves, which weights become before products of many rows, have no bits for them: what is lost must not count.
#[test]
fn tiny_scales_are_the_references() {
    let Checkpoint { config, mut weights, .. } = Checkpoint::embedded().expect("the embedded checkpoint is whole");
    weights.layers.iter_mut().flat_map(matrices).for_each(make_some_tiny);
    let options = lily_cpu::Options { threads: 2, max_context: 1024, simd: None };
    let mut cpu = CpuBackend::from_weights(&config, weights.clone(), options).expect("threads");
    for length in LENGTHS {
        let tokens = text(length * 5, length);
        let truth = reference::logits(&config, &weights, &tokens, slice::from_ref(&(0..length)));
        let mut state = cpu.create().expect("memory");
        let of_cpu = Agreement::new(&logits(&mut cpu, &mut state, &tokens), &truth, config.vocab_size, 0.0);
        println!("{length} tokens, the CPU: {of_cpu:?}");
        for (mut gpu, tiles) in backends(&config, &weights).into_iter().zip(tiles()) {
            let mut state = gpu.create().expect("a slot");
            let ours = logits(&mut gpu, &mut state, &tokens);
            let agreement = Agreement::new(&ours, &truth, config.vocab_size, 0.0);
            println!("{length} tokens, {tiles:?}: {agreement:?}");
            assert!(
                agreement.relative < 0.75 * of_cpu.relative,
                "{length} tokens, {tiles:?}: {agreement:?}, {of_cpu:?}"
            );
        }
    }
}

/// What is not a number must not become one on the way.
#[test]
fn nan_stays_nan() {
    let Checkpoint { config, mut weights, .. } = Checkpoint::embedded().expect("the embedded checkpoint is whole");
    for layer in &mut weights.layers[..1] {
        let Mixer::DeltaNet(mixer) = &mut layer.mixer else { panic!("the first layer is none of attention") };
        mixer.dt_bias[1] = f32::NAN;
    }
    for (mut gpu, tiles) in backends(&config, &weights).into_iter().zip(tiles()) {
        for length in LENGTHS {
            let mut state = gpu.create().expect("a slot");
            let all = logits(&mut gpu, &mut state, &text(0, length));
            let numbers = all.iter().filter(|logit| !logit.is_nan()).count();
            assert_eq!(numbers, 0, "{length} tokens, {tiles:?}: of {} logits", all.len());
            let drawn = run(&mut gpu, &mut state, &[5], Want::Sample(Draw::greedy(TINY_VOCABULARY)));
            assert_eq!(drawn, Output::NoFiniteLogit, "{length} tokens, {tiles:?}");
        }
    }
}

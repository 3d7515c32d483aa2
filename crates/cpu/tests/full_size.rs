//! The shapes of the 35B: a model of one layer of each kind at its full widths, with random weights and a smaller
//! vocabulary, and the memory plan of the whole.

mod support;

use std::collections::BTreeMap;

use lily_backend::{Backend, Output, Segment, Want};
use lily_checkpoint::{
    Attention, AttentionConfig, Bits, Bytes, Config, DeltaNet, DeltaNetConfig, Experts, GROUP, Layer, LayerKind,
    Matrices, Mixer, Moe, MoeConfig, Quantization, Weights,
};
use lily_cpu::{CpuBackend, Options};
use support::{GREEDY, logits, run};

const HIDDEN: usize = 2048;
const VOCABULARY: usize = 1024;
/// A token whose embedding is NaN.
const POISON: u32 = VOCABULARY as u32 - 1;

fn config(layers: Vec<LayerKind>, vocab_size: usize) -> Config {
    Config {
        vocab_size,
        hidden_size: HIDDEN,
        layers,
        attention: AttentionConfig { heads: 16, kv_heads: 2, head_dim: 256, rotary_dims: 64, rope_theta: 1e7 },
        delta_net: DeltaNetConfig { key_heads: 16, value_heads: 32, head_dim: 128, conv_width: 4 },
        moe: MoeConfig { experts: 256, experts_per_token: 8, expert_width: 512, shared_expert_width: 512 },
        rms_norm_eps: 1e-6,
        max_position_embeddings: 262_144,
        quantization: Quantization { bits: Bits::Four, overrides: BTreeMap::new() },
    }
}

/// A stream of numbers that look random (splitmix64).
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// In [low, high).
    fn vector(&mut self, length: usize, low: f32, high: f32) -> Vec<f32> {
        (0..length).map(|_| low + (high - low) * (self.bits() >> 40) as f32 / (1 << 24) as f32).collect()
    }

    /// Quantised matrices whose weights have a mean of about 0 and a variance of about 1/cols.
    fn matrices(&mut self, count: usize, rows: usize, cols: usize, bits: Bits) -> Matrices {
        let values = (1u32 << bits.count()) as f32;
        let scale = 12f32.sqrt() / values / (cols as f32).sqrt();
        let weight: Vec<u8> =
            (0..count * rows * cols * bits.count() / 64).flat_map(|_| self.bits().to_le_bytes()).collect();
        let groups = count * rows * cols / GROUP;
        // The upper half of an fp32 is a bf16.
        let bf16 = |value: f32| ((value.to_bits() >> 16) as u16).to_le_bytes();
        let constant = |value: f32| Bytes::from(bf16(value).repeat(groups));
        let (scales, biases) = (constant(scale), constant(-scale * (values - 1.0) / 2.0));
        Matrices { count, rows, cols, bits, weight: weight.into(), scales, biases }
    }

    fn linear(&mut self, rows: usize, cols: usize) -> Matrices {
        self.matrices(1, rows, cols, Bits::Four)
    }

    fn experts(&mut self, count: usize) -> Experts {
        Experts {
            gate_proj: self.matrices(count, 512, HIDDEN, Bits::Four),
            up_proj: self.matrices(count, 512, HIDDEN, Bits::Four),
            down_proj: self.matrices(count, HIDDEN, 512, Bits::Four),
        }
    }
}

fn weights() -> Weights {
    let mut random = Random(1);
    let delta_net = DeltaNet {
        in_proj_qkv: random.linear(8192, HIDDEN),
        in_proj_z: random.linear(4096, HIDDEN),
        in_proj_a: random.linear(32, HIDDEN),
        in_proj_b: random.linear(32, HIDDEN),
        conv1d: random.vector(8192 * 4, -0.5, 0.5),
        a_log: random.vector(32, 0.0, 2.5),
        dt_bias: random.vector(32, -6.0, -2.0),
        norm: random.vector(128, 0.5, 1.5),
        out_proj: random.linear(HIDDEN, 4096),
    };
    let attention = Attention {
        q_proj: random.linear(8192, HIDDEN),
        k_proj: random.linear(512, HIDDEN),
        v_proj: random.linear(512, HIDDEN),
        o_proj: random.linear(HIDDEN, 4096),
        q_norm: random.vector(256, 0.5, 1.5),
        k_norm: random.vector(256, 0.5, 1.5),
    };
    // Both layers share the experts' bytes, to stay within half a gigabyte.
    let moe = Moe {
        gate: random.matrices(1, 256, HIDDEN, Bits::Eight),
        shared_expert_gate: random.matrices(1, 1, HIDDEN, Bits::Eight),
        experts: random.experts(256),
        shared_expert: random.experts(1),
    };
    let mut layer = |mixer| Layer {
        input_layernorm: random.vector(HIDDEN, 0.5, 1.5),
        mixer,
        post_attention_layernorm: random.vector(HIDDEN, 0.5, 1.5),
        moe: moe.clone(),
    };
    let layers = vec![layer(Mixer::DeltaNet(delta_net)), layer(Mixer::Attention(attention))];
    let mut embed_tokens = random.linear(VOCABULARY, HIDDEN);
    let mut scales = embed_tokens.scales.to_vec();
    let poisoned = POISON as usize * (HIDDEN / GROUP) * 2;
    scales[poisoned..].fill(0xff);
    embed_tokens.scales = scales.into();
    Weights { layers, norm: random.vector(HIDDEN, 0.5, 1.5), embed_tokens, lm_head: random.linear(VOCABULARY, HIDDEN) }
}

fn backend() -> CpuBackend {
    let config = config(vec![LayerKind::DeltaNet, LayerKind::Attention], VOCABULARY);
    let options = Options { threads: 2, max_context: 4096, simd: None };
    CpuBackend::from_weights(&config, weights(), options).expect("threads")
}

fn prompt(length: u32) -> Vec<u32> {
    (0..length).map(|index| index.wrapping_mul(2_654_435_761) % POISON).collect()
}

#[test]
fn chunks_of_a_layer_of_each_kind_give_the_same_finite_bits() {
    let mut backend = backend();
    let prompt = prompt(75);
    let mut state = backend.create().expect("memory");
    let whole = logits(&mut backend, &mut state, &prompt);
    assert!(whole.iter().all(|logit| logit.is_finite()));
    let rows: Vec<&[f32]> = whole.chunks(VOCABULARY).collect();
    assert!(rows.windows(2).all(|rows| rows[0] != rows[1]), "positions differ");

    let mut state = backend.create().expect("memory");
    let first = logits(&mut backend, &mut state, &prompt[..40]);
    assert!(first == whole[..40 * VOCABULARY]);
    let snapshot = backend.snapshot(&state).expect("memory");
    for size in [1, 7] {
        let mut state = backend.restore(&snapshot).expect("memory");
        let mut rest = Vec::new();
        for tokens in prompt[40..].chunks(size) {
            rest.extend(logits(&mut backend, &mut state, tokens));
        }
        assert!(rest == whole[40 * VOCABULARY..], "chunks of {size}");
    }
    run(&mut backend, &mut state, &prompt[40..], Want::Nothing);
    assert_eq!(backend.length(&state), 75);
}

/// Numbers that are not finite stay in their sequence.
#[test]
fn a_lost_sequence_takes_no_other_with_it() {
    let mut backend = backend();
    let prompt = prompt(20);
    let mut state = backend.create().expect("memory");
    let alone = run(&mut backend, &mut state, &prompt, Want::Sample(GREEDY));
    let (mut lost, mut well) = (backend.create().expect("memory"), backend.create().expect("memory"));
    let outputs = backend.forward(&mut [
        Segment { state: &mut lost, tokens: &[1, POISON, 2], want: Want::Sample(GREEDY) },
        Segment { state: &mut well, tokens: &prompt, want: Want::Sample(GREEDY) },
    ]);
    assert_eq!(outputs.expect("valid segments"), [Output::NoFiniteLogit, alone]);
}

/// Field case 32: at the longest context the workspace is what a chunk takes, and of scores those of one block.
#[test]
fn plan_of_the_whole_model() {
    const MIB: u64 = 1 << 20;
    let layers = (0..40).map(|layer| if layer % 4 == 3 { LayerKind::Attention } else { LayerKind::DeltaNet });
    let config = config(layers.collect(), 248_320);
    let plan = CpuBackend::plan(&config, 19_510_000_000, 262_144, 4);
    assert_eq!(plan.kv_per_token, 20 << 10);
    // 30 layers of 32 states of 128 × 128, and of three inputs of 8192 channels.
    assert_eq!(plan.state, 60 * MIB + 30 * 3 * 8192 * 4);
    assert!((100 * MIB..200 * MIB).contains(&plan.workspace), "{plan}");
    let small = CpuBackend::plan(&config, 19_510_000_000, 1024, 1);
    assert!(small.workspace < plan.workspace);
    assert_eq!(plan.total(), 19_510_000_000 + plan.workspace + 4 * (plan.state + 262_144 * plan.kv_per_token));
}

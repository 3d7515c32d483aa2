use std::path::Path;

use lily_checkpoint::{Attention, Bits, Bytes, Checkpoint, DeltaNet, GROUP, Layer, LayerKind, Moe};
use lily_cpu::CpuBackend;

use super::*;

/// The 35B's shapes, all of them views of the same zeros, which the system never hands out.
struct Shapes(Bytes);

impl Shapes {
    fn matrices(&self, count: usize, rows: usize, cols: usize, bits: Bits) -> Matrices {
        let bytes = |length: usize| self.0.slice(0..length);
        let weights = count * rows * cols;
        let groups = bytes(weights / GROUP * 2);
        let weight = bytes(weights * bits.count() / 8);
        Matrices { count, rows, cols, bits, weight, scales: groups.clone(), biases: groups }
    }

    fn linear(&self, rows: usize, cols: usize) -> Matrices {
        self.matrices(1, rows, cols, Bits::Four)
    }

    fn experts(&self, count: usize) -> Experts {
        let up = self.matrices(count, 512, 2048, Bits::Four);
        Experts { gate_proj: up.clone(), up_proj: up, down_proj: self.matrices(count, 2048, 512, Bits::Four) }
    }

    fn mixer(&self, kind: LayerKind) -> Mixer {
        match kind {
            LayerKind::DeltaNet => Mixer::DeltaNet(DeltaNet {
                in_proj_qkv: self.linear(8192, 2048),
                in_proj_z: self.linear(4096, 2048),
                in_proj_a: self.linear(32, 2048),
                in_proj_b: self.linear(32, 2048),
                conv1d: vec![0.0; 8192 * 4],
                a_log: vec![0.0; 32],
                dt_bias: vec![0.0; 32],
                norm: vec![0.0; 128],
                out_proj: self.linear(2048, 4096),
            }),
            LayerKind::Attention => Mixer::Attention(Attention {
                q_proj: self.linear(8192, 2048),
                k_proj: self.linear(512, 2048),
                v_proj: self.linear(512, 2048),
                o_proj: self.linear(2048, 4096),
                q_norm: vec![0.0; 256],
                k_norm: vec![0.0; 256],
            }),
        }
    }

    fn weights(&self, config: &Config) -> Weights {
        let layer = |&kind: &LayerKind| Layer {
            input_layernorm: vec![0.0; 2048],
            mixer: self.mixer(kind),
            post_attention_layernorm: vec![0.0; 2048],
            moe: Moe {
                gate: self.matrices(1, 256, 2048, Bits::Eight),
                shared_expert_gate: self.matrices(1, 1, 2048, Bits::Eight),
                experts: self.experts(256),
                shared_expert: self.experts(1),
            },
        };
        Weights {
            embed_tokens: self.linear(248_320, 2048),
            layers: config.layers.iter().map(layer).collect(),
            norm: vec![0.0; 2048],
            lm_head: self.linear(248_320, 2048),
        }
    }
}

#[test]
fn a_step_of_the_35b_moves_what_was_added_up_by_hand() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/qwen3.6-35b-a3b/config.json");
    let config = Config::parse(&std::fs::read(path).unwrap()).unwrap();
    let weights = Shapes(vec![0; 248_320 * 1024].into()).weights(&config);
    let all = weights.summary().bytes();
    assert_eq!(all / 10_000_000, 1951, "19.51 GB");
    let plan = CpuBackend::plan(&config, all, 4096, 1);
    let cost = Cost::new(&config, &weights, &plan);

    // A group of 64 takes 32 + 4 bytes at 4 bits, 64 + 4 at 8: 9/16 and 17/16 a weight.
    let experts = 40 * 9 * 3 * 512 * 2048 * 9 / 16;
    let routers = 40 * 257 * 2048 * 17 / 16;
    let delta_net = 30 * (12_352 * 2048 + 2048 * 4096) * 9 / 16;
    let attention = 10 * (9216 * 2048 + 2048 * 4096) * 9 / 16;
    let head = 248_320 * 2048 * 9 / 16;
    let matrices = experts + routers + delta_net + attention + head;
    assert_eq!(matrices / 1_000_000, 1667, "1.667 GB");
    let floats = 4 * (81 * 2048 + 30 * (8192 * 4 + 32 + 32 + 128) + 10 * 512);
    assert_eq!(cost.weight_bytes, matrices + floats + 2048 * 9 / 16);

    // 60 MiB of recurrent states, and in fp32 three inputs of 8192 channels.
    assert_eq!(cost.state_bytes, (60 << 20) + 30 * 3 * 8192 * 4);
    assert_eq!(cost.kv_bytes_per_token, 20 << 10);
    let fixed = cost.weight_bytes + 2 * cost.state_bytes;
    assert_eq!(cost.decode_bytes(128, 1), fixed + 129 * 20_480);
    assert_eq!(cost.decode_bytes(128, 3), 3 * fixed + (129 + 130 + 131) * 20_480);

    let layers = 40 * (9 * 3 * 512 * 2048 + 257 * 2048) + 30 * 33_685_504 + 10 * 27_262_976;
    assert_eq!(cost.prefill_multiplications(10), 10 * layers + 248_320 * 2048);
}

#[test]
fn a_model_that_uses_all_its_experts_reads_all_but_the_embedding() {
    let Checkpoint { mut config, weights, .. } = Checkpoint::embedded().unwrap();
    config.moe.experts_per_token = config.moe.experts;
    let summary = weights.summary();
    let cost = Cost::new(&config, &weights, &CpuBackend::plan(&config, summary.bytes(), 1024, 1));
    let rows = config.vocab_size as u64 - 1;
    let unused = weights.embed_tokens.bytes() / config.vocab_size as u64 * rows;
    assert_eq!(cost.weight_bytes, summary.bytes() - unused);
    let embedding = weights.embed_tokens.parameters();
    let floats: u64 = summary.groups.iter().filter(|group| group.name == "norms").map(|group| group.parameters).sum();
    let all = cost.layer_multiplications + cost.head_multiplications;
    assert!(all < summary.parameters() - embedding - floats, "the floats of the mixers are not multiplied as matrices");
}

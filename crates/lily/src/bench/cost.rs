//! What a step costs by the model's sizes: bytes that a decode step must move, multiply-accumulates that a prompt needs.

use lily_backend::MemoryPlan;
use lily_checkpoint::{Config, Experts, Matrices, Mixer, Weights};
use serde::Serialize;

/// Costs of the model on a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Cost {
    /// Bytes of weights that a decode step reads: of the embedding one row, of the experts the chosen ones.
    pub(crate) weight_bytes: u64,
    /// Bytes of recurrent state and conv window that a decode step reads, and writes again.
    pub(crate) state_bytes: u64,
    /// Bytes of keys and values that a decode step reads for each token of its context.
    pub(crate) kv_bytes_per_token: u64,
    /// Multiply-accumulates of a token with the layers' matrices. What attention and the recurrence compute besides, and
    /// that a kernel may multiply in two planes, is not counted.
    pub(crate) layer_multiplications: u64,
    /// Multiply-accumulates with the output head, of which a prompt needs one row.
    pub(crate) head_multiplications: u64,
}

impl Cost {
    /// The costs of these weights; `plan` has the sizes of the backend's states.
    pub(crate) fn new(config: &Config, weights: &Weights, plan: &MemoryPlan) -> Self {
        let mut sum = Sum::default();
        for layer in &weights.layers {
            sum.floats(&[&layer.input_layernorm, &layer.post_attention_layernorm]);
            match &layer.mixer {
                Mixer::DeltaNet(mixer) => {
                    sum.matrices(&[&mixer.in_proj_qkv, &mixer.in_proj_z, &mixer.in_proj_a, &mixer.in_proj_b]);
                    sum.matrices(&[&mixer.out_proj]);
                    sum.floats(&[&mixer.conv1d, &mixer.a_log, &mixer.dt_bias, &mixer.norm]);
                }
                Mixer::Attention(mixer) => {
                    sum.matrices(&[&mixer.q_proj, &mixer.k_proj, &mixer.v_proj, &mixer.o_proj]);
                    sum.floats(&[&mixer.q_norm, &mixer.k_norm]);
                }
            }
            sum.matrices(&[&layer.moe.gate, &layer.moe.shared_expert_gate]);
            sum.experts(&layer.moe.experts, config.moe.experts_per_token);
            sum.experts(&layer.moe.shared_expert, 1);
        }
        sum.floats(&[&weights.norm]);
        let embedding_row = weights.embed_tokens.bytes() / weights.embed_tokens.rows as u64;
        Self {
            weight_bytes: sum.bytes + weights.lm_head.bytes() + embedding_row,
            state_bytes: plan.state,
            kv_bytes_per_token: plan.kv_per_token,
            layer_multiplications: sum.parameters,
            head_multiplications: weights.lm_head.parameters(),
        }
    }

    /// Bytes that `steps` decode steps after `length` tokens move together; a step's own token is in its context.
    pub(crate) fn decode_bytes(&self, length: usize, steps: usize) -> u64 {
        let (length, steps) = (length as u64, steps as u64);
        let contexts = steps * length + steps * (steps + 1) / 2;
        steps * (self.weight_bytes + 2 * self.state_bytes) + contexts * self.kv_bytes_per_token
    }

    /// Multiply-accumulates of a prompt of `length` tokens.
    pub(crate) fn prefill_multiplications(&self, length: usize) -> u64 {
        length as u64 * self.layer_multiplications + self.head_multiplications
    }
}

/// Of all that a token passes.
#[derive(Default)]
struct Sum {
    bytes: u64,
    parameters: u64,
}

impl Sum {
    fn matrices(&mut self, all: &[&Matrices]) {
        for matrices in all {
            self.some(matrices, matrices.count);
        }
    }

    fn experts(&mut self, experts: &Experts, chosen: usize) {
        for matrices in [&experts.gate_proj, &experts.up_proj, &experts.down_proj] {
            self.some(matrices, chosen);
        }
    }

    /// `count` of a stack.
    fn some(&mut self, matrices: &Matrices, count: usize) {
        let (all, count) = (matrices.count as u64, count as u64);
        self.bytes += matrices.bytes() / all * count;
        self.parameters += matrices.parameters() / all * count;
    }

    /// Vectors, which are held as fp32.
    fn floats(&mut self, all: &[&[f32]]) {
        self.bytes += all.iter().map(|vector| size_of_val(*vector) as u64).sum::<u64>();
    }
}

#[cfg(test)]
mod tests;

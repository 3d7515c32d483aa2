//! What a checkpoint's weights are, for people and for memory plans.

use std::collections::BTreeSet;

use crate::assemble::parts;
use crate::layout::Part;
use crate::safetensors::byte_count;
use crate::{Bits, Config, Experts, Matrices, Mixer, Weights};

/// The weights by what they do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// In the order of the model; none is empty.
    pub groups: Vec<Group>,
}

/// Weights that do the same job in all layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// `embedding`, `DeltaNet`, `attention`, `routers`, `experts`, `shared experts`, `norms`, `head`.
    pub name: &'static str,
    /// The widths that occur; empty if these are plain floats.
    pub bits: BTreeSet<Bits>,
    /// Numbers in the model.
    pub parameters: u64,
    /// Bytes as held: quantised data in place, floats as fp32.
    pub bytes: u64,
}

impl Summary {
    /// All groups' parameters.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        self.groups.iter().map(|group| group.parameters).sum()
    }

    /// All groups' bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.groups.iter().map(|group| group.bytes).sum()
    }

    /// What [`bytes`](Self::bytes) is of every checkpoint of this configuration.
    #[must_use]
    pub fn bytes_of(config: &Config) -> u64 {
        let parts = parts(config);
        let bytes = parts.iter().map(|part| match part {
            Part::Quantised(quantised) => quantised.tensors().iter().map(byte_count).sum(),
            // They are read into fp32.
            Part::Floats(info) => info.shape.iter().product::<u64>() * size_of::<f32>() as u64,
        });
        bytes.sum()
    }
}

impl Weights {
    /// Adds up the weights; looks at no weight itself.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let [mut delta_net, mut attention, mut routers, mut experts, mut shared_experts, mut norms] =
            ["DeltaNet", "attention", "routers", "experts", "shared experts", "norms"].map(Group::new);
        norms.floats(&[&self.norm]);
        for layer in &self.layers {
            norms.floats(&[&layer.input_layernorm, &layer.post_attention_layernorm]);
            match &layer.mixer {
                Mixer::DeltaNet(mixer) => {
                    let inputs = [&mixer.in_proj_qkv, &mixer.in_proj_z, &mixer.in_proj_a, &mixer.in_proj_b];
                    delta_net.matrices(&inputs).matrices(&[&mixer.out_proj]);
                    delta_net.floats(&[&mixer.conv1d, &mixer.a_log, &mixer.dt_bias, &mixer.norm]);
                }
                Mixer::Attention(mixer) => {
                    attention.matrices(&[&mixer.q_proj, &mixer.k_proj, &mixer.v_proj, &mixer.o_proj]);
                    attention.floats(&[&mixer.q_norm, &mixer.k_norm]);
                }
            }
            routers.matrices(&[&layer.moe.gate, &layer.moe.shared_expert_gate]);
            experts.experts(&layer.moe.experts);
            shared_experts.experts(&layer.moe.shared_expert);
        }
        let [mut embedding, mut head] = ["embedding", "head"].map(Group::new);
        embedding.matrices(&[&self.embed_tokens]);
        head.matrices(&[&self.lm_head]);
        let mut groups = vec![embedding, delta_net, attention, routers, experts, shared_experts, norms, head];
        groups.retain(|group| group.parameters > 0);
        Summary { groups }
    }
}

impl Group {
    fn new(name: &'static str) -> Self {
        Self { name, bits: BTreeSet::new(), parameters: 0, bytes: 0 }
    }

    fn matrices(&mut self, all: &[&Matrices]) -> &mut Self {
        for matrices in all {
            self.bits.insert(matrices.bits);
            self.parameters += matrices.parameters();
            self.bytes += matrices.bytes();
        }
        self
    }

    fn experts(&mut self, experts: &Experts) {
        self.matrices(&[&experts.gate_proj, &experts.up_proj, &experts.down_proj]);
    }

    fn floats(&mut self, all: &[&[f32]]) {
        for floats in all {
            self.parameters += floats.len() as u64;
            self.bytes += size_of_val(*floats) as u64;
        }
    }
}

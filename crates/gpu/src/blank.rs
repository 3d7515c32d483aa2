//! Weights without data, for plans that are only looked at.

use lily_checkpoint::{
    Attention, Bits, Bytes, Config, DeltaNet, Experts, Layer, LayerKind, Matrices, Mixer, Moe, Weights,
};

/// The weights of a config as a checkpoint would have them, every matrix without its bytes.
pub(crate) fn weights(config: &Config) -> Weights {
    let hidden = config.hidden_size;
    Weights {
        embed_tokens: matrices(1, config.vocab_size, hidden, Bits::Four),
        layers: config.layers.iter().map(|&kind| layer(config, kind)).collect(),
        norm: vec![0.0; hidden],
        lm_head: matrices(1, config.vocab_size, hidden, Bits::Four),
    }
}

fn matrices(count: usize, rows: usize, cols: usize, bits: Bits) -> Matrices {
    let [weight, scales, biases] = [const { Bytes::from_static(&[]) }; 3];
    Matrices { count, rows, cols, bits, weight, scales, biases }
}

fn layer(config: &Config, kind: LayerKind) -> Layer {
    let (hidden, moe) = (config.hidden_size, &config.moe);
    let experts = |count, width| Experts {
        gate_proj: matrices(count, width, hidden, Bits::Four),
        up_proj: matrices(count, width, hidden, Bits::Four),
        down_proj: matrices(count, hidden, width, Bits::Four),
    };
    Layer {
        input_layernorm: vec![0.0; hidden],
        mixer: match kind {
            LayerKind::DeltaNet => Mixer::DeltaNet(delta_net(config)),
            LayerKind::Attention => Mixer::Attention(attention(config)),
        },
        post_attention_layernorm: vec![0.0; hidden],
        moe: Moe {
            gate: matrices(1, moe.experts, hidden, Bits::Eight),
            shared_expert_gate: matrices(1, 1, hidden, Bits::Eight),
            experts: experts(moe.experts, moe.expert_width),
            shared_expert: experts(1, moe.shared_expert_width),
        },
    }
}

fn delta_net(config: &Config) -> DeltaNet {
    let (hidden, sizes) = (config.hidden_size, &config.delta_net);
    let heads = sizes.value_heads;
    let input = |rows| matrices(1, rows, hidden, Bits::Four);
    DeltaNet {
        in_proj_qkv: input(sizes.conv_channels()),
        in_proj_z: input(sizes.value_size()),
        in_proj_a: input(heads),
        in_proj_b: input(heads),
        conv1d: vec![0.0; sizes.conv_channels() * sizes.conv_width],
        a_log: vec![0.0; heads],
        dt_bias: vec![0.0; heads],
        norm: vec![0.0; sizes.head_dim],
        out_proj: matrices(1, hidden, sizes.value_size(), Bits::Four),
    }
}

fn attention(config: &Config) -> Attention {
    let (hidden, sizes) = (config.hidden_size, &config.attention);
    let input = |rows| matrices(1, rows, hidden, Bits::Four);
    Attention {
        q_proj: input(2 * sizes.query_size()),
        k_proj: input(sizes.kv_size()),
        v_proj: input(sizes.kv_size()),
        o_proj: matrices(1, hidden, sizes.query_size(), Bits::Four),
        q_norm: vec![0.0; sizes.head_dim],
        k_norm: vec![0.0; sizes.head_dim],
    }
}

//! The model's weights, by their place in it. Quantised matrices stay where they are mapped; the small vectors are
//! read into fp32.

use crate::Matrices;

/// Everything the text model multiplies by.
#[derive(Clone, Debug)]
pub struct Weights {
    /// `[vocab_size, hidden_size]`: a row a token.
    pub embed_tokens: Matrices,
    /// From first to last.
    pub layers: Vec<Layer>,
    /// `[hidden_size]`: the final RMSNorm.
    pub norm: Vec<f32>,
    /// `[vocab_size, hidden_size]`: not tied to `embed_tokens`.
    pub lm_head: Matrices,
}

/// `x += mixer(norm(x)); x += moe(norm(x))`. Norms are as stored, with the 1 of (1 + w) folded in: x̂ · w.
#[derive(Clone, Debug)]
pub struct Layer {
    /// `[hidden_size]`
    pub input_layernorm: Vec<f32>,
    /// What moves information between positions.
    pub mixer: Mixer,
    /// `[hidden_size]`
    pub post_attention_layernorm: Vec<f32>,
    /// What works on each position alone.
    pub moe: Moe,
}

/// A layer's way of mixing positions; the kind agrees with [`crate::Config::layers`].
#[derive(Clone, Debug)]
pub enum Mixer {
    /// A recurrent state of fixed size.
    DeltaNet(DeltaNet),
    /// Softmax attention over a KV cache.
    Attention(Attention),
}

/// Gated DeltaNet.
#[derive(Clone, Debug)]
pub struct DeltaNet {
    /// `[conv_channels, hidden_size]`: q of all key heads, then k, then v of all value heads.
    pub in_proj_qkv: Matrices,
    /// `[value_size, hidden_size]`: the output gate.
    pub in_proj_z: Matrices,
    /// `[value_heads, hidden_size]`: the decay.
    pub in_proj_a: Matrices,
    /// `[value_heads, hidden_size]`: the step size β.
    pub in_proj_b: Matrices,
    /// `[conv_channels, conv_width]`, row-major; the last of a row meets the newest input.
    pub conv1d: Vec<f32>,
    /// `[value_heads]`
    pub a_log: Vec<f32>,
    /// `[value_heads]`
    pub dt_bias: Vec<f32>,
    /// `[head_dim]`: the gated norm, plain w.
    pub norm: Vec<f32>,
    /// `[hidden_size, value_size]`
    pub out_proj: Matrices,
}

/// Gated full attention.
#[derive(Clone, Debug)]
pub struct Attention {
    /// `[heads · 2 · head_dim, hidden_size]`: per head its query, then its gate.
    pub q_proj: Matrices,
    /// `[kv_heads · head_dim, hidden_size]`
    pub k_proj: Matrices,
    /// `[kv_heads · head_dim, hidden_size]`
    pub v_proj: Matrices,
    /// `[hidden_size, heads · head_dim]`
    pub o_proj: Matrices,
    /// `[head_dim]`
    pub q_norm: Vec<f32>,
    /// `[head_dim]`
    pub k_norm: Vec<f32>,
}

/// The mixture of experts of a layer.
#[derive(Clone, Debug)]
pub struct Moe {
    /// `[experts, hidden_size]`: the router.
    pub gate: Matrices,
    /// `[1, hidden_size]`
    pub shared_expert_gate: Matrices,
    /// The routed experts, `switch_mlp` in the files: a stack of [`crate::MoeConfig::experts`].
    pub experts: Experts,
    /// The expert every token passes: a stack of one.
    pub shared_expert: Experts,
}

/// SwiGLU: `down(silu(gate(x)) · up(x))`, stacked by expert.
#[derive(Clone, Debug)]
pub struct Experts {
    /// `[width, hidden_size]` each.
    pub gate_proj: Matrices,
    /// `[width, hidden_size]` each.
    pub up_proj: Matrices,
    /// `[hidden_size, width]` each.
    pub down_proj: Matrices,
}

//! Gated DeltaNet (Yang et al., "Gated Delta Networks", 2024): a mixer with a state of fixed size.
//!
//! With x a row of the normalised residual stream, per value head:
//!
//! ```text
//! q | k | v = silu(conv(W_qkv x));  q ← q/|q|/√128;  k ← k/|k|
//! α = exp(−exp(A_log) · softplus(W_a x + dt_bias));  β = sigmoid(W_b x)
//! S ← αS;  u = β(v − S·k);  S ← S + u⊗k;  o = S·q
//! y = W_out (rms_norm(o) · silu(W_z x))
//! ```
//!
//! Value head j uses key head j / (value_heads / key_heads). Everything but the products is per head, so heads and
//! sequences run in parallel, tokens one after another.

pub(crate) mod convolution;
pub(crate) mod delta_rule;
pub(crate) mod gates;

use lily_checkpoint::{Config, DeltaNetConfig};
use rayon::prelude::*;

use crate::activations::{Activations, Planes};
use crate::matmul::matmul;
use crate::state::Recurrent;
use crate::step::{Step, cut_runs, linear};
use crate::vector;
use crate::workspace::Scratch;
use convolution::Convolution;
use delta_rule::DeltaRule;
use gates::{DecayAndStep, GatedNorm};

/// Width of a query, key or value head; the checkpoint crate refuses any other.
pub(crate) const HEAD_DIM: usize = 128;

/// Heads, or rows of gates, handed to a thread at once.
const ITEMS_PER_TASK: usize = 32;

/// A DeltaNet layer.
pub(crate) struct DeltaNet {
    weights: lily_checkpoint::DeltaNet,
    sizes: DeltaNetConfig,
    epsilon: f32,
    convolution: Convolution,
    /// −exp(A_log) of each value head.
    rates: Vec<f32>,
}

impl DeltaNet {
    pub(crate) fn new(config: &Config, weights: lily_checkpoint::DeltaNet) -> Self {
        Self {
            convolution: Convolution::new(&weights.conv1d),
            rates: weights.a_log.iter().map(|a_log| -crate::math::exp(*a_log)).collect(),
            weights,
            sizes: config.delta_net.clone(),
            epsilon: config.rms_norm_eps,
        }
    }

    /// Columns of the activations: qkv, z, a, b; convolved; o, and o gated.
    pub(crate) fn widths(sizes: &DeltaNetConfig) -> [usize; 7] {
        let values = sizes.value_heads * HEAD_DIM;
        let channels = 2 * sizes.key_heads * HEAD_DIM + values;
        [channels, values, sizes.value_heads, sizes.value_heads, channels, values, values]
    }

    /// `out[rows, hidden]` from the normalised `input[rows, hidden]`; `recurrent` has the layer's state of each run.
    pub(crate) fn forward(
        &self,
        step: &Step,
        input: &Activations,
        recurrent: &mut [&mut Recurrent],
        scratch: &mut Scratch,
        out: &mut [f32],
    ) {
        let Scratch { part, inner, .. } = scratch;
        let [qkv, z, a, b, convolved, o, gated] = part.carve(step.rows, Self::widths(&self.sizes));
        matmul(
            step.simd,
            &mut [
                linear(&self.weights.in_proj_qkv, input, qkv),
                linear(&self.weights.in_proj_z, input, z),
                linear(&self.weights.in_proj_a, input, a),
                linear(&self.weights.in_proj_b, input, b),
            ],
        );
        self.convolution.forward(step, 2 * self.sizes.key_heads, qkv, recurrent, convolved);
        self.gates(step, a, b);
        self.delta_rule(step, convolved, a, b, recurrent, o);
        self.gated_norm(step, o, z, gated);
        inner.set(step.simd, gated, step.rows, self.sizes.value_heads * HEAD_DIM, Planes::One);
        matmul(step.simd, &mut [linear(&self.weights.out_proj, inner, out)]);
    }

    /// In place: `a[rows, value_heads]` becomes the decay α, `b[rows, value_heads]` the step size β.
    fn gates(&self, step: &Step, a: &mut [f32], b: &mut [f32]) {
        let heads = self.sizes.value_heads;
        let rows = a.par_chunks_exact_mut(heads).zip(b.par_chunks_exact_mut(heads)).with_min_len(ITEMS_PER_TASK);
        rows.for_each(|(a, b)| {
            vector::run(step.simd, DecayAndStep { a, b, rates: &self.rates, biases: &self.weights.dt_bias });
        });
    }

    /// The recurrence. `o` is `[value_heads, rows, 128]`, so that each head of each run writes a piece of its own.
    fn delta_rule(
        &self,
        step: &Step,
        convolved: &[f32],
        decay: &[f32],
        beta: &[f32],
        recurrent: &mut [&mut Recurrent],
        o: &mut [f32],
    ) {
        let DeltaNetConfig { key_heads, value_heads, .. } = self.sizes;
        let channels = (2 * key_heads + value_heads) * HEAD_DIM;
        let mut states: Vec<_> =
            recurrent.iter_mut().map(|recurrent| recurrent.state.chunks_exact_mut(HEAD_DIM * HEAD_DIM)).collect();
        let mut tasks = Vec::with_capacity(value_heads * step.runs.len());
        for (head, o) in o.chunks_exact_mut(step.rows * HEAD_DIM).enumerate() {
            let key_head = head / (value_heads / key_heads);
            let pieces = cut_runs(&step.runs, o, HEAD_DIM);
            for ((run, out), states) in step.runs.iter().zip(pieces).zip(&mut states) {
                tasks.push(DeltaRule {
                    inputs: run.of(convolved, channels),
                    channels,
                    query: key_head * HEAD_DIM,
                    key: (key_heads + key_head) * HEAD_DIM,
                    value: (2 * key_heads + head) * HEAD_DIM,
                    decay: run.of(decay, value_heads),
                    beta: run.of(beta, value_heads),
                    heads: value_heads,
                    head,
                    state: states.next().expect("a state holds every value head"),
                    out,
                });
            }
        }
        tasks.into_par_iter().for_each(|task| vector::run(step.simd, task));
    }

    /// `out[rows, value_heads · 128] = rms_norm(o) · weight · silu(z)`, per head.
    fn gated_norm(&self, step: &Step, o: &[f32], z: &[f32], out: &mut [f32]) {
        let heads = self.sizes.value_heads;
        let items = out.par_chunks_exact_mut(HEAD_DIM).zip(z.par_chunks_exact(HEAD_DIM)).enumerate();
        items.with_min_len(ITEMS_PER_TASK).for_each(|(index, (out, z))| {
            let (row, head) = (index / heads, index % heads);
            out.copy_from_slice(&o[(head * step.rows + row) * HEAD_DIM..][..HEAD_DIM]);
            vector::run(step.simd, GatedNorm { x: out, weight: &self.weights.norm, z, epsilon: self.epsilon });
        });
    }
}

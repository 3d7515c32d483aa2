//! The functions of a step one at a time, for tests of other backends: each is computed by the very kernel that the model
//! runs, in its scalar form. All matrices are row-major; a row is a token.

use half::f16;
use lily_checkpoint::Matrix;

use crate::activations::{Activations, Planes};
use crate::attention::SPAN_TOKENS;
use crate::attention::span::{Block, Partial, merge_all};
use crate::delta_net::HEAD_DIM as DELTA_HEAD;
use crate::delta_net::convolution::Convolution;
use crate::delta_net::delta_rule::DeltaRule;
use crate::delta_net::gates::{DecayAndStep, GatedNorm};
use crate::matmul::{Product, matmul};
use crate::moe::routing::Routing;
use crate::rope::{Rope, rotate};
use crate::simd::Simd;
use crate::state::{PAGE_TOKENS, Recurrent};
use crate::step::{Run, Step};
use crate::{embedding, math, norm, vector};

/// Width of an attention head.
const HEAD: usize = 256;
/// Keys whose values lie together in the recurrent state of the CPU backend.
const STATE_TILE: usize = 32;

/// `[tokens, cols]`: the rows of an embedding.
#[must_use]
pub fn embed(table: Matrix<'_>, tokens: &[u32]) -> Vec<f32> {
    let mut out = vec![0.0; tokens.len() * table.cols];
    embedding::embed(table, tokens, &mut out);
    out
}

/// `[rows, weight.rows]`: x\[rows, weight.cols\] times the transpose of `weight`. Before 4-bit weights x is rounded to two
/// int8 planes: about 15 bits of the largest value of each group of 64.
#[must_use]
pub fn product(weight: Matrix<'_>, x: &[f32]) -> Vec<f32> {
    product_on(Simd::Scalar, weight, x)
}

/// The same bits, by any instruction set that the machine has: for large matrices.
#[must_use]
pub fn product_on(simd: Simd, weight: Matrix<'_>, x: &[f32]) -> Vec<f32> {
    let rows = x.len() / weight.cols;
    let mut input = Activations::new();
    input.set(simd, x, rows, weight.cols, Planes::Two);
    let mut out = vec![0.0; rows * weight.rows];
    matmul(simd, &mut [Product { weight, input: &input, rows: None, out: &mut out }]);
    out
}

/// `[rows, width]`: RMSNorm of each row of x, times `weight` \[width\].
#[must_use]
pub fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32) -> Vec<f32> {
    let mut out = vec![0.0; x.len()];
    norm::rms_norm(Simd::Scalar, x, weight, epsilon, &mut out);
    out
}

/// RoPE of one head at a position: its first `dims` dimensions are turned.
#[must_use]
pub fn rope(head: &[f32], dims: usize, theta: f64, position: usize) -> Vec<f32> {
    let mut rope = Rope::new(dims, theta);
    rope.set(std::iter::once(position));
    let mut head = head.to_vec();
    rotate(&mut head, rope.row(0));
    head
}

/// `gate ← silu(gate) · up`
#[must_use]
pub fn swiglu(gate: &[f32], up: &[f32]) -> Vec<f32> {
    gate.iter().zip(up).map(|(gate, up)| math::silu(*gate) * up).collect()
}

/// 1 / (1 + e^−x)
#[must_use]
pub fn sigmoid(x: f32) -> f32 {
    math::sigmoid(x)
}

/// DeltaNet's convolution over rows of one sequence: `[rows, channels]` = q | k | v after SiLU, queries and keys of
/// unit length, queries also over √128. `conv1d` is `[channels, 4]`, x `[rows, channels]`, `window` `[3, channels]`, the
/// rows before, oldest first; it moves on.
#[must_use]
pub fn convolution(conv1d: &[f32], key_heads: usize, x: &[f32], window: &mut Vec<f32>) -> Vec<f32> {
    let step = step(x.len() / (conv1d.len() / 4));
    let mut recurrent = Recurrent { state: Vec::new(), window: std::mem::take(window) };
    let mut out = vec![0.0; x.len()];
    Convolution::new(conv1d).forward(&step, 2 * key_heads, x, &mut [&mut recurrent], &mut out);
    *window = recurrent.window;
    out
}

/// DeltaNet's gates of one row, an element a value head: the decay exp(−exp(A_log) · softplus(a + dt_bias)) and the step
/// size sigmoid(b).
#[must_use]
pub fn gates(a: &[f32], b: &[f32], a_log: &[f32], dt_bias: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let rates: Vec<f32> = a_log.iter().map(|a_log| -math::exp(*a_log)).collect();
    let (mut decay, mut beta) = (a.to_vec(), b.to_vec());
    vector::run(Simd::Scalar, DecayAndStep { a: &mut decay, b: &mut beta, rates: &rates, biases: dt_bias });
    (decay, beta)
}

/// The gated delta rule over rows of one sequence: o `[rows, value_heads, 128]`. `convolved` is `[rows, channels]`, decay
/// and beta are `[rows, value_heads]`; `state` is `[value_heads, 128 values, 128 keys]` and moves on.
#[must_use]
pub fn delta_rule(
    convolved: &[f32],
    decay: &[f32],
    beta: &[f32],
    key_heads: usize,
    value_heads: usize,
    state: &mut [f32],
) -> Vec<f32> {
    let channels = (2 * key_heads + value_heads) * DELTA_HEAD;
    let rows = convolved.len() / channels;
    let mut out = vec![0.0; rows * value_heads * DELTA_HEAD];
    for (head, state) in state.chunks_exact_mut(DELTA_HEAD * DELTA_HEAD).enumerate() {
        let key_head = head / (value_heads / key_heads);
        // The CPU backend keeps [value / 32][key][value % 32].
        let place =
            |value: usize, key: usize| (value / STATE_TILE * DELTA_HEAD + key) * STATE_TILE + value % STATE_TILE;
        let pairs = || (0..DELTA_HEAD).flat_map(|value| (0..DELTA_HEAD).map(move |key| (value, key)));
        let mut tiled = vec![0.0; state.len()];
        pairs().for_each(|(value, key)| tiled[place(value, key)] = state[value * DELTA_HEAD + key]);
        let mut of_head = vec![0.0; rows * DELTA_HEAD];
        let rule = DeltaRule {
            inputs: convolved,
            channels,
            query: key_head * DELTA_HEAD,
            key: (key_heads + key_head) * DELTA_HEAD,
            value: (2 * key_heads + head) * DELTA_HEAD,
            decay,
            beta,
            heads: value_heads,
            head,
            state: &mut tiled,
            out: &mut of_head,
        };
        vector::run(Simd::Scalar, rule);
        pairs().for_each(|(value, key)| state[value * DELTA_HEAD + key] = tiled[place(value, key)]);
        for (row, of_row) in of_head.chunks_exact(DELTA_HEAD).enumerate() {
            out[(row * value_heads + head) * DELTA_HEAD..][..DELTA_HEAD].copy_from_slice(of_row);
        }
    }
    out
}

/// Per head of o and z, `[…, 128]`: RMSNorm(o) · weight · silu(z).
#[must_use]
pub fn gated_norm(o: &[f32], weight: &[f32], z: &[f32], epsilon: f32) -> Vec<f32> {
    let mut out = o.to_vec();
    for (x, z) in out.chunks_exact_mut(weight.len()).zip(z.chunks_exact(weight.len())) {
        vector::run(Simd::Scalar, GatedNorm { x, weight, z, epsilon });
    }
    out
}

/// The `chosen` experts of each row of `logits[rows, experts]` by descending weight, equals by ascending expert, with
/// their softmax: `[rows][chosen]`.
#[must_use]
pub fn route(logits: &[f32], experts: usize, chosen: usize) -> Vec<Vec<(u32, f32)>> {
    let mut routing = Routing::default();
    routing.route(logits, experts, chosen);
    (0..logits.len() / experts).map(|row| routing.choices(row).collect()).collect()
}

/// Attention of the query heads of one KV head, `[group, 256]`, normalised and turned, over the whole of keys and values,
/// `[tokens, 256]`: softmax(q·K / 16) V, `[group, 256]`.
#[must_use]
pub fn attention(queries: &[f32], keys: &[f16], values: &[f16]) -> Vec<f32> {
    let group = queries.len() / HEAD;
    // The kernel takes queries that lie between gates, and already over √256.
    let spread: Vec<f32> =
        queries.chunks_exact(HEAD).flat_map(|head| head.iter().map(|q| q / 16.0).chain([0.0; HEAD])).collect();
    let mut partials = Vec::new();
    for (keys, values) in keys.chunks(SPAN_TOKENS * HEAD).zip(values.chunks(SPAN_TOKENS * HEAD)) {
        let mut memory = vec![0.0; Partial::size(group)];
        let mut partial = Partial::cut(&mut memory, group);
        partial.clear();
        for (keys, values) in keys.chunks(PAGE_TOKENS * HEAD).zip(values.chunks(PAGE_TOKENS * HEAD)) {
            let count = keys.len() / HEAD;
            let block = Block { queries: &spread, keys, values, count, partial: partial.reborrow() };
            vector::run(Simd::Scalar, block);
        }
        partials.extend(memory);
    }
    let mut out = vec![0.0; queries.len()];
    merge_all(Simd::Scalar, &partials, group, &mut out);
    out
}

/// A step of one run, first to last row.
fn step(rows: usize) -> Step {
    Step { simd: Simd::Scalar, rows, runs: vec![Run { first_row: 0, rows, position: 0 }], rope: Rope::new(2, 1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vector::tests::noise;

    /// The layouts that this module turns into the kernels' own.
    #[test]
    fn the_delta_rule_agrees_with_its_definition() {
        let (rows, key_heads, value_heads) = (3, 1, 2);
        let channels = (2 * key_heads + value_heads) * DELTA_HEAD;
        let (convolved, mut state) = (noise(1, rows * channels), noise(2, value_heads * DELTA_HEAD * DELTA_HEAD));
        let (decay, beta) = (vec![0.9; rows * value_heads], vec![0.3; rows * value_heads]);
        let mut exact: Vec<f64> = state.iter().map(|&s| s.into()).collect();
        let o = delta_rule(&convolved, &decay, &beta, key_heads, value_heads, &mut state);
        for row in 0..rows {
            let wide: Vec<f64> = convolved[row * channels..][..channels].iter().map(|&x| x.into()).collect();
            let (q, k) = (&wide[..DELTA_HEAD], &wide[DELTA_HEAD..2 * DELTA_HEAD]);
            for head in 0..value_heads {
                for value in 0..DELTA_HEAD {
                    let s = &mut exact[(head * DELTA_HEAD + value) * DELTA_HEAD..][..DELTA_HEAD];
                    s.iter_mut().for_each(|s| *s *= f64::from(0.9f32));
                    let seen: f64 = s.iter().zip(k).map(|(s, k)| s * k).sum();
                    let update = f64::from(0.3f32) * (wide[(2 + head) * DELTA_HEAD + value] - seen);
                    s.iter_mut().zip(k).for_each(|(s, k)| *s += update * k);
                    let expected: f64 = s.iter().zip(q).map(|(s, q)| s * q).sum();
                    let got = f64::from(o[(row * value_heads + head) * DELTA_HEAD + value]);
                    assert!((got - expected).abs() < 1e-3 * (1.0 + expected.abs()), "row {row}, head {head}, {value}");
                }
            }
        }
        assert!(state.iter().zip(&exact).all(|(s, e)| (f64::from(*s) - e).abs() < 1e-3 * (1.0 + e.abs())));
    }

    #[test]
    fn attention_agrees_with_a_naive_softmax_beyond_a_span() {
        let (tokens, group) = (SPAN_TOKENS + 70, 2);
        let half = |seed| noise(seed, tokens * HEAD).into_iter().map(f16::from_f32).collect::<Vec<_>>();
        let (queries, keys, values) = (noise(3, group * HEAD), half(1), half(2));
        let out = attention(&queries, &keys, &values);
        for (query, out) in queries.chunks(HEAD).zip(out.chunks(HEAD)) {
            let score = |key: &[f16]| query.iter().zip(key).map(|(q, k)| f64::from(*q) * k.to_f64()).sum::<f64>();
            let weights: Vec<f64> = keys.chunks(HEAD).map(|key| (score(key) / 16.0).exp()).collect();
            for (dim, out) in out.iter().enumerate() {
                let sum: f64 = values.iter().skip(dim).step_by(HEAD).zip(&weights).map(|(v, w)| v.to_f64() * w).sum();
                assert!((f64::from(*out) - sum / weights.iter().sum::<f64>()).abs() < 1e-5);
            }
        }
    }
}

//! Gated softmax attention with grouped queries and partial RoPE.
//!
//! With x a row of the normalised residual stream, per query head:
//!
//! ```text
//! q | gate = W_q x;  k = W_k x;  v = W_v x
//! q ← rope(rms_norm(q)) / √256;  k ← rope(rms_norm(k))
//! y = W_o (softmax(q·K) V · sigmoid(gate))        over the keys up to the row's own position
//! ```
//!
//! A query's context is cut into spans of [`SPAN_TOKENS`] at absolute positions. Each span is an online softmax over
//! its pages ([`span`]); the spans' partial results are merged in order. A decoded token's spans run in parallel, a
//! prompt's tiles of queries in parallel and their spans one after another: the arithmetic is the same.

pub(crate) mod span;

use std::sync::Arc;

use lily_checkpoint::{AttentionConfig, Config};
use rayon::prelude::*;

use crate::activations::{Activations, Planes};
use crate::math::sigmoid;
use crate::matmul::matmul;
use crate::norm::rms_norm_row;
use crate::rope::rotate;
use crate::state::{Layout, PAGE_TOKENS, State};
use crate::step::{Run, Step, linear};
use crate::vector::{self, Kernel, Lanes};
use crate::workspace::Scratch;
use span::{Block, Partial};

/// Width of a head; the checkpoint crate refuses any other.
const HEAD_DIM: usize = 256;
/// Tokens of a span: sixteen pages.
pub(crate) const SPAN_TOKENS: usize = 1024;
/// Queries of a prompt that go over the keys together, so that a page is read from memory once for all of them.
const TILE_QUERIES: usize = 8;
/// Rows handed to a thread at once.
const ROWS_PER_TASK: usize = 4;

/// An attention layer.
pub(crate) struct Attention {
    weights: lily_checkpoint::Attention,
    sizes: AttentionConfig,
    epsilon: f32,
    layout: Layout,
    /// Its number among the attention layers.
    layer: usize,
}

impl Attention {
    pub(crate) fn new(config: &Config, weights: lily_checkpoint::Attention, layer: usize) -> Self {
        Self {
            weights,
            sizes: config.attention.clone(),
            epsilon: config.rms_norm_eps,
            layout: Layout::new(config),
            layer,
        }
    }

    /// Columns of the activations: queries and gates, k, v, attended, gated.
    pub(crate) fn widths(sizes: &AttentionConfig) -> [usize; 5] {
        let (heads, kv_heads) = (sizes.heads * HEAD_DIM, sizes.kv_heads * HEAD_DIM);
        [2 * heads, kv_heads, kv_heads, heads, heads]
    }

    /// Partial results of one decoded token whose context has `tokens` tokens.
    pub(crate) fn partials(sizes: &AttentionConfig, tokens: usize) -> usize {
        tokens.div_ceil(SPAN_TOKENS) * sizes.kv_heads * Partial::size(sizes.heads / sizes.kv_heads)
    }

    /// `out[rows, hidden]` from the normalised `input[rows, hidden]`; `states` are the sequences of the runs, with room
    /// for their rows.
    pub(crate) fn forward(
        &self,
        step: &Step,
        input: &Activations,
        states: &mut [&mut State],
        scratch: &mut Scratch,
        out: &mut [f32],
    ) {
        let Scratch { part, partials, inner } = scratch;
        let [queries, keys, values, attended, gated] = part.carve(step.rows, Self::widths(&self.sizes));
        matmul(
            step.simd,
            &mut [
                linear(&self.weights.q_proj, input, queries),
                linear(&self.weights.k_proj, input, keys),
                linear(&self.weights.v_proj, input, values),
            ],
        );
        self.normalise_and_turn(step, queries, keys);
        self.store(step, keys, values, states);
        let pasts: Vec<&State> = states.iter().map(|state| &**state).collect();
        let decoded = step.runs.iter().filter(|run| run.rows == 1);
        let [partials] = partials.carve(1, [decoded.map(|run| Self::partials(&self.sizes, run.position + 1)).sum()]);
        self.attend(step, queries, &pasts, attended, partials);
        self.merge_and_gate(step, queries, attended, partials, gated);
        inner.set(step.simd, gated, step.rows, self.sizes.heads * HEAD_DIM, Planes::One);
        matmul(step.simd, &mut [linear(&self.weights.o_proj, inner, out)]);
    }

    /// Query heads of a KV head.
    fn group(&self) -> usize {
        self.sizes.heads / self.sizes.kv_heads
    }

    /// Normalises and turns the heads in place; queries also get the factor 1/√256.
    fn normalise_and_turn(&self, step: &Step, queries: &mut [f32], keys: &mut [f32]) {
        let [query_width, key_width, ..] = Self::widths(&self.sizes);
        let rows = queries.par_chunks_exact_mut(query_width).zip(keys.par_chunks_exact_mut(key_width)).enumerate();
        rows.with_min_len(ROWS_PER_TASK).for_each(|(row, (queries, keys))| {
            let turns = step.rope.row(row);
            let queries =
                Heads { heads: queries, stride: 2 * HEAD_DIM, weight: &self.weights.q_norm, scale: 1.0 / 16.0 };
            vector::run(step.simd, Turn { heads: queries, epsilon: self.epsilon, turns });
            let keys = Heads { heads: keys, stride: HEAD_DIM, weight: &self.weights.k_norm, scale: 1.0 };
            vector::run(step.simd, Turn { heads: keys, epsilon: self.epsilon, turns });
        });
    }

    /// Appends keys and values to the pages.
    fn store(&self, step: &Step, keys: &[f32], values: &[f32], states: &mut [&mut State]) {
        let width = self.sizes.kv_heads * HEAD_DIM;
        let mut tasks = Vec::new();
        for (run, state) in step.runs.iter().zip(states) {
            let pages = state.pages[run.position / PAGE_TOKENS..].iter_mut();
            let mut slot = run.position % PAGE_TOKENS;
            let mut row = run.first_row;
            for page in pages {
                let rows = (PAGE_TOKENS - slot).min(run.first_row + run.rows - row);
                if rows == 0 {
                    break;
                }
                let page = Arc::get_mut(page).expect("`State::reserve` made the page this state's own");
                tasks.push((page, slot, row..row + rows));
                (slot, row) = (0, row + rows);
            }
        }
        tasks.into_par_iter().with_min_len(ROWS_PER_TASK).for_each(|(page, slot, rows)| {
            for (index, row) in rows.enumerate() {
                let of_row = row * width..(row + 1) * width;
                page.store(&self.layout, self.layer, slot + index, &keys[of_row.clone()], &values[of_row]);
            }
        });
    }

    /// Attends with all rows: the tiles of prompts into `attended[kv_heads, rows, group, 256]`, decoded tokens (runs of
    /// one row) into `partials`, run after run `[kv_heads, spans]` of them.
    fn attend(&self, step: &Step, queries: &[f32], pasts: &[&State], attended: &mut [f32], partials: &mut [f32]) {
        let group = self.group();
        let mut spans = partials.chunks_exact_mut(Partial::size(group));
        let mut tasks = Vec::new();
        for (run, &past) in step.runs.iter().zip(pasts).filter(|(run, _)| run.rows == 1) {
            for kv_head in 0..self.sizes.kv_heads {
                let context = Context { layer: self, queries, past, kv_head };
                for (span, partial) in spans.by_ref().take(run.position / SPAN_TOKENS + 1).enumerate() {
                    tasks.push(Task::Span { context, row: run.first_row, position: run.position, span, partial });
                }
            }
        }
        for (kv_head, mut attended) in attended.chunks_exact_mut(step.rows * group * HEAD_DIM).enumerate() {
            for (run, &past) in step.runs.iter().zip(pasts) {
                let (out, rest) = attended.split_at_mut(run.rows * group * HEAD_DIM);
                attended = rest;
                if run.rows == 1 {
                    continue;
                }
                let context = Context { layer: self, queries, past, kv_head };
                for (tile, out) in out.chunks_mut(TILE_QUERIES * group * HEAD_DIM).enumerate() {
                    let (row, position) = (run.first_row + tile * TILE_QUERIES, run.position + tile * TILE_QUERIES);
                    tasks.push(Task::Tile { context, row, position, out });
                }
            }
        }
        tasks.into_par_iter().with_max_len(1).for_each_init(Vec::new, |memory, task| task.run(step, memory));
    }

    /// `gated[rows, heads · 256]`: what was attended times sigmoid(gate); a decoded token's partial results are merged
    /// first.
    fn merge_and_gate(&self, step: &Step, queries: &[f32], attended: &[f32], partials: &[f32], gated: &mut [f32]) {
        let [query_width, _, _, _, width] = Self::widths(&self.sizes);
        let group_width = self.group() * HEAD_DIM;
        let decoded = self.partials_of_rows(step, partials);
        gated.par_chunks_exact_mut(width).enumerate().with_min_len(ROWS_PER_TASK).for_each(|(row, gated)| {
            for (kv_head, out) in gated.chunks_exact_mut(group_width).enumerate() {
                if let Some(partials) = decoded[row] {
                    let of_head = partials.len() / self.sizes.kv_heads;
                    span::merge_all(step.simd, &partials[kv_head * of_head..][..of_head], self.group(), out);
                } else {
                    out.copy_from_slice(&attended[(kv_head * step.rows + row) * group_width..][..group_width]);
                }
            }
            let gates = &queries[row * query_width..][..query_width];
            vector::run(step.simd, Gate { out: gated, gates });
        });
    }

    /// For each row that is a decoded token, its partial results.
    fn partials_of_rows<'a>(&self, step: &Step, mut partials: &'a [f32]) -> Vec<Option<&'a [f32]>> {
        let mut of_rows = vec![None; step.rows];
        for Run { first_row, position, .. } in step.runs.iter().filter(|run| run.rows == 1) {
            let (of_row, rest) = partials.split_at(Self::partials(&self.sizes, position + 1));
            of_rows[*first_row] = Some(of_row);
            partials = rest;
        }
        of_rows
    }
}

/// What a task attends to.
#[derive(Clone, Copy)]
struct Context<'a> {
    layer: &'a Attention,
    /// Of all rows.
    queries: &'a [f32],
    past: &'a State,
    kv_head: usize,
}

impl Context<'_> {
    /// Adds to a row's partial result what its query finds in a page, up to its own position.
    fn attend(&self, step: &Step, page: usize, row: usize, position: usize, partial: Partial<'_>) {
        let (layer, group) = (self.layer, self.layer.group());
        let [width, ..] = Attention::widths(&layer.sizes);
        let (keys, values) = self.past.pages[page].head(&layer.layout, layer.layer, self.kv_head);
        let queries = &self.queries[row * width + self.kv_head * group * 2 * HEAD_DIM..][..group * 2 * HEAD_DIM];
        let count = (position + 1 - page * PAGE_TOKENS).min(PAGE_TOKENS);
        vector::run(step.simd, Block { queries, keys, values, count, partial });
    }
}

/// A piece of the attention of a step.
enum Task<'a> {
    /// A decoded token, one KV head, one span.
    Span { context: Context<'a>, row: usize, position: usize, span: usize, partial: &'a mut [f32] },
    /// At most [`TILE_QUERIES`] tokens of a prompt, the first in `row` at `position`, one KV head, all spans.
    Tile { context: Context<'a>, row: usize, position: usize, out: &'a mut [f32] },
}

impl Task<'_> {
    fn run(self, step: &Step, memory: &mut Vec<f32>) {
        match self {
            Self::Span { context, row, position, span, partial } => {
                let mut partial = Partial::cut(partial, context.layer.group());
                partial.clear();
                for page in pages(span, position) {
                    context.attend(step, page, row, position, partial.reborrow());
                }
            }
            Self::Tile { context, row, position, out } => tile(step, context, row, position, memory, out),
        }
    }
}

/// The pages of a span up to a position.
fn pages(span: usize, position: usize) -> std::ops::Range<usize> {
    const PAGES: usize = SPAN_TOKENS / PAGE_TOKENS;
    span * PAGES..((span + 1) * PAGES).min(position / PAGE_TOKENS + 1)
}

/// Attends with consecutive tokens of a prompt: `out[tokens, group, 256]`. `memory` is anything.
fn tile(step: &Step, context: Context<'_>, row: usize, position: usize, memory: &mut Vec<f32>, out: &mut [f32]) {
    let group = context.layer.group();
    let size = Partial::size(group);
    let queries = out.len() / (group * HEAD_DIM);
    let last = position + queries - 1;
    // A partial result of all spans before, and one of the span at hand, for each query.
    memory.resize(2 * queries * size, 0.0);
    let (merged, current) = memory.split_at_mut(queries * size);
    for span in 0..=last / SPAN_TOKENS {
        let target = if span == 0 { &mut *merged } else { &mut *current };
        target.chunks_exact_mut(size).for_each(|partial| Partial::cut(partial, group).clear());
        for page in pages(span, last) {
            for (query, partial) in target.chunks_exact_mut(size).enumerate() {
                if position + query >= page * PAGE_TOKENS {
                    context.attend(step, page, row + query, position + query, Partial::cut(partial, group));
                }
            }
        }
        if span > 0 {
            for (query, (merged, current)) in merged.chunks_exact_mut(size).zip(current.chunks_exact(size)).enumerate()
            {
                if position + query >= span * SPAN_TOKENS {
                    span::merge(step.simd, Partial::cut(merged, group), current);
                }
            }
        }
    }
    for (out, merged) in out.chunks_exact_mut(group * HEAD_DIM).zip(merged.chunks_exact_mut(size)) {
        span::finish(step.simd, Partial::cut(merged, group), out);
    }
}

/// Heads that lie `stride` apart, their norm's weight, and a factor.
struct Heads<'a> {
    heads: &'a mut [f32],
    stride: usize,
    weight: &'a [f32],
    scale: f32,
}

/// Normalises, turns and scales the heads of one row in place.
struct Turn<'a> {
    heads: Heads<'a>,
    epsilon: f32,
    turns: &'a [(f32, f32)],
}

impl Kernel for Turn<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let Heads { heads, stride, weight, scale } = self.heads;
        for head in heads.chunks_exact_mut(stride) {
            let head = &mut head[..HEAD_DIM];
            rms_norm_row::<V>(head, weight, self.epsilon);
            rotate(head, self.turns);
            // A power of two: nothing is rounded.
            head.iter_mut().for_each(|x| *x *= scale);
        }
    }
}

/// One row: `out[heads, 256] ·= sigmoid(gate)`, the gates being the second halves of `gates[heads, 512]`.
struct Gate<'a> {
    out: &'a mut [f32],
    gates: &'a [f32],
}

impl Kernel for Gate<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        for (out, gates) in self.out.chunks_exact_mut(HEAD_DIM).zip(self.gates.chunks_exact(2 * HEAD_DIM)) {
            for (out, gate) in out.iter_mut().zip(&gates[HEAD_DIM..]) {
                *out *= sigmoid(*gate);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rope::Rope;
    use crate::simd::Simd;
    use crate::vector::tests::noise;

    #[test]
    fn heads_are_normalised_turned_scaled_and_gated_on_every_instruction_set() {
        let (heads, weight, gates) = (noise(1, 3 * 2 * HEAD_DIM), noise(2, HEAD_DIM), noise(3, 3 * 2 * HEAD_DIM));
        let mut rope = Rope::new(64, 1e7);
        rope.set([777].into_iter());
        let mut first = None;
        for simd in Simd::available() {
            let (mut turned, mut gated) = (heads.clone(), noise(4, 3 * HEAD_DIM));
            let of_row = Heads { heads: &mut turned, stride: 2 * HEAD_DIM, weight: &weight, scale: 0.0625 };
            vector::run(simd, Turn { heads: of_row, epsilon: 1e-6, turns: rope.row(0) });
            vector::run(simd, Gate { out: &mut gated, gates: &gates });
            let both = (turned, gated);
            assert_eq!(&both, first.get_or_insert(both.clone()), "{simd}");
        }
        let (turned, gated) = first.expect("the scalar twin at least");
        for head in 0..3 {
            let of_head = 2 * HEAD_DIM * head..2 * HEAD_DIM * head + HEAD_DIM;
            let (before, after) = (&heads[of_head.clone()], &turned[of_head.clone()]);
            let mean = before.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / HEAD_DIM as f64;
            let normed = |dim: usize| f64::from(before[dim] * weight[dim]) / (mean + 1e-6).sqrt() / 16.0;
            let angle = 777.0 / 1e7f64.powf(5.0 / 32.0);
            let exact = normed(5) * angle.cos() - normed(37) * angle.sin();
            assert!((f64::from(after[5]) - exact).abs() < 1e-6);
            assert!((f64::from(after[200]) - normed(200)).abs() < 1e-6);
            assert_eq!(turned[of_head.end..][..HEAD_DIM], heads[of_head.end..][..HEAD_DIM], "gates stay");
            let gate = f64::from(gates[of_head.end + 9]);
            let exact = f64::from(noise(4, 3 * HEAD_DIM)[head * HEAD_DIM + 9]) / (1.0 + (-gate).exp());
            assert!((f64::from(gated[head * HEAD_DIM + 9]) - exact).abs() < 1e-6);
        }
    }
}

//! The softmax of a span of keys, page by page, and how the results of spans come together (Milakov and Gimelshein,
//! "Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022).

use half::f16;

use super::HEAD_DIM;
use crate::math::exp;
use crate::simd::Simd;
use crate::state::PAGE_TOKENS;
use crate::vector::{self, Kernel, LANES, Lanes};

/// Vectors of a head.
const VECTORS: usize = HEAD_DIM / LANES;
/// Query heads that go over the keys together: their sums and two keys fill the registers.
const ROWS: usize = 4;

/// Softmax attention over some of the keys, of all query heads of a KV head: Σ e^(s − max) · v and Σ e^(s − max).
pub(crate) struct Partial<'a> {
    /// `[group, 256]`
    out: &'a mut [f32],
    /// `[group]`
    max: &'a mut [f32],
    /// `[group]`
    sum: &'a mut [f32],
}

impl<'a> Partial<'a> {
    /// fp32 values that it takes.
    pub(crate) const fn size(group: usize) -> usize {
        group * (HEAD_DIM + 2)
    }

    /// In memory of that size.
    pub(crate) fn cut(memory: &'a mut [f32], group: usize) -> Self {
        let (out, rest) = memory.split_at_mut(group * HEAD_DIM);
        let (max, sum) = rest.split_at_mut(group);
        Self { out, max, sum }
    }

    /// Over no keys.
    pub(crate) fn clear(&mut self) {
        self.out.fill(0.0);
        self.max.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
    }

    pub(crate) fn reborrow(&mut self) -> Partial<'_> {
        Partial { out: self.out, max: self.max, sum: self.sum }
    }
}

/// Adds the first `count` keys of a page to a partial result. Keys beyond are not looked at, so that a query's bits do
/// not depend on what comes after it.
pub(crate) struct Block<'a> {
    /// `[group, 512]`: the first half of each row is a query.
    pub(crate) queries: &'a [f32],
    /// `[64, 256]`
    pub(crate) keys: &'a [f16],
    /// `[64, 256]`
    pub(crate) values: &'a [f16],
    pub(crate) count: usize,
    pub(crate) partial: Partial<'a>,
}

type Head = [[f32; LANES]; VECTORS];
type HalfHead = [[f16; LANES]; VECTORS];

impl Kernel for Block<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let Self { queries, keys, values, count, partial } = self;
        let queries = queries.as_chunks::<LANES>().0.as_chunks::<VECTORS>().0.as_chunks::<2>().0;
        let outs = partial.out.as_chunks_mut::<LANES>().0.as_chunks_mut::<VECTORS>().0;
        let keys = &keys.as_chunks::<LANES>().0.as_chunks::<VECTORS>().0[..count];
        let values = &values.as_chunks::<LANES>().0.as_chunks::<VECTORS>().0[..count];
        let (query_tiles, queries) = queries.as_chunks::<ROWS>();
        let (out_tiles, outs) = outs.as_chunks_mut::<ROWS>();
        let (max_tiles, maxima) = partial.max.as_chunks_mut::<ROWS>();
        let (sum_tiles, sums) = partial.sum.as_chunks_mut::<ROWS>();
        for (((queries, out), max), sum) in query_tiles.iter().zip(out_tiles).zip(max_tiles).zip(sum_tiles) {
            rows::<V, ROWS>(queries.each_ref().map(|query| &query[0]), keys, values, out, max, sum);
        }
        for (((query, out), max), sum) in queries.iter().zip(outs).zip(maxima).zip(sums) {
            rows::<V, 1>(
                [&query[0]],
                keys,
                values,
                std::array::from_mut(out),
                std::array::from_mut(max),
                std::array::from_mut(sum),
            );
        }
    }
}

/// One pass over a page with `R` query heads.
#[inline(always)]
fn rows<V: Lanes, const R: usize>(
    queries: [&Head; R],
    keys: &[HalfHead],
    values: &[HalfHead],
    out: &mut [Head; R],
    max: &mut [f32; R],
    sum: &mut [f32; R],
) {
    let mut weights = [[f32::NEG_INFINITY; PAGE_TOKENS]; R];
    let (pairs, rest) = keys.as_chunks::<2>();
    for (index, keys) in pairs.iter().enumerate() {
        let products = products::<V, R, 2>(queries, keys.each_ref());
        for row in 0..R {
            weights[row][2 * index] = products[row][0];
            weights[row][2 * index + 1] = products[row][1];
        }
    }
    for key in rest {
        let products = products::<V, R, 1>(queries, [key]);
        for row in 0..R {
            weights[row][2 * pairs.len()] = products[row][0];
        }
    }
    let mut corrections = [V::splat(1.0); R];
    for row in 0..R {
        let correction = exponentials::<V>(&mut weights[row], &mut max[row], &mut sum[row]);
        corrections[row] = V::splat(correction);
    }
    // Two vectors of the head at a time: their sums stay in registers while the values pass.
    for pair in 0..VECTORS / 2 {
        let mut sums = [[V::splat(0.0); 2]; R];
        for row in 0..R {
            for half in 0..2 {
                sums[row][half] = V::load(&out[row][2 * pair + half]).mul(corrections[row]);
            }
        }
        for (key, value) in values.iter().enumerate() {
            let value = [V::load_f16(&value[2 * pair]), V::load_f16(&value[2 * pair + 1])];
            for row in 0..R {
                let weight = V::splat(weights[row][key]);
                for half in 0..2 {
                    sums[row][half] = weight.mul_add(value[half], sums[row][half]);
                }
            }
        }
        for row in 0..R {
            for half in 0..2 {
                sums[row][half].store(&mut out[row][2 * pair + half]);
            }
        }
    }
}

/// q·k of `R` queries and `K` keys, each in one chain of eight lanes.
#[inline(always)]
fn products<V: Lanes, const R: usize, const K: usize>(queries: [&Head; R], keys: [&HalfHead; K]) -> [[f32; K]; R] {
    let mut sums = [[V::splat(0.0); K]; R];
    for vector in 0..VECTORS {
        let mut loaded = [V::splat(0.0); K];
        for key in 0..K {
            loaded[key] = V::load_f16(&keys[key][vector]);
        }
        for row in 0..R {
            let query = V::load(&queries[row][vector]);
            for key in 0..K {
                sums[row][key] = query.mul_add(loaded[key], sums[row][key]);
            }
        }
    }
    let mut products = [[0.0; K]; R];
    for row in 0..R {
        for key in 0..K {
            products[row][key] = sums[row][key].sum();
        }
    }
    products
}

/// Turns a page's scores, −∞ where there is no key, into e^(score − max) with the largest score so far, which is
/// updated as is the sum; returns what the results so far must be multiplied by.
#[inline(always)]
fn exponentials<V: Lanes>(scores: &mut [f32; PAGE_TOKENS], max: &mut f32, sum: &mut f32) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut maxima = [*max; LANES];
    for scores in scores.as_chunks::<LANES>().0 {
        for (max, score) in maxima.iter_mut().zip(scores) {
            *max = larger(*max, *score);
        }
    }
    let new = maxima.into_iter().fold(*max, larger);
    for score in scores.iter_mut() {
        *score = exp(*score - new);
    }
    let mut total = V::splat(0.0);
    for scores in scores.as_chunks::<LANES>().0 {
        total = total.add(V::load(scores));
    }
    let correction = exp(*max - new);
    *max = new;
    *sum = *sum * correction + total.sum();
    correction
}

/// Adds to `merged` the partial result of the span that follows.
pub(crate) fn merge(simd: Simd, merged: Partial<'_>, next: &[f32]) {
    vector::run(simd, Merge { merged, next });
}

struct Merge<'a> {
    merged: Partial<'a>,
    /// Laid out as a [`Partial`].
    next: &'a [f32],
}

impl Kernel for Merge<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let group = self.merged.max.len();
        let (outs, rest) = self.next.split_at(group * HEAD_DIM);
        let (maxima, sums) = rest.split_at(group);
        for row in 0..group {
            let (max, next_max) = (self.merged.max[row], maxima[row]);
            let new = if next_max > max { next_max } else { max };
            let (before, after) = (exp(max - new), exp(next_max - new));
            self.merged.max[row] = new;
            self.merged.sum[row] = self.merged.sum[row] * before + sums[row] * after;
            let out = &mut self.merged.out[row * HEAD_DIM..][..HEAD_DIM];
            for (out, next) in out.iter_mut().zip(&outs[row * HEAD_DIM..]) {
                *out = *out * before + next * after;
            }
        }
    }
}

/// `out[group, 256]`: a partial result over all keys divided by its sum.
pub(crate) fn finish(simd: Simd, merged: Partial<'_>, out: &mut [f32]) {
    vector::run(simd, Finish { merged, out });
}

struct Finish<'a> {
    merged: Partial<'a>,
    out: &'a mut [f32],
}

impl Kernel for Finish<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let rows = self.out.chunks_exact_mut(HEAD_DIM).zip(self.merged.out.chunks_exact(HEAD_DIM));
        for ((out, merged), sum) in rows.zip(self.merged.sum) {
            let inverse = 1.0 / *sum;
            for (out, merged) in out.iter_mut().zip(merged) {
                *out = merged * inverse;
            }
        }
    }
}

/// `out[group, 256]` from the partial results of all spans, one after another.
pub(crate) fn merge_all(simd: Simd, partials: &[f32], group: usize, out: &mut [f32]) {
    let (first, rest) = partials.split_at(Partial::size(group));
    let mut memory = first.to_vec();
    for next in rest.chunks_exact(Partial::size(group)) {
        merge(simd, Partial::cut(&mut memory, group), next);
    }
    finish(simd, Partial::cut(&mut memory, group), out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vector::tests::noise;

    const PAGES: usize = 3;

    fn half(seed: u64) -> Vec<f16> {
        noise(seed, PAGES * PAGE_TOKENS * HEAD_DIM).into_iter().map(f16::from_f32).collect()
    }

    /// Attends to the first `tokens` keys, pages cut into spans of `span` pages.
    fn attend(simd: Simd, queries: &[f32], keys: &[f16], values: &[f16], tokens: usize, span: usize) -> Vec<f32> {
        let group = queries.len() / (2 * HEAD_DIM);
        let mut partials = Vec::new();
        let page_size = PAGE_TOKENS * HEAD_DIM;
        for first in (0..tokens.div_ceil(PAGE_TOKENS)).step_by(span) {
            let mut memory = vec![f32::NAN; Partial::size(group)];
            let mut partial = Partial::cut(&mut memory, group);
            partial.clear();
            for page in first..(first + span).min(tokens.div_ceil(PAGE_TOKENS)) {
                let (keys, values) = (&keys[page * page_size..][..page_size], &values[page * page_size..][..page_size]);
                let count = (tokens - page * PAGE_TOKENS).min(PAGE_TOKENS);
                vector::run(simd, Block { queries, keys, values, count, partial: partial.reborrow() });
            }
            partials.extend(memory);
        }
        let mut out = vec![0.0; group * HEAD_DIM];
        merge_all(simd, &partials, group, &mut out);
        out
    }

    #[test]
    fn agrees_with_a_naive_f64_softmax_on_every_instruction_set() {
        let (keys, values) = (half(1), half(2));
        for group in [1, 4, 7, 8] {
            let queries = noise(3, group * 2 * HEAD_DIM);
            for (tokens, span) in [(1, 1), (64, 1), (65, 1), (150, 1), (150, 2), (192, 3)] {
                let out = attend(Simd::Scalar, &queries, &keys, &values, tokens, span);
                for (query, out) in queries.chunks(2 * HEAD_DIM).zip(out.chunks(HEAD_DIM)) {
                    let exponentials: Vec<f64> = keys
                        .chunks(HEAD_DIM)
                        .take(tokens)
                        .map(|key| query.iter().zip(key).map(|(q, k)| f64::from(*q) * k.to_f64()).sum::<f64>().exp())
                        .collect();
                    let sum: f64 = exponentials.iter().sum();
                    for (dim, out) in out.iter().enumerate() {
                        let of_dim = values.iter().skip(dim).step_by(HEAD_DIM);
                        let exact: f64 = of_dim.zip(&exponentials).map(|(v, e)| v.to_f64() * e).sum::<f64>() / sum;
                        assert!((f64::from(*out) - exact).abs() < 2e-5, "{tokens} keys: {out} against {exact}");
                    }
                }
                for simd in Simd::available() {
                    assert_eq!(attend(simd, &queries, &keys, &values, tokens, span), out, "{simd}");
                }
            }
        }
    }

    #[test]
    fn what_lies_behind_a_query_is_not_looked_at() {
        let (mut keys, mut values) = (half(1), half(2));
        let queries = noise(3, 4 * 2 * HEAD_DIM);
        let before = attend(Simd::best(), &queries, &keys, &values, 100, 2);
        keys[100 * HEAD_DIM..].fill(f16::NAN);
        values[100 * HEAD_DIM..].fill(f16::NAN);
        assert_eq!(attend(Simd::best(), &queries, &keys, &values, 100, 2), before);
    }
}

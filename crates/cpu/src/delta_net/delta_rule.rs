//! The gated delta rule, token by token.

use super::HEAD_DIM;
use crate::vector::{Kernel, LANES, Lanes};

/// Values whose columns of the state lie together. Such a tile is 16 KiB and stays in the first cache while the tokens
/// of a chunk pass over it; its four vectors and their results fit the registers.
const TILE: usize = 32;
const VECTORS: usize = TILE / LANES;

/// One value head of one run: `S ← αS; u = β(v − S·k); S ← S + u⊗k; o = S·q` for each token.
///
/// S is laid out `[128 / TILE, 128 keys, TILE values]`. Both sums run over the keys in order, a lane a value: S·k in
/// two chains, the even and the odd keys, S·q in one.
pub(crate) struct DeltaRule<'a> {
    /// `[tokens, channels]`: the convolved row of each token.
    pub(crate) inputs: &'a [f32],
    pub(crate) channels: usize,
    /// Where in a row the head's query, key and value begin.
    pub(crate) query: usize,
    pub(crate) key: usize,
    pub(crate) value: usize,
    /// α, `[tokens, heads]`.
    pub(crate) decay: &'a [f32],
    /// β, `[tokens, heads]`.
    pub(crate) beta: &'a [f32],
    pub(crate) heads: usize,
    /// Which of the heads this is.
    pub(crate) head: usize,
    /// S.
    pub(crate) state: &'a mut [f32],
    /// `[tokens, 128]`: o.
    pub(crate) out: &'a mut [f32],
}

/// A tile's row of the state.
type Row = [[f32; LANES]; VECTORS];

impl Kernel for DeltaRule<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let state = self.state.as_chunks_mut::<LANES>().0.as_chunks_mut::<VECTORS>().0.as_chunks_mut::<HEAD_DIM>().0;
        for (tile, state) in state.iter_mut().enumerate() {
            let rows = self.inputs.chunks_exact(self.channels);
            let gates = self.decay.chunks_exact(self.heads).zip(self.beta.chunks_exact(self.heads));
            let outs = self.out.as_chunks_mut::<HEAD_DIM>().0;
            for ((row, (decay, beta)), out) in rows.zip(gates).zip(outs) {
                let head = |start: usize| row[start..].first_chunk::<HEAD_DIM>().expect("a head of 128");
                let value = row[self.value + tile * TILE..].first_chunk::<TILE>().expect("a tile of 32");
                let out = out[tile * TILE..].first_chunk_mut::<TILE>().expect("a tile of 32");
                let (decay, beta) = (decay[self.head], beta[self.head]);
                token::<V>(state, head(self.query), head(self.key), value, decay, beta, out);
            }
        }
    }
}

/// One token's pass over a tile.
#[inline(always)]
fn token<V: Lanes>(
    state: &mut [Row; HEAD_DIM],
    query: &[f32; HEAD_DIM],
    key: &[f32; HEAD_DIM],
    value: &[f32; TILE],
    decay: f32,
    beta: f32,
    out: &mut [f32; TILE],
) {
    let zero = V::splat(0.0);
    let (mut even, mut odd) = ([zero; VECTORS], [zero; VECTORS]);
    for (rows, keys) in state.as_chunks::<2>().0.iter().zip(key.as_chunks::<2>().0) {
        let keys = [V::splat(keys[0]), V::splat(keys[1])];
        for vector in 0..VECTORS {
            even[vector] = keys[0].mul_add(V::load(&rows[0][vector]), even[vector]);
            odd[vector] = keys[1].mul_add(V::load(&rows[1][vector]), odd[vector]);
        }
    }
    let value = value.as_chunks::<LANES>().0;
    let mut update = [zero; VECTORS];
    for vector in 0..VECTORS {
        let predicted = even[vector].add(odd[vector]);
        let error = predicted.mul_add(V::splat(-decay), V::load(&value[vector]));
        update[vector] = error.mul(V::splat(beta));
    }
    let decay = V::splat(decay);
    let mut sum = [zero; VECTORS];
    for ((row, key), query) in state.iter_mut().zip(key).zip(query) {
        let (key, query) = (V::splat(*key), V::splat(*query));
        for vector in 0..VECTORS {
            let new = key.mul_add(update[vector], V::load(&row[vector]).mul(decay));
            new.store(&mut row[vector]);
            sum[vector] = query.mul_add(new, sum[vector]);
        }
    }
    for (sum, out) in sum.into_iter().zip(out.as_chunks_mut::<LANES>().0) {
        sum.store(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::norm::unit_length;
    use crate::simd::Simd;
    use crate::vector::{self, tests::noise};

    const TOKENS: usize = 40;
    const CHANNELS: usize = 3 * HEAD_DIM;
    const HEADS: usize = 2;

    struct Unit<'a>(&'a mut [f32]);

    impl Kernel for Unit<'_> {
        type Output = ();
        #[inline(always)]
        fn run<V: Lanes>(self) {
            unit_length::<V>(self.0, 1.0);
        }
    }

    /// Rows of a query, a key of unit length and a value; decays and step sizes in (0, 1).
    fn inputs() -> (Vec<f32>, Vec<f32>, Vec<f32>) {
        let mut rows = noise(1, TOKENS * CHANNELS);
        for row in rows.chunks_mut(CHANNELS) {
            vector::run(Simd::Scalar, Unit(&mut row[HEAD_DIM..2 * HEAD_DIM]));
        }
        let positive = |seed| noise(seed, TOKENS * HEADS).iter().map(|x| 0.5 + 0.49 * x).collect();
        (rows, positive(2), positive(3))
    }

    fn run(simd: Simd, chunk: usize) -> (Vec<f32>, Vec<f32>) {
        let (rows, decay, beta) = inputs();
        let (mut state, mut out) = (vec![0.0; HEAD_DIM * HEAD_DIM], vec![0.0; TOKENS * HEAD_DIM]);
        let gates = decay.chunks(chunk * HEADS).zip(beta.chunks(chunk * HEADS));
        for ((inputs, (decay, beta)), out) in
            rows.chunks(chunk * CHANNELS).zip(gates).zip(out.chunks_mut(chunk * HEAD_DIM))
        {
            let (query, key, value) = (0, HEAD_DIM, 2 * HEAD_DIM);
            let state = &mut state;
            vector::run(
                simd,
                DeltaRule {
                    inputs,
                    channels: CHANNELS,
                    query,
                    key,
                    value,
                    decay,
                    beta,
                    heads: HEADS,
                    head: 1,
                    state,
                    out,
                },
            );
        }
        (out, state)
    }

    #[test]
    fn agrees_with_a_naive_f64_recurrence() {
        let (rows, decay, beta) = inputs();
        let (out, state) = run(Simd::best(), TOKENS);
        // S[value][key]
        let mut s = vec![[0f64; HEAD_DIM]; HEAD_DIM];
        for (token, row) in rows.chunks(CHANNELS).enumerate() {
            let row: Vec<f64> = row.iter().map(|&x| x.into()).collect();
            let (query, key, value) = (&row[..128], &row[128..256], &row[256..]);
            let (decay, beta) = (f64::from(decay[token * HEADS + 1]), f64::from(beta[token * HEADS + 1]));
            for (index, s) in s.iter_mut().enumerate() {
                s.iter_mut().for_each(|s| *s *= decay);
                let u = beta * (value[index] - s.iter().zip(key).map(|(s, k)| s * k).sum::<f64>());
                s.iter_mut().zip(key).for_each(|(s, k)| *s += u * k);
                let exact: f64 = s.iter().zip(query).map(|(s, q)| s * q).sum();
                let got = f64::from(out[token * HEAD_DIM + index]);
                assert!((got - exact).abs() < 1e-5, "token {token}, value {index}: {got} against {exact}");
            }
        }
        for (value, s) in s.iter().enumerate() {
            for (key, s) in s.iter().enumerate() {
                let got = state[(value / TILE * HEAD_DIM + key) * TILE + value % TILE];
                assert!((f64::from(got) - s).abs() < 1e-6, "S[{value}][{key}]: {got} against {s}");
            }
        }
    }

    #[test]
    fn chunks_and_instruction_sets_give_the_same_bits() {
        let expected = run(Simd::Scalar, TOKENS);
        for simd in Simd::available() {
            for chunk in [1, 7, TOKENS] {
                assert_eq!(run(simd, chunk), expected, "{simd}, chunks of {chunk}");
            }
        }
    }
}

//! Root-mean-square normalisation.

use rayon::prelude::*;

use crate::simd::Simd;
use crate::vector::{self, Kernel, LANES, Lanes};

/// Rows handed to a thread at once, so that a decode step does not wake threads for next to nothing.
const ROWS_PER_TASK: usize = 16;

/// RMSNorm of each row (Zhang and Sennrich, 2019): `out = x / √(mean(x²) + ε) · weight`. `x` and `out` are
/// `[rows, width]`, `weight` is `[width]`, a multiple of 16.
pub(crate) fn rms_norm(simd: Simd, x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    let width = weight.len();
    let rows = x.par_chunks_exact(width).zip(out.par_chunks_exact_mut(width)).with_min_len(ROWS_PER_TASK);
    rows.for_each(|(x, out)| {
        out.copy_from_slice(x);
        vector::run(simd, RmsNorm { x: out, weight, epsilon });
    });
}

/// RMSNorm of one row in place.
struct RmsNorm<'a> {
    x: &'a mut [f32],
    weight: &'a [f32],
    epsilon: f32,
}

impl Kernel for RmsNorm<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        rms_norm_row::<V>(self.x, self.weight, self.epsilon);
    }
}

/// RMSNorm of `x` in place, for use inside a kernel; the width is a multiple of 16.
#[inline(always)]
pub(crate) fn rms_norm_row<V: Lanes>(x: &mut [f32], weight: &[f32], epsilon: f32) {
    let mean = vector::dot::<V>(x, x) / x.len() as f32;
    let scale = V::splat(1.0 / (mean + epsilon).sqrt());
    for (x, weight) in x.as_chunks_mut::<LANES>().0.iter_mut().zip(weight.as_chunks::<LANES>().0) {
        V::load(x).mul(scale).mul(V::load(weight)).store(x);
    }
}

/// `x · factor / √(Σx² + 10⁻⁶)` in place, for use inside a kernel: the unit length that DeltaNet gives its queries and
/// keys (transformers' `l2norm`). The width is a multiple of 16.
#[inline(always)]
pub(crate) fn unit_length<V: Lanes>(x: &mut [f32], factor: f32) {
    let scale = V::splat(factor / (vector::dot::<V>(x, x) + 1e-6).sqrt());
    for x in x.as_chunks_mut::<LANES>().0 {
        V::load(x).mul(scale).store(x);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vector::tests::noise;

    #[test]
    fn agrees_with_f64_on_every_instruction_set() {
        const WIDTH: usize = 256;
        let x = noise(1, 40 * WIDTH);
        let weight = noise(2, WIDTH);
        let mut expected = vec![0.0; x.len()];
        rms_norm(Simd::Scalar, &x, &weight, 1e-6, &mut expected);
        for (x, y) in x.chunks(WIDTH).zip(expected.chunks(WIDTH)) {
            let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / WIDTH as f64;
            for ((x, weight), y) in x.iter().zip(&weight).zip(y) {
                let exact = f64::from(*x) / (mean + 1e-6).sqrt() * f64::from(*weight);
                assert!((f64::from(*y) - exact).abs() < 1e-6, "{y} against {exact}");
            }
        }
        for simd in Simd::available() {
            let mut out = vec![0.0; x.len()];
            rms_norm(simd, &x, &weight, 1e-6, &mut out);
            assert_eq!(out, expected, "{simd}");
        }
    }

    struct UnitLength<'a>(&'a mut [f32]);

    impl Kernel for UnitLength<'_> {
        type Output = ();
        #[inline(always)]
        fn run<V: Lanes>(self) {
            unit_length::<V>(self.0, 0.5);
        }
    }

    #[test]
    fn lengths_become_the_factor_and_zero_stays_zero() {
        for simd in Simd::available() {
            let mut x = noise(3, 128);
            vector::run(simd, UnitLength(&mut x));
            let length = x.iter().map(|x| x * x).sum::<f32>().sqrt();
            assert!((length - 0.5).abs() < 1e-6, "{length}");
            let mut zero = vec![0.0; 128];
            vector::run(simd, UnitLength(&mut zero));
            assert_eq!(zero, vec![0.0; 128]);
        }
    }
}

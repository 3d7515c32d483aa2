//! DeltaNet's gates: what a head forgets and learns, and what of its output passes.

use crate::math::{exp, sigmoid, silu, softplus};
use crate::norm::rms_norm_row;
use crate::vector::{Kernel, Lanes};

/// One row, in place: `a ← α = exp(rate · softplus(a + bias))`, `b ← β = sigmoid(b)`, an element a head.
pub(crate) struct DecayAndStep<'a> {
    pub(crate) a: &'a mut [f32],
    pub(crate) b: &'a mut [f32],
    /// −exp(A_log).
    pub(crate) rates: &'a [f32],
    /// dt_bias.
    pub(crate) biases: &'a [f32],
}

impl Kernel for DecayAndStep<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        for ((a, rate), bias) in self.a.iter_mut().zip(self.rates).zip(self.biases) {
            *a = exp(rate * softplus(*a + bias));
        }
        for b in self.b {
            *b = sigmoid(*b);
        }
    }
}

/// One head, in place: `x ← rms_norm(x) · weight · silu(z)`.
pub(crate) struct GatedNorm<'a> {
    pub(crate) x: &'a mut [f32],
    pub(crate) weight: &'a [f32],
    pub(crate) z: &'a [f32],
    pub(crate) epsilon: f32,
}

impl Kernel for GatedNorm<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        rms_norm_row::<V>(self.x, self.weight, self.epsilon);
        for (x, z) in self.x.iter_mut().zip(self.z) {
            *x *= silu(*z);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Simd;
    use crate::vector::{self, tests::noise};

    #[test]
    fn decay_and_step_agree_with_f64_on_every_instruction_set() {
        let scaled = |seed, factor: f32| noise(seed, 32).iter().map(|x| x * factor).collect::<Vec<_>>();
        let (a, b, biases) = (scaled(1, 8.0), scaled(2, 8.0), scaled(3, 4.0));
        let rates: Vec<f32> = scaled(4, 3.0).iter().map(|x| -x.exp()).collect();
        for simd in Simd::available() {
            let (mut decay, mut beta) = (a.clone(), b.clone());
            vector::run(simd, DecayAndStep { a: &mut decay, b: &mut beta, rates: &rates, biases: &biases });
            for head in 0..32 {
                let exact =
                    (f64::from(rates[head]) * (f64::from(a[head]) + f64::from(biases[head])).exp().ln_1p()).exp();
                assert!((f64::from(decay[head]) - exact).abs() < 1e-6, "{simd}: {} against {exact}", decay[head]);
                let exact = 1.0 / (1.0 + (-f64::from(b[head])).exp());
                assert!((f64::from(beta[head]) - exact).abs() < 1e-6, "{simd}: {} against {exact}", beta[head]);
            }
        }
    }

    #[test]
    fn gated_norm_agrees_with_f64_on_every_instruction_set() {
        let (x, weight, z) = (noise(1, 128), noise(2, 128), noise(3, 128));
        let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / 128.0;
        let mut first: Option<Vec<f32>> = None;
        for simd in Simd::available() {
            let mut y = x.clone();
            vector::run(simd, GatedNorm { x: &mut y, weight: &weight, z: &z, epsilon: 1e-6 });
            for dim in 0..128 {
                let z = f64::from(z[dim]);
                let exact = f64::from(x[dim]) / (mean + 1e-6).sqrt() * f64::from(weight[dim]) * z / (1.0 + (-z).exp());
                assert!((f64::from(y[dim]) - exact).abs() < 1e-6, "{simd}: {} against {exact}", y[dim]);
            }
            assert_eq!(&y, first.get_or_insert(y.clone()), "{simd}");
        }
    }
}

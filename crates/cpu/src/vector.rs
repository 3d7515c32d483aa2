//! Eight fp32 lanes for the kernels of the model, written once and compiled for each instruction set.
//!
//! A kernel is a struct of its arguments whose [`Kernel::run`] is generic over [`Lanes`]; [`run`] compiles it with plain
//! arrays (the specification) and once more with what the processor has: two registers of NEON, or one of AVX2 within a
//! function that enables it, where ordinary loops vectorise too. All give the same bits, because every lane operation is
//! the same IEEE operation and [`Lanes::sum`] adds in the same tree. Another instruction set joins with one more
//! implementation of [`Lanes`].

use half::f16;

use crate::simd::Simd;

/// Lanes of a vector, on every instruction set: the order of a reduction hangs on it.
pub(crate) const LANES: usize = 8;

/// Eight fp32 values.
pub(crate) trait Lanes: Copy {
    fn splat(value: f32) -> Self;
    fn load(values: &[f32; LANES]) -> Self;
    /// Eight f16 values, exactly.
    fn load_f16(values: &[f16; LANES]) -> Self;
    fn store(self, values: &mut [f32; LANES]);
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// self · factor + addend, rounded once.
    fn mul_add(self, factor: Self, addend: Self) -> Self;
    /// ((l0 + l4) + (l2 + l6)) + ((l1 + l5) + (l3 + l7)).
    fn sum(self) -> f32;
}

/// A loop to be compiled for each instruction set. `run` is to be `#[inline(always)]`, as is all it calls, and its lane
/// operations are to stand in loops, not in closures: a closure that is not inlined loses the instruction set.
pub(crate) trait Kernel {
    type Output;
    fn run<V: Lanes>(self) -> Self::Output;
}

/// Runs a kernel. `simd` must be available on this machine.
pub(crate) fn run<K: Kernel>(simd: Simd, kernel: K) -> K::Output {
    match simd {
        Simd::Scalar => kernel.run::<Plain>(),
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 | Simd::Avx512Vnni => {
            assert!(simd.is_available(), "this machine has no {simd}");
            // SAFETY: the line above made sure of AVX2, FMA and F16C.
            unsafe { run_avx2(kernel) }
        }
        #[cfg(target_arch = "aarch64")]
        Simd::Neon | Simd::NeonDotprod | Simd::NeonI8mm => kernel.run::<neon::Registers>(),
        _ => unreachable!("{simd} is not available here"),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<avx2::Register>()
}

/// The specification.
#[derive(Clone, Copy)]
struct Plain([f32; LANES]);

impl Lanes for Plain {
    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self([value; LANES])
    }

    #[inline(always)]
    fn load(values: &[f32; LANES]) -> Self {
        Self(*values)
    }

    #[inline(always)]
    fn load_f16(values: &[f16; LANES]) -> Self {
        Self(values.map(f16::to_f32))
    }

    #[inline(always)]
    fn store(self, values: &mut [f32; LANES]) {
        *values = self.0;
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane] + other.0[lane]))
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane] * other.0[lane]))
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane].mul_add(factor.0[lane], addend.0[lane])))
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        let l = self.0;
        ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]))
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use half::f16;

    use super::{LANES, Lanes};

    /// Only [`super::run_avx2`] names this type, so its methods run only where AVX2, FMA and F16C are enabled; that
    /// is what each `SAFETY` below refers to.
    #[derive(Clone, Copy)]
    pub(super) struct Register(__m256);

    impl Lanes for Register {
        #[inline(always)]
        fn splat(value: f32) -> Self {
            // SAFETY: AVX is enabled, see the type.
            Self(unsafe { _mm256_set1_ps(value) })
        }

        #[inline(always)]
        fn load(values: &[f32; LANES]) -> Self {
            // SAFETY: AVX is enabled, see the type; the reference covers the 32 bytes read.
            Self(unsafe { _mm256_loadu_ps(values.as_ptr()) })
        }

        #[inline(always)]
        fn load_f16(values: &[f16; LANES]) -> Self {
            // SAFETY: F16C is enabled, see the type; the reference covers the 16 bytes read.
            Self(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(values.as_ptr().cast())) })
        }

        #[inline(always)]
        fn store(self, values: &mut [f32; LANES]) {
            // SAFETY: AVX is enabled, see the type; the reference covers the 32 bytes written.
            unsafe { _mm256_storeu_ps(values.as_mut_ptr(), self.0) }
        }

        #[inline(always)]
        fn add(self, other: Self) -> Self {
            // SAFETY: AVX is enabled, see the type.
            Self(unsafe { _mm256_add_ps(self.0, other.0) })
        }

        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            // SAFETY: AVX is enabled, see the type.
            Self(unsafe { _mm256_mul_ps(self.0, other.0) })
        }

        #[inline(always)]
        fn mul_add(self, factor: Self, addend: Self) -> Self {
            // SAFETY: FMA is enabled, see the type.
            Self(unsafe { _mm256_fmadd_ps(self.0, factor.0, addend.0) })
        }

        #[inline(always)]
        fn sum(self) -> f32 {
            // SAFETY: AVX is enabled, see the type.
            unsafe {
                let four = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
                let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
                _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
            }
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use std::arch::aarch64::*;

    use half::f16;

    use super::{LANES, Lanes};

    /// Every aarch64 processor has NEON, and every function there may use it; that is what each `SAFETY` below refers to.
    #[derive(Clone, Copy)]
    pub(super) struct Registers(float32x4_t, float32x4_t);

    impl Lanes for Registers {
        #[inline(always)]
        fn splat(value: f32) -> Self {
            // SAFETY: NEON is enabled, see the type.
            let four = unsafe { vdupq_n_f32(value) };
            Self(four, four)
        }

        #[inline(always)]
        fn load(values: &[f32; LANES]) -> Self {
            // SAFETY: NEON is enabled, see the type; the reference covers the 32 bytes read.
            unsafe { Self(vld1q_f32(values.as_ptr()), vld1q_f32(values.as_ptr().add(4))) }
        }

        #[inline(always)]
        fn load_f16(values: &[f16; LANES]) -> Self {
            // SAFETY: NEON is enabled, see the type; the reference covers the 16 bytes read.
            unsafe {
                let halves = vreinterpretq_f16_u16(vld1q_u16(values.as_ptr().cast()));
                Self(vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves))
            }
        }

        #[inline(always)]
        fn store(self, values: &mut [f32; LANES]) {
            // SAFETY: NEON is enabled, see the type; the reference covers the 32 bytes written.
            unsafe {
                vst1q_f32(values.as_mut_ptr(), self.0);
                vst1q_f32(values.as_mut_ptr().add(4), self.1);
            }
        }

        #[inline(always)]
        fn add(self, other: Self) -> Self {
            // SAFETY: NEON is enabled, see the type.
            unsafe { Self(vaddq_f32(self.0, other.0), vaddq_f32(self.1, other.1)) }
        }

        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            // SAFETY: NEON is enabled, see the type.
            unsafe { Self(vmulq_f32(self.0, other.0), vmulq_f32(self.1, other.1)) }
        }

        #[inline(always)]
        fn mul_add(self, factor: Self, addend: Self) -> Self {
            // SAFETY: NEON is enabled, see the type.
            unsafe { Self(vfmaq_f32(addend.0, self.0, factor.0), vfmaq_f32(addend.1, self.1, factor.1)) }
        }

        #[inline(always)]
        fn sum(self) -> f32 {
            // SAFETY: NEON is enabled, see the type.
            unsafe {
                let four = vaddq_f32(self.0, self.1);
                vaddv_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)))
            }
        }
    }
}

/// Σ aᵢ·bᵢ over two chains of eight lanes; the lengths are equal and a multiple of 16.
#[inline(always)]
pub(crate) fn dot<V: Lanes>(a: &[f32], b: &[f32]) -> f32 {
    let (a, b) = (a.as_chunks::<{ 2 * LANES }>().0, b.as_chunks::<{ 2 * LANES }>().0);
    let (mut even, mut odd) = (V::splat(0.0), V::splat(0.0));
    for (a, b) in a.iter().zip(b) {
        even = V::load(first(a)).mul_add(V::load(first(b)), even);
        odd = V::load(second(a)).mul_add(V::load(second(b)), odd);
    }
    even.add(odd).sum()
}

#[inline(always)]
fn first(pair: &[f32; 2 * LANES]) -> &[f32; LANES] {
    pair.first_chunk().expect("16 holds 8")
}

#[inline(always)]
fn second(pair: &[f32; 2 * LANES]) -> &[f32; LANES] {
    pair.last_chunk().expect("16 holds 8")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Numbers in [-1, 1) that look random, for tests.
    pub(crate) fn noise(seed: u64, length: usize) -> Vec<f32> {
        (0..length as u64).map(|counter| lily_backend::uniform(seed, counter) * 2.0 - 1.0).collect()
    }

    struct All<'a>(&'a [f32; LANES], &'a [f32; LANES], &'a [f16; LANES]);

    impl Kernel for All<'_> {
        type Output = (Vec<u32>, f32);
        #[inline(always)]
        fn run<V: Lanes>(self) -> Self::Output {
            let (a, b, c) = (V::load(self.0), V::load(self.1), V::load_f16(self.2));
            let mut bits = Vec::new();
            for result in [a.add(b), a.mul(b), a.mul_add(b, c), V::splat(self.0[3]), c] {
                let mut values = [0.0; LANES];
                result.store(&mut values);
                bits.extend(values.map(f32::to_bits));
                bits.push(result.sum().to_bits());
            }
            (bits, dot::<V>(&[*self.0, *self.1].concat(), &[*self.1, *self.0].concat()))
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        for seed in 0..200 {
            let a: [f32; LANES] = noise(seed, LANES).try_into().expect("eight");
            let b: [f32; LANES] = noise(seed + 1000, LANES).try_into().expect("eight");
            // Every f16 pattern but NaN, subnormals among them.
            let c = std::array::from_fn(|lane| f16::from_bits((seed * 160 + lane as u64 * 7) as u16 % 0x7c01));
            let expected = run(Simd::Scalar, All(&a, &b, &c));
            let exact: f64 = 2.0 * a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
            assert!((f64::from(expected.1) - exact).abs() < 1e-5);
            for simd in Simd::available() {
                assert_eq!(run(simd, All(&a, &b, &c)), expected, "{simd}");
            }
        }
    }
}

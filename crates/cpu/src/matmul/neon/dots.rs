//! Integer dot products of four weight rows with planes, over a group, with each of the instructions there are for it.
//! They are exact, so the order of their additions is free.

use std::arch::aarch64::*;

use lily_checkpoint::GROUP;

use crate::neon::{sdot, smmla};

/// A group of four weight rows, one weight a byte, in the order that suits the instruction.
pub(super) type Weights = [int8x16_t; 16];

/// An instruction's way to dot products. The methods are inlined into a function that enables the instruction: only the
/// entry points in [`super`] name the implementations, and that is what their `SAFETY` refers to.
pub(super) trait Dots {
    /// A plane's group, in the order that suits the instruction.
    type Values<'a>: Copy;

    /// Splits bytes into weights.
    fn unpack(rows: [&[u8; GROUP / 2]; 4]) -> Weights;

    fn arrange<'a, const N: usize>(planes: &[&'a [i8; GROUP]; N]) -> [Self::Values<'a>; N];

    /// For each plane the dot products, the four rows in the lanes.
    fn dots<const N: usize>(weights: &Weights, values: &[Self::Values<'_>; N]) -> [int32x4_t; N];
}

/// Multiplication to 16 bits, which every aarch64 processor has.
pub(super) struct Widening;

/// `sdot`.
pub(super) struct Dotprod;

/// `smmla`, two rows times two planes at once.
pub(super) struct I8mm;

impl Dots for Widening {
    type Values<'a> = &'a [i8; GROUP];

    #[inline(always)]
    fn unpack(rows: [&[u8; GROUP / 2]; 4]) -> Weights {
        unpack_rows(rows)
    }

    #[inline(always)]
    fn arrange<'a, const N: usize>(planes: &[&'a [i8; GROUP]; N]) -> [&'a [i8; GROUP]; N] {
        *planes
    }

    #[inline(always)]
    fn dots<const N: usize>(weights: &Weights, values: &[&[i8; GROUP]; N]) -> [int32x4_t; N] {
        // SAFETY: every aarch64 processor has NEON.
        unsafe {
            // Eight products, each at most 15·127, fit in 16 bits.
            let mut sums = [[vdupq_n_s16(0); 4]; N];
            for part in 0..4 {
                for (row, weights) in weights.chunks_exact(4).enumerate() {
                    for (sums, values) in sums.iter_mut().zip(values) {
                        let x = sixteen(values, part);
                        let sum = vmlal_s8(sums[row], vget_low_s8(weights[part]), vget_low_s8(x));
                        sums[row] = vmlal_high_s8(sum, weights[part], x);
                    }
                }
            }
            let mut dots = [vdupq_n_s32(0); N];
            for (dot, [a, b, c, d]) in dots.iter_mut().zip(sums) {
                *dot = add_lanes([vpaddlq_s16(a), vpaddlq_s16(b), vpaddlq_s16(c), vpaddlq_s16(d)]);
            }
            dots
        }
    }
}

impl Dots for Dotprod {
    type Values<'a> = &'a [i8; GROUP];

    #[inline(always)]
    fn unpack(rows: [&[u8; GROUP / 2]; 4]) -> Weights {
        unpack_rows(rows)
    }

    #[inline(always)]
    fn arrange<'a, const N: usize>(planes: &[&'a [i8; GROUP]; N]) -> [&'a [i8; GROUP]; N] {
        *planes
    }

    #[inline(always)]
    fn dots<const N: usize>(weights: &Weights, values: &[&[i8; GROUP]; N]) -> [int32x4_t; N] {
        // SAFETY: `dotprod` is enabled, see the trait.
        unsafe {
            let mut sums = [[vdupq_n_s32(0); 4]; N];
            for part in 0..4 {
                for (row, weights) in weights.chunks_exact(4).enumerate() {
                    for (sums, values) in sums.iter_mut().zip(values) {
                        sums[row] = sdot(sums[row], weights[part], sixteen(values, part));
                    }
                }
            }
            let mut dots = [vdupq_n_s32(0); N];
            for (dot, sums) in dots.iter_mut().zip(sums) {
                *dot = add_lanes(sums);
            }
            dots
        }
    }
}

impl Dots for I8mm {
    /// Two planes in the place of the first, eight values of each in a register. A plane without another is its own.
    type Values<'a> = [int8x16_t; 8];

    /// Two rows after each other, eight weights of each in a register.
    #[inline(always)]
    fn unpack(rows: [&[u8; GROUP / 2]; 4]) -> Weights {
        // SAFETY: every aarch64 processor has NEON; the loads are within the arrays.
        unsafe {
            let mut weights = [vdupq_n_s8(0); 16];
            for (pair, weights) in rows.chunks_exact(2).zip(weights.chunks_exact_mut(8)) {
                for half in 0..2 {
                    let a = vreinterpretq_u64_u8(vld1q_u8(pair[0][16 * half..].as_ptr()));
                    let b = vreinterpretq_u64_u8(vld1q_u8(pair[1][16 * half..].as_ptr()));
                    for (eight, both) in [vzip1q_u64(a, b), vzip2q_u64(a, b)].into_iter().enumerate() {
                        let (even, odd) = nibbles(vreinterpretq_u8_u64(both));
                        weights[2 * half + eight] = even;
                        weights[4 + 2 * half + eight] = odd;
                    }
                }
            }
            weights
        }
    }

    #[inline(always)]
    fn arrange<const N: usize>(planes: &[&[i8; GROUP]; N]) -> [[int8x16_t; 8]; N] {
        // SAFETY: every aarch64 processor has NEON.
        unsafe {
            let mut arranged = [[vdupq_n_s8(0); 8]; N];
            for (pair, arranged) in planes.chunks(2).zip(arranged.chunks_mut(2)) {
                for part in 0..4 {
                    let a = vreinterpretq_s64_s8(sixteen(pair[0], part));
                    let b = vreinterpretq_s64_s8(sixteen(pair[pair.len() - 1], part));
                    arranged[0][2 * part] = vreinterpretq_s8_s64(vzip1q_s64(a, b));
                    arranged[0][2 * part + 1] = vreinterpretq_s8_s64(vzip2q_s64(a, b));
                }
            }
            arranged
        }
    }

    #[inline(always)]
    fn dots<const N: usize>(weights: &Weights, values: &[[int8x16_t; 8]; N]) -> [int32x4_t; N] {
        // SAFETY: `i8mm` is enabled, see the trait.
        unsafe {
            let mut dots = [vdupq_n_s32(0); N];
            for (dots, values) in dots.chunks_mut(2).zip(values.chunks(2)) {
                let mut sums = [vdupq_n_s32(0); 2];
                for (sum, weights) in sums.iter_mut().zip(weights.chunks_exact(8)) {
                    for (&weights, &x) in weights.iter().zip(&values[0]) {
                        *sum = smmla(*sum, weights, x);
                    }
                }
                // The products with the first plane are in the lanes of even index.
                dots[0] = vuzp1q_s32(sums[0], sums[1]);
                if let Some(second) = dots.get_mut(1) {
                    *second = vuzp2q_s32(sums[0], sums[1]);
                }
            }
            dots
        }
    }
}

/// Row after row the 32 weights of even index, then the 32 of odd index.
#[inline(always)]
fn unpack_rows(rows: [&[u8; GROUP / 2]; 4]) -> Weights {
    // SAFETY: every aarch64 processor has NEON; the loads are within the arrays.
    unsafe {
        let mut weights = [vdupq_n_s8(0); 16];
        for (row, weights) in rows.into_iter().zip(weights.chunks_exact_mut(4)) {
            for half in 0..2 {
                let (even, odd) = nibbles(vld1q_u8(row[16 * half..].as_ptr()));
                weights[half] = even;
                weights[2 + half] = odd;
            }
        }
        weights
    }
}

/// The low and the high halves of bytes.
#[inline(always)]
fn nibbles(bytes: uint8x16_t) -> (int8x16_t, int8x16_t) {
    // SAFETY: every aarch64 processor has NEON.
    unsafe { (vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(15))), vreinterpretq_s8_u8(vshrq_n_u8::<4>(bytes))) }
}

/// The `part`-th sixteen of a group.
#[inline(always)]
fn sixteen(values: &[i8; GROUP], part: usize) -> int8x16_t {
    // SAFETY: every aarch64 processor has NEON; the slice holds the 16 bytes that are read.
    unsafe { vld1q_s8(values[16 * part..][..16].as_ptr()) }
}

/// The sum of the lanes of each, in its lane.
#[inline(always)]
fn add_lanes([a, b, c, d]: [int32x4_t; 4]) -> int32x4_t {
    // SAFETY: every aarch64 processor has NEON.
    unsafe { vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d)) }
}

//! Quantisation of activations for NEON: the bits of [`super::scalar`].

use std::arch::aarch64::*;

use lily_checkpoint::GROUP;

use super::{Row, steps};

/// Quantises a row into its planes.
#[target_feature(enable = "neon")]
pub(super) fn quantise(row: Row<'_>) {
    let cols = row.x.len();
    let groups = cols / GROUP;
    for (group, x) in row.x.as_chunks::<8>().0.as_chunks::<8>().0.iter().enumerate() {
        // The 32 values of even index, then the 32 of odd index.
        let mut rest = [vdupq_n_f32(0.0); 16];
        for (eight, x) in x.iter().enumerate() {
            // SAFETY: the array holds the 8 floats that are read.
            let float32x4x2_t(even, odd) = unsafe { vld2q_f32(x.as_ptr()) };
            (rest[eight], rest[8 + eight]) = (even, odd);
        }
        for plane in 0..row.planes {
            let (step, inverse) = steps(largest(&rest));
            let quantised = &mut row.quantised[plane * cols + group * GROUP..][..GROUP];
            let mut sums = vdupq_n_s16(0);
            for (out, rest) in quantised.chunks_exact_mut(16).zip(rest.chunks_exact_mut(4)) {
                let mut wide = [vdupq_n_s32(0); 4];
                for (q, r) in wide.iter_mut().zip(rest) {
                    // Of a group that isn't finite the inverse is 0; NaN and ∞·0 = NaN are converted to 0.
                    *q = vcvtnq_s32_f32(vmulq_n_f32(*r, inverse));
                    *r = vfmaq_n_f32(*r, vcvtq_f32_s32(*q), -step);
                }
                let [a, b, c, d] = wide;
                let low = vqmovn_high_s32(vqmovn_s32(a), b);
                let high = vqmovn_high_s32(vqmovn_s32(c), d);
                let bytes = vqmovn_high_s16(vqmovn_s16(low), high);
                // Each lane gets eight values of at most 127.
                sums = vpadalq_s8(sums, bytes);
                // SAFETY: the chunk holds the 16 bytes that are written.
                unsafe { vst1q_s8(out.as_mut_ptr(), bytes) };
            }
            row.steps[plane * groups + group] = step;
            row.sums[plane * groups + group] = step * vaddlvq_s16(sums) as f32;
        }
    }
}

/// The largest magnitude of a group, or NaN if a value isn't finite.
#[inline]
#[target_feature(enable = "neon")]
fn largest(x: &[float32x4_t; 16]) -> f32 {
    // Without their sign, floats are ordered as integers, the infinities and NaNs above the finite ones.
    let mut most = vdupq_n_u32(0);
    for &x in x {
        most = vmaxq_u32(most, vreinterpretq_u32_f32(vabsq_f32(x)));
    }
    let most = f32::from_bits(vmaxvq_u32(most));
    if most.is_finite() { most } else { f32::NAN }
}

//! Quantisation of activations for AVX2: the bits of [`super::scalar`].

use std::arch::x86_64::*;

use lily_checkpoint::GROUP;

use super::{Row, steps};

/// Quantises a row into its planes.
#[target_feature(enable = "avx2,fma")]
pub(super) fn quantise(row: Row<'_>) {
    let cols = row.x.len();
    let groups = cols / GROUP;
    for (group, x) in row.x.as_chunks::<8>().0.as_chunks::<8>().0.iter().enumerate() {
        let mut rest = [_mm256_setzero_ps(); 8];
        for (rest, x) in rest.iter_mut().zip(x) {
            // SAFETY: the array holds the 8 floats that are read.
            *rest = unsafe { _mm256_loadu_ps(x.as_ptr()) };
        }
        for plane in 0..row.planes {
            let (step, inverse) = steps(largest(&rest));
            let scale = _mm256_set1_ps(inverse);
            // NaN and ∞·0 would be converted to i32::MIN, so the zeros of a group that isn't finite are made here.
            let keep = _mm256_set1_epi32(if step.is_nan() { 0 } else { -1 });
            let minus_step = _mm256_set1_ps(-step);
            let mut wide = [_mm256_setzero_si256(); 8];
            for (q, r) in wide.iter_mut().zip(&mut rest) {
                *q = _mm256_and_si256(_mm256_cvtps_epi32(_mm256_mul_ps(*r, scale)), keep);
                *r = _mm256_fmadd_ps(minus_step, _mm256_cvtepi32_ps(*q), *r);
            }
            let [low, high] = [narrow(&wide[..4]), narrow(&wide[4..])];
            let even = _mm256_permute2x128_si256::<0x20>(low, high);
            let odd = _mm256_permute2x128_si256::<0x31>(low, high);
            let quantised = &mut row.quantised[plane * cols + group * GROUP..][..GROUP];
            // SAFETY: the slice holds 64 bytes.
            unsafe {
                _mm256_storeu_si256(quantised.as_mut_ptr().cast(), even);
                _mm256_storeu_si256(quantised.as_mut_ptr().add(32).cast(), odd);
            }
            row.steps[plane * groups + group] = step;
            row.sums[plane * groups + group] = step * sum(even, odd) as f32;
        }
    }
}

/// The largest magnitude of a group, or NaN if a value isn't finite.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn largest(x: &[__m256; 8]) -> f32 {
    // Without their sign, floats are ordered as integers, the infinities and NaNs above the finite ones.
    let magnitude = _mm256_set1_epi32(i32::MAX);
    let mut most = _mm256_setzero_si256();
    for &x in x {
        most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_castps_si256(x), magnitude));
    }
    let most = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256::<1>(most));
    let most = _mm_max_epi32(most, _mm_shuffle_epi32::<0b01_00_11_10>(most));
    let most = _mm_max_epi32(most, _mm_shuffle_epi32::<0b10_11_00_01>(most));
    let most = f32::from_bits(_mm_cvtsi128_si32(most) as u32);
    if most.is_finite() { most } else { f32::NAN }
}

/// 32 integers in order to bytes: the 16 of even index in the lower half, the 16 of odd index in the upper half.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn narrow(wide: &[__m256i]) -> __m256i {
    // The packing instructions work within halves of registers: the first four words of each of the four registers come
    // out in the lower half, the other four in the upper half. Words of four bytes are then put in order, …
    let bytes = _mm256_packs_epi16(_mm256_packs_epi32(wide[0], wide[1]), _mm256_packs_epi32(wide[2], wide[3]));
    let ordered = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    // … and in each half the even bytes before the odd ones, …
    let order = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    let split = _mm256_shuffle_epi8(ordered, _mm256_broadcastsi128_si256(order));
    // … whose quarters are then exchanged.
    _mm256_permute4x64_epi64::<0b11_01_10_00>(split)
}

/// The sum of 64 bytes.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn sum(a: __m256i, b: __m256i) -> i32 {
    let ones = _mm256_set1_epi8(1);
    // Four values of at most 127 in each 16 bits.
    let fours = _mm256_add_epi16(_mm256_maddubs_epi16(ones, a), _mm256_maddubs_epi16(ones, b));
    let eights = _mm256_madd_epi16(fours, _mm256_set1_epi16(1));
    let sums = _mm_add_epi32(_mm256_castsi256_si128(eights), _mm256_extracti128_si256::<1>(eights));
    let sums = _mm_add_epi32(sums, _mm_shuffle_epi32::<0b01_00_11_10>(sums));
    let sums = _mm_add_epi32(sums, _mm_shuffle_epi32::<0b10_11_00_01>(sums));
    _mm_cvtsi128_si32(sums)
}

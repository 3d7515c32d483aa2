//! The products for AVX2. Eight weight rows at a time, one in each lane of a register, so that no floating-point sum
//! goes across lanes.

use std::arch::x86_64::*;

use lily_checkpoint::GROUP;

use super::{Task, WeightRow, scalar};
use crate::activations::Plane;

/// Weight rows at a time.
const LANES: usize = 8;
/// Bytes of a row's half group of 4-bit weights.
const HALF_BYTES: usize = GROUP / 4;
/// From this many planes on, a block's weights are unpacked once and kept.
const UNPACK_FROM: usize = 5;

/// Eight weight rows; a task's last block may repeat its last row.
struct Block<'a> {
    rows: [WeightRow<'a>; LANES],
    scales: &'a [Scales],
    /// Per group what [`unpack`] gives for its halves, or nothing.
    unpacked: &'a [[[__m256i; 8]; 2]],
}

/// Scales and biases of a group in eight rows.
#[derive(Clone, Copy)]
struct Scales {
    scales: __m256,
    biases: __m256,
}

/// 4-bit weights times int8 planes.
#[target_feature(enable = "avx2,fma")]
pub(super) fn four_bit(task: &mut Task<'_, '_>) {
    let groups = task.weight.cols / GROUP;
    let planes = task.out.len() * task.input.planes();
    let mut scales = vec![Scales { scales: _mm256_setzero_ps(), biases: _mm256_setzero_ps() }; groups];
    let mut unpacked = Vec::new();
    if planes >= UNPACK_FROM {
        unpacked.resize(groups, [[_mm256_setzero_si256(); 8]; 2]);
    }
    for first in (0..task.len()).step_by(LANES) {
        let rows = task.weight_rows::<LANES>(first);
        read_scales(&rows, &mut scales);
        for (group, unpacked) in unpacked.iter_mut().enumerate() {
            *unpacked = [unpack(&rows, group, 0), unpack(&rows, group, 1)];
        }
        let block = Block { rows, scales: &scales, unpacked: &unpacked };
        let mut plane = 0;
        while plane < planes {
            plane += match (planes - plane, unpacked.is_empty()) {
                (4.., false) => tile::<4, true>(task, &block, first, plane),
                (2..=3, false) => tile::<2, true>(task, &block, first, plane),
                (_, false) => tile::<1, true>(task, &block, first, plane),
                (4.., true) => tile::<4, false>(task, &block, first, plane),
                (2..=3, true) => tile::<2, false>(task, &block, first, plane),
                (_, true) => tile::<1, false>(task, &block, first, plane),
            };
        }
    }
}

/// A block times `N` planes from `first_plane` on, put into the output from column `first` on. Gives back `N`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn tile<const N: usize, const UNPACKED: bool>(
    task: &mut Task<'_, '_>,
    block: &Block<'_>,
    first: usize,
    first_plane: usize,
) -> usize {
    let planes: [Plane<'_>; N] = std::array::from_fn(|i| task.plane(first_plane + i));
    let ones = _mm256_set1_epi16(1);
    let mut sums = [_mm256_setzero_ps(); N];
    for (group, scales) in block.scales.iter().enumerate() {
        if !UNPACKED {
            prefetch(block, group);
        }
        let mut dots = [_mm256_setzero_si256(); N];
        for half in 0..2 {
            let fresh;
            let weights = if UNPACKED {
                &block.unpacked[group][half]
            } else {
                fresh = unpack(&block.rows, group, half);
                &fresh
            };
            // Eight products of pairs, each at most 2·15·127, fit in 16 bits.
            let mut pairs = [_mm256_setzero_si256(); N];
            for (quad, &weights) in weights.iter().enumerate() {
                let offset = group * GROUP + quad % 2 * (GROUP / 2) + half * HALF_BYTES + quad / 2 * 4;
                for (pairs, plane) in pairs.iter_mut().zip(&planes) {
                    // SAFETY: every plane holds GROUP values a group.
                    let x = _mm256_set1_epi32(unsafe { load_4(plane.quantised, offset) });
                    *pairs = _mm256_add_epi16(*pairs, _mm256_maddubs_epi16(weights, x));
                }
            }
            for (dot, pairs) in dots.iter_mut().zip(pairs) {
                *dot = _mm256_add_epi32(*dot, _mm256_madd_epi16(pairs, ones));
            }
        }
        for ((sum, dot), plane) in sums.iter_mut().zip(dots).zip(&planes) {
            let scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(dot), _mm256_set1_ps(plane.steps[group]));
            *sum = _mm256_fmadd_ps(scales.scales, scaled, *sum);
            *sum = _mm256_fmadd_ps(scales.biases, _mm256_set1_ps(plane.sums[group]), *sum);
        }
    }
    task.put(first, first_plane, &sums.map(|sums| to_array(sums)));
    N
}

/// Asks for what the next block, which follows this one in memory, needs at this group. The processor's own prefetching
/// stops at each 4 KiB page.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn prefetch(block: &Block<'_>, group: usize) {
    let ahead = |bytes: &[u8], offset: usize| {
        // A prefetch of any address is harmless, so this may point beyond the matrix.
        _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().wrapping_add(LANES * bytes.len() + offset).cast());
    };
    for line in 0..LANES * GROUP / 2 / 64 {
        ahead(block.rows[0].weight, (LANES * GROUP / 2) * group + 64 * line);
    }
    if group.is_multiple_of(4) {
        ahead(block.rows[0].scales, 2 * LANES * group);
        ahead(block.rows[0].biases, 2 * LANES * group);
    }
}

/// Half a group of eight rows, the rows in the lanes: for each of its four words the four weights of even index, then the
/// four of odd index, one a byte.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn unpack(rows: &[WeightRow<'_>; LANES], group: usize, half: usize) -> [__m256i; 8] {
    let offset = (2 * group + half) * HALF_BYTES;
    let mut pairs = [_mm256_setzero_si256(); 4];
    for (row, pair) in pairs.iter_mut().enumerate() {
        // SAFETY: every row holds GROUP / 2 bytes a group.
        *pair = unsafe { load_parts([rows[row].weight, rows[row + 4].weight], offset) };
    }
    let nibble = _mm256_set1_epi8(15);
    let mut unpacked = [_mm256_setzero_si256(); 8];
    for (pair, words) in unpacked.chunks_exact_mut(2).zip(transpose_words(pairs)) {
        pair[0] = _mm256_and_si256(words, nibble);
        pair[1] = _mm256_and_si256(_mm256_srli_epi16::<4>(words), nibble);
    }
    unpacked
}

/// In each half of the registers, word i of register j becomes word j of register i.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn transpose_words([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
    let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
    let (ab_high, cd_high) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
    [
        _mm256_unpacklo_epi64(ab, cd),
        _mm256_unpackhi_epi64(ab, cd),
        _mm256_unpacklo_epi64(ab_high, cd_high),
        _mm256_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// Scales and biases of every group, the rows in the lanes.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn read_scales(rows: &[WeightRow<'_>; LANES], out: &mut [Scales]) {
    let whole = out.len() / 8 * 8;
    let (eights, rest) = out.split_at_mut(whole);
    for (index, out) in eights.chunks_exact_mut(8).enumerate() {
        // Eight groups of a row, scales below and biases above; then their 16-bit halves are transposed as words are,
        // after a first step that makes words of the halves of two rows.
        let (mut low, mut high) = ([_mm256_setzero_si256(); 4], [_mm256_setzero_si256(); 4]);
        for pair in 0..4 {
            let [row, other] = [rows[2 * pair], rows[2 * pair + 1]];
            // SAFETY: every row holds 2 bytes a group.
            let (row, other) = unsafe {
                (load_parts([row.scales, row.biases], 16 * index), load_parts([other.scales, other.biases], 16 * index))
            };
            low[pair] = _mm256_unpacklo_epi16(row, other);
            high[pair] = _mm256_unpackhi_epi16(row, other);
        }
        let (low, high) = (transpose_words(low), transpose_words(high));
        for (out, halves) in out.iter_mut().zip(low.into_iter().chain(high)) {
            let widen = |halves| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves)));
            out.scales = widen(_mm256_castsi256_si128(halves));
            out.biases = widen(_mm256_extracti128_si256::<1>(halves));
        }
    }
    for (group, out) in (whole..).zip(rest) {
        out.scales = from_array(rows.map(|row| scalar::bf16(row.scales, group)));
        out.biases = from_array(rows.map(|row| scalar::bf16(row.biases, group)));
    }
}

/// 8-bit weights times fp32 values, sixteen sums in two registers: four weight rows at a time while one widening of a
/// weight serves one row of values, a weight row at a time while it serves four.
#[target_feature(enable = "avx2,fma")]
pub(super) fn eight_bit(task: &mut Task<'_, '_>) {
    // The values, wider than the weights, are the ones to read once.
    let (fours, rest) = (task.out.len() / 4 * 4, task.out.len() % 4);
    for m in (0..fours).step_by(4) {
        for first in 0..task.len() {
            eight_bit_tile::<1, 4>(task, first, m);
        }
    }
    for m in fours..fours + rest {
        for first in (0..task.len()).step_by(4) {
            eight_bit_tile::<4, 1>(task, first, m);
        }
    }
}

/// Weight rows from `first` on times rows of values from `m` on.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn eight_bit_tile<const ROWS: usize, const VALUES: usize>(task: &mut Task<'_, '_>, first: usize, m: usize) {
    let rows = task.weight_rows::<ROWS>(first);
    let values: [&[f32]; VALUES] = std::array::from_fn(|i| task.input.values(task.input_row(m + i)));
    let mut sums = [[[_mm256_setzero_ps(); 2]; ROWS]; VALUES];
    for group in 0..task.weight.cols / GROUP {
        let mut scales = [(_mm256_setzero_ps(), _mm256_setzero_ps()); ROWS];
        for (scales, row) in scales.iter_mut().zip(&rows) {
            let (scale, bias) = (scalar::bf16(row.scales, group), scalar::bf16(row.biases, group));
            *scales = (_mm256_set1_ps(scale), _mm256_set1_ps(bias));
        }
        for step in 0..GROUP / 16 {
            let k = group * GROUP + step * 16;
            let mut weights = [[_mm256_setzero_ps(); 2]; ROWS];
            for ((weights, row), (scale, bias)) in weights.iter_mut().zip(&rows).zip(scales) {
                // SAFETY: every row holds a byte a column.
                let bytes = unsafe { load_16(row.weight, k) };
                let low = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
                let high = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128::<8>(bytes)));
                *weights = [_mm256_fmadd_ps(low, scale, bias), _mm256_fmadd_ps(high, scale, bias)];
            }
            for (sums, values) in sums.iter_mut().zip(&values) {
                // SAFETY: there is a value a column.
                let x = unsafe { [load_8(values, k), load_8(values, k + 8)] };
                for (sums, weights) in sums.iter_mut().zip(&weights) {
                    sums[0] = _mm256_fmadd_ps(weights[0], x[0], sums[0]);
                    sums[1] = _mm256_fmadd_ps(weights[1], x[1], sums[1]);
                }
            }
        }
    }
    for (out, sums) in task.out[m..].iter_mut().zip(sums) {
        for (out, [low, high]) in out[first..].iter_mut().zip(sums) {
            *out = add_lanes(_mm256_add_ps(low, high));
        }
    }
}

/// The sum of the lanes, in pairs 4 apart, then 2, then 1.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) fn add_lanes(sums: __m256) -> f32 {
    let fours = _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps::<1>(sums));
    let twos = _mm_add_ps(fours, _mm_movehl_ps(fours, fours));
    _mm_cvtss_f32(_mm_add_ss(twos, _mm_movehdup_ps(twos)))
}

/// 16 bytes of each, one after the other.
///
/// # Safety
/// Both hold 16 bytes from `offset` on.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn load_parts([a, b]: [&[u8]; 2], offset: usize) -> __m256i {
    // SAFETY: the caller's promise.
    let (a, b) = unsafe { (load_16(a, offset), load_16(b, offset)) };
    _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(a), b)
}

/// # Safety
/// `bytes` holds 16 bytes from `offset` on.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn load_16(bytes: &[u8], offset: usize) -> __m128i {
    debug_assert!(offset + 16 <= bytes.len());
    // SAFETY: the caller's promise; the load needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().add(offset).cast()) }
}

/// # Safety
/// `values` holds 4 values from `offset` on.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn load_4(values: &[i8], offset: usize) -> i32 {
    debug_assert!(offset + 4 <= values.len());
    // SAFETY: the caller's promise; the load needs no alignment.
    unsafe { values.as_ptr().add(offset).cast::<i32>().read_unaligned() }
}

/// # Safety
/// `values` holds 8 values from `offset` on.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn load_8(values: &[f32], offset: usize) -> __m256 {
    debug_assert!(offset + 8 <= values.len());
    // SAFETY: the caller's promise; the load needs no alignment.
    unsafe { _mm256_loadu_ps(values.as_ptr().add(offset)) }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn from_array(lanes: [f32; 8]) -> __m256 {
    // SAFETY: the array holds the 8 floats that are read.
    unsafe { _mm256_loadu_ps(lanes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn to_array(register: __m256) -> [f32; 8] {
    let mut lanes = [0.0; 8];
    // SAFETY: the array holds the 8 floats that are written.
    unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), register) };
    lanes
}

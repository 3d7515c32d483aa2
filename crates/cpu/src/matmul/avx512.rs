//! The products for AVX-512 with VNNI, as in [`super::avx2`] but with sixteen weight rows in the lanes of a register and an
//! instruction that multiplies bytes and adds to 32 bits.

use std::arch::x86_64::*;

use lily_checkpoint::GROUP;

use super::{Task, WeightRow, avx2, scalar};
use crate::activations::Plane;

/// Weight rows at a time.
const LANES: usize = 16;
/// Bytes of a row's half group of 4-bit weights.
const HALF_BYTES: usize = GROUP / 4;
/// From this many planes on, a block's weights are unpacked once and kept.
const UNPACK_FROM: usize = 9;

/// Sixteen weight rows; a task's last block may repeat its last row.
struct Block<'a> {
    rows: [WeightRow<'a>; LANES],
    scales: &'a [Scales],
    /// Per group what [`unpack`] gives for its halves, or nothing.
    unpacked: &'a [[[__m512i; 8]; 2]],
}

/// Scales and biases of a group in sixteen rows.
#[derive(Clone, Copy)]
struct Scales {
    scales: __m512,
    biases: __m512,
}

/// 4-bit weights times int8 planes.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn four_bit(task: &mut Task<'_, '_>) {
    let groups = task.weight.cols / GROUP;
    let planes = task.out.len() * task.input.planes();
    let mut scales = vec![Scales { scales: _mm512_setzero_ps(), biases: _mm512_setzero_ps() }; groups];
    let mut unpacked = Vec::new();
    if planes >= UNPACK_FROM {
        unpacked.resize(groups, [[_mm512_setzero_si512(); 8]; 2]);
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
                (8.., false) => tile::<8, 2, true>(task, &block, first, plane),
                (4..=7, false) => tile::<4, 4, true>(task, &block, first, plane),
                (2..=3, false) => tile::<2, 4, true>(task, &block, first, plane),
                (_, false) => tile::<1, 4, true>(task, &block, first, plane),
                (8.., true) => tile::<8, 2, false>(task, &block, first, plane),
                (6..=7, true) => tile::<6, 2, false>(task, &block, first, plane),
                (4..=5, true) => tile::<4, 4, false>(task, &block, first, plane),
                (3, true) => tile::<3, 4, false>(task, &block, first, plane),
                (2, true) => tile::<2, 4, false>(task, &block, first, plane),
                (_, true) => tile::<1, 4, false>(task, &block, first, plane),
            };
        }
    }
}

/// A block times `N` planes from `first_plane` on, put into the output from column `first` on. Gives back `N`.
///
/// A group's sum is made in `CHAINS` parts, so that few planes too have enough sums under way to hide the latency of five
/// cycles.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
fn tile<const N: usize, const CHAINS: usize, const UNPACKED: bool>(
    task: &mut Task<'_, '_>,
    block: &Block<'_>,
    first: usize,
    first_plane: usize,
) -> usize {
    let planes: [Plane<'_>; N] = std::array::from_fn(|i| task.plane(first_plane + i));
    let mut sums = [_mm512_setzero_ps(); N];
    for (group, scales) in block.scales.iter().enumerate() {
        if !UNPACKED {
            prefetch(block, group);
        }
        let mut dots = [[_mm512_setzero_si512(); CHAINS]; N];
        for half in 0..2 {
            let fresh;
            let weights = if UNPACKED {
                &block.unpacked[group][half]
            } else {
                fresh = unpack(&block.rows, group, half);
                &fresh
            };
            for (quad, &weights) in weights.iter().enumerate() {
                let offset = group * GROUP + quad % 2 * (GROUP / 2) + half * HALF_BYTES + quad / 2 * 4;
                for (dot, plane) in dots.iter_mut().zip(&planes) {
                    // SAFETY: every plane holds GROUP values a group.
                    let x = _mm512_set1_epi32(unsafe { load_4(plane.quantised, offset) });
                    dot[quad % CHAINS] = _mm512_dpbusd_epi32(dot[quad % CHAINS], weights, x);
                }
            }
        }
        for ((sum, dot), plane) in sums.iter_mut().zip(dots).zip(&planes) {
            let mut whole = dot[0];
            for &part in &dot[1..] {
                whole = _mm512_add_epi32(whole, part);
            }
            let scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(whole), _mm512_set1_ps(plane.steps[group]));
            *sum = _mm512_fmadd_ps(scales.scales, scaled, *sum);
            *sum = _mm512_fmadd_ps(scales.biases, _mm512_set1_ps(plane.sums[group]), *sum);
        }
    }
    task.put(first, first_plane, &sums.map(|sums| to_array(sums)));
    N
}

/// Asks for what the next block, which follows this one in memory, needs at this group. The processor's own prefetching
/// stops at each 4 KiB page.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
fn prefetch(block: &Block<'_>, group: usize) {
    let ahead = |bytes: &[u8], offset: usize| {
        // A prefetch of any address is harmless, so this may point beyond the matrix.
        _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().wrapping_add(LANES * bytes.len() + offset).cast());
    };
    for line in 0..LANES * GROUP / 2 / 64 {
        ahead(block.rows[0].weight, (LANES * GROUP / 2) * group + 64 * line);
    }
    if group.is_multiple_of(2) {
        ahead(block.rows[0].scales, 2 * LANES * group);
        ahead(block.rows[0].biases, 2 * LANES * group);
    }
}

/// Half a group of sixteen rows, the rows in the lanes: for each of its four words the four weights of even index, then
/// the four of odd index, one a byte.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
fn unpack(rows: &[WeightRow<'_>; LANES], group: usize, half: usize) -> [__m512i; 8] {
    let offset = (2 * group + half) * HALF_BYTES;
    let mut fours = [_mm512_setzero_si512(); 4];
    for (row, four) in fours.iter_mut().enumerate() {
        let [a, b, c, d] = [rows[row], rows[row + 4], rows[row + 8], rows[row + 12]];
        // SAFETY: every row holds GROUP / 2 bytes a group.
        *four = unsafe { load_parts([a.weight, b.weight, c.weight, d.weight], offset) };
    }
    let nibble = _mm512_set1_epi8(15);
    let mut unpacked = [_mm512_setzero_si512(); 8];
    for (pair, words) in unpacked.chunks_exact_mut(2).zip(transpose_words(fours)) {
        pair[0] = _mm512_and_si512(words, nibble);
        pair[1] = _mm512_and_si512(_mm512_srli_epi16::<4>(words), nibble);
    }
    unpacked
}

/// In each quarter of the registers, word i of register j becomes word j of register i.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
fn transpose_words([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
    let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(ab, cd),
        _mm512_unpackhi_epi64(ab, cd),
        _mm512_unpacklo_epi64(ab_high, cd_high),
        _mm512_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// Scales and biases of every group, the rows in the lanes.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
fn read_scales(rows: &[WeightRow<'_>; LANES], out: &mut [Scales]) {
    let whole = out.len() / 8 * 8;
    let (eights, rest) = out.split_at_mut(whole);
    for (index, out) in eights.chunks_exact_mut(8).enumerate() {
        // Eight groups of two rows, scales of one, biases of one, scales of the other, its biases; then their 16-bit
        // parts are transposed as words are, after a first step that makes words of the parts of two registers.
        let (mut low, mut high) = ([_mm512_setzero_si512(); 4], [_mm512_setzero_si512(); 4]);
        for pair in 0..4 {
            let mut two = [_mm512_setzero_si512(); 2];
            for (row, parts) in (2 * pair..).zip(&mut two) {
                let (row, other) = (rows[row], rows[row + 8]);
                // SAFETY: every row holds 2 bytes a group.
                *parts = unsafe { load_parts([row.scales, row.biases, other.scales, other.biases], 16 * index) };
            }
            low[pair] = _mm512_unpacklo_epi16(two[0], two[1]);
            high[pair] = _mm512_unpackhi_epi16(two[0], two[1]);
        }
        let (low, high) = (transpose_words(low), transpose_words(high));
        for (out, parts) in out.iter_mut().zip(low.into_iter().chain(high)) {
            let sorted = _mm512_shuffle_i32x4::<0b11_01_10_00>(parts, parts);
            out.scales = widen(_mm512_castsi512_si256(sorted));
            out.biases = widen(_mm512_extracti64x4_epi64::<1>(sorted));
        }
    }
    for (group, out) in (whole..).zip(rest) {
        // Loops, not closures: a closure that is not inlined loses the instruction set.
        let (mut scales, mut biases) = ([0.0; LANES], [0.0; LANES]);
        for (lane, row) in rows.iter().enumerate() {
            scales[lane] = scalar::bf16(row.scales, group);
            biases[lane] = scalar::bf16(row.biases, group);
        }
        (out.scales, out.biases) = (from_array(scales), from_array(biases));
    }
}

/// Sixteen bf16 values as fp32.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
fn widen(halves: __m256i) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
}

/// 8-bit weights times fp32 values, sixteen sums in a register.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn eight_bit(task: &mut Task<'_, '_>) {
    // The values, wider than the weights, are the ones to read once.
    let (fours, rest) = (task.out.len() / 4 * 4, task.out.len() % 4);
    for m in (0..fours).step_by(4) {
        for first in (0..task.len()).step_by(4) {
            eight_bit_tile::<4>(task, first, m);
        }
    }
    for m in fours..fours + rest {
        for first in (0..task.len()).step_by(4) {
            eight_bit_tile::<1>(task, first, m);
        }
    }
}

/// Four weight rows from `first` on times rows of values from `m` on.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
fn eight_bit_tile<const VALUES: usize>(task: &mut Task<'_, '_>, first: usize, m: usize) {
    let rows = task.weight_rows::<4>(first);
    let values: [&[f32]; VALUES] = std::array::from_fn(|i| task.input.values(task.input_row(m + i)));
    let mut sums = [[_mm512_setzero_ps(); 4]; VALUES];
    for group in 0..task.weight.cols / GROUP {
        let mut scales = [(_mm512_setzero_ps(), _mm512_setzero_ps()); 4];
        for (scales, row) in scales.iter_mut().zip(&rows) {
            let (scale, bias) = (scalar::bf16(row.scales, group), scalar::bf16(row.biases, group));
            *scales = (_mm512_set1_ps(scale), _mm512_set1_ps(bias));
        }
        for step in 0..GROUP / 16 {
            let k = group * GROUP + step * 16;
            let mut weights = [_mm512_setzero_ps(); 4];
            for ((weights, row), (scale, bias)) in weights.iter_mut().zip(&rows).zip(scales) {
                // SAFETY: every row holds a byte a column.
                let bytes = unsafe { load_16(row.weight, k) };
                *weights = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)), scale, bias);
            }
            for (sums, values) in sums.iter_mut().zip(&values) {
                // SAFETY: there is a value a column.
                let x = unsafe { load_16_floats(values, k) };
                for (sum, &weights) in sums.iter_mut().zip(&weights) {
                    *sum = _mm512_fmadd_ps(weights, x, *sum);
                }
            }
        }
    }
    for (out, sums) in task.out[m..].iter_mut().zip(sums) {
        for (out, sums) in out[first..].iter_mut().zip(sums) {
            let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(sums)));
            *out = avx2::add_lanes(_mm256_add_ps(_mm512_castps512_ps256(sums), high));
        }
    }
}

/// 16 bytes of each, one after the other.
///
/// # Safety
/// All hold 16 bytes from `offset` on.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn load_parts([a, b, c, d]: [&[u8]; 4], offset: usize) -> __m512i {
    // SAFETY: the caller's promise.
    let (a, b, c, d) = unsafe { (load_16(a, offset), load_16(b, offset), load_16(c, offset), load_16(d, offset)) };
    let ab = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(a), b);
    let cd = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(c), d);
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(ab), cd)
}

/// # Safety
/// `bytes` holds 16 bytes from `offset` on.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn load_16(bytes: &[u8], offset: usize) -> __m128i {
    debug_assert!(offset + 16 <= bytes.len());
    // SAFETY: the caller's promise; the load needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().add(offset).cast()) }
}

/// # Safety
/// `values` holds 4 values from `offset` on.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn load_4(values: &[i8], offset: usize) -> i32 {
    debug_assert!(offset + 4 <= values.len());
    // SAFETY: the caller's promise; the load needs no alignment.
    unsafe { values.as_ptr().add(offset).cast::<i32>().read_unaligned() }
}

/// # Safety
/// `values` holds 16 values from `offset` on.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn load_16_floats(values: &[f32], offset: usize) -> __m512 {
    debug_assert!(offset + 16 <= values.len());
    // SAFETY: the caller's promise; the load needs no alignment.
    unsafe { _mm512_loadu_ps(values.as_ptr().add(offset)) }
}

#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
fn from_array(lanes: [f32; 16]) -> __m512 {
    // SAFETY: the array holds the 16 floats that are read.
    unsafe { load_16_floats(&lanes, 0) }
}

#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
fn to_array(register: __m512) -> [f32; 16] {
    let mut lanes = [0.0; 16];
    // SAFETY: the array holds the 16 floats that are written.
    unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), register) };
    lanes
}

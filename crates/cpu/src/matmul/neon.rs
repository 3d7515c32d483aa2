//! The products for NEON. Eight weight rows at a time, in the end one in each lane of two registers, so that no
//! floating-point sum goes across lanes.

mod dots;

use std::arch::aarch64::*;

use dots::{Dotprod, Dots, I8mm, Weights, Widening};
use lily_checkpoint::GROUP;

use super::{Task, WeightRow, scalar};
use crate::activations::Plane;

/// Weight rows at a time.
const LANES: usize = 8;
/// From this many planes on, a block's weights are unpacked once and kept.
const UNPACK_FROM: usize = 5;

/// Eight weight rows; a task's last block may repeat its last row.
struct Block<'a> {
    /// Of each row the groups' bytes.
    rows: [&'a [[u8; GROUP / 2]]; LANES],
    scales: &'a [Scales],
    /// Per group the first four rows and the other four, or nothing.
    unpacked: &'a [[Weights; 2]],
}

/// Scales and biases of a group in eight rows, four in each register.
#[derive(Clone, Copy)]
struct Scales {
    scales: [float32x4_t; 2],
    biases: [float32x4_t; 2],
}

/// 4-bit weights times int8 planes, with what every aarch64 processor has.
#[target_feature(enable = "neon")]
pub(super) fn four_bit(task: &mut Task<'_, '_>) {
    four_bit_with::<Widening>(task);
}

/// 4-bit weights times int8 planes.
#[target_feature(enable = "neon,dotprod")]
pub(super) fn four_bit_dotprod(task: &mut Task<'_, '_>) {
    four_bit_with::<Dotprod>(task);
}

/// 4-bit weights times int8 planes.
#[target_feature(enable = "neon,i8mm")]
pub(super) fn four_bit_i8mm(task: &mut Task<'_, '_>) {
    four_bit_with::<I8mm>(task);
}

#[inline(always)]
fn four_bit_with<D: Dots>(task: &mut Task<'_, '_>) {
    let groups = task.weight.cols / GROUP;
    let planes = task.out.len() * task.input.planes();
    // SAFETY: every aarch64 processor has NEON.
    let (zero, nothing) = unsafe { (vdupq_n_f32(0.0), vdupq_n_s8(0)) };
    let mut scales = vec![Scales { scales: [zero; 2], biases: [zero; 2] }; groups];
    let mut unpacked = Vec::new();
    if planes >= UNPACK_FROM {
        unpacked.resize(groups, [[nothing; 16]; 2]);
    }
    for first in (0..task.len()).step_by(LANES) {
        let rows = task.weight_rows::<LANES>(first);
        // SAFETY: every aarch64 processor has NEON.
        unsafe { read_scales(&rows, &mut scales) };
        let rows = rows.map(|row| row.weight.as_chunks().0);
        for (group, unpacked) in unpacked.iter_mut().enumerate() {
            *unpacked = [D::unpack(four(&rows, group, 0)), D::unpack(four(&rows, group, 1))];
        }
        let block = Block { rows, scales: &scales, unpacked: &unpacked };
        let mut plane = 0;
        while plane < planes {
            plane += match (planes - plane, unpacked.is_empty()) {
                (4.., false) => tile::<D, 4, true>(task, &block, first, plane),
                (2..=3, false) => tile::<D, 2, true>(task, &block, first, plane),
                (_, false) => tile::<D, 1, true>(task, &block, first, plane),
                (4.., true) => tile::<D, 4, false>(task, &block, first, plane),
                (2..=3, true) => tile::<D, 2, false>(task, &block, first, plane),
                (_, true) => tile::<D, 1, false>(task, &block, first, plane),
            };
        }
    }
}

/// A group of the first four rows (`half` = 0) or the other four (1).
#[inline(always)]
fn four<'a>(rows: &[&'a [[u8; GROUP / 2]]; LANES], group: usize, half: usize) -> [&'a [u8; GROUP / 2]; 4] {
    let first = 4 * half;
    [&rows[first][group], &rows[first + 1][group], &rows[first + 2][group], &rows[first + 3][group]]
}

/// A block times `N` planes from `first_plane` on, put into the output from column `first` on. Gives back `N`.
#[inline(always)]
fn tile<D: Dots, const N: usize, const UNPACKED: bool>(
    task: &mut Task<'_, '_>,
    block: &Block<'_>,
    first: usize,
    first_plane: usize,
) -> usize {
    let planes: [Plane<'_>; N] = std::array::from_fn(|i| task.plane(first_plane + i));
    let groups: [&[[i8; GROUP]]; N] = planes.map(|plane| plane.quantised.as_chunks().0);
    // SAFETY: every aarch64 processor has NEON.
    let mut sums = [[unsafe { vdupq_n_f32(0.0) }; N]; 2];
    for group in 0..block.scales.len() {
        let values = D::arrange(&groups.map(|values| &values[group]));
        // Not a loop: unless it is unrolled, the sums are in memory.
        add_half::<D, N, UNPACKED>(block, 0, group, &values, &planes, &mut sums[0]);
        add_half::<D, N, UNPACKED>(block, 1, group, &values, &planes, &mut sums[1]);
    }
    let mut lanes = [[0.0; LANES]; N];
    for (half, sums) in sums.iter().enumerate() {
        for (lanes, &sums) in lanes.iter_mut().zip(sums) {
            // SAFETY: every aarch64 processor has NEON; the slice holds the 4 floats that are written.
            unsafe { vst1q_f32(lanes[4 * half..][..4].as_mut_ptr(), sums) };
        }
    }
    task.put(first, first_plane, &lanes);
    N
}

/// Adds a group of half a block's rows times the planes to their sums.
#[inline(always)]
fn add_half<D: Dots, const N: usize, const UNPACKED: bool>(
    block: &Block<'_>,
    half: usize,
    group: usize,
    values: &[D::Values<'_>; N],
    planes: &[Plane<'_>; N],
    sums: &mut [float32x4_t; N],
) {
    let fresh;
    let weights = if UNPACKED {
        &block.unpacked[group][half]
    } else {
        fresh = D::unpack(four(&block.rows, group, half));
        &fresh
    };
    let dots = D::dots(weights, values);
    let Scales { scales, biases } = &block.scales[group];
    for ((sum, dot), plane) in sums.iter_mut().zip(dots).zip(planes) {
        // SAFETY: every aarch64 processor has NEON.
        unsafe {
            let scaled = vmulq_n_f32(vcvtq_f32_s32(dot), plane.steps[group]);
            *sum = vfmaq_f32(*sum, scales[half], scaled);
            *sum = vfmaq_n_f32(*sum, biases[half], plane.sums[group]);
        }
    }
}

/// Scales and biases of every group, the rows in the lanes.
#[inline]
#[target_feature(enable = "neon")]
fn read_scales(rows: &[WeightRow<'_>; LANES], out: &mut [Scales]) {
    let whole = out.len() / 8 * 8;
    let (eights, rest) = out.split_at_mut(whole);
    for (index, out) in eights.chunks_exact_mut(8).enumerate() {
        for half in 0..2 {
            let (mut scales, mut biases) = ([vdupq_n_u16(0); 4], [vdupq_n_u16(0); 4]);
            for (lane, row) in rows[4 * half..][..4].iter().enumerate() {
                (scales[lane], biases[lane]) = (load_8(row.scales, 8 * index), load_8(row.biases, 8 * index));
            }
            for ((out, scales), biases) in out.iter_mut().zip(transpose(scales)).zip(transpose(biases)) {
                (out.scales[half], out.biases[half]) = (widen(scales), widen(biases));
            }
        }
    }
    for (group, out) in (whole..).zip(rest) {
        for half in 0..2 {
            let (mut scales, mut biases) = ([0.0; 4], [0.0; 4]);
            for (lane, row) in rows[4 * half..][..4].iter().enumerate() {
                (scales[lane], biases[lane]) = (scalar::bf16(row.scales, group), scalar::bf16(row.biases, group));
            }
            // SAFETY: the arrays hold the 4 floats that are read.
            (out.scales[half], out.biases[half]) = unsafe { (vld1q_f32(scales.as_ptr()), vld1q_f32(biases.as_ptr())) };
        }
    }
}

/// Lane i of register j becomes lane j of register i.
#[inline]
#[target_feature(enable = "neon")]
fn transpose([a, b, c, d]: [uint16x8_t; 4]) -> [uint16x4_t; 8] {
    let (ac, bd) = (vzip1q_u16(a, c), vzip1q_u16(b, d));
    let (ac_high, bd_high) = (vzip2q_u16(a, c), vzip2q_u16(b, d));
    let pairs = [vzip1q_u16(ac, bd), vzip2q_u16(ac, bd), vzip1q_u16(ac_high, bd_high), vzip2q_u16(ac_high, bd_high)];
    let [p, q, r, s] = pairs;
    [
        vget_low_u16(p),
        vget_high_u16(p),
        vget_low_u16(q),
        vget_high_u16(q),
        vget_low_u16(r),
        vget_high_u16(r),
        vget_low_u16(s),
        vget_high_u16(s),
    ]
}

/// Four bf16 values as fp32.
#[inline]
#[target_feature(enable = "neon")]
fn widen(halves: uint16x4_t) -> float32x4_t {
    vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(halves)))
}

/// Eight 16-bit numbers from the `first`-th on.
#[inline]
#[target_feature(enable = "neon")]
fn load_8(bytes: &[u8], first: usize) -> uint16x8_t {
    // SAFETY: the slice holds the 16 bytes that are read.
    vreinterpretq_u16_u8(unsafe { vld1q_u8(bytes[2 * first..][..16].as_ptr()) })
}

/// 8-bit weights times fp32 values, sixteen sums in four registers: four weight rows at a time while one widening of a
/// weight serves one row of values, a weight row at a time while it serves four.
#[target_feature(enable = "neon")]
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
#[target_feature(enable = "neon")]
fn eight_bit_tile<const ROWS: usize, const VALUES: usize>(task: &mut Task<'_, '_>, first: usize, m: usize) {
    let rows = task.weight_rows::<ROWS>(first);
    let weights: [&[[u8; 16]]; ROWS] = rows.map(|row| row.weight.as_chunks().0);
    let values: [&[[f32; 16]]; VALUES] =
        std::array::from_fn(|i| task.input.values(task.input_row(m + i)).as_chunks().0);
    let mut sums = [[[vdupq_n_f32(0.0); 4]; ROWS]; VALUES];
    for group in 0..task.weight.cols / GROUP {
        let mut scales = [(vdupq_n_f32(0.0), vdupq_n_f32(0.0)); ROWS];
        for (scales, row) in scales.iter_mut().zip(&rows) {
            let (scale, bias) = (scalar::bf16(row.scales, group), scalar::bf16(row.biases, group));
            *scales = (vdupq_n_f32(scale), vdupq_n_f32(bias));
        }
        for sixteen in group * (GROUP / 16)..(group + 1) * (GROUP / 16) {
            let mut dequantised = [[vdupq_n_f32(0.0); 4]; ROWS];
            for ((to, from), (scale, bias)) in dequantised.iter_mut().zip(&weights).zip(scales) {
                for (to, weights) in to.iter_mut().zip(floats(&from[sixteen])) {
                    *to = vfmaq_f32(bias, weights, scale);
                }
            }
            for (sums, values) in sums.iter_mut().zip(&values) {
                for (part, x) in values[sixteen].chunks_exact(4).enumerate() {
                    // SAFETY: the chunk holds the 4 floats that are read.
                    let x = unsafe { vld1q_f32(x.as_ptr()) };
                    for (sums, weights) in sums.iter_mut().zip(&dequantised) {
                        sums[part] = vfmaq_f32(sums[part], weights[part], x);
                    }
                }
            }
        }
    }
    for (out, sums) in task.out[m..].iter_mut().zip(sums) {
        for (out, [a, b, c, d]) in out[first..].iter_mut().zip(sums) {
            // In pairs 8 apart, then 4, 2, 1.
            let fours = vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d));
            *out = vaddv_f32(vadd_f32(vget_low_f32(fours), vget_high_f32(fours)));
        }
    }
}

/// Sixteen bytes as fp32.
#[inline]
#[target_feature(enable = "neon")]
fn floats(bytes: &[u8; 16]) -> [float32x4_t; 4] {
    // SAFETY: the array holds the 16 bytes that are read.
    let bytes = unsafe { vld1q_u8(bytes.as_ptr()) };
    let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
    [
        vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))),
        vcvtq_f32_u32(vmovl_high_u16(low)),
        vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))),
        vcvtq_f32_u32(vmovl_high_u16(high)),
    ]
}

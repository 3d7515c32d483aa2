//! The specification of the products, in plain Rust. The vector kernels equal it bit for bit.

use lily_checkpoint::GROUP;

use super::{Task, WeightRow};
use crate::activations::Plane;

/// 4-bit weights times int8 planes; the planes' results are added.
pub(super) fn four_bit(task: &mut Task<'_, '_>) {
    let planes = task.input.planes();
    for n in 0..task.len() {
        for m in 0..task.out.len() {
            let weight = task.weight_row(n);
            let mut y = four_bit_dot(weight, task.plane(m * planes));
            for plane in 1..planes {
                y += four_bit_dot(weight, task.plane(m * planes + plane));
            }
            task.out[m][n] = y;
        }
    }
}

fn four_bit_dot(row: WeightRow<'_>, plane: Plane<'_>) -> f32 {
    const HALF: usize = GROUP / 2;
    let mut y = 0.0f32;
    for (group, (weight, x)) in row.weight.chunks_exact(HALF).zip(plane.quantised.chunks_exact(GROUP)).enumerate() {
        let (even, odd) = x.split_at(HALF);
        let mut dot = 0i32;
        for k in 0..HALF {
            dot += i32::from(weight[k] & 15) * i32::from(even[k]) + i32::from(weight[k] >> 4) * i32::from(odd[k]);
        }
        y = bf16(row.scales, group).mul_add(dot as f32 * plane.steps[group], y);
        y = bf16(row.biases, group).mul_add(plane.sums[group], y);
    }
    y
}

/// 8-bit weights times fp32 values, in 16 sums that are then added in pairs: 8 apart, 4, 2, 1.
pub(super) fn eight_bit(task: &mut Task<'_, '_>) {
    for n in 0..task.len() {
        for m in 0..task.out.len() {
            task.out[m][n] = eight_bit_dot(task.weight_row(n), task.input.values(task.input_row(m)));
        }
    }
}

fn eight_bit_dot(row: WeightRow<'_>, x: &[f32]) -> f32 {
    let mut sums = [0.0f32; 16];
    for (k, (&weight, &x)) in row.weight.iter().zip(x).enumerate() {
        let group = k / GROUP;
        let weight = f32::from(weight).mul_add(bf16(row.scales, group), bf16(row.biases, group));
        sums[k % 16] = weight.mul_add(x, sums[k % 16]);
    }
    for apart in [8, 4, 2, 1] {
        for lane in 0..apart {
            sums[lane] += sums[lane + apart];
        }
    }
    sums[0]
}

/// The `index`-th little-endian bf16.
pub(super) fn bf16(bytes: &[u8], index: usize) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]])) << 16)
}

//! Token ids to rows of the residual stream.

use lily_checkpoint::{Bits, GROUP, Matrix};
use rayon::prelude::*;

/// Rows handed to a thread at once.
const ROWS_PER_TASK: usize = 16;

/// `out[rows, hidden]`: the embedding's row of each token, `q · scale + bias`. Every id is below the table's rows.
pub(crate) fn embed(table: Matrix<'_>, tokens: &[u32], out: &mut [f32]) {
    let rows = out.par_chunks_exact_mut(table.cols).zip(tokens).with_min_len(ROWS_PER_TASK);
    rows.for_each(|(out, &token)| dequantise(table, token as usize, out));
}

fn dequantise(table: Matrix<'_>, row: usize, out: &mut [f32]) {
    let of_row = |bytes: &'_ [u8]| {
        let width = bytes.len() / table.rows;
        row * width..(row + 1) * width
    };
    let weights = &table.weight[of_row(table.weight)];
    let scales = &table.scales[of_row(table.scales)];
    let biases = &table.biases[of_row(table.biases)];
    let bf16 =
        |bytes: &[u8], group: usize| half::bf16::from_le_bytes([bytes[2 * group], bytes[2 * group + 1]]).to_f32();
    for (group, out) in out.chunks_exact_mut(GROUP).enumerate() {
        let (scale, bias) = (bf16(scales, group), bf16(biases, group));
        for (k, out) in (group * GROUP..).zip(out) {
            let q = match table.bits {
                Bits::Four => weights[k / 2] >> (k % 2 * 4) & 15,
                Bits::Eight => weights[k],
            };
            *out = f32::from(q) * scale + bias;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_widths() {
        let bf16 = |values: [f32; 4]| values.map(|value| half::bf16::from_f32(value).to_le_bytes()).concat();
        let (scales, biases) = (bf16([1.0, 0.5, 2.0, 0.25]), bf16([0.0, -4.0, 1.0, -1.0]));
        let (four, eight): (Vec<u8>, Vec<u8>) =
            ((0..128u8).map(|byte| byte.wrapping_mul(29)).collect(), (0..=255).collect());
        for (bits, weight) in [(Bits::Four, &four), (Bits::Eight, &eight)] {
            let table = Matrix { rows: 2, cols: 128, bits, weight, scales: &scales, biases: &biases };
            let mut out = vec![0.0; 3 * 128];
            embed(table, &[1, 0, 1], &mut out);
            let (q, group) = if bits == Bits::Four { (four[64 + 33] >> 4, 3) } else { (eight[128 + 67], 3) };
            assert_eq!(out[67], f32::from(q) * [1.0, 0.5, 2.0, 0.25][group] + [0.0, -4.0, 1.0, -1.0][group]);
            let q = if bits == Bits::Four { four[1] & 15 } else { eight[2] };
            assert_eq!(out[128 + 2], f32::from(q));
            assert_eq!(out[..128], out[256..]);
        }
    }
}

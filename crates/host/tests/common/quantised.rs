//! Random quantised matrices.

use half::bf16;

use super::Random;

/// Columns that share a scale and a bias.
const GROUP: usize = 64;

/// A stack of `count` matrices as they lie in a checkpoint, and what they stand for.
pub struct Quantised {
    pub count: usize,
    pub rows: usize,
    pub cols: usize,
    pub bits: usize,
    /// `[count][rows][cols · bits / 32]`, low bits first.
    pub words: Vec<u32>,
    /// `[count][rows][cols / 64]`
    pub scales: Vec<bf16>,
    /// As `scales`.
    pub biases: Vec<bf16>,
}

impl Quantised {
    /// One matrix whose products with inputs of about 1 are of about 1.
    pub fn new(random: &mut Random, rows: usize, cols: usize, bits: usize) -> Self {
        Self::stack(random, 1, rows, cols, bits)
    }

    /// `count` of them.
    pub fn stack(random: &mut Random, count: usize, rows: usize, cols: usize, bits: usize) -> Self {
        assert!(cols.is_multiple_of(GROUP) && (bits == 4 || bits == 8), "{cols} columns of {bits} bits");
        let words = (0..count * rows * cols * bits / 32).map(|_| random.bits() as u32).collect();
        let levels = ((1 << bits) - 1) as f32;
        let range = 3.0 / (cols as f32).sqrt();
        let (mut scales, mut biases) = (Vec::new(), Vec::new());
        for _ in 0..count * rows * cols / GROUP {
            let scale = range / levels * (1.0 + 0.5 * random.float());
            scales.push(bf16::from_f32(scale));
            biases.push(bf16::from_f32(-scale * levels / 2.0 * (1.0 + 0.2 * random.float())));
        }
        Self { count, rows, cols, bits, words, scales, biases }
    }

    /// Element `(row, col)` of matrix `index`.
    pub fn at(&self, index: usize, row: usize, col: usize) -> f64 {
        let row = index * self.rows + row;
        let per_word = 32 / self.bits;
        let word = self.words[(row * self.cols + col) / per_word];
        let quantised = word >> (col % per_word * self.bits) & ((1 << self.bits) - 1);
        let group = (row * self.cols + col) / GROUP;
        f64::from(quantised) * self.scales[group].to_f64() + self.biases[group].to_f64()
    }

    /// A row of matrix `index`.
    pub fn row(&self, index: usize, row: usize) -> Vec<f64> {
        (0..self.cols).map(|col| self.at(index, row, col)).collect()
    }

    /// `x[…][cols]` times the transpose of matrix `index`, in f64: `[…][rows]`.
    pub fn product(&self, index: usize, x: &[f64]) -> Vec<f64> {
        let rows: Vec<Vec<f64>> = (0..self.rows).map(|row| self.row(index, row)).collect();
        let of = |x: &[f64], row: &[f64]| x.iter().zip(row).map(|(x, w)| x * w).sum();
        x.chunks_exact(self.cols).flat_map(|x| rows.iter().map(move |row| of(x, row))).collect()
    }

    /// As the CPU backend takes matrix `index`.
    pub fn matrix(&self, index: usize) -> lily_checkpoint::Matrix<'_> {
        let part = |bytes: &'_ [u8]| {
            let size = bytes.len() / self.count;
            index * size..(index + 1) * size
        };
        let (weight, scales) = (bytemuck::cast_slice(&self.words), bytemuck::cast_slice(&self.scales));
        let biases = bytemuck::cast_slice(&self.biases);
        lily_checkpoint::Matrix {
            rows: self.rows,
            cols: self.cols,
            bits: if self.bits == 4 { lily_checkpoint::Bits::Four } else { lily_checkpoint::Bits::Eight },
            weight: &weight[part(weight)],
            scales: &scales[part(scales)],
            biases: &biases[part(biases)],
        }
    }
}

//! Quantised matrices as they lie in a checkpoint.

use crate::Bytes;

/// Columns that share a scale and a bias.
pub const GROUP: usize = 64;

/// Width of a quantised weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bits {
    /// Values 0 to 15, two a byte.
    Four,
    /// Values 0 to 255.
    Eight,
}

impl Bits {
    /// 4 or 8.
    #[must_use]
    pub const fn count(self) -> usize {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
        }
    }
}

/// A stack of `count` quantised matrices of one shape, each row-major; a plain linear layer is a stack of one. Matrix
/// i of a stack follows matrix i − 1 in each of the three byte ranges. [`Matrix`] has the layout of one.
#[derive(Clone, Debug)]
pub struct Matrices {
    /// Matrices in the stack.
    pub count: usize,
    /// Rows of one matrix: the outputs.
    pub rows: usize,
    /// Columns of one matrix, a multiple of [`GROUP`]: the inputs.
    pub cols: usize,
    /// Width of a weight.
    pub bits: Bits,
    /// count × rows × cols·bits/8 bytes.
    pub weight: Bytes,
    /// count × rows × cols/64 little-endian bf16.
    pub scales: Bytes,
    /// As `scales`.
    pub biases: Bytes,
}

impl Matrices {
    /// One matrix of the stack.
    ///
    /// # Panics
    /// If `index` is not below `count`.
    #[must_use]
    pub fn get(&self, index: usize) -> Matrix<'_> {
        assert!(index < self.count, "matrix {index} of {}", self.count);
        let part = |size: usize| index * size..(index + 1) * size;
        let weight = self.rows * self.cols * self.bits.count() / 8;
        let groups = self.rows * (self.cols / GROUP) * 2;
        Matrix {
            rows: self.rows,
            cols: self.cols,
            bits: self.bits,
            weight: &self.weight[part(weight)],
            scales: &self.scales[part(groups)],
            biases: &self.biases[part(groups)],
        }
    }

    /// Bytes of the whole stack.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.weight.len() + self.scales.len() + self.biases.len()) as u64
    }

    /// Weights of the whole stack: count × rows × cols.
    #[must_use]
    pub const fn parameters(&self) -> u64 {
        self.count as u64 * self.rows as u64 * self.cols as u64
    }
}

/// One quantised matrix: `w[n][k] = q[n][k] · scale[n][k / 64] + bias[n][k / 64]`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// Outputs.
    pub rows: usize,
    /// Inputs, a multiple of [`GROUP`].
    pub cols: usize,
    /// Width of a weight.
    pub bits: Bits,
    /// rows × cols·bits/8 bytes. Element k of a row sits in its little-endian u32 word k / (32 / bits), low bits
    /// first; so byte b of a 4-bit row holds k = 2b in its low half and k = 2b + 1 in its high half.
    pub weight: &'a [u8],
    /// rows × cols/64 little-endian bf16.
    pub scales: &'a [u8],
    /// As `scales`.
    pub biases: &'a [u8],
}

//! Products of activations with quantised matrices, straight from the mapped bytes.
//!
//! The kernels' numbers are specified by [`scalar`]; the others give the same bits. An output element is computed by
//! one thread from one row of activations and one row of weights, group after group in order, so it depends neither on
//! the other rows of the batch nor on how the work is shared out.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;

use lily_checkpoint::{Bits, GROUP, Matrix};
use rayon::prelude::*;

use crate::activations::{Activations, Plane};
use crate::simd::Simd;

/// out\[m\]\[n\] = Σₖ input\[rows\[m\]\]\[k\] · weight\[n\]\[k\].
pub(crate) struct Product<'a> {
    pub(crate) weight: Matrix<'a>,
    pub(crate) input: &'a Activations,
    /// Which rows of the input; `None` = all, in order.
    pub(crate) rows: Option<&'a [u32]>,
    /// Row-major `[rows, weight.rows]`.
    pub(crate) out: &'a mut [f32],
}

/// Computes all products in one parallel region on the current rayon pool, so that small ones share the cores.
pub(crate) fn matmul(simd: Simd, products: &mut [Product<'_>]) {
    /// Below this many multiplications in all, waking the other threads costs more than it gains.
    const PARALLEL_FROM: usize = 1 << 17;

    assert!(simd.is_available(), "matmul: this machine has no {simd}");
    products.iter().for_each(Product::check);
    let bytes = task_bytes(products);
    // The outputs' rows, cut into the tasks' columns: per product, task after task, a slice a row.
    let mut pieces: Vec<Vec<&mut [f32]>> = Vec::with_capacity(products.len());
    let mut shapes = Vec::with_capacity(products.len());
    let mut multiplications = 0;
    for product in products.iter_mut() {
        let rows = product.row_count();
        let (row_bytes, _) = row_bytes(product.weight.cols, product.weight.bits);
        let step = (bytes / row_bytes).next_multiple_of(16).max(16);
        multiplications += rows * product.weight.rows * product.weight.cols;
        pieces.push(columns(product.out, product.weight.rows, step));
        shapes.push((product.weight, product.input, product.rows, rows, step));
    }
    let mut tasks = Vec::new();
    for (pieces, &(weight, input, rows, count, step)) in pieces.iter_mut().zip(&shapes) {
        if count > 0 {
            let tasks_of_product = pieces.chunks_exact_mut(count).enumerate();
            tasks.extend(tasks_of_product.map(|(index, out)| Task { weight, first: index * step, input, rows, out }));
        }
    }
    if multiplications < PARALLEL_FROM || tasks.len() == 1 {
        tasks.iter_mut().for_each(|task| task.run(simd));
    } else {
        tasks.par_iter_mut().with_max_len(1).for_each(|task| task.run(simd));
    }
}

impl Product<'_> {
    /// Rows of the output.
    fn row_count(&self) -> usize {
        self.rows.map_or(self.input.rows(), <[u32]>::len)
    }

    /// Stops on sizes that do not fit: the caller's mistake, and the kernels rely on them.
    fn check(&self) {
        let Matrix { rows, cols, bits, weight, scales, biases } = self.weight;
        let (weight_bytes, scale_bytes) = row_bytes(cols, bits);
        assert!(cols > 0 && cols.is_multiple_of(GROUP), "matmul: {cols} columns are not whole groups of {GROUP}");
        assert_eq!(cols, self.input.cols(), "matmul: columns of the weight and of the input");
        assert_eq!(weight.len(), rows * weight_bytes, "matmul: bytes of weights");
        assert_eq!(scales.len(), rows * scale_bytes, "matmul: bytes of scales");
        assert_eq!(biases.len(), rows * scale_bytes, "matmul: bytes of biases");
        assert_eq!(self.out.len(), self.row_count() * rows, "matmul: size of the output");
        let input_rows = self.input.rows();
        assert!(
            self.rows.is_none_or(|rows| rows.iter().all(|&row| (row as usize) < input_rows)),
            "matmul: a row beyond the input's {input_rows}"
        );
    }
}

/// Bytes of a row's weights, and of its scales or biases.
fn row_bytes(cols: usize, bits: Bits) -> (usize, usize) {
    let weights = match bits {
        Bits::Four => cols / 2,
        Bits::Eight => cols,
    };
    (weights, cols / GROUP * 2)
}

/// About how many bytes of weights a task should have: at least enough to outweigh its scheduling, at most what still
/// leaves some tasks to each thread.
fn task_bytes(products: &[Product<'_>]) -> usize {
    const TASKS_PER_THREAD: usize = 8;
    let total: usize = products.iter().map(|product| product.weight.weight.len()).sum();
    (total / (TASKS_PER_THREAD * rayon::current_num_threads())).clamp(32 << 10, 256 << 10)
}

/// Cuts every row of row-major `[…, cols]` into runs of `step` columns; the first run of each row, then the second, ….
fn columns(out: &mut [f32], cols: usize, step: usize) -> Vec<&mut [f32]> {
    if cols == 0 {
        return Vec::new();
    }
    let mut rows: Vec<_> = out.chunks_exact_mut(cols).map(|row| row.chunks_mut(step)).collect();
    let mut pieces = Vec::with_capacity(rows.len() * cols.div_ceil(step));
    for _ in 0..cols.div_ceil(step) {
        pieces.extend(rows.iter_mut().filter_map(Iterator::next));
    }
    pieces
}

/// A run of weight rows times all rows of a product.
struct Task<'t, 'out> {
    weight: Matrix<'t>,
    /// The first of its weight rows; their number is the length of `out`'s slices.
    first: usize,
    input: &'t Activations,
    rows: Option<&'t [u32]>,
    /// Per row of the output, this task's columns. Never empty, and neither are the slices.
    out: &'t mut [&'out mut [f32]],
}

impl<'t> Task<'t, '_> {
    fn run(&mut self, simd: Simd) {
        match (simd, self.weight.bits) {
            (Simd::Scalar, Bits::Four) => scalar::four_bit(self),
            (Simd::Scalar, Bits::Eight) => scalar::eight_bit(self),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the machine has AVX2 and FMA, asserted by `matmul`.
            (Simd::Avx2, Bits::Four) => unsafe { avx2::four_bit(self) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            (Simd::Avx2, Bits::Eight) => unsafe { avx2::eight_bit(self) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: and AVX-512 with VNNI.
            (Simd::Avx512Vnni, Bits::Four) => unsafe { avx512::four_bit(self) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            (Simd::Avx512Vnni, Bits::Eight) => unsafe { avx512::eight_bit(self) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: every aarch64 processor has NEON.
            (Simd::Neon, Bits::Four) => unsafe { neon::four_bit(self) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: the machine has `dotprod`, asserted by `matmul`.
            (Simd::NeonDotprod, Bits::Four) => unsafe { neon::four_bit_dotprod(self) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: the machine has `i8mm`, asserted by `matmul`.
            (Simd::NeonI8mm, Bits::Four) => unsafe { neon::four_bit_i8mm(self) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: every aarch64 processor has NEON.
            (Simd::Neon | Simd::NeonDotprod | Simd::NeonI8mm, Bits::Eight) => unsafe { neon::eight_bit(self) },
            _ => unreachable!("{simd} is not available here"),
        }
    }

    /// Weight rows of this task.
    #[inline]
    fn len(&self) -> usize {
        self.out.first().map_or(0, |out| out.len())
    }

    /// The input row behind row `m` of the output.
    #[inline]
    fn input_row(&self, m: usize) -> usize {
        self.rows.map_or(m, |rows| rows[m] as usize)
    }

    /// The `index`-th of the task's planes, row after row.
    #[inline]
    fn plane(&self, index: usize) -> Plane<'t> {
        let planes = self.input.planes();
        self.input.plane(self.input_row(index / planes), index % planes)
    }

    /// The task's weight row `n`.
    #[inline(always)]
    fn weight_row(&self, n: usize) -> WeightRow<'t> {
        let Matrix { cols, bits, weight, scales, biases, .. } = self.weight;
        let cut = |bytes: &'t [u8], width: usize| &bytes[(self.first + n) * width..][..width];
        let (weight_bytes, scale_bytes) = row_bytes(cols, bits);
        WeightRow {
            weight: cut(weight, weight_bytes),
            scales: cut(scales, scale_bytes),
            biases: cut(biases, scale_bytes),
        }
    }

    /// `N` of the task's weight rows from `first` on; beyond the end the last one again.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[inline]
    fn weight_rows<const N: usize>(&self, first: usize) -> [WeightRow<'t>; N] {
        let last = self.len() - 1;
        let mut rows = [self.weight_row(last.min(first)); N];
        for (lane, row) in rows.iter_mut().enumerate().skip(1) {
            *row = self.weight_row(last.min(first + lane));
        }
        rows
    }

    /// Puts what a kernel found for whole rows, from the `first_plane`-th plane on, into the columns from `first` on;
    /// the planes of a row are added, and lanes beyond the last column left out.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[inline]
    fn put<const N: usize, const LANES: usize>(&mut self, first: usize, first_plane: usize, sums: &[[f32; LANES]; N]) {
        let planes = self.input.planes();
        for (m, sums) in (first_plane / planes..).zip(sums.chunks_exact(planes)) {
            for (lane, out) in self.out[m][first..].iter_mut().take(LANES).enumerate() {
                *out = sums[1..].iter().fold(sums[0][lane], |y, plane| y + plane[lane]);
            }
        }
    }
}

/// A row of a matrix.
#[derive(Clone, Copy)]
struct WeightRow<'a> {
    weight: &'a [u8],
    scales: &'a [u8],
    biases: &'a [u8],
}

#[cfg(test)]
mod tests;

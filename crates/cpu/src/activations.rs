//! The left sides of products, quantised to 8 bits group by group.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;

use lily_checkpoint::GROUP;
use rayon::prelude::*;

use crate::simd::Simd;

/// How many int8 planes hold an activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planes {
    /// 8 bits: a relative error of up to 1/254 of the group's largest value.
    One = 1,
    /// A second plane quantises what the first left over, 16 bits in effect, at twice the work: for `lm_head`
    /// and the second products of experts.
    Two = 2,
}

/// `rows × cols` activations, as fp32 and as int8 planes. The buffers are reused from one [`set`](Self::set) to the next.
///
/// A plane holds, per group of 64 values x: `d = amax/127`, `q = round-half-even(x · 127/amax)` and `d · Σq`. The two
/// planes of a row follow each other, so a row of two planes is to the kernels two rows whose results are added.
///
/// A group holding NaN or an infinity has `d = NaN` and `q = 0`: it makes every product of its row NaN.
pub(crate) struct Activations {
    rows: usize,
    cols: usize,
    planes: usize,
    values: Vec<f32>,
    quantised: Vec<i8>,
    steps: Vec<f32>,
    sums: Vec<f32>,
}

/// One plane of one row, as the kernels read it.
#[derive(Clone, Copy)]
pub(crate) struct Plane<'a> {
    /// `cols` values, in each group of 64 the 32 of even index before the 32 of odd index: in this order 4-bit weights
    /// come out of their bytes, low nibbles first.
    pub(crate) quantised: &'a [i8],
    /// What a unit of `quantised` stands for, one per group.
    pub(crate) steps: &'a [f32],
    /// `steps` times the sum of the group's `quantised`.
    pub(crate) sums: &'a [f32],
}

impl Activations {
    pub(crate) fn new() -> Self {
        Self {
            rows: 0,
            cols: 0,
            planes: 1,
            values: Vec::new(),
            quantised: Vec::new(),
            steps: Vec::new(),
            sums: Vec::new(),
        }
    }

    /// Takes row-major `rows × cols` activations and quantises them. `cols` is a multiple of 64.
    pub(crate) fn set(&mut self, simd: Simd, x: &[f32], rows: usize, cols: usize, planes: Planes) {
        /// From this many values on, waking the other threads pays.
        const PARALLEL_FROM: usize = 1 << 16;

        assert!(cols > 0 && cols.is_multiple_of(GROUP), "activations: {cols} columns are not whole groups of {GROUP}");
        assert_eq!(x.len(), rows * cols, "activations: {rows} rows of {cols} columns");
        assert!(simd.is_available(), "activations: this machine has no {simd}");
        let planes = planes as usize;
        let groups = cols / GROUP;
        (self.rows, self.cols, self.planes) = (rows, cols, planes);
        set_length(&mut self.values, x.len());
        self.values.copy_from_slice(x);
        set_length(&mut self.quantised, rows * planes * cols);
        set_length(&mut self.steps, rows * planes * groups);
        set_length(&mut self.sums, rows * planes * groups);

        let quantised = self.quantised.chunks_exact_mut(planes * cols);
        let steps = self.steps.chunks_exact_mut(planes * groups);
        let sums = self.sums.chunks_exact_mut(planes * groups);
        let parts = x.chunks_exact(cols).zip(quantised).zip(steps.zip(sums));
        let all = parts.map(|((x, quantised), (steps, sums))| Row { x, planes, quantised, steps, sums });
        if rows > 1 && rows * cols >= PARALLEL_FROM {
            all.collect::<Vec<_>>().into_par_iter().with_min_len(4).for_each(|row| row.quantise(simd));
        } else {
            all.for_each(|row| row.quantise(simd));
        }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    /// Planes per row: 1 or 2.
    pub(crate) fn planes(&self) -> usize {
        self.planes
    }

    /// The fp32 values of a row.
    #[inline]
    pub(crate) fn values(&self, row: usize) -> &[f32] {
        &self.values[row * self.cols..][..self.cols]
    }

    /// A plane of a row.
    #[inline]
    pub(crate) fn plane(&self, row: usize, plane: usize) -> Plane<'_> {
        let index = row * self.planes + plane;
        let groups = self.cols / GROUP;
        Plane {
            quantised: &self.quantised[index * self.cols..][..self.cols],
            steps: &self.steps[index * groups..][..groups],
            sums: &self.sums[index * groups..][..groups],
        }
    }
}

/// Sets a buffer's length. It grows to just that, not to a power of two, so that it stays within the memory plan.
fn set_length<T: Clone + Default>(values: &mut Vec<T>, length: usize) {
    values.reserve_exact(length.saturating_sub(values.len()));
    values.resize(length, T::default());
}

/// A row to quantise, and where its planes go.
struct Row<'a> {
    x: &'a [f32],
    planes: usize,
    quantised: &'a mut [i8],
    steps: &'a mut [f32],
    sums: &'a mut [f32],
}

impl Row<'_> {
    /// `simd` is available.
    fn quantise(self, simd: Simd) {
        match simd {
            Simd::Scalar => scalar::quantise(self),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the machine has AVX2 and FMA, asserted by `Activations::set`.
            Simd::Avx2 | Simd::Avx512Vnni => unsafe { avx2::quantise(self) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: every aarch64 processor has NEON.
            Simd::Neon | Simd::NeonDotprod | Simd::NeonI8mm => unsafe { neon::quantise(self) },
            _ => unreachable!("{simd} is not available here"),
        }
    }
}

/// Step and inverse step of a group with the given largest magnitude, which is NaN if the group isn't finite.
#[inline]
fn steps(amax: f32) -> (f32, f32) {
    let inverse = 127.0 / amax;
    // Magnitudes below 2^-121 or so have no finite inverse; they count as zeros, as do true ones.
    (amax / 127.0, if inverse.is_finite() { inverse } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_grows_to_what_the_largest_step_needs() {
        let mut activations = Activations::new();
        for rows in [3, 4, 2] {
            activations.set(Simd::best(), &vec![1.0; rows * 128], rows, 128, Planes::Two);
        }
        let Activations { values, quantised, steps, sums, .. } = &activations;
        assert_eq!((values.capacity(), quantised.capacity()), (4 * 128, 4 * 2 * 128));
        assert_eq!((steps.capacity(), sums.capacity()), (4 * 2 * 2, 4 * 2 * 2));
    }
}

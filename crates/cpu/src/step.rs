//! What the parts of a layer need to know of the step they work in.

use lily_checkpoint::Matrices;

use crate::activations::Activations;
use crate::matmul::Product;
use crate::rope::Rope;
use crate::simd::Simd;

/// The rows of a step and whose they are: row i of every `[rows, …]` activation belongs to one token of one sequence.
pub(crate) struct Step {
    pub(crate) simd: Simd,
    pub(crate) rows: usize,
    /// One after another, without gaps.
    pub(crate) runs: Vec<Run>,
    pub(crate) rope: Rope,
}

/// The rows of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) first_row: usize,
    pub(crate) rows: usize,
    /// Of the first row in its sequence: the tokens the state holds.
    pub(crate) position: usize,
}

impl Run {
    /// Its part of row-major activations of `width` columns.
    pub(crate) fn of<'a, T>(&self, values: &'a [T], width: usize) -> &'a [T] {
        &values[self.first_row * width..][..self.rows * width]
    }
}

/// Cuts row-major activations of `width` columns into the parts of the runs.
pub(crate) fn cut_runs<'a>(runs: &[Run], mut values: &'a mut [f32], width: usize) -> Vec<&'a mut [f32]> {
    let mut parts = Vec::with_capacity(runs.len());
    for run in runs {
        let (part, rest) = values.split_at_mut(run.rows * width);
        parts.push(part);
        values = rest;
    }
    parts
}

/// The product of all rows with a plain linear layer: `out[rows, weight.rows] = input[rows, weight.cols] · weightᵀ`.
pub(crate) fn linear<'a>(weight: &'a Matrices, input: &'a Activations, out: &'a mut [f32]) -> Product<'a> {
    Product { weight: weight.get(0), input, rows: None, out }
}

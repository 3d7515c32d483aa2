//! Products over weights that were written to memory as halves before.

use half::f16;

use super::rewrite::{Rewriter, parameters};
use crate::device::{DeviceError, Range};
use crate::kernel::{Kernel, Slice};
use crate::kernels::{
    self, Dequantise, DequantiseParams, ExpertsHalfDown, ExpertsHalfUp, GemmAddParams, GemmHalf, GemmParams,
    PRODUCT_COLUMNS,
};
use crate::plan::Dispatch;

/// Weights of a packed word.
const WEIGHTS: u64 = 8;

const HALF: u64 = size_of::<f16>() as u64;

impl<F: FnMut(&'static str, u64) -> Result<Range, DeviceError>> Rewriter<F> {
    /// A product as what writes its weights and what multiplies them.
    pub(super) fn dequantised(&mut self, dispatch: &Dispatch) -> Result<Vec<Dispatch>, DeviceError> {
        match dispatch.kernel.name {
            "gemm_q4_32" => self.dense(dispatch, &kernels::GEMM_HALF_32),
            "gemm_q4_64" => self.dense(dispatch, &kernels::GEMM_HALF_64),
            "gemm_q4_add_32" => self.dense_add(dispatch, &kernels::GEMM_HALF_ADD_32),
            "gemm_q4_add_64" => self.dense_add(dispatch, &kernels::GEMM_HALF_ADD_64),
            "experts_gemm_up_16" => self.experts_up(dispatch, &kernels::EXPERTS_HALF_UP_16),
            "experts_gemm_up_32" => self.experts_up(dispatch, &kernels::EXPERTS_HALF_UP_32),
            "experts_gemm_down_16" => self.experts_down(dispatch, &kernels::EXPERTS_HALF_DOWN_16),
            "experts_gemm_down_32" => self.experts_down(dispatch, &kernels::EXPERTS_HALF_DOWN_32),
            _ => Ok(vec![dispatch.clone()]),
        }
    }

    /// Quantised matrices one below the other as one of halves, and what writes it.
    fn stack(
        &mut self,
        what: &'static str,
        matrices: &[[Range; 3]],
    ) -> Result<(Slice<f16>, Vec<Dispatch>), DeviceError> {
        let words: Vec<u64> = matrices.iter().map(|[w, ..]| w.bytes / size_of::<u32>() as u64).collect();
        let all = self.scratch(what, words.iter().sum::<u64>() as u32, WEIGHTS * HALF)?;
        let (mut before, mut writers) = (0, Vec::new());
        for (&[w, scales, biases], &words) in matrices.iter().zip(&words) {
            let writer = Dequantise {
                w: Slice::new(w),
                scales: Slice::new(scales),
                biases: Slice::new(biases),
                y: Slice::new(all.part(before * WEIGHTS * HALF, words * WEIGHTS * HALF)),
                p: DequantiseParams { words: words as u32 },
            };
            let threads = kernels::DEQUANTISE.max_threads;
            writers.push(writer.dispatch([(words as u32).div_ceil(threads), 1, 1], threads));
            before += words;
        }
        Ok((Slice::new(all), writers))
    }

    fn dense(&mut self, dispatch: &Dispatch, kernel: &'static Kernel) -> Result<Vec<Dispatch>, DeviceError> {
        let GemmParams { rows, inner, outputs0, outputs1, outputs2, outputs3 } =
            GemmParams::from_bytes(&parameters(dispatch));
        let outputs = [outputs0, outputs1, outputs2, outputs3];
        let there = (0..outputs.len()).filter(|&index| outputs[index] > 0);
        let matrices: Vec<_> = there.map(|index| matrix(dispatch, 3 * index)).collect();
        let (x, y) = (dispatch.ranges[12], dispatch.ranges[13]);
        self.product(dispatch, kernel, &matrices, x, y, GemmAddParams { rows, inner, outputs: outputs.iter().sum() })
    }

    fn dense_add(&mut self, dispatch: &Dispatch, kernel: &'static Kernel) -> Result<Vec<Dispatch>, DeviceError> {
        let p = GemmAddParams::from_bytes(&parameters(dispatch));
        self.product(dispatch, kernel, &[matrix(dispatch, 0)], dispatch.ranges[3], dispatch.ranges[4], p)
    }

    fn product(
        &mut self,
        dispatch: &Dispatch,
        kernel: &'static Kernel,
        matrices: &[[Range; 3]],
        x: Range,
        y: Range,
        p: GemmAddParams,
    ) -> Result<Vec<Dispatch>, DeviceError> {
        let (w, mut all) = self.stack("dense weights as halves", matrices)?;
        let grid = [dispatch.grid[0], p.outputs.div_ceil(PRODUCT_COLUMNS), 1];
        let product = GemmHalf { w, x: Slice::new(x), y: Slice::new(y), p };
        let product = product.dispatch(kernel, grid, kernel.max_threads);
        all.push(product.costing(&[], dispatch.cost.multiply_adds));
        Ok(all)
    }

    fn experts_up(&mut self, dispatch: &Dispatch, kernel: &'static Kernel) -> Result<Vec<Dispatch>, DeviceError> {
        let (gate, mut all) = self.stack("experts' gates as halves", &[matrix(dispatch, 0), matrix(dispatch, 6)])?;
        let (up, more) = self.stack("experts' ups as halves", &[matrix(dispatch, 3), matrix(dispatch, 9)])?;
        all.extend(more);
        let [x, order, map, hidden] = [12, 13, 14, 15].map(|index| dispatch.ranges[index]);
        let product = ExpertsHalfUp {
            gate,
            up,
            x: Slice::new(x),
            order: Slice::new(order),
            map: Slice::new(map),
            hidden: Slice::new(hidden),
        };
        let product = product.dispatch(kernel, dispatch.grid, kernel.max_threads);
        all.push(product.costing(&[], dispatch.cost.multiply_adds));
        Ok(all)
    }

    fn experts_down(&mut self, dispatch: &Dispatch, kernel: &'static Kernel) -> Result<Vec<Dispatch>, DeviceError> {
        let (w, mut all) = self.stack("experts' downs as halves", &[matrix(dispatch, 0), matrix(dispatch, 3)])?;
        let [hidden, map, y] = [6, 7, 8].map(|index| dispatch.ranges[index]);
        let product = ExpertsHalfDown { w, hidden: Slice::new(hidden), map: Slice::new(map), y: Slice::new(y) };
        let product = product.dispatch(kernel, dispatch.grid, kernel.max_threads);
        all.push(product.costing(&[], dispatch.cost.multiply_adds));
        Ok(all)
    }
}

/// Weights, scales and biases from a slot on.
pub(super) fn matrix(dispatch: &Dispatch, slot: usize) -> [Range; 3] {
    [0, 1, 2].map(|index| dispatch.ranges[slot + index])
}

//! What decode steps of one row do in fused kernels, in kernels of their own.

use super::halves::matrix;
use super::rewrite::{Rewriter, parameters};
use crate::device::{DeviceError, Range};
use crate::kernel::{Kernel, Slice};
use crate::kernels::{
    self, ADD_ROW, AddRow, CHOOSE_EXPERTS, ChooseExperts, CountParams, DELTA_HEAD, DELTA_PREPARE, DELTA_SCAN,
    DeltaPrepare, DeltaScan, GATED_NORM_ROW, GatedNormRow, NORM_ROW, NormRow, PRODUCT_CHOSEN, ProductChosen,
    ProductRow, ProductRowParams, ProjectAddParams, ProjectParams, RANKS, SCAN_ROWS, SWIGLU, Swiglu,
};
use crate::plan::Dispatch;

/// Bytes of an activation.
const FLOAT: u64 = 4;

impl<F: FnMut(&'static str, u64) -> Result<Range, DeviceError>> Rewriter<F> {
    /// The kernels that take a fused one's place, in a step of one row.
    pub(super) fn single_kernels(&mut self, dispatch: &Dispatch) -> Result<Vec<Dispatch>, DeviceError> {
        let [_, y, z] = dispatch.grid;
        match (dispatch.kernel.name, self.rows) {
            ("project_norm_1", _) => self.project_norm(dispatch),
            ("project_add_1", _) => self.project_add(dispatch),
            ("experts_up", _) if z == 1 => self.experts_up_single(dispatch),
            ("delta_step", Some(rows)) if y == 1 => self.delta_step(dispatch, rows),
            _ => Ok(vec![dispatch.clone()]),
        }
    }

    fn norm(&mut self, x: Range, gain: Range) -> Result<(Dispatch, Slice<f32>), DeviceError> {
        let y = Slice::new(self.scratch("a row after its norm", self.sizes.hidden, FLOAT)?);
        let x = Slice::new(x).part(0, u64::from(self.sizes.hidden));
        Ok((NormRow { x, gain: Slice::new(gain), y }.dispatch([1; 3], NORM_ROW.max_threads), y))
    }

    fn project_norm(&mut self, dispatch: &Dispatch) -> Result<Vec<Dispatch>, DeviceError> {
        let ProjectParams { outputs0, outputs1, outputs2, outputs3 } = ProjectParams::from_bytes(&parameters(dispatch));
        let (norm, x) = self.norm(dispatch.ranges[12], dispatch.ranges[13])?;
        let (y, inner) = (Slice::<f32>::new(dispatch.ranges[14]), self.sizes.hidden);
        let (mut all, mut before) = (vec![norm], 0);
        for (index, outputs) in [outputs0, outputs1, outputs2, outputs3].into_iter().enumerate() {
            if outputs > 0 {
                let y = y.part(u64::from(before), u64::from(outputs));
                let p = ProductRowParams { inner, outputs };
                all.push(product(&kernels::PRODUCT_ROW_4, 4, matrix(dispatch, 3 * index), x, y, p));
                before += outputs;
            }
        }
        Ok(all)
    }

    fn project_add(&mut self, dispatch: &Dispatch) -> Result<Vec<Dispatch>, DeviceError> {
        let ProjectAddParams { inner } = ProjectAddParams::from_bytes(&parameters(dispatch));
        let (input, x) = (Slice::new(dispatch.ranges[3]), Slice::new(dispatch.ranges[4]));
        let outputs = self.sizes.hidden;
        let y = Slice::new(self.scratch("a row to be added", outputs, FLOAT)?);
        let p = ProductRowParams { inner, outputs };
        let add = AddRow { y, x }.dispatch([outputs.div_ceil(ADD_ROW.max_threads), 1, 1], ADD_ROW.max_threads);
        Ok(vec![product(&kernels::PRODUCT_ROW_2, 2, matrix(dispatch, 0), input, y, p), add])
    }

    fn experts_up_single(&mut self, dispatch: &Dispatch) -> Result<Vec<Dispatch>, DeviceError> {
        let [logits, hidden, choices] = [14, 16, 17].map(|index| dispatch.ranges[index]);
        let (norm, x) = self.norm(dispatch.ranges[12], dispatch.ranges[13])?;
        let (choices, width) = (Slice::new(choices), self.sizes.expert_width);
        let choose = ChooseExperts { logits: Slice::new(logits), choices };
        let gate = Slice::new(self.scratch("experts' gates", RANKS * width, FLOAT)?);
        let up = Slice::new(self.scratch("experts' ups", RANKS * width, FLOAT)?);
        let chosen = |slot, y| {
            let ([w, scales, biases], [shared_w, shared_scales, shared_biases]) =
                (matrix(dispatch, slot), matrix(dispatch, slot + 6));
            let product = ProductChosen {
                w: Slice::new(w),
                scales: Slice::new(scales),
                biases: Slice::new(biases),
                shared_w: Slice::new(shared_w),
                shared_scales: Slice::new(shared_scales),
                shared_biases: Slice::new(shared_biases),
                x,
                choices,
                y,
            };
            product.dispatch([width / 32, RANKS, 1], PRODUCT_CHOSEN.max_threads)
        };
        let swiglu = Swiglu { gate, up, hidden: Slice::new(hidden) };
        Ok(vec![
            norm,
            choose.dispatch([1; 3], CHOOSE_EXPERTS.max_threads),
            chosen(0, gate),
            chosen(3, up),
            swiglu.dispatch([(RANKS * width).div_ceil(SWIGLU.max_threads), 1, 1], SWIGLU.max_threads),
        ])
    }

    fn delta_step(&mut self, dispatch: &Dispatch, rows: Range) -> Result<Vec<Dispatch>, DeviceError> {
        let [projected, conv, a_log, dt_bias, gain] = [0, 1, 2, 3, 4].map(|index| Slice::new(dispatch.ranges[index]));
        let (segments, sequences) = (Slice::new(dispatch.ranges[5]), Slice::new(dispatch.ranges[6]));
        let [window, state, y] = [7, 8, 9].map(|index| Slice::new(dispatch.ranges[index]));
        let heads = self.sizes.value_heads;
        let all_heads = 2 * self.sizes.key_heads + heads;
        let convolved = Slice::new(self.scratch("q, k and v of a row", all_heads * DELTA_HEAD, FLOAT)?);
        let decay = Slice::new(self.scratch("decays of a row", heads, FLOAT)?);
        let beta = Slice::new(self.scratch("betas of a row", heads, FLOAT)?);
        let o = Slice::new(self.scratch("outputs of a row", heads * DELTA_HEAD, FLOAT)?);
        let p = CountParams { count: 1 };
        let rows = Slice::new(rows);
        let prepare = DeltaPrepare {
            projected,
            conv,
            a_log,
            dt_bias,
            rows,
            segments,
            sequences,
            window,
            convolved,
            decay,
            beta,
            p,
        };
        let scan = DeltaScan { convolved, decay, beta, segments, sequences, state, o };
        let by_simdgroup = |kernel: &Kernel, heads: u32| [heads.div_ceil(kernel.simdgroups() as u32), 1, 1];
        let scan_grid = [DELTA_HEAD / SCAN_ROWS, heads, 1];
        let norm = GatedNormRow { o, projected, gain, y };
        Ok(vec![
            prepare.dispatch(by_simdgroup(&DELTA_PREPARE, all_heads), DELTA_PREPARE.max_threads),
            scan.dispatch(scan_grid, DELTA_SCAN.max_threads).costing(&[], dispatch.cost.multiply_adds),
            norm.dispatch(by_simdgroup(&GATED_NORM_ROW, heads), GATED_NORM_ROW.max_threads),
        ])
    }
}

/// `y = W x` by a kernel that makes so many outputs a SIMD-group.
fn product(
    kernel: &'static Kernel,
    each: u32,
    [w, scales, biases]: [Range; 3],
    x: Slice<f32>,
    y: Slice<f32>,
    p: ProductRowParams,
) -> Dispatch {
    let grid = [p.outputs.div_ceil(each * kernel.simdgroups() as u32), 1, 1];
    let (w, scales, biases) = (Slice::new(w), Slice::new(scales), Slice::new(biases));
    ProductRow { w, scales, biases, x, y, p }.dispatch(kernel, grid, kernel.max_threads)
}

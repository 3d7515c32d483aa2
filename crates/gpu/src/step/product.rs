//! Products with 4-bit matrices, for few rows and for many.

use half::f16;

use crate::device::Tiles;
use crate::kernel::{Kernel, Slice};
use crate::kernels::{self, ADD_OUTPUTS, CountParams, GemmAddParams, GemmParams, GemmQ4, GemmQ4Add, PRODUCT_COLUMNS};
use crate::kernels::{PROJECT_OUTPUTS, ProjectAdd, ProjectAddParams, ProjectNorm, ProjectParams, RMS_NORM, RmsNorm};
use crate::memory::ManyRows;
use crate::recorder::Recorder;
use crate::step::{Model, by_rows, bytes, warpgroup};
use crate::weights::Linear;

static PROJECT_NORM: [&Kernel; 4] =
    [&kernels::PROJECT_NORM_1, &kernels::PROJECT_NORM_2, &kernels::PROJECT_NORM_4, &kernels::PROJECT_NORM_8];
static PROJECT_ADD: [&Kernel; 4] =
    [&kernels::PROJECT_ADD_1, &kernels::PROJECT_ADD_2, &kernels::PROJECT_ADD_4, &kernels::PROJECT_ADD_8];

/// Up to four matrices one above the other; those that are absent have no rows, and bindings that are never read.
struct Stack {
    matrices: [Linear; 4],
    outputs: [u32; 4],
    parameters: u64,
}

impl Stack {
    fn new(matrices: &[&Linear]) -> Self {
        let first = *matrices[0];
        let absent =
            Linear { w: first.w.part(0, 1), scales: first.scales.part(0, 1), biases: first.biases.part(0, 1), ..first };
        let at = |index: usize| matrices.get(index).map(|linear| **linear);
        Self {
            matrices: [0, 1, 2, 3].map(|index| at(index).unwrap_or(absent)),
            outputs: [0, 1, 2, 3].map(|index| at(index).map_or(0, |linear| linear.outputs as u32)),
            parameters: matrices.iter().map(|linear| linear.parameters()).sum(),
        }
    }
}

/// `y = stack · (norm(x) · gain)`
pub(super) fn project_few(
    model: &Model<'_>,
    recorder: &mut Recorder,
    rows: usize,
    matrices: &[&Linear],
    x: Slice<f32>,
    gain: Slice<f32>,
    y: Slice<f32>,
) {
    let Stack { matrices: [m0, m1, m2, m3], outputs: [outputs0, outputs1, outputs2, outputs3], parameters } =
        Stack::new(matrices);
    let project = ProjectNorm {
        w0: m0.w,
        scales0: m0.scales,
        biases0: m0.biases,
        w1: m1.w,
        scales1: m1.scales,
        biases1: m1.biases,
        w2: m2.w,
        scales2: m2.scales,
        biases2: m2.biases,
        w3: m3.w,
        scales3: m3.scales,
        biases3: m3.biases,
        x,
        gain,
        y,
        p: ProjectParams { outputs0, outputs1, outputs2, outputs3 },
    };
    let outputs = outputs0 + outputs1 + outputs2 + outputs3;
    let (family, groups) = if bytes::multiply(model) {
        (&bytes::PROJECT_NORM, bytes::project_blocks(outputs, rows))
    } else {
        (&PROJECT_NORM, outputs.div_ceil(PROJECT_OUTPUTS))
    };
    let kernel = by_rows(family, rows);
    let project = project.dispatch(kernel, [groups, 1, 1], kernel.max_threads);
    recorder.add(project.costing(&[], rows as u64 * parameters));
}

/// `x += linear · input`. Where DeltaNet has left `squares`, its input still lacks the norm.
pub(super) fn add_few(
    model: &Model<'_>,
    recorder: &mut Recorder,
    rows: usize,
    linear: &Linear,
    input: Slice<f32>,
    x: Slice<f32>,
    squares: Option<Slice<f32>>,
) {
    let &Linear { w, scales, biases, inner, outputs, .. } = linear;
    let add = ProjectAdd { w, scales, biases, input, x, p: ProjectAddParams { inner: inner as u32 } };
    let kernel = by_rows(&PROJECT_ADD, rows);
    let mut add = add.dispatch(kernel, [(outputs as u32).div_ceil(ADD_OUTPUTS), 1, 1], kernel.max_threads);
    if bytes::multiply(model) {
        add = bytes::add(rows, outputs, add, squares);
    }
    recorder.add(add.costing(&[], rows as u64 * linear.parameters()));
}

/// `x = half(norm(x) · gain)`, what many-row products begin with.
pub(super) fn norm_many(recorder: &mut Recorder, rows: usize, x: Slice<f32>, gain: Slice<f32>, y: Slice<f16>) {
    let norm = RmsNorm { x, gain, y, p: CountParams { count: rows as u32 } };
    recorder.add(
        norm.dispatch([rows.div_ceil(RMS_NORM.simdgroups()) as u32, 1, 1], RMS_NORM.max_threads)
            .costing(&[], 2 * x.len()),
    );
}

/// A product's kernels: for tiles of 32 and 64 rows, also through tensor operations, and for warpgroups. (No step has so few rows as
/// the tiles of 16 are made for, with which `ablate` compares these.)
struct Family {
    plain: [&'static Kernel; 2],
    tensor: [&'static Kernel; 2],
    warpgroup: &'static Kernel,
}

static GEMM: Family = Family {
    plain: [&kernels::GEMM_Q4_32, &kernels::GEMM_Q4_64],
    tensor: [&kernels::GEMM_Q4_32_TENSOR, &kernels::GEMM_Q4_64_TENSOR],
    warpgroup: &warpgroup::GEMM_Q4,
};
static GEMM_ADD: Family = Family {
    plain: [&kernels::GEMM_Q4_ADD_32, &kernels::GEMM_Q4_ADD_64],
    tensor: [&kernels::GEMM_Q4_ADD_32_TENSOR, &kernels::GEMM_Q4_ADD_64_TENSOR],
    warpgroup: &warpgroup::GEMM_Q4_ADD,
};

/// A kernel and the rows and columns that a threadgroup of it makes.
struct Tile {
    kernel: &'static Kernel,
    rows: usize,
    columns: u32,
}

impl Family {
    /// The tile for so many rows: large ones read the weights less often, small ones waste less.
    fn tile(&self, model: &Model<'_>, rows: usize) -> Tile {
        let size = usize::from(rows > 32);
        let kernel = match model.sizes.tiles {
            Tiles::Warpgroup => {
                return Tile { kernel: self.warpgroup, rows: warpgroup::ROWS, columns: warpgroup::COLUMNS };
            }
            Tiles::Tensor => self.tensor[size],
            Tiles::Simdgroup => self.plain[size],
        };
        Tile { kernel, rows: 32 << size, columns: PRODUCT_COLUMNS }
    }
}

/// `y = stack · (norm(x) · gain)`, through `normed`.
pub(super) fn project_many(
    model: &Model<'_>,
    recorder: &mut Recorder,
    rows: usize,
    matrices: &[&Linear],
    gain: Slice<f32>,
    y: Slice<f32>,
    work: &ManyRows,
) {
    norm_many(recorder, rows, work.x, gain, work.normed);
    let Stack { matrices: [m0, m1, m2, m3], outputs, parameters } = Stack::new(matrices);
    let [outputs0, outputs1, outputs2, outputs3] = outputs;
    let tile = GEMM.tile(model, rows);
    let product = GemmQ4 {
        w0: m0.w,
        scales0: m0.scales,
        biases0: m0.biases,
        w1: m1.w,
        scales1: m1.scales,
        biases1: m1.biases,
        w2: m2.w,
        scales2: m2.scales,
        biases2: m2.biases,
        w3: m3.w,
        scales3: m3.scales,
        biases3: m3.biases,
        x: work.normed,
        y,
        p: GemmParams { rows: rows as u32, inner: m0.inner as u32, outputs0, outputs1, outputs2, outputs3 },
    };
    let columns = outputs.iter().map(|outputs| outputs.div_ceil(tile.columns)).sum();
    let grid = [rows.div_ceil(tile.rows) as u32, columns, 1];
    let product = product.dispatch(tile.kernel, grid, tile.kernel.max_threads);
    recorder.add(product.costing(&[], rows as u64 * parameters));
}

/// `x += linear · input`
pub(super) fn add_many(
    model: &Model<'_>,
    recorder: &mut Recorder,
    rows: usize,
    linear: &Linear,
    input: Slice<f16>,
    x: Slice<f32>,
) {
    let &Linear { w, scales, biases, inner, outputs, .. } = linear;
    let mut tile = GEMM_ADD.tile(model, rows);
    if model.sizes.tiles == Tiles::Warpgroup {
        (tile.kernel, tile.rows) = warpgroup::add_tile(model.shapes, rows, inner);
    }
    let p = GemmAddParams { rows: rows as u32, inner: inner as u32, outputs: outputs as u32 };
    let product = GemmQ4Add { w, scales, biases, x: input, y: x, p };
    let grid = [rows.div_ceil(tile.rows) as u32, (outputs as u32).div_ceil(tile.columns), 1];
    let product = product.dispatch(tile.kernel, grid, tile.kernel.max_threads);
    recorder.add(product.costing(&[], rows as u64 * linear.parameters()));
}

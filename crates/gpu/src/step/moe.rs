//! The mixture of experts: `x += Σ weight · expert(norm(x)) + sigmoid(shared gate) · shared(norm(x))` over each row's chosen 8.

use crate::device::Tiles;
use crate::kernel::Kernel;
use crate::kernels::{
    self, CountParams, DOWN_OUTPUTS, EXPERTS_COMBINE, EXPERTS_DOWN, EXPERTS_UP, ExpertsCombine, ExpertsDown,
    ExpertsGemmDown, ExpertsGemmUp, ExpertsUp, PRODUCT_COLUMNS, ROUTE_SORT, ROUTE_TOP8, ROUTER_OUTPUTS, RouteSort,
    RouteTop8, Router, RouterMany, SortParams, UP_OUTPUTS,
};
use crate::memory::{FewRows, ManyRows, expert_blocks, expert_tile};
use crate::recorder::Recorder;
use crate::shapes::{CHOSEN, RANKS};
use crate::step::product::norm_many;
use crate::step::{Few, Many, Model, by_rows, bytes, some_of, warpgroup};
use crate::weights::MoeWeights;

static ROUTER: [&Kernel; 4] = [&kernels::ROUTER_1, &kernels::ROUTER_2, &kernels::ROUTER_4, &kernels::ROUTER_8];

/// Pairs of a tile of the experts' products through tensor operations.
const TENSOR_TILE: usize = 32;

/// Each row's experts in two kernels, the choice of them made anew in every threadgroup.
pub(super) fn few(model: &Model<'_>, recorder: &mut Recorder, step: Few, weights: &MoeWeights, work: &FewRows) {
    let Few { rows, live, .. } = step;
    let shapes = model.shapes;
    let row_records = model.memory.records.rows.part(0, rows as u64);
    let (experts, shared) = (&weights.experts, &weights.shared);
    let distinct = live * CHOSEN;
    let (gate, shared_gate) = (&weights.router, &weights.shared_gate);
    let router = Router {
        w: gate.w,
        scales: gate.scales,
        biases: gate.biases,
        shared_w: shared_gate.w,
        shared_scales: shared_gate.scales,
        shared_biases: shared_gate.biases,
        x: work.x,
        gain: weights.norm,
        logits: work.router,
        p: CountParams { count: rows as u32 },
    };
    let kernel = by_rows(&ROUTER, rows);
    let grid = [(shapes.experts as u32 + 1).div_ceil(ROUTER_OUTPUTS), 1, 1];
    let router = router.dispatch(kernel, grid, kernel.max_threads);
    let up = ExpertsUp {
        gate_w: experts.gate.w,
        gate_scales: experts.gate.scales,
        gate_biases: experts.gate.biases,
        up_w: experts.up.w,
        up_scales: experts.up.scales,
        up_biases: experts.up.biases,
        shared_gate_w: shared.gate.w,
        shared_gate_scales: shared.gate.scales,
        shared_gate_biases: shared.gate.biases,
        shared_up_w: shared.up.w,
        shared_up_scales: shared.up.scales,
        shared_up_biases: shared.up.biases,
        x: work.x,
        gain: weights.norm,
        logits: work.router,
        rows: row_records,
        hidden: work.hidden,
        choices: work.choices,
    };
    let grid = [shapes.expert_width as u32 / UP_OUTPUTS, RANKS as u32, rows as u32];
    let up = up.dispatch(grid, EXPERTS_UP.max_threads);
    let down = ExpertsDown {
        down_w: experts.down.w,
        down_scales: experts.down.scales,
        down_biases: experts.down.biases,
        shared_w: shared.down.w,
        shared_scales: shared.down.scales,
        shared_biases: shared.down.biases,
        hidden: work.hidden,
        choices: work.choices,
        rows: row_records,
        x: work.x,
    };
    let grid = [shapes.hidden as u32 / DOWN_OUTPUTS, rows as u32, 1];
    let down = down.dispatch(grid, EXPERTS_DOWN.max_threads);
    let mut dispatches = [router, up, down];
    if bytes::multiply(model) {
        dispatches = bytes::moe(shapes, rows, dispatches, work.router, work.hidden);
    }
    let [router, up, down] = dispatches;
    recorder.add(router.costing(&[], rows as u64 * (gate.parameters() + shared_gate.parameters())));
    let sparse = [some_of(&experts.gate, distinct), some_of(&experts.up, distinct)].concat();
    let parameters = experts.gate.parameters() + experts.up.parameters();
    let pairs = (live * RANKS) as u64;
    recorder.add(up.costing(&sparse, pairs * parameters));
    recorder.add(down.costing(&some_of(&experts.down, distinct), pairs * experts.down.parameters()));
}

/// Rows sorted by expert on the device, so that each expert's weights pass once for all its rows.
pub(super) fn many(model: &Model<'_>, recorder: &mut Recorder, step: Many, weights: &MoeWeights, work: &ManyRows) {
    let Many { rows, .. } = step;
    let shapes = model.shapes;
    let (experts, shared, moe) = (&weights.experts, &weights.shared, &work.moe);
    let (distinct, pairs) = (rows * CHOSEN, (rows * RANKS) as u64);
    norm_many(recorder, rows, work.x, weights.norm, work.normed);
    let (gate, shared_gate) = (&weights.router, &weights.shared_gate);
    let router = RouterMany {
        w: gate.w,
        scales: gate.scales,
        biases: gate.biases,
        shared_w: shared_gate.w,
        shared_scales: shared_gate.scales,
        shared_biases: shared_gate.biases,
        x: work.x,
        gain: weights.norm,
        logits: moe.router,
        p: CountParams { count: rows as u32 },
    };
    let outputs = shapes.experts as u32 + 1;
    // Large tiles read less, small ones are more. A row has the same bits in either.
    let few = if model.sizes.tiles == Tiles::Warpgroup { 512 } else { 64 };
    let (kernel, [tile, across]): (&Kernel, [u32; 2]) = if rows <= few && shapes.hidden.is_multiple_of(128) {
        (&kernels::ROUTER_MANY_16, [16, 8])
    } else {
        (&kernels::ROUTER_MANY_64, [64, 32])
    };
    let grid = [outputs.div_ceil(across), (rows as u32).div_ceil(tile), 1];
    let parameters = gate.parameters() + shared_gate.parameters();
    recorder.add(router.dispatch(kernel, grid, kernel.max_threads).costing(&[], rows as u64 * parameters));
    let p = CountParams { count: rows as u32 };
    let choose = RouteTop8 { logits: moe.router, chosen: moe.chosen, weights: moe.weights, p };
    recorder.add(choose.dispatch([rows.div_ceil(ROUTE_TOP8.simdgroups()) as u32, 1, 1], ROUTE_TOP8.max_threads));
    // Tensor operations round otherwise than SIMD-group matrices do. Where both are there, which of them a row meets must not
    // depend on how many others the step has.
    let (tile, columns, [up_kernel, down_kernel]): (usize, u32, [&Kernel; 2]) = match model.sizes.tiles {
        Tiles::Warpgroup if warpgroup::few_each(shapes, rows) => (
            warpgroup::FEW_ROWS,
            warpgroup::COLUMNS,
            [&warpgroup::EXPERTS_GEMM_UP_32, &warpgroup::EXPERTS_GEMM_DOWN_32],
        ),
        Tiles::Warpgroup => {
            (warpgroup::ROWS, warpgroup::COLUMNS, [&warpgroup::EXPERTS_GEMM_UP, &warpgroup::EXPERTS_GEMM_DOWN])
        }
        Tiles::Tensor => {
            (TENSOR_TILE, PRODUCT_COLUMNS, [&kernels::EXPERTS_GEMM_UP_32_TENSOR, &kernels::EXPERTS_GEMM_DOWN_32_TENSOR])
        }
        Tiles::Simdgroup => match expert_tile(shapes, rows) {
            16 => (16, PRODUCT_COLUMNS, [&kernels::EXPERTS_GEMM_UP_16, &kernels::EXPERTS_GEMM_DOWN_16]),
            tile => (tile, PRODUCT_COLUMNS, [&kernels::EXPERTS_GEMM_UP_32, &kernels::EXPERTS_GEMM_DOWN_32]),
        },
    };
    let blocks = expert_blocks(shapes, rows, tile) as u32;
    let map = moe.map.part(0, u64::from(blocks));
    let p = SortParams { rows: rows as u32, tile: tile as u32, blocks };
    let sort = RouteSort { chosen: moe.chosen, order: moe.order, places: moe.places, map, p };
    recorder.add(sort.dispatch([(shapes.experts / ROUTE_SORT.simdgroups() + 1) as u32, 1, 1], ROUTE_SORT.max_threads));
    let up = ExpertsGemmUp {
        gate_w: experts.gate.w,
        gate_scales: experts.gate.scales,
        gate_biases: experts.gate.biases,
        up_w: experts.up.w,
        up_scales: experts.up.scales,
        up_biases: experts.up.biases,
        shared_gate_w: shared.gate.w,
        shared_gate_scales: shared.gate.scales,
        shared_gate_biases: shared.gate.biases,
        shared_up_w: shared.up.w,
        shared_up_scales: shared.up.scales,
        shared_up_biases: shared.up.biases,
        x: work.normed,
        order: moe.order,
        map,
        hidden: moe.hidden,
    };
    // Half of a tile's columns are gates.
    let grid = [(shapes.expert_width as u32).div_ceil(columns / 2), blocks, 1];
    let sparse = [some_of(&experts.gate, distinct), some_of(&experts.up, distinct)].concat();
    let parameters = experts.gate.parameters() + experts.up.parameters();
    recorder.add(up.dispatch(up_kernel, grid, up_kernel.max_threads).costing(&sparse, pairs * parameters));
    let down = ExpertsGemmDown {
        w: experts.down.w,
        scales: experts.down.scales,
        biases: experts.down.biases,
        shared_w: shared.down.w,
        shared_scales: shared.down.scales,
        shared_biases: shared.down.biases,
        hidden: moe.hidden,
        map,
        y: moe.y,
    };
    let grid = [(shapes.hidden as u32).div_ceil(columns), blocks, 1];
    let down = down.dispatch(down_kernel, grid, down_kernel.max_threads);
    recorder.add(down.costing(&some_of(&experts.down, distinct), pairs * experts.down.parameters()));
    let combine = ExpertsCombine { y: moe.y, places: moe.places, weights: moe.weights, x: work.x };
    recorder.add(combine.dispatch([rows as u32, 1, 1], EXPERTS_COMBINE.max_threads).costing(&[], moe.y.len()));
}

//! Gated DeltaNet: `x += out · (norm(delta(conv(qkv), a, b)) · silu(z))`, with `qkv | z | a | b = projections · norm(x)`.

use crate::device::{Range, Tiles};
use crate::kernel::Slice;
use crate::kernels::{
    CountParams, DELTA_PREPARE, DELTA_SCAN, DELTA_STEP, DeltaPrepare, DeltaScan, DeltaStep, GATED_NORM, GatedNorm,
    PREPARE_ROWS, SCAN_ROWS,
};
use crate::memory::{DELTA_CHUNK, DELTA_SQUARES, FewRows, ManyRows, MixerRows, Recurrent, delta_projected};
use crate::recorder::Recorder;
use crate::shapes::DELTA_HEAD;
use crate::step::product::{add_few, add_many, project_few, project_many};
use crate::step::{Few, Many, Model, bytes, bytes_of, warpgroup};
use crate::weights::DeltaNetWeights;

/// Multiply-adds of a row in a chunk, of a value head: its keys with themselves and with the queries, and the factors' products.
const CHUNK_WORK: usize = 5 * DELTA_CHUNK * DELTA_HEAD;

/// Products and, in one kernel, all between them: the state of a head passes through registers once.
pub(super) fn few(
    model: &Model<'_>,
    recorder: &mut Recorder,
    step: Few,
    norm: Slice<f32>,
    weights: &DeltaNetWeights,
    memory: &Recurrent,
    work: &FewRows,
) {
    let Few { rows, live, .. } = step;
    let shapes = model.shapes;
    let projected = work.projected.part(0, (rows * delta_projected(shapes)) as u64);
    let mixed = work.mixed.part(0, (rows * shapes.value_size()) as u64);
    project_few(model, recorder, rows, &[&weights.qkv, &weights.z, &weights.a, &weights.b], work.x, norm, projected);
    let step = DeltaStep {
        projected,
        conv: weights.conv,
        a_log: weights.a_log,
        dt_bias: weights.dt_bias,
        gain: weights.gain,
        segments: model.memory.records.segments.part(0, rows as u64),
        sequences: model.memory.sequences,
        windows: memory.windows,
        states: memory.states,
        y: mixed,
    };
    let step = step.dispatch([shapes.value_heads as u32, rows as u32, 1], DELTA_STEP.max_threads);
    let step = step.costing(&touched(model, memory, live), state_work(model, live));
    if bytes::multiply(model) {
        let squares = work.squares.part(0, (rows * shapes.value_heads * DELTA_SQUARES) as u64);
        recorder.add(bytes::delta_step(step, squares));
        add_few(model, recorder, rows, &weights.out, mixed, work.x, Some(squares));
    } else {
        recorder.add(step);
        add_few(model, recorder, rows, &weights.out, mixed, work.x, None);
    }
}

/// The convolution of all rows at once, the recurrence token by token with the state in registers, the gate.
pub(super) fn many(
    model: &Model<'_>,
    recorder: &mut Recorder,
    step: Many,
    norm: Slice<f32>,
    weights: &DeltaNetWeights,
    memory: &Recurrent,
    work: &ManyRows,
) {
    let Many { rows, segments, .. } = step;
    let shapes = model.shapes;
    let (records, sequences) = (&model.memory.records, model.memory.sequences);
    let segment_records = records.segments.part(0, segments as u64);
    let projected = work.mixer.projected.part(0, (rows * delta_projected(shapes)) as u64);
    let mixed = work.mixer.mixed.part(0, (rows * shapes.value_size()) as u64);
    project_many(model, recorder, rows, &[&weights.qkv, &weights.z, &weights.a, &weights.b], norm, projected, work);
    let prepare = DeltaPrepare {
        projected,
        conv: weights.conv,
        a_log: weights.a_log,
        dt_bias: weights.dt_bias,
        rows: records.rows.part(0, rows as u64),
        segments: segment_records,
        sequences,
        window: memory.windows,
        convolved: work.mixer.convolved,
        decay: work.mixer.decay,
        beta: work.mixer.beta,
        p: CountParams { count: rows as u32 },
    };
    let heads = shapes.channels() / DELTA_HEAD;
    let grid = [heads.div_ceil(DELTA_PREPARE.simdgroups()) as u32, (rows as u32).div_ceil(PREPARE_ROWS), 1];
    let prepare = prepare.dispatch(grid, DELTA_PREPARE.max_threads);
    recorder.add(prepare.costing(&touched(model, memory, segments), (rows * shapes.channels() * 4) as u64));
    scan(model, recorder, step, memory, &work.mixer);
    let gate = GatedNorm { o: work.mixer.o, projected, gain: weights.gain, y: mixed };
    let gate = gate.dispatch(
        [shapes.value_heads.div_ceil(GATED_NORM.simdgroups()) as u32, rows as u32, 1],
        GATED_NORM.max_threads,
    );
    recorder.add(gate.costing(&[], (rows * shapes.value_size() * 3) as u64));
    add_many(model, recorder, rows, &weights.out, mixed, work.x);
}

/// The recurrence: token by token, or, with Hopper's kernels, in chunks of 64.
fn scan(model: &Model<'_>, recorder: &mut Recorder, step: Many, memory: &Recurrent, work: &MixerRows) {
    let Many { rows, segments, .. } = step;
    let (shapes, sequences) = (model.shapes, model.memory.sequences);
    let segment_records = model.memory.records.segments.part(0, segments as u64);
    if model.sizes.tiles == Tiles::Warpgroup && warpgroup::chunks(shapes) {
        let factors = work.factors;
        let chunks = warpgroup::delta_chunks(shapes, rows, work, segment_records, factors);
        recorder.add(chunks.costing(&[], (rows * shapes.value_heads * CHUNK_WORK) as u64));
        let scan = warpgroup::delta_scan(shapes, factors, segment_records, sequences, memory.states, work.o);
        recorder.add(scan.costing(&touched(model, memory, segments), state_work(model, rows)));
        return;
    }
    let scan = DeltaScan {
        convolved: work.convolved,
        decay: work.decay,
        beta: work.beta,
        segments: segment_records,
        sequences,
        state: memory.states,
        o: work.o,
    };
    let scan = scan
        .dispatch([DELTA_HEAD as u32 / SCAN_ROWS, shapes.value_heads as u32, segments as u32], DELTA_SCAN.max_threads);
    recorder.add(scan.costing(&touched(model, memory, segments), state_work(model, rows)));
}

/// What a step reads and writes of the memory of all sequences: both copies of those it has.
fn touched(model: &Model<'_>, memory: &Recurrent, segments: usize) -> [(Range, u64); 3] {
    [
        (memory.windows.range, bytes_of(memory.windows, segments * 2 * model.shapes.window())),
        (memory.states.range, bytes_of(memory.states, segments * 2 * model.shapes.state())),
        (model.memory.sequences.range, bytes_of(model.memory.sequences, segments)),
    ]
}

/// Decay, S·k, the rank-one update, S·q.
fn state_work(model: &Model<'_>, rows: usize) -> u64 {
    (rows * 4 * model.shapes.state()) as u64
}

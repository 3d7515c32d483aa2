//! Gated attention: `x += out · (softmax(q Kᵀ) V · sigmoid(gate))`, with `q, gate | k | v = projections · norm(x)`.

use crate::device::{Range, Tiles};
use crate::kernel::Slice;
use crate::kernels::{
    ATTENTION_BLOCK, ATTENTION_COMBINE, ATTENTION_PREFILL, ATTENTION_PREPARE, AttentionBlock, AttentionCombine,
    AttentionPrefill, AttentionPrefillParams, AttentionPrepare, BlockParams, CombineParams, PrepareParams, QUERIES,
};
use crate::memory::{ATTENTION_PIECES, CONTEXT_BLOCK, Cache, FewRows, ManyRows, attention_projected};
use crate::plan::Dispatch;
use crate::recorder::Recorder;
use crate::shapes::{HEAD, PAGE};
use crate::step::product::{add_few, add_many, project_few, project_many};
use crate::step::{Few, Many, Model, bytes, bytes_of, warpgroup};
use crate::weights::AttentionWeights;

/// Rows times tokens of context of one dispatch: more could keep a display waiting.
const ATTENTION_WORK: usize = 1 << 23;

/// The context in blocks, each by a threadgroup for all query heads of a KV head, and a kernel that joins them.
pub(super) fn few(
    model: &Model<'_>,
    recorder: &mut Recorder,
    step: Few,
    norm: Slice<f32>,
    weights: &AttentionWeights,
    cache: &Cache,
    work: &FewRows,
) {
    let Few { rows, live, blocks, .. } = step;
    let (shapes, memory) = (model.shapes, model.memory);
    let row_records = memory.records.rows.part(0, rows as u64);
    let projected = work.projected.part(0, (rows * attention_projected(shapes)) as u64);
    let mixed = work.mixed.part(0, (rows * shapes.query_size()) as u64);
    project_few(model, recorder, rows, &[&weights.q_gate, &weights.k, &weights.v], work.x, norm, projected);
    let early = bytes::begin_early(model);
    let kernel = if early { &bytes::ATTENTION_PREPARE } else { &ATTENTION_PREPARE };
    recorder.add(Dispatch { kernel, ..prepare(model, rows, weights, cache, projected, work.q) });
    let (block, blocks_u32) = (CONTEXT_BLOCK as u32, blocks as u32);
    let pieces = (blocks * CONTEXT_BLOCK / PAGE).min(ATTENTION_PIECES) as u32;
    let attend = AttentionBlock {
        q: work.q,
        keys: cache.keys,
        values: cache.values,
        rows: row_records,
        sequences: memory.sequences,
        pages: memory.pages,
        sums: work.sums,
        weights: work.weights,
        p: BlockParams { block, blocks: blocks_u32, max_pages: model.sizes.max_pages() as u32 },
    };
    let context = live * blocks * CONTEXT_BLOCK;
    let (kernel, groups) = if early { (&bytes::ATTENTION_BLOCK, pieces) } else { (&ATTENTION_BLOCK, blocks_u32) };
    // Of the partial sums' place, what so many groups fill.
    let partial = live * shapes.query_heads * groups as usize;
    let partial = [
        (work.sums.range, bytes_of(work.sums, partial * HEAD)),
        (work.weights.range, bytes_of(work.weights, partial * 2)),
    ];
    let moved = [&touched(model, cache, live, context)[..], &partial].concat();
    let attend = attend.dispatch([groups, shapes.kv_heads as u32, rows as u32], kernel.max_threads);
    let attend = Dispatch { kernel, ..attend };
    recorder.add(attend.costing(&moved, attention_work(model, context)));
    let combine = AttentionCombine {
        sums: work.sums,
        weights: work.weights,
        q_gate: projected,
        rows: row_records,
        sequences: memory.sequences,
        y: mixed,
        p: CombineParams { block, blocks: blocks_u32, stride: attention_projected(shapes) as u32 },
    };
    let (kernel, sharers) =
        if early { (&bytes::ATTENTION_COMBINE, bytes::JOIN_SHARERS) } else { (&ATTENTION_COMBINE, 1) };
    let combine = combine.dispatch([shapes.query_heads as u32 * sharers, rows as u32, 1], kernel.max_threads);
    let combine = Dispatch { kernel, ..combine };
    recorder.add(combine.costing(&moved, (live * groups as usize * shapes.query_size()) as u64));
    add_few(model, recorder, rows, &weights.out, mixed, work.x, None);
}

/// One pass over the context for each tile of queries, long work cut into several dispatches.
pub(super) fn many(
    model: &Model<'_>,
    recorder: &mut Recorder,
    step: Many,
    norm: Slice<f32>,
    weights: &AttentionWeights,
    cache: &Cache,
    work: &ManyRows,
) {
    let Many { rows, segments, context } = step;
    let (shapes, memory) = (model.shapes, model.memory);
    let projected = work.mixer.projected.part(0, (rows * attention_projected(shapes)) as u64);
    let mixed = work.mixer.mixed.part(0, (rows * shapes.query_size()) as u64);
    project_many(model, recorder, rows, &[&weights.q_gate, &weights.k, &weights.v], norm, projected, work);
    recorder.add(prepare(model, rows, weights, cache, projected, work.mixer.q));
    // Hopper GPUs drive no displays.
    let warpgroups = model.sizes.tiles == Tiles::Warpgroup;
    let (queries, most) = if warpgroups { (warpgroup::QUERIES, usize::MAX) } else { (QUERIES, ATTENTION_WORK) };
    let tokens = queries as usize / (shapes.query_heads / shapes.kv_heads);
    let (mut parts, mut join) = (Vec::new(), None);
    let mut first = 0;
    while first < rows {
        // Of so many rows, no more segments than these have one at `first`; the others are past their end.
        let active = segments.min(rows / (first + 1)).max(1);
        let part = (most / (context * active) / tokens * tokens).max(tokens).min(rows - first);
        let attend = AttentionPrefill {
            q: work.mixer.q,
            projected,
            keys: cache.keys,
            values: cache.values,
            pages: memory.pages,
            segments: memory.records.segments.part(0, segments as u64),
            sequences: memory.sequences,
            y: mixed,
            p: AttentionPrefillParams { first: first as u32, max_pages: model.sizes.max_pages() as u32 },
        };
        let tiles = part.div_ceil(tokens);
        let grid = [tiles as u32, shapes.kv_heads as u32, segments as u32];
        let mut attend = attend.dispatch(grid, ATTENTION_PREFILL.max_threads);
        if warpgroups {
            (attend, join) = warpgroup::attention(model, attend, &work.mixer, rows, context);
        }
        let attending = (active * part).min(rows);
        let of_rows = [work.mixer.q.range, projected.range, mixed.range]
            .map(|range| (range, range.bytes / rows as u64 * attending as u64));
        let moved = [&touched(model, cache, segments, active * context)[..], &of_rows].concat();
        parts.push(attend.costing(&moved, attention_work(model, attending * context)));
        first += part;
    }
    recorder.add_parts(parts);
    if let Some(join) = join {
        recorder.add(join);
    }
    add_many(model, recorder, rows, &weights.out, mixed, work.x);
}

/// Norms, RoPE, and the new keys and values into their pages.
fn prepare(
    model: &Model<'_>,
    rows: usize,
    weights: &AttentionWeights,
    cache: &Cache,
    projected: Slice<f32>,
    q: Slice<f32>,
) -> Dispatch {
    let (shapes, memory) = (model.shapes, model.memory);
    let stride = attention_projected(shapes);
    // Columns of the stacked rows: from the first row's on to the end.
    let columns = |first: usize| projected.part(first as u64, projected.len() - first as u64);
    let prepare = AttentionPrepare {
        q_gate: projected,
        k: columns(2 * shapes.query_size()),
        v: columns(2 * shapes.query_size() + shapes.kv_size()),
        q_gain: weights.q_gain,
        k_gain: weights.k_gain,
        turns: memory.turns,
        rows: memory.records.rows.part(0, rows as u64),
        sequences: memory.sequences,
        pages: memory.pages,
        keys: cache.keys,
        values: cache.values,
        q,
        p: PrepareParams { max_pages: model.sizes.max_pages() as u32, stride: stride as u32 },
    };
    let heads = shapes.query_heads + 2 * shapes.kv_heads;
    let prepare = prepare.dispatch(
        [heads.div_ceil(ATTENTION_PREPARE.simdgroups()) as u32, rows as u32, 1],
        ATTENTION_PREPARE.max_threads,
    );
    prepare.costing(&touched(model, cache, rows, rows), (rows * heads * HEAD * 2) as u64)
}

/// What a dispatch reads or writes of the memory of all sequences: so many tokens' keys and values, and records.
fn touched(model: &Model<'_>, cache: &Cache, records: usize, tokens: usize) -> [(Range, u64); 4] {
    let bytes = bytes_of(cache.keys, tokens * model.shapes.kv_size());
    let (pages, sequences) = (model.memory.pages, model.memory.sequences);
    [
        (cache.keys.range, bytes),
        (cache.values.range, bytes),
        (pages.range, bytes_of(pages, tokens.div_ceil(PAGE))),
        (sequences.range, bytes_of(sequences, records)),
    ]
}

/// q·k and the weighted sum of v, for all query heads.
fn attention_work(model: &Model<'_>, row_tokens: usize) -> u64 {
    (row_tokens * 2 * model.shapes.query_size()) as u64
}

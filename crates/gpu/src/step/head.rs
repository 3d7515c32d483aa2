//! The end of a step: logits of the rows that want them, draws from those, and the sequences move on.

use crate::kernel::{Kernel, Slice};
use crate::kernels::{
    self, ADVANCE, Advance, CountParams, LOGITS_OUTPUTS, Logits, SAMPLE_BLOCKS, SAMPLE_FINAL, SampleBlocks, SampleFinal,
};
use crate::memory::{SamplingRows, mask_words, sample_blocks};
use crate::recorder::Recorder;
use crate::step::{Head, Model, by_rows, bytes, bytes_of};

static LOGITS: [&Kernel; 4] = [&kernels::LOGITS_1, &kernels::LOGITS_2, &kernels::LOGITS_4, &kernels::LOGITS_8];

/// Up to `rows` picked rows of `x`.
pub(super) fn head(
    model: &Model<'_>,
    recorder: &mut Recorder,
    head: Head,
    rows: usize,
    x: Slice<f32>,
    work: &SamplingRows,
) {
    if head == Head::None {
        return;
    }
    let (shapes, memory, weights) = (model.shapes, model.memory, model.weights);
    let logits = memory.logits.part(0, (rows * shapes.vocabulary) as u64);
    let product = Logits {
        w: weights.head.w,
        scales: weights.head.scales,
        biases: weights.head.biases,
        x,
        gain: weights.norm,
        picked: memory.records.picked.part(0, rows as u64),
        y: logits,
    };
    let (family, groups) = if bytes::multiply(model) {
        (&bytes::LOGITS, bytes::logits_blocks())
    } else {
        (&LOGITS, (shapes.vocabulary as u32).div_ceil(LOGITS_OUTPUTS))
    };
    let kernel = by_rows(family, rows);
    let product = product.dispatch(kernel, [groups, 1, 1], kernel.max_threads);
    let picked = (x.range, bytes_of(x, rows * shapes.hidden));
    recorder.add(product.costing(&[picked], rows as u64 * weights.head.parameters()));
    if head == Head::Logits {
        return;
    }
    let blocks = sample_blocks(shapes);
    let draws = memory.records.draws.part(0, rows as u64);
    let keys = work.keys.part(0, rows as u64 * (work.keys.len() / work.blocks.len()) * blocks as u64);
    let summaries = work.blocks.part(0, (rows * blocks) as u64);
    let adjust = SampleBlocks {
        logits,
        draws,
        adjustments: memory.records.adjustments,
        mask: memory.records.mask.part(0, (rows * mask_words(shapes)) as u64),
        sequences: memory.sequences,
        keys,
        blocks: summaries,
    };
    let few_adjustments = (memory.records.adjustments.range, 0);
    let rarely_masked = (adjust.mask.range, 0);
    let tokens = (memory.sequences.range, bytes_of(memory.sequences, rows));
    let adjust = adjust.dispatch([blocks as u32, rows as u32, 1], SAMPLE_BLOCKS.max_threads);
    recorder.add(adjust.costing(&[few_adjustments, rarely_masked, tokens], logits.len()));
    let draw = SampleFinal { logits, keys, blocks: summaries, draws, sequences: memory.sequences, drawn: memory.drawn };
    let one_each = [
        (memory.sequences.range, bytes_of(memory.sequences, rows)),
        (memory.drawn.range, bytes_of(memory.drawn, rows)),
    ];
    recorder.add(draw.dispatch([rows as u32, 1, 1], SAMPLE_FINAL.max_threads).costing(&one_each, logits.len()));
}

/// The last of a step.
pub(super) fn advance(model: &Model<'_>, recorder: &mut Recorder, segments: usize) {
    let memory = model.memory;
    let advance = Advance {
        segments: memory.records.segments.part(0, segments as u64),
        sequences: memory.sequences,
        p: CountParams { count: segments as u32 },
    };
    let some = (memory.sequences.range, bytes_of(memory.sequences, 2 * segments));
    recorder.add(
        advance
            .dispatch([(segments as u32).div_ceil(ADVANCE.max_threads), 1, 1], ADVANCE.max_threads)
            .costing(&[some], 0),
    );
}

//! `x[row] = embedding[token of row]`.

use crate::kernel::Slice;
use crate::kernels::{EMBED, Embed};
use crate::recorder::Recorder;
use crate::step::{Model, bytes_of};

/// Any number of rows.
pub(super) fn embed(model: &Model<'_>, recorder: &mut Recorder, rows: usize, x: Slice<f32>) {
    let table = &model.weights.embedding;
    let some = |range: crate::device::Range| (range, range.bytes / table.outputs as u64 * rows as u64);
    let memory = model.memory;
    let embed = Embed {
        w: table.w,
        scales: table.scales,
        biases: table.biases,
        rows: memory.records.rows.part(0, rows as u64),
        sequences: memory.sequences,
        x,
    };
    let sparse = [
        some(table.w.range),
        some(table.scales.range),
        some(table.biases.range),
        (memory.sequences.range, bytes_of(memory.sequences, rows)),
    ];
    recorder.add(embed.dispatch([rows as u32, 1, 1], EMBED.max_threads).costing(&sparse, (rows * table.inner) as u64));
}

//! The model's step, recorded: `x = embed(tokens); for each layer: x += mixer(norm(x)); x += moe(norm(x))`, then the head.
//!
//! There are two ways through it. Up to 8 rows, those of decoding, few-row kernels read each weight once
//! for all rows and fuse what surrounds a product. More rows, those of a prompt, go through matrix tiles in fp16. Which
//! way a token takes depends on its own sequence alone, so that its result does not depend on what else runs.

mod attention;
pub(crate) mod bytes;
mod delta_net;
mod embed;
#[cfg(test)]
mod entries;
mod head;
mod moe;
mod product;
mod warpgroup;

use crate::device::Range;
use crate::kernel::{Kernel, Slice};
use crate::memory::{Memory, Sizes};
use crate::plan::Plan;
use crate::recorder::Recorder;
use crate::shapes::Shapes;
use crate::weights::{Linear, MixerWeights, ModelWeights};

/// What a plan is recorded over.
#[derive(Clone, Copy)]
pub(crate) struct Model<'a> {
    pub(crate) shapes: &'a Shapes,
    pub(crate) sizes: &'a Sizes,
    pub(crate) weights: &'a ModelWeights,
    pub(crate) memory: &'a Memory,
}

/// What follows the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Head {
    /// Nothing.
    None,
    /// The logits of the picked rows.
    Logits,
    /// And draws from them.
    Draw,
}

/// A few-row step. All that varies beyond it is read from records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Few {
    /// 1, 2, 4 or 8, padded; as many segments at most.
    pub(crate) rows: usize,
    /// How many of them the step is said to cost: kernels pass over rows that only pad it.
    pub(crate) live: usize,
    /// Blocks of the longest context.
    pub(crate) blocks: usize,
    pub(crate) head: Head,
}

/// A many-row step; a head of its own follows where logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Many {
    /// A multiple of 32, padded.
    pub(crate) rows: usize,
    /// A power of two, padded.
    pub(crate) segments: usize,
    /// Tokens of the longest context.
    pub(crate) context: usize,
}

impl Few {
    /// Records the step.
    pub(crate) fn record(self, model: &Model<'_>) -> Plan {
        let work = model.memory.few(model.shapes, self.rows, self.blocks);
        let mut recorder = Recorder::default();
        recorder.at("embedding");
        embed::embed(model, &mut recorder, self.rows, work.x);
        for (index, layer) in model.weights.layers.iter().enumerate() {
            match &layer.mixer {
                MixerWeights::DeltaNet(number, weights) => {
                    recorder.at(format!("layer {index} DeltaNet"));
                    let memory = &model.memory.recurrent[*number];
                    delta_net::few(model, &mut recorder, self, layer.norm, weights, memory, &work);
                }
                MixerWeights::Attention(number, weights) => {
                    recorder.at(format!("layer {index} attention"));
                    let cache = &model.memory.caches[*number];
                    attention::few(model, &mut recorder, self, layer.norm, weights, cache, &work);
                }
            }
            recorder.at(format!("layer {index} experts"));
            moe::few(model, &mut recorder, self, &layer.moe, &work);
        }
        recorder.at("head");
        head::head(model, &mut recorder, self.head, self.rows, work.x, &work.sampling);
        head::advance(model, &mut recorder, self.rows);
        recorder.finish()
    }
}

impl Many {
    /// Records the step.
    pub(crate) fn record(self, model: &Model<'_>) -> Plan {
        let work = model.memory.many(model.shapes, model.sizes, self.rows);
        let mut recorder = Recorder::default();
        recorder.at("embedding");
        embed::embed(model, &mut recorder, self.rows, work.x);
        for (index, layer) in model.weights.layers.iter().enumerate() {
            match &layer.mixer {
                MixerWeights::DeltaNet(number, weights) => {
                    recorder.at(format!("layer {index} DeltaNet"));
                    let memory = &model.memory.recurrent[*number];
                    delta_net::many(model, &mut recorder, self, layer.norm, weights, memory, &work);
                }
                MixerWeights::Attention(number, weights) => {
                    recorder.at(format!("layer {index} attention"));
                    let cache = &model.memory.caches[*number];
                    attention::many(model, &mut recorder, self, layer.norm, weights, cache, &work);
                }
            }
            recorder.at(format!("layer {index} experts"));
            moe::many(model, &mut recorder, self, &layer.moe, &work);
        }
        recorder.at("end");
        head::advance(model, &mut recorder, self.segments);
        recorder.finish()
    }
}

/// Records the head of up to 8 picked rows of a many-row step that has run.
pub(crate) fn record_head(model: &Model<'_>, head: Head, rows: usize) -> Plan {
    let work = model.memory.many(model.shapes, model.sizes, model.sizes.prefill_rows);
    let mut recorder = Recorder::default();
    recorder.at("head");
    head::head(model, &mut recorder, head, rows, work.x, &work.sampling);
    recorder.finish()
}

/// The kernel of a family that takes exactly this many rows.
fn by_rows(family: &[&'static Kernel; 4], rows: usize) -> &'static Kernel {
    family[rows.trailing_zeros() as usize]
}

/// Of a stack of `linear`'s matrices, only `distinct` are read.
fn some_of(linear: &Linear, distinct: usize) -> [(Range, u64); 3] {
    let share = |range: Range| (range, range.bytes / linear.count as u64 * distinct.min(linear.count) as u64);
    [share(linear.w.range), share(linear.scales.range), share(linear.biases.range)]
}

/// Bytes of `count` elements.
fn bytes_of<T>(_: Slice<T>, count: usize) -> u64 {
    (count * size_of::<T>()) as u64
}

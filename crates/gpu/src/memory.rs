//! All of a backend's memory on the device but the weights: what sequences remember, the records that a step reads, and the
//! workspace of a step.

use half::f16;
use lily_checkpoint::LayerKind;

use crate::device::{Buffer, DeviceError, Range, Tiles};
use crate::kernel::Slice;
use crate::kernels::{self, DRAWN_RING, SAMPLE_BLOCK};
use crate::kernels::{Adjustment, Block, BlockSummary, Choice, Draw, Drawn, Row, Segment, Sequence};
use crate::shapes::{CHOSEN, DELTA_HEAD, HEAD, MAX_DECODE_ROWS, PAGE, RANKS, Shapes};

/// Tokens of a block of context in decode attention. Fixed, so that a row's result does not depend on the plan it is in.
pub(crate) const CONTEXT_BLOCK: usize = kernels::MAX_BLOCK as usize;
/// The pieces of a context that Hopper's decode attention joins, for any context: more would not all run at once.
pub(crate) const ATTENTION_PIECES: usize = 64;
/// The sums of squares that Hopper's recurrence of few rows leaves of a value head's outputs, one of a warp.
pub(crate) const DELTA_SQUARES: usize = 32;
/// The most changed logits of a draw; one with more of them is made on the CPU.
pub(crate) const MAX_ADJUSTMENTS: usize = 16_384;
/// Words of `turns`: two for each pair of rotated dimensions.
const TURNS: usize = kernels::ROTARY as usize;

/// How much there is of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Tokens a sequence may hold.
    pub max_context: usize,
    /// Sequences that exist at once.
    pub slots: usize,
    /// Pages of keys and values for all of them.
    pub pages: usize,
    /// Rows of a prefill step, a multiple of 64.
    pub prefill_rows: usize,
    /// What the device makes products of.
    pub tiles: Tiles,
}

impl Sizes {
    /// Pages of the longest sequence.
    pub(crate) fn max_pages(&self) -> usize {
        self.max_context.div_ceil(PAGE)
    }

    /// Blocks of the longest context.
    pub(crate) fn max_blocks(&self) -> usize {
        self.max_context.div_ceil(CONTEXT_BLOCK)
    }
}

/// A DeltaNet layer's memory of all sequences.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recurrent {
    /// `[slots][2][3][channels]`
    pub(crate) windows: Slice<f32>,
    /// `[slots][2][value_heads][128 v][128 k]`
    pub(crate) states: Slice<f32>,
}

/// An attention layer's memory of all sequences, `[pages][kv_heads][64][256]` each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cache {
    pub(crate) keys: Slice<f16>,
    pub(crate) values: Slice<f16>,
}

/// What the CPU writes before a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Records {
    pub(crate) rows: Slice<Row>,
    pub(crate) segments: Slice<Segment>,
    /// Rows whose logits are wanted, at most [`MAX_DECODE_ROWS`].
    pub(crate) picked: Slice<u32>,
    /// A draw for each of them.
    pub(crate) draws: Slice<Draw>,
    /// [`MAX_ADJUSTMENTS`] for each draw at most, those of all of them one after another.
    pub(crate) adjustments: Slice<Adjustment>,
    /// `[8][vocabulary / 32]`: the tokens that a draw may take, a bit each, of draws that may not take all.
    pub(crate) mask: Slice<u32>,
}

impl Records {
    /// `draws` and `adjustments`, which lie one after the other so that one write makes both anew, and where in it the
    /// adjustments begin.
    pub(crate) fn draws_and_adjustments(&self) -> (Range, u64) {
        let (draws, adjustments) = (self.draws.range, self.adjustments.range);
        let first = adjustments.offset - draws.offset;
        (Range { bytes: first + adjustments.bytes, ..draws }, first)
    }
}

/// Everything but the weights.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) sequences: Slice<Sequence>,
    /// `[slots][max_pages]`
    pub(crate) pages: Slice<u32>,
    /// `[32][2]`: RoPE's revolutions a token of each rotated pair, see attention_prepare.metal.
    pub(crate) turns: Slice<u32>,
    /// One for each DeltaNet layer.
    pub(crate) recurrent: Vec<Recurrent>,
    /// One for each attention layer.
    pub(crate) caches: Vec<Cache>,
    pub(crate) records: Records,
    /// `[8][vocabulary]`, raw.
    pub(crate) logits: Slice<f32>,
    /// `[slots][DRAWN_RING]`
    pub(crate) drawn: Slice<Drawn>,
    workspace: Range,
}

impl Memory {
    /// Allocates all of it with `allocate(bytes, what)`.
    ///
    /// # Errors
    /// Those of `allocate`.
    pub(crate) fn new(
        shapes: &Shapes,
        sizes: &Sizes,
        mut allocate: impl FnMut(u64, &str) -> Result<Buffer, DeviceError>,
    ) -> Result<Self, DeviceError> {
        let mut recurrent = Vec::new();
        for _ in 0..shapes.count(LayerKind::DeltaNet) {
            let mut twice = |values: usize, what| allocate((sizes.slots * 2 * values * 4) as u64, what);
            recurrent.push(Recurrent {
                windows: Slice::new(twice(shapes.window(), "convolution windows")?.all()),
                states: Slice::new(twice(shapes.state(), "recurrent states")?.all()),
            });
        }
        let mut caches = Vec::new();
        for _ in 0..shapes.count(LayerKind::Attention) {
            let bytes = (sizes.pages * PAGE * shapes.kv_size() * 2) as u64;
            caches.push(Cache {
                keys: Slice::new(allocate(bytes, "the keys of the KV cache")?.all()),
                values: Slice::new(allocate(bytes, "the values of the KV cache")?.all()),
            });
        }
        let mut carver = Carver::default();
        small(shapes, sizes, &mut carver);
        let mut carver = Carver::of(allocate(carver.used, "records and logits")?);
        let Small { sequences, pages, turns, drawn, logits, records } = small(shapes, sizes, &mut carver);
        let workspace = allocate(workspace_bytes(shapes, sizes), "the workspace")?.all();
        Ok(Self { sequences, pages, turns, recurrent, caches, records, logits, drawn, workspace })
    }

    /// The workspace of a few-row step over `blocks` blocks of context.
    pub(crate) fn few(&self, shapes: &Shapes, rows: usize, blocks: usize) -> FewRows {
        few(shapes, rows, blocks, Carver::of_range(self.workspace)).0
    }

    /// Bytes of that workspace.
    pub(crate) fn few_bytes(shapes: &Shapes, rows: usize, blocks: usize) -> u64 {
        few(shapes, rows, blocks, Carver::default()).1
    }

    /// The workspace of a prefill step.
    pub(crate) fn many(&self, shapes: &Shapes, sizes: &Sizes, rows: usize) -> ManyRows {
        many(shapes, sizes, rows, Carver::of_range(self.workspace)).0
    }
}

/// Bytes of the largest step's workspace.
pub(crate) fn workspace_bytes(shapes: &Shapes, sizes: &Sizes) -> u64 {
    let few = few(shapes, MAX_DECODE_ROWS, sizes.max_blocks(), Carver::default()).1;
    few.max(many(shapes, sizes, sizes.prefill_rows, Carver::default()).1)
}

/// Bytes of records, tables and logits.
pub(crate) fn small_bytes(shapes: &Shapes, sizes: &Sizes) -> u64 {
    let mut carver = Carver::default();
    small(shapes, sizes, &mut carver);
    carver.used
}

struct Small {
    sequences: Slice<Sequence>,
    pages: Slice<u32>,
    turns: Slice<u32>,
    drawn: Slice<Drawn>,
    logits: Slice<f32>,
    records: Records,
}

fn small(shapes: &Shapes, sizes: &Sizes, carver: &mut Carver) -> Small {
    Small {
        sequences: carver.take(sizes.slots),
        pages: carver.take(sizes.slots * sizes.max_pages()),
        turns: carver.take(TURNS),
        drawn: carver.take(sizes.slots * DRAWN_RING as usize),
        logits: carver.take(MAX_DECODE_ROWS * shapes.vocabulary),
        records: Records {
            rows: carver.take(sizes.prefill_rows.max(MAX_DECODE_ROWS)),
            // A prefill step pads its segments to a power of two.
            segments: carver.take(sizes.prefill_rows.next_power_of_two().max(MAX_DECODE_ROWS)),
            picked: carver.take(MAX_DECODE_ROWS),
            draws: carver.take(MAX_DECODE_ROWS),
            adjustments: carver.take(MAX_DECODE_ROWS * MAX_ADJUSTMENTS),
            mask: carver.take(MAX_DECODE_ROWS * mask_words(shapes)),
        },
    }
}

/// Activations of the few-row kernels, all fp32.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FewRows {
    /// The residual stream, at the same place in every step: a head may follow in another plan.
    pub(crate) x: Slice<f32>,
    /// What a mixer begins with: its stacked projections.
    pub(crate) projected: Slice<f32>,
    /// What it ends with.
    pub(crate) mixed: Slice<f32>,
    pub(crate) q: Slice<f32>,
    /// Of DeltaNet's outputs, `[rows][value_heads][32]`, with Hopper's kernels.
    pub(crate) squares: Slice<f32>,
    /// Partial sums of attention: `[rows][query_heads][blocks or pieces][256]`, and their `[..][2]` maxima and weights.
    pub(crate) sums: Slice<f32>,
    pub(crate) weights: Slice<f32>,
    /// `[rows][experts + 1]`
    pub(crate) router: Slice<f32>,
    /// `[rows][9][expert_width]`
    pub(crate) hidden: Slice<f32>,
    /// `[rows][9]`
    pub(crate) choices: Slice<Choice>,
    pub(crate) sampling: SamplingRows,
}

/// What the two halves of a draw share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SamplingRows {
    pub(crate) keys: Slice<u32>,
    pub(crate) blocks: Slice<BlockSummary>,
}

/// Words of a mask.
pub(crate) fn mask_words(shapes: &Shapes) -> usize {
    shapes.vocabulary.div_ceil(32)
}

/// Blocks of the vocabulary in a draw.
pub(crate) fn sample_blocks(shapes: &Shapes) -> usize {
    shapes.vocabulary.div_ceil(SAMPLE_BLOCK as usize)
}

fn sampling(shapes: &Shapes, rows: usize, carver: &mut Carver) -> SamplingRows {
    let blocks = rows * sample_blocks(shapes);
    SamplingRows { keys: carver.take(blocks * SAMPLE_BLOCK as usize), blocks: carver.take(blocks) }
}

/// Width of the stacked projections of a mixer, the wider one.
fn projected(shapes: &Shapes) -> usize {
    delta_projected(shapes).max(attention_projected(shapes))
}

/// Width of qkv | z | a | b.
pub(crate) fn delta_projected(shapes: &Shapes) -> usize {
    shapes.channels() + shapes.value_size() + 2 * shapes.value_heads
}

/// Width of q, gate | k | v.
pub(crate) fn attention_projected(shapes: &Shapes) -> usize {
    2 * shapes.query_size() + 2 * shapes.kv_size()
}

fn few(shapes: &Shapes, rows: usize, blocks: usize, mut carver: Carver) -> (FewRows, u64) {
    let heads = rows * shapes.query_heads;
    let pieces = blocks.max(ATTENTION_PIECES);
    let work = FewRows {
        x: carver.take(rows * shapes.hidden),
        projected: carver.take(rows * projected(shapes)),
        mixed: carver.take(rows * shapes.value_size().max(shapes.query_size())),
        q: carver.take(heads * HEAD),
        squares: carver.take(rows * shapes.value_heads * DELTA_SQUARES),
        sums: carver.take(heads * pieces * HEAD),
        weights: carver.take(heads * pieces * 2),
        router: carver.take(rows * (shapes.experts + 1)),
        hidden: carver.take(rows * RANKS * shapes.expert_width),
        choices: carver.take(rows * RANKS),
        sampling: sampling(shapes, rows, &mut carver),
    };
    (work, carver.used)
}

/// Activations of the many-row kernels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ManyRows {
    pub(crate) x: Slice<f32>,
    /// Before a mixer and before the experts.
    pub(crate) normed: Slice<f16>,
    pub(crate) mixer: MixerRows,
    pub(crate) moe: MoeRows,
    /// Of a head that follows.
    pub(crate) sampling: SamplingRows,
}

/// Of a mixer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MixerRows {
    pub(crate) projected: Slice<f32>,
    pub(crate) mixed: Slice<f16>,
    /// Of DeltaNet.
    pub(crate) convolved: Slice<f32>,
    pub(crate) decay: Slice<f32>,
    pub(crate) beta: Slice<f32>,
    pub(crate) o: Slice<f32>,
    /// Of its chunks, with Hopper's kernels.
    pub(crate) factors: Slice<[u32; 4]>,
    /// Of attention.
    pub(crate) q: Slice<f32>,
    /// What it has of pieces of the context, with Hopper's kernels, for as many rows as the largest step has: `[..][256]` and
    /// `[..][2]`.
    pub(crate) sums: Slice<f32>,
    pub(crate) weights: Slice<f32>,
}

/// Of the experts. Pairs are `[rows][9]`, the last of a row the shared expert's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MoeRows {
    pub(crate) router: Slice<f32>,
    pub(crate) chosen: Slice<u32>,
    pub(crate) weights: Slice<f32>,
    pub(crate) order: Slice<u32>,
    pub(crate) places: Slice<u32>,
    pub(crate) map: Slice<Block>,
    pub(crate) hidden: Slice<f16>,
    pub(crate) y: Slice<f16>,
}

/// Tokens of a chunk of DeltaNet's recurrence with Hopper's kernels.
pub(crate) const DELTA_CHUNK: usize = 64;

/// Pairs of a tile of the experts' products: few pairs an expert would leave larger tiles empty.
pub(crate) fn expert_tile(shapes: &Shapes, rows: usize) -> usize {
    if rows * CHOSEN < 16 * shapes.experts { 16 } else { 32 }
}

/// Records of the block map for such a tile: each expert may have one that is not full.
pub(crate) fn expert_blocks(shapes: &Shapes, rows: usize, tile: usize) -> usize {
    rows * CHOSEN / tile + shapes.experts.min(rows * CHOSEN) + rows.div_ceil(tile)
}

/// 16-byte places of the factors of DeltaNet's chunks, as kernels/cuda/delta_chunk.h has them: of key heads, of value heads, and
/// for each sequence one chunk that is not full.
fn factors(shapes: &Shapes, sizes: &Sizes, rows: usize) -> usize {
    const BLOCK: usize = 64;
    const FACTOR: usize = 4 * 8 * BLOCK;
    let chunk = shapes.key_heads * 2 * FACTOR + shapes.value_heads * (2 * FACTOR + 4 * 4 * BLOCK + 2 * DELTA_CHUNK / 4);
    match sizes.tiles {
        Tiles::Warpgroup => (rows / DELTA_CHUNK + sizes.slots) * chunk,
        Tiles::Simdgroup | Tiles::Tensor => 0,
    }
}

fn many(shapes: &Shapes, sizes: &Sizes, rows: usize, mut carver: Carver) -> (ManyRows, u64) {
    let x = carver.take(rows * shapes.hidden);
    let normed = carver.take(rows * shapes.hidden);
    // A mixer and the experts never run at the same time, nor does the head, nor mixers of both kinds.
    let [mut in_mixer, mut in_moe, mut in_head] = [carver; 3];
    let projected = in_mixer.take(rows * projected(shapes));
    let mixed = in_mixer.take(rows * shapes.value_size().max(shapes.query_size()));
    let [mut in_delta_net, mut in_attention] = [in_mixer; 2];
    let parts = if sizes.tiles == Tiles::Warpgroup { sizes.prefill_rows.max(rows) } else { 0 };
    let mixer = MixerRows {
        projected,
        mixed,
        convolved: in_delta_net.take(rows * shapes.channels()),
        decay: in_delta_net.take(rows * shapes.value_heads),
        beta: in_delta_net.take(rows * shapes.value_heads),
        o: in_delta_net.take(rows * shapes.value_heads * DELTA_HEAD),
        factors: in_delta_net.take(factors(shapes, sizes, rows)),
        q: in_attention.take(rows * shapes.query_size()),
        sums: in_attention.take(parts * shapes.query_size()),
        weights: in_attention.take(parts * shapes.query_heads * 2),
    };
    let moe = MoeRows {
        router: in_moe.take(rows * (shapes.experts + 1)),
        chosen: in_moe.take(rows * CHOSEN),
        weights: in_moe.take(rows * RANKS),
        order: in_moe.take(rows * RANKS),
        places: in_moe.take(rows * RANKS),
        map: in_moe.take(expert_blocks(shapes, rows, expert_tile(shapes, rows))),
        hidden: in_moe.take(rows * RANKS * shapes.expert_width),
        y: in_moe.take(rows * RANKS * shapes.hidden),
    };
    let sampling = sampling(shapes, MAX_DECODE_ROWS, &mut in_head);
    let used = [in_delta_net.used, in_attention.used, in_moe.used, in_head.used].into_iter().fold(0, u64::max);
    (ManyRows { x, normed, mixer, moe, sampling }, used)
}

/// Cuts a buffer into slices, one after another, each aligned to 256 bytes.
#[derive(Clone, Copy, Debug)]
struct Carver {
    whole: Range,
    used: u64,
}

impl Default for Carver {
    /// Without a buffer: it only counts.
    fn default() -> Self {
        Self::of(Buffer { id: 0, bytes: u64::MAX })
    }
}

impl Carver {
    fn of(buffer: Buffer) -> Self {
        Self::of_range(buffer.all())
    }

    fn of_range(whole: Range) -> Self {
        Self { whole, used: 0 }
    }

    fn take<T>(&mut self, count: usize) -> Slice<T> {
        let bytes = (count * size_of::<T>()) as u64;
        let range = self.whole.part(self.used, bytes);
        self.used = (self.used + bytes).next_multiple_of(256);
        Slice::new(range)
    }
}

/// RoPE's `turns` as the device has them: for each rotated pair θ^(−pair/32) / 2π, the revolutions that a token turns it, as a
/// fraction of 64 bits, high word first.
pub(crate) fn turns(theta: f64) -> Vec<u8> {
    let pairs = kernels::ROTARY / 2;
    let turn = |pair: u32| theta.powf(-f64::from(pair) / f64::from(pairs)) / std::f64::consts::TAU;
    let fraction = |pair: u32| (turn(pair) * 2f64.powi(64)) as u64;
    (0..pairs)
        .flat_map(|pair| [(fraction(pair) >> 32) as u32, fraction(pair) as u32])
        .flat_map(u32::to_ne_bytes)
        .collect()
}

//! Hopper's own kernels, in `kernels/cuda/`. Those named `_warpgroup` do what the Metal kernel does that they are made from
//! here, with its arguments; DeltaNet's recurrence is two kernels for one.

use crate::device::Range;
use crate::kernel::{Access, Argument, Kernel, Slice};
use crate::kernels::{self, CombineParams, HEAD, PAGE, Row, Segment, Sequence};
use crate::memory::{DELTA_CHUNK, MixerRows, attention_projected};
use crate::plan::{Cost, Dispatch};
use crate::shapes::{CHOSEN, Shapes};
use crate::step::Model;
use crate::step::bytes::joined;

/// Rows of a threadgroup's tile, also of the map of experts.
pub(super) const ROWS: usize = 128;
/// Of the map where experts have few.
pub(super) const FEW_ROWS: usize = 32;

/// Outputs of a threadgroup's tile.
pub(super) const COLUMNS: u32 = 128;

/// Its threads: two warpgroups.
const THREADS: u32 = 256;

/// Four stages of so many inner columns: of the rows as halves, of the weights as they are packed; aligned to 1,024 bytes.
const fn product_bytes(columns: u32, rows: usize) -> u32 {
    4 * (rows as u32 * columns * 2 + COLUMNS * columns / 2) + 1024
}

/// Queries of a block of attention: of so many query heads of as many tokens.
pub(super) const QUERIES: u32 = 128;

/// A block's queries, four pages of keys or values, eight barriers.
const ATTENTION_BYTES: u32 = QUERIES * HEAD * 2 + 4 * PAGE * HEAD * 2 + 8 * 8;

/// Tokens of a context that have a maximum of their own.
const PIECE: usize = 128 * PAGE as usize;

/// Those of the Metal kernel, and what the pieces of a context have.
const ATTENTION_ARGUMENTS: [Argument; 10] = joined(&[
    kernels::ATTENTION_PREFILL.arguments,
    &[argument("sums", 0, Access::Write, 4), argument("weights", 0, Access::Write, 4)],
]);
static ATTENTION_PREFILL: Kernel = Kernel {
    name: "attention_prefill_warpgroup",
    arguments: &ATTENTION_ARGUMENTS,
    max_threads: 384,
    threadgroup_bytes: 0,
    launch_bytes: ATTENTION_BYTES,
    ..kernels::ATTENTION_PREFILL
};

static ATTENTION_PREFILL_JOIN: Kernel = Kernel {
    name: "attention_prefill_join",
    file: "cuda/attention_prefill_join.cu",
    arguments: &[
        argument("sums", 0, Access::Read, 4),
        argument("weights", 1, Access::Read, 4),
        argument("projected", 2, Access::Read, 4),
        argument("rows", 3, Access::Read, size_of::<Row>()),
        argument("sequences", 4, Access::Read, size_of::<Sequence>()),
        argument("y", 5, Access::Write, 2),
    ],
    parameters_slot: 6,
    parameters_size: size_of::<CombineParams>(),
    max_threads: 64,
    threadgroup_bytes: 0,
    launch_bytes: 0,
    begins_early: false,
};

pub(super) static GEMM_Q4: Kernel = product("gemm_q4_warpgroup", &kernels::GEMM_Q4_64);
pub(super) static GEMM_Q4_ADD: Kernel = product("gemm_q4_add_warpgroup", &kernels::GEMM_Q4_ADD_64);
pub(super) static EXPERTS_GEMM_UP: Kernel = product("experts_gemm_up_warpgroup", &kernels::EXPERTS_GEMM_UP_32);
pub(super) static EXPERTS_GEMM_DOWN: Kernel = product("experts_gemm_down_warpgroup", &kernels::EXPERTS_GEMM_DOWN_32);
static GEMM_Q4_ADD_32: Kernel = of_few("gemm_q4_add_32_warpgroup", &GEMM_Q4_ADD);
pub(super) static EXPERTS_GEMM_UP_32: Kernel = of_few("experts_gemm_up_32_warpgroup", &EXPERTS_GEMM_UP);
pub(super) static EXPERTS_GEMM_DOWN_32: Kernel = of_few("experts_gemm_down_32_warpgroup", &EXPERTS_GEMM_DOWN);

/// A product that takes the arguments of a Metal kernel.
const fn product(name: &'static str, of: &Kernel) -> Kernel {
    Kernel { name, max_threads: THREADS, threadgroup_bytes: 0, launch_bytes: product_bytes(64, ROWS), ..*of }
}

/// The same for few rows.
const fn of_few(name: &'static str, of: &Kernel) -> Kernel {
    Kernel { name, launch_bytes: product_bytes(128, FEW_ROWS), ..*of }
}

/// What does not depend on the state, of all chunks at once.
static DELTA_CHUNKS: Kernel = Kernel {
    name: "delta_chunks",
    file: "cuda/delta_chunks.cu",
    arguments: &[
        argument("convolved", 0, Access::Read, 4),
        argument("decay", 1, Access::Read, 4),
        argument("beta", 2, Access::Read, 4),
        argument("segments", 3, Access::Read, size_of::<Segment>()),
        argument("work", 4, Access::Write, 16),
    ],
    parameters_slot: 0,
    parameters_size: 0,
    max_threads: 256,
    threadgroup_bytes: 0,
    launch_bytes: 108_544,
    begins_early: false,
};

/// The way from chunk to chunk.
static DELTA_SCAN: Kernel = Kernel {
    name: "delta_scan_chunked",
    file: "cuda/delta_scan_chunked.cu",
    arguments: &[
        argument("work", 0, Access::Read, 16),
        argument("segments", 1, Access::Read, size_of::<Segment>()),
        argument("sequences", 2, Access::Read, size_of::<Sequence>()),
        argument("state", 3, Access::Write, 4),
        argument("o", 4, Access::Write, 4),
    ],
    parameters_slot: 0,
    parameters_size: 0,
    max_threads: 288,
    threadgroup_bytes: 0,
    launch_bytes: 204_848,
    begins_early: false,
};

pub(super) const fn argument(name: &'static str, slot: u32, access: Access, element_bytes: usize) -> Argument {
    Argument { name, slot, access, element: "", element_bytes }
}

/// Whether each expert has few of so many rows and the products of few are made for such a model.
pub(super) const fn few_each(shapes: &Shapes, rows: usize) -> bool {
    rows * CHOSEN <= 16 * shapes.experts && multiplies_few(shapes)
}

const fn multiplies_few(shapes: &Shapes) -> bool {
    shapes.hidden.is_multiple_of(512) && shapes.expert_width.is_multiple_of(512)
}

/// The product that ends a mixer, and the rows of a block: few where there would be too few blocks.
pub(super) const fn add_tile(shapes: &Shapes, rows: usize, inner: usize) -> (&'static Kernel, usize) {
    if rows > 512 || !inner.is_multiple_of(512) || !multiplies_few(shapes) {
        (&GEMM_Q4_ADD, ROWS)
    } else {
        (&GEMM_Q4_ADD_32, if rows <= 128 { 16 } else { 32 })
    }
}

/// Pieces of a context that blocks of their own have, in a step of so many rows; 1: a block has all of them, as there are enough.
/// What they leave has a place for each row that the workspace is made for.
const fn attention_pieces(context: usize, rows: usize, most_rows: usize) -> usize {
    let pieces = context.div_ceil(PIECE);
    if rows * pieces <= most_rows { pieces } else { 1 }
}

/// Attention of so many rows, the Metal kernel's dispatch as this device's; where pieces of the context have blocks of their own, what
/// joins them too.
pub(super) fn attention(
    model: &Model<'_>,
    mut attend: Dispatch,
    work: &MixerRows,
    rows: usize,
    context: usize,
) -> (Dispatch, Option<Dispatch>) {
    let shapes = model.shapes;
    let pieces = attention_pieces(context, rows, model.sizes.prefill_rows);
    // Nothing is left of a context of one piece, but no range is empty.
    let places = if context > PIECE { (rows * pieces * shapes.query_heads) as u64 } else { 1 };
    let kept = [work.sums.part(0, places * u64::from(HEAD)).range, work.weights.part(0, places * 2).range];
    let join = (pieces > 1).then(|| {
        let [projected, sequences, y] = [1, 6, 7].map(|index| attend.ranges[index]);
        let p =
            CombineParams { block: PIECE as u32, blocks: pieces as u32, stride: attention_projected(shapes) as u32 };
        let row_records = model.memory.records.rows.part(0, rows as u64).range;
        let ranges = [&kept[..], &[projected, row_records, sequences, y]].concat();
        let join = launch(&ATTENTION_PREFILL_JOIN, ranges, [rows, shapes.query_heads, 1]);
        Dispatch { parameters: p.to_bytes().to_vec(), ..join }.costing(&[], places * u64::from(HEAD))
    });
    attend.ranges.extend(kept);
    let (kernel, [tokens, heads, segments]) = (&ATTENTION_PREFILL, attend.grid);
    let grid = [tokens, heads * pieces as u32, segments];
    (Dispatch { kernel, grid, threads: kernel.max_threads, ..attend }, join)
}

/// Whether the recurrence in chunks is made for such heads: a block has a key head and two value heads.
pub(super) const fn chunks(shapes: &Shapes) -> bool {
    shapes.value_heads == 2 * shapes.key_heads
}

/// The factors of each chunk of each segment, of up to `rows` rows.
pub(super) fn delta_chunks(
    shapes: &Shapes,
    rows: usize,
    work: &MixerRows,
    segments: Slice<Segment>,
    factors: Slice<[u32; 4]>,
) -> Dispatch {
    let ranges = vec![work.convolved.range, work.decay.range, work.beta.range, segments.range, factors.range];
    launch(&DELTA_CHUNKS, ranges, [shapes.key_heads, rows.div_ceil(DELTA_CHUNK), segments.len() as usize])
}

/// The recurrence over them.
pub(super) fn delta_scan(
    shapes: &Shapes,
    factors: Slice<[u32; 4]>,
    segments: Slice<Segment>,
    sequences: Slice<Sequence>,
    states: Slice<f32>,
    o: Slice<f32>,
) -> Dispatch {
    /// Blocks of a head, each with a quarter of the state's rows.
    const QUARTERS: usize = 4;
    let ranges = vec![factors.range, segments.range, sequences.range, states.range, o.range];
    launch(&DELTA_SCAN, ranges, [QUARTERS, shapes.value_heads, segments.len() as usize])
}

fn launch(kernel: &'static Kernel, ranges: Vec<Range>, grid: [usize; 3]) -> Dispatch {
    Dispatch {
        kernel,
        place: String::new(),
        ranges,
        parameters: Vec::new(),
        grid: grid.map(|groups| groups as u32),
        threads: kernel.max_threads,
        cost: Cost::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::entries;

    #[test]
    fn every_kernel_has_an_entry_with_its_arguments() {
        let products = [&GEMM_Q4, &GEMM_Q4_ADD, &EXPERTS_GEMM_UP, &EXPERTS_GEMM_DOWN];
        let few = [&GEMM_Q4_ADD_32, &EXPERTS_GEMM_UP_32, &EXPERTS_GEMM_DOWN_32];
        let others = [&ATTENTION_PREFILL, &ATTENTION_PREFILL_JOIN, &DELTA_CHUNKS, &DELTA_SCAN];
        products.into_iter().chain(few).chain(others).for_each(entries::check);
    }

    #[test]
    fn bytes_are_those_of_the_kernels() {
        let all = [&GEMM_Q4, &GEMM_Q4_ADD, &EXPERTS_GEMM_UP, &EXPERTS_GEMM_DOWN, &ATTENTION_PREFILL];
        assert_eq!(all.map(|kernel| kernel.launch_bytes), [82_944, 82_944, 82_944, 82_944, 196_672]);
        assert_eq!(
            [&GEMM_Q4_ADD_32, &EXPERTS_GEMM_UP_32, &EXPERTS_GEMM_DOWN_32].map(|kernel| kernel.launch_bytes),
            [66_560; 3]
        );
        all.into_iter().chain([&EXPERTS_GEMM_UP_32, &DELTA_CHUNKS, &DELTA_SCAN]).for_each(entries::check_launch_bytes);
    }

    /// Where pieces end and how large blocks are, here as there.
    #[test]
    fn numbers_are_those_of_the_kernels() {
        let few = "p.rows <= 128 ? 16 : 32";
        let pages = format!(" PIECE_PAGES = {};", PIECE / PAGE as usize);
        let rows = [format!(" WARPGROUP_TOKENS = {ROWS};"), format!(" FEW_TOKENS = {FEW_ROWS};")];
        let columns = format!(" WARPGROUP_OUTPUTS = {COLUMNS};");
        for text in rows.iter().chain([&pages, &columns, &few.to_owned()]) {
            assert!(entries::SOURCE.contains(text), "there is no {text} there");
        }
    }

    /// Few rows of a block where there are few, and never more pieces of a context than rows have places.
    #[test]
    fn blocks_and_pieces_are_as_many_as_there_is_room_for() {
        let config = include_bytes!("../../../../models/qwen3.6-35b-a3b/config.json");
        let shapes = Shapes::new(&lily_checkpoint::Config::parse(config).expect("a sound config")).expect("supported");
        let tiles = [32, 128, 160, 512, 544].map(|rows| add_tile(&shapes, rows, 4096).1);
        assert_eq!(tiles, [16, 16, 32, 32, ROWS]);
        assert_eq!([512, 544].map(|rows| few_each(&shapes, rows)), [true, false]);
        assert_eq!([8192, 8193, 65_536].map(|context| attention_pieces(context, 64, 4096)), [1, 2, 8]);
        assert_eq!([512, 513].map(|rows| attention_pieces(65_536, rows, 4096)), [8, 1]);
    }
}

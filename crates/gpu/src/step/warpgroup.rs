//! Hopper's own kernels, in `kernels/cuda/`. Those named `_warpgroup` do what the Metal kernel does that they are made from
//! here, with its arguments; DeltaNet's recurrence is two kernels for one.

use crate::device::Range;
use crate::kernel::{Access, Argument, Kernel, Slice};
use crate::kernels::{self, HEAD, PAGE, Segment, Sequence};
use crate::memory::{DELTA_CHUNK, MixerRows};
use crate::plan::{Cost, Dispatch};
use crate::shapes::Shapes;

/// Rows of a threadgroup's tile, also of the map of experts.
pub(super) const ROWS: usize = 128;

/// Outputs of a threadgroup's tile.
pub(super) const COLUMNS: u32 = 128;

/// Its threads: two warpgroups.
const THREADS: u32 = 256;

/// Four stages of 64 inner columns: of the rows as halves, of the weights as they are packed; aligned to 1,024 bytes.
const PRODUCT_BYTES: u32 = 4 * (ROWS as u32 * 64 * 2 + COLUMNS * 64 / 2) + 1024;

/// Queries of a block of attention: of so many query heads of as many tokens.
pub(super) const QUERIES: u32 = 128;

/// A block's queries, four pages of keys or values, eight barriers.
const ATTENTION_BYTES: u32 = QUERIES * HEAD * 2 + 4 * PAGE * HEAD * 2 + 8 * 8;

pub(super) static ATTENTION_PREFILL: Kernel = Kernel {
    name: "attention_prefill_warpgroup",
    max_threads: 384,
    threadgroup_bytes: 0,
    launch_bytes: ATTENTION_BYTES,
    ..kernels::ATTENTION_PREFILL
};

pub(super) static GEMM_Q4: Kernel = product("gemm_q4_warpgroup", &kernels::GEMM_Q4_64);
pub(super) static GEMM_Q4_ADD: Kernel = product("gemm_q4_add_warpgroup", &kernels::GEMM_Q4_ADD_64);
pub(super) static EXPERTS_GEMM_UP: Kernel = product("experts_gemm_up_warpgroup", &kernels::EXPERTS_GEMM_UP_32);
pub(super) static EXPERTS_GEMM_DOWN: Kernel = product("experts_gemm_down_warpgroup", &kernels::EXPERTS_GEMM_DOWN_32);

/// A product that takes the arguments of a Metal kernel.
const fn product(name: &'static str, of: &Kernel) -> Kernel {
    Kernel { name, max_threads: THREADS, threadgroup_bytes: 0, launch_bytes: PRODUCT_BYTES, ..*of }
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
        products.into_iter().chain([&ATTENTION_PREFILL, &DELTA_CHUNKS, &DELTA_SCAN]).for_each(entries::check);
    }

    #[test]
    fn bytes_are_those_of_the_kernels() {
        let all = [&GEMM_Q4, &GEMM_Q4_ADD, &EXPERTS_GEMM_UP, &EXPERTS_GEMM_DOWN, &ATTENTION_PREFILL];
        assert_eq!(all.map(|kernel| kernel.launch_bytes), [82_944, 82_944, 82_944, 82_944, 196_672]);
        all.into_iter().chain([&DELTA_CHUNKS, &DELTA_SCAN]).for_each(entries::check_launch_bytes);
    }
}

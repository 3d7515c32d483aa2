//! The kernels of a few-row step on a Hopper GPU, in `kernels/cuda/`: those that multiply bytes, and those that go with them.
//! Each does what the Metal kernel does that it is made from here, with its arguments where nothing else is said, and begins while
//! the one before it runs.

use crate::device::Tiles;
use crate::kernel::Access::{Read, Write};
use crate::kernel::{Argument, Kernel, Slice};
use crate::kernels::{self, HEAD, PAGE};
use crate::plan::Dispatch;
use crate::shapes::{CHOSEN, RANKS, Shapes};
use crate::step::warpgroup::argument;
use crate::step::{Model, by_rows};

/// Blocks of a value head's recurrence.
const DELTA_SHARERS: u32 = 4;

/// Blocks of a head's joining of attention's pieces.
pub(super) const JOIN_SHARERS: u32 = 4;

/// Outputs of a tile.
const TILE: u32 = 16;

/// Multiprocessors, each of which takes a block: H100 and H200 have as many; elsewhere the same is done, not so fast.
const MULTIPROCESSORS: u32 = 132;

/// The only widths of the residual stream and of an expert that the kernels are made for.
const HIDDEN: usize = 2048;
const EXPERT_WIDTH: usize = 512;

/// The most columns of a mixer's last product.
const MAX_INNER: usize = 4096;

/// Tiles of a block at most beside so many rows, as shared memory allows.
const fn tiles_beside(rows: u32) -> u32 {
    if rows == 8 { 5 } else { 6 }
}

/// Shared memory of `tiles` of rows of `columns` weights of `bits` in parts of their own, and of as many staged rows and the
/// sums of `warps`.
const fn bytes(bits: usize, tiles: u32, columns: usize, parts: usize, rows: u32, warps: usize) -> u32 {
    let (tiles, rows, tile) = (tiles as usize, rows as usize, TILE as usize);
    let edges = columns / parts / 64 * 2;
    let held = tiles * tile * (columns * bits / 8 + parts * (64 + 2 * edges + 16));
    let staged = columns * 4 + columns / 64 * 4 + warps * 8;
    (held + rows * (staged + warps * tiles * tile * 4)) as u32
}

const WARPS: usize = 16;

/// A kernel that begins early in the place of another, with storage that it is given at launch.
const fn early(name: &'static str, max_threads: u32, launch_bytes: u32, of: &Kernel) -> Kernel {
    Kernel { name, max_threads, threadgroup_bytes: 0, launch_bytes, begins_early: true, ..*of }
}

const fn project_norm(name: &'static str, rows: u32, of: &Kernel) -> Kernel {
    early(name, 512, bytes(4, tiles_beside(rows), HIDDEN, 1, rows, WARPS), of)
}

const fn project_add(name: &'static str, rows: u32, of: &Kernel) -> Kernel {
    early(name, 512, bytes(4, 1, MAX_INNER, 1, rows, WARPS), of)
}

/// Arguments of other kernels, one after the other.
pub(super) const fn joined<const COUNT: usize>(parts: &[&[Argument]]) -> [Argument; COUNT] {
    let mut all = [const { argument("", 0, Read, 0) }; COUNT];
    let (mut part, mut place, mut slot) = (0, 0, 0);
    while part < parts.len() {
        if place == parts[part].len() {
            (part, place) = (part + 1, 0);
            continue;
        }
        let &Argument { name, access, element_bytes, .. } = &parts[part][place];
        all[slot] = argument(name, slot as u32, access, element_bytes);
        (place, slot) = (place + 1, slot + 1);
    }
    assert!(slot == COUNT);
    all
}

/// Those of the Metal kernel without parameters, and the squares of DeltaNet's outputs.
const ADD_DELTA_ARGUMENTS: [Argument; 6] =
    joined(&[kernels::PROJECT_ADD_1.arguments, &[argument("squares", 0, Read, 4)]]);

const fn project_add_delta(name: &'static str, of: &Kernel) -> Kernel {
    Kernel { name, arguments: &ADD_DELTA_ARGUMENTS, parameters_size: 0, ..*of }
}

pub(super) static PROJECT_NORM: [&Kernel; 4] = [
    &project_norm("project_norm_bytes_1", 1, &kernels::PROJECT_NORM_1),
    &project_norm("project_norm_bytes_2", 2, &kernels::PROJECT_NORM_2),
    &project_norm("project_norm_bytes_4", 4, &kernels::PROJECT_NORM_4),
    &project_norm("project_norm_bytes_8", 8, &kernels::PROJECT_NORM_8),
];
static PROJECT_ADD: [&Kernel; 4] = [
    &project_add("project_add_bytes_1", 1, &kernels::PROJECT_ADD_1),
    &project_add("project_add_bytes_2", 2, &kernels::PROJECT_ADD_2),
    &project_add("project_add_bytes_4", 4, &kernels::PROJECT_ADD_4),
    &project_add("project_add_bytes_8", 8, &kernels::PROJECT_ADD_8),
];
static PROJECT_ADD_DELTA: [&Kernel; 4] = [
    &project_add_delta("project_add_delta_bytes_1", PROJECT_ADD[0]),
    &project_add_delta("project_add_delta_bytes_2", PROJECT_ADD[1]),
    &project_add_delta("project_add_delta_bytes_4", PROJECT_ADD[2]),
    &project_add_delta("project_add_delta_bytes_8", PROJECT_ADD[3]),
];
pub(super) static LOGITS: [&Kernel; 4] = [
    &project_norm("logits_bytes_1", 1, &kernels::LOGITS_1),
    &project_norm("logits_bytes_2", 2, &kernels::LOGITS_2),
    &project_norm("logits_bytes_4", 4, &kernels::LOGITS_4),
    &project_norm("logits_bytes_8", 8, &kernels::LOGITS_8),
];
/// Those of the Metal kernel without parameters, and of the gates and ups those for the shared expert.
const ROUTER_ARGUMENTS: [Argument; 16] = joined(&[
    kernels::ROUTER_1.arguments,
    kernels::EXPERTS_UP.arguments.split_at(12).0.split_at(6).1,
    &[argument("hidden", 0, Write, 4)],
]);
static ROUTER: Kernel = Kernel {
    arguments: &ROUTER_ARGUMENTS,
    parameters_size: 0,
    ..early("router_bytes", 512, bytes(8, 1, HIDDEN, 1, 1, WARPS), &kernels::ROUTER_1)
};

/// Those of the Metal kernel but for the shared expert and the choices, which the next makes itself.
const UP_ARGUMENTS: [Argument; 11] =
    joined(&[kernels::EXPERTS_UP.arguments.split_at(6).0, kernels::EXPERTS_UP.arguments.split_at(17).0.split_at(12).1]);
/// More than half of a multiprocessor's shared memory, which so takes one, and a block of the next.
static EXPERTS_UP: Kernel =
    Kernel { arguments: &UP_ARGUMENTS, ..early("experts_up_bytes", 512, 116 << 10, &kernels::EXPERTS_UP) };

/// Those of the Metal kernel with the router's logits for the choices.
const DOWN_ARGUMENTS: [Argument; 10] = joined(&[
    kernels::EXPERTS_DOWN.arguments.split_at(7).0,
    &[argument("logits", 0, Read, 4)],
    kernels::EXPERTS_DOWN.arguments.split_at(8).1,
]);
const DOWN_WARPS: usize = 20;
static EXPERTS_DOWN: Kernel = Kernel {
    arguments: &DOWN_ARGUMENTS,
    ..early(
        "experts_down_bytes",
        32 * DOWN_WARPS as u32,
        bytes(4, 1, RANKS * EXPERT_WIDTH, RANKS, 1, DOWN_WARPS),
        &kernels::EXPERTS_DOWN,
    )
};

/// Those of the Metal kernel, and the squares of the outputs.
const DELTA_ARGUMENTS: [Argument; 11] = joined(&[kernels::DELTA_STEP.arguments, &[argument("squares", 0, Write, 4)]]);
static DELTA_STEP: Kernel =
    Kernel { arguments: &DELTA_ARGUMENTS, ..early("delta_step_split", 256, 0, &kernels::DELTA_STEP) };
pub(super) static ATTENTION_PREPARE: Kernel =
    Kernel { name: "attention_prepare_early", begins_early: true, ..kernels::ATTENTION_PREPARE };
pub(super) static ATTENTION_BLOCK: Kernel =
    early("attention_pieces", 128, 3 * 2 * PAGE * (2 * HEAD + 16), &kernels::ATTENTION_BLOCK);
pub(super) static ATTENTION_COMBINE: Kernel = early("attention_join", 256, 0, &kernels::ATTENTION_COMBINE);

const UP_TILES: u32 = 4;

/// Whether the device has warpgroups, and with them the kernels of attention and of the recurrence.
pub(super) fn begin_early(model: &Model<'_>) -> bool {
    model.sizes.tiles == Tiles::Warpgroup
}

/// Whether the products are made for such a model and device.
pub(super) fn multiply(model: &Model<'_>) -> bool {
    let Shapes { hidden, expert_width, value_heads, vocabulary, .. } = *model.shapes;
    let inner = [model.shapes.query_size(), model.shapes.value_size()];
    begin_early(model)
        && (hidden, expert_width) == (HIDDEN, EXPERT_WIDTH)
        && inner.iter().all(|inner| *inner <= MAX_INNER && inner.is_multiple_of(512))
        && value_heads.is_multiple_of(TILE as usize)
        && vocabulary.is_multiple_of(TILE as usize)
}

/// DeltaNet's recurrence, the Metal kernel's dispatch as this device's, which leaves the norm to [`add`] and `squares` for it.
pub(super) fn delta_step(mut step: Dispatch, squares: Slice<f32>) -> Dispatch {
    step.ranges.push(squares.range);
    let [heads, segments, _] = step.grid;
    Dispatch {
        kernel: &DELTA_STEP,
        grid: [heads * DELTA_SHARERS, segments, 1],
        threads: DELTA_STEP.max_threads,
        ..step
    }
}

/// `x += linear · input`, where [`delta_step`] has left `squares`: the Metal kernel's dispatch as this product's.
pub(super) fn add(rows: usize, outputs: usize, mut add: Dispatch, squares: Option<Slice<f32>>) -> Dispatch {
    let kernel = by_rows(if squares.is_some() { &PROJECT_ADD_DELTA } else { &PROJECT_ADD }, rows);
    if let Some(squares) = squares {
        add.ranges.push(squares.range);
        add.parameters.clear();
    }
    Dispatch { kernel, grid: [tiles(outputs), 1, 1], threads: kernel.max_threads, ..add }
}

/// The mixture of experts, the Metal kernels' dispatches as this device's: the shared expert's gates and ups are beside the router.
pub(super) fn moe(
    shapes: &Shapes,
    rows: usize,
    [mut router, mut up, mut down]: [Dispatch; 3],
    logits: Slice<f32>,
    hidden: Slice<f32>,
) -> [Dispatch; 3] {
    router.ranges.extend(up.ranges.drain(6..12));
    router.ranges.push(hidden.range);
    router.parameters.clear();
    up.ranges.pop();
    down.ranges[7] = logits.range;
    let pair_tiles = |experts: usize| (experts * shapes.expert_width * 2) as u32 / TILE;
    let on = |kernel: &'static Kernel, blocks, dispatch| Dispatch {
        kernel,
        grid: [blocks, rows as u32, 1],
        threads: kernel.max_threads,
        ..dispatch
    };
    [
        on(&ROUTER, tiles(shapes.experts + 1) + pair_tiles(1), router),
        on(&EXPERTS_UP, pair_tiles(CHOSEN) / UP_TILES, up),
        on(&EXPERTS_DOWN, tiles(shapes.hidden), down),
    ]
}

/// Blocks for so many outputs of few rows, as even as can be.
pub(super) fn project_blocks(outputs: u32, rows: usize) -> u32 {
    blocks(outputs / TILE, tiles_beside(rows as u32))
}

/// Tiles of so many outputs.
const fn tiles(outputs: usize) -> u32 {
    (outputs as u32).div_ceil(TILE)
}

/// Blocks of the logits.
pub(super) const fn logits_blocks() -> u32 {
    MULTIPROCESSORS
}

fn blocks(tiles: u32, most: u32) -> u32 {
    tiles.div_ceil(tiles.div_ceil(MULTIPROCESSORS).min(most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{ATTENTION_PIECES, DELTA_SQUARES};
    use crate::step::entries;

    fn all() -> Vec<&'static Kernel> {
        let few = [
            &ROUTER,
            &EXPERTS_UP,
            &EXPERTS_DOWN,
            &DELTA_STEP,
            &ATTENTION_PREPARE,
            &ATTENTION_BLOCK,
            &ATTENTION_COMBINE,
        ]
        .into_iter();
        few.chain([PROJECT_NORM, PROJECT_ADD, PROJECT_ADD_DELTA, LOGITS].into_iter().flatten()).collect()
    }

    #[test]
    fn every_kernel_has_an_entry_with_its_arguments() {
        all().into_iter().for_each(entries::check);
    }

    /// A block of a Hopper GPU has 227 KiB of shared memory, of which a kernel's own arrays take a few.
    #[test]
    fn shared_memory_is_enough() {
        for kernel in all() {
            assert!(
                kernel.begins_early && kernel.launch_bytes <= 220 << 10,
                "{}: {}",
                kernel.name,
                kernel.launch_bytes
            );
        }
    }

    /// Before experts_down waits it reads what the router has made: so experts_up lets it begin only when it has itself waited.
    #[test]
    fn experts_down_begins_when_the_router_has_ended() {
        let (_, rest) = entries::SOURCE.split_once(" lily_experts_up_bytes(").expect("the kernel");
        let (body, _) = rest.split_once("extern \"C\"").expect("another kernel after it");
        let waited = body.rfind("wait_for_earlier();").expect("it waits");
        let lets = body.find("let_later_begin();").expect("it lets another begin");
        assert!(waited < lets, "{body}");
    }

    #[test]
    fn blocks_are_even() {
        assert_eq!([project_blocks(12352, 1), project_blocks(9216, 4), project_blocks(12352, 8)], [129, 116, 155]);
    }

    /// As the kernels assert.
    #[test]
    fn bytes_are_those_of_the_kernels() {
        assert_eq!(ROUTER.launch_bytes, 45_568);
        assert_eq!(EXPERTS_DOWN.launch_bytes, 73_152);
        // Two of the one are too much, one of each and the next layer's projections beside the last are not.
        let kept = 1 << 10;
        let [up, down, project] =
            [&EXPERTS_UP, &EXPERTS_DOWN, PROJECT_NORM[0]].map(|kernel| kernel.launch_bytes + 2 * kept);
        assert!(2 * up > 228 << 10 && up + down <= 228 << 10 && down + project <= 228 << 10);
        assert_eq!(PROJECT_NORM.map(|kernel| kernel.launch_bytes), [132_864, 147_456, 176_640, 207_104]);
        assert_eq!(ATTENTION_BLOCK.launch_bytes, 202_752);
        assert_eq!(PROJECT_ADD.map(|kernel| kernel.launch_bytes), [55_936, 73_728, 109_312, 180_480]);
        all().into_iter().for_each(entries::check_launch_bytes);
    }

    /// Numbers by which a grid is divided up, here as there.
    #[test]
    fn parts_are_those_of_the_kernels() {
        let parts = [
            ("ATTENTION_PIECES", ATTENTION_PIECES),
            ("DELTA_SHARERS", DELTA_SHARERS as usize),
            ("DELTA_SQUARES", DELTA_SQUARES),
            ("DOWN_WARPS", DOWN_WARPS),
            ("JOIN_SHARERS", JOIN_SHARERS as usize),
            ("TILE_OUTPUTS", TILE as usize),
            ("UP_TILES", UP_TILES as usize),
        ];
        for (name, value) in parts {
            assert!(entries::SOURCE.contains(&format!(" {name} = {value};")), "{name} is not {value} there");
        }
    }
}

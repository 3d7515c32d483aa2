//! The kernels of a few-row step on a Hopper GPU, in `kernels/cuda/`: those that multiply bytes, and those that go with them.
//! Each does what the Metal kernel does that it is made from here, with its arguments, and begins while the one before it runs.

use crate::device::Tiles;
use crate::kernel::Kernel;
use crate::kernels::{self, HEAD, PAGE};
use crate::shapes::{RANKS, Shapes};
use crate::step::Model;

/// The pieces of a context that attention joins, for any context: more would not all run at once.
pub(crate) const ATTENTION_PIECES: usize = 64;

/// Blocks of a value head's recurrence.
pub(super) const DELTA_SHARERS: u32 = 4;

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

pub(super) static PROJECT_NORM: [&Kernel; 4] = [
    &project_norm("project_norm_bytes_1", 1, &kernels::PROJECT_NORM_1),
    &project_norm("project_norm_bytes_2", 2, &kernels::PROJECT_NORM_2),
    &project_norm("project_norm_bytes_4", 4, &kernels::PROJECT_NORM_4),
    &project_norm("project_norm_bytes_8", 8, &kernels::PROJECT_NORM_8),
];
pub(super) static PROJECT_ADD: [&Kernel; 4] = [
    &project_add("project_add_bytes_1", 1, &kernels::PROJECT_ADD_1),
    &project_add("project_add_bytes_2", 2, &kernels::PROJECT_ADD_2),
    &project_add("project_add_bytes_4", 4, &kernels::PROJECT_ADD_4),
    &project_add("project_add_bytes_8", 8, &kernels::PROJECT_ADD_8),
];
pub(super) static LOGITS: [&Kernel; 4] = [
    &project_norm("logits_bytes_1", 1, &kernels::LOGITS_1),
    &project_norm("logits_bytes_2", 2, &kernels::LOGITS_2),
    &project_norm("logits_bytes_4", 4, &kernels::LOGITS_4),
    &project_norm("logits_bytes_8", 8, &kernels::LOGITS_8),
];
pub(super) static ROUTER: Kernel = early("router_bytes", 512, bytes(8, 1, HIDDEN, 1, 1, WARPS), &kernels::ROUTER_1);
pub(super) static EXPERTS_UP: Kernel =
    early("experts_up_bytes", 512, bytes(4, UP_TILES, HIDDEN, 1, 1, WARPS), &kernels::EXPERTS_UP);
pub(super) static EXPERTS_DOWN: Kernel =
    early("experts_down_bytes", 576, bytes(4, 1, RANKS * EXPERT_WIDTH, RANKS, 1, 18), &kernels::EXPERTS_DOWN);
pub(super) static DELTA_STEP: Kernel = early("delta_step_cluster", 256, 0, &kernels::DELTA_STEP);
pub(super) static ATTENTION_PREPARE: Kernel =
    Kernel { name: "attention_prepare_early", begins_early: true, ..kernels::ATTENTION_PREPARE };
pub(super) static ATTENTION_BLOCK: Kernel =
    early("attention_pieces", 128, 3 * 2 * PAGE * (2 * HEAD + 16), &kernels::ATTENTION_BLOCK);
pub(super) static ATTENTION_COMBINE: Kernel = early("attention_join", 256, 0, &kernels::ATTENTION_COMBINE);

const UP_TILES: u32 = 5;

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

/// Blocks for so many outputs of few rows, as even as can be.
pub(super) fn project_blocks(outputs: u32, rows: usize) -> u32 {
    blocks(outputs / TILE, tiles_beside(rows as u32))
}

/// Blocks for the gates and ups of all ranks.
pub(super) fn up_blocks(shapes: &Shapes) -> u32 {
    blocks((RANKS * shapes.expert_width * 2) as u32 / TILE, UP_TILES)
}

/// Blocks of the router and of a product that adds to the residual stream.
pub(super) const fn tiles(outputs: usize) -> u32 {
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
        few.chain([PROJECT_NORM, PROJECT_ADD, LOGITS].into_iter().flatten()).collect()
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

    #[test]
    fn blocks_are_even() {
        assert_eq!([project_blocks(12352, 1), project_blocks(9216, 4), project_blocks(12352, 8)], [129, 116, 155]);
    }

    /// As the kernels assert.
    #[test]
    fn bytes_are_those_of_the_kernels() {
        assert_eq!(ROUTER.launch_bytes, 45_568);
        assert_eq!(EXPERTS_UP.launch_bytes, 112_128);
        assert_eq!(EXPERTS_DOWN.launch_bytes, 73_008);
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
            ("JOIN_SHARERS", JOIN_SHARERS as usize),
            ("TILE_OUTPUTS", TILE as usize),
        ];
        for (name, value) in parts {
            assert!(entries::SOURCE.contains(&format!(" {name} = {value};")), "{name} is not {value} there");
        }
    }
}

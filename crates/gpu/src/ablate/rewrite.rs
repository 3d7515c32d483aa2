//! From the plan of the whole model to that of the model without an idea.

use super::Ablation;
use super::routing::Sort;
use crate::device::{Buffer, Constant, Device, DeviceError, Range};
use crate::kernel::Kernel;
use crate::kernels::{self, BlockParams, CHOSEN, CombineParams, MAX_BLOCK, PAGE, SortParams};
use crate::plan::{Dispatch, Plan};
use crate::recorder::Recorder;

/// Rows of the tiles that are left if none may be larger.
const SMALL_TILE: u32 = 16;

/// The model's sizes that rewriting needs, from the function constants.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) hidden: u32,
    pub(super) query_heads: u32,
    pub(super) key_heads: u32,
    pub(super) value_heads: u32,
    pub(super) experts: u32,
    pub(super) expert_width: u32,
}

impl Sizes {
    pub(super) fn of(constants: &[Constant]) -> Self {
        let named = |name: &str| {
            let constant = kernels::FUNCTION_CONSTANTS.iter().zip(constants).find(|(of, _)| **of == name);
            if let Some((_, &Constant::Uint(value))) = constant { value } else { 0 }
        };
        Self {
            hidden: named("HIDDEN"),
            query_heads: named("QUERY_HEADS"),
            key_heads: named("KEY_HEADS"),
            value_heads: named("VALUE_HEADS"),
            experts: named("EXPERTS"),
            expert_width: named("EXPERT_WIDTH"),
        }
    }
}

/// Memory that only ablated plans need. Plans that were prepared keep what they were given: nothing is released.
pub(super) struct Scratch(Vec<(&'static str, Buffer)>);

impl Scratch {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// So many bytes, the same for each call with this name if they suffice.
    pub(super) fn take(
        &mut self,
        device: &mut impl Device,
        what: &'static str,
        bytes: u64,
    ) -> Result<Range, DeviceError> {
        let enough = |(of, buffer): &&(&str, Buffer)| *of == what && buffer.bytes >= bytes;
        let buffer = match self.0.iter().find(enough) {
            Some(&(_, buffer)) => buffer,
            None => device.allocate(bytes, what)?,
        };
        if !self.0.contains(&(what, buffer)) {
            self.0.push((what, buffer));
        }
        Ok(buffer.all().part(0, bytes))
    }
}

/// Rewrites a plan, dispatch by dispatch; `allocate(what, bytes)` gives scratch memory.
pub(super) struct Rewriter<F> {
    pub(super) sizes: Sizes,
    allocate: F,
    /// The block map of the layer and its records.
    map: Option<(Range, u32)>,
    /// The records of the step's rows.
    pub(super) rows: Option<Range>,
}

impl<F: FnMut(&'static str, u64) -> Result<Range, DeviceError>> Rewriter<F> {
    pub(super) const fn new(sizes: Sizes, allocate: F) -> Self {
        Self { sizes, allocate, map: None, rows: None }
    }

    /// The plan without an idea, in parts between which the CPU has something to do.
    pub(super) fn rewrite(
        &mut self,
        ablation: Ablation,
        plan: &Plan,
    ) -> Result<Vec<(Plan, Option<Sort>)>, DeviceError> {
        if ablation == Ablation::Serial {
            let chain = (1..plan.dispatches.len()).map(|later| (later - 1, later)).collect();
            return Ok(vec![(Plan::new(plan.dispatches.clone(), chain), None)]);
        }
        let (mut recorder, mut parts) = (Recorder::default(), Vec::new());
        // What is one launch cut into several stays that.
        for launch in plan.dispatches.chunk_by(same_launch) {
            let dispatch = &launch[0];
            recorder.at(dispatch.place.as_str());
            match dispatch.kernel.name {
                "embed" => self.rows = Some(dispatch.ranges[3]),
                "route_sort" if ablation == Ablation::RoutingByCpu => {
                    parts.push((std::mem::take(&mut recorder).finish(), Some(self.sort_of(dispatch))));
                    continue;
                }
                _ => {}
            }
            match launch {
                [dispatch] => self.replace(ablation, dispatch)?.into_iter().for_each(|new| recorder.add(new)),
                _ => recorder.add_parts(launch.to_vec()),
            }
        }
        parts.push((recorder.finish(), None));
        Ok(parts)
    }

    /// Scratch memory for so many elements of a size.
    pub(super) fn scratch(&mut self, what: &'static str, count: u32, size: u64) -> Result<Range, DeviceError> {
        (self.allocate)(what, u64::from(count) * size)
    }

    /// What takes a dispatch's place.
    fn replace(&mut self, ablation: Ablation, dispatch: &Dispatch) -> Result<Vec<Dispatch>, DeviceError> {
        let replaced = match ablation {
            Ablation::SmallTiles => self.small_tile(dispatch)?,
            Ablation::FixedParts(parts) => fixed_parts(dispatch, parts),
            Ablation::DequantisedFirst => return self.dequantised(dispatch),
            Ablation::SingleKernels => return self.single_kernels(dispatch),
            Ablation::StateInMemory if dispatch.kernel.name == "delta_scan" => {
                Dispatch { kernel: &kernels::DELTA_SCAN_MEMORY, ..dispatch.clone() }
            }
            Ablation::HeadsApart if dispatch.kernel.name == "attention_block" => {
                let [blocks, _, rows] = dispatch.grid;
                let grid = [blocks, self.sizes.query_heads, rows];
                Dispatch { kernel: &kernels::ATTENTION_HEAD, grid, ..dispatch.clone() }
            }
            Ablation::StateInMemory | Ablation::HeadsApart | Ablation::RoutingByCpu | Ablation::Serial => {
                dispatch.clone()
            }
        };
        Ok(vec![replaced])
    }

    fn sort_of(&self, dispatch: &Dispatch) -> Sort {
        let [chosen, order, places, map] = [0, 1, 2, 3].map(|index| dispatch.ranges[index]);
        let p = SortParams::from_bytes(&parameters(dispatch));
        Sort { chosen, order, places, map, p, experts: self.sizes.experts }
    }

    fn small_tile(&mut self, dispatch: &Dispatch) -> Result<Dispatch, DeviceError> {
        let mut new = dispatch.clone();
        match dispatch.kernel.name {
            "gemm_q4_32" | "gemm_q4_64" => small_product(&mut new, &kernels::GEMM_Q4_16),
            "gemm_q4_add_32" | "gemm_q4_add_64" => small_product(&mut new, &kernels::GEMM_Q4_ADD_16),
            "route_sort" => {
                let p = SortParams::from_bytes(&parameters(dispatch));
                let (rows, pairs) = (p.rows, p.rows * CHOSEN);
                let blocks = pairs / SMALL_TILE + self.sizes.experts.min(pairs) + rows.div_ceil(SMALL_TILE);
                let map = self.scratch("a block map", blocks, size_of::<kernels::Block>() as u64)?;
                self.map = Some((map, blocks));
                new.ranges[3] = map;
                new.parameters = SortParams { rows, tile: SMALL_TILE, blocks }.to_bytes().to_vec();
            }
            "experts_gemm_up_16" | "experts_gemm_up_32" => {
                self.small_experts(&mut new, &kernels::EXPERTS_GEMM_UP_16, 14)
            }
            "experts_gemm_down_16" | "experts_gemm_down_32" => {
                self.small_experts(&mut new, &kernels::EXPERTS_GEMM_DOWN_16, 7);
            }
            _ => {}
        }
        Ok(new)
    }

    fn small_experts(&self, dispatch: &mut Dispatch, kernel: &'static Kernel, map_slot: usize) {
        dispatch.kernel = kernel;
        if let Some((map, blocks)) = self.map {
            dispatch.ranges[map_slot] = map;
            dispatch.grid[1] = blocks;
        }
    }
}

fn same_launch(one: &Dispatch, next: &Dispatch) -> bool {
    one.kernel.name == "attention_prefill" && one.kernel == next.kernel && one.ranges == next.ranges
}

fn small_product(dispatch: &mut Dispatch, kernel: &'static Kernel) {
    // The rows are the first of the parameters of both products.
    let rows = u32::from_ne_bytes(std::array::from_fn(|index| dispatch.parameters[index]));
    dispatch.kernel = kernel;
    dispatch.grid[0] = rows.div_ceil(SMALL_TILE);
}

fn fixed_parts(dispatch: &Dispatch, parts: u32) -> Dispatch {
    let cut = |blocks: u32| {
        let context = blocks * MAX_BLOCK;
        let block = context.div_ceil(parts).next_multiple_of(PAGE).max(MAX_BLOCK);
        (block, context.div_ceil(block))
    };
    let mut new = dispatch.clone();
    match dispatch.kernel.name {
        "attention_block" => {
            let mut p = BlockParams::from_bytes(&parameters(dispatch));
            (p.block, p.blocks) = cut(p.blocks);
            new.kernel = &kernels::ATTENTION_LONG;
            new.grid[0] = p.blocks;
            new.parameters = p.to_bytes().to_vec();
        }
        "attention_combine" => {
            let mut p = CombineParams::from_bytes(&parameters(dispatch));
            (p.block, p.blocks) = cut(p.blocks);
            new.parameters = p.to_bytes().to_vec();
        }
        _ => {}
    }
    new
}

/// The bytes of a dispatch's parameter struct, whose size its kernel's binding has made sure of.
pub(super) fn parameters<const SIZE: usize>(dispatch: &Dispatch) -> [u8; SIZE] {
    std::array::from_fn(|index| dispatch.parameters[index])
}

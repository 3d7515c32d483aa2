//! A step as recorded: dispatches, the order they need, and the stages that follow from it. Platform-free.

use std::fmt::Write;

use lily_backend::uniform;

use crate::device::Range;
use crate::kernel::Kernel;

/// One launch of a kernel.
#[derive(Clone, Debug)]
pub struct Dispatch {
    /// What runs.
    pub kernel: &'static Kernel,
    /// Where in the model it stands, for pictures and messages: `layer 3 attention`.
    pub place: String,
    /// The buffers of [`Kernel::arguments`], in that order.
    pub ranges: Vec<Range>,
    /// The bytes of its parameter struct, bound to [`Kernel::parameters_slot`]; empty if it has none.
    pub parameters: Vec<u8>,
    /// Threadgroups.
    pub grid: [u32; 3],
    /// Threads of a threadgroup, all along x.
    pub threads: u32,
    /// What it takes at most.
    pub cost: Cost,
}

impl Dispatch {
    /// States the cost: all ranges are moved once, but of these only so many bytes; and so many multiply-adds.
    #[must_use]
    pub fn costing(mut self, sparse: &[(Range, u64)], multiply_adds: u64) -> Self {
        let touched =
            |range: &Range| sparse.iter().find(|(all, _)| all == range).map_or(range.bytes, |&(_, some)| some);
        self.cost = Cost { bytes: self.ranges.iter().map(touched).sum(), multiply_adds };
        self
    }
}

/// What a dispatch takes from a device, for command buffers of bounded length and for reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes read and written, each once.
    pub bytes: u64,
    /// Multiplications with their additions.
    pub multiply_adds: u64,
}

/// A recorded step.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// In the order of recording, which is one in which they may run.
    pub dispatches: Vec<Dispatch>,
    /// `(earlier, later)`: the later one may start only when the earlier one is complete and its writes are visible.
    /// Implied ones (a→b→c gives a→c) are left out. Sorted.
    pub edges: Vec<(usize, usize)>,
    /// Dispatches that may run at the same time, by their index. A barrier stands between two stages and nowhere else;
    /// every edge goes from a stage to a later one.
    pub stages: Vec<Vec<usize>>,
}

impl Plan {
    /// A plan of dispatches and the edges among them, each from an earlier one to a later one. A dispatch's stage is the
    /// one after the last of those it depends on.
    #[must_use]
    pub fn new(dispatches: Vec<Dispatch>, mut edges: Vec<(usize, usize)>) -> Self {
        edges.sort_unstable();
        let mut level = vec![0; dispatches.len()];
        let mut incoming = edges.clone();
        incoming.sort_unstable_by_key(|&(earlier, later)| (later, earlier));
        for (earlier, later) in incoming {
            level[later] = level[later].max(level[earlier] + 1);
        }
        let mut stages = vec![Vec::new(); level.iter().max().map_or(0, |deepest| deepest + 1)];
        for (index, &level) in level.iter().enumerate() {
            stages[level].push(index);
        }
        Self { dispatches, edges, stages }
    }

    /// The same plan without its `index`-th edge, so that a test can see what notices.
    ///
    /// # Panics
    /// If there is no such edge.
    #[must_use]
    pub fn without_edge(&self, index: usize) -> Self {
        let mut edges = self.edges.clone();
        edges.remove(index);
        Self::new(self.dispatches.clone(), edges)
    }

    /// An order of the dispatches, by their index, that the edges allow: each seed gives another.
    #[must_use]
    pub fn order(&self, seed: u64) -> Vec<usize> {
        let mut waits = vec![0; self.dispatches.len()];
        let mut later = vec![Vec::new(); self.dispatches.len()];
        for &(from, to) in &self.edges {
            waits[to] += 1;
            later[from].push(to);
        }
        let mut ready: Vec<usize> = (0..waits.len()).filter(|&index| waits[index] == 0).collect();
        let mut order = Vec::with_capacity(waits.len());
        while !ready.is_empty() {
            let random = uniform(seed, order.len() as u64);
            // Below 1, so that the product is below the length.
            let next = ready.swap_remove((f64::from(random) * ready.len() as f64) as usize);
            order.push(next);
            for &to in &later[next] {
                waits[to] -= 1;
                if waits[to] == 0 {
                    ready.push(to);
                }
            }
        }
        order
    }

    /// `N dispatches, M stages`
    #[must_use]
    pub fn counts(&self) -> String {
        format!("{} dispatches, {} stages", self.dispatches.len(), self.stages.len())
    }

    /// What all dispatches take together.
    #[must_use]
    pub fn cost(&self) -> Cost {
        self.dispatches.iter().fold(Cost::default(), |sum, dispatch| Cost {
            bytes: sum.bytes + dispatch.cost.bytes,
            multiply_adds: sum.multiply_adds + dispatch.cost.multiply_adds,
        })
    }

    /// The plan as a picture in Graphviz' language: a rank a stage, an arrow an edge.
    #[must_use]
    pub fn dot(&self) -> String {
        let mut dot = String::from("digraph plan {\n  rankdir=TB; node [shape=box, fontname=\"monospace\"];\n");
        for (index, Dispatch { kernel, place, grid, threads, .. }) in self.dispatches.iter().enumerate() {
            let [x, y, z] = grid;
            let _ = writeln!(dot, "  d{index} [label=\"{}\\n{place}\\n{x}x{y}x{z} of {threads}\"];", kernel.name);
        }
        for stage in &self.stages {
            let names: Vec<String> = stage.iter().map(|index| format!("d{index};")).collect();
            let _ = writeln!(dot, "  {{ rank=same; {} }}", names.join(" "));
        }
        for (from, to) in &self.edges {
            let _ = writeln!(dot, "  d{from} -> d{to};");
        }
        dot.push_str("}\n");
        dot
    }
}

//! Turns dispatches into a plan: which must wait for which follows from their signatures and buffer ranges.

use std::collections::HashMap;

use crate::device::Range;
use crate::kernel::Access;
use crate::plan::{Dispatch, Plan};

/// Threadgroup memory that every device has.
const THREADGROUP_BYTES: u32 = 32 << 10;

/// Records dispatches in an order in which they could run one after another.
#[derive(Default)]
pub struct Recorder {
    dispatches: Vec<Dispatch>,
    /// What each buffer was touched by, by its number.
    touched: HashMap<u32, Vec<Touch>>,
    /// For each dispatch the earlier ones with which it conflicts.
    conflicts: Vec<Vec<usize>>,
    place: String,
}

struct Touch {
    dispatch: usize,
    range: Range,
    access: Access,
}

impl Recorder {
    /// Says where in the model the next dispatches stand.
    pub fn at(&mut self, place: impl Into<String>) {
        self.place = place.into();
    }

    /// Adds a dispatch: it sees what earlier ones wrote, and none of them sees what it writes. Unless its cost is stated
    /// it is that of moving all its ranges once.
    ///
    /// # Panics
    /// If the dispatch does not fit its kernel, or it writes a range that it is also given under another name. Both are
    /// mistakes of the code that made it, whatever the input.
    pub fn add(&mut self, dispatch: Dispatch) {
        let first = self.dispatches.len();
        self.record(dispatch, first);
    }

    /// Adds one launch that is cut into several, which differ in nothing but their parameters and grid: as the threadgroups of
    /// a launch never touch what another of them writes, these are not ordered among themselves.
    ///
    /// # Panics
    /// As [`add`](Self::add), and if they differ in more.
    pub fn add_parts(&mut self, parts: Vec<Dispatch>) {
        let first = self.dispatches.len();
        let mut of = None;
        for part in parts {
            let (kernel, ranges) = of.get_or_insert_with(|| (part.kernel, part.ranges.clone()));
            assert!(
                part.kernel == *kernel && part.ranges == *ranges,
                "{} is no part of the same launch",
                part.kernel.name
            );
            self.record(part, first);
        }
    }

    /// `first` is the launch's own first part: it and those after it are no conflicts.
    fn record(&mut self, mut dispatch: Dispatch, first: usize) {
        dispatch.place.clone_from(&self.place);
        check(&dispatch);
        if dispatch.cost.bytes == 0 {
            dispatch.cost.bytes = dispatch.ranges.iter().map(|range| range.bytes).sum();
        }
        let index = self.dispatches.len();
        let mut conflicts = Vec::new();
        for (range, argument) in dispatch.ranges.iter().zip(dispatch.kernel.arguments) {
            let earlier = self.touched.entry(range.buffer.id).or_default();
            for touch in earlier.iter() {
                let written = touch.access == Access::Write || argument.access == Access::Write;
                if written && touch.range.overlaps(range) {
                    assert!(
                        touch.dispatch != index,
                        "{} at {}: {} overlaps another argument",
                        dispatch.kernel.name,
                        dispatch.place,
                        argument.name
                    );
                    if touch.dispatch < first {
                        conflicts.push(touch.dispatch);
                    }
                }
            }
            earlier.push(Touch { dispatch: index, range: *range, access: argument.access });
        }
        conflicts.sort_unstable();
        conflicts.dedup();
        self.conflicts.push(conflicts);
        self.dispatches.push(dispatch);
    }

    /// The plan of what was recorded. Its edges are conflicts that no chain of other edges implies.
    #[must_use]
    pub fn finish(self) -> Plan {
        let words = self.dispatches.len().div_ceil(64);
        let mut ancestors: Vec<Vec<u64>> = Vec::with_capacity(self.dispatches.len());
        let mut edges = Vec::new();
        for (later, conflicts) in self.conflicts.iter().enumerate() {
            let mut implied = vec![0_u64; words];
            // Nearest first: whatever implies an earlier conflict is itself a later one, or an ancestor of one.
            for &earlier in conflicts.iter().rev() {
                if implied[earlier / 64] >> (earlier % 64) & 1 == 1 {
                    continue;
                }
                edges.push((earlier, later));
                implied[earlier / 64] |= 1 << (earlier % 64);
                for (all, of_earlier) in implied.iter_mut().zip(&ancestors[earlier]) {
                    *all |= of_earlier;
                }
            }
            ancestors.push(implied);
        }
        Plan::new(self.dispatches, edges)
    }
}

/// A dispatch must fit its kernel's signature and what every device allows.
fn check(Dispatch { kernel, place, ranges, parameters, grid, threads, .. }: &Dispatch) {
    let name = kernel.name;
    assert_eq!(ranges.len(), kernel.arguments.len(), "buffers of {name} at {place}");
    assert_eq!(parameters.len(), kernel.parameters_size, "parameters of {name} at {place}");
    assert!(grid.iter().all(|&groups| groups > 0), "{name} at {place} has an empty grid {grid:?}");
    assert!((1..=kernel.max_threads).contains(threads), "{name} at {place}: {threads} threads a threadgroup");
    assert!(kernel.threadgroup_bytes <= THREADGROUP_BYTES, "{name}: {} threadgroup bytes", kernel.threadgroup_bytes);
    for (range, argument) in ranges.iter().zip(kernel.arguments) {
        // A kernel may read packed 16-byte values from a buffer of smaller elements, never below 4.
        let unit = argument.element_bytes.min(4) as u64;
        assert!(range.offset.is_multiple_of(unit), "{name} at {place}: {} begins at {range:?}", argument.name);
        assert!(
            range.offset + range.bytes <= range.buffer.bytes,
            "{name} at {place}: {} leaves its buffer: {range:?}",
            argument.name
        );
    }
}

#[cfg(test)]
mod tests {
    use super::Recorder;
    use crate::device::{Buffer, Range};
    use crate::kernel::{Access, Argument, Kernel};
    use crate::plan::{Cost, Dispatch, Plan};
    use proptest::prelude::*;

    const fn argument(access: Access, slot: u32) -> Argument {
        Argument { name: "a", slot, access, element: "uint", element_bytes: 4 }
    }

    /// Reads one buffer, reads another, writes a third.
    static KERNEL: Kernel = Kernel {
        name: "test",
        file: "test.metal",
        arguments: &[argument(Access::Read, 0), argument(Access::Read, 1), argument(Access::Write, 2)],
        parameters_slot: 3,
        parameters_size: 0,
        max_threads: 1024,
        threadgroup_bytes: 0,
        launch_bytes: 0,
        begins_early: false,
    };

    const BYTES: u64 = 64;

    fn dispatch(ranges: [(u32, u64, u64); 3]) -> Dispatch {
        let range = |(id, first, words): (u32, u64, u64)| Range {
            buffer: Buffer { id, bytes: BYTES },
            offset: 4 * first,
            bytes: 4 * words,
        };
        Dispatch {
            kernel: &KERNEL,
            place: String::new(),
            ranges: ranges.map(range).to_vec(),
            parameters: Vec::new(),
            grid: [1; 3],
            threads: 32,
            cost: Cost::default(),
        }
    }

    fn conflict(a: &Dispatch, b: &Dispatch) -> bool {
        let written = |dispatch: &Dispatch| dispatch.ranges[2];
        a.ranges.iter().any(|range| range.overlaps(&written(b)))
            || b.ranges.iter().any(|range| range.overlaps(&written(a)))
    }

    /// `reached[a][b]`: a chain of edges leads from a to b.
    fn reached(plan: &Plan) -> Vec<Vec<bool>> {
        let count = plan.dispatches.len();
        let mut reached = vec![vec![false; count]; count];
        for &(from, to) in plan.edges.iter().rev() {
            let beyond = reached[to].clone();
            reached[from].iter_mut().zip(beyond).for_each(|(reached, beyond)| *reached |= beyond);
            reached[from][to] = true;
        }
        reached
    }

    fn record(dispatches: &[Dispatch]) -> Plan {
        let mut recorder = Recorder::default();
        dispatches.iter().cloned().for_each(|dispatch| recorder.add(dispatch));
        recorder.finish()
    }

    /// Any dispatch whose written range is not also one it reads.
    fn any_dispatch() -> impl Strategy<Value = Dispatch> {
        let range = || (0u32..3, 0u64..12, 1u64..5);
        (range(), range(), range()).prop_map(|(a, b, c)| dispatch([a, b, c])).prop_filter("aliased", |dispatch| {
            !dispatch.ranges[..2].iter().any(|range| range.overlaps(&dispatch.ranges[2]))
        })
    }

    proptest! {
        #[test]
        fn every_conflict_is_ordered_and_nothing_else(dispatches in prop::collection::vec(any_dispatch(), 0..40), seed: u64) {
            let plan = record(&dispatches);
            let reached = reached(&plan);
            for later in 0..dispatches.len() {
                for earlier in 0..later {
                    if conflict(&dispatches[earlier], &dispatches[later]) {
                        prop_assert!(reached[earlier][later], "{} and {}", earlier, later);
                    }
                }
            }
            for (index, &(from, to)) in plan.edges.iter().enumerate() {
                prop_assert!(from < to && conflict(&dispatches[from], &dispatches[to]), "{} and {}", from, to);
                let without = plan.without_edge(index);
                prop_assert!(!super::tests::reached(&without)[from][to], "the edge of {} and {} is implied", from, to);
            }
            let mut level = vec![0; dispatches.len()];
            plan.stages.iter().enumerate().for_each(|(stage, all)| all.iter().for_each(|&index| level[index] = stage));
            prop_assert_eq!(plan.stages.iter().map(Vec::len).sum::<usize>(), dispatches.len());
            for index in 0..dispatches.len() {
                let needs = plan.edges.iter().filter(|edge| edge.1 == index).map(|edge| level[edge.0] + 1).max();
                prop_assert_eq!(level[index], needs.unwrap_or(0));
            }
            let order = plan.order(seed);
            prop_assert_eq!(order.len(), dispatches.len());
            let mut place = vec![usize::MAX; order.len()];
            order.iter().enumerate().for_each(|(at, &index)| place[index] = at);
            prop_assert!(plan.edges.iter().all(|&(from, to)| place[from] < place[to]));
        }
    }

    #[test]
    fn neighbours_in_a_buffer_run_together() {
        let parts: Vec<Dispatch> = (0..4).map(|part| dispatch([(1, 0, 1), (1, 1, 1), (0, 4 * part, 4)])).collect();
        let plan = record(&parts);
        assert_eq!((plan.edges.len(), plan.stages.len()), (0, 1));
        let mut orders: Vec<_> = (0..64).map(|seed| plan.order(seed)).collect();
        orders.sort_unstable();
        orders.dedup();
        assert!(orders.len() > 10, "seeds give different orders");
    }

    #[test]
    fn parts_of_a_launch_run_together_and_after_all_before() {
        let whole = dispatch([(1, 0, 4), (1, 4, 4), (0, 0, 16)]);
        let mut recorder = Recorder::default();
        recorder.add(whole.clone());
        recorder.add_parts(vec![whole.clone(), whole.clone()]);
        recorder.add(whole);
        assert_eq!(recorder.finish().stages, [vec![0], vec![1, 2], vec![3]]);
    }

    #[test]
    #[should_panic(expected = "overlaps another argument")]
    fn a_dispatch_cannot_write_what_it_reads_by_another_name() {
        record(&[dispatch([(0, 0, 4), (1, 0, 1), (0, 3, 1)])]);
    }
}

//! Every edge of the plans is needed: without it, in an order that it forbade, the results change.

use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use lily_backend::Backend;
use lily_checkpoint::Bytes;
use lily_gpu::GpuBackend;
use lily_gpu::device::{Buffer, Constant, Device, DeviceError, Limits, Range, Ticket};
use lily_gpu::plan::Plan;
use lily_host::HostDevice;

use crate::support::{checkpoint, device, logits, next, options, text};

/// A device that runs one plan without one of its edges: the later dispatch before the earlier one.
struct Mutant {
    device: HostDevice,
    /// Which of the plans prepared, and which of its edges.
    victim: Option<(usize, usize)>,
    /// Edges of the plans prepared so far.
    edges: Vec<usize>,
}

/// The plan in one order only: the later end of the edge as early as the other edges let it.
fn violating(plan: &Plan, edge: usize) -> Plan {
    let without = plan.without_edge(edge);
    let later = plan.edges[edge].1;
    let mut before = vec![false; plan.dispatches.len()];
    before[later] = true;
    for &(from, to) in without.edges.iter().rev() {
        before[from] |= before[to];
    }
    let all = 0..plan.dispatches.len();
    let order: Vec<usize> =
        all.clone().filter(|&index| before[index]).chain(all.filter(|&index| !before[index])).collect();
    let dispatches = order.iter().map(|&index| plan.dispatches[index].clone()).collect();
    Plan::new(dispatches, (1..order.len()).map(|place| (place - 1, place)).collect())
}

impl Device for Mutant {
    type Executable = Plan;

    fn name(&self) -> &str {
        self.device.name()
    }

    fn limits(&self) -> Limits {
        self.device.limits()
    }

    fn tensor_tiles(&self) -> bool {
        self.device.tensor_tiles()
    }

    fn specialise(&mut self, constants: &[Constant]) -> Result<(), DeviceError> {
        self.device.specialise(constants)
    }

    fn allocate(&mut self, bytes: u64, what: &str) -> Result<Buffer, DeviceError> {
        self.device.allocate(bytes, what)
    }

    fn map(&mut self, tensors: &[Bytes]) -> Result<Vec<Range>, DeviceError> {
        self.device.map(tensors)
    }

    fn release(&mut self, buffer: Buffer) {
        self.device.release(buffer);
    }

    fn prepare(&mut self, plan: &Plan) -> Result<Plan, DeviceError> {
        let number = self.edges.len();
        self.edges.push(plan.edges.len());
        println!("plan {number}: {}, {} edges", plan.counts(), plan.edges.len());
        match self.victim {
            Some((victim, edge)) if victim == number => self.device.prepare(&violating(plan, edge)),
            _ => self.device.prepare(plan),
        }
    }

    fn write(&mut self, to: Range, bytes: &[u8]) -> Result<(), DeviceError> {
        self.device.write(to, bytes)
    }

    fn copy(&mut self, ranges: &[(Range, Range)]) -> Result<(), DeviceError> {
        self.device.copy(ranges)
    }

    fn clear(&mut self, ranges: &[Range]) -> Result<(), DeviceError> {
        self.device.clear(ranges)
    }

    fn submit(&mut self, executable: &Plan) -> Result<Ticket, DeviceError> {
        self.device.submit(executable)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), DeviceError> {
        self.device.wait(ticket)
    }

    fn read(&mut self, from: Range, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read(from, bytes)
    }
}

/// What a run gives: everything a wrong order could change, or that it failed.
#[derive(Debug, PartialEq)]
enum Outcome {
    Results { first: u32, second: u32, logits: Vec<u32> },
    Failed,
}

/// A short prompt through the many-row plan, two decode steps, the logits of a third token; and the edges of the plans.
fn outcome(victim: Option<(usize, usize)>) -> (Outcome, Vec<usize>) {
    let mutant = Mutant { device: device(0), victim, edges: Vec::new() };
    let mut backend = GpuBackend::new(mutant, checkpoint(), options(false)).expect("a backend");
    let edges = |backend: &GpuBackend<Mutant>| backend.device().edges.clone();
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut state = backend.create().expect("a slot");
        let first = next(&mut backend, &mut state, &text(0, 9), 0);
        let second = next(&mut backend, &mut state, &[first], 1);
        let third = next(&mut backend, &mut state, &[second], 2);
        let logits = logits(&mut backend, &mut state, &[third]).iter().map(|logit| logit.to_bits()).collect();
        Outcome::Results { first, second, logits }
    }));
    (result.unwrap_or(Outcome::Failed), edges(&backend))
}

/// The edges of the plans: a few of each, or those that `LILY_EDGES` asks for, as `0/8` for each eighth from the first on;
/// `0/1` is all of them, which takes minutes.
/// Each mutant is a process of its own: what reads garbage for an index may well crash.
#[test]
fn every_edge_is_needed() {
    let (sound, plans) = outcome(None);
    assert!(matches!(sound, Outcome::Results { .. }));
    let sound = format!("{sound:?}");
    let is_sound = |plan: usize, edge: usize| {
        let output = Command::new(std::env::current_exe().expect("this test's path"))
            .args(["--exact", "edges::one_mutant", "--ignored", "--nocapture"])
            .env(VICTIM, format!("{plan}/{edge}"))
            .output()
            .expect("this test starts");
        String::from_utf8_lossy(&output.stdout).contains(&sound)
    };
    assert!(is_sound(plans.len(), 0), "no plan is changed, and yet the results are others");
    let (start, step) = numbers(&std::env::var("LILY_EDGES").unwrap_or_else(|_| "0/28".to_owned()));
    let of_plan = |(plan, edges): (usize, &usize)| (start..*edges).step_by(step).map(move |edge| (plan, edge));
    let victims: Vec<(usize, usize)> = plans.iter().enumerate().flat_map(of_plan).collect();
    let (next, survivors) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(&(plan, edge)) = victims.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if is_sound(plan, edge) {
                        survivors.lock().expect("no panic holds it").push((plan, edge));
                    }
                }
            });
        }
    });
    let survivors = survivors.into_inner().expect("no panic holds it");
    println!("{} of {} noticed", victims.len() - survivors.len(), victims.len());
    assert!(survivors.is_empty(), "not noticed, as (plan, edge): {survivors:?}");
}

/// Which edge [`one_mutant`] leaves out, as `plan/edge`.
const VICTIM: &str = "LILY_EDGE";

#[test]
#[ignore = "every_edge_is_needed starts it"]
fn one_mutant() {
    println!("{:?}", outcome(Some(numbers(&std::env::var(VICTIM).expect("an edge")))).0);
}

fn numbers(text: &str) -> (usize, usize) {
    let (first, second) = text.split_once('/').expect("two numbers, as 0/16");
    (first.parse().expect("a number"), second.parse().expect("a number"))
}

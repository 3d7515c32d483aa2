//! Every edge of the plans is needed: without it, in an order that it forbade, the results change.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use lily_backend::{Backend, Draw, Output, Segment, Want};
use lily_checkpoint::Bytes;
use lily_gpu::GpuBackend;
use lily_gpu::device::{Buffer, Constant, Device, DeviceError, Limits, Range, Ticket, Tiles};
use lily_gpu::plan::Plan;
use lily_host::HostDevice;

use crate::support::{GREEDY, checkpoint, options, text};

/// A device that runs one plan without one of its edges: the later dispatch before the earlier one.
struct Mutant {
    device: HostDevice,
    /// Which of the plans prepared, and which of its edges.
    victim: Option<(usize, usize)>,
    /// Edges of the plans prepared so far.
    edges: Vec<usize>,
    /// A hash of all logits after each submission that makes some: an order that is wrong in the last layer of a step may
    /// change nothing else, and a drawn token hides most of that.
    logits: Vec<u64>,
}

/// Where a plan leaves logits.
fn logits_of(plan: &Plan) -> Option<Range> {
    let product = plan.dispatches.iter().find(|dispatch| dispatch.kernel.name.starts_with("logits_"));
    product.and_then(|dispatch| dispatch.ranges.last().copied())
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

    fn tiles(&self) -> Tiles {
        self.device.tiles()
    }

    fn fingerprint(&self) -> String {
        self.device.fingerprint()
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
        let ticket = self.device.submit(executable)?;
        if let Some(range) = logits_of(executable) {
            let mut bytes = vec![0; range.bytes as usize];
            self.device.read(range, &mut bytes)?;
            let mut hasher = DefaultHasher::new();
            bytes.hash(&mut hasher);
            self.logits.push(hasher.finish());
        }
        Ok(ticket)
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
    Results { drawn: Vec<u32>, logits: Vec<u64> },
    Failed,
}

/// Sequences that run together: prompts of so many tokens, then steps. It is about the first two plans that it needs; what
/// follows shows what they left.
struct Scenario {
    prompts: &'static [usize],
    steps: &'static [Step],
}

/// What each sequence appends.
#[derive(Clone, Copy)]
enum Step {
    /// A token, and another is drawn.
    Draw,
    /// A token, for its logits.
    Logits,
    /// A token and two drafts, which are verified; one draft in all sequences but the first.
    Drafts,
}

const SCENARIOS: [Scenario; 4] = [
    // The many-row plan and its head.
    Scenario { prompts: &[9], steps: &[Step::Draw] },
    // The few-row plan of one row, with a draw and without.
    Scenario { prompts: &[1], steps: &[Step::Draw, Step::Draw, Step::Logits, Step::Logits] },
    // As the first, with two sequences.
    Scenario { prompts: &[9, 12], steps: &[Step::Draw] },
    // Few rows of two sequences, and of several rows of each.
    Scenario { prompts: &[1, 1], steps: &[Step::Draw, Step::Drafts, Step::Draw] },
];

/// How many of a scenario's plans are changed.
const PLANS: usize = 2;

impl Scenario {
    fn run(&self, backend: &mut GpuBackend<Mutant>) -> Vec<u32> {
        let mut states: Vec<_> = self.prompts.iter().map(|_| backend.create().expect("a slot")).collect();
        let mut inputs: Vec<Vec<u32>> = (0..).zip(self.prompts).map(|(at, &length)| text(100 * at, length)).collect();
        let mut drawn = Vec::new();
        for (counter, step) in (0..).zip([Step::Draw].iter().chain(self.steps)) {
            let draws = Want::Sample(Draw { counter, ..GREEDY });
            if let Step::Drafts = step {
                inputs.iter_mut().enumerate().for_each(|(at, tokens)| tokens.extend(&[7, 8][at.min(1)..]));
            }
            let want = if let Step::Draw = step { draws } else { Want::Logits };
            let segments = states.iter_mut().zip(&inputs);
            let mut segments: Vec<_> = segments.map(|(state, tokens)| Segment { state, tokens, want }).collect();
            let outputs = backend.forward(&mut segments).expect("a sound call");
            let next = outputs.into_iter().map(|output| match output {
                Output::Sample(sample) => sample.token,
                _ => 5,
            });
            inputs = next.map(|token| vec![token]).collect();
            drawn.extend(inputs.concat());
        }
        drawn
    }
}

/// Runs a scenario; gives also the edges of its plans.
fn outcome(scenario: &Scenario, victim: Option<(usize, usize)>) -> (Outcome, Vec<usize>) {
    // Mutants run side by side already.
    let device = HostDevice::new(lily_host::Options { workers: 1, ..lily_host::Options::new(0) });
    let mutant = Mutant { device, victim, edges: Vec::new(), logits: Vec::new() };
    let mut backend = GpuBackend::new(mutant, checkpoint(), options(false)).expect("a backend");
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| scenario.run(&mut backend)));
    let Mutant { edges, logits, .. } = backend.device();
    let outcome = match result {
        Ok(drawn) => Outcome::Results { drawn, logits: logits.clone() },
        Err(_) => Outcome::Failed,
    };
    (outcome, edges[..PLANS].to_vec())
}

/// A few of the edges of each plan, or those that `LILY_EDGES` asks for, as `0/8` for each eighth from the first on;
/// `0/1` is all of them, which takes minutes.
/// Each mutant is a process of its own: what reads garbage for an index may well crash.
#[test]
fn every_edge_is_needed() {
    let [start, step] = std::env::var("LILY_EDGES").map_or([3, 56], |share| numbers(&share));
    let (mut victims, mut sound) = (Vec::new(), Vec::new());
    for (number, scenario) in SCENARIOS.iter().enumerate() {
        let (results, plans) = outcome(scenario, None);
        assert!(matches!(results, Outcome::Results { .. }));
        sound.push(format!("{results:?}"));
        // A plan too short for the share gives its last edge.
        let shares = |edges: usize| (start.min(edges - 1)..edges).step_by(step);
        let of_plan = |(plan, &edges): (usize, &usize)| shares(edges).map(move |edge| [number, plan, edge]);
        victims.extend(plans.iter().enumerate().flat_map(of_plan));
    }
    assert!(is_sound([1, usize::MAX, 0], &sound), "no plan is changed, and yet the results are others");
    let (next, survivors) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(&victim) = victims.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if is_sound(victim, &sound) {
                        survivors.lock().expect("no panic holds it").push(victim);
                    }
                }
            });
        }
    });
    let survivors = survivors.into_inner().expect("no panic holds it");
    println!("{} of {} noticed", victims.len() - survivors.len(), victims.len());
    assert!(survivors.is_empty(), "not noticed, as [scenario, plan, edge]: {survivors:?}");
}

/// Whether a mutant gives what its scenario gives without a change.
fn is_sound(victim: [usize; 3], sound: &[String]) -> bool {
    let output = Command::new(std::env::current_exe().expect("this test's path"))
        .args(["--exact", "edges::one_mutant", "--ignored", "--nocapture"])
        .env(VICTIM, victim.map(|number| number.to_string()).join("/"))
        .output()
        .expect("this test starts");
    String::from_utf8_lossy(&output.stdout).contains(&sound[victim[0]])
}

/// Which edge [`one_mutant`] leaves out, as `scenario/plan/edge`.
const VICTIM: &str = "LILY_EDGE";

#[test]
#[ignore = "every_edge_is_needed starts it"]
fn one_mutant() {
    let [scenario, plan, edge] = numbers(&std::env::var(VICTIM).expect("an edge"));
    println!("{:?}", outcome(&SCENARIOS[scenario], Some((plan, edge))).0);
}

fn numbers<const COUNT: usize>(text: &str) -> [usize; COUNT] {
    let numbers: Vec<usize> = text.split('/').map(|number| number.parse().expect("a number")).collect();
    numbers.try_into().expect("so many numbers, as 0/16")
}

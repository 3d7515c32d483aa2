//! Greedy tokens after prompts of many lengths, on both backends.
//!
//! The prompts are the beginnings of one text, so that none is read from its start: a sequence begins where a prefix cache
//! would resume, after the last whole grain of its prompt. Eight sequences go on together, with a step running ahead. All go
//! on with the CPU's tokens, whatever the GPU draws, so that every position is compared.
#![allow(unreachable_pub)]

use std::ops::AddAssign;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use lily_backend::{Backend, Draw, Output, Sample, Segment, Want};
use lily_cpu::CpuBackend;
use lily_gpu::GpuBackend;
use lily_host::HostDevice;

use crate::APART;
use crate::support::{GREEDY, checkpoint, run, text};

/// The longest prompt and what follows it.
const CONTEXT: usize = 600 + 64;
/// Sequences that go on together.
const TOGETHER: usize = 8;
/// Of the CPU's most probable tokens, how many the GPU's is looked for among.
const LIKELY: usize = 4;

/// Greedy choices beside the CPU's.
#[derive(Debug, Default)]
pub struct Greedy {
    pub positions: usize,
    pub equal: usize,
    /// Where they were not: the prompt's length, how many tokens were drawn before, and by how much the CPU prefers its own.
    others: Vec<(usize, u64, f32)>,
}

impl AddAssign for Greedy {
    fn add_assign(&mut self, mut other: Self) {
        self.positions += other.positions;
        self.equal += other.equal;
        self.others.append(&mut other.others);
    }
}

impl Greedy {
    /// A position: the GPU's choice, and the CPU's with its runners-up.
    fn add(&mut self, length: usize, step: u64, found: u32, expected: &Sample) {
        self.positions += 1;
        if found == expected.token {
            self.equal += 1;
            return;
        }
        let likely = expected.top.iter().find(|likely| likely.token == found);
        let behind = likely.map_or(f32::INFINITY, |likely| expected.top[0].logprob - likely.logprob);
        self.others.push((length, step, behind));
        let place = format!("after {length} tokens and {step} drawn");
        assert!(behind < APART, "{place}: {found}, which the CPU has {behind} behind its own");
    }
}

/// `steps` draws after prompts of each of the lengths, which ascend.
pub fn compare(lengths: &[usize], steps: u64) -> Greedy {
    assert!(lengths.is_sorted(), "a prompt goes on from the one before");
    let groups: Vec<_> = lengths.chunks(TOGETHER).collect();
    let (next, all) = (AtomicUsize::new(0), Mutex::new(Greedy::default()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from).min(groups.len()) {
            scope.spawn(|| {
                let mut pair = Readers::new();
                while let Some(group) = groups.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = pair.compare(group, steps);
                    println!("{group:?}: {found:?}");
                    *all.lock().expect("no panic holds it") += found;
                }
            });
        }
    });
    all.into_inner().expect("no panic holds it")
}

/// A backend and how far the text has been read on it.
struct Reader<B: Backend> {
    backend: B,
    base: B::State,
    held: usize,
}

impl<B: Backend> Reader<B> {
    fn new(mut backend: B) -> Self {
        Self { base: backend.create().expect("a slot"), backend, held: 0 }
    }

    /// A sequence of the text's first `whole` tokens; they never become fewer.
    fn begin(&mut self, whole: usize) -> B::State {
        if whole == 0 {
            return self.backend.create().expect("a slot");
        }
        if self.held < whole {
            let tokens = text(self.held, whole - self.held);
            run(&mut self.backend, &mut self.base, &tokens, Want::Nothing);
            self.held = whole;
        }
        let snapshot = self.backend.snapshot(&self.base).expect("memory");
        self.backend.restore(&snapshot).expect("a slot")
    }

    fn draw(&mut self, states: &mut [B::State], inputs: &[Vec<u32>], draw: Draw<'_>) -> Vec<Sample> {
        let want = Want::Sample(draw);
        let segments = states.iter_mut().zip(inputs);
        let mut segments: Vec<_> = segments.map(|(state, tokens)| Segment { state, tokens, want }).collect();
        let outputs = self.backend.forward(&mut segments).expect("a sound call");
        let samples = outputs.into_iter().map(|output| match output {
            Output::Sample(sample) => sample,
            other => panic!("asked for a sample, got {other:?}"),
        });
        samples.collect()
    }
}

/// Both.
struct Readers {
    gpu: Reader<GpuBackend<HostDevice>>,
    cpu: Reader<CpuBackend>,
}

impl Readers {
    fn new() -> Self {
        // As many of these as there are processors.
        let device = HostDevice::new(lily_host::Options { workers: 1, late: true, ..lily_host::Options::new(0) });
        let options = lily_gpu::Options { prefill_rows: 512, ..lily_gpu::Options::new(CONTEXT, TOGETHER + 1) };
        let gpu = GpuBackend::new(device, checkpoint(), options).expect("a backend");
        let options = lily_cpu::Options { threads: 1, max_context: CONTEXT, simd: None };
        let cpu = CpuBackend::new(Arc::clone(checkpoint()), options).expect("threads");
        Self { gpu: Reader::new(gpu), cpu: Reader::new(cpu) }
    }

    /// At most [`TOGETHER`] prompts, none shorter than those before.
    fn compare(&mut self, lengths: &[usize], steps: u64) -> Greedy {
        let grain = self.gpu.backend.description().grain;
        let whole = |length: usize| (length - 1) / grain * grain;
        let mut on_gpu: Vec<_> = lengths.iter().map(|&length| self.gpu.begin(whole(length))).collect();
        let mut on_cpu: Vec<_> = lengths.iter().map(|&length| self.cpu.begin(whole(length))).collect();
        let mut inputs: Vec<_> = lengths.iter().map(|&length| text(whole(length), length - whole(length))).collect();
        let mut greedy = Greedy::default();
        for step in 0..steps {
            let draw = Draw { counter: step, ..GREEDY };
            let found = self.gpu.draw(&mut on_gpu, &inputs, draw);
            let expected = self.cpu.draw(&mut on_cpu, &inputs, Draw { top_logprobs: Some(LIKELY), ..draw });
            for ((&length, found), expected) in lengths.iter().zip(found).zip(&expected) {
                greedy.add(length, step, found.token, expected);
            }
            inputs = expected.into_iter().map(|sample| vec![sample.token]).collect();
        }
        greedy
    }
}

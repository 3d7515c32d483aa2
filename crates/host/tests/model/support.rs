//! The embedded checkpoint on both backends, text to feed them, and how near they are.
#![allow(unreachable_pub)]

use std::sync::{Arc, OnceLock};

use lily_backend::{Backend, Draw, Output, Segment, Want};
use lily_checkpoint::Checkpoint;
use lily_cpu::CpuBackend;
use lily_gpu::GpuBackend;
use lily_host::HostDevice;

use crate::tensors::Tensors;

/// Tokens a sequence may hold.
pub const CONTEXT: usize = 1024;
/// Sequences at once.
pub const SEQUENCES: usize = crate::draws::SEQUENCES;
/// Greedy, over the ids the tiny model can print.
pub const GREEDY: Draw<'static> = Draw::greedy(6113);

pub fn checkpoint() -> &'static Arc<Checkpoint> {
    static CHECKPOINT: OnceLock<Arc<Checkpoint>> = OnceLock::new();
    CHECKPOINT.get_or_init(|| Arc::new(Checkpoint::embedded().expect("the embedded checkpoint is whole")))
}

pub fn options(run_ahead: bool) -> lily_gpu::Options {
    lily_gpu::Options { prefill_rows: 128, run_ahead, ..lily_gpu::Options::new(CONTEXT, SEQUENCES) }
}

/// A backend whose dispatches run in orders of this seed; one that runs ahead, on a device that does nothing before it is
/// waited for.
pub fn gpu(seed: u64, run_ahead: bool) -> GpuBackend<HostDevice> {
    let device = HostDevice::new(lily_host::Options { late: run_ahead, ..lily_host::Options::new(seed) });
    GpuBackend::new(device, checkpoint(), options(run_ahead)).expect("a backend")
}

/// As [`gpu`], by the kernels of Metal 4's tensor operations where there are any; not running ahead.
pub fn with_tensor_tiles(seed: u64) -> GpuBackend<HostDevice> {
    let device = HostDevice::new(lily_host::Options { tensor_tiles: true, ..lily_host::Options::new(seed) });
    GpuBackend::new(device, checkpoint(), options(false)).expect("a backend")
}

/// Tokens of the evaluation text.
pub fn text(first: usize, count: usize) -> Vec<u32> {
    static IDS: OnceLock<Vec<u32>> = OnceLock::new();
    let ids = IDS.get_or_init(|| Tensors::load("reference.safetensors").ids("eval.ids"));
    ids[first..first + count].to_vec()
}

/// Runs one segment.
pub fn run<B: Backend>(backend: &mut B, state: &mut B::State, tokens: &[u32], want: Want<'_>) -> Output {
    let mut outputs = backend.forward(&mut [Segment { state, tokens, want }]).expect("a sound segment");
    outputs.pop().expect("one output for one segment")
}

/// The logits of every position.
pub fn logits<B: Backend>(backend: &mut B, state: &mut B::State, tokens: &[u32]) -> Vec<f32> {
    match run(backend, state, tokens, Want::Logits) {
        Output::Logits(logits) => logits,
        other => panic!("asked for logits, got {other:?}"),
    }
}

/// Appends tokens and gives the greedy choice after the last.
pub fn next<B: Backend>(backend: &mut B, state: &mut B::State, tokens: &[u32], counter: u64) -> u32 {
    match run(backend, state, tokens, Want::Sample(Draw { counter, ..GREEDY })) {
        Output::Sample(sample) => sample.token,
        other => panic!("asked for a sample, got {other:?}"),
    }
}

/// A greedy continuation of `length` tokens after the last of `tokens`.
pub fn continuation<B: Backend>(backend: &mut B, state: &mut B::State, tokens: &[u32], length: usize) -> Vec<u32> {
    let mut found = vec![next(backend, state, tokens, 0)];
    while found.len() < length {
        let last = [found[found.len() - 1]];
        found.push(next(backend, state, &last, found.len() as u64));
    }
    found
}

/// How near logits are to the CPU's.
#[derive(Debug, Default)]
pub struct Agreement {
    pub mean: f32,
    pub largest: f32,
    /// By how much the distance between the CPU's two largest is off at most.
    pub distance: f32,
    /// Positions where the CPU's two largest are apart, and how many of them have the same largest.
    pub clear: usize,
    pub clear_equal: usize,
}

impl Agreement {
    pub fn new(ours: &[f32], theirs: &[f32], vocabulary: usize) -> Self {
        let mut agreement = Self::default();
        for (ours, theirs) in ours.chunks(vocabulary).zip(theirs.chunks(vocabulary)) {
            let [best, second] = two_largest(theirs);
            let distances = [theirs, ours].map(|logits| logits[best] - logits[second]);
            agreement.distance = agreement.distance.max((distances[0] - distances[1]).abs());
            if distances[0] > super::APART {
                agreement.clear += 1;
                agreement.clear_equal += usize::from(two_largest(ours)[0] == best);
            }
        }
        assert_eq!(ours.len(), theirs.len());
        let count = theirs.len() as f32;
        for (ours, theirs) in ours.iter().zip(theirs) {
            let difference = (ours - theirs).abs();
            // A NaN is as far as can be.
            agreement.largest = if difference.is_nan() { f32::INFINITY } else { agreement.largest.max(difference) };
            agreement.mean += difference / count;
        }
        agreement
    }
}

fn two_largest(logits: &[f32]) -> [usize; 2] {
    let mut largest = [0, 0];
    for (id, &logit) in logits.iter().enumerate().skip(1) {
        if logit > logits[largest[0]] {
            largest = [id, largest[0]];
        } else if largest[0] == largest[1] || logit > logits[largest[1]] {
            largest[1] = id;
        }
    }
    largest
}

/// The same sequence on both.
pub struct Pair {
    gpu: GpuBackend<HostDevice>,
    on_gpu: lily_gpu::State,
    cpu: CpuBackend,
    on_cpu: lily_cpu::State,
}

impl Pair {
    pub fn new() -> Self {
        Self::of(gpu(0, true))
    }

    /// As `new`, with tensor tiles.
    pub fn with_tensor_tiles() -> Self {
        Self::of(with_tensor_tiles(0))
    }

    fn of(mut gpu: GpuBackend<HostDevice>) -> Self {
        let options = lily_cpu::Options { threads: 2, max_context: CONTEXT, simd: None };
        let mut cpu = CpuBackend::new(Arc::clone(checkpoint()), options).expect("threads");
        Self { on_gpu: gpu.create().expect("a slot"), on_cpu: cpu.create().expect("memory"), gpu, cpu }
    }

    /// Appends the tokens on both and compares the logits of each.
    pub fn compare_logits(&mut self, tokens: &[u32]) -> Agreement {
        let theirs = logits(&mut self.cpu, &mut self.on_cpu, tokens);
        let ours = logits(&mut self.gpu, &mut self.on_gpu, tokens);
        Agreement::new(&ours, &theirs, self.gpu.description().logits)
    }
}

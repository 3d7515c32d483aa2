//! Devices, text, and how near two backends are.

use std::env;
use std::path::PathBuf;
use std::sync::OnceLock;

use lily_backend::{Backend, Draw, Output, Segment, Want};
use lily_checkpoint::{Checkpoint, Config, LayerKind, Weights};
use lily_gpu::device::cuda::{self, CudaDevice, Options};
use lily_gpu::device::{Device, Tiles};

use crate::common::tensors::Tensors;

/// Ids that the embedded model can print.
pub(crate) const TINY_VOCABULARY: usize = 6113;

/// The first GPU, or none with a word about it.
pub(crate) fn device() -> Option<CudaDevice> {
    device_with(Options::default())
}

/// It in another way than usual.
pub(crate) fn device_with(options: Options) -> Option<CudaDevice> {
    if cuda::count() == 0 {
        println!("SKIPPED: no NVIDIA GPU with a driver is here");
        return None;
    }
    let serial = env::var_os("LILY_CUDA_SERIAL").is_some_and(|value| value == "1");
    let device = CudaDevice::open(Options { serial, ..options });
    Some(device.unwrap_or_else(|error| panic!("{error}")))
}

/// What the first GPU makes products of, and what every other does: the kernels of both run on it. Of no GPU, nothing.
pub(crate) fn tiles() -> Vec<Tiles> {
    let own = device().map(|device| device.tiles());
    let plain = own.filter(|own| *own != Tiles::Simdgroup).map(|_| Tiles::Simdgroup);
    own.into_iter().chain(plain).collect()
}

/// A path in this crate, wherever the checkout is when the test runs.
pub(crate) fn in_crate(path: &str) -> PathBuf {
    env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from).join(path)
}

/// Tokens of the tiny model's evaluation text.
pub(crate) fn text(first: usize, count: usize) -> Vec<u32> {
    static IDS: OnceLock<Vec<u32>> = OnceLock::new();
    let ids = IDS.get_or_init(|| Tensors::load("reference.safetensors").ids("eval.ids"));
    ids[first..first + count].to_vec()
}

/// Tokens without a meaning, others for each seed.
pub(crate) fn tokens(seed: usize, vocabulary: usize, count: usize) -> Vec<u32> {
    (0..count).map(|place| ((place * 7919 + seed * 104_729 + 13) % vocabulary) as u32).collect()
}

/// A checkpoint with as many layers of one kind as it has, `most` at most.
pub(crate) fn layers_of(checkpoint: &Checkpoint, kind: LayerKind, most: usize) -> (Config, Weights) {
    let (mut config, mut weights) = (checkpoint.config.clone(), checkpoint.weights.clone());
    let mut kinds = checkpoint.config.layers.iter();
    weights.layers.retain(|_| kinds.next() == Some(&kind));
    weights.layers.truncate(most);
    config.layers = vec![kind; weights.layers.len()];
    (config, weights)
}

/// Runs one segment.
pub(crate) fn run<B: Backend>(backend: &mut B, state: &mut B::State, tokens: &[u32], want: Want<'_>) -> Output {
    let outputs = backend.forward(&mut [Segment { state, tokens, want }]);
    outputs.unwrap_or_else(|error| panic!("{error}")).pop().expect("one output for one segment")
}

/// The logits of every position.
pub(crate) fn logits<B: Backend>(backend: &mut B, state: &mut B::State, tokens: &[u32]) -> Vec<f32> {
    match run(backend, state, tokens, Want::Logits) {
        Output::Logits(logits) => logits,
        other => panic!("asked for logits, got {other:?}"),
    }
}

/// The greedy choice after `tokens`, and by how much the best is ahead of the second if the backend was asked.
pub(crate) fn next<B: Backend>(backend: &mut B, state: &mut B::State, tokens: &[u32], draw: Draw<'_>) -> (u32, f32) {
    match run(backend, state, tokens, Want::Sample(draw)) {
        Output::Sample(sample) => {
            let ahead = if let [best, second, ..] = &sample.top[..] { best.logprob - second.logprob } else { 0.0 };
            (sample.token, ahead)
        }
        other => panic!("asked for a sample, got {other:?}"),
    }
}

/// Greedy over a vocabulary.
pub(crate) const fn greedy(vocabulary: usize, counter: u64) -> Draw<'static> {
    Draw { counter, ..Draw::greedy(vocabulary) }
}

/// Whether two lists of floats are the same to the bit.
pub(crate) fn same_bits(ours: &[f32], theirs: &[f32]) -> bool {
    ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(ours, theirs)| ours.to_bits() == theirs.to_bits())
}

/// How near logits are to the CPU's.
#[derive(Debug, Default)]
pub(crate) struct Agreement {
    /// Length of the difference over that of the CPU's logits.
    pub(crate) relative: f64,
    /// The same of each position, the median: a position where another expert was chosen counts once.
    pub(crate) median: f64,
    pub(crate) largest: f32,
    pub(crate) mean: f64,
    /// Positions, those with the same largest, those where the CPU's two largest are apart, and the same among those.
    pub(crate) positions: usize,
    pub(crate) equal: usize,
    pub(crate) clear: usize,
    pub(crate) clear_equal: usize,
}

impl Agreement {
    pub(crate) fn new(ours: &[f32], theirs: &[f32], vocabulary: usize, apart: f32) -> Self {
        assert_eq!(ours.len(), theirs.len());
        let mut agreement = Self::default();
        for (ours, theirs) in ours.chunks(vocabulary).zip(theirs.chunks(vocabulary)) {
            let [best, second] = two_largest(theirs);
            let equal = usize::from(two_largest(ours)[0] == best);
            let clear = usize::from(theirs[best] - theirs[second] > apart);
            agreement.positions += 1;
            agreement.equal += equal;
            agreement.clear += clear;
            agreement.clear_equal += equal * clear;
        }
        let difference = |(&ours, &theirs): (&f32, &f32)| (ours - theirs).abs();
        // A NaN is as far as can be.
        let farther = |far: f32, one: f32| if one.is_nan() { f32::INFINITY } else { far.max(one) };
        agreement.largest = ours.iter().zip(theirs).map(difference).fold(0.0, farther);
        agreement.mean = ours.iter().zip(theirs).map(difference).map(f64::from).sum::<f64>() / theirs.len() as f64;
        agreement.relative = relative(ours, theirs);
        let rows = ours.chunks(vocabulary).zip(theirs.chunks(vocabulary));
        let mut each: Vec<f64> = rows.map(|(ours, theirs)| relative(ours, theirs)).collect();
        each.sort_by(f64::total_cmp);
        agreement.median = each[each.len() / 2];
        agreement
    }

    /// The root of the mean square of the difference.
    pub(crate) fn root_mean_square(ours: &[f32], theirs: &[f32]) -> f64 {
        let squares = ours.iter().zip(theirs).map(|(ours, theirs)| f64::from(ours - theirs).powi(2));
        (squares.sum::<f64>() / theirs.len() as f64).sqrt()
    }
}

/// Length of the difference over that of `theirs`.
pub(crate) fn relative(ours: &[f32], theirs: &[f32]) -> f64 {
    let square = |value: f32| f64::from(value).powi(2);
    let difference: f64 = ours.iter().zip(theirs).map(|(ours, theirs)| square(ours - theirs)).sum();
    (difference / theirs.iter().copied().map(square).sum::<f64>()).sqrt()
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

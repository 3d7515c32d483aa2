//! Every kernel of the library runs, in few tokens, by all ways that a step can take through the model: what a sanitizer is to
//! look at (tools/kernels/sanitizer.sh), and what shows that it has seen all.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use lily_backend::{Adjustment, Backend, Draw, Output, Sampling, Segment, TokenSet, Want};
use lily_checkpoint::{Checkpoint, Config, LayerKind, Mixer, Weights};
use lily_gpu::device::cuda;
use lily_gpu::device::{Device, Tiles};
use lily_gpu::{GpuBackend, Options, Shapes, State};

use crate::full;
use crate::support::{TINY_VOCABULARY, device, same_bits, tiles};
use crate::watched::{Seen, Watch, Watched};

/// As many as a few-row step has rows.
const SEQUENCES: usize = 8;

/// A model of one layer of each kind: more of them would only be more for a sanitizer to do.
struct Model {
    config: Config,
    weights: Weights,
    vocabulary: usize,
    /// Rows of the longest step.
    long: usize,
    /// Kernels of which kind run.
    tiles: Vec<Tiles>,
}

impl Model {
    fn new(checkpoint: &Checkpoint, vocabulary: usize, long: usize, tiles: Vec<Tiles>) -> Self {
        let (mut config, mut weights) = (checkpoint.config.clone(), checkpoint.weights.clone());
        let first = |delta_net: bool| {
            let found = weights.layers.iter().find(|layer| matches!(layer.mixer, Mixer::DeltaNet(_)) == delta_net);
            found.expect("a layer of each kind").clone()
        };
        weights.layers = [true, false].map(first).into();
        config.layers = vec![LayerKind::DeltaNet, LayerKind::Attention];
        Self { config, weights, vocabulary, long, tiles }
    }

    /// Both kinds, and enough rows for the wider of the experts' tiles and for two blocks of attention's context.
    fn tiny() -> Self {
        Self::new(&Checkpoint::embedded().expect("the embedded checkpoint is whole"), TINY_VOCABULARY, 320, tiles())
    }

    /// The device's own kind, and as few rows as reach them.
    fn large() -> Option<Self> {
        let own: Vec<Tiles> = tiles().into_iter().take(1).collect();
        let checkpoint = full::checkpoint().filter(|_| !own.is_empty())?;
        Some(Self::new(&checkpoint, checkpoint.config.vocab_size, 128, own))
    }

    /// All ways with each kind of kernels; gives the logits that were told on them.
    fn run(&self, watch: impl Fn(Tiles) -> Watch, seen: &Seen) -> Vec<f32> {
        let backend = |watch| {
            let options = Options { prefill_rows: self.long, ..Options::new(self.long + 64, SEQUENCES) };
            let device = Watched::new(device().expect("a GPU"), watch, Arc::clone(seen));
            let gpu = GpuBackend::from_weights(device, &self.config, &self.weights, options);
            gpu.unwrap_or_else(|error| panic!("{error}"))
        };
        let mut told = Vec::new();
        for &tiles in &self.tiles {
            told.extend(all_ways(&mut backend(watch(tiles)), self));
            if tiles == Tiles::Simdgroup {
                let mut gpu = backend(Watch { least_tiles: true, ..watch(tiles) });
                let mut state = gpu.create().expect("a slot");
                told.extend(step(&mut gpu, std::slice::from_mut(&mut state), &[20], Want::Logits));
            }
        }
        told
    }

    /// Says which kernels of the device's own library were seen; those that were not are some that these shapes leave out.
    fn check(&self, seen: &Seen, left_out: impl Fn(&str) -> bool) {
        // One text has the same kernels for all but Hopper.
        let architecture = if self.tiles[0] == Tiles::Warpgroup { "sm_90a" } else { "sm_80" };
        let constants = Shapes::new(&self.config).expect("supported").constants();
        let code = cuda::compile(architecture, &constants).unwrap_or_else(|error| panic!("{error}"));
        let (all, seen) = (kernels_in(&code), seen.lock().expect("no panic"));
        for name in &all {
            println!("{} {name}", if seen.contains(name.as_str()) { "ran" } else { "not run" });
        }
        println!("{} of {} kernels ran", seen.len(), all.len());
        let unknown: Vec<_> = seen.iter().filter(|name| !all.contains(**name)).collect();
        assert!(!all.is_empty() && unknown.is_empty(), "ran, but are not in the library: {unknown:?}");
        let missing: Vec<_> = all.iter().filter(|name| !seen.contains(name.as_str()) && !left_out(name)).collect();
        assert!(missing.is_empty(), "did not run: {missing:?}");
    }
}

/// So many tokens more for each of the first sequences; gives the logits that were asked for.
fn step<D: Device>(gpu: &mut GpuBackend<D>, states: &mut [State], counts: &[usize], want: Want<'_>) -> Vec<f32> {
    let start = Instant::now();
    let prompts: Vec<Vec<u32>> =
        counts.iter().map(|&count| (0..count as u32).map(|id| 7 + id * 11).collect()).collect();
    let segments = states.iter_mut().zip(&prompts).map(|(state, tokens)| Segment { state, tokens, want });
    let outputs = gpu.forward(&mut segments.collect::<Vec<_>>()).unwrap_or_else(|error| panic!("{error}"));
    // A sanitizer's way is long.
    println!("{counts:?} tokens in {:.1?}", start.elapsed());
    let logits = outputs.into_iter().flat_map(|output| match output {
        Output::Logits(logits) => logits,
        Output::Nothing | Output::Sample(_) => Vec::new(),
        Output::NoFiniteLogit => panic!("no logit is finite"),
    });
    logits.collect()
}

/// All ways; gives the logits that were told on them.
fn all_ways<D: Device>(gpu: &mut GpuBackend<D>, &Model { vocabulary, long, .. }: &Model) -> Vec<f32> {
    let mut states: Vec<State> = (0..SEQUENCES).map(|_| gpu.create().expect("a slot")).collect();
    step(gpu, &mut states, &[long + 1], Want::Nothing);
    step(gpu, &mut states[1..], &[33, 12, 65], Want::Nothing);
    let mut told = step(gpu, &mut states[4..], &[30], Want::Logits);

    let allowed: TokenSet = (0..vocabulary as u32).filter(|token| token % 7 == 3).collect();
    let adjustments = [(200, 4.0), (7, -2.0)];
    let adjustments = adjustments.map(|(token, add)| Adjustment { token, repetition: 1.1, add, add_once_drawn: add });
    let sampling = Sampling { temperature: 0.7, top_k: 50, top_p: 0.8, min_p: 0.01 };
    let greedy = Draw::greedy(vocabulary);
    let chosen = Draw { sampling, adjustments: &adjustments, allowed: Some(&allowed), top_logprobs: Some(0), ..greedy };
    for rows in [1, 2, 3, SEQUENCES] {
        for want in [Want::Logits, Want::Sample(greedy), Want::Sample(chosen)] {
            told.extend(step(gpu, &mut states, &vec![1; rows], want));
        }
    }
    told.extend(step(gpu, &mut states, &[5], Want::Logits));
    assert!(told.iter().all(|logit| logit.is_finite()));
    told
}

/// The kernels that machine code has, by the names of its sections.
fn kernels_in(code: &[u8]) -> BTreeSet<String> {
    const SECTION: &[u8] = b"\0.text.lily_";
    let found = (0..code.len()).filter(|&place| code[place..].starts_with(SECTION)).map(|place| place + SECTION.len());
    found
        .map(|place| code[place..].iter().take_while(|byte| **byte != 0).map(|&byte| char::from(byte)).collect())
        .collect()
}

/// The 35B's widths alone have these.
fn needs_the_large(name: &str) -> bool {
    name.contains("_bytes")
}

fn every_kernel(model: &Model, left_out: impl Fn(&str) -> bool) {
    let seen = Seen::default();
    model.run(Watch::new, &seen);
    model.check(&seen, left_out);
}

#[test]
fn every_kernel_runs() {
    if !tiles().is_empty() {
        every_kernel(&Model::tiny(), needs_the_large);
    }
}

#[test]
fn large_every_kernel_runs() {
    if let Some(model) = Model::large() {
        every_kernel(&model, |name| !needs_the_large(name));
    }
}

/// A kernel that reads more than its dispatch names would meet other bytes there, and what it wrote beside it would be lost; a
/// sanitizer sees either. Nor does it matter what was in memory that nobody wrote.
fn kernels_keep_to_their_ranges(model: &Model, left_out: impl Fn(&str) -> bool) {
    let seen = Seen::default();
    let together = |tiles| Watch { filled_with: Some(0), ..Watch::new(tiles) };
    // Both halves and floats of such bytes are not numbers.
    let confined = |tiles| Watch { filled_with: Some(0xff), confined: true, ..Watch::new(tiles) };
    assert!(same_bits(&model.run(together, &seen), &model.run(confined, &seen)));
    model.check(&seen, left_out);
}

#[test]
fn kernels_keep_to_the_ranges_of_their_dispatches() {
    if !tiles().is_empty() {
        kernels_keep_to_their_ranges(&Model::tiny(), needs_the_large);
    }
}

#[test]
fn large_kernels_keep_to_the_ranges_of_their_dispatches() {
    if let Some(model) = Model::large() {
        kernels_keep_to_their_ranges(&model, |name| !needs_the_large(name));
    }
}

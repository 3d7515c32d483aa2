//! Every kernel of the library runs, in few tokens, by all ways that a step can take through the model: what a sanitizer is to
//! look at (tools/kernels/sanitizer.sh), and what shows that it has seen all.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use lily_backend::{Adjustment, Backend, Draw, Output, Sampling, Segment, TokenSet, Want};
use lily_checkpoint::{Bytes, Checkpoint, Config, LayerKind, Matrices, Mixer, Weights};
use lily_gpu::device::cuda;
use lily_gpu::device::{Device, Tiles};
use lily_gpu::{GpuBackend, Options, Shapes, State};

use crate::full;
use crate::support::{TINY_VOCABULARY, device, same_bits, tiles};
use crate::watched::{Seen, Watch, Watched};

/// As many as a few-row step has rows.
const SEQUENCES: usize = 8;

/// What the 35B has left of its vocabulary: its logits are most of what a step of few rows reads. A block of the kernel that
/// multiplies bytes still has more tiles than are on their way at once. (tools/kernels/sanitizer.sh knows this number as well.)
const LARGE_VOCABULARY: usize = 16_384;
/// The experts that its tokens choose, so that a prompt does not read all of them.
const LARGE_CHOICE: usize = 32;

/// What a Hopper GPU runs in steps of few rows, beside the kernels with `_bytes` in their names.
const EARLY: [&str; 4] = ["attention_join", "attention_pieces", "attention_prepare_early", "delta_step_split"];
/// In whose place it has its own, for the 35B's widths: of few rows, and of many. Numbers at the end of names are left out.
const FEW_ELSEWHERE: [&str; 9] = [
    "attention_block",
    "attention_combine",
    "delta_step",
    "experts_down",
    "experts_up",
    "logits",
    "project_add",
    "project_norm",
    "router",
];
const MANY_ELSEWHERE: [&str; 6] =
    ["attention_prefill", "delta_scan", "experts_gemm_down", "experts_gemm_up", "gemm_q4", "gemm_q4_add"];

/// The steps that are made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Steps {
    All,
    OfFewRows,
}

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

    /// Both kinds, and enough rows for the largest tiles, the router's, and for two blocks of attention's context.
    fn tiny() -> Self {
        Self::new(&Checkpoint::embedded().expect("the embedded checkpoint is whole"), TINY_VOCABULARY, 544, tiles())
    }

    /// The device's own kind, in steps of up to `long` rows; as little of the weights as leaves the kernels their widths.
    fn large(long: usize) -> Option<Self> {
        let own: Vec<Tiles> = tiles().into_iter().take(1).collect();
        let checkpoint = full::checkpoint().filter(|_| !own.is_empty())?;
        // Elsewhere than on Hopper experts have wider tiles from 512 rows on; there those of the embedded model are enough.
        let long = if own[0] == Tiles::Warpgroup { long } else { 512 };
        let mut model = Self::new(&checkpoint, LARGE_VOCABULARY, long, own);
        cut_vocabulary(&mut model.config, &mut model.weights);
        model.weights.layers.iter_mut().for_each(|layer| make_zero_from(&mut layer.moe.gate, LARGE_CHOICE));
        Some(model)
    }

    /// Each kind of kernels; gives the logits that were told on the way.
    fn run(&self, steps: Steps, watch: impl Fn(Tiles) -> Watch, seen: &Seen) -> Vec<f32> {
        let backend = |watch| {
            let options = Options { prefill_rows: self.long, ..Options::new(self.long + 64, SEQUENCES) };
            let device = Watched::new(device().expect("a GPU"), watch, Arc::clone(seen));
            let gpu = GpuBackend::from_weights(device, &self.config, &self.weights, options);
            gpu.unwrap_or_else(|error| panic!("{error}"))
        };
        let mut told = Vec::new();
        for &tiles in &self.tiles {
            told.extend(all_ways(&mut backend(watch(tiles)), self, steps));
            if tiles == Tiles::Simdgroup && steps == Steps::All {
                let mut gpu = backend(Watch { least_tiles: true, ..watch(tiles) });
                let mut state = gpu.create().expect("a slot");
                told.extend(step(&mut gpu, std::slice::from_mut(&mut state), &[20], Want::Logits));
            }
        }
        told
    }

    /// Whether it has Hopper's kernels.
    fn has_warpgroups(&self) -> bool {
        self.tiles[0] == Tiles::Warpgroup
    }

    /// Of the 35B's widths: whether a Hopper GPU has its own in the kernel's place, or it takes more than the test does.
    fn is_elsewhere(&self, name: &str) -> bool {
        let elsewhere = FEW_ELSEWHERE.contains(&family(name)) || MANY_ELSEWHERE.contains(&family(name));
        let longer = self.long <= 512 && LONG_STEPS.contains(&name) || name == LONG_CONTEXT;
        self.has_warpgroups() && (elsewhere || longer)
    }

    /// Of the 35B's widths: whether steps of few rows are made of it.
    fn is_of_few_rows(&self, name: &str) -> bool {
        if self.has_warpgroups() {
            name.contains("_bytes") || EARLY.contains(&name)
        } else {
            FEW_ELSEWHERE.contains(&family(name))
        }
    }

    /// Says which kernels of the device's own library were seen; those that were not are some that may be left out.
    fn check(&self, seen: &Seen, left_out: impl Fn(&str) -> bool) {
        // One text has the same kernels for all but Hopper.
        let architecture = if self.has_warpgroups() { "sm_90a" } else { "sm_80" };
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

/// A kernel's name without the number at its end.
fn family(name: &str) -> &str {
    match name.rsplit_once('_') {
        Some((family, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => family,
        _ => name,
    }
}

/// Leaves the first tokens of a large vocabulary.
pub(crate) fn cut_vocabulary(config: &mut Config, weights: &mut Weights) {
    config.vocab_size = LARGE_VOCABULARY;
    [&mut weights.embed_tokens, &mut weights.lm_head].into_iter().for_each(keep_rows);
}

/// As many rows as the vocabulary has left.
fn keep_rows(matrix: &mut Matrices) {
    let part = |bytes: &Bytes, rows: usize| bytes.slice(0..bytes.len() / rows * LARGE_VOCABULARY);
    matrix.weight = part(&matrix.weight, matrix.rows);
    matrix.scales = part(&matrix.scales, matrix.rows);
    matrix.biases = part(&matrix.biases, matrix.rows);
    matrix.rows = LARGE_VOCABULARY;
}

/// The products of rows from `first` on become 0.
fn make_zero_from(matrix: &mut Matrices, first: usize) {
    for bytes in [&mut matrix.scales, &mut matrix.biases] {
        let mut changed = bytes.to_vec();
        let from = changed.len() / matrix.rows * first;
        changed[from..].fill(0);
        *bytes = changed.into();
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
fn all_ways<D: Device>(gpu: &mut GpuBackend<D>, &Model { vocabulary, long, .. }: &Model, steps: Steps) -> Vec<f32> {
    let mut states: Vec<State> = (0..SEQUENCES).map(|_| gpu.create().expect("a slot")).collect();
    let mut told = Vec::new();
    if steps == Steps::All {
        step(gpu, &mut states, &[long + 1], Want::Nothing);
        step(gpu, &mut states[1..], &[33, 12, 65], Want::Nothing);
        told.extend(step(gpu, &mut states[4..], &[30], Want::Logits));
    }

    let allowed: TokenSet = (0..vocabulary as u32).filter(|token| token % 7 == 3).collect();
    let adjustments = [(200, 4.0), (7, -2.0)];
    let adjustments = adjustments.map(|(token, add)| Adjustment { token, repetition: 1.1, add, add_once_drawn: add });
    let sampling = Sampling { temperature: 0.7, top_k: 50, top_p: 0.8, min_p: 0.01 };
    let greedy = Draw::greedy(vocabulary);
    let chosen = Draw { sampling, adjustments: &adjustments, allowed: Some(&allowed), top_logprobs: Some(0), ..greedy };
    for rows in [1, 2, 3, SEQUENCES] {
        let wants = [Want::Logits, Want::Sample(greedy), Want::Sample(chosen)];
        // What draws is the same kernel for any rows.
        let count = if steps == Steps::All || rows == 1 { wants.len() } else { 1 };
        for want in wants.into_iter().take(count) {
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

/// What takes a long context: `long` has one.
const LONG_CONTEXT: &str = "attention_prefill_join";
/// Rows of a step in the 35B's shapes that are soon looked at, and so many that Hopper takes [`LONG_STEPS`] for them.
const LARGE_ROWS: [usize; 2] = [128, 544];
/// What Hopper takes with the 35B's shapes for more than 512 rows alone, and for fewer too with the embedded model's.
const LONG_STEPS: [&str; 4] =
    ["experts_gemm_down_warpgroup", "experts_gemm_up_warpgroup", "gemm_q4_add_warpgroup", "router_many_64"];

fn kernels_run(model: &Model, steps: Steps, left_out: impl Fn(&str) -> bool) {
    let seen = Seen::default();
    model.run(steps, Watch::new, &seen);
    model.check(&seen, left_out);
}

#[test]
fn every_kernel_runs() {
    if !tiles().is_empty() {
        kernels_run(&Model::tiny(), Steps::All, |name| name == LONG_CONTEXT);
    }
}

#[test]
fn large_every_kernel_runs() {
    if let Some(model) = Model::large(LARGE_ROWS[0]) {
        kernels_run(&model, Steps::All, |name| model.is_elsewhere(name));
    }
}

/// Before a sanitizer comes to the others.
#[test]
fn large_every_kernel_of_few_rows_runs() {
    if let Some(model) = Model::large(LARGE_ROWS[0]) {
        kernels_run(&model, Steps::OfFewRows, |name| !model.is_of_few_rows(name));
    }
}

/// A kernel that reads more than its dispatch names would meet other bytes there, and what it wrote beside it would be lost; a
/// sanitizer sees either. Nor does it matter what was in memory that nobody wrote.
fn kernels_keep_to_their_ranges(model: &Model, left_out: impl Fn(&str) -> bool) {
    let seen = Seen::default();
    let together = |tiles| Watch { filled_with: Some(0), ..Watch::new(tiles) };
    // Both halves and floats of such bytes are not numbers.
    let confined = |tiles| Watch { filled_with: Some(0xff), confined: true, ..Watch::new(tiles) };
    assert!(same_bits(&model.run(Steps::All, together, &seen), &model.run(Steps::All, confined, &seen)));
    model.check(&seen, left_out);
}

#[test]
fn kernels_keep_to_the_ranges_of_their_dispatches() {
    if !tiles().is_empty() {
        kernels_keep_to_their_ranges(&Model::tiny(), |name| name == LONG_CONTEXT);
    }
}

#[test]
fn large_kernels_keep_to_the_ranges_of_their_dispatches() {
    if let Some(model) = Model::large(LARGE_ROWS[1]) {
        kernels_keep_to_their_ranges(&model, |name| model.is_elsewhere(name));
    }
}

//! Attention of many rows takes a context in pieces of 8,192 tokens. Where pieces have blocks of their own, whose shares are then
//! joined, a row has the bits that it has where one block has them all: at either side of a piece's end, and beside sequences that
//! have more pieces or fewer.

use std::iter;
use std::ops::Range;
use std::slice;
use std::sync::Arc;

use lily_backend::{Backend, Output, Segment, Want};
use lily_checkpoint::{Checkpoint, Config, LayerKind, Matrices, Mixer, Weights};
use lily_gpu::device::Tiles;
use lily_gpu::device::cuda::CudaDevice;
use lily_gpu::{GpuBackend, Options, State};

use crate::full;
use crate::kernels::cut_vocabulary;
use crate::support::{TINY_VOCABULARY, device, layers_of, logits, run, same_bits, tiles, tokens};
use crate::watched::{Seen, Watch, Watched};

type Gpu = GpuBackend<Watched<CudaDevice>>;

/// Rows of the largest step: so many that a block has all pieces.
const MOST: usize = 1024;
const PROMPT: usize = 17 * MOST;
/// Steps of three sequences: the tokens that each holds before it, and those that it gets. Contexts of rows end at 8,191 and 8,192
/// tokens, at 8,193 and 16,385, and far below.
const STEPS: [[(usize, usize); 3]; 4] = [
    [(16_320, 64), (8128, 63), (0, 100)],
    [(16_384, 9), (8192, 33), (64, 17)],
    [(8192, 64), (8128, 64), (16_384, 31)],
    [(8192, 9), (0, 0), (0, 0)],
];

fn backend(tiles: Tiles, seen: &Seen, config: &Config, weights: &Weights, options: Options) -> Gpu {
    let device = Watched::new(device().expect("a GPU"), Watch::new(tiles), Arc::clone(seen));
    GpuBackend::from_weights(device, config, weights, options).unwrap_or_else(|error| panic!("{error}"))
}

/// So that no piece has all the weight.
fn soften(weights: &mut Weights) {
    for layer in &mut weights.layers {
        let Mixer::Attention(mixer) = &mut layer.mixer else { panic!("a layer of another kind") };
        mixer.q_norm.iter_mut().for_each(|gain| *gain *= 0.25);
    }
}

/// The logits of some positions of a prompt that comes in steps of `most` tokens behind the first `first`.
fn of_prompt(gpu: &mut Gpu, prompt: &[u32], first: usize, most: usize, wanted: &[Range<usize>]) -> Vec<Vec<f32>> {
    let width = gpu.description().logits;
    let mut state = gpu.create().expect("a slot");
    let mut told = vec![Vec::new(); wanted.len()];
    for begin in iter::once(0).chain((first..prompt.len()).step_by(most)) {
        let end = if begin == 0 { first } else { (begin + most).min(prompt.len()) };
        let own = |wanted: &Range<usize>| wanted.start.max(begin)..wanted.end.min(end);
        if wanted.iter().all(|wanted| own(wanted).is_empty()) {
            run(gpu, &mut state, &prompt[begin..end], Want::Nothing);
            continue;
        }
        let all = logits(gpu, &mut state, &prompt[begin..end]);
        for (told, own) in told.iter_mut().zip(wanted.iter().map(own)).filter(|(_, own)| !own.is_empty()) {
            told.extend_from_slice(&all[(own.start - begin) * width..(own.end - begin) * width]);
        }
    }
    told
}

/// The first row that is not the same.
fn first_difference(ours: &[f32], theirs: &[f32], width: usize) -> Option<usize> {
    assert_eq!(ours.len(), theirs.len());
    ours.chunks(width).zip(theirs.chunks(width)).position(|(ours, theirs)| !same_bits(ours, theirs))
}

fn pieces_have_their_bits(config: &Config, weights: &Weights, vocabulary: usize) {
    let prompts = [0, 1, 2].map(|seed| tokens(seed, vocabulary, PROMPT));
    for tiles in tiles() {
        let seen = Seen::default();
        let joined = || seen.lock().expect("no panic").contains("attention_prefill_join");
        let options = Options { prefill_rows: MOST, ..Options::new(PROMPT, prompts.len()) };
        let mut gpu = backend(tiles, &seen, config, weights, options);
        let mut whole = Vec::new();
        for (index, prompt) in prompts.iter().enumerate() {
            let wanted = STEPS.map(|step| step[index]).map(|(held, rows)| held..held + rows);
            whole.push(of_prompt(&mut gpu, prompt, MOST, MOST, &wanted));
        }
        assert!(!joined(), "{tiles:?}: no block had all pieces");
        for (number, step) in STEPS.iter().enumerate() {
            let mut states: Vec<State> = Vec::new();
            for (&(held, _), prompt) in step.iter().zip(&prompts) {
                let mut state = gpu.create().expect("a slot");
                prompt[..held].chunks(MOST).for_each(|part| drop(run(&mut gpu, &mut state, part, Want::Nothing)));
                states.push(state);
            }
            let parts = states.iter_mut().zip(step).zip(&prompts).filter(|((_, (_, rows)), _)| *rows > 0);
            let segments = parts.map(|((state, &(held, rows)), prompt)| {
                let tokens = &prompt[held..held + rows];
                Segment { state, tokens, want: Want::Logits }
            });
            let outputs = gpu.forward(&mut segments.collect::<Vec<_>>()).unwrap_or_else(|error| panic!("{error}"));
            for (index, output) in outputs.iter().enumerate() {
                let Output::Logits(ours) = output else { panic!("no logits") };
                assert!(!ours.is_empty() && ours.iter().all(|logit| logit.is_finite()), "{tiles:?}, {step:?}");
                let differ = first_difference(ours, &whole[index][number], gpu.description().logits);
                assert_eq!(differ, None, "{tiles:?}, sequence {index} of {step:?}: the first row that is not the same");
            }
        }
        assert_eq!(joined(), tiles == Tiles::Warpgroup, "{tiles:?}");
    }
}

#[test]
fn pieces_have_the_bits_of_one_block() {
    let checkpoint = Checkpoint::embedded().expect("the embedded checkpoint is whole");
    let (config, mut weights) = layers_of(&checkpoint, LayerKind::Attention, 2);
    soften(&mut weights);
    pieces_have_their_bits(&config, &weights, TINY_VOCABULARY);
}

#[test]
fn large_pieces_have_the_bits_of_one_block() {
    let Some(checkpoint) = full::checkpoint() else { return };
    let (mut config, mut weights) = layers_of(&checkpoint, LayerKind::Attention, 1);
    soften(&mut weights);
    cut_vocabulary(&mut config, &mut weights);
    pieces_have_their_bits(&config, &weights, config.vocab_size);
}

/// As many heads of keys as of queries, those that there are several times.
fn with_more_keys(config: &mut Config, weights: &mut Weights) {
    let times = config.attention.heads / config.attention.kv_heads;
    config.attention.kv_heads *= times;
    let repeat = |matrix: &mut Matrices| {
        matrix.rows *= times;
        for bytes in [&mut matrix.weight, &mut matrix.scales, &mut matrix.biases] {
            *bytes = bytes.repeat(times).into();
        }
    };
    for layer in &mut weights.layers {
        let Mixer::Attention(mixer) = &mut layer.mixer else { panic!("a layer of another kind") };
        [&mut mixer.k_proj, &mut mixer.v_proj].into_iter().for_each(repeat);
    }
}

/// With one query head a KV head a block has 128 tokens; in steps that begin after 64, some of them on either side of a piece's end.
#[test]
fn a_block_on_both_sides_of_an_end_has_the_bits_of_others() {
    const ROWS: usize = 128;
    let checkpoint = Checkpoint::embedded().expect("the embedded checkpoint is whole");
    let (mut config, mut weights) = layers_of(&checkpoint, LayerKind::Attention, 1);
    soften(&mut weights);
    with_more_keys(&mut config, &mut weights);
    let prompt = tokens(3, TINY_VOCABULARY, 8192 + ROWS);
    let wanted = 8192 - 64..8192 + 64;
    for tiles in tiles() {
        let options = Options { prefill_rows: ROWS, ..Options::new(prompt.len(), 1) };
        let mut gpu = backend(tiles, &Seen::default(), &config, &weights, options);
        let [before, across] =
            [ROWS, 64].map(|first| of_prompt(&mut gpu, &prompt, first, ROWS, slice::from_ref(&wanted)).concat());
        assert!(before.len() == ROWS * gpu.description().logits && before.iter().all(|logit| logit.is_finite()));
        let differ = first_difference(&across, &before, gpu.description().logits);
        assert_eq!(differ, None, "{tiles:?}: the first row that is not the same");
    }
}

//! Contexts longer than what kernels have of them at a time: with more pages a piece than Hopper's few-row attention has places for,
//! and of more rows times tokens than the other devices' attention takes in one dispatch.

use lily_backend::{Backend, Output, Segment, Want};
use lily_checkpoint::{Checkpoint, Config, LayerKind, Mixer, Weights};
use lily_gpu::device::Tiles;
use lily_gpu::device::cuda::CudaDevice;
use lily_gpu::{GpuBackend, Options, State};

use crate::support::{TINY_VOCABULARY, device, layers_of, logits, relative, run, same_bits, tiles, tokens};
use crate::watched::{Seen, Watch, Watched};

/// As many rows as a few-row step has.
const ROWS: usize = 8;
/// Tokens held. A piece has one page for every 64 of the context, and places for three. Rows lie on both sides of where pieces get
/// their fourth page, of where a fourth page begins, of where pieces get their fifth and their eleventh.
const HELD: [usize; 4] = [64 * 192 - 4, 64 * 195 - 4, 64 * 256 - 4, 64 * 640 - 4];
/// The page of the context that other tokens are put into: a fourth of its piece's.
const OTHER_PAGE: usize = 103;

/// How far the logits of a row may be from those of the other kernels, over their length: what fp32 rounds.
const NEAR: f64 = 2e-5;
/// So many times as much at least one page of other tokens changes.
const SEEN: f64 = 20.0;

/// One layer of attention, in which each page counts: all tokens of a context have weights of the same order.
fn attention() -> (Config, Weights) {
    let checkpoint = Checkpoint::embedded().expect("the embedded checkpoint is whole");
    let (config, mut weights) = layers_of(&checkpoint, LayerKind::Attention, 1);
    let Mixer::Attention(mixer) = &mut weights.layers[0].mixer else { panic!("a layer of attention") };
    mixer.q_norm.iter_mut().for_each(|gain| *gain *= 0.25);
    (config, weights)
}

fn gpu(tiles: Tiles, config: &Config, weights: &Weights, options: Options) -> GpuBackend<Watched<CudaDevice>> {
    let device = Watched::new(device().expect("a GPU"), Watch::new(tiles), Seen::default());
    GpuBackend::from_weights(device, config, weights, options).unwrap_or_else(|error| panic!("{error}"))
}

/// For each length of [`HELD`] the logits of 8 rows in one step and of as many in steps of their own. Keys and values are made of
/// the tokens alone, and all of them by few-row steps, in which they have the same bits with all kernels.
fn told(tiles: Tiles, (config, weights): &(Config, Weights), tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut gpu = gpu(tiles, config, weights, Options { prefill_rows: 64, ..Options::new(tokens.len(), 1) });
    let mut state = gpu.create().expect("a slot");
    let mut at_each = Vec::new();
    for held in HELD {
        for part in tokens[gpu.length(&state)..held].chunks(ROWS) {
            run(&mut gpu, &mut state, part, Want::Nothing);
        }
        let mut told = logits(&mut gpu, &mut state, &tokens[held..held + ROWS]);
        for token in tokens[held + ROWS..held + 2 * ROWS].chunks(1) {
            told.extend(logits(&mut gpu, &mut state, token));
        }
        at_each.push(told);
    }
    at_each
}

/// The error of the row that is farthest.
fn farthest(ours: &[f32], theirs: &[f32], vocabulary: usize) -> f64 {
    let rows = ours.chunks(vocabulary).zip(theirs.chunks(vocabulary)).map(|(ours, theirs)| relative(ours, theirs));
    rows.fold(0.0, |farthest, error| if error.is_nan() { f64::INFINITY } else { farthest.max(error) })
}

#[test]
fn few_rows_see_all_of_a_long_context() {
    let [own, other] = tiles()[..] else { return println!("SKIPPED: no GPU with kernels of its own") };
    let model = attention();
    let tokens = tokens(5, TINY_VOCABULARY, HELD[HELD.len() - 1] + 2 * ROWS);
    let mut changed = tokens.clone();
    changed[OTHER_PAGE * 64..][..64].iter_mut().for_each(|token| *token = (*token + 1) % TINY_VOCABULARY as u32);
    let [ours, theirs, changed] =
        [(own, &tokens), (other, &tokens), (other, &changed)].map(|(tiles, tokens)| told(tiles, &model, tokens));
    let at_each = ours.iter().zip(&theirs).zip(&changed);
    let errors: Vec<[f64; 2]> = at_each
        .map(|((ours, theirs), changed)| [ours, changed].map(|other| farthest(other, theirs, model.0.vocab_size)))
        .collect();
    for (held, [error, of_a_page]) in HELD.iter().zip(&errors) {
        println!("{held} tokens held: {error:.2e}, with a page of other tokens {of_a_page:.2e}");
    }
    assert!(errors.iter().all(|[error, _]| *error < NEAR), "{errors:?}");
    assert!(
        errors.iter().all(|[_, of_a_page]| *of_a_page > SEEN * NEAR),
        "a page too much would not be seen: {errors:?}"
    );
}

/// The same of many rows, whose kernels round to halves.
const MANY_NEAR: f64 = 5e-3;

/// The logits of the last page, all tokens having come in steps of many rows.
fn last_page(tiles: Tiles, (config, weights): &(Config, Weights), tokens: &[u32]) -> Vec<f32> {
    let mut gpu = gpu(tiles, config, weights, Options { prefill_rows: 1024, ..Options::new(tokens.len(), 1) });
    let mut state = gpu.create().expect("a slot");
    let (before, page) = tokens.split_at(tokens.len() - 64);
    run(&mut gpu, &mut state, before, Want::Nothing);
    logits(&mut gpu, &mut state, page)
}

#[test]
fn many_rows_see_all_of_a_long_context() {
    let [own, other] = tiles()[..] else { return println!("SKIPPED: no GPU with kernels of its own") };
    let model = attention();
    let tokens = tokens(5, TINY_VOCABULARY, 64 * 390);
    for page in [0, OTHER_PAGE, 129, 385] {
        let mut changed = tokens.clone();
        changed[page * 64..][..64].iter_mut().for_each(|token| *token = (*token + 1) % TINY_VOCABULARY as u32);
        let [ours, theirs, changed] =
            [(own, &tokens), (other, &tokens), (own, &changed)].map(|(tiles, tokens)| last_page(tiles, &model, tokens));
        let [error, of_a_page] = [&theirs, &changed].map(|other| farthest(&ours, other, model.0.vocab_size));
        println!("many rows: {error:.2e}, with other tokens in page {page} {of_a_page:.2e}");
        assert!(error < MANY_NEAR && of_a_page > 2.0 * error, "{error:e}, {of_a_page:e}");
    }
}

/// Tokens before the step that is compared, and in it; together a power of two, which is what a step's context is rounded up to.
const BEFORE: usize = 64 * 244;
const STEP: usize = 64 * 12;
/// Other sequences in the same step, of so many tokens. With three of them one of the dispatches, in which these have no rows any
/// more, has 168 rows, 21 of the groups that two by two are a block's: its last block must leave the rows behind it to the next.
const BESIDE: usize = 80;

/// The logits of a step at the end of a long context that came in parts of `most` tokens, as does the step.
fn end(gpu: &mut GpuBackend<Watched<CudaDevice>>, prompt: &[u32], most: usize, beside: usize) -> Vec<f32> {
    let mut states: Vec<State> = (0..=beside).map(|_| gpu.create().expect("a slot")).collect();
    for part in prompt[..BEFORE].chunks(most) {
        run(gpu, &mut states[0], part, Want::Nothing);
    }
    let others: Vec<Vec<u32>> = (1..=beside).map(|seed| tokens(seed, TINY_VOCABULARY, BESIDE)).collect();
    let mut told = Vec::new();
    for part in prompt[BEFORE..].chunks(most) {
        let parts = std::iter::once((part, Want::Logits)).chain(others.iter().map(|other| (&other[..], Want::Nothing)));
        let segments = states.iter_mut().zip(parts).map(|(state, (tokens, want))| Segment { state, tokens, want });
        let outputs = gpu.forward(&mut segments.collect::<Vec<_>>()).unwrap_or_else(|error| panic!("{error}"));
        let Output::Logits(logits) = &outputs[0] else { panic!("no logits") };
        told.extend_from_slice(logits);
    }
    told
}

#[test]
fn parts_of_a_step_have_the_bits_of_the_whole() {
    let checkpoint = Checkpoint::embedded().expect("the embedded checkpoint is whole");
    let vocabulary = checkpoint.config.vocab_size;
    let prompt = tokens(0, TINY_VOCABULARY, BEFORE + STEP);
    for tiles in tiles() {
        let options = Options { prefill_rows: 1024, ..Options::new(prompt.len(), 4) };
        let mut gpu = gpu(tiles, &checkpoint.config, &checkpoint.weights, options);
        // Few enough rows for one dispatch.
        let whole = end(&mut gpu, &prompt, 256, 0);
        assert_eq!(whole.len(), STEP * vocabulary);
        for (most, beside) in [(1024, 0), (STEP, 3)] {
            let parts = end(&mut gpu, &prompt, most, beside);
            let rows = whole.chunks(vocabulary).zip(parts.chunks(vocabulary));
            let differ = rows.enumerate().find(|(_, (whole, part))| !same_bits(whole, part)).map(|(row, _)| row);
            assert_eq!(differ, None, "{tiles:?}, {beside} beside it: the first row that is not the same");
        }
    }
}

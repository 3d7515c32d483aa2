//! A token's bits in a few-row step depend on its own sequence alone: not on the rows before it, which the same step writes to the
//! cache, nor on other sequences.

use lily_backend::{Backend, Output, Segment, Want};
use lily_checkpoint::Checkpoint;
use lily_gpu::device::cuda::CudaDevice;
use lily_gpu::{GpuBackend, Options, State};

use crate::full;
use crate::support::{device, logits, run, same_bits};

/// Tokens held: none, such that rows lie on both sides of a page's end, whole pages, and a piece's end of attention.
const HELD: [usize; 4] = [0, 60, 128, 64 * 64 - 4];
const ROWS: usize = 8;

fn tokens(seed: usize, vocabulary: usize, count: usize) -> Vec<u32> {
    (0..count).map(|place| ((place * 7919 + seed * 104_729 + 13) % vocabulary) as u32).collect()
}

/// A sequence that holds the first of `tokens`.
fn holding(gpu: &mut GpuBackend<CudaDevice>, tokens: &[u32]) -> State {
    let mut state = gpu.create().expect("a slot");
    if !tokens.is_empty() {
        run(gpu, &mut state, tokens, Want::Nothing);
    }
    state
}

/// Token by token.
fn steps(gpu: &mut GpuBackend<CudaDevice>, held: usize, tokens: &[u32]) -> Vec<f32> {
    let mut state = holding(gpu, &tokens[..held]);
    tokens[held..].iter().flat_map(|&token| logits(gpu, &mut state, &[token])).collect()
}

fn rows_are_steps(gpu: &mut GpuBackend<CudaDevice>, vocabulary: usize) {
    for held in HELD {
        let all: Vec<Vec<u32>> = (0..3).map(|seed| tokens(seed, vocabulary, held + ROWS)).collect();
        // What it leaves in its pages is wrong for those that get them next.
        let alone: Vec<Vec<f32>> = all.iter().map(|tokens| steps(gpu, held, tokens)).collect();
        for rows in [2, 3, ROWS] {
            let mut state = holding(gpu, &all[0][..held]);
            let parts = all[0][held..].chunks(rows);
            let together: Vec<f32> = parts.flat_map(|part| logits(gpu, &mut state, part)).collect();
            assert!(same_bits(&together, &alone[0]), "{rows} rows of a sequence that holds {held}");
        }
        let mut states: Vec<State> = all.iter().map(|tokens| holding(gpu, &tokens[..held])).collect();
        let mut together = vec![Vec::new(); all.len()];
        for rows in [0..2, 2..3, 3..5, 5..8] {
            let parts = states.iter_mut().zip(&all);
            let part = |(state, tokens)| {
                let tokens: &Vec<u32> = tokens;
                Segment { state, tokens: &tokens[held..][rows.clone()], want: Want::Logits }
            };
            let mut segments: Vec<Segment<'_, State>> = parts.map(part).collect();
            let outputs = gpu.forward(&mut segments).unwrap_or_else(|error| panic!("{error}"));
            for (all, output) in together.iter_mut().zip(outputs) {
                let Output::Logits(logits) = output else { panic!("no logits") };
                all.extend(logits);
            }
        }
        for (index, (together, alone)) in together.iter().zip(&alone).enumerate() {
            assert!(same_bits(together, alone), "sequence {index} of three that hold {held}");
        }
    }
}

#[test]
fn rows_have_the_bits_of_steps() {
    let Some(device) = device() else { return };
    let checkpoint = Checkpoint::embedded().expect("the embedded checkpoint is whole");
    let options = Options { prefill_rows: 1024, ..Options::new(8192, 3) };
    let mut gpu = GpuBackend::new(device, &checkpoint, options).unwrap_or_else(|error| panic!("{error}"));
    rows_are_steps(&mut gpu, 6113);
}

#[test]
fn large_rows_have_the_bits_of_steps() {
    let Some((mut gpu, checkpoint)) = full::gpu(3) else { return };
    rows_are_steps(&mut gpu, checkpoint.config.vocab_size);
}

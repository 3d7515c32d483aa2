//! A token's bits in a few-row step depend on its own sequence alone: not on the rows before it, which the same step writes to the
//! cache, nor on other sequences.

use lily_backend::{Backend, Output, Segment, Want};
use lily_checkpoint::Checkpoint;
use lily_gpu::device::cuda::{self, CudaDevice};
use lily_gpu::{GpuBackend, Options, State};

use crate::full;
use crate::support::{TINY_VOCABULARY, device_with, logits, run, same_bits, tokens};

/// Tokens held: none, such that rows lie on both sides of a page's end, whole pages, and where attention's pieces get one page
/// more each.
const HELD: [usize; 4] = [0, 60, 128, 64 * 64 - 4];
/// The same where they get more pages than are on their way at once.
const LONG: usize = 64 * 192 - 4;
const ROWS: usize = 8;

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

/// Gives the logits of each sequence by itself.
fn rows_are_steps(gpu: &mut GpuBackend<CudaDevice>, vocabulary: usize, lengths: &[usize]) -> Vec<f32> {
    let mut told = Vec::new();
    for &held in lengths {
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
        told.extend(alone.concat());
    }
    told
}

#[test]
fn rows_have_the_bits_of_steps() {
    let checkpoint = Checkpoint::embedded().expect("the embedded checkpoint is whole");
    let options = Options { prefill_rows: 1024, ..Options::new(LONG + 64, 3) };
    let mut told = Vec::new();
    // Also as with a driver that lets no dispatch begin early.
    for complete_edges in [false, true] {
        let Some(device) = device_with(cuda::Options { complete_edges, ..Default::default() }) else { return };
        let mut gpu = GpuBackend::new(device, &checkpoint, options).unwrap_or_else(|error| panic!("{error}"));
        told.push(rows_are_steps(&mut gpu, TINY_VOCABULARY, &[&HELD[..], &[LONG]].concat()));
    }
    assert!(same_bits(&told[0], &told[1]), "what begins early has other bits");
}

#[test]
fn large_rows_have_the_bits_of_steps() {
    let mut told = Vec::new();
    // The kernels that multiply bytes are made for these shapes alone.
    for complete_edges in [false, true] {
        let options = cuda::Options { complete_edges, ..Default::default() };
        let Some((mut gpu, checkpoint)) = full::gpu_with(3, options) else { return };
        told.push(rows_are_steps(&mut gpu, checkpoint.config.vocab_size, &HELD));
    }
    assert!(same_bits(&told[0], &told[1]), "what begins early has other bits");
}

//! Hopper's recurrence of few rows divides a head among four blocks, and has the bits of the one that every device has.

use std::sync::Arc;

use lily_backend::{Backend, Output, Segment, Want};
use lily_checkpoint::{Config, LayerKind, Weights};
use lily_gpu::device::Tiles;
use lily_gpu::{GpuBackend, Options, State};

use crate::support::{TINY_VOCABULARY, device, layers_of, same_bits, tiles, tokens};
use crate::watched::{Seen, Watch, Watched};

/// Rows of each sequence in a step.
const STEPS: [&[usize]; 9] = [&[8], &[1, 2, 5], &[3, 1, 4], &[1, 1, 1], &[0, 8], &[0, 0, 7], &[2, 4, 2], &[1], &[5, 3]];
/// How often they are all made.
const ROUNDS: usize = 6;

/// The logits of all rows. The products of a model of these widths are the same kernels for every device.
fn told(tiles: Tiles, config: &Config, weights: &Weights, seen: &Seen) -> Vec<f32> {
    let device = Watched::new(device().expect("a GPU"), Watch::new(tiles), Arc::clone(seen));
    let gpu = GpuBackend::from_weights(device, config, weights, Options::new(512, 3));
    let mut gpu = gpu.unwrap_or_else(|error| panic!("{error}"));
    let mut states: Vec<State> = (0..3).map(|_| gpu.create().expect("a slot")).collect();
    let mut told = Vec::new();
    for (number, rows) in (0..ROUNDS).flat_map(|_| STEPS).enumerate() {
        let prompts: Vec<Vec<u32>> =
            rows.iter().enumerate().map(|(index, &rows)| tokens(number * 3 + index, TINY_VOCABULARY, rows)).collect();
        let segments = states.iter_mut().zip(&prompts).filter(|(_, tokens)| !tokens.is_empty());
        let segments = segments.map(|(state, tokens)| Segment { state, tokens, want: Want::Logits });
        let outputs = gpu.forward(&mut segments.collect::<Vec<_>>()).unwrap_or_else(|error| panic!("{error}"));
        for output in outputs {
            let Output::Logits(logits) = output else { panic!("no logits") };
            told.extend(logits);
        }
    }
    told
}

#[test]
fn few_rows_have_the_bits_of_other_gpus() {
    let [own, other] = tiles()[..] else { return println!("SKIPPED: no GPU with kernels of its own") };
    let (config, weights) = layers_of(LayerKind::DeltaNet, usize::MAX);
    let seen = Seen::default();
    let ours = told(own, &config, &weights, &seen);
    let theirs = told(other, &config, &weights, &seen);
    let seen = seen.lock().expect("no panic");
    assert!(["delta_step", "delta_step_cluster"].iter().all(|name| seen.contains(name)), "{seen:?}");
    assert!(ours.iter().all(|logit| logit.is_finite()));
    let vocabulary = config.vocab_size;
    let differ =
        ours.chunks(vocabulary).zip(theirs.chunks(vocabulary)).position(|(ours, theirs)| !same_bits(ours, theirs));
    assert_eq!(
        (ours.len(), differ),
        (theirs.len(), None),
        "the first row that is not the same, of {}",
        ours.len() / vocabulary
    );
}

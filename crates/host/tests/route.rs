//! `route.metal`: the experts of many rows, and the pairs (row, expert) in the order of the experts.

mod common;

use common::{Argument, BY_CPU, Bound, ODD, QWEN, Random, Shape, TINY, close, full_size, launch, unwritten};
use lily_cpu::functions as cpu;

const NONE: u32 = u32::MAX;
const CHOSEN: usize = 8;
/// The chosen and the shared one.
const RANKS: usize = 9;

/// What route_top8 gives: experts `[rows][8]` and weights `[rows][9]`.
fn top8(shape: &Shape, logits: &[f32]) -> (Vec<u32>, Vec<f32>) {
    let rows = logits.len() / (shape.experts + 1);
    let (mut chosen, mut weights) = (vec![NONE; rows * CHOSEN], unwritten(rows * RANKS));
    launch(
        "route_top8",
        shape,
        &mut [Argument::read(logits), Argument::write(&mut chosen), Argument::write(&mut weights)],
        &[rows as u32],
        [rows.div_ceil(4) as u32, 1, 1],
        128,
    );
    (chosen, weights)
}

fn check_top8(shape: &Shape, logits: &[f32]) -> Vec<u32> {
    let (chosen, weights) = top8(shape, logits);
    let (mut experts, mut shares) = (Vec::new(), Vec::new());
    for logits in logits.chunks_exact(shape.experts + 1) {
        let (routed, shared) = (&logits[..shape.experts], f64::from(logits[shape.experts]));
        let mut order: Vec<usize> = (0..shape.experts).collect();
        order.sort_by(|&a, &b| routed[b].partial_cmp(&routed[a]).expect("no NaN here"));
        order.truncate(CHOSEN);
        let exp = |&expert: &usize| (f64::from(routed[expert]) - f64::from(routed[order[0]])).exp();
        let sum: f64 = order.iter().map(exp).sum();
        shares.extend(order.iter().map(|expert| exp(expert) / sum));
        shares.push(1.0 / (1.0 + (-shared).exp()));
        experts.extend(order.iter().map(|&expert| expert as u32));
    }
    assert_eq!(chosen, experts, "experts");
    // Not where a sanitizer is at work, see close_to_cpu.
    if full_size() {
        let (mut experts_by_cpu, mut weights_by_cpu) = (Vec::new(), Vec::new());
        for logits in logits.chunks_exact(shape.experts + 1) {
            for (expert, weight) in cpu::route(&logits[..shape.experts], shape.experts, CHOSEN).remove(0) {
                experts_by_cpu.push(expert);
                weights_by_cpu.push(weight);
            }
            weights_by_cpu.push(cpu::sigmoid(logits[shape.experts]));
        }
        assert_eq!(chosen, experts_by_cpu, "experts, by the CPU");
        close("weights, by the CPU", &weights, &weights_by_cpu, BY_CPU);
    }
    close("weights", &weights, &shares, Bound { relative: 2e-6, absolute: 1e-30 });
    chosen
}

/// Compares order, places and map with a stable sort.
fn check_sort(shape: &Shape, chosen: &[u32], tile: usize) {
    let rows = chosen.len() / CHOSEN;
    let records = rows * CHOSEN / tile + shape.experts.min(rows * CHOSEN) + rows.div_ceil(tile);
    let (mut order, mut places) = (vec![NONE; rows * RANKS], vec![NONE; rows * RANKS]);
    let mut map = vec![[7u32; 3]; records];
    launch(
        "route_sort",
        shape,
        &mut [
            Argument::read(chosen),
            Argument::write(&mut order),
            Argument::write(&mut places),
            Argument::write(&mut map),
        ],
        &[rows as u32, tile as u32, records as u32],
        [shape.experts as u32 / 8 + 1, 1, 1],
        256,
    );
    let mut pairs: Vec<(u32, u32)> = Vec::new();
    for (row, chosen) in chosen.chunks_exact(CHOSEN).enumerate() {
        pairs.extend(chosen.iter().zip(0..).map(|(&expert, rank)| (expert, row as u32 * RANKS as u32 + rank)));
        pairs.push((shape.experts as u32, (row * RANKS + CHOSEN) as u32));
    }
    pairs.sort();
    let expected: Vec<u32> = pairs.iter().map(|(_, pair)| *pair).collect();
    assert_eq!(order, expected, "order");
    for (place, pair) in order.iter().enumerate() {
        assert_eq!(places[*pair as usize], place as u32, "place of pair {pair}");
    }
    let mut blocks: Vec<[u32; 3]> = Vec::new();
    for same in pairs.chunk_by(|a, b| a.0 == b.0) {
        let first = blocks.last().map_or(0, |[_, first, pairs]| first + pairs);
        blocks.extend(
            (0..same.len())
                .step_by(tile)
                .map(|done| [same[0].0, first + done as u32, tile.min(same.len() - done) as u32]),
        );
    }
    assert_eq!(map[..blocks.len()], blocks, "blocks");
    assert!(map[blocks.len()..].iter().all(|block| block[0] == NONE), "records left over");
}

fn logits(shape: &Shape, rows: usize) -> Vec<f32> {
    Random::new(rows as u64).floats(rows * (shape.experts + 1), 6.0)
}

#[test]
fn random_rows() {
    for (shape, rows, tile) in [(TINY, 9, 16), (TINY, 33, 32), (ODD, 31, 16)] {
        check_sort(&shape, &check_top8(&shape, &logits(&shape, rows)), tile);
    }
    if full_size() {
        check_sort(&QWEN, &check_top8(&QWEN, &logits(&QWEN, 40)), 16);
    }
}

#[test]
fn all_rows_to_the_same_experts_and_the_others_empty() {
    for rows in [1, 32, 100] {
        let mut logits = logits(&TINY, rows);
        for (index, logit) in logits.iter_mut().enumerate() {
            *logit = -((index % (TINY.experts + 1)) as f32) * 0.25;
        }
        let chosen = check_top8(&TINY, &logits);
        assert!(chosen.chunks_exact(CHOSEN).all(|chosen| chosen.iter().eq(&[0, 1, 2, 3, 4, 5, 6, 7])));
        check_sort(&TINY, &chosen, 32);
    }
}

#[test]
fn one_expert_has_every_pair() {
    // No routing gives this, but it is the most that one expert can have.
    check_sort(&TINY, &vec![31; 33 * CHOSEN], 32);
    check_sort(&TINY, &vec![0; 16 * CHOSEN], 16);
}

#[test]
fn equal_logits_go_to_the_lower_expert() {
    let coarse: Vec<f32> = logits(&TINY, 12).iter().map(|logit| logit.round()).collect();
    check_top8(&TINY, &coarse);
    let zeros: Vec<f32> = (0..12 * (TINY.experts + 1)).map(|index| if index % 3 == 0 { -0.0 } else { 0.0 }).collect();
    check_top8(&TINY, &zeros);
}

#[test]
fn rows_without_numbers_still_have_eight_different_experts() {
    let mut logits = logits(&TINY, 8);
    logits[..4 * (TINY.experts + 1)].fill(f32::NAN);
    logits[4 * (TINY.experts + 1)..][..TINY.experts + 1].fill(f32::NEG_INFINITY);
    logits[5 * (TINY.experts + 1) + 3] = -f32::NAN;
    let (chosen, weights) = top8(&TINY, &logits);
    // The expert without a number is none of the row's, as in the decode step.
    assert!(!chosen[5 * CHOSEN..6 * CHOSEN].contains(&3));
    for (chosen, weights) in chosen.chunks_exact(CHOSEN).zip(weights.chunks_exact(RANKS)) {
        assert!(weights[..CHOSEN].iter().all(|weight| weight.is_finite()), "{weights:?}");
        let mut chosen = chosen.to_vec();
        chosen.sort_unstable();
        chosen.dedup();
        assert!(chosen.len() == CHOSEN && chosen[CHOSEN - 1] < TINY.experts as u32, "{chosen:?}");
    }
    check_sort(&TINY, &chosen, 16);
}

//! `experts_gemm.metal` and `experts_combine.metal`: the experts of many rows.

mod common;

use common::{
    Argument, Bound, ODD, Quantised, Random, Shape, TINY, close, close_to_cpu, f16, launch, unwritten_halves,
};
use lily_cpu::functions as cpu;

const NONE: u32 = u32::MAX;
const CHOSEN: usize = 8;
const RANKS: usize = 9;

/// A stack of matrices, and their elements rounded to half as the kernels have them.
struct Weights {
    quantised: Quantised,
    halved: Vec<f32>,
}

impl Weights {
    fn new(random: &mut Random, count: usize, rows: usize, cols: usize) -> Self {
        let quantised = Quantised::stack(random, count, rows, cols, 4);
        let rows = (0..count).flat_map(|index| (0..rows).map(move |row| (index, row)));
        let halved = rows.flat_map(|(index, row)| quantised.row(index, row)).map(|w| f16::from_f64(w).to_f32());
        Self { halved: halved.collect(), quantised }
    }

    /// Matrix `index` times x.
    fn product(&self, index: usize, x: &[f64]) -> Vec<f64> {
        let rows = self.halved.chunks_exact(x.len()).skip(index * self.quantised.rows).take(self.quantised.rows);
        rows.map(|row| row.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum()).collect()
    }

    fn arguments(&self) -> [Argument<'_>; 3] {
        let Quantised { words, scales, biases, .. } = &self.quantised;
        [Argument::read(words), Argument::read(scales), Argument::read(biases)]
    }
}

/// The weights of a layer.
struct Experts {
    gate: Weights,
    up: Weights,
    down: Weights,
    shared_gate: Weights,
    shared_up: Weights,
    shared_down: Weights,
}

impl Experts {
    fn new(shape: &Shape) -> Self {
        let mut random = Random::new(1);
        let (hidden, width, experts) = (shape.hidden, shape.expert_width, shape.experts);
        Self {
            gate: Weights::new(&mut random, experts, width, hidden),
            up: Weights::new(&mut random, experts, width, hidden),
            down: Weights::new(&mut random, experts, hidden, width),
            shared_gate: Weights::new(&mut random, 1, width, hidden),
            shared_up: Weights::new(&mut random, 1, width, hidden),
            shared_down: Weights::new(&mut random, 1, hidden, width),
        }
    }

    /// What an expert makes of a row: the hidden values and its output, nothing rounded but the weights.
    fn apply(&self, shape: &Shape, expert: usize, x: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let shared = expert == shape.experts;
        let (gate, up, down) = if shared {
            (&self.shared_gate, &self.shared_up, &self.shared_down)
        } else {
            (&self.gate, &self.up, &self.down)
        };
        let index = if shared { 0 } else { expert };
        let swiglu = |(gate, up): (f64, f64)| gate / (1.0 + (-gate).exp()) * up;
        let hidden: Vec<f64> = gate.product(index, x).into_iter().zip(up.product(index, x)).map(swiglu).collect();
        let output = down.product(index, &hidden);
        (hidden, output)
    }
}

impl Experts {
    /// What an expert makes of a row, by the CPU backend's functions.
    fn by_cpu(&self, shape: &Shape, expert: usize, x: &[f32]) -> Vec<f32> {
        let (of, index) = if expert == shape.experts {
            ([&self.shared_gate, &self.shared_up, &self.shared_down], 0)
        } else {
            ([&self.gate, &self.up, &self.down], expert)
        };
        let [gate, up, down] = of.map(|weights| weights.quantised.matrix(index));
        cpu::product(down, &cpu::swiglu(&cpu::product(gate, x), &cpu::product(up, x)))
    }
}

/// The pairs of a routing in the order of the experts, and the blocks of it, with two records left over.
fn sorted(shape: &Shape, chosen: &[[u32; CHOSEN]], tile: usize) -> (Vec<u32>, Vec<[u32; 3]>) {
    let mut pairs: Vec<(u32, u32)> = Vec::new();
    for (row, chosen) in chosen.iter().enumerate() {
        let experts = chosen.iter().copied().chain([shape.experts as u32]);
        pairs.extend(experts.zip(0..).map(|(expert, rank)| (expert, row as u32 * RANKS as u32 + rank)));
    }
    pairs.sort();
    let mut map: Vec<[u32; 3]> = Vec::new();
    for same in pairs.chunk_by(|a, b| a.0 == b.0) {
        for block in same.chunks(tile) {
            let first = map.last().map_or(0, |[_, first, pairs]| first + pairs);
            map.push([block[0].0, first, block.len() as u32]);
        }
    }
    map.extend([[NONE, 0, 0]; 2]);
    (pairs.iter().map(|(_, pair)| *pair).collect(), map)
}

fn check(shape: Shape, chosen: &[[u32; CHOSEN]]) {
    let rows = chosen.len();
    let experts = Experts::new(&shape);
    let mut random = Random::new(rows as u64);
    let x = random.halves(rows * shape.hidden, 1.5);
    let weights = random.floats(rows * RANKS, 0.5);
    let stream = random.floats(rows * shape.hidden, 2.0);
    let mut expected_hidden = Vec::new();
    let mut expected: Vec<f64> = stream.iter().map(|&x| x.into()).collect();
    for row in 0..rows {
        let x: Vec<f64> = x[row * shape.hidden..][..shape.hidden].iter().map(|x| x.to_f64()).collect();
        for (rank, expert) in chosen[row].iter().copied().chain([shape.experts as u32]).enumerate() {
            let (hidden, output) = experts.apply(&shape, expert as usize, &x);
            let weight = f64::from(weights[row * RANKS + rank]);
            expected[row * shape.hidden..].iter_mut().zip(&output).for_each(|(sum, output)| *sum += weight * output);
            expected_hidden.push(hidden);
        }
    }

    for (name, tile) in [("16", 16), ("32", 32), ("32_tensor", 32)] {
        let (order, map) = sorted(&shape, chosen, tile);
        let mut hidden = unwritten_halves(rows * RANKS * shape.expert_width);
        let mut buffers = Vec::new();
        for weights in [&experts.gate, &experts.up, &experts.shared_gate, &experts.shared_up] {
            buffers.extend(weights.arguments());
        }
        buffers.extend([
            Argument::read(&x),
            Argument::read(&order),
            Argument::read(&map),
            Argument::write(&mut hidden),
        ]);
        let grid = [shape.expert_width as u32 / 32, map.len() as u32, 1];
        launch(&format!("experts_gemm_up_{name}"), &shape, &mut buffers, &[], grid, 128);
        let by_place: Vec<f64> =
            order.iter().flat_map(|&pair| expected_hidden[pair as usize].iter().copied()).collect();
        let what = format!("{rows} rows, tile {name}");
        close(&format!("{what}: hidden"), &hidden, &by_place, Bound { relative: 1e-5, absolute: 1e-5 }.in_half());

        let mut y = unwritten_halves(rows * RANKS * shape.hidden);
        let mut buffers = Vec::new();
        for weights in [&experts.down, &experts.shared_down] {
            buffers.extend(weights.arguments());
        }
        buffers.extend([Argument::read(&hidden), Argument::read(&map), Argument::write(&mut y)]);
        let grid = [shape.hidden as u32 / 64, map.len() as u32, 1];
        launch(&format!("experts_gemm_down_{name}"), &shape, &mut buffers, &[], grid, 128);

        let mut places = vec![NONE; rows * RANKS];
        order.iter().zip(0..).for_each(|(&pair, place)| places[pair as usize] = place);
        let mut sum = stream.clone();
        launch(
            "experts_combine",
            &shape,
            &mut [Argument::read(&y), Argument::read(&places), Argument::read(&weights), Argument::write(&mut sum)],
            &[],
            [rows as u32, 1, 1],
            128,
        );
        // Hidden values and outputs of nine experts were rounded to half, all of about 1.
        close(&what, &sum, &expected, Bound { relative: 1e-6, absolute: 2e-3 });
        // So are weights here and not there.
        let by_cpu = || {
            let mut sum = stream.clone();
            for (row, sum) in sum.chunks_exact_mut(shape.hidden).enumerate() {
                let x: Vec<f32> = x[row * shape.hidden..][..shape.hidden].iter().map(|x| x.to_f32()).collect();
                for (rank, expert) in chosen[row].iter().copied().chain([shape.experts as u32]).enumerate() {
                    let (output, weight) = (experts.by_cpu(&shape, expert as usize, &x), weights[row * RANKS + rank]);
                    sum.iter_mut().zip(&output).for_each(|(sum, output)| *sum += weight * output);
                }
            }
            sum
        };
        close_to_cpu(&what, &sum, by_cpu, Bound { relative: 1e-3, absolute: 5e-3 });
    }
}

/// Eight different ones of the first `experts` for each row.
fn random_choices(experts: usize, rows: usize) -> Vec<[u32; CHOSEN]> {
    let mut random = Random::new(7);
    (0..rows).map(|_| random.permutation(experts)[..CHOSEN].try_into().expect("eight")).collect()
}

#[test]
fn random_routing_with_tails_and_empty_experts() {
    check(TINY, &random_choices(TINY.experts, 3));
    check(TINY, &random_choices(9, 33));
    check(ODD, &random_choices(ODD.experts, 1));
}

/// As narrow as the tiles allow.
const SMALL: Shape = Shape { hidden: 64, expert_width: 64, ..TINY };

#[test]
fn rows_around_a_tile() {
    for rows in [1, 31, 32] {
        check(SMALL, &random_choices(SMALL.experts, rows));
    }
}

/// No routing gives one expert a row more than once, but it is the most that one can have; all others are empty.
#[test]
fn one_expert_has_every_pair() {
    check(SMALL, &[[5; CHOSEN]; 33]);
}

#[test]
fn all_rows_to_the_same_experts() {
    check(TINY, &[[31, 0, 1, 2, 3, 30, 29, 28]; 33]);
    check(TINY, &[[7, 6, 5, 4, 3, 2, 1, 0]; 16]);
}

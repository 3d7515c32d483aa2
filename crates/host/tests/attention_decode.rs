//! `attention_prepare.metal`, `attention_block.metal`, `attention_combine.metal`: the attention of a few rows.

mod common;

use common::{
    Argument, BY_CPU, Bound, EPSILON, ODD, QWEN, ROPE_THETA, Random, Shape, TINY, close, close_to_cpu, f16, full_size,
    launch, launch_once, unwritten, unwritten_halves,
};
use lily_cpu::functions as cpu;

const NONE: u32 = u32::MAX;
const HEAD: usize = 256;
const PAGE: usize = 64;

/// Floats of a row of `projected`: per query head q and gate, then k, then v.
fn width(shape: &Shape) -> usize {
    (2 * shape.query_heads + 2 * shape.kv_heads) * HEAD
}

/// Revolutions a token of each rotated pair, as fractions of 64 bits.
fn turns() -> Vec<u32> {
    let turn = |pair: i32| {
        let share = f64::from(ROPE_THETA).powf(-f64::from(pair) / 32.0) / std::f64::consts::TAU;
        (share * 2f64.powi(64)) as u64
    };
    (0..32).flat_map(|pair| [(turn(pair) >> 32) as u32, turn(pair) as u32]).collect()
}

/// A head normalised and turned, in f64.
fn prepared(x: &[f32], gain: &[f32], position: u32) -> Vec<f64> {
    let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / HEAD as f64;
    let factor = 1.0 / (mean + f64::from(EPSILON)).sqrt();
    let mut y: Vec<f64> = x.iter().zip(gain).map(|(&x, &gain)| f64::from(x) * factor * f64::from(gain)).collect();
    for pair in 0..32 {
        let angle = f64::from(position) * f64::from(ROPE_THETA).powf(-(pair as f64) / 32.0);
        let (sin, cos) = angle.sin_cos();
        (y[pair], y[pair + 32]) = (y[pair] * cos - y[pair + 32] * sin, y[pair + 32] * cos + y[pair] * sin);
    }
    y
}

/// As [`prepared`], by the CPU backend's functions.
fn prepared_by_cpu(x: &[f32], gain: &[f32], position: u32) -> Vec<f32> {
    cpu::rope(&cpu::rms_norm(x, gain, EPSILON), 64, ROPE_THETA.into(), position as usize)
}

/// Rows at page boundaries and at the last position there is; one pads, one is a draft after another row.
fn check_prepare(shape: &Shape) {
    let mut random = Random::new(1);
    let positions = [0u32, 63, 64, 262_143];
    let max_pages = 4096;
    // slot, offset: row 2 comes after row 1 in the same sequence.
    let rows = [[0, 0, NONE, 0], [1, 0, NONE, 1], [1, 1, 9, 1], [NONE, 0, 0, 0], [3, 0, NONE, 2], [2, 0, NONE, 3]];
    let sequences = positions.map(|position| [position, 0, 0, 0]);
    let pages = 7;
    let mut table = vec![NONE; positions.len() * max_pages];
    for (slot, page, to) in [(0, 0, 3), (1, 0, 5), (1, 1, 0), (2, 1, 6), (3, 4095, 1)] {
        table[slot * max_pages + page] = to;
    }
    let width = width(shape);
    let mut projected = random.floats(rows.len() * width, 3.0);
    // What half cannot hold is brought to its largest.
    let (k, v) = (2 * shape.query_heads * HEAD, (2 * shape.query_heads + shape.kv_heads) * HEAD);
    projected[v + 5] = 1e6;
    projected[v + 6] = -1e6;
    let q_gain: Vec<f32> = random.floats(HEAD, 0.5).iter().map(|x| 1.0 + x).collect();
    let k_gain: Vec<f32> = random.floats(HEAD, 0.5).iter().map(|x| 1.0 + x).collect();
    let cache = pages * shape.kv_heads * PAGE * HEAD;
    let (mut keys, mut values) = (unwritten_halves(cache), unwritten_halves(cache));
    let mut q = unwritten(rows.len() * shape.query_heads * HEAD);
    launch(
        "attention_prepare",
        shape,
        &mut [
            Argument::read(&projected),
            Argument::read(&projected[k..]),
            Argument::read(&projected[v..]),
            Argument::read(&q_gain),
            Argument::read(&k_gain),
            Argument::read(&turns()),
            Argument::read(&rows),
            Argument::read(&sequences),
            Argument::read(&table),
            Argument::write(&mut keys),
            Argument::write(&mut values),
            Argument::write(&mut q),
        ],
        &[max_pages as u32, width as u32],
        [(shape.query_heads + 2 * shape.kv_heads).div_ceil(4) as u32, rows.len() as u32, 1],
        128,
    );
    let bound = Bound { relative: 1e-6, absolute: 1e-6 };
    for (row, ([slot, offset, ..], q)) in rows.iter().zip(q.chunks_exact(shape.query_heads * HEAD)).enumerate() {
        if *slot == NONE {
            assert!(q.iter().all(|q| q.is_nan()), "row {row} only pads");
            continue;
        }
        let slot = *slot as usize;
        let position = positions[slot] + offset;
        let input = &projected[row * width..][..width];
        for (head, q) in q.chunks_exact(HEAD).enumerate() {
            let expected = prepared(&input[2 * head * HEAD..][..HEAD], &q_gain, position);
            let expected: Vec<f64> = expected.iter().map(|q| q / 16.0).collect();
            close(&format!("q of row {row}, head {head}"), q, &expected, bound);
            let by_cpu = || {
                let prepared = prepared_by_cpu(&input[2 * head * HEAD..][..HEAD], &q_gain, position);
                prepared.iter().map(|q| q / 16.0).collect()
            };
            close_to_cpu(&format!("q of row {row}, head {head}"), q, by_cpu, BY_CPU);
        }
        let page = table[slot * max_pages + position as usize / PAGE] as usize;
        for head in 0..shape.kv_heads {
            let place = ((page * shape.kv_heads + head) * PAGE + position as usize % PAGE) * HEAD;
            let expected = prepared(&input[k + head * HEAD..][..HEAD], &k_gain, position);
            close(&format!("k of row {row}"), &keys[place..][..HEAD], &expected, bound.in_half());
            let by_cpu = || prepared_by_cpu(&input[k + head * HEAD..][..HEAD], &k_gain, position);
            close_to_cpu(&format!("k of row {row}"), &keys[place..][..HEAD], by_cpu, BY_CPU.in_half());
            let expected = input[v + head * HEAD..][..HEAD].iter().map(|v| v.clamp(-65504.0, 65504.0));
            close(
                &format!("v of row {row}"),
                &values[place..][..HEAD],
                &expected.collect::<Vec<f32>>(),
                bound.in_half(),
            );
            // That is all that is written of the cache.
            keys[place..][..HEAD].fill(f16::NAN);
            values[place..][..HEAD].fill(f16::NAN);
        }
    }
    assert!(keys.iter().chain(&values).all(|half| half.is_nan()), "the cache is written where no row belongs");
}

#[test]
fn prepared_heads_and_pages() {
    for shape in [TINY, ODD, QWEN] {
        check_prepare(&shape);
    }
}

/// A cache and the queries of a step.
struct Step {
    shape: Shape,
    max_pages: usize,
    keys: Vec<f16>,
    values: Vec<f16>,
    table: Vec<u32>,
    q: Vec<f32>,
    projected: Vec<f32>,
    sequences: Vec<[u32; 4]>,
    rows: Vec<[u32; 4]>,
}

impl Step {
    /// A row a position, each of its own sequence; NONE pads. Pages lie anywhere. What no row may look at is NaN.
    fn new(shape: Shape, positions: &[u32], scale: f32) -> Self {
        let mut random = Random::new(2);
        let lengths: Vec<usize> = positions.iter().map(|p| if *p == NONE { 0 } else { *p as usize + 1 }).collect();
        let max_pages = lengths.iter().max().expect("a row").div_ceil(PAGE);
        let total: usize = lengths.iter().map(|length| length.div_ceil(PAGE)).sum();
        let mut order = random.permutation(total).into_iter();
        let mut table = vec![NONE; positions.len() * max_pages];
        let cache = total * shape.kv_heads * PAGE * HEAD;
        let (mut keys, mut values) = (random.halves(cache, 2.0), random.halves(cache, 1.0));
        for (slot, &length) in lengths.iter().enumerate() {
            for page in 0..length.div_ceil(PAGE) {
                let place = order.next().expect("a page");
                table[slot * max_pages + page] = place;
                for head in 0..shape.kv_heads {
                    let first = (place as usize * shape.kv_heads + head) * PAGE;
                    let held = (length - page * PAGE).min(PAGE);
                    keys[(first + held) * HEAD..(first + PAGE) * HEAD].fill(f16::NAN);
                    values[(first + held) * HEAD..(first + PAGE) * HEAD].fill(f16::NAN);
                }
            }
        }
        Self {
            q: random.floats(positions.len() * shape.query_heads * HEAD, scale),
            projected: random.floats(positions.len() * width(&shape), 4.0),
            sequences: positions.iter().map(|&position| [position, 0, 0, 0]).collect(),
            rows: (0..).zip(positions).map(|(slot, &p)| [if p == NONE { NONE } else { slot }, 0, NONE, 0]).collect(),
            shape,
            max_pages,
            keys,
            values,
            table,
        }
    }

    fn run(&self, block: usize) -> Vec<f32> {
        // Each order takes the longest context seconds.
        let launch = if self.max_pages > 1000 { launch_once } else { launch };
        let (shape, rows) = (&self.shape, self.rows.len());
        let blocks = (self.max_pages * PAGE).div_ceil(block) + 1; // one that no row reaches
        let parts = rows * shape.query_heads * blocks;
        let (mut sums, mut weights) = (unwritten(parts * HEAD), unwritten(parts * 2));
        launch(
            "attention_block",
            shape,
            &mut [
                Argument::read(&self.q),
                Argument::read(&self.keys),
                Argument::read(&self.values),
                Argument::read(&self.rows),
                Argument::read(&self.sequences),
                Argument::read(&self.table),
                Argument::write(&mut sums),
                Argument::write(&mut weights),
            ],
            &[block as u32, blocks as u32, self.max_pages as u32],
            [blocks as u32, shape.kv_heads as u32, rows as u32],
            128,
        );
        let mut y = unwritten(rows * shape.query_heads * HEAD);
        launch(
            "attention_combine",
            shape,
            &mut [
                Argument::read(&sums),
                Argument::read(&weights),
                Argument::read(&self.projected),
                Argument::read(&self.rows),
                Argument::read(&self.sequences),
                Argument::write(&mut y),
            ],
            &[block as u32, blocks as u32, width(shape) as u32],
            [shape.query_heads as u32, rows as u32, 1],
            256,
        );
        y
    }

    /// A row's head in f64.
    fn exact(&self, row: usize, head: usize) -> Vec<f64> {
        let Shape { query_heads, kv_heads, .. } = self.shape;
        let [slot, offset, ..] = self.rows[row].map(|x| x as usize);
        let length = self.sequences[slot][0] as usize + offset + 1;
        let q = &self.q[(row * query_heads + head) * HEAD..][..HEAD];
        let place = |token: usize| {
            let page = self.table[slot * self.max_pages + token / PAGE] as usize;
            ((page * kv_heads + head / (query_heads / kv_heads)) * PAGE + token % PAGE) * HEAD
        };
        let score = |token: usize| {
            let key = &self.keys[place(token)..][..HEAD];
            q.iter().zip(key).map(|(&q, k)| f64::from(q) * k.to_f64()).sum::<f64>()
        };
        let scores: Vec<f64> = (0..length).map(score).collect();
        let peak = scores.iter().copied().fold(f64::MIN, f64::max);
        let mut out = vec![0.0; HEAD];
        let mut total = 0.0;
        for (token, score) in scores.iter().enumerate() {
            let weight = (score - peak).exp();
            total += weight;
            let value = &self.values[place(token)..][..HEAD];
            out.iter_mut().zip(value).for_each(|(out, v)| *out += weight * v.to_f64());
        }
        let gates = &self.projected[row * width(&self.shape) + (2 * head + 1) * HEAD..][..HEAD];
        out.iter().zip(gates).map(|(out, &gate)| out / total / (1.0 + (-f64::from(gate)).exp())).collect()
    }

    /// All heads of a row, by the CPU backend's function.
    fn by_cpu(&self, row: usize) -> Vec<f32> {
        let Shape { query_heads, kv_heads, .. } = self.shape;
        let [slot, offset, ..] = self.rows[row].map(|x| x as usize);
        let (length, group) = (self.sequences[slot][0] as usize + offset + 1, query_heads / kv_heads * HEAD);
        let of_kv_head = |kv_head: usize| {
            let gather = |cache: &[f16]| {
                let places = (0..length).map(|token| {
                    let page = self.table[slot * self.max_pages + token / PAGE] as usize;
                    ((page * kv_heads + kv_head) * PAGE + token % PAGE) * HEAD
                });
                places.flat_map(|place| cache[place..place + HEAD].to_vec()).collect::<Vec<f16>>()
            };
            // The kernel's queries are over √256 already.
            let queries = &self.q[row * query_heads * HEAD + kv_head * group..][..group];
            let queries: Vec<f32> = queries.iter().map(|q| q * 16.0).collect();
            cpu::attention(&queries, &gather(&self.keys), &gather(&self.values))
        };
        let gates = &self.projected[row * width(&self.shape)..];
        let gate = |place: usize| gates[(2 * (place / HEAD) + 1) * HEAD + place % HEAD];
        let out = (0..kv_heads).flat_map(of_kv_head).enumerate();
        out.map(|(place, out)| out * cpu::sigmoid(gate(place))).collect()
    }

    fn check(&self, block: usize) {
        let y = self.run(block);
        let heads = self.shape.query_heads;
        for (row, y) in y.chunks_exact(heads * HEAD).enumerate() {
            if self.rows[row][0] == NONE {
                assert!(y.iter().all(|y| y.is_nan()), "row {row} only pads");
                continue;
            }
            let expected: Vec<f64> = (0..heads).flat_map(|head| self.exact(row, head)).collect();
            let what = format!("row {row} at {}, blocks of {block}", self.sequences[self.rows[row][0] as usize][0]);
            close(&what, y, &expected, Bound { relative: 1e-5, absolute: 2e-6 });
            close_to_cpu(&what, y, || self.by_cpu(row), BY_CPU);
        }
    }
}

#[test]
fn contexts_around_the_edges_of_blocks() {
    Step::new(TINY, &[0, 62, 63, 64, NONE, 65, 127, 128], 0.5).check(64);
    Step::new(ODD, &[255, 256, 700, 1], 0.5).check(256);
    if full_size() {
        Step::new(QWEN, &[511, 512], 0.5).check(256);
    }
}

/// The last position there is, over a few pages again and again.
#[test]
fn the_longest_context() {
    if full_size() {
        let mut step = Step::new(Shape { query_heads: 1, kv_heads: 1, ..TINY }, &[5 * PAGE as u32 - 1], 0.5);
        let pages = std::mem::take(&mut step.table);
        step.max_pages = 4096;
        step.table = (0..step.max_pages).map(|page| pages[page % pages.len()]).collect();
        step.sequences[0][0] = 262_143;
        step.check(256);
    }
}

/// The longest context there is, and ones around the 256 blocks whose factors are computed together.
#[test]
fn many_blocks_are_combined() {
    const BLOCK: usize = 256;
    let shape = Shape { query_heads: 2, kv_heads: 1, ..TINY };
    let mut random = Random::new(3);
    for blocks in [1, 255, 256, 257, 1024] {
        let (sums, weights) = (random.floats(2 * blocks * HEAD, 1.0), random.floats(4 * blocks, 3.0));
        // Σ e^(s − max) is positive.
        let weights: Vec<f32> = weights.as_chunks::<2>().0.iter().flat_map(|w| [w[0], w[1].abs() + 0.5]).collect();
        let gates = random.floats(width(&shape), 4.0);
        let mut y = unwritten(2 * HEAD);
        launch(
            "attention_combine",
            &shape,
            &mut [
                Argument::read(&sums),
                Argument::read(&weights),
                Argument::read(&gates),
                Argument::read(&[[0, 0, NONE, 0]]),
                Argument::read(&[[(blocks * BLOCK - 1) as u32, 0, 0, 0]]),
                Argument::write(&mut y),
            ],
            &[BLOCK as u32, blocks as u32, width(&shape) as u32],
            [2, 1, 1],
            256,
        );
        let mut expected = Vec::new();
        for head in 0..2 {
            let weights = &weights[head * blocks * 2..][..blocks * 2];
            let factors: Vec<f64> = weights.iter().step_by(2).map(|&max| f64::from(max).exp()).collect();
            let total: f64 = factors.iter().zip(weights[1..].iter().step_by(2)).map(|(f, &w)| f * f64::from(w)).sum();
            for dim in 0..HEAD {
                let value = |block: usize| f64::from(sums[(head * blocks + block) * HEAD + dim]);
                let sum: f64 = factors.iter().enumerate().map(|(block, factor)| factor * value(block)).sum();
                let gate = f64::from(gates[(2 * head + 1) * HEAD + dim]);
                expected.push(sum / total / (1.0 + (-gate).exp()));
            }
        }
        close(&format!("{blocks} blocks"), &y, &expected, Bound { relative: 1e-5, absolute: 1e-6 });
    }
}

/// Scores so large that all but one weight vanish.
#[test]
fn peaked_attention() {
    Step::new(TINY, &[300], 40.0).check(64);
}

/// A draft's rows see each other's keys, and only backwards.
#[test]
fn rows_of_one_sequence() {
    let mut step = Step::new(TINY, &[66, NONE, NONE], 0.5);
    step.sequences[0][0] = 64;
    step.rows = (0..3).map(|offset| [0, offset, NONE, 0]).collect();
    step.check(64);
}

/// A row's bits do not depend on how many blocks the plan allows, nor on other rows.
#[test]
fn a_row_alone_has_the_same_bits() {
    let both = Step::new(TINY, &[130, 500], 0.5);
    let size = TINY.query_heads * HEAD;
    let mut alone = Step::new(TINY, &[130, 500], 0.5);
    alone.rows[1][0] = NONE;
    assert_eq!(both.run(128)[..size], alone.run(128)[..size]);
}

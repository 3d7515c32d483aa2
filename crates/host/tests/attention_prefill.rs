//! `attention_prefill.metal`: causal attention of many rows over paged keys and values.

mod common;

use common::{
    Argument, Bound, ODD, QWEN, Random, Shape, TINY, close, close_to_cpu, f16, full_size, launch, launch_once,
    unwritten_halves,
};
use lily_cpu::functions as cpu;

const NONE: u32 = u32::MAX;
const HEAD: usize = 256;
const PAGE: usize = 64;

/// A sequence's part of a chunk.
#[derive(Clone, Copy)]
struct Part {
    /// Tokens that it holds.
    position: usize,
    rows: usize,
}

/// A chunk, and the pages of its sequences: in any order, with NaN wherever nothing has been written.
struct Chunk {
    shape: Shape,
    parts: Vec<Part>,
    q: Vec<f32>,
    projected: Vec<f32>,
    keys: Vec<f16>,
    values: Vec<f16>,
    pages: Vec<u32>,
    max_pages: usize,
}

impl Chunk {
    /// With `distinct` pages at most, which a longer sequence repeats.
    fn new(shape: Shape, parts: &[Part], distinct: usize) -> Self {
        let mut random = Random::new(parts.len() as u64);
        let rows: usize = parts.iter().map(|part| part.rows).sum();
        let count = |part: &Part| (part.position + part.rows).div_ceil(PAGE);
        let max_pages = parts.iter().map(count).max().expect("a part");
        let physical = random.permutation(parts.iter().map(|part| count(part).min(distinct)).sum::<usize>() + 1);
        let page = shape.kv_heads * PAGE * HEAD;
        let mut chunk = Self {
            shape,
            parts: parts.to_vec(),
            q: random.floats(rows * shape.query_heads * HEAD, 0.4),
            projected: random.floats(rows * 2 * (shape.query_heads + shape.kv_heads) * HEAD, 3.0),
            keys: unwritten_halves(physical.len() * page),
            values: unwritten_halves(physical.len() * page),
            pages: vec![0x00ff_ffff; parts.len() * max_pages],
            max_pages,
        };
        let mut next = physical.iter();
        for (slot, part) in parts.iter().enumerate() {
            let own: Vec<u32> = next.by_ref().take(count(part).min(distinct)).copied().collect();
            for (index, entry) in chunk.pages[slot * max_pages..][..count(part)].iter_mut().enumerate() {
                *entry = own[index % own.len()];
            }
            for token in 0..(part.position + part.rows).min(distinct * PAGE) {
                for head in 0..shape.kv_heads {
                    let at = chunk.place(slot, token, head);
                    chunk.keys[at..at + HEAD].copy_from_slice(&random.halves(HEAD, 1.7));
                    chunk.values[at..at + HEAD].copy_from_slice(&random.halves(HEAD, 1.7));
                }
            }
        }
        chunk
    }

    /// Where a token's key and value lie.
    fn place(&self, slot: usize, token: usize, head: usize) -> usize {
        let page = self.pages[slot * self.max_pages + token / PAGE] as usize;
        ((page * self.shape.kv_heads + head) * PAGE + token % PAGE) * HEAD
    }

    /// From query `first` of each segment on.
    fn run(&self, first: usize) -> Vec<f16> {
        // Each order takes the longest context seconds.
        let launch = if self.max_pages > 1000 { launch_once } else { launch };
        let mut segments: Vec<[u32; 4]> = vec![[NONE, 0, 0, NONE]];
        let mut row = 0;
        for (slot, part) in self.parts.iter().enumerate() {
            segments.push([slot as u32, row, part.rows as u32, NONE]);
            row += part.rows as u32;
        }
        let sequences: Vec<[u32; 4]> = self.parts.iter().map(|part| [part.position as u32, 0, 0, 0]).collect();
        let longest = self.parts.iter().map(|part| part.rows).max().expect("a part");
        let tokens = 32 / (self.shape.query_heads / self.shape.kv_heads);
        let mut y = unwritten_halves(self.q.len());
        launch(
            "attention_prefill",
            &self.shape,
            &mut [
                Argument::read(&self.q),
                Argument::read(&self.projected),
                Argument::read(&self.keys),
                Argument::read(&self.values),
                Argument::read(&self.pages),
                Argument::read(&segments),
                Argument::read(&sequences),
                Argument::write(&mut y),
            ],
            &[first as u32, self.max_pages as u32],
            [(longest - first).div_ceil(tokens) as u32, self.shape.kv_heads as u32, segments.len() as u32],
            256,
        );
        y
    }

    /// One query head's output in f64; its query is rounded to half as the kernel does.
    fn expected(&self, slot: usize, row: usize, position: usize, head: usize) -> Vec<f64> {
        let Shape { query_heads, kv_heads, .. } = self.shape;
        let q: Vec<f64> =
            self.q[(row * query_heads + head) * HEAD..][..HEAD].iter().map(|&q| f16::from_f32(q).to_f64()).collect();
        let places: Vec<usize> =
            (0..=position).map(|token| self.place(slot, token, head / (query_heads / kv_heads))).collect();
        let score = |&at: &usize| -> f64 { q.iter().zip(&self.keys[at..]).map(|(q, k)| q * k.to_f64()).sum() };
        let scores: Vec<f64> = places.iter().map(score).collect();
        let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (mut out, mut sum) = (vec![0.0; HEAD], 0.0);
        for (at, score) in places.iter().zip(&scores) {
            let weight = (score - highest).exp();
            sum += weight;
            out.iter_mut().zip(&self.values[*at..]).for_each(|(out, v)| *out += weight * v.to_f64());
        }
        let pitch = 2 * (query_heads + kv_heads) * HEAD;
        let gate = &self.projected[row * pitch + (2 * head + 1) * HEAD..][..HEAD];
        out.iter().zip(gate).map(|(out, &gate)| out / sum / (1.0 + (-f64::from(gate)).exp())).collect()
    }

    /// All heads of a row, by the CPU backend's function.
    fn by_cpu(&self, slot: usize, row: usize, position: usize) -> Vec<f32> {
        let Shape { query_heads, kv_heads, .. } = self.shape;
        let group = query_heads / kv_heads * HEAD;
        let of_kv_head = |kv_head: usize| {
            let gather = |cache: &[f16]| {
                let places = (0..=position).map(|token| self.place(slot, token, kv_head));
                places.flat_map(|place| cache[place..place + HEAD].to_vec()).collect::<Vec<f16>>()
            };
            // The kernel's queries are over √256 already.
            let queries = &self.q[row * query_heads * HEAD + kv_head * group..][..group];
            let queries: Vec<f32> = queries.iter().map(|q| q * 16.0).collect();
            cpu::attention(&queries, &gather(&self.keys), &gather(&self.values))
        };
        let gates = &self.projected[row * 2 * (query_heads + kv_heads) * HEAD..];
        let gate = |place: usize| gates[(2 * (place / HEAD) + 1) * HEAD + place % HEAD];
        let out = (0..kv_heads).flat_map(of_kv_head).enumerate();
        out.map(|(place, out)| out * cpu::sigmoid(gate(place))).collect()
    }

    /// Compares the heads of every `step`-th row, from place `first` of each segment on.
    fn check(&self, first: usize, step: usize) {
        let y = self.run(first);
        let width = self.shape.query_heads * HEAD;
        let mut row = 0;
        for (slot, part) in self.parts.iter().enumerate() {
            let what = format!("{} rows at position {}", part.rows, part.position);
            for place in (0..part.rows).step_by(step) {
                let got = &y[(row + place) * width..][..width];
                if place < first {
                    assert!(got.iter().all(|y| y.is_nan()), "{what}: place {place} belongs to another dispatch");
                    continue;
                }
                let expected: Vec<f64> = (0..self.shape.query_heads)
                    .flat_map(|head| self.expected(slot, row + place, part.position + place, head))
                    .collect();
                // Probabilities are rounded to half, values are below 1.7.
                let bound = Bound { relative: 1e-3, absolute: 1e-3 };
                close(&format!("{what}, place {place}"), got, &expected, bound);
                // Its queries are rounded to half here and not there.
                let by_cpu = || self.by_cpu(slot, row + place, part.position + place);
                let bound = Bound { absolute: 2.0 * bound.absolute, ..bound };
                close_to_cpu(&format!("{what}, place {place}"), got, by_cpu, bound);
            }
            row += part.rows;
        }
    }
}

#[test]
fn from_the_first_token_on() {
    Chunk::new(TINY, &[Part { position: 0, rows: 1 }], 9).check(0, 1);
    Chunk::new(TINY, &[Part { position: 0, rows: 33 }], 9).check(0, 1);
    Chunk::new(ODD, &[Part { position: 0, rows: 11 }], 9).check(0, 1);
}

#[test]
fn several_sequences_around_page_boundaries() {
    let parts = [(31, 2), (32, 1), (62, 1), (63, 1), (63, 9), (64, 3), (127, 2)];
    let parts: Vec<_> = parts.iter().map(|&(position, rows)| Part { position, rows }).collect();
    Chunk::new(TINY, &parts, 9).check(0, 1);
}

#[test]
fn a_chunk_in_two_dispatches() {
    let chunk = Chunk::new(TINY, &[Part { position: 40, rows: 30 }, Part { position: 3, rows: 17 }], 9);
    chunk.check(16, 1);
    let whole = chunk.run(0);
    let rest = chunk.run(16);
    let width = TINY.query_heads * HEAD;
    assert_eq!(rest[16 * width..30 * width], whole[16 * width..30 * width], "the same bits in either");
}

#[test]
fn how_rows_are_cut_into_chunks_changes_nothing() {
    let whole = Chunk::new(TINY, &[Part { position: 0, rows: 70 }], 9);
    let y = whole.run(0);
    let width = TINY.query_heads * HEAD;
    for (position, rows) in [(0, 21), (21, 40), (61, 9)] {
        let mut part = Chunk::new(TINY, &[Part { position: 0, rows: 70 }], 9);
        part.parts[0] = Part { position, rows };
        part.q = whole.q[position * width..(position + rows) * width].to_vec();
        let pitch = 2 * (TINY.query_heads + TINY.kv_heads) * HEAD;
        part.projected = whole.projected[position * pitch..(position + rows) * pitch].to_vec();
        assert_eq!(part.run(0), y[position * width..(position + rows) * width], "{rows} rows at {position}");
    }
}

#[test]
fn eight_heads_of_a_kv_head() {
    if full_size() {
        Chunk::new(QWEN, &[Part { position: 100, rows: 6 }, Part { position: 0, rows: 5 }], 9).check(0, 1);
    }
}

/// Eight heads over one KV head: one threadgroup.
const NARROW: Shape = Shape { query_heads: 8, kv_heads: 1, ..TINY };

#[test]
fn a_long_context() {
    if full_size() {
        Chunk::new(NARROW, &[Part { position: 4_998, rows: 2 }], 5).check(1, 1);
    }
}

/// Up to the last position there is, and the one before it.
#[test]
fn the_longest_context() {
    if full_size() {
        let shape = Shape { query_heads: 1, ..NARROW };
        Chunk::new(shape, &[Part { position: 262_142, rows: 2 }], 5).check(1, 1);
    }
}

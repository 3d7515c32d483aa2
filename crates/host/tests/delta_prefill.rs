//! `delta_prepare.metal`, `delta_scan.metal`, `gated_norm.metal`: DeltaNet over the rows of several sequences at once.

mod common;

use std::ops::Range;

use common::{
    Argument, BY_CPU, Bound, EPSILON, QWEN, Random, Shape, TINY, close, full_size, launch, unwritten, unwritten_halves,
};
use lily_cpu::functions as cpu;

const NONE: u32 = u32::MAX;
const SLOTS: usize = 4;

/// The segments of a chunk: slot and rows of each.
type Segments<'a> = &'a [(u32, usize)];

/// What a chunk begins with.
struct Chunk {
    shape: Shape,
    rows: Vec<[u32; 4]>,
    segments: Vec<[u32; 4]>,
    /// Odd slots have flip 1.
    sequences: Vec<[u32; 4]>,
    projected: Vec<f32>,
    conv: Vec<f32>,
    a_log: Vec<f32>,
    dt_bias: Vec<f32>,
    gain: Vec<f32>,
    windows: Vec<f32>,
    states: Vec<f32>,
}

/// What the kernels made of it.
struct Results {
    windows: Vec<f32>,
    states: Vec<f32>,
    convolved: Vec<f32>,
    decay: Vec<f32>,
    beta: Vec<f32>,
    o: Vec<f32>,
    y: Vec<common::f16>,
}

fn pitch(shape: &Shape) -> usize {
    shape.channels() + 130 * shape.value_heads
}

impl Chunk {
    /// With two rows of padding.
    fn new(shape: Shape, segments: Segments<'_>) -> Self {
        let mut random = Random::new(segments.len() as u64);
        let (mut rows, mut records) = (Vec::new(), Vec::new());
        for (index, &(slot, count)) in segments.iter().enumerate() {
            records.push([slot, rows.len() as u32, count as u32, NONE]);
            rows.extend((0..count as u32).map(|offset| [slot, offset, 0, index as u32]));
        }
        rows.extend([[NONE, 0, 0, 0]; 2]);
        Self {
            shape,
            segments: records,
            sequences: (0..SLOTS as u32).map(|slot| [slot * 10, slot % 2, 0, 0]).collect(),
            projected: random.floats(rows.len() * pitch(&shape), 1.7),
            rows,
            conv: random.floats(shape.channels() * 4, 1.0),
            a_log: random.floats(shape.value_heads, 3.0),
            dt_bias: random.floats(shape.value_heads, 2.0),
            gain: random.floats(128, 1.0),
            windows: random.floats(SLOTS * 2 * 3 * shape.channels(), 1.7),
            states: random.floats(SLOTS * 2 * shape.value_heads * 128 * 128, 0.1),
        }
    }

    fn run(&self) -> Results {
        let (shape, rows) = (&self.shape, self.rows.len());
        let heads = shape.value_heads;
        let mut results = Results {
            windows: self.windows.clone(),
            states: self.states.clone(),
            convolved: unwritten(rows * shape.channels()),
            decay: unwritten(rows * heads),
            beta: unwritten(rows * heads),
            o: unwritten(rows * heads * 128),
            y: unwritten_halves(rows * heads * 128),
        };
        launch(
            "delta_prepare",
            shape,
            &mut [
                Argument::read(&self.projected),
                Argument::read(&self.conv),
                Argument::read(&self.a_log),
                Argument::read(&self.dt_bias),
                Argument::read(&self.rows),
                Argument::read(&self.segments),
                Argument::read(&self.sequences),
                Argument::write(&mut results.windows),
                Argument::write(&mut results.convolved),
                Argument::write(&mut results.decay),
                Argument::write(&mut results.beta),
            ],
            &[rows as u32],
            [(2 * shape.key_heads + heads).div_ceil(4) as u32, (rows as u32).div_ceil(8), 1],
            128,
        );
        launch(
            "delta_scan",
            shape,
            &mut [
                Argument::read(&results.convolved),
                Argument::read(&results.decay),
                Argument::read(&results.beta),
                Argument::read(&self.segments),
                Argument::read(&self.sequences),
                Argument::write(&mut results.states),
                Argument::write(&mut results.o),
            ],
            &[],
            [4, heads as u32, self.segments.len() as u32],
            128,
        );
        launch(
            "gated_norm",
            shape,
            &mut [
                Argument::read(&results.o),
                Argument::read(&self.projected),
                Argument::read(&self.gain),
                Argument::write(&mut results.y),
            ],
            &[],
            [heads.div_ceil(4) as u32, rows as u32, 1],
            128,
        );
        results
    }

    /// The projections of a row from column `first` on.
    fn projected(&self, row: usize, first: usize, count: usize) -> Vec<f64> {
        wide(&self.projected[row * pitch(&self.shape) + first..][..count])
    }
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| x.into()).collect()
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// A row's q, k and v: of the inputs of the last four rows.
fn convolve(chunk: &Chunk, inputs: &[Vec<f64>]) -> Vec<f64> {
    let shape = &chunk.shape;
    let sum = |channel: usize| (0..4).map(|tap| inputs[tap][channel] * f64::from(chunk.conv[channel * 4 + tap])).sum();
    let mut out: Vec<f64> = (0..shape.channels()).map(|channel| silu(sum(channel))).collect();
    for (head, out) in out.chunks_exact_mut(128).enumerate().take(2 * shape.key_heads) {
        let factor = if head < shape.key_heads { 1.0 / 128f64.sqrt() } else { 1.0 };
        let scale = factor / (dot(out, out) + 1e-6).sqrt();
        out.iter_mut().for_each(|x| *x *= scale);
    }
    out
}

/// Compares what the kernels made of a segment with what the CPU backend's functions make of it; it moves on from one of the
/// windows and states to another.
fn check_by_cpu(what: &str, chunk: &Chunk, got: &Results, rows: Range<usize>, [from, to]: [usize; 2]) {
    let Shape { key_heads, value_heads: heads, .. } = chunk.shape;
    let (channels, pitch) = (chunk.shape.channels(), pitch(&chunk.shape));
    let (window, state) = (3 * channels, heads * 128 * 128);
    let columns = |first: usize, count: usize| {
        let rows = rows.clone().map(|row| &chunk.projected[row * pitch + first..][..count]);
        rows.collect::<Vec<_>>().concat()
    };
    let mut moved_window = chunk.windows[from * window..(from + 1) * window].to_vec();
    let mut moved_state = chunk.states[from * state..(from + 1) * state].to_vec();
    let convolved = cpu::convolution(&chunk.conv, key_heads, &columns(0, channels), &mut moved_window);
    let [a, b] = [128, 129].map(|place| columns(channels + place * heads, heads));
    let gates = a.chunks_exact(heads).zip(b.chunks_exact(heads));
    let (decay, beta): (Vec<_>, Vec<_>) = gates.map(|(a, b)| cpu::gates(a, b, &chunk.a_log, &chunk.dt_bias)).unzip();
    let (decay, beta) = (decay.concat(), beta.concat());
    let o = cpu::delta_rule(&convolved, &decay, &beta, key_heads, heads, &mut moved_state);
    let y = cpu::gated_norm(&o, &chunk.gain, &columns(channels, heads * 128), EPSILON);
    let here = |width: usize| rows.start * width..rows.end * width;
    close(&format!("{what}: convolved, by the CPU"), &got.convolved[here(channels)], &convolved, BY_CPU);
    close(&format!("{what}: decay, by the CPU"), &got.decay[here(heads)], &decay, BY_CPU);
    close(&format!("{what}: beta, by the CPU"), &got.beta[here(heads)], &beta, BY_CPU);
    close(&format!("{what}: o, by the CPU"), &got.o[here(heads * 128)], &o, BY_CPU);
    let y_bound = Bound { relative: 1e-4, absolute: 1e-4 }.in_half();
    close(&format!("{what}: y, by the CPU"), &got.y[here(heads * 128)], &y, y_bound);
    assert_eq!(got.windows[to * window..(to + 1) * window], moved_window, "{what}: the window, by the CPU");
    close(&format!("{what}: state, by the CPU"), &got.states[to * state..(to + 1) * state], &moved_state, BY_CPU);
}

/// Runs a chunk and compares everything that the kernels write with f64.
fn check(shape: Shape, segments: Segments<'_>) {
    let chunk = Chunk::new(shape, segments);
    let got = chunk.run();
    let (channels, heads) = (shape.channels(), shape.value_heads);
    let (window, state) = (3 * channels, heads * 128 * 128);
    let (mut windows, mut states) = (wide(&chunk.windows), wide(&chunk.states));
    let mut first = 0;
    for &(slot, rows) in segments.iter().filter(|(slot, rows)| *slot != NONE && *rows > 0) {
        let what = format!("slot {slot}, {rows} rows");
        let (slot, flip) = (slot as usize, slot as usize % 2);
        let (from, to) = (slot * 2 + flip, slot * 2 + (flip ^ 1));
        let mut inputs: Vec<Vec<f64>> =
            windows[from * window..(from + 1) * window].chunks_exact(channels).map(<[f64]>::to_vec).collect();
        inputs.extend((first..first + rows).map(|row| chunk.projected(row, 0, channels)));
        let mut current = states[from * state..(from + 1) * state].to_vec();
        // Not where a sanitizer is at work, see close_to_cpu.
        if full_size() {
            check_by_cpu(&what, &chunk, &got, first..first + rows, [from, to]);
        }
        let (mut convolved, mut decays, mut betas) = (Vec::new(), Vec::new(), Vec::new());
        let (mut outputs, mut gated) = (Vec::new(), Vec::new());
        for place in 0..rows {
            let row = first + place;
            let qkv = convolve(&chunk, &inputs[place..place + 4]);
            let a = chunk.projected(row, channels + 128 * heads, heads);
            let b = chunk.projected(row, channels + 129 * heads, heads);
            for head in 0..heads {
                let softplus = (a[head] + f64::from(chunk.dt_bias[head])).exp().ln_1p();
                let decay = (-f64::from(chunk.a_log[head]).exp() * softplus).exp();
                let beta = 1.0 / (1.0 + (-b[head]).exp());
                let key_head = head / (heads / shape.key_heads);
                let q = &qkv[key_head * 128..][..128];
                let k = &qkv[(shape.key_heads + key_head) * 128..][..128];
                let v = &qkv[(2 * shape.key_heads + head) * 128..][..128];
                let mut o = Vec::new();
                for (s, v) in current[head * 128 * 128..][..128 * 128].chunks_exact_mut(128).zip(v) {
                    s.iter_mut().for_each(|s| *s *= decay);
                    let u = beta * (v - dot(s, k));
                    s.iter_mut().zip(k).for_each(|(s, k)| *s += u * k);
                    o.push(dot(s, q));
                }
                let scale = 1.0 / (dot(&o, &o) / 128.0 + f64::from(EPSILON)).sqrt();
                let z = chunk.projected(row, channels + head * 128, 128);
                gated.extend((0..128).map(|v| o[v] * scale * f64::from(chunk.gain[v]) * silu(z[v])));
                outputs.extend(o);
                decays.push(decay);
                betas.push(beta);
            }
            convolved.extend(qkv);
        }
        windows[to * window..(to + 1) * window].copy_from_slice(&inputs[rows..].concat());
        states[to * state..(to + 1) * state].copy_from_slice(&current);
        let here = |width: usize| first * width..(first + rows) * width;
        let bound = |absolute| Bound { relative: 4e-6, absolute };
        close(&format!("{what}: convolved"), &got.convolved[here(channels)], &convolved, bound(1e-6));
        close(&format!("{what}: decay"), &got.decay[here(heads)], &decays, bound(1e-7));
        close(&format!("{what}: beta"), &got.beta[here(heads)], &betas, bound(1e-7));
        close(&format!("{what}: o"), &got.o[here(heads * 128)], &outputs, bound(1e-6));
        // The norm scales a head's output, and with it its error, to about 1.
        close(&format!("{what}: y"), &got.y[here(heads * 128)], &gated, bound(2e-5).in_half());
        first += rows;
    }
    close("windows", &got.windows, &windows, Bound { relative: 0.0, absolute: 1e-30 });
    close("states", &got.states, &states, Bound { relative: 4e-6, absolute: 4e-6 });
    let padding = chunk.rows.iter().filter(|row| row[0] == NONE).count() * channels;
    assert!(got.convolved[got.convolved.len() - padding..].iter().all(|x| x.is_nan()), "padding rows are passed over");
}

#[test]
fn segments_of_every_length() {
    check(TINY, &[(2, 9)]);
    check(TINY, &[(3, 1), (0, 2), (2, 17), (NONE, 0), (1, 4)]);
    check(TINY, &[(0, 8), (1, 3), (2, 31), (3, 33)]);
}

#[test]
fn full_size_heads() {
    if full_size() {
        check(QWEN, &[(1, 3)]);
    }
}

#[test]
fn where_a_sequence_is_cut_between_pairs_changes_nothing() {
    let whole = Chunk::new(TINY, &[(0, 21)]);
    let once = whole.run();
    let mut states = whole.states.clone();
    let mut windows = whole.windows.clone();
    let (mut first, mut flip, mut y) = (0, 0, Vec::new());
    for rows in [10, 2, 8, 1] {
        let mut part = Chunk::new(TINY, &[(0, rows)]);
        let pitch = pitch(&TINY);
        part.projected[..rows * pitch].copy_from_slice(&whole.projected[first * pitch..(first + rows) * pitch]);
        (part.conv, part.a_log) = (whole.conv.clone(), whole.a_log.clone());
        (part.dt_bias, part.gain) = (whole.dt_bias.clone(), whole.gain.clone());
        (part.states, part.windows) = (states, windows);
        part.sequences[0][1] = flip;
        let results = part.run();
        y.extend_from_slice(&results.y[..rows * TINY.value_heads * 128]);
        (states, windows) = (results.states, results.windows);
        first += rows;
        flip ^= 1;
    }
    assert_eq!(y, once.y[..y.len()], "outputs");
    // Four parts end in half 0, one in half 1.
    let half = TINY.value_heads * 128 * 128;
    assert_eq!(states[..half], once.states[half..2 * half], "the state in the end");
    let half = 3 * TINY.channels();
    assert_eq!(windows[..half], once.windows[half..2 * half], "the window in the end");
}

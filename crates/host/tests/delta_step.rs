//! `delta_step.metal`: the DeltaNet mixer of a few rows.

mod common;

use common::{Argument, BY_CPU, Bound, EPSILON, ODD, QWEN, Random, Shape, TINY, close, full_size, launch, unwritten};
use lily_cpu::functions as cpu;

const NONE: u32 = u32::MAX;
const HEAD: usize = 128;
const BOUND: Bound = Bound { relative: 2e-6, absolute: 2e-6 };

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| x.into()).collect()
}

/// The weights of a layer, as the kernel takes them.
struct Layer {
    shape: Shape,
    conv: Vec<f32>,
    a_log: Vec<f32>,
    dt_bias: Vec<f32>,
    gain: Vec<f32>,
}

/// What a layer keeps of a sequence, in f64.
struct Memory {
    /// `[3][channels]`
    window: Vec<f64>,
    /// `[value_heads][128 v][128 k]`
    state: Vec<f64>,
}

impl Layer {
    fn new(shape: Shape, random: &mut Random) -> Self {
        Self {
            shape,
            conv: random.floats(shape.channels() * 4, 1.0),
            a_log: random.floats(shape.value_heads, 3.0),
            dt_bias: random.floats(shape.value_heads, 2.0),
            gain: random.floats(HEAD, 1.5),
        }
    }

    fn width(&self) -> usize {
        self.shape.channels() + self.shape.value_heads * (HEAD + 2)
    }

    /// The kernel over these segments.
    fn launch(
        &self,
        projected: &[f32],
        segments: &[[u32; 4]],
        sequences: &[[u32; 4]],
        windows: &mut [f32],
        states: &mut [f32],
        y: &mut [f32],
    ) {
        launch(
            "delta_step",
            &self.shape,
            &mut [
                Argument::read(projected),
                Argument::read(&self.conv),
                Argument::read(&self.a_log),
                Argument::read(&self.dt_bias),
                Argument::read(&self.gain),
                Argument::read(segments),
                Argument::read(sequences),
                Argument::write(windows),
                Argument::write(states),
                Argument::write(y),
            ],
            &[],
            [self.shape.value_heads as u32, segments.len() as u32, 1],
            512,
        );
    }

    /// One row, in f64: `[value_heads · 128]`.
    fn row(&self, projected: &[f64], memory: &mut Memory) -> Vec<f64> {
        let Shape { key_heads, value_heads, .. } = self.shape;
        let channels = self.shape.channels();
        memory.window.extend_from_slice(&projected[..channels]);
        let convolved: Vec<f64> = (0..channels)
            .map(|channel| {
                let taps = &self.conv[channel * 4..][..4];
                let sum: f64 = taps
                    .iter()
                    .enumerate()
                    .map(|(tap, w)| f64::from(*w) * memory.window[tap * channels + channel])
                    .sum();
                sum * sigmoid(sum)
            })
            .collect();
        memory.window.drain(..channels);
        let mut y = Vec::new();
        for head in 0..value_heads {
            let key_head = head / (value_heads / key_heads);
            let unit = |first: usize, factor: f64| {
                let x = &convolved[first * HEAD..][..HEAD];
                let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                x.iter().map(|x| x / length * factor).collect::<Vec<_>>()
            };
            let (q, k) = (unit(key_head, 1.0 / 128f64.sqrt()), unit(key_heads + key_head, 1.0));
            let v = &convolved[(2 * key_heads + head) * HEAD..][..HEAD];
            let [z, a, b] = [head * HEAD, value_heads * HEAD + head, value_heads * (HEAD + 1) + head]
                .map(|place| &projected[channels + place..]);
            let softplus = (a[0] + f64::from(self.dt_bias[head])).exp().ln_1p();
            let decay = (-f64::from(self.a_log[head]).exp() * softplus).exp();
            let state = &mut memory.state[head * HEAD * HEAD..][..HEAD * HEAD];
            let mut o = Vec::new();
            for (value, state) in state.chunks_exact_mut(HEAD).enumerate() {
                state.iter_mut().for_each(|s| *s *= decay);
                let u = sigmoid(b[0]) * (v[value] - state.iter().zip(&k).map(|(s, k)| s * k).sum::<f64>());
                state.iter_mut().zip(&k).for_each(|(s, k)| *s += u * k);
                o.push(state.iter().zip(&q).map(|(s, q)| s * q).sum::<f64>());
            }
            let mean = o.iter().map(|o| o * o).sum::<f64>() / HEAD as f64;
            let factor = 1.0 / (mean + f64::from(EPSILON)).sqrt();
            y.extend((0..HEAD).map(|i| o[i] * factor * f64::from(self.gain[i]) * z[i] * sigmoid(z[i])));
        }
        y
    }
}

/// What the CPU backend's functions make of a segment: y, and the window and state that they move on.
fn by_cpu(layer: &Layer, projected: &[f32], window: &mut Vec<f32>, state: &mut [f32]) -> Vec<f32> {
    let Shape { key_heads, value_heads: heads, .. } = layer.shape;
    let channels = layer.shape.channels();
    let columns = |first: usize, count: usize| {
        let rows = projected.chunks_exact(layer.width());
        rows.flat_map(|row| row[first..first + count].to_vec()).collect::<Vec<f32>>()
    };
    let convolved = cpu::convolution(&layer.conv, key_heads, &columns(0, channels), window);
    let [a, b] = [0, 1].map(|place| columns(channels + heads * (HEAD + place), heads));
    let gates = a.chunks_exact(heads).zip(b.chunks_exact(heads));
    let (decay, beta): (Vec<_>, Vec<_>) = gates.map(|(a, b)| cpu::gates(a, b, &layer.a_log, &layer.dt_bias)).unzip();
    let o = cpu::delta_rule(&convolved, &decay.concat(), &beta.concat(), key_heads, heads, state);
    cpu::gated_norm(&o, &layer.gain, &columns(channels, heads * HEAD), EPSILON)
}

/// Segments of 8, 1, 3 and 0 (padding) rows; sequences in other slots, some flipped. Halves that are not a segment's to
/// write stay as they were.
fn check(shape: Shape) {
    const SLOTS: usize = 4;
    const ROWS: usize = 12;
    let mut random = Random::new(1);
    let layer = Layer::new(shape, &mut random);
    let (channels, width) = (shape.channels(), layer.width());
    let (window_size, state_size) = (3 * channels, shape.value_heads * HEAD * HEAD);
    let projected = random.floats(ROWS * width, 2.0);
    let windows = random.floats(SLOTS * 2 * window_size, 2.0);
    let states = random.floats(SLOTS * 2 * state_size, 0.2);
    let segments = [[2, 0, 8, 0], [0, 8, 1, 1], [NONE, 0, 0, NONE], [3, 9, 3, NONE]];
    let sequences = [[5, 1, 0, 0], [0, 0, 0, 0], [77, 1, 2, 0], [0, 0, 0, 0]];
    let (mut new_windows, mut new_states) = (windows.clone(), states.clone());
    let mut y = unwritten(ROWS * shape.value_heads * HEAD);
    layer.launch(&projected, &segments, &sequences, &mut new_windows, &mut new_states, &mut y);
    let (mut expected_windows, mut expected_states, mut expected) = (wide(&windows), wide(&states), Vec::new());
    for [slot, first_row, rows, _] in segments.map(|segment| segment.map(|x| x as usize)) {
        if slot == NONE as usize {
            continue;
        }
        let flip = sequences[slot][1] as usize;
        let (old, new) = (slot * 2 + flip, slot * 2 + 1 - flip);
        let mut memory = Memory {
            window: wide(&windows[old * window_size..][..window_size]),
            state: wide(&states[old * state_size..][..state_size]),
        };
        for row in first_row..first_row + rows {
            expected.extend(layer.row(&wide(&projected[row * width..][..width]), &mut memory));
        }
        // Not where a sanitizer is at work, see close_to_cpu.
        if full_size() {
            let mut window = windows[old * window_size..][..window_size].to_vec();
            let mut state = states[old * state_size..][..state_size].to_vec();
            let rows_of = |width: usize| first_row * width..(first_row + rows) * width;
            let y_by_cpu = by_cpu(&layer, &projected[rows_of(width)], &mut window, &mut state);
            let y_bound = Bound { relative: 1e-4, absolute: 1e-4 };
            close("y, by the CPU", &y[rows_of(shape.value_heads * HEAD)], &y_by_cpu, y_bound);
            assert_eq!(new_windows[new * window_size..][..window_size], window, "the window, by the CPU");
            close("the state, by the CPU", &new_states[new * state_size..][..state_size], &state, BY_CPU);
        }
        expected_windows[new * window_size..][..window_size].copy_from_slice(&memory.window);
        expected_states[new * state_size..][..state_size].copy_from_slice(&memory.state);
    }
    close("y", &y, &expected, BOUND);
    close("windows", &new_windows, &expected_windows, Bound { relative: 0.0, absolute: f64::MIN_POSITIVE });
    close("states", &new_states, &expected_states, BOUND);
}

#[test]
fn agrees_with_f64() {
    check(TINY);
    check(ODD);
    if full_size() {
        check(Shape { key_heads: 2, value_heads: 4, ..QWEN });
    }
}

/// A sequence's rows one step at a time give the bits that they give in one step.
#[test]
fn steps_and_a_segment_give_the_same_bits() {
    const ROWS: usize = 5;
    let shape = Shape { key_heads: 1, value_heads: 2, ..TINY };
    let mut random = Random::new(2);
    let layer = Layer::new(shape, &mut random);
    let projected = random.floats(ROWS * layer.width(), 2.0);
    let run = |step: usize| {
        let mut windows = vec![0.0f32; 2 * 3 * shape.channels()];
        let mut states = vec![0.0f32; 2 * shape.value_heads * HEAD * HEAD];
        let mut y = unwritten(ROWS * shape.value_heads * HEAD);
        for (index, first) in (0..ROWS).step_by(step).enumerate() {
            let segments = [[0, first as u32, step as u32, NONE]];
            let sequences = [[first as u32, index as u32 % 2, 0, 0]];
            layer.launch(&projected, &segments, &sequences, &mut windows, &mut states, &mut y);
        }
        // After an odd number of steps the other half is current: both runs end there.
        let half = states.len() / 2;
        (y, states[half..].to_vec())
    };
    assert_eq!(run(1), run(ROWS));
}

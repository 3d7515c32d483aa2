//! DeltaNet's short causal convolution.

use rayon::prelude::*;

use super::{HEAD_DIM, ITEMS_PER_TASK};
use crate::math::silu;
use crate::norm::unit_length;
use crate::state::Recurrent;
use crate::step::Step;
use crate::vector::{self, Kernel, LANES, Lanes};

/// Inputs an output sees, itself among them; the checkpoint crate refuses any other width.
const TAPS: usize = 4;

/// A depthwise convolution over time without bias, then SiLU: `y[t][c] = silu(Σⱼ taps[j][c] · x[t − 3 + j][c])`; then
/// query and key heads get unit length, queries also the factor 1/√128.
pub(crate) struct Convolution {
    /// `[TAPS, channels]`, oldest first.
    taps: Vec<f32>,
    channels: usize,
}

impl Convolution {
    /// From the checkpoint's `[channels, TAPS]`.
    pub(crate) fn new(conv1d: &[f32]) -> Self {
        let channels = conv1d.len() / TAPS;
        let taps = (0..TAPS).flat_map(|tap| conv1d.iter().skip(tap).step_by(TAPS).copied()).collect();
        Self { taps, channels }
    }

    /// `out[rows, channels]` from `x[rows, channels]` and the windows of the runs, which move on. The first
    /// `unit_heads` heads are the queries and the keys, half and half.
    pub(crate) fn forward(
        &self,
        step: &Step,
        unit_heads: usize,
        x: &[f32],
        recurrent: &mut [&mut Recurrent],
        out: &mut [f32],
    ) {
        let heads = self.channels / HEAD_DIM;
        let windows: Vec<&[f32]> = recurrent.iter().map(|recurrent| &recurrent.window[..]).collect();
        // For each row, its run and its place in it.
        let places: Vec<(usize, usize)> = step
            .runs
            .iter()
            .enumerate()
            .flat_map(|(index, run)| (0..run.rows).map(move |place| (index, place)))
            .collect();
        out.par_chunks_exact_mut(HEAD_DIM).enumerate().with_min_len(ITEMS_PER_TASK).for_each(|(index, out)| {
            let (row, head) = (index / heads, index % heads);
            let (run, place) = places[row];
            let channels = head * HEAD_DIM..(head + 1) * HEAD_DIM;
            let inputs = std::array::from_fn(|tap| {
                let before = TAPS - 1 - tap;
                let (rows, row) = if before <= place { (x, row - before) } else { (windows[run], place + tap) };
                &rows[row * self.channels..][channels.clone()]
            });
            let taps = std::array::from_fn(|tap| &self.taps[tap * self.channels..][channels.clone()]);
            let unit = match head {
                head if head < unit_heads / 2 => Some(1.0 / (HEAD_DIM as f32).sqrt()),
                head if head < unit_heads => Some(1.0),
                _ => None,
            };
            vector::run(step.simd, Head { inputs, taps, unit, out });
        });
        for (run, recurrent) in step.runs.iter().zip(recurrent) {
            advance(&mut recurrent.window, run.of(x, self.channels));
        }
    }
}

/// The window after `inputs`: what was last, oldest first.
fn advance(window: &mut [f32], inputs: &[f32]) {
    if let Some(start) = inputs.len().checked_sub(window.len()) {
        window.copy_from_slice(&inputs[start..]);
    } else {
        window.copy_within(inputs.len().., 0);
        let kept = window.len() - inputs.len();
        window[kept..].copy_from_slice(inputs);
    }
}

/// One head of one row.
struct Head<'a> {
    inputs: [&'a [f32]; TAPS],
    taps: [&'a [f32]; TAPS],
    /// The length to give it.
    unit: Option<f32>,
    out: &'a mut [f32],
}

impl Kernel for Head<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let inputs = self.inputs.map(|input| input.as_chunks::<LANES>().0);
        let taps = self.taps.map(|tap| tap.as_chunks::<LANES>().0);
        for (index, out) in self.out.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let mut sum = V::load(&inputs[0][index]).mul(V::load(&taps[0][index]));
            for tap in 1..TAPS {
                sum = V::load(&inputs[tap][index]).mul_add(V::load(&taps[tap][index]), sum);
            }
            sum.store(out);
        }
        for out in self.out.iter_mut() {
            *out = silu(*out);
        }
        if let Some(length) = self.unit {
            unit_length::<V>(self.out, length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rope::Rope;
    use crate::simd::Simd;
    use crate::step::Run;
    use crate::vector::tests::noise;

    const HEADS: usize = 3;
    const CHANNELS: usize = HEADS * HEAD_DIM;

    fn recurrent() -> Recurrent {
        Recurrent { state: Vec::new(), window: vec![0.0; (TAPS - 1) * CHANNELS] }
    }

    /// Convolves a run for each of `inputs`, all in one call.
    fn convolve(simd: Simd, conv1d: &[f32], inputs: &[&[f32]], recurrent: &mut [Recurrent]) -> Vec<f32> {
        let mut first_row = 0;
        let runs = inputs.iter().map(|x| {
            let run = Run { first_row, rows: x.len() / CHANNELS, position: 0 };
            first_row += run.rows;
            run
        });
        let step = Step { simd, runs: runs.collect(), rows: inputs.concat().len() / CHANNELS, rope: Rope::new(2, 1.0) };
        let mut out = vec![0.0; step.rows * CHANNELS];
        let mut recurrent: Vec<_> = recurrent.iter_mut().collect();
        Convolution::new(conv1d).forward(&step, 2, &inputs.concat(), &mut recurrent, &mut out);
        out
    }

    #[test]
    fn agrees_with_the_direct_form() {
        let (x, conv1d) = (noise(1, 9 * CHANNELS), noise(2, CHANNELS * TAPS));
        let y = convolve(Simd::best(), &conv1d, &[&x], &mut [recurrent()]);
        for row in 0..9 {
            let direct: Vec<f64> = (0..CHANNELS)
                .map(|channel| {
                    let sum: f64 = (0..TAPS)
                        .filter(|tap| row + tap >= TAPS - 1)
                        .map(|tap| {
                            let x = x[(row + tap + 1 - TAPS) * CHANNELS + channel];
                            f64::from(x) * f64::from(conv1d[channel * TAPS + tap])
                        })
                        .sum();
                    sum / (1.0 + (-sum).exp())
                })
                .collect();
            for head in 0..HEADS {
                let of_head = &direct[head * HEAD_DIM..][..HEAD_DIM];
                let length = (of_head.iter().map(|y| y * y).sum::<f64>() + 1e-6).sqrt();
                let factor = [1.0 / length / 128f64.sqrt(), 1.0 / length, 1.0][head];
                for (dim, exact) in of_head.iter().enumerate() {
                    let got = y[row * CHANNELS + head * HEAD_DIM + dim];
                    assert!((f64::from(got) - exact * factor).abs() < 1e-6, "row {row}, head {head}, dim {dim}");
                }
            }
        }
    }

    #[test]
    fn chunks_batches_and_instruction_sets_give_the_same_bits() {
        let (x, other, conv1d) = (noise(1, 9 * CHANNELS), noise(3, 5 * CHANNELS), noise(2, CHANNELS * TAPS));
        let whole = convolve(Simd::Scalar, &conv1d, &[&x], &mut [recurrent()]);
        for simd in Simd::available() {
            for chunk in 1..=9 {
                let mut states = [recurrent(), recurrent()];
                let mut chunked = Vec::new();
                for x in x.chunks(chunk * CHANNELS) {
                    let out = convolve(simd, &conv1d, &[&other, x], &mut states);
                    chunked.extend_from_slice(&out[other.len()..]);
                }
                assert_eq!(chunked, whole, "{simd}, chunks of {chunk}");
            }
        }
    }
}

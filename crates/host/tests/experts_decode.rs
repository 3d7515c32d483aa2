//! `experts_up.metal`, `experts_down.metal`: the mixture of experts of a few rows.

mod common;

use common::{
    Argument, Bound, EPSILON, ODD, PRODUCT_BY_CPU, QWEN, Quantised, Random, Shape, TINY, close, full_size, launch,
    unwritten,
};
use lily_cpu::functions as cpu;

const NONE: u32 = u32::MAX;
const CHOSEN: usize = 8;
const RANKS: usize = CHOSEN + 1;

fn bind(matrix: &Quantised) -> [Argument<'_>; 3] {
    [Argument::read(&matrix.words), Argument::read(&matrix.scales), Argument::read(&matrix.biases)]
}

struct Layer {
    shape: Shape,
    gain: Vec<f32>,
    gate: Quantised,
    up: Quantised,
    down: Quantised,
    shared_gate: Quantised,
    shared_up: Quantised,
    shared_down: Quantised,
}

/// What a step gives: the choices (expert, bits of the weight), the hidden values and the new residual stream.
struct Outcome {
    choices: Vec<[u32; 2]>,
    hidden: Vec<f32>,
    x: Vec<f32>,
}

impl Layer {
    fn new(shape: Shape) -> Self {
        let random = &mut Random::new(1);
        let Shape { hidden, expert_width: width, experts, .. } = shape;
        Self {
            shape,
            gain: random.floats(hidden, 0.2).iter().map(|x| 1.0 + x).collect(),
            gate: Quantised::stack(random, experts, width, hidden, 4),
            up: Quantised::stack(random, experts, width, hidden, 4),
            down: Quantised::stack(random, experts, hidden, width, 4),
            shared_gate: Quantised::new(random, width, hidden, 4),
            shared_up: Quantised::new(random, width, hidden, 4),
            shared_down: Quantised::new(random, hidden, width, 4),
        }
    }

    fn run(&self, slots: &[u32], x: &[f32], logits: &[f32]) -> Outcome {
        let Shape { hidden: columns, expert_width: width, .. } = self.shape;
        let rows: Vec<[u32; 4]> = slots.iter().map(|&slot| [slot, 0, NONE, 0]).collect();
        let count = rows.len() as u32;
        let mut hidden = unwritten(rows.len() * RANKS * width);
        let mut choices = vec![[NONE; 2]; rows.len() * RANKS];
        let mut arguments: Vec<_> =
            [&self.gate, &self.up, &self.shared_gate, &self.shared_up].into_iter().flat_map(bind).collect();
        arguments.extend([
            Argument::read(x),
            Argument::read(&self.gain),
            Argument::read(logits),
            Argument::read(&rows),
        ]);
        arguments.extend([Argument::write(&mut hidden), Argument::write(&mut choices)]);
        launch("experts_up", &self.shape, &mut arguments, &[], [width as u32 / 16, RANKS as u32, count], 256);
        let mut out = x.to_vec();
        let mut arguments: Vec<_> = [&self.down, &self.shared_down].into_iter().flat_map(bind).collect();
        arguments.extend([Argument::read(&hidden), Argument::read(&choices), Argument::read(&rows)]);
        arguments.push(Argument::write(&mut out));
        launch("experts_down", &self.shape, &mut arguments, &[], [columns as u32 / 16, count, 1], 256);
        Outcome { choices, hidden, x: out }
    }

    /// One row in f64: choices, hidden values, residual stream.
    fn exact(&self, x: &[f32], logits: &[f32]) -> (Vec<(u32, f64)>, Vec<f64>, Vec<f64>) {
        let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / x.len() as f64;
        let factor = 1.0 / (mean + f64::from(EPSILON)).sqrt();
        let n: Vec<f64> = x.iter().zip(&self.gain).map(|(&x, &gain)| f64::from(x) * factor * f64::from(gain)).collect();
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let (routed, shared) = logits.split_at(self.shape.experts);
        let mut order: Vec<usize> = (0..routed.len()).collect();
        order.sort_by(|&a, &b| routed[b].total_cmp(&routed[a]));
        order.truncate(CHOSEN);
        let weight = |expert: &usize| f64::from(routed[*expert] - routed[order[0]]).exp();
        let total: f64 = order.iter().map(weight).sum();
        let mut choices: Vec<_> = order.iter().map(|expert| (*expert as u32, weight(expert) / total)).collect();
        choices.push((self.shape.experts as u32, sigmoid(shared[0].into())));
        let (mut hidden, mut out) = (Vec::new(), x.iter().map(|&x| x.into()).collect::<Vec<f64>>());
        for (rank, &(expert, weight)) in choices.iter().enumerate() {
            let (gate, up, down, index) = if rank < CHOSEN {
                (&self.gate, &self.up, &self.down, expert as usize)
            } else {
                (&self.shared_gate, &self.shared_up, &self.shared_down, 0)
            };
            let values = gate.product(index, &n).into_iter().zip(up.product(index, &n));
            let values: Vec<f64> = values.map(|(gate, up)| gate * sigmoid(gate) * up).collect();
            out.iter_mut().zip(down.product(index, &values)).for_each(|(out, y)| *out += weight * y);
            hidden.extend(values);
        }
        (choices, hidden, out)
    }

    /// As [`exact`](Self::exact), by the CPU backend's functions.
    fn by_cpu(&self, x: &[f32], logits: &[f32]) -> (Vec<(u32, f32)>, Vec<f32>, Vec<f32>) {
        let n = cpu::rms_norm(x, &self.gain, EPSILON);
        let (routed, shared) = logits.split_at(self.shape.experts);
        let mut choices = cpu::route(routed, self.shape.experts, CHOSEN).remove(0);
        choices.push((self.shape.experts as u32, cpu::sigmoid(shared[0])));
        let (mut hidden, mut out) = (Vec::new(), x.to_vec());
        for (rank, &(expert, weight)) in choices.iter().enumerate() {
            let (gate, up, down) = match rank {
                CHOSEN => (self.shared_gate.matrix(0), self.shared_up.matrix(0), self.shared_down.matrix(0)),
                _ => (
                    self.gate.matrix(expert as usize),
                    self.up.matrix(expert as usize),
                    self.down.matrix(expert as usize),
                ),
            };
            let values = cpu::swiglu(&cpu::product(gate, &n), &cpu::product(up, &n));
            out.iter_mut().zip(cpu::product(down, &values)).for_each(|(out, y)| *out += weight * y);
            hidden.extend(values);
        }
        (choices, hidden, out)
    }

    fn check(&self, slots: &[u32], logits: &[f32]) {
        let Shape { hidden: columns, expert_width: width, experts, .. } = self.shape;
        let x = Random::new(2).floats(slots.len() * columns, 2.0);
        let got = self.run(slots, &x, logits);
        for (row, &slot) in slots.iter().enumerate() {
            let x = &x[row * columns..][..columns];
            let (choices, hidden) =
                (&got.choices[row * RANKS..][..RANKS], &got.hidden[row * RANKS * width..][..RANKS * width]);
            let out = &got.x[row * columns..][..columns];
            if slot == NONE {
                assert!(hidden.iter().all(|h| h.is_nan()) && out == x, "row {row} only pads");
                continue;
            }
            let (expected, expected_hidden, expected_out) =
                self.exact(x, &logits[row * (experts + 1)..][..experts + 1]);
            let ids = |choices: &[[u32; 2]]| choices.iter().map(|choice| choice[0]).collect::<Vec<_>>();
            assert_eq!(
                ids(choices),
                expected.iter().map(|choice| choice.0).collect::<Vec<_>>(),
                "experts of row {row}"
            );
            let weights: Vec<f32> = choices.iter().map(|choice| f32::from_bits(choice[1])).collect();
            let exact: Vec<f64> = expected.iter().map(|choice| choice.1).collect();
            close("weights", &weights, &exact, Bound { relative: 1e-6, absolute: 0.0 });
            let bound = Bound { relative: 2e-6, absolute: 2e-6 };
            close("hidden", hidden, &expected_hidden, bound);
            close("x", out, &expected_out, bound);
            // Not where a sanitizer is at work, see close_to_cpu.
            if full_size() {
                let (choices_by_cpu, hidden_by_cpu, out_by_cpu) =
                    self.by_cpu(x, &logits[row * (experts + 1)..][..experts + 1]);
                let ids_by_cpu: Vec<u32> = choices_by_cpu.iter().map(|choice| choice.0).collect();
                assert_eq!(ids(choices), ids_by_cpu, "experts of row {row}, by the CPU");
                // Two products one after the other.
                let bound = Bound { relative: 1e-3, ..PRODUCT_BY_CPU };
                close("hidden, by the CPU", hidden, &hidden_by_cpu, bound);
                close("x, by the CPU", out, &out_by_cpu, bound);
            }
        }
    }
}

#[test]
fn agrees_with_f64() {
    for shape in [TINY, ODD] {
        let logits = Random::new(3).floats(3 * (shape.experts + 1), 4.0);
        Layer::new(shape).check(&[0, NONE, 2], &logits);
    }
    if full_size() {
        let shape = Shape { hidden: 1088, experts: 10, ..QWEN };
        Layer::new(shape).check(&[0], &Random::new(3).floats(shape.experts + 1, 4.0));
    }
}

/// Equal logits, all and in part; the eighth place is tied too.
#[test]
fn ties_go_to_the_lower_expert() {
    let shape = Shape { hidden: 64, expert_width: 64, experts: 256, ..TINY };
    let width = shape.experts + 1;
    let mut logits = vec![0.5; 3 * width];
    for (expert, logit) in logits[width..2 * width].iter_mut().enumerate() {
        *logit = [-1.0, 0.0, 2.0][expert * 7 % 3];
    }
    for (expert, logit) in logits[2 * width..].iter_mut().enumerate() {
        *logit = if expert >= 248 { 3.0 } else { -(expert as f32) };
    }
    Layer::new(shape).check(&[0, 1, 2], &logits);
}

/// Whatever the logits, the chosen are eight different experts that there are, and a lost row stays alone.
#[test]
fn nan_is_never_out_of_bounds() {
    let layer = Layer::new(Shape { hidden: 64, ..TINY });
    let width = TINY.experts + 1;
    let mut logits = Random::new(4).floats(3 * width, 1.0);
    logits[..width].fill(f32::NAN);
    logits[width..width + 28].fill(f32::NAN);
    logits[2 * width + 3] = f32::NAN;
    logits[2 * width + 4] = f32::NEG_INFINITY;
    let x = Random::new(5).floats(3 * 64, 1.0);
    let got = layer.run(&[0, 1, 2], &x, &logits);
    for (row, choices) in got.choices.chunks_exact(RANKS).enumerate() {
        let mut experts: Vec<u32> = choices[..CHOSEN].iter().map(|choice| choice[0]).collect();
        experts.sort_unstable();
        experts.dedup();
        assert!(experts.len() == CHOSEN && experts[CHOSEN - 1] < TINY.experts as u32, "row {row}: {experts:?}");
    }
    let (expected, _, expected_x) = layer.exact(&x[128..], &{
        let mut logits = logits[2 * width..].to_vec();
        logits[3] = f32::NEG_INFINITY;
        logits
    });
    let third: Vec<u32> = got.choices[2 * RANKS..].iter().map(|choice| choice[0]).collect();
    assert_eq!(third, expected.iter().map(|choice| choice.0).collect::<Vec<_>>());
    close("x of the sound row", &got.x[128..], &expected_x, Bound { relative: 2e-6, absolute: 2e-6 });
}

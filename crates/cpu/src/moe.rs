//! The mixture of experts: a router, many small SwiGLU networks of which a token passes a few, and one all tokens pass.
//!
//! With x a row of the normalised residual stream:
//!
//! ```text
//! expert(x) = W_down (silu(W_gate x) · W_up x)
//! y = Σ_r w_r · expert_{e_r}(x) + sigmoid(w_s·x) · shared_expert(x)      e, w: see [`routing`]
//! ```
//!
//! The rows are grouped by expert, so that an expert's weights are read once however many rows it has. A row's sum runs
//! by descending weight, the shared expert last, whatever else is in the batch.

pub(crate) mod routing;

use lily_checkpoint::MoeConfig;
use rayon::prelude::*;

use crate::activations::{Activations, Planes};
use crate::math::{sigmoid, silu};
use crate::matmul::{Product, matmul};
use crate::step::{Step, linear};
use crate::vector::{self, Kernel, LANES, Lanes};
use crate::workspace::Arena;
use routing::Routing;

/// Values of a SwiGLU handed to a thread at once.
const VALUES_PER_TASK: usize = 4096;
/// Rows of the weighted sum handed to a thread at once.
const ROWS_PER_TASK: usize = 4;

/// The mixture of experts of a layer.
pub(crate) struct Moe {
    weights: lily_checkpoint::Moe,
    sizes: MoeConfig,
    hidden: usize,
}

/// What a mixture needs beside the arena, kept from one step to the next.
pub(crate) struct MoeWorkspace {
    routing: Routing,
    routed: Activations,
    shared: Activations,
}

impl MoeWorkspace {
    pub(crate) fn new() -> Self {
        Self { routing: Routing::default(), routed: Activations::new(), shared: Activations::new() }
    }
}

impl Moe {
    pub(crate) fn new(hidden: usize, sizes: &MoeConfig, weights: lily_checkpoint::Moe) -> Self {
        Self { weights, sizes: sizes.clone(), hidden }
    }

    /// Columns of the activations: router, shared gate; gate, up and down of the routed experts (all of a row's), gate,
    /// up and down of the shared one.
    pub(crate) fn widths(hidden: usize, sizes: &MoeConfig) -> [usize; 8] {
        let (routed, shared) = (sizes.experts_per_token * sizes.expert_width, sizes.shared_expert_width);
        [sizes.experts, 1, routed, routed, sizes.experts_per_token * hidden, shared, shared, hidden]
    }

    /// `x[rows, hidden] += y`, from the normalised `input[rows, hidden]`.
    pub(crate) fn forward(
        &self,
        step: &Step,
        input: &Activations,
        arena: &mut Arena,
        workspace: &mut MoeWorkspace,
        x: &mut [f32],
    ) {
        let MoeWorkspace { routing, routed, shared } = workspace;
        let [router, shared_gate, gate, up, down, shared_gated, shared_up, shared_down] =
            arena.carve(step.rows, Self::widths(self.hidden, &self.sizes));
        matmul(
            step.simd,
            &mut [
                linear(&self.weights.gate, input, router),
                linear(&self.weights.shared_expert_gate, input, shared_gate),
            ],
        );
        routing.route(router, self.sizes.experts, self.sizes.experts_per_token);

        let (experts, width) = (&self.weights.experts, self.sizes.expert_width);
        let mut products = vec![
            linear(&self.weights.shared_expert.gate_proj, input, shared_gated),
            linear(&self.weights.shared_expert.up_proj, input, shared_up),
        ];
        let pieces = routing.cut(gate, width).into_iter().zip(routing.cut(up, width));
        for ((expert, rows), (gate, up)) in routing.experts().zip(pieces) {
            products.push(Product { weight: experts.gate_proj.get(expert), input, rows: Some(rows), out: gate });
            products.push(Product { weight: experts.up_proj.get(expert), input, rows: Some(rows), out: up });
        }
        matmul(step.simd, &mut products);
        drop(products);

        let swiglu = |gate: &mut [f32], up: &[f32]| {
            let pieces = gate.par_chunks_mut(VALUES_PER_TASK).zip(up.par_chunks(VALUES_PER_TASK));
            pieces.for_each(|(gate, up)| vector::run(step.simd, SwiGlu { gate, up }));
        };
        swiglu(gate, up);
        swiglu(shared_gated, shared_up);
        // A SwiGLU's output is spiky. In one plane these inputs alone make most of the positions whose largest logit is
        // not the reference's: 1.1 % against 0.3 % in two planes, measured on the tiny checkpoint.
        routed.set(step.simd, gate, step.rows * self.sizes.experts_per_token, width, Planes::Two);
        shared.set(step.simd, shared_gated, step.rows, self.sizes.shared_expert_width, Planes::Two);

        let mut products = vec![linear(&self.weights.shared_expert.down_proj, shared, shared_down)];
        for ((expert, rows), out) in routing.experts_by_place().zip(routing.cut(down, self.hidden)) {
            products.push(Product { weight: experts.down_proj.get(expert), input: routed, rows: Some(rows), out });
        }
        matmul(step.simd, &mut products);
        drop(products);

        let rows = x.par_chunks_exact_mut(self.hidden).enumerate().with_min_len(ROWS_PER_TASK);
        rows.for_each(|(row, x)| {
            let (places, weights) = routing.of_row(row);
            let shared = &shared_down[row * self.hidden..][..self.hidden];
            let shared_weight = sigmoid(shared_gate[row]);
            vector::run(step.simd, Mix { x, outputs: down, places, weights, shared, shared_weight });
        });
    }
}

/// In place: `gate ← silu(gate) · up`.
struct SwiGlu<'a> {
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl Kernel for SwiGlu<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        for (gate, up) in self.gate.iter_mut().zip(self.up) {
            *gate = silu(*gate) * up;
        }
    }
}

/// One row: x plus the weighted sum of its experts' outputs, which lie at its places.
struct Mix<'a> {
    x: &'a mut [f32],
    /// `[places, hidden]`
    outputs: &'a [f32],
    places: &'a [u32],
    weights: &'a [f32],
    shared: &'a [f32],
    shared_weight: f32,
}

impl Kernel for Mix<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let hidden = self.x.len();
        let shared = self.shared.as_chunks::<LANES>().0;
        for (index, x) in self.x.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let mut sum = V::splat(0.0);
            for (place, weight) in self.places.iter().zip(self.weights) {
                let output =
                    self.outputs[*place as usize * hidden + index * LANES..].first_chunk().expect("whole rows");
                sum = V::splat(*weight).mul_add(V::load(output), sum);
            }
            sum = V::splat(self.shared_weight).mul_add(V::load(&shared[index]), sum);
            V::load(x).add(sum).store(x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Simd;
    use crate::vector::tests::noise;

    #[test]
    fn kernels_agree_with_f64_on_every_instruction_set() {
        const HIDDEN: usize = 64;
        let (gate, up, outputs, x) = (noise(1, 100), noise(2, 100), noise(3, 5 * HIDDEN), noise(4, HIDDEN));
        let (places, weights, shared) = ([4, 0, 2], [0.5, 0.3, 0.2], noise(5, HIDDEN));
        let mut first = None;
        for simd in Simd::available() {
            let (mut gated, mut mixed) = (gate.clone(), x.clone());
            vector::run(simd, SwiGlu { gate: &mut gated, up: &up });
            for index in 0..gate.len() {
                let (gate, up) = (f64::from(gate[index]), f64::from(up[index]));
                assert!((f64::from(gated[index]) - gate / (1.0 + (-gate).exp()) * up).abs() < 1e-6);
            }
            let mix = Mix {
                x: &mut mixed,
                outputs: &outputs,
                places: &places,
                weights: &weights,
                shared: &shared,
                shared_weight: 0.7,
            };
            vector::run(simd, mix);
            for dim in 0..HIDDEN {
                let routed: f64 = places
                    .iter()
                    .zip(weights)
                    .map(|(place, weight)| f64::from(weight) * f64::from(outputs[*place as usize * HIDDEN + dim]))
                    .sum();
                let exact = f64::from(x[dim]) + routed + 0.7 * f64::from(shared[dim]);
                assert!((f64::from(mixed[dim]) - exact).abs() < 1e-6);
            }
            let both = (gated, mixed);
            assert_eq!(&both, first.get_or_insert(both.clone()), "{simd}");
        }
    }
}

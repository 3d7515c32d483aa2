//! The specification of the quantisation, in plain Rust.

use lily_checkpoint::GROUP;

use super::{Row, steps};

/// Quantises a row into its planes.
pub(super) fn quantise(row: Row<'_>) {
    let cols = row.x.len();
    let groups = cols / GROUP;
    for (group, x) in row.x.chunks_exact(GROUP).enumerate() {
        let mut rest: [f32; GROUP] = std::array::from_fn(|k| x[k]);
        for plane in 0..row.planes {
            let quantised = &mut row.quantised[plane * cols + group * GROUP..][..GROUP];
            let finite = rest.iter().all(|r| r.is_finite());
            let amax = if finite { rest.iter().fold(0.0f32, |amax, r| amax.max(r.abs())) } else { f32::NAN };
            let (step, inverse) = steps(amax);
            let mut sum = 0i32;
            for (k, r) in rest.iter_mut().enumerate() {
                let q = if finite { (*r * inverse).round_ties_even() as i8 } else { 0 };
                quantised[k % 2 * (GROUP / 2) + k / 2] = q;
                sum += i32::from(q);
                *r = (-step).mul_add(f32::from(q), *r);
            }
            row.steps[plane * groups + group] = step;
            row.sums[plane * groups + group] = step * sum as f32;
        }
    }
}

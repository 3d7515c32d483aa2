//! Whether a kernel's results are what they should be.

use half::f16;

/// How far a result may be off.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// Of the exact value.
    pub relative: f64,
    /// Besides, in units of the result.
    pub absolute: f64,
}

impl Bound {
    /// For sums of about `terms` fp32 products whose magnitudes add up to about `magnitude`: each addition rounds by at
    /// most 2⁻²⁴, and roundings mostly cancel.
    pub fn sum(terms: usize, magnitude: f64) -> Self {
        Self { relative: 1e-6, absolute: 2f64.powi(-24) * (terms as f64).sqrt() * 4.0 * magnitude }
    }

    /// For what was computed so and then rounded to half.
    pub fn in_half(self) -> Self {
        Self { relative: self.relative + 2f64.powi(-11), absolute: self.absolute + 2f64.powi(-24) }
    }
}

/// Of what the CPU backend's functions give: fp32 in another order, and `exp` by their own polynomial.
pub const BY_CPU: Bound = Bound { relative: 2e-5, absolute: 1e-5 };
/// The same of products with 4-bit weights, before which those functions round x to about 15 bits of the largest of each 64; and
/// of what follows from such products. Inputs and results are of about 1.
pub const PRODUCT_BY_CPU: Bound = Bound { relative: 2e-5, absolute: 3e-4 };

/// As [`close`], with what the CPU backend's functions give. Not where a sanitizer or a mutant is at work: those functions share
/// their work among threads whose ways to synchronise ThreadSanitizer does not see.
#[track_caller]
pub fn close_to_cpu<G: Number>(what: &str, got: &[G], expected: impl FnOnce() -> Vec<f32>, bound: Bound) {
    if super::full_size() {
        close(&format!("{what}, by the CPU"), got, &expected(), bound);
    }
}

/// Numbers of any width.
pub trait Number: Copy {
    fn wide(self) -> f64;
}
impl Number for f64 {
    fn wide(self) -> f64 {
        self
    }
}
impl Number for f32 {
    fn wide(self) -> f64 {
        self.into()
    }
}
impl Number for f16 {
    fn wide(self) -> f64 {
        self.into()
    }
}

/// Asserts that all of `got` are within the bound of what is expected, and none is NaN.
#[track_caller]
pub fn close<G: Number, E: Number>(what: &str, got: &[G], expected: &[E], bound: Bound) {
    assert_eq!(got.len(), expected.len(), "{what}: number of results");
    let mut worst = (0.0, 0);
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        let (got, expected) = (got.wide(), expected.wide());
        let excess = (got - expected).abs() / (bound.relative * expected.abs() + bound.absolute);
        // NaN counts as worst.
        let excess = if excess.is_nan() { f64::INFINITY } else { excess };
        if excess > worst.0 {
            worst = (excess, index);
        }
    }
    let (excess, index) = worst;
    assert!(
        excess <= 1.0,
        "{what}: at {index} of {}: {} instead of {}, {excess:.2} times what {bound:?} allows",
        got.len(),
        got[index].wide(),
        expected[index].wide()
    );
}

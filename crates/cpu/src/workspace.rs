//! Memory that a step's activations live in, kept from one step to the next.

use crate::activations::Activations;

/// A buffer that grows to the largest step seen and is cut anew for each part of a layer, since the parts never need
/// their activations at the same time.
#[derive(Default)]
pub(crate) struct Arena(Vec<f32>);

impl Arena {
    /// `rows` rows of each width, in order. What they hold is left over from before.
    pub(crate) fn carve<const N: usize>(&mut self, rows: usize, widths: [usize; N]) -> [&mut [f32]; N] {
        let total = rows * widths.iter().sum::<usize>();
        if self.0.len() < total {
            // Exactly, so that it stays within the memory plan.
            self.0.reserve_exact(total - self.0.len());
            self.0.resize(total, 0.0);
        }
        let mut rest = &mut self.0[..];
        widths.map(|width| {
            let (part, tail) = std::mem::take(&mut rest).split_at_mut(rows * width);
            rest = tail;
            part
        })
    }
}

/// What the parts of a layer work in.
pub(crate) struct Scratch {
    /// Activations within a part of a layer.
    pub(crate) part: Arena,
    /// Partial results of attention.
    pub(crate) partials: Arena,
    /// What the second product of a mixer multiplies.
    pub(crate) inner: Activations,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        Self { part: Arena::default(), partials: Arena::default(), inner: Activations::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::Arena;

    #[test]
    fn parts_are_apart_and_the_memory_stays() {
        let mut arena = Arena::default();
        let [a, b] = arena.carve(3, [4, 5]);
        assert_eq!((a.len(), b.len()), (12, 15));
        a.fill(1.0);
        b.fill(2.0);
        let [all] = arena.carve(9, [3]);
        assert_eq!(all.iter().sum::<f32>(), 12.0 + 30.0);
    }
}

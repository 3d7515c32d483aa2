//! Rotary position embedding.

/// The cosines and sines by which the heads of a step's rows are turned.
pub(crate) struct Rope {
    /// θ^(−2i/dims) for each pair i.
    frequencies: Vec<f64>,
    /// `[rows, pairs]` of (cos, sin).
    turns: Vec<(f32, f32)>,
}

impl Rope {
    /// For heads whose first `dims` dimensions are turned.
    pub(crate) fn new(dims: usize, theta: f64) -> Self {
        let frequencies = (0..dims / 2).map(|pair| theta.powf(-2.0 * pair as f64 / dims as f64)).collect();
        Self { frequencies, turns: Vec::new() }
    }

    /// Computes the turns of the rows of a step, whose positions are given. The angles are f64: in fp32 the fastest
    /// pair would be off by a hundredth of a radian at position 262,144.
    pub(crate) fn set(&mut self, positions: impl Iterator<Item = usize>) {
        self.turns.clear();
        for position in positions {
            self.turns.extend(self.frequencies.iter().map(|frequency| {
                let (sin, cos) = (position as f64 * frequency).sin_cos();
                (cos as f32, sin as f32)
            }));
        }
    }

    /// The turns of one row, a pair (cos, sin) for each pair of dimensions.
    pub(crate) fn row(&self, row: usize) -> &[(f32, f32)] {
        &self.turns[row * self.frequencies.len()..][..self.frequencies.len()]
    }
}

/// Turns the first dimensions of a head (Su et al., "RoFormer", 2021), dimension i with dimension i + pairs, as the
/// half-split convention has it; the others stay.
#[inline(always)]
pub(crate) fn rotate(head: &mut [f32], turns: &[(f32, f32)]) {
    let (low, high) = head.split_at_mut(turns.len());
    for ((a, b), (cos, sin)) in low.iter_mut().zip(high).zip(turns) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vector::tests::noise;

    #[test]
    fn agrees_with_f64_at_any_position() {
        let mut rope = Rope::new(64, 1e7);
        let positions = [0, 1, 77, 4095, 262_143];
        rope.set(positions.into_iter());
        for (row, position) in positions.into_iter().enumerate() {
            let head = noise(row as u64, 256);
            let mut turned = head.clone();
            rotate(&mut turned, rope.row(row));
            for pair in 0..32 {
                let angle = position as f64 * 1e7f64.powf(-(pair as f64) / 32.0);
                let (a, b) = (f64::from(head[pair]), f64::from(head[pair + 32]));
                let exact = [a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()];
                assert!((f64::from(turned[pair]) - exact[0]).abs() < 5e-7, "position {position}, pair {pair}");
                assert!((f64::from(turned[pair + 32]) - exact[1]).abs() < 5e-7, "position {position}, pair {pair}");
            }
            assert_eq!(turned[64..], head[64..]);
        }
    }

    #[test]
    fn products_depend_on_distance_alone() {
        let mut rope = Rope::new(64, 1e7);
        rope.set([5, 3, 1005, 1003].into_iter());
        let (query, key) = (noise(1, 64), noise(2, 64));
        let product = |q: usize, k: usize| {
            let (mut query, mut key) = (query.clone(), key.clone());
            rotate(&mut query, rope.row(q));
            rotate(&mut key, rope.row(k));
            query.iter().zip(&key).map(|(q, k)| f64::from(q * k)).sum::<f64>()
        };
        assert!((product(0, 1) - product(2, 3)).abs() < 1e-5);
    }
}

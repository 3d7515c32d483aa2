//! Which experts a token passes, and the order in which tokens wait at them.

use rayon::prelude::*;

use crate::math::exp;

/// Rows handed to a thread at once.
const ROWS_PER_TASK: usize = 16;

/// The experts of each row, and the rows of each expert.
///
/// A row's pairs (row, expert) are ranked by weight. Sorted by expert, then row, each pair has a *place*: what the
/// experts compute lies in that order.
#[derive(Default)]
pub(crate) struct Routing {
    per_row: usize,
    /// `[rows, per_row]`
    experts: Vec<u32>,
    /// `[rows, per_row]`
    weights: Vec<f32>,
    /// `[rows, per_row]`: the place of each pair.
    places: Vec<u32>,
    /// The row of each place.
    rows: Vec<u32>,
    /// 0, 1, 2, …: the places themselves.
    identity: Vec<u32>,
    /// `[experts + 1]`: where each expert's places begin, and the end.
    starts: Vec<usize>,
}

impl Routing {
    /// Chooses for each row of `logits[rows, experts]` the `per_row` largest, in descending order, equals by ascending
    /// expert; their weights are the softmax over the chosen, which is the softmax over all, renormalised.
    pub(crate) fn route(&mut self, logits: &[f32], experts: usize, per_row: usize) {
        let pairs = logits.len() / experts * per_row;
        self.per_row = per_row;
        self.experts.resize(pairs, 0);
        self.weights.resize(pairs, 0.0);
        let chosen = self.experts.par_chunks_exact_mut(per_row).zip(self.weights.par_chunks_exact_mut(per_row));
        let rows = logits.par_chunks_exact(experts).zip(chosen).with_min_len(ROWS_PER_TASK);
        rows.for_each(|(logits, (experts, weights))| choose(logits, experts, weights));

        self.starts.clear();
        self.starts.resize(experts + 1, 0);
        for &expert in &self.experts {
            self.starts[expert as usize + 1] += 1;
        }
        for expert in 0..experts {
            self.starts[expert + 1] += self.starts[expert];
        }
        let mut next = self.starts.clone();
        self.places.clear();
        self.rows.resize(pairs, 0);
        for (pair, &expert) in self.experts.iter().enumerate() {
            let place = next[expert as usize];
            next[expert as usize] += 1;
            self.places.push(place as u32);
            self.rows[place] = (pair / per_row) as u32;
        }
        let known = self.identity.len();
        self.identity.extend(known as u32..pairs.max(known) as u32);
    }

    /// The experts that have rows, in order, each with its rows, ascending.
    pub(crate) fn experts(&self) -> impl Iterator<Item = (usize, &[u32])> {
        self.busy().map(|(expert, start, end)| (expert, &self.rows[start..end]))
    }

    /// The same experts, each with its places.
    pub(crate) fn experts_by_place(&self) -> impl Iterator<Item = (usize, &[u32])> {
        self.busy().map(|(expert, start, end)| (expert, &self.identity[start..end]))
    }

    fn busy(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let experts = self.starts.windows(2).enumerate().map(|(expert, window)| (expert, window[0], window[1]));
        experts.filter(|(_, start, end)| start < end)
    }

    /// Cuts `values[places, width]` into the parts of those experts.
    pub(crate) fn cut<'v>(&self, mut values: &'v mut [f32], width: usize) -> Vec<&'v mut [f32]> {
        let mut parts = Vec::new();
        for (_, start, end) in self.busy() {
            let (part, rest) = values.split_at_mut((end - start) * width);
            parts.push(part);
            values = rest;
        }
        parts
    }

    /// Experts and weights of a row, by descending weight.
    pub(crate) fn choices(&self, row: usize) -> impl Iterator<Item = (u32, f32)> {
        let pairs = row * self.per_row..(row + 1) * self.per_row;
        self.experts[pairs.clone()].iter().copied().zip(self.weights[pairs].iter().copied())
    }

    /// Places and weights of a row, by descending weight.
    pub(crate) fn of_row(&self, row: usize) -> (&[u32], &[f32]) {
        let pairs = row * self.per_row..(row + 1) * self.per_row;
        (&self.places[pairs.clone()], &self.weights[pairs])
    }
}

/// The largest logits of one row and the softmax over them.
fn choose(logits: &[f32], experts: &mut [u32], weights: &mut [f32]) {
    // Should logits be NaN, experts without merit stay chosen: the row is lost anyway, its weights are NaN.
    experts.iter_mut().zip(0..).for_each(|(expert, index)| *expert = index);
    weights.fill(f32::NEG_INFINITY);
    let last = weights.len() - 1;
    for (expert, &logit) in logits.iter().enumerate() {
        if logit > weights[last] {
            let rank = weights.partition_point(|&better| better >= logit);
            weights[rank..].rotate_right(1);
            experts[rank..].rotate_right(1);
            (weights[rank], experts[rank]) = (logit, expert as u32);
        }
    }
    let max = weights[0];
    weights.iter_mut().for_each(|weight| *weight = exp(*weight - max));
    let sum: f32 = weights.iter().sum();
    weights.iter_mut().for_each(|weight| *weight /= sum);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn routed(logits: &[f32], experts: usize, per_row: usize) -> Routing {
        let mut routing = Routing::default();
        routing.route(logits, experts, per_row);
        routing
    }

    #[test]
    fn ties_go_to_the_lower_expert() {
        let routing = routed(&[1.0, 3.0, 3.0, 2.0, 3.0, 2.0], 6, 4);
        assert_eq!(routing.experts, [1, 2, 4, 3]);
        let flat = routed(&[0.5; 16], 16, 8);
        assert_eq!(flat.experts, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(flat.weights, [0.125; 8]);
    }

    #[test]
    fn weights_are_the_renormalised_softmax() {
        let logits = [0.3f32, -1.0, 2.0, 0.9, -0.2];
        let routing = routed(&logits, 5, 3);
        assert_eq!(routing.experts, [2, 3, 0]);
        let all: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
        let top: Vec<f64> = [2.0, 0.9, 0.3f32].iter().map(|&logit| f64::from(logit).exp() / all).collect();
        for (weight, exact) in routing.weights.iter().zip(&top) {
            assert!((f64::from(*weight) - exact / top.iter().sum::<f64>()).abs() < 1e-7);
        }
    }

    #[test]
    fn nan_is_no_panic() {
        let mut logits = vec![0.0; 32];
        logits[3] = f32::NAN;
        routed(&logits, 16, 8);
        let lost = routed(&[f32::NAN; 16], 16, 8);
        assert!(lost.weights.iter().all(|weight| weight.is_nan()));
    }

    proptest! {
        /// Every pair has one place, where its row waits at its expert; a row's weights descend and sum to 1.
        #[test]
        fn places_and_pairs_correspond(logits in prop::collection::vec(-3i8..3, 12..=120)) {
            let logits: Vec<f32> = logits.iter().map(|&logit| logit.into()).collect();
            let rows = logits.len() / 12;
            let routing = routed(&logits[..rows * 12], 12, 5);
            let mut at_place = vec![None; rows * 5];
            let mut start = 0;
            for ((expert, rows), (again, places)) in routing.experts().zip(routing.experts_by_place()) {
                prop_assert_eq!(expert, again);
                prop_assert!(rows.is_sorted() && places.len() == rows.len() && places[0] == start as u32);
                for row in rows {
                    at_place[start] = Some((*row as usize, expert as u32));
                    start += 1;
                }
            }
            prop_assert_eq!(start, rows * 5);
            for row in 0..rows {
                let (places, weights) = routing.of_row(row);
                for (rank, place) in places.iter().enumerate() {
                    prop_assert_eq!(at_place[*place as usize], Some((row, routing.experts[row * 5 + rank])));
                }
                prop_assert!(weights.is_sorted_by(|a, b| a >= b));
                prop_assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-6);
            }
        }
    }
}

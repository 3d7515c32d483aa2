//! Where in a prompt snapshots are taken; [`super`] says why there.

use std::collections::BTreeSet;

/// The last message's beginning and the last token: however little room there is.
const AT_THE_END: usize = 2;

/// What decides it.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    /// Tokens that begin something: the state before them is worth keeping.
    pub(crate) boundaries: Vec<u32>,
    /// And every so many tokens; a multiple of `grain`.
    pub(crate) interval: usize,
    /// Fewer tokens than these between two are not worth a snapshot.
    pub(crate) spacing: usize,
    /// Of a prompt, snapshots are taken at multiples of this, [`lily_backend::Description::grain`].
    pub(crate) grain: usize,
    /// The most that are taken of one prompt, but at least those at its end.
    pub(crate) most: usize,
}

impl Places {
    /// Where to stop on the way from `from` to the end of `prompt`, in order; the last token is always left over.
    pub(crate) fn stops(&self, prompt: &[u32], from: usize) -> Vec<usize> {
        let last = (prompt.len() - 1) / self.grain * self.grain;
        let mut begins = Vec::new();
        for (position, token) in prompt.iter().enumerate() {
            let position = position / self.grain * self.grain;
            if position > from && position <= last && self.boundaries.contains(token) {
                begins.push(position);
            }
        }
        let (mut spacing, mut interval) = (self.spacing, self.interval);
        loop {
            let stops = self.spread(&begins, (from, last), spacing, interval);
            if stops.len() <= self.most.max(AT_THE_END) {
                return stops.into_iter().collect();
            }
            (spacing, interval) = (spacing * 2, interval * 2);
        }
    }

    /// Stops so far apart; `begins` are the places before messages, `last` is the last possible one.
    fn spread(
        &self,
        begins: &[usize],
        (from, last): (usize, usize),
        spacing: usize,
        interval: usize,
    ) -> BTreeSet<usize> {
        let mut stops = BTreeSet::new();
        let mut previous = from;
        for &position in begins {
            if position >= previous + spacing {
                stops.insert(position);
                previous = position;
            }
        }
        // Where the reply begins, whatever it costs: what a client sends back of the reply may differ from what it was.
        stops.extend(begins.last());
        // The same prompt once more, if that saves more than a step of its own costs now.
        if last >= from + self.spacing {
            stops.insert(last);
        }
        for position in (from / interval * interval + interval..=last).step_by(interval) {
            let before = stops.range(..=position).next_back().copied().unwrap_or(from);
            let after = stops.range(position..).next().copied().unwrap_or(usize::MAX);
            if position >= before + spacing && after - position >= spacing {
                stops.insert(position);
            }
        }
        stops
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Places;

    fn places() -> Places {
        Places { boundaries: vec![7], interval: 100, spacing: 20, grain: 1, most: 50 }
    }

    /// Ordinary tokens with boundaries at `begins`.
    fn prompt(length: usize, begins: &[usize]) -> Vec<u32> {
        (0..length).map(|position| if begins.contains(&position) { 7 } else { 1 }).collect()
    }

    #[test]
    fn boundaries_intervals_and_the_end() {
        let stops = |length, begins: &[usize], from| places().stops(&prompt(length, begins), from);
        assert_eq!(stops(10, &[0], 0), [], "too short");
        assert_eq!(stops(350, &[], 0), [100, 200, 300, 349]);
        assert_eq!(stops(350, &[], 120), [200, 300, 349]);
        assert_eq!(stops(310, &[], 0), [100, 200, 309], "too near the end");
        assert_eq!(stops(60, &[0, 30, 57], 0), [30, 57, 59]);
        assert_eq!(stops(60, &[0, 30, 57], 45), [57], "too little for a step of its own");
        assert_eq!(stops(60, &[0, 30, 40, 57], 0), [30, 57, 59]);
        assert_eq!(stops(60, &[0, 5], 0), [5, 59]);
        assert_eq!(stops(60, &[0, 5], 5), [59]);
        assert_eq!(stops(250, &[0, 90, 210, 245], 0), [90, 210, 245, 249]);
        assert_eq!(stops(12, &[0, 10], 9), [10], "the last boundary counts at any distance");
        assert_eq!(stops(1, &[0], 0), []);
    }

    #[test]
    fn long_prompts_take_no_more_than_their_share() {
        let places = Places { most: 3, ..places() };
        assert_eq!(places.stops(&prompt(1000, &[]), 0), [400, 800, 999]);
        // Many short messages, of which those stay that are far enough apart.
        let begins: Vec<usize> = (0..1000).step_by(25).collect();
        assert_eq!(places.stops(&prompt(1000, &begins), 0), [650, 975, 999]);
        let places = Places { most: 9, ..places };
        assert_eq!(places.stops(&prompt(1000, &begins), 0), [175, 350, 525, 700, 875, 975, 999]);
    }

    proptest! {
        #[test]
        fn always_in_order_and_never_the_whole_prompt(
            begins in prop::collection::vec(0usize..600, 0..20),
            // A reply ends anywhere.
            (length, from) in (1usize..600).prop_flat_map(|length| (Just(length), 0..length)),
            grain in prop::sample::select(vec![1usize, 10, 50]),
            most in 1usize..10,
        ) {
            let places = Places { grain, most, ..places() };
            let stops = places.stops(&prompt(length, &begins), from);
            prop_assert!(stops.is_sorted_by(|a, b| a < b));
            prop_assert!(stops.iter().all(|&stop| stop > from && stop < length && stop.is_multiple_of(grain)));
            prop_assert!(stops.len() <= most.max(2));
        }
    }
}

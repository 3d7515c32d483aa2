//! Whose turn it is: clients take turns, each client's requests in the order they came.

use std::collections::{HashMap, VecDeque};

use crate::sequence::Job;

/// Clients whose last turn is remembered; one that is forgotten counts as new, which it nearly is.
const REMEMBERED: usize = 1024;

/// When each client had its last turn.
#[derive(Default)]
pub(crate) struct Rotation {
    turn: u64,
    last: HashMap<u64, u64>,
}

impl Rotation {
    /// Takes up to `count` requests that may start: of the clients that wait, each time the one whose last turn is the longest ago,
    /// and of its requests the oldest. They come out of the queue and, before those, from the `ready` ones, which are places among
    /// requests by these `parked` clients.
    pub(crate) fn take(
        &mut self,
        (parked, ready): (&[u64], &mut Vec<usize>),
        queue: &mut VecDeque<Job>,
        count: usize,
    ) -> (Vec<usize>, Vec<Job>) {
        let (mut places, mut jobs) = (Vec::new(), Vec::new());
        while places.len() + jobs.len() < count {
            let clients = ready.iter().map(|&place| parked[place]).chain(queue.iter().map(|job| job.client));
            let Some(index) = self.next(clients) else { break };
            if index < ready.len() {
                let place = ready.remove(index);
                self.took(parked[place]);
                places.push(place);
            } else if let Some(job) = queue.remove(index - ready.len()) {
                self.took(job.client);
                jobs.push(job);
            }
        }
        (places, jobs)
    }

    /// Which of the requests of these clients, the oldest first, is the next.
    fn next(&self, clients: impl Iterator<Item = u64>) -> Option<usize> {
        let last = |client: u64| self.last.get(&client).copied().unwrap_or(0);
        clients.enumerate().min_by_key(|&(_, client)| last(client)).map(|(index, _)| index)
    }

    fn took(&mut self, client: u64) {
        self.turn += 1;
        self.last.insert(client, self.turn);
        if self.last.len() > REMEMBERED {
            let recent = self.turn.saturating_sub(REMEMBERED as u64 / 2);
            self.last.retain(|_, turn| *turn > recent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{REMEMBERED, Rotation};

    /// The order in which requests of these clients start, one after the other.
    fn order(rotation: &mut Rotation, queue: &[u64]) -> Vec<u64> {
        let mut queue = queue.to_vec();
        let mut order = Vec::new();
        while let Some(index) = rotation.next(queue.iter().copied()) {
            let client = queue.remove(index);
            rotation.took(client);
            order.push(client);
        }
        order
    }

    #[test]
    fn clients_take_turns() {
        let mut rotation = Rotation::default();
        assert_eq!(order(&mut rotation, &[1, 1, 1, 1, 2, 3, 2]), [1, 2, 3, 1, 2, 1, 1]);
        // Who had the last turn waits for all others.
        assert_eq!(order(&mut rotation, &[1, 2, 3]), [3, 2, 1]);
        assert_eq!(order(&mut rotation, &[7, 7, 7]), [7, 7, 7]);
        assert_eq!(order(&mut rotation, &[]), [0; 0]);
    }

    #[test]
    fn old_turns_are_forgotten() {
        let mut rotation = Rotation::default();
        for client in 0..10 * REMEMBERED as u64 {
            rotation.took(client);
            assert!(rotation.last.len() <= REMEMBERED);
        }
        let recent = 10 * REMEMBERED as u64 - 1;
        assert_eq!(order(&mut rotation, &[recent, 5]), [5, recent]);
    }
}

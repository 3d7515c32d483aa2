//! Which buffers are kept in memory together.
//!
//! The system decides for a residency set as a whole, so one set for everything would be paged in whole after the least
//! loss; but a queue takes no more than 32 sets.

/// Sets of a queue, a few less than the 32 that Metal allows.
const MOST_SETS: usize = 30;

/// A set is full with this share of what the device recommends to use.
const SHARE: u64 = 20;

/// Fills sets with buffers one after the other.
#[derive(Debug)]
pub(super) struct Sets {
    /// Bytes in each.
    filled: Vec<u64>,
    full: u64,
}

impl Sets {
    /// For a device that recommends to use `recommended` bytes.
    pub(super) fn new(recommended: u64) -> Self {
        Self { filled: Vec::new(), full: recommended / SHARE }
    }

    /// The set for a buffer of `bytes`; one more than there were if it is a new one.
    pub(super) fn add(&mut self, bytes: u64) -> usize {
        let fits = self.filled.iter().position(|filled| filled + bytes <= self.full);
        let set = match fits {
            Some(set) => set,
            None if self.filled.len() < MOST_SETS => {
                self.filled.push(0);
                self.filled.len() - 1
            }
            None => self.emptiest(),
        };
        self.filled[set] += bytes;
        set
    }

    /// Takes a buffer out of its set.
    pub(super) fn remove(&mut self, set: usize, bytes: u64) {
        self.filled[set] -= bytes;
    }

    fn emptiest(&self) -> usize {
        (0..self.filled.len()).min_by_key(|&set| self.filled[set]).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_buffers_share_a_set_and_large_ones_get_their_own() {
        let mut sets = Sets::new(2000);
        let places: Vec<usize> = [60, 30, 500, 10, 40].iter().map(|&bytes| sets.add(bytes)).collect();
        assert_eq!(places, [0, 0, 1, 0, 2]);
        sets.remove(0, 60);
        assert_eq!(sets.add(50), 0);
    }

    #[test]
    fn there_are_never_too_many() {
        let mut sets = Sets::new(2000);
        assert!((0..100).all(|_| sets.add(150) < MOST_SETS));
        assert_eq!(sets.filled.iter().sum::<u64>(), 15_000);
        assert!(sets.filled.iter().all(|&filled| filled <= 600));
    }
}

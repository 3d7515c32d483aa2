//! What was made for a key, as long as it is among the last ones used.

use std::collections::HashMap;
use std::collections::hash_map;
use std::hash::Hash;

/// Values by their keys, with the order of their use.
pub(crate) struct Recent<K, V> {
    entries: HashMap<K, Entry<V>>,
    clock: u64,
}

struct Entry<V> {
    value: V,
    used: u64,
}

impl<K: Copy + Eq + Hash, V> Recent<K, V> {
    pub(crate) fn new() -> Self {
        Self { entries: HashMap::new(), clock: 0 }
    }

    /// The value of a key, made if it is not there.
    ///
    /// # Errors
    /// Those of `make`.
    pub(crate) fn get<E>(&mut self, key: K, make: impl FnOnce() -> Result<V, E>) -> Result<&V, E> {
        self.clock += 1;
        let used = self.clock;
        let entry = match self.entries.entry(key) {
            hash_map::Entry::Occupied(entry) => entry.into_mut(),
            hash_map::Entry::Vacant(entry) => entry.insert(Entry { value: make()?, used }),
        };
        entry.used = used;
        Ok(&entry.value)
    }

    /// Drops all but the `most` used last.
    pub(crate) fn trim(&mut self, most: usize) {
        while self.entries.len() > most {
            let Some((&oldest, _)) = self.entries.iter().min_by_key(|(_, entry)| entry.used) else { return };
            self.entries.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::Recent;

    #[test]
    fn what_was_used_last_stays() {
        let mut recent = Recent::new();
        let mut made = Vec::new();
        let mut get = |recent: &mut Recent<u32, u32>, key: u32| {
            let make = || {
                made.push(key);
                Ok::<_, Infallible>(10 * key)
            };
            assert_eq!(recent.get(key, make), Ok(&(10 * key)));
        };
        for key in [1, 2, 3, 1] {
            get(&mut recent, key);
        }
        recent.trim(2);
        assert_eq!(recent.get(4, || Err("refused")), Err("refused"));
        for key in [3, 1, 2] {
            get(&mut recent, key);
        }
        assert_eq!(made, [1, 2, 3, 2]);
    }
}

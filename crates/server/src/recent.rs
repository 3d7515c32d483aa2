//! What was used last, as much of it as a number of bytes holds.

use std::collections::{BTreeMap, HashMap};

/// Values by name; the longest unused ones make room for new ones.
#[derive(Debug)]
pub(crate) struct Recent<T> {
    capacity: usize,
    kept: HashMap<String, Kept<T>>,
    /// The names by the time of the last use.
    uses: BTreeMap<u64, String>,
    clock: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Kept<T> {
    value: T,
    bytes: usize,
    /// The time of the last use.
    used: u64,
}

impl<T> Recent<T> {
    /// Room for `capacity` bytes.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, kept: HashMap::new(), uses: BTreeMap::new(), clock: 0, bytes: 0 }
    }

    /// Keeps a value of so many bytes in place of what has its name; one that is larger than all the room is not kept.
    pub(crate) fn insert(&mut self, name: &str, value: T, bytes: usize) {
        self.remove(name);
        if bytes > self.capacity {
            return;
        }
        while self.bytes + bytes > self.capacity
            && let Some((_, oldest)) = self.uses.pop_first()
        {
            self.remove(&oldest);
        }
        self.bytes += bytes;
        self.clock += 1;
        self.uses.insert(self.clock, name.to_owned());
        self.kept.insert(name.to_owned(), Kept { value, bytes, used: self.clock });
    }

    /// A value, which counts as used.
    pub(crate) fn find(&mut self, name: &str) -> Option<&T> {
        let kept = self.kept.get_mut(name)?;
        self.clock += 1;
        self.uses.remove(&kept.used);
        kept.used = self.clock;
        self.uses.insert(self.clock, name.to_owned());
        Some(&kept.value)
    }

    /// Takes a value out.
    pub(crate) fn remove(&mut self, name: &str) -> Option<T> {
        let kept = self.kept.remove(name)?;
        self.uses.remove(&kept.used);
        self.bytes -= kept.bytes;
        Some(kept.value)
    }
}

#[cfg(test)]
mod tests {
    use super::Recent;

    #[test]
    fn the_longest_unused_make_room() {
        let mut recent = Recent::new(30);
        for name in ["a", "b", "c", "c"] {
            recent.insert(name, name.to_owned(), 10);
        }
        assert_eq!(recent.find("a").map(String::as_str), Some("a"));
        recent.insert("d", "d".into(), 10);
        assert!(recent.find("b").is_none());
        recent.insert("e", "e".into(), 15);
        assert_eq!(["a", "c", "d", "e"].map(|name| recent.find(name).is_some()), [false, false, true, true]);
        recent.insert("e", "too large".into(), 31);
        assert!(recent.find("e").is_none());
        assert_eq!(recent.remove("d").as_deref(), Some("d"));
        assert_eq!((recent.kept.len(), recent.uses.len(), recent.bytes), (0, 0, 0));
        for number in 0..100 {
            recent.insert(&(number % 10).to_string(), String::new(), 10);
        }
        assert_eq!((recent.kept.len(), recent.uses.len(), recent.bytes), (3, 3, 30));
    }
}

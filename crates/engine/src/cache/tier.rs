//! The book-keeping of what is on disk. The files form a forest: each but the first of a chain builds on its parent's.

mod done;
pub(super) mod ferry;
mod reading;
mod writing;

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use lily_backend::Archive;

use super::disk::{self, Contents, Disk, Folder, Found, Header, Key, NO_PARENT, Stranger, Write};
use super::tree::Id;
use super::{Cache, CacheStats, DiskOptions, Entry};
use reading::Arriving;
pub(crate) use reading::Reading;

/// A node's file.
pub(super) struct OnDisk {
    header: Header,
    bytes: u64,
    /// The node of the file that this one builds on.
    parent: Option<Id>,
    /// Files that build on this one.
    children: u32,
    /// Its place in the order of use.
    used: u64,
    /// The number of the write that is to make it; `None` once it is there.
    writing: Option<u64>,
}

/// What a read has brought, on its way to the backend.
struct Incoming<S> {
    id: Id,
    read: S,
    /// What it builds on.
    base: Option<S>,
}

/// The second tier.
pub(super) struct Tier<S> {
    disk: Disk<S>,
    archive: Arc<dyn Archive<S>>,
    fingerprint: Key,
    limit: u64,
    spacing: usize,
    /// Bytes of all files, strangers' too and those that are being written.
    bytes: u64,
    files: HashSet<Id>,
    /// Files of other models, the least recently used last.
    strangers: Vec<Stranger>,
    /// Snapshots that are to be fetched from the backend and then written; the first of them is being fetched.
    outgoing: VecDeque<Write<S>>,
    /// Snapshots that have been read and go to the backend; the first of them is on its way.
    incoming: VecDeque<Incoming<S>>,
    /// Snapshots that wait to be written, the outgoing among them.
    waiting: usize,
    /// And their keys, each as often as it is among them.
    keys: HashMap<Key, u32>,
    /// Snapshots that are being read, the incoming among them.
    reading: HashMap<Id, Arriving>,
    /// Snapshots that have been read in vain: the backend had no room.
    unplaced: HashSet<Id>,
    /// The last one that was to be written, if it found no place among those that wait.
    missed: Option<Id>,
    /// Nothing else is to be written now: a request waits for room to read.
    held: bool,
    /// Parts carried, or left for one that went out, while something came in.
    inward: u64,
    /// Writes so far.
    writes: u64,
    /// Reads and writes that have ended, well or not.
    done: u64,
    /// Writes that failed since one went well.
    failures: u32,
    /// Snapshots still to be left out for that.
    left_out: u32,
    /// It has been said that one is too long.
    told: bool,
}

impl<S> Tier<S> {
    /// Whether nothing is under way.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.waiting == 0 && self.reading.is_empty()
    }

    /// Adds what the tier holds.
    pub(super) fn count(&self, stats: &mut CacheStats) {
        // Among those that wait may be some whose file was given up with the one it builds on.
        stats.disk_snapshots = self.files.len().saturating_sub(self.waiting);
        stats.disk_waiting = self.waiting;
        stats.disk_bytes = self.bytes;
    }
}

impl<S: Clone + Send + Sync + 'static> Cache<S> {
    /// Adds the second tier with what is in its directory. `wake` is called whenever [`carry`](Self::carry) has something
    /// to do; `grain` is that of [`super::Places`].
    ///
    /// # Errors
    /// If the directory cannot be used.
    pub(crate) fn open_disk(
        &mut self,
        options: &DiskOptions,
        archive: Arc<dyn Archive<S>>,
        grain: usize,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<()> {
        let fingerprint = fingerprint(&options.model, &archive.format(), grain);
        let folder = Folder::open(&options.directory)?;
        let Contents { mut found, mut strangers, bad } = folder.scan(&fingerprint)?;
        self.stats.disk_errors += bad;
        strangers.sort_by_key(|stranger| std::cmp::Reverse(stranger.used));
        self.tier = Some(Tier {
            disk: Disk::start(folder, Arc::clone(&archive), wake)?,
            archive,
            fingerprint,
            limit: options.bytes,
            spacing: options.spacing.max(1),
            bytes: strangers.iter().map(|stranger| stranger.bytes).sum(),
            files: HashSet::new(),
            strangers,
            outgoing: VecDeque::new(),
            incoming: VecDeque::new(),
            waiting: 0,
            keys: HashMap::new(),
            reading: HashMap::new(),
            unplaced: HashSet::new(),
            missed: None,
            held: false,
            inward: 0,
            writes: 0,
            done: 0,
            failures: 0,
            left_out: 0,
            told: false,
        });
        // Parents are shorter than their children.
        found.sort_by_key(|found| found.header.length);
        let mut nodes: HashMap<Key, Id> = HashMap::new();
        let mut uses: Vec<(SystemTime, Id)> = Vec::new();
        for found in found {
            let (key, used) = (found.header.key, found.used);
            match self.adopt(found, &nodes) {
                Some(id) => {
                    nodes.insert(key, id);
                    uses.push((used, id));
                }
                None => {
                    self.stats.disk_errors += 1;
                    self.remove_file(key);
                }
            }
        }
        uses.sort();
        for (_, id) in uses {
            let now = self.tick();
            if let Some(on_disk) = self.tree.get_mut(id).and_then(|entry| entry.disk.as_mut()) {
                on_disk.used = now;
            }
        }
        self.make_room_on_disk(0, None);
        // Files whose tokens alone would fill the memory are of no use.
        while self.tree.bytes() > self.options.bytes / 2 && self.drop_least_recently_used_file(None) {}
        Ok(())
    }

    /// Takes a file that was found into the tree; `None` if it does not fit.
    fn adopt(&mut self, found: Found, nodes: &HashMap<Key, Id>) -> Option<Id> {
        let Found { header, tokens, .. } = found;
        let tier = self.tier.as_ref()?;
        let (from, length) = (header.from as usize, header.length as usize);
        let parent = (header.parent != NO_PARENT).then(|| nodes.get(&header.parent).copied());
        let parent = match parent {
            None => None,
            Some(known) => Some(known?),
        };
        let mut all = parent.map_or_else(Vec::new, |id| self.tree.tokens(id));
        let fits = all.len() == from
            && length > from
            && header.history == tier.archive.history_bytes(from, length)
            && header.state == tier.archive.state_bytes();
        if !fits {
            return None;
        }
        all.extend(tokens);
        if disk::key(&tier.fingerprint, &all) != header.key {
            return None;
        }
        let id = self.tree.insert(&all, Entry::new(length));
        self.add_file(id, header, parent, None);
        Some(id)
    }

    fn add_file(&mut self, id: Id, header: Header, parent: Option<Id>, writing: Option<u64>) {
        let used = self.tick();
        let bytes = header.file_bytes().unwrap_or(u64::MAX);
        let Some(tier) = &mut self.tier else { return };
        tier.files.insert(id);
        tier.bytes += bytes;
        if let Some(entry) = self.tree.get_mut(id) {
            entry.disk = Some(OnDisk { header, bytes, parent, children: 0, used, writing });
        }
        if let Some(parent) = parent.and_then(|id| self.tree.get_mut(id)).and_then(|entry| entry.disk.as_mut()) {
            parent.children += 1;
        }
    }

    fn remove_file(&self, key: Key) {
        if let Some(tier) = &self.tier {
            tier.disk.remove(key);
        }
    }

    /// Makes a node's file, and those it builds on, the most recently used ones.
    pub(super) fn touch_on_disk(&mut self, id: Id) {
        let now = self.tick();
        let mut at = Some(id);
        while let Some(on_disk) = at.and_then(|id| self.tree.get_mut(id)).and_then(|entry| entry.disk.as_mut()) {
            on_disk.used = now;
            if let Some(tier) = self.tier.as_ref().filter(|_| on_disk.writing.is_none()) {
                tier.disk.touch(on_disk.header.key);
            }
            at = on_disk.parent;
        }
    }

    /// Removes files until so many bytes more fit; false if they cannot. `keep` stays, and so does what it builds on.
    fn make_room_on_disk(&mut self, bytes: u64, keep: Option<Id>) -> bool {
        let most = self.tier.as_ref().and_then(|tier| tier.limit.checked_sub(bytes));
        most.is_some_and(|most| self.remove_down_to(most, keep))
    }

    /// Removes files until there are no more bytes of them than `most`; false if that cannot be. `keep` stays.
    fn remove_down_to(&mut self, most: u64, keep: Option<Id>) -> bool {
        loop {
            let Some(tier) = &mut self.tier else { return false };
            if tier.bytes <= most {
                return true;
            }
            if let Some(stranger) = tier.strangers.pop() {
                tier.bytes -= stranger.bytes;
                tier.disk.remove(stranger.key);
                self.stats.disk_evictions += 1;
            } else if !self.drop_least_recently_used_file(keep) {
                return false;
            }
        }
    }

    /// Of those that nothing builds on and nobody uses, and not `keep`; false if there is none.
    fn drop_least_recently_used_file(&mut self, keep: Option<Id>) -> bool {
        let Some(tier) = &self.tier else { return false };
        let leaf = |&id: &Id| {
            let on_disk = self.tree.get(id)?.disk.as_ref()?;
            let used = on_disk.children > 0 || on_disk.writing.is_some() || tier.reading.contains_key(&id);
            (!used && Some(id) != keep).then_some((on_disk.used, id))
        };
        let Some((_, id)) = tier.files.iter().filter_map(leaf).min() else { return false };
        self.stats.disk_evictions += 1;
        self.drop_file(id);
        true
    }

    /// Removes a node's file and all that build on it.
    pub(super) fn drop_file(&mut self, id: Id) {
        let Some(on_disk) = self.tree.get_mut(id).and_then(|entry| entry.disk.take()) else { return };
        if let Some(parent) = on_disk.parent.and_then(|id| self.tree.get_mut(id)).and_then(|entry| entry.disk.as_mut())
        {
            parent.children -= 1;
        }
        let mut heirs = Vec::new();
        if let Some(tier) = &mut self.tier {
            tier.files.remove(&id);
            tier.bytes -= on_disk.bytes;
            // One that is still to be written is removed when it has been.
            if on_disk.writing.is_none() {
                tier.disk.remove(on_disk.header.key);
            }
            if on_disk.children > 0 {
                heirs.extend(tier.files.iter().copied());
            }
        }
        for heir in heirs {
            let builds = |on_disk: &OnDisk| on_disk.parent == Some(id);
            if self.tree.get(heir).and_then(|entry| entry.disk.as_ref()).is_some_and(builds) {
                self.drop_file(heir);
            }
        }
        self.forget_if_empty(id);
    }
}

/// What decides whether a snapshot's bits are those that would be computed here.
fn fingerprint(model: &[u8], format: &str, grain: usize) -> Key {
    let mut hasher = blake3::Hasher::new_derive_key("Lily 2026 prefix cache: model, format, chunks, version");
    let numbers = [grain as u64, u64::from(disk::VERSION)].map(u64::to_le_bytes).concat();
    for part in [model, format.as_bytes(), &numbers, env!("CARGO_PKG_VERSION").as_bytes()] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::fingerprint;

    #[test]
    fn each_part_changes_the_fingerprint() {
        let all = [
            fingerprint(b"model", "format", 64),
            fingerprint(b"other", "format", 64),
            fingerprint(b"model", "other", 64),
            fingerprint(b"model", "format", 1),
            // The same characters, divided otherwise.
            fingerprint(b"modelf", "ormat", 64),
        ];
        for (index, one) in all.iter().enumerate() {
            assert!(!all[..index].contains(one), "{index}");
        }
        assert_eq!(all[0], fingerprint(b"model", "format", 64));
    }
}

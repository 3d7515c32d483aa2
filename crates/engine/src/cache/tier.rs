//! The book-keeping of what is on disk. The files form a forest: each but the first of a chain builds on its parent's.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use lily_backend::{Archive, Piece};

use super::disk::{self, Contents, Disk, Done, Folder, Found, Header, Key, NO_PARENT, Read, Stranger, Write};
use super::tree::Id;
use super::{Cache, CacheStats, DiskOptions, Entry};

/// Snapshots that may wait to be written.
const QUEUE: usize = 4;

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
    /// Not there yet.
    writing: bool,
}

/// The second tier.
pub(super) struct Tier<S> {
    disk: Disk<S>,
    archive: Arc<dyn Archive<S>>,
    fingerprint: Key,
    limit: u64,
    /// Bytes of all files, strangers' too and those that are being written.
    bytes: u64,
    files: HashSet<Id>,
    /// Files of other models, the least recently used last.
    strangers: Vec<Stranger>,
    /// Snapshots that wait to be written.
    waiting: usize,
    /// Snapshots that are being read.
    reading: HashSet<Id>,
}

impl<S> Tier<S> {
    /// Adds what the tier holds.
    pub(super) fn count(&self, stats: &mut CacheStats) {
        // Among those that wait may be some whose file was given up with the one it builds on.
        stats.disk_snapshots = self.files.len().saturating_sub(self.waiting);
        stats.disk_waiting = self.waiting;
        stats.disk_bytes = self.bytes;
    }
}

impl<S: Clone + Send + Sync + 'static> Cache<S> {
    /// Adds the second tier with what is in its directory. `wake` is called whenever [`poll`](Self::poll) has something
    /// to do; `grain` is that of [`super::Places`].
    ///
    /// # Errors
    /// If the directory cannot be used.
    pub(crate) fn open_disk(
        &mut self,
        options: &DiskOptions,
        archive: Arc<dyn Archive<S>>,
        grain: usize,
        wake: impl Fn() + Send + 'static,
    ) -> io::Result<()> {
        let fingerprint = fingerprint(&options.model, &archive.format(), grain);
        let folder = Folder::open(&options.directory)?;
        let Contents { mut found, mut strangers, removed } = folder.scan(&fingerprint)?;
        self.stats.disk_errors += removed;
        strangers.sort_by_key(|stranger| std::cmp::Reverse(stranger.used));
        self.tier = Some(Tier {
            disk: Disk::start(folder, Arc::clone(&archive), wake)?,
            archive,
            fingerprint,
            limit: options.bytes,
            bytes: strangers.iter().map(|stranger| stranger.bytes).sum(),
            files: HashSet::new(),
            strangers,
            waiting: 0,
            reading: HashSet::new(),
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
        self.add_file(id, header, parent, false);
        Some(id)
    }

    fn add_file(&mut self, id: Id, header: Header, parent: Option<Id>, writing: bool) {
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

    /// Whether a node can be read from disk into memory.
    pub(super) fn readable(&self, entry: &Entry<S>) -> bool {
        let fits = |tier: &Tier<S>| tier.archive.memory_bytes(entry.length) <= self.options.bytes;
        entry.disk.as_ref().is_some_and(|on_disk| !on_disk.writing) && self.tier.as_ref().is_some_and(fits)
    }

    /// Makes a node's file, and those it builds on, the most recently used ones.
    pub(super) fn touch_on_disk(&mut self, id: Id) {
        let now = self.tick();
        let mut at = Some(id);
        while let Some(on_disk) = at.and_then(|id| self.tree.get_mut(id)).and_then(|entry| entry.disk.as_mut()) {
            on_disk.used = now;
            if let Some(tier) = self.tier.as_ref().filter(|_| !on_disk.writing) {
                tier.disk.touch(on_disk.header.key);
            }
            at = on_disk.parent;
        }
    }

    /// Has a snapshot in memory written, if it is far enough from what is on disk and there is room.
    pub(super) fn keep_on_disk(&mut self, id: Id, tokens: &[u32]) {
        let Some(entry) = self.tree.get(id) else { return };
        let (Some(tier), Some(held), None) = (&self.tier, &entry.memory, &entry.disk) else { return };
        // What waits to be written cannot be let go.
        if tier.waiting >= QUEUE || (tier.waiting as u64 + 1) * self.snapshot_bytes > self.options.bytes / 2 {
            return;
        }
        let before = self.tree.path(&tokens[..tokens.len() - 1]);
        let parent = before.into_iter().rev().find(|&id| self.tree.get(id).is_some_and(|entry| entry.disk.is_some()));
        let parent_entry = parent.and_then(|id| self.tree.get(id));
        let from = parent_entry.map_or(0, |entry| entry.length);
        if tokens.len() - from < self.options.spacing {
            return;
        }
        let parent_key =
            parent_entry.and_then(|entry| entry.disk.as_ref()).map_or(NO_PARENT, |on_disk| on_disk.header.key);
        let header = Header {
            fingerprint: tier.fingerprint,
            key: disk::key(&tier.fingerprint, tokens),
            parent: parent_key,
            from: from as u64,
            length: tokens.len() as u64,
            history: tier.archive.history_bytes(from, tokens.len()),
            state: tier.archive.state_bytes(),
        };
        let (snapshot, pieces) = (held.snapshot.clone(), held.pieces.clone());
        if !self.make_room_on_disk(header.file_bytes().unwrap_or(u64::MAX), parent) {
            return;
        }
        self.ledger.add(&pieces);
        self.add_file(id, header.clone(), parent, true);
        if let Some(tier) = &mut self.tier {
            tier.waiting += 1;
            tier.disk.write(Write { id, header, tokens: tokens[from..].to_vec(), snapshot, pieces });
        }
    }

    /// Removes files until so many bytes more fit; false if they cannot. `keep` stays, and so does what it builds on.
    fn make_room_on_disk(&mut self, bytes: u64, keep: Option<Id>) -> bool {
        loop {
            let Some(tier) = &mut self.tier else { return false };
            if tier.bytes.saturating_add(bytes) <= tier.limit {
                return true;
            }
            if bytes > tier.limit {
                return false;
            }
            if let Some(stranger) = tier.strangers.pop() {
                tier.bytes -= stranger.bytes;
                tier.disk.remove(stranger.key);
                self.stats.disk_evictions += 1;
                continue;
            }
            let leaf = |&id: &Id| {
                let on_disk = self.tree.get(id)?.disk.as_ref()?;
                let free = on_disk.children == 0 && !on_disk.writing && !tier.reading.contains(&id) && Some(id) != keep;
                free.then_some((on_disk.used, id))
            };
            let Some((_, id)) = tier.files.iter().filter_map(leaf).min() else { return false };
            self.stats.disk_evictions += 1;
            self.drop_file(id);
        }
    }

    /// Removes a node's file and all that build on it.
    fn drop_file(&mut self, id: Id) {
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
            if !on_disk.writing {
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

    /// Begins to read a node's snapshot, if that is not under way.
    pub(crate) fn read(&mut self, id: Id) {
        self.touch_on_disk(id);
        let Some(length) = self.tree.get(id).map(|entry| entry.length) else { return };
        let path = self.tree.path(&self.tree.tokens(id));
        let base = path.into_iter().rev().find(|&id| self.tree.get(id).is_some_and(|entry| entry.memory.is_some()));
        if let Some(base) = base {
            self.touch(base);
        }
        let Some(tier) = &mut self.tier else { return };
        if !tier.reading.insert(id) {
            return;
        }
        let base = base.and_then(|id| self.tree.get(id));
        let base_length = base.map_or(0, |entry| entry.length);
        let base = base.and_then(|entry| entry.memory.as_ref()).map(|held| held.snapshot.clone());
        let mut files = Vec::new();
        let mut at = Some(id);
        while let Some(node) = at
            && let Some(entry) = self.tree.get(node)
            && let Some(on_disk) = &entry.disk
            && (entry.length > base_length || node == id)
        {
            files.push((node, on_disk.header.clone()));
            at = on_disk.parent;
        }
        files.reverse();
        let memory = tier.archive.memory_bytes(length);
        tier.disk.read(Read { id, base, files });
        // The rest is the base's.
        let shared = self.tier.as_ref().map_or(0, |tier| tier.archive.history_bytes(0, base_length));
        self.make_room(memory.saturating_sub(shared));
    }

    /// Whether a snapshot is being read.
    pub(crate) fn is_reading(&self, id: Id) -> bool {
        self.tier.as_ref().is_some_and(|tier| tier.reading.contains(&id))
    }

    /// Takes in what the disk's thread has done; `pieces` is the backend's.
    pub(crate) fn poll(&mut self, pieces: impl Fn(&S) -> Vec<Piece>) {
        let done = self.tier.as_ref().map_or_else(Vec::new, |tier| tier.disk.done());
        for done in done {
            match done {
                Done::Written { id, key, snapshot, pieces, written } => {
                    self.ledger.remove(&pieces);
                    drop(snapshot);
                    self.written(id, key, written);
                }
                Done::Read { id, result } => {
                    if let Some(tier) = &mut self.tier {
                        tier.reading.remove(&id);
                    }
                    match result {
                        Ok(snapshot) => {
                            self.stats.disk_reads += 1;
                            let pieces = pieces(&snapshot);
                            self.hold(id, snapshot, pieces);
                            self.make_room(0);
                        }
                        Err(useless) => {
                            self.stats.disk_errors += 1;
                            self.drop_file(useless);
                        }
                    }
                }
            }
        }
    }

    fn written(&mut self, id: Id, key: Key, written: bool) {
        if let Some(tier) = &mut self.tier {
            tier.waiting -= 1;
        }
        if written {
            self.stats.disk_writes += 1;
        } else {
            self.stats.disk_errors += 1;
        }
        match self.tree.get_mut(id).and_then(|entry| entry.disk.as_mut()) {
            Some(on_disk) if written => on_disk.writing = false,
            Some(_) => self.drop_file(id),
            None => self.remove_file(key),
        }
        // What was used last may have found no place in the queue. After a failure it waits for the next snapshot: a full disk
        // would only fail again.
        if written && let Some((_, &id)) = self.order.last_key_value() {
            let tokens = self.tree.tokens(id);
            self.keep_on_disk(id, &tokens);
        }
    }
}

/// What decides whether a snapshot's bits are those that would be computed here.
fn fingerprint(model: &[u8], format: &str, grain: usize) -> Key {
    let mut hasher = blake3::Hasher::new_derive_key("Lily 2026 prefix cache: model, format, chunks, version");
    for part in [model, format.as_bytes(), &grain.to_le_bytes(), env!("CARGO_PKG_VERSION").as_bytes()] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

//! The prefix cache: what has been read once is not read again.
//!
//! A recurrent state cannot be cut back, so a sequence can only go on from a snapshot taken where it is to go on. The
//! cache is a tree over runs of tokens whose nodes hold snapshots, in memory, on disk, or both; a request goes on from the
//! deepest one that its prompt begins with. At least one token of the prompt is left to read, for its logits.
//!
//! # When snapshots are taken
//! One at the 35B copies 61 MiB, 63 on a GPU (about 10 ms, between two steps) and keeps them, so they are taken where they are likely
//! to be of use, at most one for a sequence and a place, and none where there is one already:
//! - before a message begins (a boundary token), [`spacing`](CacheOptions::spacing) tokens or more after the one before:
//!   another conversation with the same system prompt goes on from there, and one that was edited;
//! - before the last message begins, at any distance: the next turn may hold another text than was generated, thinking
//!   that was left out for example, but agrees up to there;
//! - every [`interval`](CacheOptions::interval) tokens, not within `spacing` of another place;
//! - before the last token of a prompt of which `spacing` or more are read: the same prompt once more is a step of one token;
//! - where another request that waits for this one leaves it (see below);
//! - at the end of a reply, or wherever a client left it: the state is there and costs nothing to keep;
//! - before a chunk that is read in slices, for as long as that takes: a client that leaves it within the chunk leaves a state
//!   of no use. Only where there is room: nothing is let go for it. Not where the cache has room for less than four.
//!
//! Of a prompt whose snapshots would take more than half of the memory there are fewer, by doubling both distances.
//!
//! Of a prompt, a backend whose results depend on how prompts are cut ([`lily_backend::Description::grain`]) gets snapshots only at
//! multiples of its grain: going on from there gives the bits of a fresh reading. The end of a reply is kept wherever it is: what
//! follows then has other bits, as near the model's, but the reply need not be read again, which is what chats and agents wait for.
//!
//! # What they take
//! [`bytes`](CacheOptions::bytes) bounds all pieces of memory that snapshots hold, each counted once, the runs of tokens,
//! what waits to be written to disk, and what is being read from there. Room is made before a snapshot is taken; the least
//! recently used goes first, where of a conversation that is used also those count that others build on, its system prompt
//! for example; what a waiting request would go on from goes only when there is nothing else. What the disk has under way
//! would free nothing and stays, but is never so much that a promise could not be kept: a write or a read that would be too much
//! is not begun, but a shorter one that the conversation builds on, if there is one. A backend that shares a pool between sequences
//! and snapshots may find it full for a step: then snapshots go too, one by one, first those that give it some, and what waits for its way
//! to the disk is sent off, until the step goes through. It may be full for a snapshot that was read from disk: then as many go as that one
//! needs, none that a waiting request would go on from; where they would not do, what waits for its way is sent off first, and where nothing
//! would do, none goes.
//!
//! Copies on their way to the disk and from it, of a backend that has its snapshots elsewhere than in the machine's memory, count
//! too, as long as they are there; there are never more of them than [`transit`](CacheOptions::transit).
//!
//! # Requests side by side
//! A request whose prompt begins as that of one that is being read waits for it, if it saves `spacing` tokens, and goes on
//! from the snapshot at the last place they share. It waits only for sequences that read; those never wait. Whoever is
//! waited for is as urgent as whoever waits, and who waits takes no other request's place.
//!
//! # On disk
//! A snapshot that is [`DiskOptions::spacing`] tokens or more past the nearest one on disk is written, by a thread of its
//! own, with only the keys and values since that one; not one that a client left behind by going. What comes while several
//! wait is written in the place of one that it builds on and that only waits, so that of a prompt read faster than it is written
//! the longest is found after a restart; without such a one the last that came is written when another is done, if it is still there.
//! After a write that failed the next ones are left out, each time twice as many; if the disk was full, files make room for the next.
//! Files are removed least recently used first, never one that another builds on.
//! A request waits for the disk, up to [`DiskOptions::patience`]; while one waits for room to read, no write is begun. `disk` has the format, `tier` the book-keeping.
//!
//! The disk's threads reach no GPU: what they write is fetched from there before, what they have read is brought there after, by the
//! engine's thread, in small parts between two steps (`tier/ferry`), most of them of what comes in.

mod disk;
mod ledger;
mod options;
mod stops;
#[cfg(test)]
mod tests;
mod tier;
mod tree;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use lily_backend::Piece;

use ledger::Ledger;
pub use options::{CacheOptions, CacheStats, DiskOptions};
pub(crate) use stops::Places;
pub(crate) use tier::Reading;
use tier::{OnDisk, Tier};
pub(crate) use tree::Id;
use tree::Tree;

/// For how long a snapshot is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lasts {
    /// Until it is [released](Cache::release), or until nothing has been used less recently. Nothing is let go for it.
    AWhile,
    /// Until nothing in memory has been used less recently.
    InMemory,
    /// Likewise, and it may be written to disk.
    OnDisk,
}

/// A snapshot in memory.
struct Held<S> {
    snapshot: S,
    pieces: Vec<Piece>,
    /// Its place in the order of use.
    used: u64,
    lasts: Lasts,
}

/// What a node has; one or both.
struct Entry<S> {
    length: usize,
    memory: Option<Held<S>>,
    disk: Option<OnDisk>,
}

impl<S> Entry<S> {
    fn new(length: usize) -> Self {
        Self { length, memory: None, disk: None }
    }
}

/// Where a prompt can go on.
pub(crate) enum Found<S> {
    /// Nowhere but at its beginning.
    Nothing,
    /// From a snapshot of so many tokens.
    Memory(usize, S),
    /// From a snapshot of so many tokens that has to be read first.
    Disk(usize, Id),
}

impl<S> Found<S> {
    /// Tokens that need not be read.
    pub(crate) fn length(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Memory(length, _) | Self::Disk(length, _) => *length,
        }
    }
}

/// The cache; one thread owns it.
pub(crate) struct Cache<S> {
    options: CacheOptions,
    /// Bytes that taking a snapshot allocates.
    snapshot_bytes: u64,
    tree: Tree<Entry<S>>,
    /// All pieces that are held, for whatever reason.
    ledger: Ledger,
    /// Those among them that the disk's threads use.
    in_use: Ledger,
    /// Bytes that snapshots will take that are being read from disk.
    arriving: u64,
    /// Bytes of copies on their way to the disk or from it, beside the snapshots, since they were to be made.
    transit: u64,
    /// Snapshots in memory, the least recently used first.
    order: BTreeMap<u64, Id>,
    /// The prompts of requests that have not begun.
    waiting: Vec<Arc<[u32]>>,
    clock: u64,
    tier: Option<Tier<S>>,
    stats: CacheStats,
}

impl<S: Clone + Send + Sync + 'static> Cache<S> {
    pub(crate) fn new(options: CacheOptions, snapshot_bytes: u64) -> Self {
        Self {
            options,
            snapshot_bytes,
            tree: Tree::new(),
            ledger: Ledger::default(),
            in_use: Ledger::default(),
            arriving: 0,
            transit: 0,
            order: BTreeMap::new(),
            waiting: Vec::new(),
            clock: 0,
            tier: None,
            stats: CacheStats::default(),
        }
    }

    /// Bytes that its memory takes.
    fn bytes(&self) -> u64 {
        self.ledger.bytes() + self.arriving + self.transit + self.tree.bytes()
    }

    /// Whether so many bytes more can be had beside what cannot be let go. Of the tree some could be, but seldom much.
    fn has_room(&self, bytes: u64) -> bool {
        (self.in_use.bytes() + self.arriving + self.transit + self.tree.bytes()).saturating_add(bytes)
            <= self.options.bytes
    }

    /// Whether so many bytes more may be on their way to the disk and from it.
    fn has_way(&self, bytes: u64) -> bool {
        self.transit.saturating_add(bytes) <= self.options.transit
    }

    /// Whether so many bytes more can be had without letting anything go.
    fn is_free(&self, bytes: u64) -> bool {
        self.bytes().saturating_add(bytes) <= self.options.bytes
    }

    pub(crate) fn stats(&self) -> CacheStats {
        let mut stats = CacheStats { snapshots: self.order.len(), bytes: self.bytes(), ..self.stats };
        if let Some(tier) = &self.tier {
            tier.count(&mut stats);
        }
        stats
    }

    /// The best place for a prompt to go on from; one on disk only if that `may_read`.
    pub(crate) fn find(&mut self, prompt: &[u32], may_read: bool) -> Found<S> {
        let path = self.tree.path(&prompt[..prompt.len() - 1]);
        let entry = |id| self.tree.get(id);
        let length = |id| entry(id).map_or(0, |entry| entry.length);
        let memory = path.iter().copied().rfind(|&id| entry(id).is_some_and(|entry| entry.memory.is_some()));
        let least = memory.map_or(0, length) + self.options.spacing;
        let mut worth_reading = path.into_iter().rev().take_while(|&id| may_read && length(id) >= least);
        if let Some(id) = worth_reading.find(|&id| self.readable(id, memory)) {
            return Found::Disk(length(id), id);
        }
        let Some(id) = memory else { return Found::Nothing };
        self.touch(id);
        match self.tree.get(id).and_then(|entry| Some((entry.length, entry.memory.as_ref()?))) {
            Some((length, held)) => Found::Memory(length, held.snapshot.clone()),
            None => Found::Nothing,
        }
    }

    /// Counts a request that began with `cached` tokens of its prompt read.
    pub(crate) fn began(&mut self, cached: usize) {
        if cached > 0 {
            self.stats.hits += 1;
        } else {
            self.stats.misses += 1;
        }
        self.stats.cached_tokens += cached as u64;
    }

    /// Whether a snapshot after these tokens is worth taking; if so, there is room for it. One that is there already lasts
    /// so long from now on, or longer.
    pub(crate) fn wants(&mut self, tokens: &[u32], lasts: Lasts) -> bool {
        if tokens.is_empty() {
            return false;
        }
        let held = self.tree.find(tokens).filter(|&id| self.tree.get(id).is_some_and(|entry| entry.memory.is_some()));
        if let Some(id) = held {
            self.touch(id);
            if let Some(held) = self.tree.get_mut(id).and_then(|entry| entry.memory.as_mut()) {
                held.lasts = held.lasts.max(lasts);
            }
            self.keep_on_disk(id, tokens);
            return false;
        }
        let most = self.snapshot_bytes + size_of_val(tokens) as u64;
        if lasts == Lasts::AWhile {
            return self.is_free(most);
        }
        if !self.has_room(most) {
            return false;
        }
        self.make_room(self.snapshot_bytes);
        true
    }

    /// Keeps a snapshot of these tokens, of which there is at least one, if it can have the room.
    pub(crate) fn insert(&mut self, tokens: &[u32], snapshot: S, pieces: Vec<Piece>, lasts: Lasts) {
        let run = size_of_val(tokens) as u64;
        let node = run + Tree::<Entry<S>>::MOST_BYTES_OF_NODES;
        let missing = self.ledger.missing(&pieces) + node;
        if !self.has_room(self.in_use.missing(&pieces) + node) || (lasts == Lasts::AWhile && !self.is_free(missing)) {
            return;
        }
        let id = self.tree.insert(tokens, Entry::new(tokens.len()));
        self.hold(id, snapshot, pieces, lasts);
        self.keep_on_disk(id, tokens);
    }

    /// Puts a snapshot in memory, unless there is one. Others make room for it.
    fn hold(&mut self, id: Id, snapshot: S, pieces: Vec<Piece>, lasts: Lasts) {
        if self.tree.get(id).is_none_or(|entry| entry.memory.is_some()) {
            return;
        }
        self.ledger.add(&pieces);
        self.make_room(0);
        let used = self.tick();
        let Some(entry) = self.tree.get_mut(id) else { return };
        entry.memory = Some(Held { snapshot, pieces, used, lasts });
        self.order.insert(used, id);
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Makes a node the most recently used one, of those in memory and of those on disk; right before it come those that
    /// others build on too.
    fn touch(&mut self, id: Id) {
        let shared = self.tree.shared(id);
        for id in shared.into_iter().rev().chain([id]) {
            let now = self.tick();
            if let Some(held) = self.tree.get_mut(id).and_then(|entry| entry.memory.as_mut()) {
                self.order.remove(&held.used);
                held.used = now;
                self.order.insert(now, id);
            }
        }
        self.touch_on_disk(id);
    }

    /// Lets snapshots go until so many bytes more fit, or none is left.
    fn make_room(&mut self, bytes: u64) {
        if self.is_free(bytes) {
            return;
        }
        let needed = self.needed();
        while !self.is_free(bytes) && self.let_go_beside(&needed, |_| true) {}
    }

    /// Lets the least recently used snapshot go: none that the disk has under way, which would free nothing, and one that a waiting
    /// request would go on from only if there is no other. One that `gives_room` goes before others that do not by themselves: of a
    /// conversation the longest, whose pages the others have too. False if there is none.
    pub(crate) fn let_one_go(&mut self, gives_room: impl Fn(&S) -> bool) -> bool {
        self.let_go_beside(&self.needed(), gives_room)
    }

    /// The same, where `needed` are those that waiting requests would go on from.
    fn let_go_beside(&mut self, needed: &HashSet<Id>, gives_room: impl Fn(&S) -> bool) -> bool {
        let held = |(&used, id): (&u64, &Id)| Some((used, *id, self.tree.get(*id)?.memory.as_ref()?));
        let loose = || self.order.iter().filter_map(held).filter(|(.., held)| !self.in_use.has(&held.pieces));
        let others = || loose().filter(|(_, id, _)| !needed.contains(id));
        let first = others().find(|(.., held)| gives_room(&held.snapshot));
        let Some((used, ..)) = first.or_else(|| others().next()).or_else(|| loose().next()) else { return false };
        self.evict(used);
        true
    }

    /// Lets the snapshot go that has this place in the order of use.
    fn evict(&mut self, used: u64) {
        let Some(id) = self.order.remove(&used) else { return };
        self.stats.evictions += 1;
        self.let_go(id);
    }

    /// Says which requests have not begun: what one with such a prompt would go on from is spared.
    pub(crate) fn spare(&mut self, prompts: Vec<Arc<[u32]>>) {
        self.waiting = prompts;
    }

    /// Those in memory from which waiting requests would go on.
    fn needed(&self) -> HashSet<Id> {
        let in_memory = |id: &Id| self.tree.get(*id).is_some_and(|entry| entry.memory.is_some());
        let deepest = |prompt: &Arc<[u32]>| self.tree.path(&prompt[..prompt.len() - 1]).into_iter().rfind(in_memory);
        self.waiting.iter().filter_map(deepest).collect()
    }

    /// Drops the snapshot of these tokens, which turned out to be of no use.
    pub(crate) fn forget(&mut self, tokens: &[u32]) {
        let Some(id) = self.tree.find(tokens) else { return };
        if let Some(held) = self.tree.get(id).and_then(|entry| entry.memory.as_ref()) {
            self.order.remove(&held.used);
        }
        self.let_go(id);
    }

    /// Drops the snapshot of these tokens if it was taken for a while only and nobody has wanted it for longer since.
    pub(crate) fn release(&mut self, tokens: &[u32]) {
        let held = self.tree.find(tokens).and_then(|id| self.tree.get(id)?.memory.as_ref());
        if held.is_some_and(|held| held.lasts == Lasts::AWhile) {
            self.forget(tokens);
        }
    }

    /// Drops the snapshot of a node, which is out of the order already.
    fn let_go(&mut self, id: Id) {
        let Some(entry) = self.tree.get_mut(id) else { return };
        if let Some(held) = entry.memory.take() {
            self.ledger.remove(&held.pieces);
        }
        self.forget_if_empty(id);
    }

    /// Takes a node out of the tree that has nothing any more.
    fn forget_if_empty(&mut self, id: Id) {
        if self.tree.get(id).is_some_and(|entry| entry.memory.is_none() && entry.disk.is_none()) {
            self.tree.remove(id);
        }
    }
}

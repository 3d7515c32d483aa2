//! What must hold of the cache whatever is asked of it, with a disk that goes and stops.

mod way;

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lily_backend::{Archive, BackendError, Piece};
use proptest::prelude::*;

use super::tier::ferry::Carrier;
use super::{Cache, CacheOptions, DiskOptions, Found, Lasts, Reading};

const STATE: u64 = 3000;
const PAGE: usize = 16;
const PAGE_BYTES: u64 = 400;

/// A snapshot: its own number, and the pages that it shares with whatever begins alike.
struct Frozen {
    number: u64,
    length: usize,
    pages: Vec<u64>,
}

type Snapshot = Arc<Frozen>;

static NUMBERS: AtomicU64 = AtomicU64::new(0);

fn frozen(length: usize, pages: Vec<u64>) -> Snapshot {
    Arc::new(Frozen { number: NUMBERS.fetch_add(1, Ordering::Relaxed), length, pages })
}

fn snapshot(tokens: &[u32]) -> Snapshot {
    let page = |count: usize| {
        tokens[..count * PAGE].iter().fold(7u64, |hash, &token| hash.wrapping_mul(31).wrapping_add(token.into()))
    };
    frozen(tokens.len(), (1..=tokens.len() / PAGE).map(page).collect())
}

fn pieces(snapshot: &Snapshot) -> Vec<Piece> {
    let state = Piece { id: snapshot.number, bytes: STATE };
    let page = |&hash: &u64| Piece { id: hash | 1 << 63, bytes: PAGE_BYTES };
    std::iter::once(state).chain(snapshot.pages.iter().map(page)).collect()
}

/// A disk that can be stopped: then nothing is read or written. What goes there is copied before, if it is `far`.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>, Far);

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Far(bool);

/// How fetching ends.
#[derive(Clone, Copy, Default, PartialEq)]
enum Fetching {
    #[default]
    Well,
    Never,
    Badly,
}

/// The way there and back: of a far one in two steps.
#[derive(Default)]
struct Way {
    far: Far,
    ends: Fetching,
    /// Steps so far.
    steps: usize,
    /// Snapshots that have to go before something can be adopted; not the first, which a sequence shares, and none as long as
    /// one is to be fetched.
    to_go: Cell<usize>,
    /// Nothing is ever adopted whole.
    never_arrives: bool,
    fetching: Option<u64>,
    adopting: Option<u64>,
}

impl Far {
    fn step(self, under_way: &mut Option<u64>, number: u64) -> bool {
        let arrives = self == Self(false) || under_way.take() == Some(number);
        *under_way = (!arrives).then_some(number);
        arrives
    }
}

impl Carrier<Snapshot> for Way {
    fn fetch(&mut self, snapshot: &Snapshot, _from: usize) -> Result<Option<Snapshot>, BackendError> {
        self.steps += 1;
        match self.ends {
            Fetching::Well => {}
            Fetching::Never => return Ok(None),
            Fetching::Badly => return Err(BackendError::Device("it is lost".into())),
        }
        if !self.far.step(&mut self.fetching, snapshot.number) {
            return Ok(None);
        }
        if self.far == Far(false) {
            return Ok(Some(snapshot.clone()));
        }
        Ok(Some(frozen(snapshot.length, snapshot.pages.clone())))
    }

    fn adopt(&mut self, read: &Snapshot) -> Result<Option<Snapshot>, BackendError> {
        if self.to_go.get() > 0 {
            return Err(BackendError::Full("no page".into()));
        }
        self.steps += 1;
        Ok((!self.never_arrives && self.far.step(&mut self.adopting, read.number)).then(|| read.clone()))
    }

    fn evictions_for(&self, _: &Snapshot, snapshots: &[&Snapshot]) -> Option<Vec<usize>> {
        let free = snapshots.iter().all(|snapshot| Arc::strong_count(snapshot) == 1);
        (free && self.to_go.get() < snapshots.len()).then(|| (1..=self.to_go.take()).collect())
    }

    fn pieces(&self, snapshot: &Snapshot) -> Vec<Piece> {
        pieces(snapshot)
    }
}

fn transit(from: usize, to: usize) -> u64 {
    STATE + (to / PAGE - from / PAGE) as u64 * PAGE_BYTES
}

impl Gate {
    fn stop(&self, stopped: bool) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = stopped;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        let stopped = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.0.1.wait_while(stopped, |stopped| *stopped).unwrap_or_else(PoisonError::into_inner));
    }
}

/// Opens the gate at its end: a test that fails must not wait for the disk.
struct Opens(Gate);

impl Drop for Opens {
    fn drop(&mut self) {
        self.0.stop(false);
    }
}

impl Archive<Snapshot> for Gate {
    fn format(&self) -> String {
        "test".into()
    }

    fn history_bytes(&self, from: usize, to: usize) -> u64 {
        (to / PAGE - from / PAGE) as u64 * 8
    }

    fn state_bytes(&self) -> u64 {
        4
    }

    fn memory_bytes(&self, length: usize) -> u64 {
        STATE + (length / PAGE) as u64 * PAGE_BYTES
    }

    fn transit_bytes(&self, from: usize, to: usize) -> u64 {
        if self.1.0 { transit(from, to) } else { 0 }
    }

    fn write_history(&self, snapshot: &Snapshot, from: usize, to: &mut dyn Write) -> io::Result<()> {
        self.pass();
        snapshot.pages[from / PAGE..].iter().try_for_each(|page| to.write_all(&page.to_le_bytes()))
    }

    fn write_state(&self, _: &Snapshot, to: &mut dyn Write) -> io::Result<()> {
        to.write_all(b"here")
    }

    fn read_history(
        &self,
        onto: Option<&Snapshot>,
        from: usize,
        to: usize,
        bytes: &mut dyn Read,
    ) -> io::Result<Snapshot> {
        self.pass();
        let mut pages = onto.map_or_else(Vec::new, |onto| onto.pages[..from / PAGE].to_vec());
        for _ in from / PAGE..to / PAGE {
            let mut page = [0; 8];
            bytes.read_exact(&mut page)?;
            pages.push(u64::from_le_bytes(page));
        }
        Ok(frozen(to, pages))
    }

    fn read_state(&self, history: Snapshot, bytes: &mut dyn Read) -> io::Result<Snapshot> {
        bytes.read_exact(&mut [0; 4])?;
        Ok(history)
    }
}

fn cache(directory: &std::path::Path, gate: &Gate, bytes: u64, disk: u64) -> Cache<Snapshot> {
    let options = CacheOptions { spacing: 10, ..CacheOptions::new(bytes) };
    let on_disk = DiskOptions { spacing: 8, ..DiskOptions::new(directory.to_owned(), disk, b"model".to_vec()) };
    let mut cache = Cache::new(options, STATE);
    cache.open_disk(&on_disk, Arc::new(gate.clone()), 1, || {}).expect("a directory");
    cache
}

fn keep(cache: &mut Cache<Snapshot>, tokens: &[u32], lasts: Lasts) {
    if cache.wants(tokens, lasts) {
        let snapshot = snapshot(tokens);
        cache.insert(tokens, snapshot.clone(), pieces(&snapshot), lasts);
    }
}

/// Waits until the disk has nothing more to do.
fn settle(cache: &mut Cache<Snapshot>, far: Far) {
    let began = Instant::now();
    let mut way = Way { far, ..Way::default() };
    loop {
        cache.carry(&mut way);
        let tier = cache.tier.as_ref().expect("a tier");
        if tier.is_idle() {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "the disk has stopped");
        std::thread::sleep(Duration::from_micros(50));
    }
}

fn text(name: u32, length: usize) -> Vec<u32> {
    (0..length as u32).map(|index| if index < 20 { index } else { index * (name + 1) % 97 }).collect()
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Keep { name: u32, length: usize, lasts: Lasts },
    Release { name: u32, length: usize },
    Wait { name: u32, length: usize },
    Ask { name: u32, length: usize },
    Poll,
    Stop(bool),
    LetGo,
    Settle,
}

fn act() -> impl Strategy<Value = Act> {
    let text = || (0u32..4, 1usize..160);
    let lasts = prop::sample::select(vec![Lasts::AWhile, Lasts::InMemory, Lasts::OnDisk]);
    prop_oneof![
        5 => (text(), lasts).prop_map(|((name, length), lasts)| Act::Keep { name, length, lasts }),
        1 => text().prop_map(|(name, length)| Act::Release { name, length }),
        1 => text().prop_map(|(name, length)| Act::Wait { name, length: length + 1 }),
        4 => text().prop_map(|(name, length)| Act::Ask { name, length: length + 1 }),
        3 => Just(Act::Poll),
        2 => any::<bool>().prop_map(Act::Stop),
        1 => Just(Act::LetGo),
        1 => Just(Act::Settle),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// The cap holds after every call, with a stopped disk and while reading; and all is accounted for at the end.
    #[test]
    fn the_cap_holds(acts in prop::collection::vec(act(), 1..60), cap in 2000u64..40_000, disk in 500u64..20_000, far in any::<bool>()) {
        let directory = tempfile::tempdir().expect("a directory");
        let far = Far(far);
        let gate = Gate(Arc::default(), far);
        for _life in 0..2 {
            let mut way = Way { far, ..Way::default() };
            let mut cache = cache(directory.path(), &gate, cap, disk);
            let _opens = Opens(gate.clone());
            prop_assert!(cache.bytes() <= cap);
            for &act in &acts {
                match act {
                    Act::Keep { name, length, lasts } => {
                        let evictions = cache.stats().evictions;
                        keep(&mut cache, &text(name, length), lasts);
                        prop_assert!(lasts != Lasts::AWhile || cache.stats().evictions == evictions);
                    }
                    Act::Release { name, length } => cache.release(&text(name, length)),
                    Act::Wait { name, length } => cache.spare(vec![text(name, length).into()]),
                    Act::Ask { name, length } => {
                        let prompt = text(name, length);
                        match cache.find(&prompt, true) {
                            Found::Disk(_, id) => drop(cache.read(id)),
                            Found::Memory(held, found) => {
                                prop_assert_eq!((found.length, &found.pages), (held, &snapshot(&prompt[..held]).pages));
                            }
                            Found::Nothing => {}
                        }
                    }
                    Act::Poll => {
                        let steps = way.steps;
                        cache.carry(&mut way);
                        prop_assert!(way.steps <= steps + 1, "more than a part at once");
                    }
                    Act::Stop(stopped) => gate.stop(stopped),
                    Act::LetGo => drop(cache.let_one_go(|_| true)),
                    Act::Settle => {
                        gate.stop(false);
                        settle(&mut cache, far);
                    }
                }
                prop_assert!(cache.bytes() <= cap, "{} of {cap} after {act:?}", cache.bytes());
                prop_assert!(cache.transit <= cap / 2, "{} of {cap} on their way after {act:?}", cache.transit);
                prop_assert!(cache.stats().disk_bytes <= disk);
            }
            gate.stop(false);
            settle(&mut cache, far);
            prop_assert!(cache.bytes() <= cap);
            while cache.let_one_go(|_| true) {}
            let left = (cache.ledger.bytes(), cache.in_use.bytes(), cache.arriving, cache.transit);
            prop_assert_eq!(left, (0, 0, 0, 0));
            prop_assert_eq!(cache.stats().disk_errors, 0);
        }
    }
}

/// Two that are read at once both arrive, whatever else is in memory; a third waits for room.
#[test]
fn reads_at_once_do_not_push_each_other_out() {
    let directory = tempfile::tempdir().expect("a directory");
    let gate = Gate::default();
    let each = STATE + 6 * PAGE_BYTES;
    {
        let mut cache = cache(directory.path(), &gate, 1 << 20, 1 << 20);
        for name in 0..3 {
            keep(&mut cache, &text(name, 100), Lasts::OnDisk);
            settle(&mut cache, Far(false));
        }
    }
    let mut cache = cache(directory.path(), &gate, 2 * each + 6000, 1 << 20);
    let _opens = Opens(gate.clone());
    keep(&mut cache, &text(3, 50), Lasts::InMemory);
    gate.stop(true);
    let on_disk = |cache: &mut Cache<Snapshot>, name| match cache.find(&text(name, 101), true) {
        Found::Disk(100, id) => id,
        found => panic!("{}", found.length()),
    };
    let ids = [0, 1, 2].map(|name| on_disk(&mut cache, name));
    assert_eq!(ids.map(|id| cache.read(id)), [Reading::UnderWay, Reading::UnderWay, Reading::NoRoomNow]);
    assert_eq!(cache.read(ids[0]), Reading::UnderWay, "once");
    gate.stop(false);
    settle(&mut cache, Far(false));
    for name in [0, 1] {
        assert!(matches!(cache.find(&text(name, 101), true), Found::Memory(100, _)), "{name}");
    }
    assert_eq!(cache.read(ids[2]), Reading::UnderWay);
    settle(&mut cache, Far(false));
    assert!(matches!(cache.find(&text(2, 101), true), Found::Memory(100, _)));
}

/// What several conversations build on stays as long as any of them is used, though only their ends are.
#[test]
fn a_shared_beginning_is_used_with_what_builds_on_it() {
    let mut cache: Cache<Snapshot> = Cache::new(CacheOptions { spacing: 10, ..CacheOptions::new(30_000) }, STATE);
    let conversation = |name: u32, length| [text(0, 40), text(name + 1, length)].concat();
    keep(&mut cache, &text(0, 40), Lasts::InMemory);
    for name in 0..2 {
        keep(&mut cache, &conversation(name, 60), Lasts::InMemory);
    }
    for round in 0..30 {
        keep(&mut cache, &text(10 + round, 90), Lasts::InMemory);
        for name in 0..2 {
            assert!(matches!(cache.find(&conversation(name, 70), false), Found::Memory(100, _)), "round {round}");
        }
    }
    assert!(cache.stats().evictions > 20);
    assert_eq!(cache.find(&conversation(7, 60), false).length(), 40);
}

/// The same tokens are given up and written again before the first write is known to have ended: the file stays.
#[test]
fn a_file_that_is_written_twice_stays() {
    let directory = tempfile::tempdir().expect("a directory");
    let gate = Gate::default();
    let mut cache = cache(directory.path(), &gate, 1 << 20, 1 << 20);
    let _opens = Opens(gate.clone());
    gate.stop(true);
    let tokens = text(0, 100);
    keep(&mut cache, &tokens, Lasts::OnDisk);
    let id = cache.tree.find(&tokens).expect("it is kept");
    cache.drop_file(id);
    cache.keep_on_disk(id, &tokens);
    gate.stop(false);
    settle(&mut cache, Far(false));
    let stats = cache.stats();
    assert_eq!((stats.disk_writes, stats.disk_snapshots, stats.disk_errors), (2, 1, 0));
    while cache.let_one_go(|_| true) {}
    let Found::Disk(100, id) = cache.find(&text(0, 101), true) else { panic!("it is gone") };
    assert_eq!(cache.read(id), Reading::UnderWay);
    settle(&mut cache, Far(false));
    assert!(matches!(cache.find(&text(0, 101), true), Found::Memory(100, _)));
}

/// What was taken for a while goes when it is released, but not once somebody has wanted it for longer.
#[test]
fn what_another_wants_is_not_released() {
    let mut cache: Cache<Snapshot> = Cache::new(CacheOptions { spacing: 10, ..CacheOptions::new(30_000) }, STATE);
    let tokens = text(0, 40);
    for (wanted, left) in [(None, 0), (Some(Lasts::AWhile), 0), (Some(Lasts::InMemory), 40), (Some(Lasts::AWhile), 40)]
    {
        keep(&mut cache, &tokens, Lasts::AWhile);
        if let Some(lasts) = wanted {
            assert!(!cache.wants(&tokens, lasts), "it is there");
        }
        cache.release(&tokens);
        assert_eq!(cache.find(&text(0, 41), false).length(), left, "{wanted:?}");
    }
}

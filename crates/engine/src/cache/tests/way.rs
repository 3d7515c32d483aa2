//! What is on its way to the disk and from it.

use super::*;
use crate::cache::tree::Id;

/// A cache with room, whose snapshots lie where the disk's threads do not reach; its directory, and what stops them.
fn far_away() -> (tempfile::TempDir, Gate, Cache<Snapshot>) {
    let directory = tempfile::tempdir().expect("a directory");
    let gate = Gate(Arc::default(), Far(true));
    let cache = cache(directory.path(), &gate, 1 << 20, 1 << 20);
    (directory, gate, cache)
}

/// One whose only snapshot is on disk, and not in memory any more.
fn written_and_gone() -> (tempfile::TempDir, Gate, Cache<Snapshot>, Id) {
    let (directory, gate, mut cache) = far_away();
    keep(&mut cache, &text(0, 100), Lasts::OnDisk);
    settle(&mut cache, Far(true));
    assert!(cache.let_one_go(|_| true));
    let id = cache.tree.find(&text(0, 100)).expect("it is on disk");
    (directory, gate, cache, id)
}

/// What is copied for the disk counts from the moment it is to be, and frees the original when it is.
#[test]
fn a_copy_for_the_disk_counts_and_frees_its_original() {
    let (_directory, gate, mut cache) = far_away();
    let _opens = Opens(gate.clone());
    gate.stop(true);
    let tokens = text(0, 100);
    keep(&mut cache, &tokens, Lasts::OnDisk);
    let (own, copy) = (STATE + 6 * PAGE_BYTES, transit(0, 100));
    assert_eq!(cache.bytes() - cache.tree.bytes(), own + copy);
    let mut way = Way { far: Far(true), ..Way::default() };
    assert!(cache.carry(&mut way), "the first of two steps");
    assert!(!cache.let_one_go(|_| true), "it is still being copied: that would free nothing");
    assert!(!cache.carry(&mut way));
    assert!(cache.let_one_go(|_| true));
    assert_eq!(cache.bytes() - cache.tree.bytes(), copy, "the disk has what it needs");
    gate.stop(false);
    settle(&mut cache, Far(true));
    assert_eq!(cache.bytes() - cache.tree.bytes(), 0);
    let Found::Disk(100, id) = cache.find(&text(0, 101), true) else { panic!("it is gone") };
    assert_eq!(cache.read(id), Reading::UnderWay);
    assert_eq!(cache.bytes() - cache.tree.bytes(), own + copy);
    settle(&mut cache, Far(true));
    assert_eq!(cache.bytes() - cache.tree.bytes(), own);
}

/// What has been read makes the room that it needs: the least recently used go, not those that waiting requests would go on from,
/// and none if all of them would not do.
#[test]
fn what_comes_in_makes_no_more_room_than_it_needs() {
    let directory = tempfile::tempdir().expect("a directory");
    let gate = Gate::default();
    let mut cache = cache(directory.path(), &gate, 1 << 20, 1 << 20);
    keep(&mut cache, &text(9, 100), Lasts::OnDisk);
    settle(&mut cache, Far(false));
    assert!(cache.let_one_go(|_| true));
    for name in 0..5 {
        keep(&mut cache, &text(name, 100), Lasts::InMemory);
    }
    let waiting = [9, 0].map(|name| text(name, 101));
    cache.spare(waiting.iter().map(|prompt| prompt[..].into()).collect());
    let mut arrive = |to_go| {
        let Found::Disk(100, id) = cache.find(&waiting[0], true) else { panic!("it is gone") };
        assert_eq!(cache.read(id), Reading::UnderWay);
        let way = &mut Way { to_go: Cell::new(to_go), ..Way::default() };
        while cache.is_reading(id) {
            cache.carry(way);
            std::thread::sleep(Duration::from_micros(50));
        }
        let held = [0, 1, 2, 3, 4, 9].map(|name| cache.find(&text(name, 101), false).length() == 100);
        (held, cache.stats().disk_errors)
    };
    assert_eq!(arrive(5), ([true, true, true, true, true, false], 0), "one is needed");
    assert_eq!(arrive(2), ([true, true, false, false, true, true], 0), "1 would free nothing");
}

/// Somebody waits for what comes in: it does not wait for what goes out.
#[test]
fn what_comes_in_goes_first() {
    let (_directory, _gate, mut cache) = far_away();
    keep(&mut cache, &text(0, 100), Lasts::OnDisk);
    settle(&mut cache, Far(true));
    assert!(cache.let_one_go(|_| true));
    keep(&mut cache, &text(1, 100), Lasts::OnDisk);
    let Found::Disk(100, id) = cache.find(&text(0, 101), true) else { panic!("it is gone") };
    assert_eq!(cache.read(id), Reading::UnderWay);
    let (began, mut way) = (Instant::now(), Way { far: Far(true), ends: Fetching::Never, ..Way::default() });
    while cache.is_reading(id) {
        assert!(cache.carry(&mut way) && began.elapsed() < Duration::from_secs(60), "it waits");
        std::thread::sleep(Duration::from_micros(50));
    }
    assert!(matches!(cache.find(&text(0, 101), true), Found::Memory(100, _)));
    assert_eq!(cache.stats().disk_waiting, 1);
    settle(&mut cache, Far(true));
}

/// What cannot be fetched is not written, and nothing of it is counted any more.
#[test]
fn what_is_lost_on_the_backend_is_not_written() {
    for far in [false, true].map(Far) {
        let directory = tempfile::tempdir().expect("a directory");
        let gate = Gate(Arc::default(), far);
        let mut cache = cache(directory.path(), &gate, 1 << 20, 1 << 20);
        keep(&mut cache, &text(0, 100), Lasts::OnDisk);
        cache.carry(&mut Way { far, ends: Fetching::Badly, ..Way::default() });
        let stats = cache.stats();
        assert_eq!((stats.disk_waiting, stats.disk_snapshots, stats.disk_writes, stats.disk_errors), (0, 0, 0, 1));
        assert_eq!((cache.transit, cache.in_use.bytes()), (0, 0));
        assert!(cache.let_one_go(|_| true));
        assert_eq!(cache.bytes(), 0);
    }
}

/// What is on its way there and back together keeps to its bytes: another write, another read waits until there is room.
#[test]
fn what_is_on_its_way_is_bounded() {
    let (_directory, gate, mut cache) = far_away();
    let _opens = Opens(gate.clone());
    let copy = transit(0, 100);
    cache.options.transit = copy + 1;
    gate.stop(true);
    for name in 0..2 {
        keep(&mut cache, &text(name, 100), Lasts::OnDisk);
        assert_eq!((cache.transit, cache.stats().disk_waiting), (copy, 1));
    }
    let mut way = Way { far: Far(true), ..Way::default() };
    while cache.carry(&mut way) {}
    assert_eq!(cache.transit, copy, "it is not written yet");
    gate.stop(false);
    settle(&mut cache, Far(true));
    assert_eq!((cache.transit, cache.stats().disk_writes), (0, 2), "the other one's turn has come");
    while cache.let_one_go(|_| true) {}
    gate.stop(true);
    let ids = [0, 1].map(|name| cache.tree.find(&text(name, 100)).expect("it is on disk"));
    assert_eq!(ids.map(|id| cache.read(id)), [Reading::UnderWay, Reading::NoRoomNow]);
    assert_eq!(cache.transit, copy);
    gate.stop(false);
    settle(&mut cache, Far(true));
    assert_eq!(cache.transit, 0);
    cache.options.transit = copy - 1;
    assert_eq!(cache.read(ids[1]), Reading::NoRoom);
}

/// What is read onto what is in memory takes no more than what is new, and holds what it builds on.
#[test]
fn what_is_read_onto_another_takes_what_is_new() {
    let (_directory, gate, mut cache) = far_away();
    let _opens = Opens(gate.clone());
    for length in [60, 120] {
        keep(&mut cache, &text(0, length), Lasts::OnDisk);
        settle(&mut cache, Far(true));
    }
    while cache.let_one_go(|_| true) {}
    keep(&mut cache, &text(0, 60), Lasts::InMemory);
    let (before, base, new) = (cache.bytes(), STATE + 3 * PAGE_BYTES, STATE + 4 * PAGE_BYTES);
    gate.stop(true);
    let Found::Disk(120, id) = cache.find(&text(0, 121), true) else { panic!("it is gone") };
    assert_eq!(cache.read(id), Reading::UnderWay);
    assert_eq!((cache.bytes() - before, cache.transit, cache.in_use.bytes()), (new + new, new, base));
    gate.stop(false);
    settle(&mut cache, Far(true));
    assert_eq!((cache.bytes() - before, cache.transit, cache.in_use.bytes()), (new, 0, 0));
}

/// What waits to be written, and its copies, is at most half of the cache if it is several.
#[test]
fn what_waits_to_be_written_leaves_half_of_the_memory() {
    for far in [false, true].map(Far) {
        let directory = tempfile::tempdir().expect("a directory");
        let gate = Gate(Arc::default(), far);
        let each = STATE + 6 * PAGE_BYTES + if far.0 { transit(0, 100) } else { 0 };
        let mut cache = cache(directory.path(), &gate, 5 * each, 1 << 20);
        let _opens = Opens(gate.clone());
        gate.stop(true);
        for name in 0..4 {
            keep(&mut cache, &text(name, 100), Lasts::OnDisk);
        }
        assert_eq!(cache.stats().disk_waiting, 2);
        // They begin with the same page.
        assert_eq!(cache.in_use.bytes() + cache.transit, 2 * each - PAGE_BYTES);
        gate.stop(false);
        settle(&mut cache, far);
    }
}

/// Of a long conversation a shorter file is read first if there is no way for the longer one, and that one onto it. Nobody waits for
/// what has no way whatever ends.
#[test]
fn what_is_too_long_to_be_read_at_once_is_read_in_parts() {
    let (_directory, gate, mut cache) = far_away();
    let _opens = Opens(gate.clone());
    for length in [60, 200] {
        keep(&mut cache, &text(0, length), Lasts::OnDisk);
        settle(&mut cache, Far(true));
    }
    while cache.let_one_go(|_| true) {}
    let long = cache.tree.find(&text(0, 200)).expect("it is on disk");
    let find = |cache: &mut Cache<Snapshot>| match cache.find(&text(0, 201), true) {
        Found::Disk(length, id) => (length, id),
        found => panic!("{}", found.length()),
    };
    assert_eq!(find(&mut cache), (200, long));
    cache.options.transit = transit(0, 200) - 1;
    let (length, short) = find(&mut cache);
    assert_eq!(length, 60);
    gate.stop(true);
    keep(&mut cache, &text(1, 60), Lasts::OnDisk);
    assert_eq!((cache.stats().disk_waiting, cache.read(long)), (1, Reading::NoRoom));
    gate.stop(false);
    settle(&mut cache, Far(true));
    assert_eq!(cache.read(short), Reading::UnderWay);
    settle(&mut cache, Far(true));
    assert_eq!(find(&mut cache), (200, long), "the rest of it has a way");
    assert_eq!(cache.read(long), Reading::UnderWay);
    settle(&mut cache, Far(true));
    assert!(matches!(cache.find(&text(0, 201), true), Found::Memory(200, _)));
    // Its own memory is a limit too.
    while cache.let_one_go(|_| true) {}
    cache.options.transit = 1 << 20;
    cache.options.bytes = STATE + 12 * PAGE_BYTES + transit(0, 200) + cache.tree.bytes() - 1;
    assert_eq!(find(&mut cache).0, 60);
}

/// Of a long conversation that has no file what it builds on is written first, and then the rest.
#[test]
fn what_is_too_long_to_be_written_at_once_is_written_in_parts() {
    let (_directory, _gate, mut cache) = far_away();
    cache.options.transit = 0;
    for length in [60, 120, 200] {
        keep(&mut cache, &text(0, length), Lasts::OnDisk);
    }
    assert_eq!(cache.stats().disk_waiting, 0);
    cache.options.transit = transit(0, 120);
    keep(&mut cache, &text(0, 200), Lasts::OnDisk);
    settle(&mut cache, Far(true));
    let on_disk = |length| {
        let id = cache.tree.find(&text(0, length)).expect("it is in memory");
        cache.tree.get(id).is_some_and(|entry| entry.disk.is_some())
    };
    assert_eq!([60, 120, 200].map(on_disk), [false, true, true]);
}

/// A prompt is read faster than it is written: the longest of what is kept of it is written, instead of one that it builds on and
/// that only waits.
#[test]
fn the_longest_of_a_prompt_is_written() {
    for far in [false, true].map(Far) {
        let directory = tempfile::tempdir().expect("a directory");
        let gate = Gate(Arc::default(), far);
        let mut cache = cache(directory.path(), &gate, 1 << 20, 1 << 20);
        let _opens = Opens(gate.clone());
        gate.stop(true);
        let mut way = Way { far, ..Way::default() };
        for length in (20..=160).step_by(20) {
            keep(&mut cache, &text(0, length), Lasts::OnDisk);
            cache.carry(&mut way);
            assert!(cache.stats().disk_waiting <= 4);
        }
        gate.stop(false);
        settle(&mut cache, far);
        let on_disk = |length: &usize| {
            let entry = cache.tree.find(&text(0, *length)).and_then(|id| cache.tree.get(id));
            entry.is_some_and(|entry| entry.disk.is_some())
        };
        let written: Vec<usize> = (20..=160).step_by(20).filter(on_disk).collect();
        // One that has begun is not taken back.
        assert!(written.len() <= 5 && written.last() == Some(&160), "{written:?}");
        let stats = cache.stats();
        let writes = written.len();
        assert_eq!((stats.disk_writes, stats.disk_snapshots, stats.disk_errors), (writes as u64, writes, 0));
        assert_eq!((cache.transit, cache.in_use.bytes()), (0, 0));
        while cache.let_one_go(|_| true) {}
        let Found::Disk(160, id) = cache.find(&text(0, 161), true) else { panic!("it is gone") };
        assert_eq!(cache.read(id), Reading::UnderWay);
        settle(&mut cache, far);
        assert!(matches!(cache.find(&text(0, 161), true), Found::Memory(160, _)));
    }
}

/// A file was given up and begun anew before it was there, and then gave way to a longer one: it does not stay unknown.
#[test]
fn a_file_that_nobody_wants_any_more_goes() {
    let (directory, _gate, mut cache) = far_away();
    let tokens = text(0, 100);
    keep(&mut cache, &tokens, Lasts::OnDisk);
    let mut way = Way { far: Far(true), ..Way::default() };
    while cache.carry(&mut way) {}
    let id = cache.tree.find(&tokens).expect("it is kept");
    cache.drop_file(id);
    keep(&mut cache, &text(1, 100), Lasts::OnDisk);
    cache.keep_on_disk(id, &tokens);
    let began = Instant::now();
    let mut never = Way { far: Far(true), ends: Fetching::Never, ..Way::default() };
    while cache.stats().disk_writes == 0 {
        assert!(cache.carry(&mut never) && began.elapsed() < Duration::from_secs(60), "it is not written");
    }
    for name in 2..4 {
        keep(&mut cache, &text(name, 100), Lasts::OnDisk);
    }
    assert_eq!(cache.stats().disk_waiting, 4);
    keep(&mut cache, &text(0, 140), Lasts::OnDisk);
    settle(&mut cache, Far(true));
    assert_eq!(cache.stats().disk_writes, 5);
    drop(cache);
    let names = std::fs::read_dir(directory.path()).expect("a directory").map(|entry| entry.expect("one").file_name());
    assert_eq!(names.filter(|name| name != "lily.lock").count(), 4);
}

/// Between two steps as much is carried as there is time for, one part at least, but not without end.
#[test]
fn parts_are_carried_as_long_as_there_is_time() {
    let (_directory, _gate, mut cache) = far_away();
    keep(&mut cache, &text(0, 100), Lasts::OnDisk);
    let mut way = Way { far: Far(true), ends: Fetching::Never, ..Way::default() };
    assert!(cache.carry_while(&mut way, || false));
    assert_eq!(way.steps, 1);
    assert!(cache.carry_while(&mut way, || true));
    assert_eq!(way.steps, 1 + 64);
    let mut way = Way { far: Far(true), ..Way::default() };
    assert!(!cache.carry_while(&mut way, || true), "all of it has gone");
    assert_eq!(way.steps, 2);
    settle(&mut cache, Far(true));
}

/// Somebody waits for what comes in, but what goes out gets there however long that goes on.
#[test]
fn what_goes_out_is_not_held_up_for_ever() {
    let (_directory, _gate, mut cache, id) = written_and_gone();
    assert_eq!(cache.read(id), Reading::UnderWay);
    let (began, mut way) = (Instant::now(), Way { far: Far(true), never_arrives: true, ..Way::default() });
    while way.steps == 0 {
        cache.carry(&mut way);
    }
    keep(&mut cache, &text(1, 100), Lasts::OnDisk);
    while cache.stats().disk_writes < 2 {
        assert!(cache.carry(&mut way) && began.elapsed() < Duration::from_secs(60), "it is held up");
        std::thread::sleep(Duration::from_micros(50));
    }
    assert!(cache.is_reading(id));
    settle(&mut cache, Far(true));
}

/// At the end what is to be written goes to the disk; what has been read goes nowhere, and nothing is let go for it.
#[test]
fn at_the_end_nothing_comes_in() {
    let (_directory, _gate, mut cache, id) = written_and_gone();
    assert_eq!(cache.read(id), Reading::UnderWay);
    let (began, mut way) = (Instant::now(), Way { to_go: Cell::new(1), ..Way::default() });
    for name in 1..3 {
        keep(&mut cache, &text(name, 100), Lasts::OnDisk);
    }
    while cache.carry_the_rest(&mut way) || cache.is_reading(id) {
        assert!(began.elapsed() < Duration::from_secs(60), "it does not end");
        std::thread::sleep(Duration::from_micros(50));
    }
    let stats = cache.stats();
    assert_eq!((way.steps, stats.snapshots, stats.disk_reads, cache.arriving), (2, 2, 0, 0), "both were fetched");
    settle(&mut cache, Far(true));
    assert_eq!(cache.stats().disk_writes, 3);
}

/// Whether the snapshot of the text of that name is in memory.
fn is_held(cache: &Cache<Snapshot>, name: u32) -> bool {
    let id = cache.tree.find(&text(name, 100));
    id.and_then(|id| cache.tree.get(id)).is_some_and(|entry| entry.memory.is_some())
}

/// What the way takes comes from what no waiting request would go on from, as long as there is any.
#[test]
fn what_a_waiting_request_goes_on_from_is_spared() {
    let (_directory, _gate, mut cache) = far_away();
    for name in 0..4 {
        keep(&mut cache, &text(name, 100), Lasts::InMemory);
    }
    let prompts = [0, 1].map(|name| text(name, 101));
    cache.spare(prompts.iter().map(|prompt| prompt[..].into()).collect());
    let held = |cache: &Cache<Snapshot>| [0, 1, 2, 3].map(|name| is_held(cache, name));
    // The copy that is to be made has no room beside all.
    cache.options.bytes = cache.bytes() + transit(0, 100) - 1;
    keep(&mut cache, &text(3, 100), Lasts::OnDisk);
    assert_eq!((held(&cache), cache.stats().disk_waiting), ([true, true, false, true], 1));
    settle(&mut cache, Far(true));
    assert!(cache.let_one_go(|_| true) && cache.let_one_go(|_| true), "there is no other");
    assert_eq!(held(&cache), [false, true, false, false]);
}

/// Of a pool that is full, what waits for its way to the disk is given back when it has gone there; before, it cannot be let go.
#[test]
fn what_waits_is_sent_off_where_its_room_is_needed() {
    let (_directory, gate, mut cache) = far_away();
    let _opens = Opens(gate.clone());
    gate.stop(true);
    for name in 0..2 {
        keep(&mut cache, &text(name, 100), Lasts::OnDisk);
    }
    let mut way = Way { far: Far(true), ..Way::default() };
    for left in [1, 0] {
        assert!(!cache.let_one_go(|_| true) && cache.send_one_off(&mut way) && cache.let_one_go(|_| true));
        assert_eq!(cache.stats().snapshots, left);
    }
    assert!(!cache.send_one_off(&mut way), "there is no other");
    gate.stop(false);
    settle(&mut cache, Far(true));
    assert_eq!(cache.stats().disk_writes, 2);
}

/// The same for what has been read: it would be read in vain.
#[test]
fn what_waits_is_sent_off_for_what_comes_in() {
    let (_directory, _gate, mut cache, id) = written_and_gone();
    keep(&mut cache, &text(1, 100), Lasts::InMemory);
    keep(&mut cache, &text(2, 100), Lasts::OnDisk);
    assert_eq!(cache.read(id), Reading::UnderWay);
    let (began, mut way) = (Instant::now(), Way { far: Far(true), to_go: Cell::new(1), ..Way::default() });
    while cache.is_reading(id) {
        cache.carry(&mut way);
        assert!(began.elapsed() < Duration::from_secs(60), "it does not arrive");
        std::thread::sleep(Duration::from_micros(50));
    }
    assert_eq!([0, 1, 2].map(|name| is_held(&cache, name)), [true, true, false]);
    settle(&mut cache, Far(true));
    assert_eq!(cache.stats().disk_writes, 2);
}

/// Nor does what has just been queued go in vain where requests wait for all others.
#[test]
fn what_is_queued_is_not_let_go_in_vain() {
    let (_directory, _gate, mut cache) = far_away();
    for name in 0..3 {
        keep(&mut cache, &text(name, 100), Lasts::InMemory);
    }
    cache.spare([0, 1, 2].map(|name| text(name, 101).into()).into());
    // It has room, but not the copy that is made of it.
    cache.options.bytes = cache.bytes() + STATE + 6 * PAGE_BYTES + 1000;
    keep(&mut cache, &text(3, 100), Lasts::OnDisk);
    assert_eq!(cache.stats().disk_waiting, 1);
    assert_eq!([0, 1, 2, 3].map(|name| is_held(&cache, name)), [false, true, true, true]);
    settle(&mut cache, Far(true));
}

/// Others that chat fill half of the memory with what is to be written, again and again. Who needs more than the rest waits for what is
/// under way, and for nothing that comes later.
#[test]
fn who_waits_for_room_to_read_gets_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let gate = Gate::default();
    let mut cache = cache(directory.path(), &gate, 1 << 20, 1 << 20);
    let _opens = Opens(gate.clone());
    keep(&mut cache, &text(0, 150), Lasts::OnDisk);
    settle(&mut cache, Far(false));
    while cache.let_one_go(|_| true) {}
    let id = cache.tree.find(&text(0, 150)).expect("it is on disk");
    cache.options.bytes = 2 * (STATE + 9 * PAGE_BYTES) + cache.tree.bytes();
    let began = Instant::now();
    for name in 1.. {
        gate.stop(true);
        cache.carry(&mut Way::default());
        for name in [3 * name, 3 * name + 1, 3 * name + 2] {
            keep(&mut cache, &text(name, 30), Lasts::OnDisk);
        }
        let reading = cache.read(id);
        gate.stop(false);
        if name > 1 && reading == Reading::UnderWay {
            break;
        }
        assert!(reading == Reading::NoRoomNow && began.elapsed() < Duration::from_secs(60), "it has no turn");
        cache.hold_writes(true);
        std::thread::sleep(Duration::from_micros(50));
    }
    cache.hold_writes(false);
    settle(&mut cache, Far(false));
}

/// What comes meanwhile is written when nobody waits any more.
#[test]
fn what_was_held_up_is_written_later() {
    let (_directory, _gate, mut cache) = far_away();
    cache.hold_writes(true);
    keep(&mut cache, &text(0, 100), Lasts::OnDisk);
    assert_eq!(cache.stats().disk_waiting, 0);
    cache.hold_writes(false);
    assert_eq!(cache.stats().disk_waiting, 1);
    settle(&mut cache, Far(true));
}

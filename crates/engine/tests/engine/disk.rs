//! The second tier.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lily_engine::{CacheOptions, DiskOptions, Engine, Options, Request, Stats};

use crate::scripted::{Script, assert_same, expected, options, prompt};

/// Everything is kept, in memory and on disk.
fn at(directory: &Path) -> Options {
    let disk = DiskOptions { spacing: 20, ..DiskOptions::new(directory.to_owned(), 1 << 20, b"model".to_vec()) };
    let cache = CacheOptions { interval: 100, spacing: 20, disk: Some(disk), ..CacheOptions::new(1 << 20) };
    Options { cache, ..options() }
}

fn with_disk(options: Options, change: impl FnOnce(&mut DiskOptions)) -> Options {
    let mut options = options;
    change(options.cache.disk.as_mut().expect("there is one"));
    options
}

/// One process's life: asks for these prompts one after the other; tells what was cached of each, and the counts.
fn life(options: Options, prompts: &[Vec<u32>]) -> (Vec<usize>, Stats) {
    let engine = Script::default().engine(options);
    let cached = prompts.iter().map(|prompt| ask(&engine, prompt)).collect();
    engine.shutdown();
    engine.join();
    (cached, engine.stats())
}

fn ask(engine: &Engine, prompt: &[u32]) -> usize {
    let request = Request::new(prompt.to_vec(), 3);
    let cached = assert_same(&request, engine.submit(request.clone()).expect("valid")).cached_tokens;
    while engine.stats().cache.disk_waiting > 0 {
        thread::sleep(Duration::from_micros(200));
    }
    cached
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|end| end == "lilysnap")).collect();
    files.sort();
    files
}

/// Prompts that leave a chain of seven files: of 100, 129, 200, 259, 300, 389 and 519 tokens.
fn chain() -> Vec<Vec<u32>> {
    [130, 260, 390, 520].map(|length| prompt(3, length)).to_vec()
}

#[test]
fn is_found_again_after_a_restart() {
    let directory = tempfile::tempdir().expect("a directory");
    let (_, stats) = life(at(directory.path()), &chain());
    assert_eq!((stats.cache.disk_snapshots, stats.cache.disk_writes, files(directory.path()).len()), (7, 7, 7));
    let (cached, stats) = life(at(directory.path()), &[prompt(3, 519), prompt(3, 519), prompt(4, 30)]);
    assert_eq!(cached, [389, 518, 0]);
    assert_eq!((stats.cache.disk_reads, stats.cache.disk_errors), (1, 0));
    assert_eq!(stats.prefilled_tokens, 130 + 1 + 30);
}

/// A prompt is read faster than it is written, and the server ends: the next one finds the last place that was kept of it.
#[test]
fn the_end_of_a_prompt_that_was_read_quickly_is_found() {
    let directory = tempfile::tempdir().expect("a directory");
    let script = Script::default();
    let engine = script.engine(at(directory.path()));
    script.stop_disk(true);
    let request = Request::new(prompt(3, 1000), 3);
    assert_same(&request, engine.submit(request.clone()).expect("valid"));
    engine.shutdown();
    script.stop_disk(false);
    engine.join();
    let (cached, _) = life(at(directory.path()), &[prompt(3, 1000)]);
    assert_eq!(cached, [999]);
}

/// More conversations than may wait to be written, and the server ends: the last one is found all the same.
#[test]
fn what_found_no_place_is_written_at_the_end() {
    let directory = tempfile::tempdir().expect("a directory");
    let script = Script::default();
    let engine = script.engine(at(directory.path()));
    script.stop_disk(true);
    let next = [1, 2, 3, 4, 5, 6].map(|name| {
        let request = Request::new(prompt(name, 90), 3);
        assert_same(&request, engine.submit(request.clone()).expect("valid"));
        let reply = expected(&request).0;
        [request.prompt, reply.iter().map(|sample| sample.token).collect()].concat()
    });
    engine.shutdown();
    script.stop_disk(false);
    engine.join();
    let (cached, _) = life(at(directory.path()), &next);
    assert_eq!(cached, [89, 89, 89, 89, 0, 92]);
}

/// What the backend has no room for is read once, not again and again.
#[test]
fn what_finds_no_room_is_not_read_again() {
    let directory = tempfile::tempdir().expect("a directory");
    life(at(directory.path()), &chain());
    let script = Script::default().without_room();
    let engine = script.engine(at(directory.path()));
    assert_eq!(ask(&engine, &prompt(3, 390)), 0);
    assert_eq!(script.unplaced(), 1);
    engine.shutdown();
    engine.join();
}

/// A file holds only what its parent's does not.
#[test]
fn a_chain_is_written_once() {
    let directory = tempfile::tempdir().expect("a directory");
    life(at(directory.path()), &chain());
    let bytes: u64 = files(directory.path()).iter().map(|file| fs::metadata(file).expect("a file").len()).sum();
    let count = files(directory.path()).len() as u64;
    // Tokens and page hashes of the longest once, and what each file has anyway: 140 + 3 x 32 of header and sums, 12 of
    // state; a page that a parent ends in is in both.
    assert!(bytes <= 525 * 4 + (525 / 64 + count) * 8 + count * (140 + 96 + 12), "{bytes} in {count}");
}

/// Another model, another format, another file by the same name: none is taken for ours.
#[test]
fn what_is_another_models_is_not_used_and_goes_first() {
    let directory = tempfile::tempdir().expect("a directory");
    life(at(directory.path()), &chain());
    let theirs = files(directory.path());
    let other = |bytes| with_disk(at(directory.path()), |disk| (disk.model, disk.bytes) = (b"other".to_vec(), bytes));
    let (cached, stats) = life(other(1 << 20), &[prompt(3, 350), prompt(3, 519)]);
    assert_eq!(cached, [0, 349]);
    assert!(stats.cache.disk_bytes > 0);
    assert!(theirs.iter().all(|file| file.exists()), "there is room for both");
    let (cached, _) = life(other(4000), &[prompt(3, 519)]);
    assert_eq!(cached, [518]);
    assert!(theirs.iter().any(|file| !file.exists()), "room had to be made");
    let size: u64 = files(directory.path()).iter().map(|file| fs::metadata(file).expect("a file").len()).sum();
    assert!(size <= 4000, "{size}");
}

#[test]
fn files_that_are_not_ours_stay() {
    let directory = tempfile::tempdir().expect("a directory");
    let note = directory.path().join("note.txt");
    fs::write(&note, "mine").expect("written");
    let bad = ["00.lilysnap", "x.lilysnap", "77.lilysnap.tmp"].map(|name| directory.path().join(name));
    bad.iter().for_each(|file| fs::write(file, "LILYSNAP and nothing sound").expect("written"));
    let (cached, stats) = life(at(directory.path()), &[prompt(3, 150)]);
    assert_eq!((cached[0], stats.cache.disk_errors), (0, 2), "an unfinished one is no damage");
    assert!(note.exists());
    assert!(bad.iter().all(|file| !file.exists()));
}

/// A byte of any file is changed, or its end cut off: the replies are right, what is damaged goes, the rest serves on.
#[test]
fn damage_costs_no_more_than_the_files_it_is_in() {
    let directory = tempfile::tempdir().expect("a directory");
    life(at(directory.path()), &chain());
    let sound: Vec<(PathBuf, Vec<u8>)> =
        files(directory.path()).into_iter().map(|file| (file.clone(), fs::read(file).expect("a file"))).collect();
    for (victim, bytes) in &sound {
        // Magic, version, fingerprint, key, parent, from, length, sizes, tokens, header sum, history, its sum, state, its sum.
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes")) as usize;
        let (from, length, history) = (number(108), number(116), number(124));
        let body = 140 + (length - from) * 4;
        let state = body + 32 + history + 32;
        let places = [0, 9, 20, 50, 80, 108, 117, 125, 133, 141, body, body + 32, state - 32, state, state + 12];
        let cuts = [0, 7, 139, 150, body + 5, state - 1, bytes.len() - 1];
        let damages = places.map(|place| {
            let mut bytes = bytes.clone();
            bytes[place] ^= 0x10;
            bytes
        });
        for damaged in damages.into_iter().chain(cuts.map(|cut| bytes[..cut].to_vec())) {
            for (file, bytes) in &sound {
                fs::write(file, bytes).expect("written");
            }
            fs::write(victim, &damaged).expect("written");
            // What needs this very file.
            let needs = || prompt(3, length + 1);
            let (cached, stats) = life(at(directory.path()), &[needs(), needs()]);
            assert!(cached[0] <= from && cached[1] == length, "{cached:?} of {length}");
            // With another version it may be sound, and stays unless it is in the way.
            if [9, 20].iter().all(|&place| damaged.get(place) == bytes.get(place)) {
                assert_ne!(fs::read(victim).ok().as_ref(), Some(&damaged), "it is still there");
            }
            assert!(stats.cache.disk_errors >= 1 || damaged.get(9) != bytes.get(9));
        }
    }
}

/// Files vanish while they are in use.
#[test]
fn a_file_that_is_gone_is_read_anew() {
    let directory = tempfile::tempdir().expect("a directory");
    life(at(directory.path()), &chain());
    let engine = Script::default().engine(at(directory.path()));
    // Starting means scanning; then they go.
    ask(&engine, &prompt(9, 30));
    files(directory.path()).iter().for_each(|file| fs::remove_file(file).expect("removed"));
    assert_eq!(ask(&engine, &prompt(3, 519)), 0);
    assert_eq!(ask(&engine, &prompt(3, 519)), 518);
}

#[test]
fn the_cap_holds_and_the_least_recently_used_goes_first() {
    let directory = tempfile::tempdir().expect("a directory");
    let small = || with_disk(at(directory.path()), |disk| disk.bytes = 6000);
    let size = || files(directory.path()).iter().map(|file| fs::metadata(file).expect("a file").len()).sum::<u64>();
    for round in 0..20 {
        // The first is asked for in every life, the others once.
        let (cached, stats) = life(small(), &[prompt(1, 130), prompt(2 + round, 130), prompt(30 + round, 130)]);
        assert_eq!(cached, [if round == 0 { 0 } else { 129 }, 0, 0], "life {round}");
        assert!(size() <= 6000 && stats.cache.disk_bytes <= 6000, "{} in life {round}", size());
        assert_eq!(stats.cache.disk_errors, 0);
    }
}

/// The directory vanishes: every write fails. Each is tried once, not again and again, and ever fewer are tried; when it is
/// there again, so is the tier.
#[test]
fn a_write_that_fails_is_not_repeated() {
    let parent = tempfile::tempdir().expect("a directory");
    let directory = parent.path().join("cache");
    let engine = Script::default().engine(at(&directory));
    ask(&engine, &prompt(5, 10));
    fs::remove_dir_all(&directory).expect("it is there");
    for prompt in chain() {
        ask(&engine, &prompt);
    }
    // Each time twice as many are left out; some wait already when the first fails.
    let errors = engine.stats().cache.disk_errors;
    assert!((1..=5).contains(&errors), "{errors} failures for seven snapshots");
    assert_eq!(engine.stats().cache.disk_snapshots, 0);
    fs::create_dir(&directory).expect("made");
    for name in 10.. {
        ask(&engine, &prompt(name, 130));
        if engine.stats().cache.disk_writes > 0 {
            break;
        }
    }
    ask(&engine, &prompt(150, 130));
    assert_eq!(engine.stats().cache.disk_errors, errors);
    assert!(files(&directory).len() >= 2, "the next is written, too");
}

/// A full disk, an error in the middle: what is there of the file goes, and the next one is written.
#[test]
fn half_a_file_is_none() {
    let directory = tempfile::tempdir().expect("a directory");
    let script = Script::default();
    script.fail_writes(true);
    let engine = script.engine(at(directory.path()));
    ask(&engine, &prompt(3, 130));
    assert!(engine.stats().cache.disk_errors >= 1);
    let left = fs::read_dir(directory.path()).expect("a directory").count();
    assert_eq!(left, 1, "only the lock");
    script.fail_writes(false);
    for name in 4..8 {
        ask(&engine, &prompt(name, 130));
    }
    assert!(engine.stats().cache.disk_writes > 0);
}

/// A disk that holds less than the cache may take: the least recently used files make room for what comes, no more of them than that
/// needs.
#[test]
fn a_full_disk_takes_what_is_new_for_what_is_old() {
    let directory = tempfile::tempdir().expect("a directory");
    life(at(directory.path()), &chain());
    let before = files(directory.path());
    let script = Script::default();
    let engine = script.engine(at(directory.path()));
    script.fail_writes(true);
    ask(&engine, &prompt(4, 90));
    engine.shutdown();
    engine.join();
    let left = files(directory.path());
    assert!(left.len() == 6 && left.iter().all(|file| before.contains(file)), "{} are left", left.len());
    let (cached, _) = life(at(directory.path()), &[prompt(3, 520)]);
    assert_eq!(cached, [389], "the longest went");
}

/// One file of a chain vanishes while its snapshot is still in memory: what would build on it is not written in vain, again
/// and again; the chain begins anew.
#[test]
fn a_chain_that_lost_a_file_begins_anew() {
    let directory = tempfile::tempdir().expect("a directory");
    let engine = Script::default().engine(at(directory.path()));
    ask(&engine, &prompt(3, 130));
    files(directory.path()).iter().for_each(|file| fs::remove_file(file).expect("removed"));
    ask(&engine, &prompt(3, 260));
    let errors = engine.stats().cache.disk_errors;
    assert!(errors >= 1);
    ask(&engine, &prompt(3, 390));
    ask(&engine, &prompt(3, 520));
    let stats = engine.stats().cache;
    assert!(stats.disk_errors <= errors + 3 && stats.disk_snapshots > 0, "{stats:?}");
    engine.shutdown();
    engine.join();
    let (cached, _) = life(at(directory.path()), &[prompt(3, 520)]);
    assert!(cached[0] >= 389, "{cached:?}");
}

/// A pipe by a snapshot's name would hold up whoever opened it; a link leads elsewhere.
#[cfg(unix)]
#[test]
fn what_is_no_plain_file_is_left_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    life(at(directory.path()), &chain());
    let elsewhere = tempfile::tempdir().expect("a directory");
    let [first, second, ..] = &files(directory.path())[..] else { panic!("files") };
    let target = elsewhere.path().join("target");
    fs::rename(first, &target).expect("moved");
    std::os::unix::fs::symlink(&target, first).expect("linked");
    fs::remove_file(second).expect("removed");
    assert!(Command::new("mkfifo").arg(second).status().expect("it runs").success());
    let (_, stats) = life(at(directory.path()), &chain());
    assert!(fs::symlink_metadata(second).is_ok() && target.exists());
    assert!(stats.cache.disk_snapshots >= 5, "{:?}", stats.cache);
}

#[cfg(unix)]
#[test]
fn only_the_owner_can_read_what_is_kept() {
    use std::os::unix::fs::PermissionsExt;
    let parent = tempfile::tempdir().expect("a directory");
    let directory = parent.path().join("cache");
    life(at(&directory), &chain());
    let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode(&directory), 0o700);
    assert!(!files(&directory).is_empty());
    for file in files(&directory) {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
}

/// Two processes do not share a directory; the second serves without.
#[test]
fn a_directory_in_use_is_left_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    let first = Script::default().engine(at(directory.path()));
    ask(&first, &prompt(3, 150));
    let (cached, stats) = life(at(directory.path()), &[prompt(3, 150), prompt(3, 150)]);
    assert_eq!(cached, [0, 149]);
    assert_eq!((stats.cache.disk_snapshots, stats.cache.disk_writes), (0, 0));
}

#[test]
fn a_directory_that_cannot_be_had_costs_only_the_tier() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let (cached, _) = life(at(file.path()), &[prompt(3, 150), prompt(3, 150)]);
    assert_eq!(cached, [0, 149]);
}

/// The disk stands still: requests wait for it as long as they are patient, then begin without; a client that goes is seen
/// meanwhile, and the memory keeps to its bounds.
#[test]
fn a_disk_that_stands_still_holds_nobody_up_for_ever() {
    let directory = tempfile::tempdir().expect("a directory");
    life(at(directory.path()), &chain());
    let script = Script::default();
    let hasty = with_disk(at(directory.path()), |disk| disk.patience = Duration::from_millis(20));
    let engine = script.engine(hasty);
    script.stop_disk(true);
    for length in [300, 520] {
        let request = Request::new(prompt(3, length), 3);
        assert!(assert_same(&request, engine.submit(request.clone()).expect("valid")).cached_tokens < 300);
    }
    script.stop_disk(false);
    engine.shutdown();
    engine.join();

    let script = Script::default();
    let cap = 30_000;
    let mut patient = at(directory.path());
    patient.cache.bytes = cap;
    let engine = script.engine(patient);
    script.stop_disk(true);
    let waits = engine.submit(Request::new(prompt(3, 519), 3)).expect("valid");
    while engine.stats().queued == 0 {
        thread::sleep(Duration::from_micros(200));
    }
    drop(waits);
    while engine.stats().queued > 0 {
        thread::sleep(Duration::from_millis(1));
    }
    for name in 10..60 {
        let request = Request::new(prompt(name, 100 + 17 * name as usize % 300), 3);
        assert_same(&request, engine.submit(request.clone()).expect("valid"));
        let stats = engine.stats().cache;
        assert!(stats.bytes <= cap && stats.disk_waiting <= 4, "{stats:?}");
    }
    script.stop_disk(false);
    engine.shutdown();
    engine.join();
    assert_eq!((script.states(), script.snapshots()), (0, 0));
}

/// Who waits for the disk, or for another request, takes no place of one that could run.
#[test]
fn who_waits_for_the_disk_takes_no_place() {
    let directory = tempfile::tempdir().expect("a directory");
    life(at(directory.path()), &chain());
    let script = Script::default();
    let engine = script.engine(Options { parallel: 1, ..at(directory.path()) });
    script.stop_disk(true);
    let waits: Vec<_> = [519, 400].map(|length| Request::new(prompt(3, length), 3)).into();
    let replies: Vec<_> = waits.iter().map(|request| engine.submit(request.clone()).expect("valid")).collect();
    let other = Request::new(prompt(9, 50), 3);
    assert_same(&other, engine.submit(other.clone()).expect("valid"));
    assert_eq!((engine.stats().running, engine.stats().queued), (0, 2));
    script.stop_disk(false);
    for (request, reply) in waits.iter().zip(replies) {
        assert!(assert_same(request, reply).cached_tokens >= 259);
    }
}

/// What a client left behind is for memory alone; what another goes on from and ends is for the disk, too.
#[test]
fn what_a_client_left_is_not_written() {
    let directory = tempfile::tempdir().expect("a directory");
    let script = Script::held();
    let engine = script.engine(Options { prefill_chunk: 16, ..at(directory.path()) });
    let reply = engine.submit(Request::new(prompt(3, 90), 10)).expect("valid");
    script.allow(3);
    script.call(4);
    drop(reply);
    script.release();
    ask(&engine, &prompt(9, 5));
    let stats = engine.stats().cache;
    assert_eq!((stats.snapshots > 0, stats.disk_writes), (true, 0));
    assert_eq!(ask(&engine, &prompt(3, 90)), 64);
    assert!(engine.stats().cache.disk_writes > 0);
}

const CHILD: &str = "LILY_ENGINE_TEST_CHILD";

/// What the killed process does: asks and asks, so that it writes all the time.
#[test]
fn child() {
    let Some(directory) = std::env::var_os(CHILD) else { return };
    let small = with_disk(at(Path::new(&directory)), |disk| disk.bytes = 60_000);
    let engine = Script::default().engine(small);
    let seed = std::process::id();
    for number in 0.. {
        ask(&engine, &prompt((seed + number) % 150, 150 + number as usize % 400));
    }
}

/// Killed at any moment, again and again: what is there serves the next process, and nothing damaged is ever taken.
#[test]
fn a_kill_at_any_moment_leaves_a_usable_cache() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = std::env::current_exe().expect("this program");
    for round in 0..25 {
        let mut child = Command::new(&program)
            .args(["--exact", "disk::child", "--nocapture"])
            .env(CHILD, directory.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a child");
        // Wait until it writes, then kill it a little later.
        let before = files(directory.path());
        let started = Instant::now();
        while files(directory.path()) == before && started.elapsed() < Duration::from_secs(20) {
            thread::sleep(Duration::from_micros(500));
        }
        thread::sleep(Duration::from_micros(round * 700));
        child.kill().expect("killed");
        child.wait().expect("it ended");
        let left = files(directory.path());
        assert!(!left.is_empty());
        let (cached, stats) = life(with_disk(at(directory.path()), |disk| disk.bytes = 60_000), &[prompt(7, 200)]);
        // Only what was being written is lost.
        assert_eq!(stats.cache.disk_errors, 0, "{:?}", stats.cache);
        assert!(stats.cache.disk_snapshots + 4 >= left.len(), "{} of {}", stats.cache.disk_snapshots, left.len());
        assert!(round == 0 || cached[0] > 0, "round {round}");
    }
}

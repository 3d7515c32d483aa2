//! Snapshots as bytes.

mod support;

use std::io::{self, Write};

use lily_backend::{Backend, Want};
use lily_checkpoint::Config;
use lily_cpu::{CpuBackend, Options};
use support::{Reference, backend, backend_with, run};

/// Fowler, Noll and Vo's hash of what is written, and how much it was.
struct Digest(u64, u64);

impl Write for Digest {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        self.1 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn digest(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> (u64, u64) {
    let mut digest = Digest(0xcbf2_9ce4_8422_2325, 0);
    write(&mut digest).expect("a digest takes all");
    (digest.0, digest.1)
}

/// What lies on people's disks was written by builds before this one, and is taken for what this one would compute.
#[test]
fn bits_that_were_kept_are_those_of_today() {
    let mut backend = backend();
    let archive = backend.archive().expect("this backend has one");
    let mut state = backend.create().expect("memory");
    run(&mut backend, &mut state, &Reference::load().ids("eval.ids")[..150], Want::Nothing);
    let snapshot = backend.snapshot(&state).expect("memory");
    let history = digest(|to| archive.write_history(&snapshot, 70, to));
    let whole = digest(|to| archive.write_state(&snapshot, to));
    assert_eq!((history.1, whole.1), (archive.history_bytes(70, 150), archive.state_bytes()));
    assert_eq!(
        (history.0, whole.0),
        (0x97d6_93c2_0311_d232, 0xea12_d378_4956_e3bd),
        "the numbers in a state, or their order, have changed: count up VERSION in cpu/src/archive.rs, then put these here"
    );
}

/// What is read back goes on as the original does, onto a snapshot of its beginning or not.
#[test]
fn is_read_as_it_was_written() {
    let mut backend = backend_with(1, None);
    let archive = backend.archive().expect("this backend has one");
    let text = Reference::load().ids("eval.ids")[..150].to_vec();
    let mut state = backend.create().expect("memory");
    run(&mut backend, &mut state, &text[..100], Want::Nothing);
    let beginning = backend.snapshot(&state).expect("memory");
    run(&mut backend, &mut state, &text[100..], Want::Nothing);
    let snapshot = backend.snapshot(&state).expect("memory");
    let expected = support::continuation(&mut backend, &mut state, &[7], 8);
    for (onto, from) in [(None, 0), (Some(&beginning), 100), (Some(&beginning), 80)] {
        let (mut history, mut whole) = (Vec::new(), Vec::new());
        archive.write_history(&snapshot, from, &mut history).expect("memory");
        archive.write_state(&snapshot, &mut whole).expect("memory");
        let read = archive.read_history(onto, from, 150, &mut &history[..]).expect("all of it");
        let read = archive.read_state(read, &mut &whole[..]).expect("all of it");
        let mut state = backend.restore(&read).expect("memory");
        assert_eq!(support::continuation(&mut backend, &mut state, &[7], 8), expected, "from {from}");
    }
    assert!(archive.read_history(Some(&beginning), 101, 150, &mut io::repeat(0)).is_err());
}

/// What stands between a hit and the first token at the 35B and 32K:
/// `cargo test --release -p lily-cpu --test archive -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn restoring_a_state_of_the_35b() {
    let config = Config::parse(include_bytes!("../../../models/qwen3.6-35b-a3b/config.json")).expect("a sound config");
    let options = Options { threads: 0, max_context: 40_000, simd: None };
    let mut backend = CpuBackend::from_weights(&config, config.blank_weights(), options).expect("threads");
    let archive = backend.archive().expect("this backend has one");
    let history = archive.read_history(None, 0, 32_767, &mut io::repeat(1)).expect("memory");
    let snapshot = archive.read_state(history, &mut io::repeat(1)).expect("memory");
    for _ in 0..10 {
        let began = std::time::Instant::now();
        let state = backend.restore(&snapshot).expect("memory");
        println!("restored in {:?}", began.elapsed());
        drop(state);
    }
}

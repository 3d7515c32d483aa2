//! The engine over `GpuBackend<HostDevice>`: what its prefix cache keeps of a chat, in memory and on disk.

#[path = "../../gpu/tests/common/tensors.rs"]
mod tensors;

use std::path::Path;

use lily_checkpoint::Checkpoint;
use lily_engine::{CacheOptions, DiskOptions, Engine, Event, Options, Reply, Request, Stats, Usage};
use lily_gpu::GpuBackend;
use lily_host::HostDevice;
use tensors::Tensors;

/// Ids that the embedded model can print.
const VOCABULARY: usize = 6113;

/// An engine whose cache is kept in a directory.
fn engine(directory: &Path) -> Engine {
    let disk = DiskOptions { spacing: 16, ..DiskOptions::new(directory.to_owned(), 1 << 30, b"embedded".to_vec()) };
    engine_of(2, 32, Some(disk))
}

/// Of so many sequences, and pages beyond theirs.
fn engine_of(sequences: usize, spare_pages: usize, disk: Option<DiskOptions>) -> Engine {
    let device = HostDevice::new(lily_host::Options { late: true, ..lily_host::Options::new(1) });
    let checkpoint = Checkpoint::embedded().expect("the embedded checkpoint is whole");
    let own = lily_gpu::Options { prefill_rows: 128, spare_pages, ..lily_gpu::Options::new(256, sequences) };
    let backend = GpuBackend::new(device, &checkpoint, own).expect("a backend");
    let cache = CacheOptions { interval: 64, spacing: 16, disk, ..CacheOptions::new(256 << 20) };
    Engine::start(backend, Options { parallel: sequences, cache, ..Options::new(VOCABULARY) })
}

/// Ends it, with all written.
fn end(engine: Engine) -> Stats {
    engine.shutdown();
    engine.join();
    engine.stats()
}

fn text(first: usize, count: usize) -> Vec<u32> {
    Tensors::load("reference.safetensors").ids("eval.ids")[first..first + count].to_vec()
}

fn begin(engine: &Engine, prompt: &[u32], tokens: usize) -> Reply {
    engine.submit(Request::new(prompt.to_vec(), tokens)).expect("a sound request")
}

/// The reply's tokens, and what it took.
fn complete(mut reply: Reply) -> (Vec<u32>, Usage) {
    let mut tokens = Vec::new();
    loop {
        match reply.blocking_recv() {
            Some(Event::Token(sample)) => tokens.push(sample.token),
            Some(Event::Finished { usage, .. }) => return (tokens, usage),
            Some(Event::Failed(problem)) => panic!("{problem}"),
            Some(_) => {}
            None => panic!("the reply has no end: {tokens:?}"),
        }
    }
}

/// A second turn of a chat finds what the first one read and what was replied, though the reply's end is no place at which a prompt
/// would be cut: in memory, and in another process on disk, there while another sequence generates. The bits are the same.
#[test]
fn a_next_turn_reads_nothing_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let question = text(0, 70);
    let neighbour = text(300, 66);

    let first = engine(directory.path());
    let (reply, usage) = complete(begin(&first, &question, 18));
    assert_eq!((usage.cached_tokens, reply.len()), (0, 18));
    // The last token that was drawn has not been read.
    let read = question.len() + reply.len() - 1;
    let turn = [&question[..], &reply, &text(200, 20)].concat();
    let (expected, usage) = complete(begin(&first, &turn, 8));
    assert_eq!(usage.cached_tokens, read);
    let (beside, _) = complete(begin(&first, &neighbour, 8));
    let stats = end(first).cache;
    assert!(stats.disk_writes >= 2 && stats.disk_errors == 0, "{stats:?}");

    let second = engine(directory.path());
    let other = begin(&second, &neighbour[..65], 24);
    let (found, usage) = complete(begin(&second, &turn, 8));
    assert_eq!((usage.cached_tokens, found), (read, expected));
    assert_eq!(complete(other).0.len(), 24);
    assert_eq!(complete(begin(&second, &neighbour, 8)).0, beside);
    let stats = end(second).cache;
    assert!(stats.disk_reads > 0 && stats.disk_errors == 0, "{stats:?}");
}

/// Where pages run out, a conversation loses its end, as much as is needed: what comes before has no page by itself, and letting it go
/// would give none back.
#[test]
fn pages_are_taken_from_the_end_of_a_conversation() {
    let engine = engine_of(1, 4, None);
    // Of eight pages it has four: snapshots of 64, 128 and 192 tokens, and of its end.
    let long = text(0, 193);
    complete(begin(&engine, &long, 2));
    complete(begin(&engine, &text(300, 250), 2));
    // Two more.
    complete(begin(&engine, &text(600, 70), 2));
    let (_, usage) = complete(begin(&engine, &long, 2));
    assert_eq!(usage.cached_tokens, 128);
    end(engine);
}

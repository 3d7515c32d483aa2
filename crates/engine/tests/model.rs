//! The engine over the real CPU backend and the embedded checkpoint.

use std::sync::Arc;
use std::thread;

use lily_backend::{Sample, Sampling};
use lily_checkpoint::{Bytes, Checkpoint};
use lily_cpu::CpuBackend;
use lily_engine::{
    CacheOptions, DiskOptions, Engine, Event, FinishReason, Options, Penalties, Reply, Request, SubmitError, Usage,
};

const CLIENTS: usize = 32;
const REQUESTS: usize = 500;
/// Different requests among them.
const KINDS: usize = 25;
/// The embedded checkpoint's ordinary tokens; its special ones and its padding come after.
const VOCABULARY: usize = 6080;

fn engine(parallel: usize, prefill_chunk: usize) -> Engine {
    let checkpoint = Arc::new(Checkpoint::embedded().expect("the embedded checkpoint is sound"));
    let options = lily_cpu::Options { threads: 2, max_context: 512, simd: None };
    let backend = CpuBackend::new(checkpoint, options).expect("a backend");
    Engine::start(backend, Options { parallel, prefill_chunk, ..Options::new(VOCABULARY) })
}

/// Greedy and warm, short and long, with penalties and without.
fn request(kind: usize) -> Request {
    let length = [1, 3, 9, 21, 50][kind % 5];
    let prompt = (0..length).map(|index| ((kind * 977 + index * 331) % VOCABULARY) as u32).collect();
    let warm = Sampling { temperature: 0.9, top_k: 50, top_p: 0.95, min_p: 0.0 };
    Request {
        sampling: if kind.is_multiple_of(3) { Sampling::GREEDY } else { warm },
        penalties: Penalties { presence: (kind % 2) as f32, repetition: 1.05, ..Penalties::default() },
        seed: Some(kind as u64),
        top_logprobs: Some(2),
        ..Request::new(prompt, 1 + kind % 6)
    }
}

fn complete(mut reply: Reply) -> (Vec<Sample>, FinishReason) {
    let mut samples = Vec::new();
    while let Some(event) = reply.blocking_recv() {
        match event {
            Event::Started { .. } | Event::Prefill { .. } => {}
            Event::Token(sample) => samples.push(sample),
            Event::Finished { reason, .. } => return (samples, reason),
            Event::Failed(message) => panic!("{message}"),
        }
    }
    panic!("the reply has no end");
}

fn submit(engine: &Engine, request: &Request) -> Reply {
    loop {
        match engine.submit(request.clone()) {
            Ok(reply) => return reply,
            Err(SubmitError::QueueFull { .. }) => thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Field case 41: 500 requests of 32 clients: each reply, its log-probabilities too, is to the bit what the request gets alone, with
/// its prompt in one piece.
#[test]
fn replies_under_load_are_those_alone() {
    let lone = engine(1, 512);
    let alone: Vec<_> = (0..KINDS).map(|kind| complete(submit(&lone, &request(kind)))).collect();
    let shared = engine(4, 32);
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (shared, alone) = (&shared, &alone);
            scope.spawn(move || {
                for number in (client..REQUESTS).step_by(CLIENTS) {
                    let kind = (number * 7) % KINDS;
                    let reply = submit(shared, &request(kind));
                    assert_eq!(complete(reply), alone[kind], "request {number} of kind {kind}");
                }
            });
        }
    });
    shared.shutdown();
    shared.join();
    let generated: usize = (0..REQUESTS).map(|number| alone[(number * 7) % KINDS].0.len()).sum();
    let stats = shared.stats();
    assert_eq!(stats.generated_tokens, generated as u64);
    assert!(stats.steps < stats.generated_tokens, "nothing ran side by side");
}

/// A checkpoint with a damaged embedding row: whoever uses that token is told, and the replies beside it are those alone.
#[test]
fn a_sequence_of_no_numbers_fails_alone() {
    const DAMAGED: usize = 77;
    let checkpoint = Checkpoint::embedded().expect("the embedded checkpoint is sound");
    let mut weights = checkpoint.weights.clone();
    let mut scales = weights.embed_tokens.scales.to_vec();
    let row = scales.len() / weights.embed_tokens.rows;
    scales[DAMAGED * row..][..row].copy_from_slice(&0x7fc0_u16.to_le_bytes().repeat(row / 2));
    weights.embed_tokens.scales = Bytes::from(scales);
    let options = lily_cpu::Options { threads: 2, max_context: 512, simd: None };
    let backend = CpuBackend::from_weights(&checkpoint.config, weights, options).expect("a backend");
    let engine = Engine::start(backend, Options { parallel: 3, ..Options::new(VOCABULARY) });

    let good = Request { logit_bias: vec![(DAMAGED as u32, -100.0)], ..Request::new((100..120).collect(), 40) };
    let bad = Request::new(vec![5, DAMAGED as u32, 6], 10);
    let alone = complete(submit(&engine, &good));
    let beside = submit(&engine, &good);
    for _ in 0..4 {
        let mut reply = submit(&engine, &bad);
        assert_eq!(reply.blocking_recv(), Some(Event::Started { cached_tokens: 0 }));
        assert_eq!(reply.blocking_recv(), Some(Event::Failed("the model gave no finite logit".into())));
    }
    assert_eq!(complete(beside), alone);
}

fn cached_engine(options: Options) -> Engine {
    let checkpoint = Arc::new(Checkpoint::embedded().expect("the embedded checkpoint is sound"));
    let backend = CpuBackend::new(checkpoint, lily_cpu::Options { threads: 2, max_context: 512, simd: None });
    Engine::start(backend.expect("a backend"), options)
}

fn with_usage(engine: &Engine, request: &Request) -> ((Vec<Sample>, FinishReason), usize) {
    let mut reply = submit(engine, request);
    let Some(Event::Started { cached_tokens }) = reply.blocking_recv() else { panic!("no start") };
    (complete(reply), cached_tokens)
}

/// Text of the vocabulary that begins the same for all `tail`s.
fn text(shared: usize, tail: usize, length: usize) -> Vec<u32> {
    (0..length).map(|index| ((index * 331 + if index < shared { 0 } else { tail * 977 }) % VOCABULARY) as u32).collect()
}

/// Field case 5: warm is cold, to the bit of every log-probability, wherever chunks and snapshots cut; also from disk, in
/// another process's life.
#[test]
fn warm_replies_are_cold_ones() {
    let request = |prompt| Request { top_logprobs: Some(3), ..Request::new(prompt, 6) };
    let requests: Vec<Request> = [(150, 1), (150, 2), (70, 3), (149, 4), (150, 1), (1, 5)]
        .map(|(shared, tail)| request(text(shared, tail, 180)))
        .into();
    let lone = engine(1, 512);
    let cold: Vec<_> = requests.iter().map(|request| complete(submit(&lone, request))).collect();
    for chunk in [1, 13, 512] {
        let directory = tempfile::tempdir().expect("a directory");
        let disk =
            DiskOptions { spacing: 10, ..DiskOptions::new(directory.path().to_owned(), 1 << 30, b"tiny".to_vec()) };
        let cache = CacheOptions { interval: 50, spacing: 10, disk: Some(disk), ..CacheOptions::new(1 << 30) };
        let options = || Options { prefill_chunk: chunk, cache: cache.clone(), ..Options::new(VOCABULARY) };
        for life in 0..2 {
            let engine = cached_engine(options());
            let mut cached = Vec::new();
            for (request, cold) in requests.iter().zip(&cold) {
                let (warm, tokens) = with_usage(&engine, request);
                assert_eq!(warm, *cold, "chunks of {chunk}, life {life}, {tokens} cached");
                cached.push(tokens);
            }
            engine.shutdown();
            engine.join();
            let stats = engine.stats().cache;
            assert_eq!(stats.disk_errors, 0);
            if life == 0 {
                assert_eq!((&cached[..], stats.disk_reads), (&[0, 150, 50, 100, 179, 0][..], 0), "chunks of {chunk}");
            } else {
                assert!(cached.iter().all(|&cached| cached >= 50) && stats.disk_reads > 0, "{cached:?}, {stats:?}");
            }
        }
    }
}

/// Field case 33 on the real backend: what snapshots hold is what the cache says, and stays under its cap.
#[test]
fn memory_is_flat_over_many_requests() {
    let cap = 12 << 20;
    let cache = CacheOptions { interval: 64, spacing: 16, ..CacheOptions::new(cap) };
    let engine = cached_engine(Options { cache, ..Options::new(VOCABULARY) });
    let mut most = [0; 2];
    for number in 0..60 {
        let request = Request::new(text(40 + number % 3 * 20, number, 90), 2);
        with_usage(&engine, &request);
        let bytes = engine.stats().cache.bytes;
        assert!(bytes <= cap);
        most[number / 30] = bytes.max(most[number / 30]);
    }
    assert!(engine.stats().cache.evictions > 20, "{:?}", engine.stats().cache);
    assert!(most[1] <= most[0] + most[0] / 20, "{most:?}");
}

/// The same prompt of 32K tokens again: nothing but its last token is read, and how long that takes beside a prompt of one
/// token. `cargo test --release -p lily-engine --test model -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn first_token_of_a_cached_prompt() {
    const LENGTH: usize = 32_000;
    let checkpoint = Arc::new(Checkpoint::embedded().expect("the embedded checkpoint is sound"));
    let backend = CpuBackend::new(checkpoint, lily_cpu::Options { threads: 2, max_context: 32_768, simd: None });
    let boundaries = vec![VOCABULARY as u32 - 1];
    let cache = CacheOptions { boundaries: boundaries.clone(), ..CacheOptions::new(1 << 30) };
    let engine = Engine::start(backend.expect("a backend"), Options { cache, ..Options::new(VOCABULARY) });
    // As in ChatML the last message begins a few tokens before the end.
    let mut prompt = text(0, 1, LENGTH);
    prompt.iter_mut().for_each(|token| *token %= boundaries[0]);
    prompt[LENGTH - 4] = boundaries[0];
    let first_token = |prompt: &[u32]| {
        let began = std::time::Instant::now();
        let mut reply = submit(&engine, &Request::new(prompt.to_vec(), 1));
        let Some(Event::Started { cached_tokens }) = reply.blocking_recv() else { panic!("no start") };
        while !matches!(reply.blocking_recv(), Some(Event::Token(_))) {}
        let time = began.elapsed();
        while reply.blocking_recv().is_some() {}
        (cached_tokens, time)
    };
    println!("cold: {:?}", first_token(&prompt).1);
    for _ in 0..5 {
        let (cached, time) = first_token(&prompt);
        println!("cached: {time:?}, one token: {:?}", first_token(&[7]).1);
        assert_eq!(cached, LENGTH - 1);
    }
}

/// A conversation in turns, as a server sends it.
#[test]
fn a_conversation_reads_only_what_is_new() {
    let cache = CacheOptions { interval: 64, spacing: 16, ..CacheOptions::new(1 << 30) };
    let engine = cached_engine(Options { cache, ..Options::new(VOCABULARY) });
    let mut prompt = text(0, 1, 60);
    let mut held = 0;
    for turn in 0..5 {
        let mut reply = submit(&engine, &Request::new(prompt.clone(), 8));
        let mut tokens = Vec::new();
        let usage: Usage = loop {
            match reply.blocking_recv() {
                Some(Event::Token(sample)) => tokens.push(sample.token),
                Some(Event::Finished { usage, .. }) => break usage,
                Some(Event::Started { .. } | Event::Prefill { .. }) => {}
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(usage.cached_tokens, held, "turn {turn}");
        held = prompt.len() + tokens.len() - 1;
        prompt.extend(tokens);
        prompt.extend(text(0, 10 + turn, 20));
    }
}

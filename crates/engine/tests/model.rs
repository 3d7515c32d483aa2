//! The engine over the real CPU backend and the embedded checkpoint.

use std::sync::Arc;
use std::thread;

use lily_backend::{Sample, Sampling};
use lily_checkpoint::{Bytes, Checkpoint};
use lily_cpu::CpuBackend;
use lily_engine::{Engine, Event, FinishReason, Options, Penalties, Reply, Request, SubmitError};

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
            Event::Prefill { .. } => {}
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

/// 500 requests of 32 clients: each reply, its log-probabilities too, is to the bit what the request gets alone, with
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
        assert_eq!(reply.blocking_recv(), Some(Event::Failed("the model gave no finite logit".into())));
    }
    assert_eq!(complete(beside), alone);
}

//! Whatever is asked in whatever order, with whatever cached: every reply is the one that a fresh engine gives.

use lily_backend::Sampling;
use lily_engine::{CacheOptions, Options, Penalties, Request};
use proptest::prelude::*;

use crate::scripted::{STATE_BYTES, Script, assert_same, options, prompt};

/// A request: which of a few texts it begins with, how much of it, and what follows.
#[derive(Clone, Debug)]
struct Plan {
    text: u32,
    shared: usize,
    tail: u32,
    tail_length: usize,
    reply: usize,
    warm: bool,
    /// Given up after so many events.
    leaves: Option<usize>,
    /// How many go before it is asked for.
    waits: bool,
}

fn plan() -> impl Strategy<Value = Plan> {
    let prompt = (0u32..3, 1usize..400, 0u32..3, 0usize..80);
    (prompt, 1usize..20, any::<bool>(), prop::option::weighted(0.2, 0usize..8), any::<bool>()).prop_map(
        |((text, shared, tail, tail_length), reply, warm, leaves, waits)| Plan {
            text,
            shared,
            tail,
            tail_length,
            reply,
            warm,
            leaves,
            waits,
        },
    )
}

impl Plan {
    fn request(&self) -> Request {
        let warm = Sampling { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.0 };
        // The tail of one text may be the middle of another.
        let text = prompt(self.text, 400);
        let tail = text[self.shared..].iter().map(|token| (token + self.tail) % 150);
        let tokens = prompt(self.text, self.shared).into_iter().chain(tail.take(self.tail_length)).collect();
        Request {
            sampling: if self.warm { warm } else { Sampling::GREEDY },
            penalties: Penalties { repetition: 1.1, presence: 0.5, ..Penalties::default() },
            seed: Some(u64::from(self.tail)),
            stop_tokens: vec![self.tail * 10],
            ..Request::new(tokens, self.reply)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]
    #[test]
    fn replies_are_what_they_are_without_a_cache(
        plans in prop::collection::vec(plan(), 1..14),
        // From hardly one snapshot to all.
        room in 1u64..60,
        boundary in 0u32..150,
        interval in 10usize..150,
        spacing in 1usize..50,
        chunk in prop::sample::select(vec![1usize, 7, 16, 64]),
        uniform: bool,
        disk: bool,
        // Calls that are paused between layers, whether anybody comes or not.
        layers in 0usize..4,
    ) {
        let script = Script::default().with_layers(layers, true);
        let directory = tempfile::tempdir().expect("a directory");
        let disk = disk.then(|| lily_engine::DiskOptions {
            spacing,
            ..lily_engine::DiskOptions::new(directory.path().to_owned(), room * 3000, b"model".to_vec())
        });
        let cache = CacheOptions { boundaries: vec![boundary], interval, spacing, disk, ..CacheOptions::new(room * STATE_BYTES) };
        let options = Options { cache, prefill_chunk: chunk, parallel: 3, ..options() };
        let engine = if uniform { script.uniform_engine(options) } else { script.engine(options) };
        let mut pending = Vec::new();
        for plan in &plans {
            let request = plan.request();
            let mut reply = engine.submit(request.clone()).expect("valid");
            if let Some(events) = plan.leaves {
                (0..events).for_each(|_| drop(reply.blocking_recv()));
                continue;
            }
            pending.push((request, reply));
            if plan.waits {
                for (request, reply) in pending.drain(..) {
                    assert_same(&request, reply);
                }
            }
        }
        for (request, reply) in pending {
            assert_same(&request, reply);
        }
        let cache = engine.stats().cache;
        prop_assert!(cache.bytes <= room * STATE_BYTES, "{cache:?}");
        prop_assert!(cache.disk_bytes <= room * 3000);
        prop_assert_eq!(cache.disk_errors, 0);
        engine.shutdown();
        engine.join();
        prop_assert_eq!((script.states(), script.snapshots()), (0, 0));
    }
}

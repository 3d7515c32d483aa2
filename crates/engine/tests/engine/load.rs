//! Many clients at once get what each gets alone.

use std::thread;

use lily_backend::Sampling;
use lily_engine::{Options, Penalties, Request, SubmitError};

use crate::scripted::{Script, assert_expected, options, prompt};

const CLIENTS: u32 = 32;
const REQUESTS: u32 = 8;

/// All sorts: greedy and warm, short and long, with penalties and without.
fn request(client: u32, number: u32) -> Request {
    let kind = client * REQUESTS + number;
    let length = [3, 40, 150, 700][kind as usize % 4];
    let warm = Sampling { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.0 };
    Request {
        sampling: if kind.is_multiple_of(3) { Sampling::GREEDY } else { warm },
        penalties: Penalties { presence: kind as f32 % 2.0, repetition: 1.1, ..Penalties::default() },
        seed: Some(u64::from(kind)),
        stop_tokens: vec![kind % 150],
        ..Request::new(prompt(kind % 150, length), 1 + kind as usize % 60)
    }
}

#[test]
fn each_reply_is_the_one_it_would_be_alone() {
    for uniform in [false, true] {
        let script = Script::default();
        let options = Options { queue: 20, prefill_chunk: 64, ..options() };
        let engine = if uniform { script.uniform_engine(options) } else { script.engine(options) };
        thread::scope(|scope| {
            for client in 0..CLIENTS {
                let engine = &engine;
                scope.spawn(move || {
                    for number in 0..REQUESTS {
                        let request = request(client, number);
                        // Every fifth client's request is given up at once; that must disturb nobody.
                        if number % 5 == 4 {
                            drop(engine.submit(request));
                            continue;
                        }
                        let reply = loop {
                            match engine.submit(request.clone()) {
                                Ok(reply) => break reply,
                                Err(SubmitError::QueueFull { .. }) => thread::yield_now(),
                                Err(error) => panic!("{error}"),
                            }
                        };
                        assert_expected(&request, reply);
                    }
                });
            }
        });
        engine.shutdown();
        engine.join();
        assert_eq!(script.states(), 0);
        let calls = script.calls();
        assert!(calls.iter().all(|call| call.len() <= 4));
        assert!(calls.iter().any(|call| call.len() == 4), "nothing ran side by side");
    }
}

//! An end in order, and one with a deadline.

use std::time::Duration;

use lily_engine::{Engine, Event, Options, Request, SubmitError};

use crate::scripted::{Script, assert_expected, collect, failure, options, prompt};

fn request(name: u32) -> Request {
    Request::new(prompt(name, 10), 20)
}

#[test]
fn replies_under_way_end_and_new_ones_are_refused() {
    let script = Script::held();
    let engine = script.engine(Options { parallel: 1, ..options() });
    let replies = [1, 2].map(|name| engine.submit(request(name)).expect("valid"));
    script.call(1);
    engine.shutdown();
    assert_eq!(engine.submit(request(3)).expect_err("shut"), SubmitError::ShuttingDown);
    assert!(!engine.join_timeout(Duration::from_millis(1)), "it cannot have ended");
    script.release();
    for (name, reply) in [1, 2].into_iter().zip(replies) {
        assert_expected(&request(name), reply);
    }
    engine.join();
    assert!(engine.join_timeout(Duration::ZERO));
    assert_eq!(engine.submit(request(3)).expect_err("shut"), SubmitError::ShuttingDown);
    assert!(!engine.stats().accepting);
}

#[test]
fn at_the_deadline_all_are_told() {
    let script = Script::held();
    let engine = script.engine(Options { parallel: 1, ..options() });
    let running = engine.submit(Request::new(prompt(1, 10), 1000)).expect("valid");
    let waiting = engine.submit(request(2)).expect("valid");
    script.call(1);
    engine.shutdown();
    engine.shutdown_now();
    script.release();
    assert_eq!(failure(running), "the server is shutting down");
    assert_eq!(failure(waiting), "the server is shutting down");
    engine.join();
    assert_eq!(script.calls().len(), 1, "one step at most after the word");
    assert_eq!(script.states(), 0);
}

#[test]
fn an_idle_engine_ends_at_once() {
    for end in [Engine::shutdown, Engine::shutdown_now] {
        let engine = Script::default().engine(options());
        end(&engine);
        engine.join();
    }
}

#[test]
fn the_last_handle_ends_the_engine_but_not_its_replies() {
    let script = Script::held();
    let engine = script.engine(options());
    let second_handle = engine.clone();
    let reply = engine.submit(request(1)).expect("valid");
    drop(engine);
    let another = second_handle.submit(request(2)).expect("still open");
    drop(second_handle);
    script.release();
    assert_expected(&request(1), reply);
    assert_expected(&request(2), another);
}

/// Clients submit without a pause while the end comes at some moment or other: whatever was taken ends.
#[test]
fn what_was_taken_ends_whenever_the_end_comes() {
    for round in 0..150u64 {
        let engine = Script::default().engine(Options { parallel: 2, queue: 4, ..options() });
        std::thread::scope(|scope| {
            for client in 1..=4 {
                let engine = &engine;
                scope.spawn(move || {
                    loop {
                        match engine.submit(request(client)) {
                            Ok(reply) => match collect(reply).pop() {
                                Some(Event::Finished { .. } | Event::Failed(_)) => {}
                                other => panic!("the reply ended with {other:?}"),
                            },
                            Err(SubmitError::QueueFull { .. }) => std::thread::yield_now(),
                            Err(SubmitError::ShuttingDown) => break,
                            Err(error) => panic!("{error}"),
                        }
                    }
                });
            }
            std::thread::sleep(Duration::from_micros(round * 37 % 2000));
            if round % 2 == 0 {
                engine.shutdown()
            } else {
                engine.shutdown_now()
            }
            engine.join();
        });
    }
}

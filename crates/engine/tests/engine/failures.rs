//! What fails, fails alone, and nobody waits for ever.

use lily_engine::{Engine, Options, Request, SubmitError};

use crate::scripted::{
    DEVICE, NOT_FINITE, PANIC, PANIC_ON_DROP, REFUSED, Script, assert_expected, complete, failure, options, prompt,
};

fn good(name: u32) -> Request {
    Request::new(prompt(name, 10), 30)
}

fn bad(trigger: u32) -> Request {
    Request::new(vec![9, trigger], 5)
}

/// An engine with two sequences that generate, held in their third call, one more that will fail and one that is to
/// come after it.
fn with_a_bad_one(script: &Script, trigger: u32) -> (Engine, [lily_engine::Reply; 4]) {
    let engine = script.engine(Options { parallel: 3, ..options() });
    let replies = [1, 2].map(|name| engine.submit(good(name)).expect("valid"));
    script.allow(2);
    script.call(3);
    let failing = engine.submit(bad(trigger)).expect("valid");
    let later = engine.submit(good(3)).expect("valid");
    let [first, second] = replies;
    (engine, [first, second, failing, later])
}

#[test]
fn a_refused_segment_fails_only_its_sequence() {
    let script = Script::held();
    let (engine, [first, second, failing, later]) = with_a_bad_one(&script, REFUSED);
    script.release();
    assert!(failure(failing).contains("outside the vocabulary"));
    assert_expected(&good(1), first);
    assert_expected(&good(2), second);
    assert_expected(&good(3), later);
    assert_eq!(script.states(), 0);
    assert!(engine.stats().accepting);
}

/// Unlike a refusal it shows when all states of the call have moved on.
#[test]
fn a_state_without_finite_logits_fails_only_its_sequence() {
    let script = Script::held();
    let (engine, [first, second, failing, later]) = with_a_bad_one(&script, NOT_FINITE);
    script.release();
    assert_eq!(failure(failing), "the model gave no finite logit");
    assert_expected(&good(1), first);
    assert_expected(&good(2), second);
    assert_expected(&good(3), later);
    assert_eq!(script.states(), 0);
    assert!(engine.stats().accepting);
}

#[test]
fn a_lost_device_fails_the_call_and_no_more() {
    for (trigger, message) in [(DEVICE, "the device is lost"), (PANIC, "panicked: scripted: a panic")] {
        let script = Script::held();
        let (engine, [first, second, failing, later]) = with_a_bad_one(&script, trigger);
        script.release();
        for reply in [first, second, failing] {
            let failure = failure(reply);
            assert!(failure.contains(message), "{failure}");
        }
        assert_expected(&good(3), later);
        assert_expected(&good(4), engine.submit(good(4)).expect("the engine goes on"));
        assert_eq!(script.states(), 0);
    }
}

/// A prompt that was not in the failed call keeps its state.
#[test]
fn a_lost_device_spares_who_was_not_in_the_call() {
    let script = Script::held();
    let engine = script.engine(Options { prefill_chunk: 8, ..options() });
    let long = Request::new(prompt(1, 100), 5);
    let long_reply = engine.submit(long.clone()).expect("valid");
    script.call(1);
    // Eight tokens are a whole step, and the shortest prompt goes first.
    let failing = engine.submit(Request::new(vec![9, 9, 9, 9, 9, 9, 9, DEVICE], 5)).expect("valid");
    script.release();
    assert!(failure(failing).contains("lost"));
    assert_expected(&long, long_reply);
    assert!(script.calls().iter().any(|call| call.len() == 1 && call[0].name == 9));
}

#[test]
fn a_sequence_without_memory_fails_alone() {
    let script = Script::held();
    let engine = script.engine(options());
    let first = engine.submit(good(1)).expect("valid");
    script.call(1);
    script.refuse_states(true);
    let failing = engine.submit(good(2)).expect("valid");
    script.release();
    assert!(failure(failing).contains("no memory"));
    assert_expected(&good(1), first);
    assert!(failure(engine.submit(good(2)).expect("valid")).contains("no memory"));
    script.refuse_states(false);
    assert_expected(&good(3), engine.submit(good(3)).expect("valid"));
}

#[test]
fn a_dead_engine_leaves_nobody_waiting() {
    let script = Script::held();
    let engine = script.engine(Options { parallel: 2, ..options() });
    let dying = engine.submit(Request::new(vec![1, PANIC_ON_DROP], 2)).expect("valid");
    let running = engine.submit(Request::new(prompt(2, 10), 1000)).expect("valid");
    let waiting = engine.submit(good(3)).expect("valid");
    script.release();
    let _finished_or_failed = crate::scripted::collect(dying);
    assert!(failure(running).contains("restarted"));
    assert!(failure(waiting).contains("restarted"));
    engine.join();
    assert_eq!(engine.submit(good(4)).expect_err("dead"), SubmitError::EngineGone);
    let stats = engine.stats();
    assert_eq!((stats.accepting, stats.running, stats.queued), (false, 0, 0));
    engine.shutdown_now();
    assert_eq!(engine.submit(good(4)).expect_err("dead"), SubmitError::EngineGone);
}

#[test]
fn failures_do_not_wear_the_engine_out() {
    let script = Script::default();
    let engine = script.engine(options());
    for round in 0..50 {
        failure(engine.submit(bad([REFUSED, DEVICE][round % 2])).expect("valid"));
    }
    complete(engine.submit(good(1)).expect("valid"));
    assert_eq!(script.states(), 0);
}

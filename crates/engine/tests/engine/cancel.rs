//! A client that goes takes no further step.

use lily_engine::{Engine, Event, Options, Reply, Request};

use crate::scripted::{Script, assert_expected, complete, options, prompt};

const GONE: u32 = 1;
const OTHER: u32 = 2;

/// The call under way when the client goes is the last that holds tokens of it; the next one, which `other` shares or
/// has for itself, holds none.
fn goes(script: &Script, engine: &Engine, call: usize, leave: impl FnOnce()) {
    let other = Request::new(prompt(OTHER, 10), 5);
    let other_reply = engine.submit(other.clone()).expect("valid");
    leave();
    script.release();
    assert_expected(&other, other_reply);
    assert!(script.calls_of(GONE).into_iter().all(|index| index < call), "{:?}", script.calls());
    assert_eq!(script.states(), 0);
    let stats = engine.stats();
    assert_eq!((stats.running, stats.queued), (0, 0));
}

fn running(script: &Script, options: Options, length: usize, call: usize) -> (Engine, Reply) {
    let engine = script.engine(options);
    let reply = engine.submit(Request::new(prompt(GONE, length), 1000)).expect("valid");
    script.allow(call - 1);
    script.call(call);
    (engine, reply)
}

#[test]
fn while_it_generates() {
    let script = Script::held();
    let (engine, reply) = running(&script, options(), 10, 5);
    goes(&script, &engine, 5, || drop(reply));
}

#[test]
fn while_its_prompt_is_read() {
    let script = Script::held();
    let (engine, reply) = running(&script, Options { prefill_chunk: 16, ..options() }, 2000, 3);
    goes(&script, &engine, 3, || drop(reply));
}

#[test]
fn while_it_waits() {
    let script = Script::held();
    let engine = script.engine(Options { parallel: 1, ..options() });
    let first = engine.submit(Request::new(prompt(3, 10), 4)).expect("valid");
    script.call(1);
    let reply = engine.submit(Request::new(prompt(GONE, 10), 4)).expect("valid");
    goes(&script, &engine, 0, || drop(reply));
    complete(first);
}

#[test]
fn by_word_instead_of_going() {
    let script = Script::held();
    let (engine, mut reply) = running(&script, options(), 10, 3);
    let canceller = reply.canceller();
    let waits = std::thread::spawn(move || {
        let events: Vec<Event> = std::iter::from_fn(|| reply.blocking_recv()).collect();
        events
    });
    goes(&script, &engine, 3, || canceller.cancel());
    // The step under way still gave its token; then the channel ends, and that is no failure.
    let mut events = waits.join().expect("no panic");
    assert_eq!(events.remove(0), Event::Started { cached_tokens: 0 });
    assert_eq!(events.len(), 3, "{events:?}");
    assert!(events.iter().all(|event| matches!(event, Event::Token(_))));
}

#[test]
fn the_next_in_the_queue_takes_the_place_at_once() {
    let script = Script::held();
    let (engine, reply) = running(&script, Options { parallel: 1, ..options() }, 10, 4);
    let other = Request::new(prompt(OTHER, 10), 5);
    let other_reply = engine.submit(other.clone()).expect("valid");
    reply.cancel();
    script.allow(1);
    let next = script.call(5);
    assert_eq!(next.iter().map(|part| part.name).collect::<Vec<_>>(), [OTHER]);
    script.release();
    assert_expected(&other, other_reply);
}

//! A long chunk is read in slices, between which others go on.

use std::time::Duration;

use lily_engine::{CacheOptions, Options, Request};

use crate::scripted::{
    DEVICE, Part, STATE_BYTES, Script, assert_expected, assert_same, complete, failure, options, prompt,
};

const LONG: u32 = 1;

/// Nothing has been measured at first, so that a chunk of more than 16 tokens counts as long.
fn layered() -> Script {
    Script::held().with_layers(40, false)
}

/// Field case 37: a short request comes early in the chunk of a long prompt: it is answered before the chunk is through.
#[test]
fn a_short_prompt_is_answered_within_a_chunk_of_a_long_one() {
    let script = layered();
    let engine = script.engine(options());
    let long = Request::new(prompt(LONG, 512), 3);
    let long_reply = engine.submit(long.clone()).expect("valid");
    assert_eq!(script.call(1)[0].tokens, 512, "all of it at once");
    let short = Request::new(prompt(2, 10), 2);
    let short_reply = engine.submit(short.clone()).expect("valid");
    script.release();
    assert_expected(&short, short_reply);
    let before = script.calls();
    assert_expected(&long, long_reply);
    assert!(script.pauses() > 0);
    // Had the chunk been through, the long one's next token would be in that call.
    assert_eq!(before[1], [Part { name: 2, start: 0, tokens: 10 }]);
}

/// Field case 36: the chunk under way ends where its client goes, the next one takes no harm.
#[test]
fn a_client_that_goes_ends_the_chunk() {
    let script = layered();
    let cache = CacheOptions { interval: 100, spacing: 20, ..CacheOptions::new(1 << 30) };
    let engine = script.engine(Options { cache, ..options() });
    let reply = engine.submit(Request::new(prompt(LONG, 90), 1000)).expect("valid");
    script.call(1);
    drop(reply);
    script.release();
    let other = Request::new(prompt(2, 90), 5);
    assert_expected(&other, engine.submit(other.clone()).expect("valid"));
    assert_eq!(script.calls_of(LONG), [0]);
    assert_eq!((script.states(), script.pauses()), (0, 1));
    // What it had read was half read.
    let again = Request::new(prompt(LONG, 90), 5);
    assert_eq!(assert_same(&again, engine.submit(again.clone()).expect("valid")).cached_tokens, 0);
}

/// The chunks before it are not lost with the one under way, nor is a snapshot left behind for each.
#[test]
fn a_client_that_goes_leaves_the_chunks_before() {
    // Slow enough for a chunk of 512 to stay one in slices.
    let script = layered().delayed(Duration::from_millis(1));
    let cache = CacheOptions { interval: 10_000, spacing: 20, ..CacheOptions::new(1 << 30) };
    let engine = script.engine(Options { cache, ..options() });
    let reply = engine.submit(Request::new(prompt(LONG, 1100), 5)).expect("valid");
    script.call(1);
    script.allow(1);
    assert_eq!(script.call(2)[0], Part { name: LONG, start: 512, tokens: 512 });
    drop(reply);
    script.release();
    let again = Request::new(prompt(LONG, 1100), 5);
    assert_eq!(assert_same(&again, engine.submit(again.clone()).expect("valid")).cached_tokens, 512);
    // Where it was left, before its last token, and at its end.
    assert_eq!(engine.stats().cache.snapshots, 3);
}

/// Nothing goes for the time of a chunk: a long prompt costs a full cache what it leaves there itself, at its end.
#[test]
fn a_full_cache_keeps_what_it_has_over_a_chunk() {
    let script = layered().delayed(Duration::from_millis(1));
    let bytes = 4 * (STATE_BYTES + 800);
    let engine =
        script.engine(Options { cache: CacheOptions { spacing: 1000, ..CacheOptions::new(bytes) }, ..options() });
    script.allow(4);
    for name in 2..6 {
        complete(engine.submit(Request::new(prompt(name, 10), 1)).expect("valid"));
    }
    let long = Request::new(prompt(LONG, 1100), 1);
    let reply = engine.submit(long.clone()).expect("valid");
    script.allow(2);
    assert_eq!(script.call(7)[0], Part { name: LONG, start: 1024, tokens: 75 }, "up to the last token");
    let stats = engine.stats().cache;
    assert_eq!((stats.snapshots, stats.evictions), (4, 0));
    script.release();
    assert_expected(&long, reply);
    assert!(engine.stats().cache.evictions > 0, "the cache was full");
}

/// Sequences that generate go on between slices, one token each time.
#[test]
fn others_generate_meanwhile() {
    // At most 1,000 tokens a second are 250 in a step.
    let script = Script::held().delayed(Duration::from_millis(1)).with_layers(40, true);
    let engine = script.engine(options());
    let generating = Request::new(prompt(2, 10), 30);
    let generating_reply = engine.submit(generating.clone()).expect("valid");
    script.call(1);
    script.allow(1);
    script.call(2);
    let long = Request::new(prompt(LONG, 700), 3);
    let long_reply = engine.submit(long.clone()).expect("valid");
    script.release();
    assert_expected(&generating, generating_reply);
    assert_expected(&long, long_reply);
    let [chunk, next, ..] = script.calls_of(LONG)[..] else { panic!("two chunks") };
    assert_eq!(script.calls()[chunk].len(), 1);
    let meanwhile = script.calls_of(2).into_iter().filter(|call| (chunk..next).contains(call)).count();
    assert!(meanwhile > 20, "{meanwhile}");
}

/// Someone who begins alike waits for the end of the chunk at least, or reads alone what they share within it.
#[test]
fn who_begins_alike_waits_for_places_ahead_of_the_chunk() {
    for (shared, cached) in [(300, 0), (900, 900)] {
        let script = layered();
        let cache = CacheOptions { interval: 10_000, spacing: 20, ..CacheOptions::new(1 << 30) };
        let engine = script.engine(Options { cache, ..options() });
        let long = Request::new(prompt(LONG, 1500), 3);
        let long_reply = engine.submit(long.clone()).expect("valid");
        assert_eq!(script.call(1)[0].tokens, 512);
        let alike = Request::new([prompt(LONG, shared), vec![151, 152]].concat(), 3);
        let reply = engine.submit(alike.clone()).expect("valid");
        script.release();
        assert_eq!(assert_same(&alike, reply).cached_tokens, cached);
        assert_expected(&long, long_reply);
    }
}

#[test]
fn a_chunk_that_fails_fails_alone() {
    let script = layered();
    let engine = script.engine(options());
    let failing =
        engine.submit(Request::new([prompt(LONG, 100), vec![DEVICE], prompt(4, 90)].concat(), 5)).expect("valid");
    script.call(1);
    let others = [2, 3].map(|name| Request::new(prompt(name, 60), 5));
    let replies = others.clone().map(|request| engine.submit(request).expect("valid"));
    script.release();
    assert!(failure(failing).contains("device is lost"));
    for (request, reply) in others.iter().zip(replies) {
        assert_expected(request, reply);
    }
    assert_eq!(script.states(), 0);
}

/// A shutdown does not wait for the chunk.
#[test]
fn a_shutdown_breaks_a_chunk_off() {
    let script = layered();
    let engine = script.engine(options());
    let reply = engine.submit(Request::new(prompt(LONG, 500), 5)).expect("valid");
    script.call(1);
    engine.shutdown_now();
    script.release();
    assert_eq!(failure(reply), "the server is shutting down");
    engine.join();
    assert_eq!((script.calls().len(), script.pauses(), script.states()), (1, 1, 0));
    let engine = Script::default().with_layers(3, true).engine(options());
    complete(engine.submit(Request::new(prompt(LONG, 500), 5)).expect("valid"));
}

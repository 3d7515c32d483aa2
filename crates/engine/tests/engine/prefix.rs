//! The prefix cache as clients see it: the field cases, and what must hold beside them.

use lily_engine::{CacheOptions, Engine, Event, Options, Request, Usage};

use crate::scripted::{PAGE_BYTES, STATE_BYTES, Script, assert_same, expected, options, prompt};

/// Begins a message.
const BEGIN: u32 = 170;
/// Ends one.
const END: u32 = 171;

pub(crate) fn cached(bytes: u64) -> Options {
    let cache = CacheOptions { boundaries: vec![BEGIN], interval: 100, spacing: 20, ..CacheOptions::new(bytes) };
    Options { cache, ..options() }
}

/// Room for everything.
fn roomy() -> Options {
    cached(1 << 30)
}

fn message(text: &[u32]) -> Vec<u32> {
    [&[BEGIN], text, &[END]].concat()
}

/// The system prompt and tools of everybody.
fn system() -> Vec<u32> {
    message(&prompt(1, 230))
}

fn ask(engine: &Engine, prompt: Vec<u32>, tokens: usize) -> (Vec<u32>, Usage) {
    let request = Request { stop_tokens: vec![END], ..Request::new(prompt, tokens) };
    let reply = engine.submit(request.clone()).expect("valid");
    let usage = assert_same(&request, reply);
    let generated = expected(&request).0.iter().map(|sample| sample.token).collect();
    (generated, usage)
}

/// Field case 1: of a conversation that only grows, only what is new is read.
#[test]
fn a_growing_conversation_reads_only_what_is_new() {
    let script = Script::default();
    let engine = script.engine(roomy());
    let mut conversation = system();
    let mut held = 0;
    for turn in 0..6 {
        conversation.extend(message(&prompt(20 + turn, 30)));
        conversation.extend([BEGIN, 5]);
        let before = engine.stats().prefilled_tokens;
        let (generated, usage) = ask(&engine, conversation.clone(), 25);
        assert_eq!(usage.cached_tokens, held, "turn {turn}");
        assert_eq!(engine.stats().prefilled_tokens - before, (conversation.len() - held) as u64);
        // The last token drawn has not been read.
        held = conversation.len() + usage.completion_tokens - 1;
        conversation.extend(&generated);
        conversation.push(END);
    }
}

/// Field case 2: an edit costs what comes after the nearest snapshot before it, and the original keeps all of its own.
#[test]
fn an_edit_resumes_from_the_nearest_snapshot_before_it() {
    let engine = Script::default().engine(roomy());
    let original = prompt(3, 1500);
    ask(&engine, original.clone(), 5);
    for (at, nearest) in [(1250, 1200), (999, 900), (1000, 1000), (555, 500), (101, 100), (99, 0)] {
        let mut edited = original.clone();
        edited[at] = (edited[at] + 1) % 150;
        assert_eq!(ask(&engine, edited, 5).1.cached_tokens, nearest, "edited at {at}");
    }
    assert_eq!(ask(&engine, original, 5).1.cached_tokens, 1499);
}

/// Field case 3: the same system prompt before another user's message.
#[test]
fn conversations_share_their_system_prompt() {
    let engine = Script::default().engine(roomy());
    for user in 0..5 {
        let conversation = [system(), message(&prompt(30 + user, 40)), vec![BEGIN, 5]].concat();
        let (_, usage) = ask(&engine, conversation, 8);
        assert_eq!(usage.cached_tokens, if user == 0 { 0 } else { system().len() }, "user {user}");
    }
}

/// Field case 4: the next prompt holds the reply without the empty think block that its own prompt ended with.
#[test]
fn a_generation_prompt_that_history_lacks_costs_only_the_last_message() {
    let engine = Script::default().engine(roomy());
    let history = [system(), message(&prompt(20, 30))].concat();
    let think = [90, 91, 92, 91];
    let (generated, _) = ask(&engine, [&history[..], &[BEGIN, 5], &think].concat(), 10);
    let next = [&history[..], &[BEGIN, 5], &generated, &[END, BEGIN], &prompt(8, 9), &[END, BEGIN, 5], &think].concat();
    assert_eq!(ask(&engine, next, 10).1.cached_tokens, history.len());
}

/// Field cases 6 and 8: the count is right, and known before the first token.
#[test]
fn the_count_comes_first_and_is_what_was_not_read() {
    let engine = Script::default().engine(roomy());
    let text = prompt(3, 150);
    let mut total = 0;
    for expected in [0, 149, 149] {
        let mut reply = engine.submit(Request::new(text.clone(), 3)).expect("valid");
        assert_eq!(reply.blocking_recv(), Some(Event::Started { cached_tokens: expected }));
        while reply.blocking_recv().is_some() {}
        total += expected as u64;
        let stats = engine.stats();
        assert_eq!(stats.cache.cached_tokens, total);
        assert_eq!(stats.prefilled_tokens + total, 150 * (stats.cache.hits + stats.cache.misses));
    }
}

/// Field case 7: a cap holds, whatever is asked; what snapshots share counts once.
#[test]
fn memory_stays_under_the_cap() {
    let script = Script::default();
    let cap = 40_000;
    let engine = script.engine(cached(cap));
    for number in 0..1000 {
        let text = [prompt(1, 128), prompt(number % 50, 70 + number as usize % 200)].concat();
        ask(&engine, text, 1 + number as usize % 7);
        let stats = engine.stats().cache;
        assert!(stats.bytes <= cap, "{} after {number}", stats.bytes);
        assert_eq!(stats.snapshots, script.snapshots());
        assert!(stats.snapshots > 2);
    }
    assert!(engine.stats().cache.evictions > 1000);
    assert_eq!(script.states(), 0);
    engine.shutdown();
    engine.join();
    assert_eq!(script.snapshots(), 0);
}

#[test]
fn shared_pages_count_once() {
    let engine = Script::default().engine(Options { cache: CacheOptions::new(1 << 20), ..options() });
    ask(&engine, prompt(3, 2100), 1);
    let stats = engine.stats().cache;
    // At 1024, 2048 too near the end, 2099, and 2100 after the reply.
    assert_eq!(stats.snapshots, 3);
    let pages = 2100 / 64 * PAGE_BYTES;
    let held = 3 * STATE_BYTES + pages;
    assert!((held + 2100 * 4..held + 2100 * 4 + 2000).contains(&stats.bytes), "{} instead of {held}", stats.bytes);
}

/// What was used last stays longest.
#[test]
fn the_least_recently_used_goes_first() {
    let engine = Script::default().engine(Options {
        cache: CacheOptions { spacing: 1000, ..CacheOptions::new(4 * (STATE_BYTES + PAGE_BYTES + 800)) },
        ..options()
    });
    // Each keeps one snapshot, after its reply.
    let text = |name| prompt(name, 100);
    let longer = |name| [prompt(name, 100), vec![1, 2]].concat();
    (1..=4).for_each(|name| drop(ask(&engine, text(name), 1)));
    assert_eq!(ask(&engine, longer(1), 1).1.cached_tokens, 100);
    for (name, cached) in [(5, 0), (1, 100), (4, 100), (2, 0)] {
        assert_eq!(ask(&engine, longer(name), 1).1.cached_tokens, cached, "{name}");
    }
}

#[test]
fn a_cache_too_small_for_a_snapshot_takes_none() {
    let script = Script::default();
    for bytes in [1, STATE_BYTES - 1, STATE_BYTES + 1] {
        let engine = script.engine(cached(bytes));
        for _ in 0..3 {
            assert_eq!(ask(&engine, prompt(3, 500), 3).1.cached_tokens, 0);
        }
        assert_eq!(engine.stats().cache.snapshots, 0);
    }
}

/// A client that goes leaves what was read; it often comes back with the same prompt.
#[test]
fn what_a_client_left_is_kept() {
    for generated in [0, 7] {
        let script = Script::held();
        let options = Options { prefill_chunk: 16, ..cached(1 << 30) };
        let engine = script.engine(options);
        let reply = engine.submit(Request::new(prompt(3, 80), 1000)).expect("valid");
        let calls = 3 + generated;
        script.allow(calls);
        script.call(calls + 1);
        drop(reply);
        script.release();
        let (_, usage) = ask(&engine, prompt(3, 90), 3);
        // The calls so far, and the one under way when it went.
        assert_eq!(usage.cached_tokens, if generated == 0 { 64 } else { 79 });
    }
}

/// Prompts with the same beginning, all at once: it is read once.
#[test]
fn requests_side_by_side_wait_for_what_they_share() {
    for boundary in [true, false] {
        let script = Script::held();
        let engine = script.engine(Options { prefill_chunk: 64, ..roomy() });
        // Without a boundary the first request takes a snapshot where the others leave it.
        let shared = if boundary { system() } else { prompt(1, 232) };
        let begin = if boundary { BEGIN } else { 7 };
        let requests: Vec<Request> =
            (0..4).map(|user| Request::new([&shared[..], &[begin], &prompt(30 + user, 40)].concat(), 6)).collect();
        let replies: Vec<_> = requests.iter().map(|request| engine.submit(request.clone()).expect("valid")).collect();
        script.release();
        let cached: Vec<usize> =
            requests.iter().zip(replies).map(|(request, reply)| assert_same(request, reply).cached_tokens).collect();
        let common = shared.len() + usize::from(!boundary);
        assert_eq!(cached, [0, common, common, common]);
        assert_eq!(engine.stats().prefilled_tokens as usize, 273 + 3 * (273 - common));
    }
}

/// The one that others wait for goes away, or fails: they go on from what it has left, or alone.
#[test]
fn who_waits_does_not_wait_for_ever() {
    let script = Script::held();
    let engine = script.engine(Options { prefill_chunk: 64, ..roomy() });
    let first = engine.submit(Request::new(prompt(1, 1000), 5)).expect("valid");
    script.allow(2);
    script.call(3);
    let request = Request::new([prompt(1, 900), vec![3, 4]].concat(), 5);
    let second = engine.submit(request.clone()).expect("valid");
    script.allow(2);
    script.call(5);
    drop(first);
    script.release();
    let usage = assert_same(&request, second);
    assert!((100..900).contains(&usage.cached_tokens), "{usage:?}");

    let script = Script::held();
    let engine = script.engine(Options { prefill_chunk: 64, ..roomy() });
    let text = [prompt(1, 300), vec![crate::scripted::DEVICE], prompt(9, 100)].concat();
    let first = engine.submit(Request::new(text.clone(), 5)).expect("valid");
    let second = engine.submit(Request::new([&text[..], &[1]].concat(), 5)).expect("valid");
    let third = Request::new([prompt(1, 290), vec![5, 6]].concat(), 1);
    let other = engine.submit(third.clone()).expect("valid");
    script.release();
    assert!(crate::scripted::failure(first).contains("device"));
    assert!(crate::scripted::failure(second).contains("device"));
    assert_eq!(assert_same(&third, other).cached_tokens, 290);
}

/// A pool that sequences and snapshots share, smaller than what the cache may hold: snapshots make room for steps.
#[test]
fn a_full_pool_costs_snapshots_and_no_request() {
    let script = Script::default().pooled(1000);
    let engine = script.engine(roomy());
    for name in 0..8 {
        ask(&engine, prompt(name, 400), 20);
    }
    assert!(script.full() > 0, "the pool was never full");
    assert!(engine.stats().cache.evictions > 0);
    // What was used last is still there.
    assert!(ask(&engine, prompt(7, 400), 1).1.cached_tokens > 0);

    // Two at once that don't fit, and no snapshot left: they are told, and the engine goes on. Neither may end before the other
    // is there.
    let script = Script::held().pooled(1000);
    let engine = script.engine(Options { parallel: 2, ..roomy() });
    let requests = [Request::new(prompt(1, 300), 400), Request::new(prompt(2, 300), 400)];
    let replies = requests.map(|request| engine.submit(request).expect("valid"));
    script.release();
    let ends = replies.map(|reply| crate::scripted::collect(reply).pop());
    let failed = |end: &Option<Event>| matches!(end, Some(Event::Failed(message)) if message.contains("pool is full"));
    assert!(ends.iter().any(failed), "{ends:?}");
    ask(&engine, prompt(3, 900), 20);
}

/// What a snapshot held went with a failure of the device: the request begins afresh, and the snapshot is asked no more.
#[test]
fn a_lost_snapshot_is_forgotten() {
    let script = Script::default();
    let engine = script.engine(roomy());
    ask(&engine, prompt(1, 50), 1);
    assert_eq!(ask(&engine, prompt(1, 50), 1).1.cached_tokens, 49);
    script.refuse_snapshots();
    let before = engine.stats().cache.snapshots;
    assert_eq!(ask(&engine, prompt(1, 50), 1).1.cached_tokens, 0);
    let stats = engine.stats().cache;
    assert!(stats.snapshots <= before && stats.evictions == 0, "{stats:?}");
}

/// Where chunks change the bits, a prompt is cut and kept after whole grains; a reply's end is kept wherever it is.
#[test]
fn a_backend_that_depends_on_chunks_resumes_at_their_ends_and_at_replies() {
    let script = Script::default();
    let engine = script.uniform_engine(Options { prefill_chunk: 64, ..roomy() });
    let mut conversation = system();
    let mut held = 0;
    for turn in 0..5 {
        conversation.extend(message(&prompt(20 + turn, 45)));
        conversation.extend([BEGIN, 5]);
        let (generated, usage) = ask(&engine, conversation.clone(), 25);
        assert_eq!(usage.cached_tokens, held, "turn {turn}");
        held = conversation.len() + usage.completion_tokens - 1;
        conversation.extend(&generated);
        conversation.push(END);
    }
    // One that leaves the conversation before its first reply.
    let mut other = conversation[..200].to_vec();
    other.extend(message(&prompt(40, 200)));
    let begun = script.calls().len();
    let cached = ask(&engine, other.clone(), 1).1.cached_tokens;
    assert!(cached.is_multiple_of(64) && cached > 0, "{cached}");
    let ends: Vec<usize> = script.calls()[begun..].iter().flatten().map(|part| part.start + part.tokens).collect();
    assert_eq!(ends.last(), Some(&other.len()));
    // Every part of a prompt but its last ends after a whole grain, wherever it began.
    for call in script.calls().windows(2) {
        for part in call[0].iter().filter(|part| part.tokens > 1) {
            let goes_on = call[1].iter().any(|next| next.start == part.start + part.tokens && next.tokens > 1);
            assert!(!goes_on || (part.start + part.tokens).is_multiple_of(64), "{part:?}");
        }
    }
    let parts: Vec<_> = script.calls().into_iter().flatten().collect();
    assert!(parts.iter().any(|part| part.tokens > 1 && !part.start.is_multiple_of(64)), "none began at a reply's end");
}

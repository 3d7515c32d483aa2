//! Who gets what in a step, seen in the calls the backend received.

use std::time::Duration;

use lily_engine::{CacheOptions, Options, Request, SubmitError};

use crate::scripted::{Part, Script, assert_expected, assert_same, complete, options, prompt};

fn small_chunks() -> Options {
    Options { prefill_chunk: 64, ..options() }
}

fn prefill_tokens(call: &[Part], lengths: impl Fn(u32) -> usize) -> usize {
    call.iter().filter(|part| part.start < lengths(part.name)).map(|part| part.tokens).sum()
}

#[test]
fn a_short_prompt_is_answered_while_a_long_one_is_read() {
    let script = Script::held();
    let engine = script.engine(small_chunks());
    let long = Request::new(prompt(1, 3000), 2);
    let long_reply = engine.submit(long.clone()).expect("valid");
    script.call(1);
    let short = Request::new(prompt(2, 100), 5);
    let short_reply = engine.submit(short.clone()).expect("valid");
    script.release();
    assert_expected(&short, short_reply);
    assert_expected(&long, long_reply);
    let short_end = *script.calls_of(2).last().expect("it ran");
    let long_first_token = script.calls_of(1).len() - 2;
    assert!(short_end < script.calls_of(1)[long_first_token], "the short one waited for the long one");
    // Shortest first: two chunks of the short prompt, and four more tokens.
    assert!(short_end <= 8, "{short_end}");
}

#[test]
fn a_stream_of_short_prompts_does_not_starve_a_long_one() {
    let script = Script::held();
    let engine = script.engine(Options { parallel: 2, queue: 1000, ..small_chunks() });
    let long = engine.submit(Request::new(prompt(1, 1000), 1)).expect("valid");
    script.call(1);
    let short: Vec<_> = (0..500).map(|_| engine.submit(Request::new(prompt(2, 64), 1)).expect("valid")).collect();
    script.release();
    complete(long);
    short.into_iter().for_each(|reply| drop(complete(reply)));
    let long_calls = script.calls_of(1);
    assert!(*long_calls.last().expect("it ran") < *script.calls_of(2).last().expect("it ran"), "starved");
}

#[test]
fn generation_goes_on_in_every_step_of_a_long_prompt() {
    let script = Script::held();
    let engine = script.engine(small_chunks());
    let lengths = |name| if name == 1 { 10 } else { 2000 };
    let generating = Request::new(prompt(1, lengths(1)), 200);
    let generating_reply = engine.submit(generating.clone()).expect("valid");
    script.allow(1);
    script.call(2);
    let long = Request::new(prompt(2, lengths(2)), 1);
    let long_reply = engine.submit(long.clone()).expect("valid");
    script.release();
    assert_expected(&long, long_reply);
    assert_expected(&generating, generating_reply);
    let calls = script.calls();
    let tokens_of_first = calls.iter().flatten().filter(|part| part.name == 1 && part.start >= 10);
    assert_eq!(tokens_of_first.clone().count(), 199);
    assert!(tokens_of_first.clone().all(|part| part.tokens == 1));
    // Every call from the second on held a token of the first while it had any left.
    assert!((1..200).all(|index| calls[index].iter().any(|part| part.name == 1)));
    assert!(calls.iter().all(|call| prefill_tokens(call, lengths) <= 64));
    assert!(calls.iter().any(|call| call.len() == 2), "prompt and reply never shared a call");
}

#[test]
fn places_are_given_in_order_of_arrival() {
    let script = Script::held();
    let engine = script.engine(Options { parallel: 2, ..options() });
    let requests: Vec<Request> = (0..8).map(|name| Request::new(prompt(name, 10), 3 + name as usize % 3)).collect();
    let replies: Vec<_> = requests.iter().map(|request| engine.submit(request.clone()).expect("valid")).collect();
    script.release();
    requests.iter().zip(replies).for_each(|(request, reply)| assert_expected(request, reply));
    let first_calls: Vec<usize> = (0..8).map(|name| script.calls_of(name)[0]).collect();
    assert!(first_calls.is_sorted(), "{first_calls:?}");
    assert!(script.calls().iter().all(|call| call.len() <= 2));
}

/// A client that asks for much waits for one that asks for little, and not the other way round.
#[test]
fn clients_take_turns() {
    let script = Script::held();
    let engine = script.engine(Options { parallel: 1, ..options() });
    let clients = [1, 1, 1, 1, 1, 2, 3, 2];
    let requests: Vec<Request> = clients
        .into_iter()
        .zip(0..)
        .map(|(client, name)| Request { client, ..Request::new(prompt(name, 10), 3) })
        .collect();
    let replies: Vec<_> = requests.iter().map(|request| engine.submit(request.clone()).expect("valid")).collect();
    script.call(1);
    script.release();
    requests.iter().zip(replies).for_each(|(request, reply)| assert_expected(request, reply));
    let mut started: Vec<u32> = (0..8).collect();
    started.sort_by_key(|&name| script.calls_of(name)[0]);
    // The first one runs before there is anybody else.
    assert_eq!(started, [0, 5, 6, 1, 7, 2, 3, 4]);
}

/// Those of a client that have waited for what another of its requests reads take turns with other clients' all the same.
#[test]
fn clients_take_turns_with_those_that_waited() {
    let script = Script::held();
    let cache = CacheOptions { interval: 1000, spacing: 20, ..CacheOptions::new(1 << 20) };
    let engine = script.engine(Options { parallel: 2, cache, ..small_chunks() });
    let shared = prompt(1, 1000);
    let submit = |client, prompt: Vec<u32>| {
        let request = Request { client, ..Request::new(prompt, 3) };
        (engine.submit(request.clone()).expect("valid"), request)
    };
    let tail = |name| [&shared[..], &prompt(name, 30)].concat();
    let mut replies: Vec<_> = (10..18).map(|name| submit(1, tail(name))).collect();
    // All but the first wait for that; then the second goes on from what it has read.
    let goes_on = |part: &Part| part.name == 1 && part.start == shared.len();
    let both = (1..).find(|&call| {
        script.allow(1);
        script.call(call).iter().filter(|part| goes_on(part)).count() == 2
    });
    replies.push(submit(2, prompt(2, 10)));
    script.release();
    for (reply, request) in replies {
        assert_same(&request, reply);
    }
    let calls = script.calls();
    let before = &calls[both.expect("it comes")..script.calls_of(2)[0]];
    assert_eq!(before.iter().flatten().filter(|part| goes_on(part)).count(), 0, "it waited for all of them");
}

#[test]
fn a_full_queue_lets_another_client_in() {
    let script = Script::held();
    let engine = script.engine(Options { parallel: 1, queue: 2, ..options() });
    let submit = |client| engine.submit(Request { client, ..Request::new(prompt(1, 10), 3) });
    let mut replies: Vec<_> = (0..3).map(|_| submit(1).expect("there is room")).collect();
    script.call(1);
    assert!(matches!(submit(1), Err(SubmitError::QueueFull { .. })));
    replies.push(submit(2).expect("it has none there"));
    assert!(matches!(submit(2), Err(SubmitError::QueueFull { .. })));
    replies.push(submit(3).expect("it has none there"));
    assert!(matches!(submit(4), Err(SubmitError::QueueFull { .. })), "twice as many is the end");
    script.release();
    replies.into_iter().for_each(|reply| drop(complete(reply)));
}

/// Requests that wait for what another reads are no longer in the queue, but they wait all the same.
#[test]
fn who_waits_for_another_waits_as_far_as_the_queue_goes() {
    let script = Script::held();
    let cache = CacheOptions { spacing: 20, ..CacheOptions::new(1 << 30) };
    let engine = script.engine(Options { parallel: 2, queue: 2, cache, ..small_chunks() });
    let submit = |client| engine.submit(Request { client, ..Request::new(prompt(1, 2000), 3) });
    let mut replies = vec![submit(1).expect("there is room")];
    script.call(1);
    replies.extend((0..3).map(|_| submit(7).expect("there is room")));
    // One is taken out of the queue before each of these.
    script.allow(3);
    script.call(4);
    assert!(matches!(submit(7), Err(SubmitError::QueueFull { .. })));
    replies.push(submit(8).expect("nothing of it waits"));
    script.release();
    replies.into_iter().for_each(|reply| drop(complete(reply)));
}

#[test]
fn the_queue_has_a_bound() {
    let script = Script::held();
    let engine = script.engine(Options { parallel: 2, queue: 3, ..options() });
    let submit = || engine.submit(Request::new(prompt(1, 10), 3));
    let mut replies: Vec<_> = (0..5).map(|_| submit().expect("there is room")).collect();
    script.call(1);
    let Err(SubmitError::QueueFull { retry_after }) = submit() else { panic!("no bound") };
    assert!(retry_after >= Duration::from_secs(1));
    // Whoever leaves the queue makes room at once.
    drop(replies.pop());
    replies.push(submit().expect("there is room"));
    assert!(matches!(submit(), Err(SubmitError::QueueFull { .. })));
    script.release();
    replies.into_iter().for_each(|reply| drop(complete(reply)));
    // A reply that has ended has left its place.
    let again: Vec<_> = (0..5).map(|_| submit().expect("there is room")).collect();
    again.into_iter().for_each(|reply| drop(complete(reply)));
    assert_eq!(script.states(), 0);
}

#[test]
fn without_a_queue_a_free_place_is_enough() {
    let engine = Script::default().engine(Options { parallel: 1, queue: 0, ..options() });
    for _ in 0..100 {
        complete(engine.submit(Request::new(prompt(1, 10), 3)).expect("the place is free"));
    }
}

#[test]
fn a_backend_that_depends_on_chunks_gets_uniform_ones() {
    let script = Script::held();
    let engine = script.uniform_engine(small_chunks());
    let lengths = [500, 70, 64, 200];
    let requests: Vec<Request> =
        lengths.iter().zip(0..).map(|(&length, name)| Request::new(prompt(name, length), 20)).collect();
    let replies: Vec<_> = requests.iter().map(|request| engine.submit(request.clone()).expect("valid")).collect();
    script.release();
    requests.iter().zip(replies).for_each(|(request, reply)| assert_expected(request, reply));
    let lengths = |name: u32| lengths[name as usize];
    for call in script.calls() {
        assert!(prefill_tokens(&call, lengths) <= 64);
        for part in call.iter().filter(|part| part.start < lengths(part.name)) {
            assert_eq!(part.start % 64, 0);
            assert_eq!(part.tokens, 64.min(lengths(part.name) - part.start));
        }
    }
}

/// A token takes at least 2 ms here, so that no more than 125 fit in the 250 ms of a shared step; the first prompt, alone,
/// tells the engine.
#[test]
fn a_slow_backend_gets_small_chunks() {
    let script = Script::with_delay(Duration::from_millis(2));
    let engine = script.engine(Options { prefill_chunk: 4096, ..options() });
    let first = engine.submit(Request::new(prompt(1, 700), 1)).expect("valid");
    complete(first);
    let before = script.calls().len();
    let replies = [1, 2].map(|name| engine.submit(Request::new(prompt(name, 300), 2)).expect("valid"));
    replies.into_iter().for_each(|reply| drop(complete(reply)));
    let calls = script.calls();
    let shared = calls[before..].iter().filter(|call| call.len() == 2);
    assert!(shared.clone().count() > 0);
    assert!(shared.clone().flatten().all(|part| part.tokens <= 125));
}

#[test]
fn counts_are_true() {
    let script = Script::held();
    let engine = script.engine(Options { parallel: 1, ..options() });
    let replies = [1, 2].map(|name| engine.submit(Request::new(prompt(name, 10), 3)).expect("valid"));
    script.call(1);
    let stats = engine.stats();
    assert_eq!((stats.accepting, stats.running, stats.queued), (true, 1, 1));
    script.release();
    replies.into_iter().for_each(|reply| drop(complete(reply)));
    let stats = engine.stats();
    assert_eq!((stats.running, stats.queued), (0, 0));
    assert_eq!((stats.prefilled_tokens, stats.generated_tokens, stats.steps), (20, 6, 6));
}

/// A prompt that shares the beginning of a long one waits for it; from then on that one is as urgent as it is, and is not
/// served last among shorter ones.
#[test]
fn who_is_waited_for_is_as_urgent_as_who_waits() {
    let script = Script::held();
    let cache = CacheOptions { spacing: 20, ..CacheOptions::new(1 << 30) };
    let engine = script.engine(Options { cache, ..small_chunks() });
    let long = engine.submit(Request::new(prompt(1, 3000), 1)).expect("valid");
    script.call(1);
    let others = [2, 3].map(|name| engine.submit(Request::new(prompt(name, 1000), 1)).expect("valid"));
    // 650 tokens of the long one's, 20 of its own.
    let short = Request::new([prompt(1, 650), vec![151; 20]].concat(), 1);
    let reply = engine.submit(short.clone()).expect("valid");
    script.release();
    assert_eq!(assert_same(&short, reply).cached_tokens, 650);
    let own = Part { name: 1, start: 650, tokens: 20 };
    let calls = script.calls();
    let before = calls.iter().take_while(|call| !call.contains(&own)).flatten();
    let tokens: usize = before.filter(|part| [2, 3].contains(&part.name)).map(|part| part.tokens).sum();
    assert!(tokens < 1000, "{tokens} tokens of others came first");
    complete(long);
    others.into_iter().for_each(|reply| drop(complete(reply)));
}

/// Four that wait for what one reads, and one that has nothing to do with them.
#[test]
fn who_waits_for_another_takes_no_place() {
    let script = Script::held();
    let cache = CacheOptions { spacing: 20, ..CacheOptions::new(1 << 30) };
    let engine = script.engine(Options { parallel: 2, cache, ..small_chunks() });
    let agents: Vec<Request> =
        (0..5).map(|agent| Request::new([prompt(1, 2000), vec![140 + agent; 9]].concat(), 3)).collect();
    let replies: Vec<_> = agents.iter().map(|request| engine.submit(request.clone()).expect("valid")).collect();
    script.call(1);
    let other = Request::new(prompt(9, 40), 3);
    let reply = engine.submit(other.clone()).expect("valid");
    script.release();
    assert_expected(&other, reply);
    let cached: Vec<usize> =
        agents.iter().zip(replies).map(|(request, reply)| assert_same(request, reply).cached_tokens).collect();
    assert_eq!(cached, [0, 2000, 2000, 2000, 2000]);
    let last_of_other = *script.calls_of(9).last().expect("it ran");
    assert!(last_of_other < 20, "call {last_of_other}: it waited for the others");
    assert!(script.calls().iter().all(|call| call.len() <= 2));
}

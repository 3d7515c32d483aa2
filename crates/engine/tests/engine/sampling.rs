//! Tokens are the ones that the definitions give, and replies end where they should.

use lily_backend::Sampling;
use lily_engine::{Budget, Event, FinishReason, Penalties, Request, SubmitError};
use proptest::prelude::*;

use crate::scripted::{
    CONTEXT, Marked, Script, TRIGGERS, VOCABULARY, assert_expected, complete, expected, failure, options, prompt,
};

const WARM: Sampling = Sampling { temperature: 1.0, top_k: 20, top_p: 0.95, min_p: 0.01 };

fn warm(name: u32, max_tokens: usize, seed: u64) -> Request {
    Request { sampling: WARM, seed: Some(seed), ..Request::new(prompt(name, 30), max_tokens) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Everything that shapes a draw, against an oracle that computes it from scratch for each token.
    #[test]
    fn replies_are_what_the_definitions_say(
        name in 0..TRIGGERS,
        length in 1usize..60,
        temperature in prop::sample::select(vec![0f32, 0.5, 1.0]),
        top_k in 0usize..30,
        top_p in 0.1f32..=1.0,
        presence in -2f32..2.0,
        frequency in -2f32..2.0,
        repetition in 0.5f32..2.0,
        logit_bias in prop::collection::vec((0..TRIGGERS, -3f32..3.0), 0..6),
        stop_tokens in prop::collection::vec(0..TRIGGERS, 0..3),
        seed: u64,
        max_tokens in 1usize..80,
        top_logprobs in prop::option::of(0usize..5),
        budget in prop::option::of((0usize..20, prop::collection::vec(0..TRIGGERS, 0..9), prop::collection::vec(0..TRIGGERS, 0..90), prop::collection::vec(0..TRIGGERS, 0..4))),
    ) {
        let request = Request {
            prompt: prompt(name, length),
            sampling: Sampling { temperature, top_k, top_p, min_p: 0.0 },
            penalties: Penalties { presence, frequency, repetition },
            logit_bias,
            seed: Some(seed),
            max_tokens,
            stop_tokens,
            top_logprobs,
            budget: budget.map(|(tokens, over, busy, close)| Budget { tokens, section: Box::new(Marked { over, busy }), close }),
            ..Request::new(Vec::new(), 1)
        };
        let engine = Script::default().engine(options());
        assert_expected(&request, engine.submit(request.clone()).expect("valid"));
    }
}

#[test]
fn an_encouraged_token_repeats_until_frequency_outweighs_it() {
    let penalties = Penalties { frequency: 3.0, ..Penalties::default() };
    let request = Request { penalties, logit_bias: vec![(7, 14.0)], ..Request::new(prompt(1, 3), 12) };
    let (samples, ..) = complete(Script::default().engine(options()).submit(request).expect("valid"));
    let sevens = samples.iter().filter(|sample| sample.token == 7).count();
    // Logits lie in -2..2: a bias of 14 wins by at least 10, so at least three times in a row, and loses after 18/3.
    assert!(samples[..3].iter().all(|sample| sample.token == 7));
    assert!((3..=6).contains(&sevens), "{sevens}");
}

#[test]
fn a_seed_repeats_and_no_seed_does_not() {
    let engine = Script::default().engine(options());
    let tokens = |seed| {
        let (samples, ..) = complete(engine.submit(Request { seed, ..warm(1, 40, 0) }).expect("valid"));
        samples.into_iter().map(|sample| sample.token).collect::<Vec<_>>()
    };
    assert_eq!(tokens(Some(5)), tokens(Some(5)));
    assert_ne!(tokens(Some(5)), tokens(Some(6)));
    assert_ne!(tokens(None), tokens(None));
}

#[test]
fn a_stop_token_ends_the_reply_and_is_not_given_out() {
    let free = Request::new(prompt(3, 10), 20);
    let (samples, _) = expected(&free);
    let stop = samples[5].token;
    let first = samples.iter().position(|sample| sample.token == stop).expect("it is there");
    let request = Request { stop_tokens: vec![199, stop], ..free };
    let (given, reason, usage) = complete(Script::default().engine(options()).submit(request).expect("valid"));
    assert_eq!(given, samples[..first]);
    assert_eq!(reason, FinishReason::Stop);
    assert_eq!(usage.completion_tokens, first + 1);
}

#[test]
fn a_budget_closes_a_section_that_has_not_ended() {
    let free = Request::new(prompt(3, 10), 12);
    let engine = Script::default().engine(options());
    let run = |budget: Budget, stop_tokens: Vec<u32>| {
        let request = Request { budget: Some(budget), stop_tokens, ..free.clone() };
        let (samples, reason, usage) = complete(engine.submit(request).expect("valid"));
        assert_eq!(usage.completion_tokens, samples.len() + usize::from(reason == FinishReason::Stop));
        samples.into_iter().map(|sample| sample.token).collect::<Vec<_>>()
    };
    let plain: Vec<u32> = expected(&free).0.into_iter().map(|sample| sample.token).collect();
    let marked = |over: &[u32], busy: &[u32]| Box::new(Marked { over: over.to_vec(), busy: busy.to_vec() });
    let budget = |tokens: usize, over: &[u32]| Budget { tokens, section: marked(over, &[]), close: vec![7, 8] };
    let mut passed_over = 0;
    for tokens in 0..plain.len() - 1 {
        let closed = run(budget(tokens, &[199]), vec![]);
        assert_eq!((&closed[..tokens], &closed[tokens..tokens + 2]), (&plain[..tokens], [7, 8].as_slice()));
        assert_eq!(closed.len(), plain.len());
        // A token that would have ended the reply there does not.
        if !closed.contains(&plain[tokens]) {
            assert_eq!(run(budget(tokens, &[199]), vec![plain[tokens]]), closed);
            passed_over += 1;
        }
    }
    assert!(passed_over > 3);
    // Too large, ended by itself in time, and too late.
    assert_eq!(run(budget(12, &[199]), vec![]), plain);
    assert_eq!(run(budget(4, &[199, plain[3]]), vec![]), plain);
    assert_eq!(run(budget(3, &[plain[3]]), vec![])[3..5], [7, 8]);
    // Not now, but as soon as it can be.
    let busy = Budget { section: marked(&[], &plain[2..5]), ..budget(3, &[]) };
    assert_eq!(run(busy, vec![])[..8], [&plain[..6], &[7, 8]].concat());
    let refused = Request { budget: Some(Budget { close: vec![200], ..budget(1, &[]) }), ..free.clone() };
    let error = engine.submit(refused).expect_err("no such token");
    assert!(matches!(error, SubmitError::InvalidParameter { parameter: "budget", .. }), "{error}");
}

#[test]
fn the_end_of_the_context_ends_the_reply() {
    let engine = Script::default().engine(options());
    for (length, room) in [(CONTEXT - 1, 1), (CONTEXT - 3, 3)] {
        let request = Request::new(prompt(3, length), usize::MAX);
        let (samples, reason, usage) = complete(engine.submit(request).expect("valid"));
        assert_eq!((samples.len(), reason), (room, FinishReason::Length));
        assert_eq!(usage.prompt_tokens + usage.completion_tokens, CONTEXT);
    }
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let engine = Script::default().engine(options());
    let refused = |request: Request| engine.submit(request).expect_err("invalid");
    let good = Request::new(prompt(1, 5), 5);
    assert_eq!(refused(Request::new(vec![], 5)), SubmitError::Empty);
    let too_long = SubmitError::TooLong { prompt: CONTEXT, limit: CONTEXT };
    assert_eq!(refused(Request::new(prompt(1, CONTEXT), 5)), too_long);
    let unknown = SubmitError::UnknownToken { token: 200, vocabulary: VOCABULARY };
    assert_eq!(refused(Request::new(vec![1, 200], 5)), unknown);

    let parameter = |request: Request| match refused(request) {
        SubmitError::InvalidParameter { parameter, .. } => parameter,
        other => panic!("{other:?}"),
    };
    let sampling = |sampling: Sampling| parameter(Request { sampling, ..good.clone() });
    let penalties = |penalties: Penalties| parameter(Request { penalties, ..good.clone() });
    let bias = |token, bias| parameter(Request { logit_bias: vec![(token, bias)], ..good.clone() });
    for bad in [f32::NAN, -0.1, f32::INFINITY] {
        assert_eq!(sampling(Sampling { temperature: bad, ..WARM }), "temperature");
        assert_eq!(sampling(Sampling { top_p: bad, ..WARM }), "top_p");
        assert_eq!(sampling(Sampling { min_p: bad, ..WARM }), "min_p");
        assert_eq!(penalties(Penalties { repetition: bad, ..Penalties::default() }), "repetition_penalty");
    }
    assert_eq!(sampling(Sampling { top_p: 1.1, ..WARM }), "top_p");
    assert_eq!(penalties(Penalties { repetition: 0.0, ..Penalties::default() }), "repetition_penalty");
    assert_eq!(penalties(Penalties { presence: f32::NAN, ..Penalties::default() }), "presence_penalty");
    assert_eq!(penalties(Penalties { frequency: f32::INFINITY, ..Penalties::default() }), "frequency_penalty");
    assert_eq!(bias(VOCABULARY as u32, 1.0), "logit_bias");
    assert_eq!(bias(3, f32::NAN), "logit_bias");
    assert_eq!(parameter(Request { max_tokens: 0, ..good.clone() }), "max_tokens");

    assert_expected(&good, engine.submit(good.clone()).expect("the engine goes on"));
}

#[test]
fn events_come_in_order_and_also_to_async_code() {
    let engine = Script::default().engine(lily_engine::Options { prefill_chunk: 16, ..options() });
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let mut reply = engine.submit(Request::new(prompt(1, 40), 2)).expect("valid");
    let events = runtime.block_on(async {
        let mut events = Vec::new();
        while let Some(event) = reply.recv().await {
            events.push(event);
        }
        events
    });
    assert_eq!(events[0], Event::Started { cached_tokens: 0 });
    assert_eq!(events[1], Event::Prefill { done: 16, total: 40 });
    let kinds: Vec<&str> = events
        .iter()
        .map(|event| match event {
            Event::Started { .. } => "started",
            Event::Prefill { .. } => "prefill",
            Event::Token(_) => "token",
            Event::Finished { .. } => "finished",
            Event::Failed(_) => "failed",
        })
        .collect();
    assert!(kinds.ends_with(&["prefill", "token", "token", "finished"]), "{kinds:?}");
    assert!(events.contains(&Event::Prefill { done: 40, total: 40 }));

    let mut reply = engine.submit(Request::new(prompt(1, 16), 1)).expect("valid");
    assert_eq!(reply.blocking_recv(), Some(Event::Started { cached_tokens: 0 }));
    assert!(matches!(reply.blocking_recv(), Some(Event::Token(_))), "a prompt of one step has no progress");
}

#[test]
fn a_reply_that_fails_says_so_once() {
    let engine = Script::default().engine(options());
    let reply = engine.submit(Request::new(vec![1, crate::scripted::REFUSED], 5)).expect("valid");
    assert!(failure(reply).contains("190"));
}

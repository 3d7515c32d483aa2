//! What the scripted backend makes the engine answer, and what the engine does.

use std::collections::HashMap;

use lily_backend::{Adjustment, Draw, Sample, sample};
use lily_engine::{Event, FinishReason, Options, Penalties, Place, Reply, Request, Section, Usage};

use super::{CONTEXT, VOCABULARY, logits, mix};

/// What the engine should answer, by the definitions and without any of its bookkeeping.
pub(crate) fn expected(request: &Request) -> (Vec<Sample>, FinishReason) {
    let Penalties { presence, frequency, repetition } = request.penalties;
    let mut hash = request.prompt.iter().fold(0, |hash, &token| mix(hash, token));
    let mut samples: Vec<Sample> = Vec::new();
    let mut constraint = request.constraint.clone();
    loop {
        let mut counts: HashMap<u32, usize> = HashMap::new();
        samples.iter().for_each(|sample| *counts.entry(sample.token).or_default() += 1);
        let adjustments: Vec<Adjustment> = (0..VOCABULARY as u32)
            .map(|token| {
                let count = counts.get(&token).copied().unwrap_or(0);
                let used = count > 0 || request.prompt.contains(&token);
                let bias: f32 = request.logit_bias.iter().filter(|bias| bias.0 == token).map(|bias| bias.1).sum();
                let presence = if count > 0 { presence } else { 0.0 };
                let add = bias - presence - frequency * count as f32;
                let repetition = if used { repetition } else { 1.0 };
                Adjustment { token, repetition, add, add_once_drawn: add }
            })
            .collect();
        let draw = Draw {
            vocabulary: VOCABULARY,
            sampling: request.sampling,
            seed: request.seed.unwrap_or(0),
            counter: samples.len() as u64,
            adjustments: &adjustments,
            penalty: None,
            allowed: constraint.as_ref().and_then(|constraint| constraint.allowed()),
            top_logprobs: request.top_logprobs,
        };
        let mut next = sample(&logits(hash), &draw).expect("finite");
        if let Some(budget) = &request.budget {
            let place = |read: usize| {
                let mut section = budget.section.clone();
                samples[..read].iter().fold(Place::Within, |_, sample| section.read(sample.token))
            };
            let closes = |read: usize| read >= budget.tokens && place(read) == Place::Within;
            let closed = (0..=samples.len()).find(|&read| closes(read) || place(read) == Place::Past);
            if let Some(closed) = closed.filter(|&read| place(read) == Place::Within)
                && let Some(&token) = budget.close.get(samples.len() - closed)
            {
                next = Sample { token, logprob: request.top_logprobs.map(|_| 0.0), top: Vec::new() };
            }
        }
        if request.stop_tokens.contains(&next.token) {
            return (samples, FinishReason::Stop);
        }
        if let Some(constraint) = &mut constraint {
            constraint.accept(next.token).expect("an allowed token");
        }
        hash = mix(hash, next.token);
        samples.push(next);
        if samples.len() == request.max_tokens || request.prompt.len() + samples.len() == CONTEXT {
            return (samples, FinishReason::Length);
        }
    }
}

/// A section that is told by single tokens.
#[derive(Clone, Debug)]
pub(crate) struct Marked {
    /// After one of these it is over.
    pub(crate) over: Vec<u32>,
    /// After one of these it may not be ended.
    pub(crate) busy: Vec<u32>,
}

impl Section for Marked {
    fn read(&mut self, token: u32) -> Place {
        match token {
            over if self.over.contains(&over) => Place::Past,
            busy if self.busy.contains(&busy) => Place::Busy,
            _ => Place::Within,
        }
    }

    fn boxed(&self) -> Box<dyn Section> {
        Box::new(self.clone())
    }
}

pub(crate) fn options() -> Options {
    Options::new(VOCABULARY)
}

/// A prompt of ordinary tokens whose first one names it.
pub(crate) fn prompt(name: u32, length: usize) -> Vec<u32> {
    std::iter::once(name).chain((1..length).map(|index| (mix(u64::from(name), index as u32) % 150) as u32)).collect()
}

/// All events until the end, without the progress before the first token.
pub(crate) fn collect(mut reply: Reply) -> Vec<Event> {
    let events = std::iter::from_fn(|| reply.blocking_recv());
    events.filter(|event| !matches!(event, Event::Started { .. } | Event::Prefill { .. })).collect()
}

/// Tokens of the reply, and how it ended; panics if it failed.
pub(crate) fn complete(reply: Reply) -> (Vec<Sample>, FinishReason, Usage) {
    let mut samples = Vec::new();
    for event in collect(reply) {
        match event {
            Event::Token(sample) => samples.push(sample),
            Event::Finished { reason, usage } => return (samples, reason, usage),
            other => panic!("{other:?}"),
        }
    }
    panic!("the reply has no end: {samples:?}");
}

/// Why a reply failed; panics if it did not.
pub(crate) fn failure(reply: Reply) -> String {
    match collect(reply).pop() {
        Some(Event::Failed(message)) => message,
        other => panic!("{other:?}"),
    }
}

/// The reply is what the definitions say.
pub(crate) fn assert_expected(request: &Request, reply: Reply) {
    let usage = assert_same(request, reply);
    assert_eq!(usage.cached_tokens, 0);
}

/// As [`assert_expected`], with whatever cached.
pub(crate) fn assert_same(request: &Request, mut reply: Reply) -> Usage {
    let started = reply.blocking_recv();
    let Some(Event::Started { cached_tokens }) = started else { panic!("{started:?}") };
    let (samples, reason, usage) = complete(reply);
    let (expected, expected_reason) = expected(request);
    assert_eq!(samples, expected);
    assert_eq!(reason, expected_reason);
    let stop = usize::from(reason == FinishReason::Stop);
    let prompt_tokens = request.prompt.len();
    assert_eq!(usage, Usage { prompt_tokens, cached_tokens, completion_tokens: samples.len() + stop });
    assert!(cached_tokens < prompt_tokens);
    usage
}

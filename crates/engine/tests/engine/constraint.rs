//! Replies that must follow a constraint.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lily_backend::{Sampling, TokenSet};
use lily_engine::{Constraint, FinishReason, Request};
use proptest::prelude::*;

use crate::scripted::{Script, TRIGGERS, VOCABULARY, assert_expected, collect, complete, failure, options, prompt};

/// Allows tokens of the remainder that the last token asks for, and the stop token every `period` tokens.
#[derive(Clone, Debug)]
struct Remainders {
    modulus: u32,
    period: usize,
    allowed: TokenSet,
    accepted: Arc<AtomicUsize>,
    /// The call of `accept` that goes wrong.
    fails_at: usize,
    panics: bool,
}

const STOP: u32 = 7;

impl Remainders {
    fn new(modulus: u32, period: usize) -> Self {
        let accepted = Arc::default();
        let mut new =
            Self { modulus, period, allowed: TokenSet::default(), accepted, fails_at: usize::MAX, panics: false };
        new.allow(0, 0);
        new
    }

    fn allow(&mut self, remainder: u32, count: usize) {
        let stops = count.is_multiple_of(self.period);
        let fits = |token: u32| if token == STOP { stops } else { token % self.modulus == remainder };
        self.allowed = (0..TRIGGERS).filter(|&token| fits(token)).collect();
    }
}

impl Constraint for Remainders {
    fn allowed(&self) -> Option<&TokenSet> {
        // A modulus of 1 is none.
        (self.modulus > 1).then_some(&self.allowed)
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        let count = self.accepted.fetch_add(1, Ordering::SeqCst) + 1;
        assert!(count < self.fails_at || !self.panics, "as the test wants it");
        if count >= self.fails_at {
            return Err("no way on".into());
        }
        self.allow((token + 1) % self.modulus, count);
        Ok(())
    }

    fn boxed(&self) -> Box<dyn Constraint> {
        let accepted = Arc::new(AtomicUsize::new(self.accepted.load(Ordering::SeqCst)));
        Box::new(Self { accepted, ..self.clone() })
    }
}

fn request(name: u32, most: usize, constraint: Remainders) -> Request {
    let constraint: Option<Box<dyn Constraint>> = Some(Box::new(constraint));
    Request { stop_tokens: vec![STOP], constraint, ..Request::new(prompt(name, 20), most) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Every token is drawn under the mask that those before it lead to, whatever else shapes the draw and runs beside it.
    #[test]
    fn every_draw_is_under_the_mask(
        modulus in 1u32..6,
        period in 1usize..9,
        temperature in prop::sample::select(vec![0f32, 1.0]),
        top_k in 0usize..30,
        logit_bias in prop::collection::vec((0..TRIGGERS, -3f32..3.0), 0..6),
        seed: u64,
    ) {
        let sampling = Sampling { temperature, top_k, top_p: 0.9, min_p: 0.0 };
        let request = Request { sampling, logit_bias, seed: Some(seed), ..request(3, 40, Remainders::new(modulus, period)) };
        let engine = Script::default().engine(options());
        let free = Request::new(prompt(4, 30), 40);
        let beside = engine.submit(free.clone()).expect("valid");
        let replies: Vec<_> = (0..2).map(|_| engine.submit(request.clone()).expect("valid")).collect();
        replies.into_iter().for_each(|reply| assert_expected(&request, reply));
        assert_expected(&free, beside);
    }
}

#[test]
fn a_constraint_hears_of_every_token_but_the_last() {
    let engine = Script::default().engine(options());
    let count = |reply, reason, most, constraint: Remainders| {
        let accepted = Arc::clone(&constraint.accepted);
        let (samples, ended, _) = complete(engine.submit(request(1, most, constraint)).expect("valid"));
        assert_eq!((samples.len(), ended), (reply, reason));
        accepted.load(Ordering::SeqCst)
    };
    assert_eq!(count(5, FinishReason::Length, 5, Remainders::new(3, usize::MAX)), 4);
    // From the start on nothing but the stop token is left.
    let only_stop = Remainders { allowed: [STOP].into_iter().collect(), ..Remainders::new(2, 1) };
    assert_eq!(count(0, FinishReason::Stop, 5, only_stop), 0);
}

#[test]
fn a_constraint_that_fails_ends_its_own_reply_and_no_other() {
    let engine = Script::default().engine(options());
    for panics in [false, true] {
        let good = Request::new(prompt(2, 10), 30);
        let beside = engine.submit(good.clone()).expect("valid");
        let bad = Remainders { fails_at: 4, panics, ..Remainders::new(3, usize::MAX) };
        let events = collect(engine.submit(request(1, 30, bad)).expect("valid"));
        assert_eq!(events.len(), 5, "four tokens and the failure: {events:?}");
        let message = format!("{:?}", events[4]);
        assert!(message.contains(if panics { "panicked: as the test wants it" } else { "no way on" }), "{message}");
        assert_expected(&good, beside);
    }
    let nothing = Remainders { allowed: [VOCABULARY as u32].into_iter().collect(), ..Remainders::new(2, 1) };
    assert_eq!(failure(engine.submit(request(1, 5, nothing)).expect("valid")), "the model gave no finite logit");
}

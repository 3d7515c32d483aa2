//! How many states a lexer has for an expression, of which a reply's may not make more than so many.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};

use llguidance::derivre::{RegexAst, RegexBuilder, StateID};

use super::GrammarError;
use super::pattern::{Whole, anywhere};
use super::reason::refused;

/// What one step of a lexer may cost at most, far below where a reply's [gives up](super::STEP_FUEL).
const DEAREST_STEP: u64 = 20_000;
/// What all steps of one expression may cost: some tenths of a second.
pub(super) const DEAREST: u64 = 3_000_000;
/// What those may cost that only tell whether the others are dear.
pub(super) const SAMPLE: u64 = DEAREST / 50;
/// What those of all expressions of a request may cost, to count states that prove too many among them.
const MOST_COST: u64 = 2 * DEAREST;
/// What an expression costs that has no states to speak of, and each byte of its text.
const LEAST_COST: u64 = 100;
/// Bytes that a class of characters comes to, which takes three to write.
const CLASS: usize = 1000;

/// What there is to an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    /// No text is of it.
    Nothing,
    /// So many states.
    States(usize),
    /// More than were asked for.
    TooMany,
    /// Such as take too long to make together.
    TooCostly,
    /// Some that take too long to make.
    TooDear,
}

/// Counts the states of a request's expressions, each once, for no more than [`MOST_COST`].
pub(super) struct Counter {
    left: Cell<u64>,
    /// Each with how many states were asked for.
    known: RefCell<HashMap<String, (usize, Measure)>>,
    /// Of patterns.
    expressions: RefCell<HashMap<String, Result<Whole, GrammarError>>>,
}

impl Default for Counter {
    fn default() -> Self {
        Self { left: Cell::new(MOST_COST), known: RefCell::default(), expressions: RefCell::default() }
    }
}

impl Counter {
    /// The states of an expression, of which there is one for a key, up to `most`, as far as they cost no more than `dearest`.
    pub(super) fn measure(&self, key: &str, expression: &RegexAst, most: usize, dearest: u64) -> Measure {
        if let Some((asked, known)) = self.known.borrow().get(key)
            && (*known != Measure::TooMany || most <= *asked)
        {
            return if matches!(known, Measure::States(count) if *count > most) { Measure::TooMany } else { *known };
        }
        if self.left.get() == 0 {
            return Measure::TooCostly;
        }
        let (measured, cost) = measure_up_to(expression, most, dearest.min(self.left.get()));
        let cost = cost.saturating_add(LEAST_COST + key.len() as u64);
        self.left.set(self.left.get().saturating_sub(cost));
        self.known.borrow_mut().insert(key.to_owned(), (most, measured));
        measured
    }

    /// The expression of whole texts that a pattern stands for.
    ///
    /// # Errors
    /// If there is none, or it would be more than may be counted.
    pub(super) fn expression(&self, pattern: &str) -> Result<Whole, GrammarError> {
        if let Some(known) = self.expressions.borrow().get(pattern) {
            return known.clone();
        }
        if self.left.get() == 0 {
            return Err(refused("the patterns of the tools take too much together to be counted"));
        }
        let expression = anywhere(pattern);
        // One that is refused may have been as long as its classes come to.
        let bytes = expression.as_ref().map_or(CLASS * pattern.len() / 3, |whole| whole.expression.len());
        self.left.set(self.left.get().saturating_sub(LEAST_COST + bytes as u64));
        self.expressions.borrow_mut().insert(pattern.to_owned(), expression.clone());
        expression
    }

    #[cfg(test)]
    pub(super) fn is_spent(&self) -> bool {
        self.left.get() == 0
    }
}

/// The states, up to `most`, as far as they cost no more than `dearest`, and what it cost to make them.
pub(super) fn measure_up_to(expression: &RegexAst, most: usize, dearest: u64) -> (Measure, u64) {
    let mut builder = RegexBuilder::new();
    let Ok(made) = builder.mk(expression) else { return (Measure::TooDear, 0) };
    let Ok(mut lexer) = builder.into_regex_limited(made, DEAREST_STEP * 10) else {
        return (Measure::TooDear, DEAREST_STEP * 10);
    };
    if lexer.always_empty() {
        return (Measure::Nothing, lexer.cost());
    }
    // Bytes that the expression does not tell from each other are one.
    let mut seen = HashSet::new();
    let bytes: Vec<u8> = (0..=u8::MAX).filter(|byte| seen.insert(lexer.alpha().map(*byte))).collect();
    let (mut known, mut ahead) = (HashSet::from([StateID::DEAD]), vec![lexer.initial_state()]);
    while let Some(state) = ahead.pop() {
        if !known.insert(state) {
            continue;
        }
        if known.len() > most {
            return (Measure::TooMany, lexer.cost());
        }
        for &byte in &bytes {
            let cost = lexer.cost();
            ahead.push(lexer.transition(state, byte));
            if lexer.cost() - cost > DEAREST_STEP {
                return (Measure::TooDear, lexer.cost());
            }
            if lexer.cost() > dearest {
                return (Measure::TooCostly, lexer.cost());
            }
        }
    }
    (Measure::States(known.len()), lexer.cost())
}

#[cfg(test)]
mod tests {
    use llguidance::derivre::RegexAst;

    use super::{DEAREST, Measure, measure_up_to};

    #[test]
    fn states_are_counted_up_to_a_bound() {
        let measure = |expression: &RegexAst, most: usize| measure_up_to(expression, most, DEAREST).0;
        let both = |ones: &str, others: &str| {
            RegexAst::And(vec![RegexAst::Regex(ones.into()), RegexAst::Regex(others.into())])
        };
        // With the dead one.
        assert_eq!(measure(&both("[a-c]{0,3}", "[b-d]*"), 100), Measure::States(5));
        assert_eq!(measure(&both("[a-c]{0,3}", "[b-d]*"), 4), Measure::TooMany);
        assert_eq!(measure(&both("a+", "b+"), 100), Measure::Nothing);
        assert_eq!(measure(&RegexAst::Regex("(?s:.*)e[a-z ]{40}".into()), 50_000), Measure::TooCostly);
    }
}

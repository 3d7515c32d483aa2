//! How many states a lexer has for an expression, of which a reply's may not make more than so many.

use std::collections::HashSet;

use llguidance::derivre::{RegexAst, RegexBuilder, StateID};

/// What one step of a lexer may cost at most, far below where a reply's [gives up](super::STEP_FUEL).
const DEAREST_STEP: u64 = 20_000;
/// What all steps may cost: some tenths of a second.
const DEAREST: u64 = 3_000_000;

/// What there is to an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    /// No text is of it.
    Nothing,
    /// So many states.
    States(usize),
    /// More than were asked for, or such as take too long to make.
    TooMany,
}

/// Makes all states of an expression, up to `most`.
pub(super) fn measure(expression: &RegexAst, most: usize) -> Measure {
    let mut builder = RegexBuilder::new();
    let Ok(made) = builder.mk(expression) else { return Measure::TooMany };
    let Ok(mut lexer) = builder.into_regex_limited(made, DEAREST_STEP * 10) else { return Measure::TooMany };
    if lexer.always_empty() {
        return Measure::Nothing;
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
            return Measure::TooMany;
        }
        for &byte in &bytes {
            let cost = lexer.cost();
            ahead.push(lexer.transition(state, byte));
            if lexer.cost() - cost > DEAREST_STEP || lexer.cost() > DEAREST {
                return Measure::TooMany;
            }
        }
    }
    Measure::States(known.len())
}

#[cfg(test)]
mod tests {
    use llguidance::derivre::RegexAst;

    use super::{Measure, measure};

    #[test]
    fn states_are_counted_up_to_a_bound() {
        let both = |ones: &str, others: &str| {
            RegexAst::And(vec![RegexAst::Regex(ones.into()), RegexAst::Regex(others.into())])
        };
        // With the dead one.
        assert_eq!(measure(&both("[a-c]{0,3}", "[b-d]*"), 100), Measure::States(5));
        assert_eq!(measure(&both("[a-c]{0,3}", "[b-d]*"), 4), Measure::TooMany);
        assert_eq!(measure(&both("a+", "b+"), 100), Measure::Nothing);
        assert_eq!(measure(&RegexAst::Regex("(?s:.*)e[a-z ]{40}".into()), 50_000), Measure::TooMany);
    }
}

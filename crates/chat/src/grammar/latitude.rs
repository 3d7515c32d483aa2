//! What is done about a keyword that no grammar of calls can express: where a function is `strict` it is refused with its
//! place, else the grammar goes without it, as a call that may be looser than its schema is worth more than none.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fmt::Display;

use llguidance::derivre::RegexAst;

use super::states::{Counter, Measure};
use super::{GrammarError, MOST_LEXER_STATES};

/// States that are left to what no length or pattern is of: free texts, JSON, the tags.
const OTHERS: usize = 5000;

/// Bytes of listed values that count as others.
const FEW_LISTED: usize = 1000;
/// Why values that are listed are left out.
pub(super) const MOST_LISTED: &str =
    "the values that are listed take more than one reply may, with the lengths and patterns of the tools";

/// The states that the lexer of a reply may make, of which no more are given away than there are: a reply that could come to
/// more would die midway.
pub(super) struct States<'c> {
    left: Cell<usize>,
    known: RefCell<HashSet<String>>,
    counter: &'c Counter,
}

impl<'c> States<'c> {
    pub(super) fn new(counter: &'c Counter) -> Self {
        Self { left: Cell::new(MOST_LEXER_STATES - OTHERS), known: RefCell::default(), counter }
    }

    /// Whether there are so many left. What has the same key has the same states.
    pub(super) fn take(&self, key: &str, count: usize) -> bool {
        if self.known.borrow().contains(key) {
            return true;
        }
        let Some(left) = self.left.get().checked_sub(count) else { return false };
        self.left.set(left);
        self.known.borrow_mut().insert(key.to_owned());
        true
    }

    /// As [`take`](Self::take), for values that are listed, with so many bytes: a lexer has a state for each.
    pub(super) fn take_listed(&self, key: &str, bytes: usize) -> bool {
        bytes <= FEW_LISTED || self.take(key, bytes)
    }

    /// As [`take`](Self::take), by counting. `None` if no text is of the expression.
    pub(super) fn take_counted(&self, key: &str, expression: &RegexAst) -> Option<bool> {
        if self.known.borrow().contains(key) {
            return Some(true);
        }
        match self.counter.measure(key, expression, self.left.get()) {
            Measure::Nothing => None,
            Measure::States(count) => Some(self.take(key, count)),
            Measure::TooMany => Some(false),
        }
    }

    /// See [`Counter::expression`].
    pub(super) fn expression(&self, pattern: &str) -> Result<String, GrammarError> {
        self.counter.expression(pattern)
    }

    /// Whether no text is of the expression.
    pub(super) fn is_nothing(&self, key: &str, expression: &RegexAst) -> bool {
        self.counter.measure(key, expression, self.left.get()) == Measure::Nothing
    }
}

/// Of one function.
pub(super) struct Latitude<'f> {
    pub(super) function: &'f str,
    pub(super) strict: bool,
    pub(super) states: &'f States<'f>,
}

impl Latitude<'_> {
    /// Goes without what is at the path.
    ///
    /// # Errors
    /// If the function is strict.
    pub(super) fn leave_out(&self, path: &str, reason: impl Display) -> Result<(), GrammarError> {
        leave_out(self.function, self.strict, path, reason)
    }
}

/// Goes without what is at the path of a function.
///
/// # Errors
/// If the function is strict.
pub(super) fn leave_out(function: &str, strict: bool, path: &str, reason: impl Display) -> Result<(), GrammarError> {
    if strict {
        return Err(GrammarError::Parameter {
            function: function.into(),
            path: path.into(),
            reason: reason.to_string(),
        });
    }
    tracing::debug!(function, path, %reason, "a forced call is not held to all of its schema");
    Ok(())
}

#[cfg(test)]
mod tests {
    use llguidance::derivre::RegexAst;

    use super::{Counter, MOST_LEXER_STATES, States};

    #[test]
    fn no_more_states_are_given_away_than_there_are() {
        let counter = Counter::default();
        let states = States::new(&counter);
        assert!(states.take("a", MOST_LEXER_STATES / 2));
        assert!(states.take("a", MOST_LEXER_STATES / 2), "it has them already");
        assert!(!states.take("b", MOST_LEXER_STATES / 2));
        assert_eq!(states.take_counted("c", &RegexAst::Regex("[a-z]{100}".into())), Some(true));
        assert_eq!(states.take_counted("d", &RegexAst::NoMatch), None);
    }

    /// A request of nothing but such expressions takes no longer than a few of them.
    #[test]
    fn counting_comes_to_an_end() {
        let counter = Counter::default();
        let states = States::new(&counter);
        let hostile = |count: usize| RegexAst::Regex(format!("(?s:.*)e[a-z ]{{{}}}", 40 + count));
        for count in 0..10 {
            assert_eq!(states.take_counted(&count.to_string(), &hostile(count)), Some(false));
        }
        assert!(counter.is_spent());
        assert_eq!(states.take_counted("a", &RegexAst::Regex("a".into())), Some(false));
    }

    /// However few states are left, so that no count makes more than a few, each of which is dear.
    #[test]
    fn counting_comes_to_an_end_where_few_states_are_left() {
        let counter = Counter::default();
        let states = States::new(&counter);
        let left = states.left.get();
        assert!(states.take("a", left - 20));
        let dear = |from: usize| {
            let ways: Vec<String> = (from..from + 500).map(|way| format!("[a-z]{{0,{}}}x{way}", 50 + way)).collect();
            RegexAst::Regex(format!("(?s:.*)({})(?s:.*)", ways.join("|")))
        };
        assert!((0..8).all(|count| states.take_counted(&count.to_string(), &dear(count)) == Some(false)));
        assert!(counter.is_spent());
        assert_eq!(states.take_counted("b", &RegexAst::Regex("b".into())), Some(false));
    }

    #[test]
    fn what_has_been_counted_is_not_again() {
        let counter = Counter::default();
        let hostile = RegexAst::Regex("(?s:.*)e[a-z ]{40}".into());
        for _ in 0..100 {
            assert_eq!(States::new(&counter).take_counted("a", &hostile), Some(false));
        }
        assert!(!counter.is_spent());
    }
}

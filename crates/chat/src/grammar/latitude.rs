//! What is done about a keyword that no grammar of calls can express: where a function is `strict` it is refused with its
//! place, else the grammar goes without it, as a call that may be looser than its schema is worth more than none.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fmt::Display;

use llguidance::derivre::RegexAst;

use super::states::{Measure, measure};
use super::{GrammarError, MOST_LEXER_STATES};

/// States that are left to what no length or pattern is of: free texts, JSON, the tags.
const OTHERS: usize = 5000;
/// States that are made to count them, those of what proves too large among them.
const MOST_COUNTED: usize = 4 * MOST_LEXER_STATES;

/// The states that the lexer of a reply may make, of which no more are given away than there are: a reply that could come to
/// more would die midway.
pub(super) struct States {
    left: Cell<usize>,
    to_count: Cell<usize>,
    known: RefCell<HashSet<String>>,
}

impl Default for States {
    fn default() -> Self {
        Self {
            left: Cell::new(MOST_LEXER_STATES - OTHERS),
            to_count: Cell::new(MOST_COUNTED),
            known: RefCell::default(),
        }
    }
}

impl States {
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

    /// As [`take`](Self::take), by counting. `None` if no text is of the expression.
    pub(super) fn take_counted(&self, key: &str, expression: &RegexAst) -> Option<bool> {
        if self.known.borrow().contains(key) {
            return Some(true);
        }
        let most = self.left.get().min(self.to_count.get());
        if most == 0 {
            return Some(false);
        }
        let measured = measure(expression, most);
        let counted = if let Measure::States(count) = measured { count } else { most };
        self.to_count.set(self.to_count.get().saturating_sub(counted));
        match measured {
            Measure::Nothing => None,
            Measure::States(count) => Some(self.take(key, count)),
            Measure::TooMany => Some(false),
        }
    }
}

/// Of one function.
pub(super) struct Latitude<'f> {
    pub(super) function: &'f str,
    pub(super) strict: bool,
    pub(super) states: &'f States,
}

impl Latitude<'_> {
    /// Goes without what is at the path.
    ///
    /// # Errors
    /// If the function is strict.
    pub(super) fn leave_out(&self, path: &str, reason: impl Display) -> Result<(), GrammarError> {
        if self.strict {
            return Err(self.refusal(path, reason));
        }
        tracing::debug!(function = self.function, path, %reason, "a forced call is not held to all of its schema");
        Ok(())
    }

    pub(super) fn refusal(&self, path: &str, reason: impl Display) -> GrammarError {
        GrammarError::Parameter { function: self.function.into(), path: path.into(), reason: reason.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use llguidance::derivre::RegexAst;

    use super::{MOST_LEXER_STATES, States};

    #[test]
    fn no_more_states_are_given_away_than_there_are() {
        let states = States::default();
        assert!(states.take("a", MOST_LEXER_STATES / 2));
        assert!(states.take("a", MOST_LEXER_STATES / 2), "it has them already");
        assert!(!states.take("b", MOST_LEXER_STATES / 2));
        assert_eq!(states.take_counted("c", &RegexAst::Regex("[a-z]{100}".into())), Some(true));
        assert_eq!(states.take_counted("d", &RegexAst::NoMatch), None);
    }

    /// A request of nothing but such expressions takes no longer than a few of them.
    #[test]
    fn counting_comes_to_an_end() {
        let states = States::default();
        let hostile = |count: usize| RegexAst::Regex(format!("(?s:.*)e[a-z ]{{{}}}", 40 + count));
        for count in 0..4 {
            assert_eq!(states.take_counted(&count.to_string(), &hostile(count)), Some(false));
        }
        while states.to_count.get() > 0 {
            states.take_counted("x", &hostile(0));
        }
        assert_eq!(states.take_counted("a", &RegexAst::Regex("a".into())), Some(false));
    }
}

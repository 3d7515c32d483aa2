//! What is done about a keyword that no grammar of calls can express: where a function is `strict` it is refused with its
//! place, else the grammar goes without it, as a call that may be looser than its schema is worth more than none.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::fmt::Display;

use llguidance::derivre::RegexAst;

use super::pattern::Whole;
use super::states::{Counter, DEAREST, Measure, SAMPLE};
use super::text::Text;
use super::{GrammarError, MOST_LEXER_STATES};

/// States that are left to what no length or pattern is of: free texts, JSON, the tags.
const OTHERS: usize = 5000;
/// What is said of what does not fit.
const TOO_MUCH: &str = "takes more than one reply may, with the other lengths, patterns and lists of values";

/// What something takes of the lexer's states: each kind of text once, with how many, and what to call it.
pub(super) type Need = HashMap<String, (usize, String)>;

/// The states that the lexer of a reply may make, of which no more are given away than there are: a reply that could come to
/// more would die midway.
pub(super) struct States<'c> {
    left: Cell<usize>,
    known: RefCell<HashSet<String>>,
    counter: &'c Counter,
    /// Whether patterns that come to an end and take too long to count are taken to have few.
    trusts: bool,
}

impl<'c> States<'c> {
    pub(super) fn new(counter: &'c Counter) -> Self {
        Self { left: Cell::new(MOST_LEXER_STATES - OTHERS), known: RefCell::default(), counter, trusts: false }
    }

    /// Of a `response_format`, of which there is one: what would bind nothing in a call is a 400 there.
    pub(super) fn of_format(counter: &'c Counter) -> Self {
        Self { trusts: true, ..Self::new(counter) }
    }

    /// Takes all of them, or none if there are not so many left. What has a key that was taken before has the same states.
    ///
    /// # Errors
    /// What takes the most.
    pub(super) fn take(&self, need: Need) -> Result<(), String> {
        let mut known = self.known.borrow_mut();
        let new: Need = need.into_iter().filter(|(key, _)| !known.contains(key)).collect();
        let all = new.values().fold(0usize, |all, (count, _)| all.saturating_add(*count));
        if let Some(left) = self.left.get().checked_sub(all) {
            self.left.set(left);
            known.extend(new.into_keys());
            return Ok(());
        }
        let most = new.into_values().max().map(|(_, what)| what).unwrap_or_default();
        Err(format!("{most} {TOO_MUCH}"))
    }

    /// How many states there are to texts, of which the lexer may have each at the same time, as `expression` puts them; `None`
    /// if there is no such text. `beside` is what it puts beside them.
    ///
    /// # Errors
    /// What is said of texts that have too many, or such as take too long to make.
    pub(super) fn count(
        &self,
        beside: &[&str],
        texts: &[Text],
        expression: &impl Fn(&[Text]) -> RegexAst,
    ) -> Result<Option<usize>, &'static str> {
        let most = self.left.get();
        let measure = |texts: &[Text], dearest| {
            let key = format!("{dearest} {beside:?} {texts:?}");
            self.counter.measure(&key, &expression(texts), most, dearest)
        };
        let length = texts.iter().map(Text::length).max().unwrap_or(0);
        let alone: Vec<Text> = texts.iter().map(Text::of_any_length).collect();
        let mut measured = measure(&alone, DEAREST);
        if measured == Measure::TooCostly && self.trusts && texts.iter().all(Text::ends) {
            return Ok(Some(0));
        }
        if let (Measure::States(each), true) = (measured, length > 0) {
            // At each character the lexer may be wherever it may be without the length. There may be far less, each far dearer.
            let bound = usize::try_from(length).unwrap_or(usize::MAX).saturating_add(1).saturating_mul(each);
            let is_plain = beside.len() < 2 && !texts.iter().any(Text::has_expressions);
            measured = if is_plain { Measure::TooMany } else { measure(texts, SAMPLE) };
            if matches!(measured, Measure::TooMany | Measure::TooCostly) && bound <= most {
                measured = Measure::States(bound);
            } else if matches!(measured, Measure::TooCostly) {
                measured = measure(texts, DEAREST);
            }
        }
        match measured {
            Measure::Nothing => Ok(None),
            Measure::States(count) => Ok(Some(count)),
            Measure::TooMany | Measure::TooCostly | Measure::TooDear => Err(TOO_MUCH),
        }
    }

    /// See [`Counter::expression`].
    pub(super) fn expression(&self, pattern: &str) -> Result<Whole, GrammarError> {
        self.counter.expression(pattern)
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

    use super::{Counter, MOST_LEXER_STATES, Need, States};

    fn need(key: &str, count: usize) -> Need {
        Need::from([(key.to_owned(), (count, format!("the text {key}")))])
    }

    fn count(states: &States<'_>, pattern: &str) -> Result<Option<usize>, &'static str> {
        states.count(&[pattern], &[], &|_| RegexAst::Regex(pattern.to_owned()))
    }

    #[test]
    fn no_more_states_are_given_away_than_there_are() {
        let counter = Counter::default();
        let states = States::new(&counter);
        let half = MOST_LEXER_STATES / 2;
        assert_eq!(states.take(need("a", half)), Ok(()));
        assert_eq!(states.take(need("a", half)), Ok(()), "it has them already");
        let both = need("b", half).into_iter().chain(need("c", 7)).collect();
        assert!(states.take(both).is_err_and(|error| error.contains("the text b takes")));
        let left = MOST_LEXER_STATES - super::OTHERS - half;
        assert_eq!(states.take(need("c", left)), Ok(()), "all were taken or none");
        assert!(count(&states, "[a-z]{100}").is_err(), "none are left");
    }

    /// A request of nothing but such expressions takes no longer than a few of them.
    #[test]
    fn counting_comes_to_an_end() {
        let counter = Counter::default();
        let states = States::new(&counter);
        assert!((0..10).all(|more| count(&states, &format!("(?s:.*)e[a-z ]{{{}}}", 40 + more)).is_err()));
        assert!(counter.is_spent());
        assert!(count(&states, "a").is_err());
    }

    /// However few states are left, so that no count makes more than a few, each of which is dear.
    #[test]
    fn counting_comes_to_an_end_where_few_states_are_left() {
        let counter = Counter::default();
        let states = States::new(&counter);
        assert_eq!(states.take(need("a", states.left.get() - 20)), Ok(()));
        let dear = |from: usize| {
            let ways: Vec<String> = (from..from + 500).map(|way| format!("[a-z]{{0,{}}}x{way}", 50 + way)).collect();
            format!("(?s:.*)({})(?s:.*)", ways.join("|"))
        };
        assert!((0..8).all(|more| count(&states, &dear(more)).is_err()));
        assert!(counter.is_spent());
        assert!(count(&states, "b").is_err());
    }

    #[test]
    fn what_has_been_counted_is_not_again() {
        let counter = Counter::default();
        for _ in 0..100 {
            assert!(count(&States::new(&counter), "(?s:.*)e[a-z ]{40}").is_err());
        }
        assert!(!counter.is_spent());
    }
}

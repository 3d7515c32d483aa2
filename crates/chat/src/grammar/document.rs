//! What a function's schemas are read with: the document that they refer to, and bounds on what they take.
//!
//! A few references say as much as a schema of any length: three to the next, sixteen times over, are 43 million. So what is
//! looked at, compared and copied is counted, over all the functions of a request.

use std::cell::Cell;

use serde_json::Value;

use super::GrammarError;
use super::reason::refused;

/// Steps that a request's functions may take, tenths of a second of work. A hundred large functions take a tenth of them.
const MOST_STEPS: usize = 2_000_000;
/// Pairs of values that are compared in a step.
const PAIRS: usize = 8;
/// Steps for a copy of a schema or value, without its parts.
const COPY: usize = 4;

/// Steps that are left.
pub(super) struct Budget(Cell<usize>);

impl Default for Budget {
    fn default() -> Self {
        Self(Cell::new(MOST_STEPS))
    }
}

impl Budget {
    /// # Errors
    /// [`GrammarError::Refused`] if there are not so many steps left.
    pub(super) fn spend(&self, steps: usize) -> Result<(), GrammarError> {
        let left = self.0.get().checked_sub(steps);
        self.0.set(left.unwrap_or(0));
        left.map(|_| ()).ok_or_else(|| {
            refused("the schemas take too many steps to put together; refer and compose less, or list less values")
        })
    }

    /// Whether something took more than was left.
    pub(super) fn is_spent(&self) -> bool {
        self.0.get() == 0
    }

    pub(super) fn spend_on_pairs(&self, pairs: usize) -> Result<(), GrammarError> {
        self.spend(pairs / PAIRS)
    }

    /// For a copy of all of a value.
    pub(super) fn spend_on_copy(&self, value: &Value) -> Result<(), GrammarError> {
        self.spend(COPY)?;
        match value {
            Value::Array(items) => items.iter().try_for_each(|item| self.spend_on_copy(item)),
            Value::Object(map) => map.iter().try_for_each(|(key, value)| {
                self.spend(key.len() / 16)?;
                self.spend_on_copy(value)
            }),
            Value::String(text) => self.spend(text.len() / 16),
            _ => Ok(()),
        }
    }
}

/// A document that schemas are parts of.
pub(super) struct Document<'s> {
    pub(super) root: &'s Value,
    pub(super) budget: &'s Budget,
}

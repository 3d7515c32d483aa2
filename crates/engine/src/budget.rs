//! Bounds of a reply's first section.

use std::fmt::Debug;

use crate::constraint::caught;

/// Where a reply is in its first section, a thought, say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Within it, where it may be ended.
    Within,
    /// Within it, where ending it would break something.
    Busy,
    /// After it.
    Past,
}

/// Reads a reply as it comes and says where it is. Whoever submits a request brings it: the engine knows no text.
pub trait Section: Debug + Send {
    /// Takes the next token and says where the reply is after it. Not called any more once it is [`Place::Past`], or the
    /// section has been closed.
    ///
    /// It runs on the engine's thread, where all sequences wait for it.
    fn read(&mut self, token: u32) -> Place;

    /// The same from where it is now, for another reply.
    fn boxed(&self) -> Box<dyn Section>;
}

impl Clone for Box<dyn Section> {
    fn clone(&self) -> Self {
        (**self).boxed()
    }
}

/// What ends the first section of a reply when it grows too long. From the reply's token number `tokens` on, at the first
/// place where the section may be ended, the next tokens are `close`, whatever would have been drawn; they are given out and
/// count as any other.
#[derive(Clone, Debug)]
pub struct Budget {
    /// Tokens that the section may take, counted from the reply's beginning; may be 0.
    pub tokens: usize,
    /// What tells where it ends by itself. At the reply's beginning it may be ended.
    pub section: Box<dyn Section>,
    /// What ends it.
    pub close: Vec<u32>,
}

/// A budget that is being spent.
pub(crate) struct Spending {
    budget: Budget,
    place: Place,
    /// Tokens of `close` that have been given out.
    closed: usize,
}

impl Spending {
    pub(crate) fn new(budget: Budget) -> Self {
        Self { budget, place: Place::Within, closed: 0 }
    }

    /// What comes after `count` tokens in the place of the one that was drawn, if anything.
    ///
    /// # Errors
    /// If whoever reads the section panicked.
    pub(crate) fn instead(&mut self, count: usize, drawn: u32) -> Result<Option<u32>, String> {
        let Self { budget, place, closed } = self;
        if *closed == 0 && (count < budget.tokens || *place == Place::Busy) {
            *place = caught("the reply's budget", || Ok(budget.section.read(drawn)))?;
            return Ok(None);
        }
        let token = budget.close.get(*closed).copied();
        *closed += 1;
        Ok(token)
    }

    /// Whether there is nothing more to bound.
    pub(crate) fn is_spent(&self) -> bool {
        self.place == Place::Past || self.closed >= self.budget.close.len()
    }
}

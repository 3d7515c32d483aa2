//! A reply's grammar in the form that the engine takes.

use lily_backend::TokenSet;
use lily_chat::{GrammarError, ReplyGrammar};
use lily_engine::Constraint;

/// A grammar with its set of tokens at hand.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    grammar: ReplyGrammar,
    allowed: Option<TokenSet>,
}

impl Bound {
    pub(crate) fn new(grammar: ReplyGrammar) -> Self {
        let allowed = allowed(&grammar);
        Self { grammar, allowed }
    }
}

impl Constraint for Bound {
    fn allowed(&self) -> Option<&TokenSet> {
        self.allowed.as_ref()
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        self.grammar.accept(token).map_err(|error: GrammarError| error.to_string())?;
        self.allowed = allowed(&self.grammar);
        Ok(())
    }

    fn boxed(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

fn allowed(grammar: &ReplyGrammar) -> Option<TokenSet> {
    grammar.allowed().map(|words| TokenSet::from_words(words.to_vec()))
}

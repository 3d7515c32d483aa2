//! A reply under way in its grammar.

use std::sync::Arc;

use super::masks::{Mask, Masks};
use super::reason::refused;
use super::thinking::Thinking;
use super::{GrammarError, failed};

/// Where a reply is in its grammar, and which tokens may come next. Clones go on independently.
#[derive(Clone)]
pub struct ReplyGrammar {
    thinking: Arc<Thinking>,
    masks: Masks,
    stage: Stage,
    /// What the grammar allows next.
    allowed: Mask,
    /// The token with which the reply may begin instead.
    call: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// So many bytes of the closing tag have come.
    Thinking(usize),
    /// So many of the tokens between reasoning and content have come.
    Gap(usize),
    /// Before the first token of the content.
    Start,
    Content,
    /// In a call that no grammar binds.
    Free,
}

impl std::fmt::Debug for ReplyGrammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplyGrammar").field("stage", &self.stage).finish_non_exhaustive()
    }
}

impl ReplyGrammar {
    pub(super) fn new(
        mut masks: Masks,
        thinking: &Arc<Thinking>,
        begins_in_reasoning: bool,
        may_call: bool,
    ) -> Result<Self, GrammarError> {
        // The first mask is where a grammar shows that nothing is of it, or that it is too much.
        let mut allowed = masks.next().map_err(|error| refused(format!("nothing can be written: {error}")))?;
        let call = thinking.call.filter(|_| may_call);
        if let Some(call) = call {
            let mut words = allowed.to_vec();
            words[call as usize / 32] |= 1 << (call % 32);
            allowed = words.into();
        }
        let stage = if begins_in_reasoning { Stage::Thinking(0) } else { Stage::Start };
        Ok(Self { thinking: Arc::clone(thinking), masks, stage, allowed, call })
    }

    /// The tokens that may come next: bit `id % 32` of word `id / 32`. `None` if any may.
    #[must_use]
    pub fn allowed(&self) -> Option<&[u32]> {
        match self.stage {
            Stage::Thinking(matched) => Some(self.thinking.allowed(matched)),
            Stage::Gap(given) => self.thinking.gap.get(given).map(|(_, mask)| mask.as_slice()),
            Stage::Start | Stage::Content => Some(&self.allowed),
            Stage::Free => None,
        }
    }

    /// Takes note of a token that came, which is not one that ends the reply, and works out what may follow.
    ///
    /// # Errors
    /// [`GrammarError::Failed`] if the token was not allowed, or the grammar has become too much.
    pub fn accept(&mut self, token: u32) -> Result<(), GrammarError> {
        self.stage = match self.stage {
            Stage::Thinking(matched) => {
                self.thinking.accept(matched, token).map_or_else(|| self.gap(0), Stage::Thinking)
            }
            Stage::Gap(given) if self.thinking.gap.get(given).is_some_and(|(id, _)| *id == token) => {
                self.gap(given + 1)
            }
            Stage::Gap(_) => return Err(GrammarError::Failed("the reasoning's end is not followed by its gap".into())),
            Stage::Start if self.call == Some(token) => Stage::Free,
            Stage::Start | Stage::Content => {
                self.masks.consume(token).map_err(failed)?;
                self.allowed = self.masks.next().map_err(failed)?;
                Stage::Content
            }
            Stage::Free => Stage::Free,
        };
        Ok(())
    }

    fn gap(&self, given: usize) -> Stage {
        if given < self.thinking.gap.len() { Stage::Gap(given) } else { Stage::Start }
    }
}

//! Keeps a reply that calls tools for the prompts to come.

use crate::replay::{ReplayStore, Turn};
use crate::reply::Reply;
use lily_chat::{ReplyEvent, Tokenizer};
use std::sync::Arc;

/// One reply in the making.
pub(crate) struct Recorder {
    store: Arc<ReplayStore>,
    tokenizer: Arc<Tokenizer>,
    /// What the prompt gave of the reply, and what the model wrote.
    tokens: Vec<u32>,
    begins_in_reasoning: bool,
    reply: Reply,
}

impl Recorder {
    /// `primed`: the reply's beginning, which the prompt gave.
    pub(crate) fn new(
        store: Arc<ReplayStore>,
        tokenizer: Arc<Tokenizer>,
        primed: Vec<u32>,
        begins_in_reasoning: bool,
    ) -> Self {
        Self { store, tokenizer, tokens: primed, begins_in_reasoning, reply: Reply::default() }
    }

    /// The model has written a token.
    pub(crate) fn token(&mut self, token: u32) {
        self.tokens.push(token);
    }

    /// What a client was given.
    pub(crate) fn events(&mut self, events: &[ReplyEvent]) {
        self.reply.extend(events.to_vec());
    }

    /// Whether the last token ends a call: then nothing has followed it that a client was not given.
    pub(crate) fn ends_with_a_call(&self) -> bool {
        self.tokens.last().is_some_and(|&token| self.tokenizer.bytes(token) == b"</tool_call>")
    }

    /// The reply is complete. `content_start`: how many tokens came before the content, if the reasoning was closed.
    pub(crate) fn keep(self, content_start: Option<usize>) {
        // A token that belongs to the marker and to the content has no place at the beginning of a turn.
        let is_clean = |&start: &usize| {
            let first = self.tokens.get(start).and_then(|&token| self.tokenizer.bytes(token).first());
            first.is_some_and(|byte| !byte.is_ascii_whitespace())
        };
        self.store.insert(Turn {
            content_start: content_start.filter(is_clean),
            begins_in_reasoning: self.begins_in_reasoning,
            reasoning: self.reply.reasoning,
            content: self.reply.content,
            calls: self.reply.calls,
            tokens: self.tokens,
        });
    }
}

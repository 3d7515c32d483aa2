//! Choices as the completions endpoint writes them.

use crate::answer::{Shape, reason_name};
use crate::generate::Reason;
use crate::logprobs;
use crate::reply::Reply;
use crate::text::Delta;
use lily_chat::Tokenizer;
use serde_json::{Value, json};
use std::sync::Arc;

pub(crate) struct CompletionShape {
    /// There if log-probabilities are wanted.
    tokenizer: Option<Arc<Tokenizer>>,
    /// What each choice's text begins with: its prompt, if that is wanted.
    echo: Vec<String>,
    /// Characters of each choice's text so far.
    offsets: Vec<usize>,
}

impl CompletionShape {
    /// `tokenizer`: if log-probabilities are wanted. `echo`: a text a choice, empty unless its prompt is wanted.
    pub(crate) fn new(tokenizer: Option<Arc<Tokenizer>>, echo: Vec<String>) -> Self {
        let offsets = echo.iter().map(|text| text.chars().count()).collect();
        Self { tokenizer, echo, offsets }
    }

    /// `text`: what is written, which is the `reply`'s own but for an echo.
    fn choice(&mut self, index: usize, reply: &Reply, text: &str, reason: Option<Reason>) -> Value {
        let logprobs = match &self.tokenizer {
            Some(tokenizer) => logprobs::completion(tokenizer, &reply.tokens, self.offsets[index], &reply.content),
            None => Value::Null,
        };
        self.offsets[index] += reply.content.chars().count();
        json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason.map(reason_name)})
    }
}

impl Shape for CompletionShape {
    fn whole(&mut self, index: usize, reply: Reply, reason: Reason) -> Value {
        let whole = std::mem::take(&mut self.echo[index]) + &reply.content;
        self.choice(index, &reply, &whole, Some(reason))
    }

    fn opening(&mut self, index: usize) -> Option<Value> {
        let prompt = std::mem::take(&mut self.echo[index]);
        (!prompt.is_empty()).then(|| json!({"index": index, "text": prompt, "logprobs": null, "finish_reason": null}))
    }

    fn more(&mut self, index: usize, delta: Delta) -> Vec<Value> {
        if delta.events.is_empty() && self.tokenizer.is_none() {
            return Vec::new();
        }
        let mut piece = Reply { tokens: delta.tokens, ..Reply::default() };
        piece.extend(delta.events);
        vec![self.choice(index, &piece, &piece.content, None)]
    }

    fn end(&mut self, index: usize, reason: Reason) -> Value {
        json!({"index": index, "text": "", "logprobs": null, "finish_reason": reason_name(reason)})
    }
}

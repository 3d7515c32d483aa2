//! Choices as the completions endpoint writes them.

use crate::answer::{Shape, reason_name};
use crate::logprobs;
use crate::text::Delta;
use lily_chat::Tokenizer;
use lily_engine::FinishReason;
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

    fn choice(&mut self, index: usize, delta: &Delta, text: &str, reason: Option<FinishReason>) -> Value {
        let logprobs = match &self.tokenizer {
            Some(tokenizer) => logprobs::completion(tokenizer, &delta.tokens, self.offsets[index], &delta.content),
            None => Value::Null,
        };
        self.offsets[index] += delta.content.chars().count();
        json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason.map(reason_name)})
    }
}

impl Shape for CompletionShape {
    fn whole(&mut self, index: usize, text: Delta, reason: FinishReason) -> Value {
        let whole = std::mem::take(&mut self.echo[index]) + &text.content;
        self.choice(index, &text, &whole, Some(reason))
    }

    fn opening(&mut self, index: usize) -> Option<Value> {
        let prompt = std::mem::take(&mut self.echo[index]);
        (!prompt.is_empty()).then(|| json!({"index": index, "text": prompt, "logprobs": null, "finish_reason": null}))
    }

    fn more(&mut self, index: usize, delta: Delta) -> Vec<Value> {
        if !delta.has_text() && self.tokenizer.is_none() {
            return Vec::new();
        }
        vec![self.choice(index, &delta, &delta.content, None)]
    }

    fn end(&mut self, index: usize, reason: FinishReason) -> Value {
        json!({"index": index, "text": "", "logprobs": null, "finish_reason": reason_name(reason)})
    }
}

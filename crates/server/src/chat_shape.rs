//! Choices as the chat endpoint writes them.

use crate::answer::{Shape, reason_name};
use crate::logprobs;
use crate::text::Delta;
use lily_backend::Sample;
use lily_chat::Tokenizer;
use lily_engine::FinishReason;
use serde_json::{Map, Value, json};
use std::sync::Arc;

pub(crate) struct ChatShape {
    /// There if log-probabilities are wanted.
    tokenizer: Option<Arc<Tokenizer>>,
}

impl ChatShape {
    /// With the tokenizer if log-probabilities are wanted.
    pub(crate) fn new(tokenizer: Option<Arc<Tokenizer>>) -> Self {
        Self { tokenizer }
    }

    fn logprobs(&self, tokens: &[Sample]) -> Value {
        self.tokenizer.as_ref().map_or(Value::Null, |tokenizer| logprobs::chat(tokenizer, tokens))
    }
}

fn chunk(index: usize, delta: Value, logprobs: Value, reason: Option<FinishReason>) -> Value {
    json!({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason.map(reason_name)})
}

impl Shape for ChatShape {
    fn whole(&mut self, index: usize, text: Delta, reason: FinishReason) -> Value {
        let logprobs = self.logprobs(&text.tokens);
        let mut message = Map::new();
        message.insert("role".into(), "assistant".into());
        message.insert("content".into(), text.content.into());
        if !text.reasoning.is_empty() {
            message.insert("reasoning_content".into(), text.reasoning.into());
        }
        message.insert("refusal".into(), Value::Null);
        json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason_name(reason)})
    }

    fn opening(&mut self, index: usize) -> Option<Value> {
        Some(chunk(index, json!({"role": "assistant", "content": ""}), Value::Null, None))
    }

    /// Reasoning and content go in chunks of their own: many clients look at one of them only. The log-probabilities go
    /// with the last.
    fn more(&mut self, index: usize, delta: Delta) -> Vec<Value> {
        let mut logprobs = self.logprobs(&delta.tokens);
        let mut deltas = Vec::with_capacity(2);
        if !delta.reasoning.is_empty() {
            deltas.push(json!({"reasoning_content": delta.reasoning}));
        }
        if !delta.content.is_empty() {
            deltas.push(json!({"content": delta.content}));
        }
        if deltas.is_empty() && !logprobs.is_null() {
            deltas.push(json!({}));
        }
        let last = deltas.len().saturating_sub(1);
        let own = |place: usize, logprobs: &mut Value| if place == last { logprobs.take() } else { Value::Null };
        deltas
            .into_iter()
            .enumerate()
            .map(|(place, delta)| chunk(index, delta, own(place, &mut logprobs), None))
            .collect()
    }

    fn end(&mut self, index: usize, reason: FinishReason) -> Value {
        chunk(index, json!({}), Value::Null, Some(reason))
    }
}

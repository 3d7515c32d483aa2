//! Choices as the chat endpoint writes them.

use crate::answer::{Shape, reason_name};
use crate::generate::Reason;
use crate::logprobs;
use crate::replay::Call;
use crate::reply::Reply;
use crate::text::Delta;
use lily_backend::Sample;
use lily_chat::{ReplyEvent, Tokenizer};
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

fn chunk(index: usize, delta: Value, logprobs: Value, reason: Option<Reason>) -> Value {
    json!({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason.map(reason_name)})
}

/// A call in a message.
fn call(call: Call) -> Value {
    json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
}

/// The delta that tells of an event, if one is needed. Reasoning goes by both names that clients know it by.
fn event(event: ReplyEvent) -> Option<Value> {
    Some(match event {
        ReplyEvent::Reasoning(text) => json!({"reasoning_content": text, "reasoning": text}),
        ReplyEvent::Content(text) => json!({"content": text}),
        ReplyEvent::CallBegin { index, id, name } => {
            let mut begun = call(Call { id, name, arguments: String::new() });
            begun["index"] = index.into();
            json!({"tool_calls": [begun]})
        }
        ReplyEvent::CallArguments { index, json } => {
            json!({"tool_calls": [{"index": index, "function": {"arguments": json}}]})
        }
        ReplyEvent::CallEnd { .. } => return None,
    })
}

impl Shape for ChatShape {
    fn whole(&mut self, index: usize, reply: Reply, reason: Reason) -> Value {
        let logprobs = self.logprobs(&reply.tokens);
        let mut message = Map::new();
        message.insert("role".into(), "assistant".into());
        let silent = reply.content.is_empty() && !reply.calls.is_empty();
        message.insert("content".into(), if silent { Value::Null } else { reply.content.into() });
        if !reply.reasoning.is_empty() {
            message.insert("reasoning_content".into(), reply.reasoning.as_str().into());
            message.insert("reasoning".into(), reply.reasoning.into());
        }
        if !reply.calls.is_empty() {
            message.insert("tool_calls".into(), reply.calls.into_iter().map(call).collect());
        }
        message.insert("refusal".into(), Value::Null);
        json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason_name(reason)})
    }

    fn opening(&mut self, index: usize) -> Option<Value> {
        Some(chunk(index, json!({"role": "assistant", "content": ""}), Value::Null, None))
    }

    /// Reasoning, content and calls go in chunks of their own: many clients look at one of them only. The
    /// log-probabilities go with the last.
    fn more(&mut self, index: usize, delta: Delta) -> Vec<Value> {
        let mut logprobs = self.logprobs(&delta.tokens);
        let mut deltas: Vec<Value> = delta.events.into_iter().filter_map(event).collect();
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

    fn end(&mut self, index: usize, reason: Reason) -> Value {
        chunk(index, json!({}), Value::Null, Some(reason))
    }
}

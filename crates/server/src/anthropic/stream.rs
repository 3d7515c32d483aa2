//! Server-sent events of one message.
//!
//! The message begins once it is known how much of the prompt was cached, so that its usage is right from the first
//! event on; until then comments keep the connection alive, afterwards pings.

use super::blocks::{BlockEvents, Ending};
use super::{Message, error, written};
use crate::generate::{End, Reason};
use crate::stream::{Writer, named_event};
use crate::text::Delta;
use crate::usage::Usage;
use axum::body::Bytes;
use serde_json::{Value, json};

/// What writes a message as events.
pub(super) struct MessageEvents {
    message: Message,
    blocks: BlockEvents,
    /// Whether `message_start` has been written.
    begun: bool,
}

impl MessageEvents {
    pub(super) fn new(message: Message) -> Self {
        Self { blocks: BlockEvents::new(message.thinking_shown), message, begun: false }
    }
}

impl Writer for MessageEvents {
    fn open(&mut self, _choices: usize) -> Vec<Bytes> {
        Vec::new()
    }

    fn started(&mut self, cached_tokens: usize) -> Vec<Bytes> {
        self.begun = true;
        let usage = Usage { prompt_tokens: self.message.prompt_tokens, cached_tokens, ..Usage::default() };
        let message = self.message.with(Vec::new(), &Ending::default(), written(usage));
        vec![event(&json!({"type": "message_start", "message": message}))]
    }

    fn delta(&mut self, _index: usize, delta: Delta) -> Vec<Bytes> {
        let events = delta.events.into_iter().flat_map(|event| self.blocks.take(event));
        events.map(|data| event(&data)).collect()
    }

    fn finished(&mut self, _index: usize, reason: Reason, usage: Usage, stop_string: Option<usize>) -> Vec<Bytes> {
        let mut events = Vec::new();
        self.blocks.close(&mut events);
        let Ending { reason: stop_reason, stop_sequence } = self.message.ending(reason, stop_string);
        events.push(json!({
            "type": "message_delta",
            "delta": {"stop_reason": stop_reason, "stop_sequence": stop_sequence},
            "usage": written(usage),
        }));
        events.push(json!({"type": "message_stop"}));
        self.message.answer.ended(End::Stop.and(reason));
        events.iter().map(event).collect()
    }

    fn failed(&mut self, message: String) -> Vec<Bytes> {
        vec![event(&error::body(&self.message.answer.failure(message)))]
    }

    fn close(&mut self) -> Vec<Bytes> {
        Vec::new()
    }

    /// Every silence is broken by an event, as Anthropic's own.
    fn comments_in_a_row(&self) -> usize {
        0
    }

    fn sign_of_life(&mut self) -> Option<Bytes> {
        self.begun.then(|| event(&json!({"type": "ping"})))
    }
}

/// An event, named as its `type` is.
fn event(data: &Value) -> Bytes {
    named_event(data["type"].as_str().unwrap_or_default(), data)
}

//! Server-sent events of one message.
//!
//! The message begins once it is known how much of the prompt was cached, so that its usage is right from the first
//! event on; until then comments keep the connection alive, afterwards pings.

use super::blocks::{BlockEvents, Ending};
use super::{Message, error, written};
use crate::generate::{End, Generation, Update};
use crate::stream::{KEEP_ALIVE, response};
use crate::usage::Usage;
use axum::body::{Body, Bytes};
use axum::response::Response;
use futures_util::stream::{self, BoxStream, StreamExt};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::convert::Infallible;
use tokio::time::{Instant, timeout_at};

/// The response that streams the message. Its body owns the generation: when the client goes, it is dropped and ends.
pub(super) fn respond(generation: Generation, message: Message) -> Response {
    let events = Events {
        updates: generation.updates().boxed(),
        blocks: BlockEvents::new(message.thinking_shown),
        message,
        begun: false,
        ready: VecDeque::new(),
        prefill: None,
        silent_until: Instant::now() + KEEP_ALIVE,
        ended: false,
    };
    response(Body::from_stream(stream::unfold(events, |mut events| async {
        let bytes = events.next().await?;
        Some((Ok::<_, Infallible>(bytes), events))
    })))
}

struct Events {
    updates: BoxStream<'static, Update>,
    blocks: BlockEvents,
    message: Message,
    /// Whether `message_start` has been written.
    begun: bool,
    ready: VecDeque<Bytes>,
    /// How far the prompt is, as far as it was told.
    prefill: Option<(usize, usize)>,
    /// When something must be written, if only a ping.
    silent_until: Instant,
    ended: bool,
}

impl Events {
    /// The next bytes to write; whole events only.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                self.silent_until = Instant::now() + KEEP_ALIVE;
                return Some(bytes);
            }
            if self.ended {
                return None;
            }
            match timeout_at(self.silent_until, self.updates.next()).await {
                Err(_elapsed) => self.ready.push_back(self.sign_of_life()),
                Ok(Some(update)) => self.take(update),
                Ok(None) => self.ended = true,
            }
        }
    }

    fn take(&mut self, update: Update) {
        match update {
            Update::Started { cached_tokens } => self.begin(cached_tokens),
            // The timer, not each chunk of a prompt, decides when to tell: it goes off at once if it is due.
            Update::Prefill { done, total } => {
                self.prefill = Some((done, total));
                if Instant::now() >= self.silent_until {
                    self.ready.push_back(self.sign_of_life());
                }
            }
            Update::Delta(delta) => {
                self.prefill = None;
                for event in delta.events {
                    let events = self.blocks.take(event);
                    self.write(&events);
                }
            }
            Update::Finished { reason, usage, stop_string } => {
                let mut events = Vec::new();
                self.blocks.close(&mut events);
                let Ending { reason: stop_reason, stop_sequence } = self.message.ending(reason, stop_string);
                events.push(json!({
                    "type": "message_delta",
                    "delta": {"stop_reason": stop_reason, "stop_sequence": stop_sequence},
                    "usage": written(usage),
                }));
                events.push(json!({"type": "message_stop"}));
                self.write(&events);
                self.message.answer.ended(End::Stop.and(reason));
                self.ended = true;
            }
            Update::Failed(why) => {
                let failure = self.message.answer.failure(why);
                self.write(&[error::body(&failure)]);
                self.ended = true;
            }
        }
    }

    fn begin(&mut self, cached_tokens: usize) {
        let usage = Usage { prompt_tokens: self.message.prompt_tokens, cached_tokens, ..Usage::default() };
        let message = self.message.with(Vec::new(), &Ending::default(), written(usage));
        self.write(&[json!({"type": "message_start", "message": message})]);
        self.begun = true;
    }

    fn write(&mut self, events: &[Value]) {
        self.ready.extend(events.iter().map(event));
    }

    /// How far the prompt is for those who read along, in a line that clients skip, and a ping once they know one.
    fn sign_of_life(&self) -> Bytes {
        let progress = match self.prefill {
            Some((done, total)) => format!(": prefill {done}/{total}\n"),
            None => ": waiting\n".into(),
        };
        let ping = if self.begun { "event: ping\ndata: {\"type\":\"ping\"}\n" } else { "" };
        format!("{progress}{ping}\n").into()
    }
}

/// An event, named as its `type` is.
fn event(data: &Value) -> Bytes {
    let name = data["type"].as_str().unwrap_or_default();
    format!("event: {name}\ndata: {data}\n\n").into()
}

//! A response in the making: its object, its items, its events; whole or as a stream, which says the same.

use crate::answer::Answer;
use crate::error::ApiError;
use crate::generate::{End, Generation, NO_REASON, Reason, Update};
use crate::responses::output::{Event, Output};
use crate::responses::store::{ResponseStore, Stored};
use crate::shared::now;
use crate::stream::{Writer, named_event};
use crate::text::Delta;
use crate::usage::Usage;
use axum::Json;
use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// What makes a response of a reply.
pub(crate) struct ResponseReply {
    id: String,
    /// The response as it is at its beginning.
    object: Value,
    output: Output,
    /// Tells how it ended.
    answer: Answer,
    keeping: Option<Keeping>,
    /// Events so far.
    events: u64,
}

/// For a response that is to be kept.
pub(crate) struct Keeping {
    pub(crate) store: Arc<ResponseStore>,
    pub(crate) input: Vec<Value>,
    pub(crate) previous: Option<String>,
}

impl ResponseReply {
    /// `object`: the response as it is at its beginning.
    pub(crate) fn new(id: String, object: Value, output: Output, answer: Answer, keeping: Option<Keeping>) -> Self {
        Self { id, object, output, answer, keeping, events: 0 }
    }

    /// The answer in one piece.
    pub(crate) async fn whole(mut self, reply: Generation) -> Result<Response, ApiError> {
        let mut updates = Box::pin(reply.updates());
        while let Some(update) = updates.next().await {
            match update {
                Update::Started { .. } | Update::Prefill { .. } => {}
                Update::Delta(delta) => {
                    self.push(delta);
                }
                Update::Finished { reason, usage, .. } => {
                    self.output.finish(reason);
                    return Ok(Json(self.end(reason, usage)).into_response());
                }
                Update::Failed(message) => return Err(self.answer.failure(message)),
            }
        }
        Err(self.answer.failure(NO_REASON.into()))
    }

    fn push(&mut self, delta: Delta) -> Vec<Event> {
        delta.events.into_iter().flat_map(|event| self.output.push(event)).collect()
    }

    /// The response as it is now.
    fn now(&self, changes: Value) -> Value {
        let mut object = self.object.clone();
        object["output"] = self.output.items().into();
        for (name, value) in changes.as_object().into_iter().flatten() {
            object[name.as_str()] = value.clone();
        }
        object
    }

    /// The response at its end, which is kept if it is to be.
    fn end(&mut self, reason: Reason, usage: Usage) -> Value {
        self.answer.ended(End::Stop.and(reason));
        let mut changes = json!({"status": "completed", "completed_at": now(), "usage": usage_json(usage)});
        if reason == Reason::Length {
            changes["status"] = "incomplete".into();
            changes["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        let response = self.now(changes);
        if let Some(Keeping { store, input, previous }) = self.keeping.take() {
            store.insert(&self.id, Stored { response: response.clone(), input, previous });
        }
        response
    }

    fn write(&mut self, event: Event) -> Bytes {
        let mut data = Map::new();
        data.insert("type".into(), event.name.into());
        data.insert("sequence_number".into(), self.events.into());
        self.events += 1;
        if let Value::Object(fields) = event.fields {
            data.extend(fields);
        }
        named_event(event.name, &data.into())
    }

    fn write_all(&mut self, events: Vec<Event>) -> Vec<Bytes> {
        events.into_iter().map(|event| self.write(event)).collect()
    }
}

/// An event that holds the response.
fn whole_event(name: &'static str, response: Value) -> Event {
    Event { name, fields: json!({"response": response}) }
}

impl Writer for ResponseReply {
    fn open(&mut self, _choices: usize) -> Vec<Bytes> {
        let response = self.now(Value::Null);
        let events = ["response.created", "response.in_progress"].map(|name| whole_event(name, response.clone()));
        self.write_all(events.into())
    }

    fn delta(&mut self, _index: usize, delta: Delta) -> Vec<Bytes> {
        let events = self.push(delta);
        self.write_all(events)
    }

    fn finished(&mut self, _index: usize, reason: Reason, usage: Usage, _: Option<usize>) -> Vec<Bytes> {
        let mut events = self.output.finish(reason);
        let name = if reason == Reason::Length { "response.incomplete" } else { "response.completed" };
        events.push(whole_event(name, self.end(reason, usage)));
        self.write_all(events)
    }

    fn failed(&mut self, message: String) -> Vec<Bytes> {
        // A stream's failure has a shape of its own here; the log is to know of it all the same.
        self.answer.failure(message.clone());
        let error = json!({"code": "server_error", "message": message});
        let failed = whole_event("response.failed", self.now(json!({"status": "failed", "error": error})));
        vec![self.write(failed)]
    }

    fn close(&mut self) -> Vec<Bytes> {
        Vec::new()
    }

    fn sign_of_life(&mut self) -> Option<Bytes> {
        let response = self.now(Value::Null);
        Some(self.write(whole_event("response.in_progress", response)))
    }
}

fn usage_json(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        // Writing to the prefix cache costs nothing extra here.
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    })
}

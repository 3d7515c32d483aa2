//! The answer to a request, as one JSON or as a stream: what the endpoints have in common.

use crate::chunks::Chunks;
use crate::error::ApiError;
use crate::generate::{Counts, End, Generation, Reason};
use crate::params::Parameters;
use crate::reply::Reply;
use crate::shared::{Shared, now};
use crate::stream;
use crate::text::Delta;
use crate::usage::Usage;
use axum::Json;
use axum::response::{IntoResponse, Response};
use futures_util::future::try_join_all;
use lily_engine::Engine;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// What surrounds the choices, in the answer or in each chunk of it.
pub(crate) struct Answer {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    engine: Engine,
    counts: Arc<Counts>,
}

impl Answer {
    /// A new answer: `prefix` begins its id, `object` names its kind.
    pub(crate) fn new(shared: &Shared, prefix: &str, object: &'static str, counts: Arc<Counts>) -> Self {
        Self {
            id: shared.id(prefix),
            object,
            created: now(),
            model: shared.config.model_name.clone(),
            engine: shared.engine.clone(),
            counts,
        }
    }

    /// The answer's id.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The name of the model that answers.
    pub(crate) fn model(&self) -> &str {
        &self.model
    }

    /// What a client is told when the engine gave up on its reply. Ends the answer.
    pub(crate) fn failure(&self, message: String) -> ApiError {
        if self.counts.end.get() == Some(&End::TimedOut) {
            ApiError::timed_out(message)
        } else if self.engine.stats().accepting {
            self.ended(End::Failed);
            ApiError::internal(message)
        } else {
            self.ended(End::Shutdown);
            ApiError::unavailable(message)
        }
    }

    /// Tells the log how it ended. The first that is told counts.
    pub(crate) fn ended(&self, end: End) {
        self.counts.end.get_or_init(|| end);
    }

    /// Tokens of its prompt that were cached, and the time since the request.
    pub(crate) fn cached_and_elapsed(&self) -> (usize, Duration) {
        (self.counts.cached_tokens(), self.counts.begun.elapsed())
    }

    pub(crate) fn with(&self, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": self.object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": concat!("lily-", env!("CARGO_PKG_VERSION")),
            "choices": choices,
        })
    }
}

/// How an endpoint writes a choice.
pub(crate) trait Shape: Send + 'static {
    /// The whole of choice `index`.
    fn whole(&mut self, index: usize, reply: Reply, reason: Reason) -> Value;
    /// What opens choice `index` in a stream, before its first token.
    fn opening(&mut self, index: usize) -> Option<Value>;
    /// More of choice `index` in a stream, in the order of the chunks that bear it.
    fn more(&mut self, index: usize, delta: Delta) -> Vec<Value>;
    /// The end of choice `index` in a stream.
    fn end(&mut self, index: usize, reason: Reason) -> Value;
}

/// Runs the choices and answers with them.
pub(crate) async fn answer(
    choices: Vec<Generation>,
    mut shape: impl Shape,
    answer: Answer,
    parameters: &Parameters,
) -> Result<Response, ApiError> {
    if parameters.stream {
        return Ok(stream::respond(choices, Chunks::new(shape, answer, parameters)));
    }
    let replies = try_join_all(choices.into_iter().map(Generation::complete)).await;
    let replies = replies.map_err(|message| answer.failure(message))?;
    answer.ended(replies.iter().fold(End::Stop, |end, &(_, reason, _)| end.and(reason)));
    let mut usage = Usage::default();
    let mut written = Vec::with_capacity(replies.len());
    for (index, (text, reason, spent)) in replies.into_iter().enumerate() {
        usage += spent;
        written.push(shape.whole(index, text, reason));
    }
    let mut body = answer.with(written);
    body["usage"] = usage.to_json();
    Ok(Json(body).into_response())
}

/// OpenAI's name of a reason.
pub(crate) fn reason_name(reason: Reason) -> &'static str {
    match reason {
        Reason::Stop => "stop",
        Reason::Length => "length",
        Reason::ToolCalls => "tool_calls",
    }
}

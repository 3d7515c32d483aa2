//! `POST /v1/responses`, OpenAI's Responses API, and the responses that are kept.
//!
//! ```text
//! request ─► items, functions ─► conversation ─► submit ─► generate ─► output ─► reply ─► stream or one JSON
//!    ▲                                                                             │
//!    └────────────── previous_response_id ─────────────── store ◄──────────────────┘
//! ```
//!
//! Where OpenAI leaves it open, or this server departs from it:
//! - What the model thinks is a reasoning item's content (`response.reasoning_text.delta`); where the request asks for
//!   a `reasoning.summary`, it is the summary, whole.
//! - What the model thought in earlier turns stays in the prompt where the client sends it back or it is kept here, unless
//!   `reasoning.context` is "current_turn" or `preserve_thinking` false: so a conversation only grows at its end, and what was
//!   read need not be read again.
//! - A response that is kept has nothing but this process's memory to be in, and makes room for newer ones.
//!   `store: false` keeps none.
//! - A function call that was cut is never announced as done, and stands in the response as "incomplete".
//! - Parameters of the chat endpoint that are about sampling, stopping and the template are taken here, too.
//! - `truncation: "auto"` truncates nothing: a conversation that the context cannot hold is refused.
//! - See [`functions`] for what becomes of which tools, [`items`] for input items.

mod custom;
mod functions;
mod items;
mod listing;
mod object;
mod output;
mod reply;
mod request;
mod store;

use crate::body;
use crate::error::ApiError;
use crate::generate::Counts;
use crate::shared::Shared;
use crate::stream;
use crate::submit::submit;
use axum::extract::{Path, Request, State};
use axum::http::Uri;
use axum::response::Response;
use axum::{Extension, Json};
use serde_json::{Value, json};
use std::sync::Arc;

pub(crate) use request::read;
pub(crate) use store::ResponseStore;

/// The id of the response whose items' ids have `number` in common.
fn response_id(number: &str) -> String {
    format!("resp_{number}")
}

pub(crate) async fn create(
    State(shared): State<Arc<Shared>>,
    Extension(counts): Extension<Arc<Counts>>,
    request: Request,
) -> Result<Response, ApiError> {
    let for_reply = Arc::clone(&counts);
    let (job, reply) =
        body::read_with(&shared, request, |request, shared| request::read(request, shared, for_reply)).await?;
    let mut choices = submit(&shared, &job, "input", &counts)?;
    if job.parameters.stream {
        return Ok(stream::respond(choices, reply));
    }
    let choice = choices.pop().ok_or_else(|| ApiError::internal("no reply was begun"))?;
    reply.whole(choice).await
}

pub(crate) async fn get(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Json<Value>, ApiError> {
    if uri.query().is_some_and(|query| query.split('&').any(|pair| pair == "stream=true")) {
        let message = "'stream' is not supported here: a response that is kept has ended, and is given whole.";
        return Err(ApiError::parameter("stream", message));
    }
    let stored = shared.responses.find(&id).ok_or_else(|| ApiError::unknown_response(&id))?;
    Ok(Json(stored.response.clone()))
}

pub(crate) async fn delete(State(shared): State<Arc<Shared>>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    if shared.responses.remove(&id) {
        Ok(Json(json!({"id": id, "object": "response", "deleted": true})))
    } else {
        Err(ApiError::unknown_response(&id))
    }
}

/// All that the response was given, the conversation before it among that.
pub(crate) async fn input_items(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Json<Value>, ApiError> {
    let conversation = shared.responses.conversation(&id).ok_or_else(|| ApiError::unknown_response(&id))?;
    let last = conversation.len() - 1;
    let items = conversation.iter().enumerate().flat_map(|(index, stored)| {
        let output = if index < last { stored.output() } else { &[] };
        stored.input.iter().chain(output).cloned()
    });
    listing::page(items.collect(), uri.query()).map(Json)
}

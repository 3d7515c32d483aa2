//! Anthropic's Messages API: `POST /v1/messages` and `/v1/messages/count_tokens`.
//!
//! A request is read into the same [`Conversation`](crate::conversation::Conversation) and parameters as a chat
//! completion's; what is particular here is the wire form on both sides.
//!
//! Where Anthropic's documentation leaves it open, or the model needs it otherwise:
//! - `model` may be any string; `max_tokens` may be missing or null, then the context is the bound. The parameters of chat
//!   completions that Anthropic does not have (`seed`, `min_p`, penalties, `chat_template_kwargs`, …) are taken as well, and
//!   a `temperature` of up to 2, as everywhere here.
//! - The model thinks only if `thinking` asks for it, as Anthropic's does. Its earlier reasoning stays in the prompt as
//!   far as the client sends it back, unless `preserve_thinking` is false: so a conversation only grows at its end, and
//!   all of it that was read before need not be read again. Signatures are there because clients expect them; nobody
//!   checks them. A system message amid the conversation may change `output_config.effort`; the last word holds.
//! - `cache_control` says nothing new: every prompt is cached. What was found in the cache is
//!   `cache_read_input_tokens`; `input_tokens` are the rest, and `cache_creation_input_tokens` is 0, since nothing is
//!   charged for being kept.
//! - A block of the system prompt that begins with `x-anthropic-billing-header:` is for Anthropic's accounts, changes
//!   with every request, and is left out.
//! - Tools that Anthropic's servers run (web search and the like) are left out; a request that has no others is refused.
//! - Tools with `defer_loading` are shown where the client's own search or a system message brings them up, not at the
//!   prompt's head; those that nothing could bring up are shown there. Tools that a system message adds, defines or withdraws
//!   (`tool_addition`, `tool_removal`) are told of in its place. The head stays, and with it what was read.
//! - An assistant's message at the end is the beginning of the reply; it cannot hold calls. The model does not think then.
//! - A call that was cut is in a whole message left out. In a stream its block ends, as Anthropic's own do, and its JSON
//!   stays open: who parses it as a whole cannot run it, and who takes what can be read of it, as some SDKs do, is told by
//!   the `stop_reason` "max_tokens" or "stop_sequence" that it is not all.
//! - Images are refused, but for those in a tool's result: there a remark takes their place, so that a session goes on.

mod blocks;
mod changes;
mod error;
mod messages;
mod request;
mod stream;
mod system;
mod thinking;
mod tools;

use crate::answer::Answer;
use crate::body;
use crate::error::ApiError;
use crate::generate::{Counts, End, Generation, NO_REASON, Reason, Update};
use crate::shared::Shared;
use crate::stream::respond;
use crate::submit::submit;
use crate::usage::Usage;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use blocks::{Content, Ending};
use futures_util::StreamExt;
use serde_json::{Value, json};
use std::pin::pin;
use std::sync::Arc;
use stream::MessageEvents;

pub(crate) use error::{asks, shape};
pub(crate) use request::read;

/// `POST /v1/messages`.
pub(crate) async fn create(
    State(shared): State<Arc<Shared>>,
    Extension(counts): Extension<Arc<Counts>>,
    request: Request,
) -> Result<Response, ApiError> {
    let asked = body::read_with(&shared, request, request::read).await?;
    let generation = submit(&shared, &asked.job, "messages", &counts)?.pop();
    let generation = generation.ok_or_else(|| ApiError::internal("The request has no reply."))?;
    let message = Message {
        prompt_tokens: asked.job.prompts.iter().map(Vec::len).sum(),
        stop_sequences: asked.job.parameters.stop,
        thinking_shown: asked.thinking_shown,
        answer: Answer::new(&shared, "msg_", "message", counts),
    };
    if asked.job.parameters.stream {
        return Ok(respond(vec![generation], MessageEvents::new(message)));
    }
    Ok(Json(message.whole(generation).await?).into_response())
}

/// `POST /v1/messages/count_tokens`: what the prompt would be, however long.
pub(crate) async fn count_tokens(State(shared): State<Arc<Shared>>, request: Request) -> Result<Json<Value>, ApiError> {
    let count = body::read_with(&shared, request, request::count).await?;
    Ok(Json(json!({"input_tokens": count})))
}

/// A message of the model's in the making: what is known of it before its first token.
struct Message {
    answer: Answer,
    prompt_tokens: usize,
    /// As they were asked for.
    stop_sequences: Vec<String>,
    /// Whether the text of the reasoning goes out.
    thinking_shown: bool,
}

impl Message {
    /// The message with these blocks and this end.
    fn with(&self, content: Vec<Value>, ending: &Ending, usage: Value) -> Value {
        json!({
            "id": self.answer.id(),
            "type": "message",
            "role": "assistant",
            "model": self.answer.model(),
            "content": content,
            "stop_reason": ending.reason,
            "stop_sequence": ending.stop_sequence,
            "usage": usage,
        })
    }

    /// How it ended, in Anthropic's words.
    fn ending(&self, reason: Reason, stop_string: Option<usize>) -> Ending {
        let stop_sequence = stop_string.and_then(|index| self.stop_sequences.get(index)).cloned();
        let reason = match reason {
            Reason::ToolCalls => "tool_use",
            Reason::Length => "max_tokens",
            Reason::Stop if stop_sequence.is_some() => "stop_sequence",
            Reason::Stop => "end_turn",
        };
        Ending { reason: Some(reason), stop_sequence: stop_sequence.filter(|_| reason == "stop_sequence") }
    }

    /// Waits for the whole of it.
    async fn whole(&self, generation: Generation) -> Result<Value, ApiError> {
        let mut content = Content::new(self.thinking_shown);
        let mut updates = pin!(generation.updates());
        while let Some(update) = updates.next().await {
            match update {
                Update::Started { .. } | Update::Prefill { .. } => {}
                Update::Delta(delta) => delta.events.into_iter().for_each(|event| content.take(event)),
                Update::Finished { reason, usage, stop_string } => {
                    self.answer.ended(End::Stop.and(reason));
                    return Ok(self.with(content.into_blocks(), &self.ending(reason, stop_string), written(usage)));
                }
                Update::Failed(message) => return Err(self.answer.failure(message)),
            }
        }
        Err(self.answer.failure(NO_REASON.into()))
    }
}

/// Usage in Anthropic's words: what was cached is no part of the input.
fn written(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens.saturating_sub(usage.cached_tokens),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    })
}

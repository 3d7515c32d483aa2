//! `POST /v1/chat/completions`.

use crate::answer::{Answer, answer};
use crate::body;
use crate::chat_shape::ChatShape;
use crate::conversation::Conversation;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generate::Counts;
use crate::messages::read_messages;
use crate::params::{MAX_TOP_LOGPROBS, Parameters};
use crate::shared::Shared;
use crate::structured::Structured;
use crate::submit::{Job, submit};
use crate::thinking::template_kwargs;
use crate::tools::Tools;
use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::Value;
use std::sync::Arc;

pub(crate) async fn handle(
    State(shared): State<Arc<Shared>>,
    Extension(counts): Extension<Arc<Counts>>,
    request: Request,
) -> Result<Response, ApiError> {
    let job = body::read_with(&shared, request, read).await?;
    let choices = submit(&shared, &job, "messages", &counts)?;
    let tokenizer = job.top_logprobs.map(|_| Arc::clone(&shared.tokenizer));
    let kind = if job.parameters.stream { "chat.completion.chunk" } else { "chat.completion" };
    answer(choices, ChatShape::new(tokenizer), Answer::new(&shared, "chatcmpl-", kind, counts), &job.parameters).await
}

/// From the JSON to the prompt's tokens.
pub(crate) fn read(mut request: Value, shared: &Shared) -> Result<Job, ApiError> {
    // The messages can be megabytes: they are moved out, not copied.
    let messages = request.as_object_mut().and_then(|request| request.insert("messages".into(), Value::Null));
    let fields = Fields::of(&request, "")?;
    let parameters = Parameters::read(&fields, &shared.limits)?;
    let top_logprobs = top_logprobs(&fields)?;
    let (prompt, reading) = conversation(&fields, messages)?.into_prompt(shared)?;
    Ok(Job { prompts: vec![prompt], parameters, top_logprobs, reading })
}

/// The conversation of a request, whose `messages` have been taken out of it.
pub(crate) fn conversation(request: &Fields<'_>, messages: Option<Value>) -> Result<Conversation, ApiError> {
    Ok(Conversation {
        messages: match messages {
            None | Some(Value::Null) => return Err(ApiError::parameter("messages", "'messages' is missing.")),
            Some(messages) => read_messages(messages)?,
        },
        tools: Tools::read(request)?,
        format: Structured::read(request)?,
        kwargs: template_kwargs(request)?,
        id_prefix: "call_",
    })
}

fn top_logprobs(request: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    let wanted = request.boolean("logprobs")?.unwrap_or(false);
    match request.integer("top_logprobs", 0..=MAX_TOP_LOGPROBS)? {
        Some(1..) if !wanted => Err(ApiError::parameter("top_logprobs", "'top_logprobs' needs 'logprobs' to be true.")),
        count => Ok(wanted.then_some(count.unwrap_or(0) as usize)),
    }
}

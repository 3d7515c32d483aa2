//! From the JSON of a request to the prompt's tokens.

use super::changes::Changes;
use super::messages::Messages;
use super::thinking::Thinking;
use super::{system, tools};
use crate::conversation::Conversation;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::params::{Limits, Parameters, stop_strings};
use crate::shared::Shared;
use crate::structured::Structured;
use crate::submit::{Job, check_bytes, check_length};
use crate::tools::Choice;
use lily_chat::Guard;
use serde_json::Value;

/// What is asked for.
pub(crate) struct Asked {
    pub(crate) job: Job,
    /// Whether the text of the reasoning goes out.
    pub(super) thinking_shown: bool,
}

/// Reads a request for a message.
pub(crate) fn read(mut request: Value, shared: &Shared) -> Result<Asked, ApiError> {
    let messages = take_messages(&mut request);
    let fields = Fields::of(&request, "")?;
    let mut parameters = Parameters::read(&fields, &shared.limits)?;
    // Unlike `stop`, this cannot be a string alone.
    fields.array("stop_sequences")?;
    parameters.stop = stop_strings(&fields, "stop_sequences")?;
    // A message is one.
    parameters.choices = 1;
    let Opening { conversation, prefill, thinking_shown } = Opening::read(&fields, messages)?;
    let (mut prompt, reading) = conversation.into_prompt(shared)?;
    begin_reply(&mut prompt, prefill, shared, &shared.limits)?;
    let job = Job { prompts: vec![prompt], parameters, top_logprobs: None, reading };
    Ok(Asked { job, thinking_shown })
}

/// Counts the tokens that the prompt of such a request has.
pub(super) fn count(mut request: Value, shared: &Shared) -> Result<usize, ApiError> {
    let messages = take_messages(&mut request);
    let fields = Fields::of(&request, "")?;
    fields.string("model")?;
    let Opening { conversation, prefill, .. } = Opening::read(&fields, messages)?;
    let mut prompt = conversation.into_tokens(shared)?;
    begin_reply(&mut prompt, prefill, shared, &shared.limits.unbounded())?;
    Ok(prompt.len())
}

/// The messages can be megabytes: they are moved out, not copied.
fn take_messages(request: &mut Value) -> Option<Value> {
    request.as_object_mut()?.insert("messages".into(), Value::Null)
}

/// What both requests have.
struct Opening {
    conversation: Conversation,
    /// The beginning of the reply, if the client has written it.
    prefill: Option<String>,
    thinking_shown: bool,
}

impl Opening {
    fn read(request: &Fields<'_>, messages: Option<Value>) -> Result<Self, ApiError> {
        if request.array("mcp_servers")?.is_some_and(|servers| !servers.is_empty()) {
            let message = "'mcp_servers': this server connects to no others; let the client run the tools.";
            return Err(ApiError::parameter("mcp_servers", message));
        }
        let tools = tools::read(request, Changes::read(messages.as_ref())?)?;
        let Thinking { mut kwargs, shown: thinking_shown } = Thinking::read(request, messages.as_ref())?;
        let Messages { mut messages, prefill } = Messages::read(messages, &tools)?;
        if prefill.is_some() {
            if matches!(tools.choice, Choice::Required | Choice::Named(_)) {
                let message = "'tool_choice' makes the model begin with a call, but the last message begins its reply.";
                return Err(ApiError::parameter("tool_choice", message));
            }
            kwargs.insert("enable_thinking".into(), false.into());
        }
        if let Some(system) = system::read(request)? {
            messages.insert(0, system);
        }
        let format = format(request)?;
        if let Some(format) = format.as_ref().filter(|_| prefill.is_some()) {
            let message = format!("'{}' binds the whole reply, but the last message begins it.", format.path());
            return Err(ApiError::parameter(format.path(), message));
        }
        let conversation = Conversation { messages, tools, format, kwargs, id_prefix: "toolu_" };
        Ok(Self { conversation, prefill, thinking_shown })
    }
}

/// `output_config.format`, or `output_format` as it was called before, or what other servers call it.
fn format(request: &Fields<'_>) -> Result<Option<Structured>, ApiError> {
    let within = request.object("output_config")?.map(|output| output.object("format")).transpose()?.flatten();
    let format = if within.is_some() { within } else { request.object("output_format")? };
    let own = format.map(|format| Structured::response_format(&format, "schema")).transpose()?.flatten();
    Structured::beside(own, request)
}

/// Appends to the prompt what the client has written of the reply.
fn begin_reply(
    prompt: &mut Vec<u32>,
    prefill: Option<String>,
    shared: &Shared,
    limits: &Limits,
) -> Result<(), ApiError> {
    let Some(text) = prefill else { return Ok(()) };
    check_bytes(text.len(), limits, "messages")?;
    let guard = Guard::new(&shared.tokenizer);
    prompt.extend(guard.encode(&guard.text(&text)).map_err(|error| ApiError::internal(error.to_string()))?);
    check_length(prompt.len(), limits, "messages")
}

//! A request for a response: read, checked, made into the prompt's tokens.

use crate::answer::Answer;
use crate::conversation::Conversation;
use crate::error::ApiError;
use crate::fields::{self, Fields, quoted};
use crate::generate::Counts;
use crate::params::Parameters;
use crate::responses::functions::{self, Functions};
use crate::responses::items::Items;
use crate::responses::output::{Output, ReasoningForm};
use crate::responses::reply::{Keeping, ResponseReply};
use crate::responses::store::{Stored, bytes};
use crate::responses::{object, response_id};
use crate::shared::Shared;
use crate::structured::Structured;
use crate::submit::Job;
use crate::thinking::{effort_kwargs, template_kwargs};
use crate::tools::Tools;
use serde_json::{Map, Value};
use std::sync::Arc;

/// Pairs that `metadata` may hold, and characters of a name and of a value, as OpenAI has them.
const MOST_METADATA: (usize, usize, usize) = (16, 64, 512);

/// From the body to what runs and what answers.
pub(crate) fn read(mut request: Value, shared: &Shared, counts: Arc<Counts>) -> Result<(Job, ResponseReply), ApiError> {
    // The input can be megabytes: it is moved out, not copied.
    let input = request.as_object_mut().and_then(|request| request.insert("input".into(), Value::Null));
    let fields = Fields::of(&request, "")?;
    refuse_what_is_not_there(&fields)?;
    let mut parameters = Parameters::read(&fields, &shared.limits)?;
    if let Some(most) = fields.integer("max_output_tokens", 1..=i64::MAX)? {
        let room = shared.limits.max_context;
        parameters.max_tokens = Some(usize::try_from(most).unwrap_or(room).min(room));
    }
    check_metadata(&fields)?;
    let store = fields.boolean("store")?.unwrap_or(true);
    let format = format(&fields)?;
    let reasoning = fields.object("reasoning")?;
    let form = reasoning_form(reasoning.as_ref())?;
    let mut kwargs = kwargs(&fields, reasoning.as_ref())?;

    let previous = fields.string("previous_response_id")?;
    let earlier = match previous {
        Some(id) => {
            let conversation = shared.responses.conversation(id);
            conversation.ok_or_else(|| ApiError::unknown_previous_response(id).unlogged())?
        }
        None => Vec::new(),
    };
    let input = read_input(input, previous.is_some(), shared)?;
    let (messages, tools, functions) = conversation(&fields, &earlier, &input)?;
    // The template would take earlier turns' reasoning out at each question: all since the last one would be read again.
    // Without thinking a turn begins with an empty one. Where turns were thought over and their client does not send that
    // back, empty ones would teach the model not to think; of responses that are kept all is there that was thought.
    let thinks = kwargs.get("enable_thinking").map_or(shared.limits.defaults.thinking, |on| *on != Value::Bool(false));
    let are_whole = || !earlier.is_empty() || messages.iter().any(|message| message.get("reasoning_content").is_some());
    if !thinks || are_whole() {
        kwargs.entry("preserve_thinking").or_insert(true.into());
    }
    // Whoever knows the id can read the conversation.
    let number = shared.secret_id("");
    let id = response_id(&number);
    let object = object::begun(&fields, &id, &shared.config.model_name, &parameters, tools.parallel, store)?;

    let conversation = Conversation { messages, tools, format, kwargs, id_prefix: "call_" };
    let (prompt, reading) = conversation.into_prompt(shared).map_err(|error| error.renaming("messages", "input"))?;
    let job = Job { prompts: vec![prompt], parameters, top_logprobs: None, reading };

    let keeping = store.then(|| Keeping {
        store: Arc::clone(&shared.responses),
        input: object::with_ids(input, &number),
        previous: previous.map(str::to_owned),
    });
    let output = Output::new(number, form, Arc::new(functions));
    let answer = Answer::new(shared, "resp_", "response", counts);
    Ok((job, ResponseReply::new(id, object, output, answer, keeping)))
}

/// The items of the input.
fn read_input(input: Option<Value>, goes_on: bool, shared: &Shared) -> Result<Vec<Value>, ApiError> {
    match input {
        Some(Value::String(text)) => Ok(vec![object::user_message(text)]),
        Some(Value::Array(items)) if items.is_empty() && !goes_on => {
            Err(ApiError::parameter("input", "'input' is empty."))
        }
        Some(Value::Array(mut items)) => {
            // A reference is short and its item may be long: together they are as long as what could have been sent.
            let mut room = shared.config.body_limit;
            for (index, item) in items.iter_mut().enumerate() {
                follow_reference(item, index, shared, &mut room)?;
            }
            Ok(items)
        }
        None | Some(Value::Null) if goes_on => Ok(Vec::new()),
        None | Some(Value::Null) => Err(ApiError::parameter("input", "'input' is missing.")),
        Some(other) => Err(fields::wrong_type("input", "a string or an array of items", &other)),
    }
}

/// Puts the item of a kept response in the place of a reference to it, and takes its bytes off the room that is left.
fn follow_reference(item: &mut Value, index: usize, shared: &Shared, room: &mut usize) -> Result<(), ApiError> {
    let is_reference = match &item["type"] {
        Value::Null => item.get("role").is_none() && item["id"].is_string(),
        kind => kind == "item_reference",
    };
    if !is_reference {
        return Ok(());
    }
    let path = format!("input[{index}].id");
    let id = fields::string(&item["id"], &path)?;
    let Some(found) = shared.responses.item(id) else {
        let message = format!(
            "'{path}' refers to {}, which no response that is kept has given. Send the item itself.",
            quoted(id)
        );
        return Err(ApiError::parameter(path, message).unlogged());
    };
    let left = room.checked_sub(bytes(&found));
    *room = left.ok_or_else(|| ApiError::body_too_large(shared.config.body_limit))?;
    *item = found;
    Ok(())
}

/// The messages and the tools: of the responses before, which are all right, and of the request.
fn conversation(
    fields: &Fields<'_>,
    earlier: &[Arc<Stored>],
    input: &[Value],
) -> Result<(Vec<Value>, Tools, Functions), ApiError> {
    let mut items = Items::new(fields.string("instructions")?);
    for item in earlier.iter().flat_map(|stored| stored.input.iter().chain(stored.output())) {
        items.take(item, "previous_response_id")?;
    }
    for (index, item) in input.iter().enumerate() {
        items.take(item, &format!("input[{index}]"))?;
    }
    let (messages, more) = items.into_messages();
    let (tools, functions) = functions::read(fields, &more)?;
    Ok((messages, tools, functions))
}

/// 400 for what would change the answer and is not there.
fn refuse_what_is_not_there(request: &Fields<'_>) -> Result<(), ApiError> {
    let refuse = |name: &str, why: &str| Err(ApiError::parameter(name, format!("'{name}' {why}")));
    if request.boolean("background")?.unwrap_or(false) {
        return refuse("background", "is not supported: a response runs as long as its client waits for it.");
    }
    if request.value("conversation").is_some() {
        return refuse("conversation", "is not supported; 'previous_response_id' goes on with a conversation.");
    }
    if request.value("prompt").is_some() {
        return refuse("prompt", "is not supported: this server keeps no prompts. Send 'instructions' and 'input'.");
    }
    if request.integer("n", 1..=i64::MAX)?.is_some_and(|choices| choices > 1) {
        return refuse("n", "may only be 1 here: a response is one reply.");
    }
    for (index, included) in request.array("include")?.unwrap_or_default().iter().enumerate() {
        let path = format!("include[{index}]");
        if fields::string(included, &path)? == "message.output_text.logprobs" {
            return refuse(&path, "asks for log-probabilities, which only the chat endpoint gives.");
        }
    }
    if request.integer("top_logprobs", 0..=20)?.is_some_and(|count| count > 0) {
        return refuse("top_logprobs", "is not supported here; the chat endpoint gives log-probabilities.");
    }
    if let Some(word) = request.string("truncation")?
        && !matches!(word, "auto" | "disabled")
    {
        let message = format!("'truncation' must be auto or disabled, not {}.", quoted(word));
        return Err(ApiError::parameter("truncation", message).unlogged());
    }
    Ok(())
}

/// What the text of the reply is to be.
fn format(request: &Fields<'_>) -> Result<Option<Structured>, ApiError> {
    let text = request.object("text")?;
    let format = match &text {
        Some(text) => {
            text.string("verbosity")?;
            text.object("format")?
        }
        None => None,
    };
    let own = format.map(|format| Structured::response_format(&format, "schema")).transpose()?.flatten();
    Structured::beside(own, request)
}

fn check_metadata(request: &Fields<'_>) -> Result<(), ApiError> {
    let Some(metadata) = request.object("metadata")? else { return Ok(()) };
    let (pairs, name_length, value_length) = MOST_METADATA;
    if metadata.entries().count() > pairs {
        return Err(ApiError::parameter("metadata", format!("'metadata' holds more than {pairs} pairs.")));
    }
    for (name, value) in metadata.entries() {
        // Names are the client's own words: they stand in the message, not in `param`, which is logged.
        let (shown, length) = (quoted(name), name.chars().count());
        let Some(text) = value.as_str() else {
            let message = format!("'metadata' must hold strings; that of {shown} is none.");
            return Err(ApiError::parameter("metadata", message).unlogged());
        };
        if length > name_length || text.chars().count() > value_length {
            let message = format!(
                "'metadata' may hold names of {name_length} characters and values of {value_length}; one of {shown} is longer."
            );
            return Err(ApiError::parameter("metadata", message).unlogged());
        }
    }
    Ok(())
}

fn reasoning_form(reasoning: Option<&Fields<'_>>) -> Result<ReasoningForm, ApiError> {
    let Some(reasoning) = reasoning else { return Ok(ReasoningForm::Content) };
    // The second is the older name.
    for name in ["summary", "generate_summary"] {
        match reasoning.string(name)? {
            None => {}
            Some("auto" | "concise" | "detailed") => return Ok(ReasoningForm::Summary),
            Some(other) => {
                let path = reasoning.path(name);
                let message = format!("'{path}' must be auto, concise or detailed, not {}.", quoted(other));
                return Err(ApiError::parameter(path, message).unlogged());
            }
        }
    }
    Ok(ReasoningForm::Content)
}

/// What the template gets. As everywhere, the most particular way to say a thing wins.
fn kwargs(request: &Fields<'_>, reasoning: Option<&Fields<'_>>) -> Result<Map<String, Value>, ApiError> {
    let mut kwargs = Map::new();
    if let Some(reasoning) = reasoning {
        kwargs = effort_kwargs(reasoning, "effort")?;
        match reasoning.string("context")? {
            Some("all_turns") => _ = kwargs.insert("preserve_thinking".into(), true.into()),
            Some("current_turn") => _ = kwargs.insert("preserve_thinking".into(), false.into()),
            _ => {}
        }
    }
    kwargs.extend(template_kwargs(request)?);
    Ok(kwargs)
}

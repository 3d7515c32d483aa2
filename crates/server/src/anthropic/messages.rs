//! Anthropic's messages, made into those of OpenAI's chat form, which templates and replay know.

use super::changes::Shown;
use super::system::join;
use crate::error::ApiError;
use crate::fields::{self, Fields};
use crate::tools::Tools;
use serde_json::{Map, Value, json};
use std::borrow::Cow;

/// A conversation without its system prompt.
#[derive(Debug, Default)]
pub(super) struct Messages {
    /// In OpenAI's chat form.
    pub(super) messages: Vec<Value>,
    /// What the reply begins with, if the client has begun it.
    pub(super) prefill: Option<String>,
}

/// What stands for an image in a tool's result, which the client's user did not choose to send.
const NO_IMAGE: &str = "[There is an image here, which this model cannot see.]";
/// Likewise for a document that is no plain text.
const NO_DOCUMENT: &str = "[There is a document here, which this model cannot read.]";

impl Messages {
    /// Reads `messages`, which may refer to some of the tools.
    pub(super) fn read(messages: Option<Value>, tools: &Tools) -> Result<Self, ApiError> {
        let messages = match messages {
            None | Some(Value::Null) => return Err(ApiError::parameter("messages", "'messages' is missing.")),
            Some(Value::Array(messages)) => messages,
            Some(other) => return Err(fields::wrong_type("messages", "an array", &other)),
        };
        let mut read = Self::default();
        let mut shown = Shown::new(tools);
        let last_of_user = messages.iter().rposition(is_of_user).unwrap_or(0);
        for (index, message) in messages.iter().enumerate() {
            let is_last = index + 1 == messages.len();
            let message = Fields::of(message, &format!("messages[{index}]"))?;
            // Such a message is gone once the user says something, but not what it changed about tools.
            let is_gone = index < last_of_user && message.string("clear_at")? == Some("next_user_message");
            read.take(&message, Place { is_last, is_gone }, &mut shown)?;
        }
        if read.messages.is_empty() {
            return Err(ApiError::parameter("messages", "'messages' is empty."));
        }
        Ok(read)
    }

    fn take(&mut self, message: &Fields<'_>, place: Place, shown: &mut Shown<'_>) -> Result<(), ApiError> {
        let role = fields::string(message.required("role")?, &message.path("role"))?;
        if role == "system" && message.value("content").is_none() && message.value("output_config").is_some() {
            return Ok(());
        }
        let blocks = match message.required("content")? {
            Value::String(text) => vec![Block::Text(text)],
            Value::Array(blocks) => blocks
                .iter()
                .enumerate()
                .map(|(index, block)| {
                    Block::read(&Fields::of(block, &format!("{}[{index}]", message.path("content")))?, shown)
                })
                .collect::<Result<_, _>>()?,
            other => return Err(fields::wrong_type(&message.path("content"), "a string or an array of blocks", other)),
        };
        match role {
            "user" => self.others(role, blocks, message),
            "system" => {
                let stays = |block: &Block<'_>| !place.is_gone || !matches!(block, Block::Text(_));
                self.others(role, blocks.into_iter().filter(stays).collect(), message)
            }
            "assistant" => {
                let turn = Turn::of(blocks, message)?;
                if !place.is_last {
                    self.messages.push(turn.into_message());
                } else if turn.calls.is_empty() {
                    self.prefill = Some(turn.text.trim_end().to_owned()).filter(|text| !text.is_empty());
                } else {
                    let message = "the last message calls tools; the results belong after it, in a user's message.";
                    return Err(ApiError::parameter("messages", format!("'messages': {message}")));
                }
                Ok(())
            }
            other => {
                let path = message.path("role");
                let message = format!("'{path}' must be user, assistant or system, not {}.", fields::quoted(other));
                Err(ApiError::parameter(path, message).unlogged())
            }
        }
    }

    /// A message of the user's or, amid a conversation, of the system's. Results of tools are messages of their own.
    fn others(&mut self, role: &str, blocks: Vec<Block<'_>>, message: &Fields<'_>) -> Result<(), ApiError> {
        let mut texts = Vec::new();
        for (index, block) in blocks.into_iter().enumerate() {
            match block {
                Block::Text(text) => texts.push(Cow::from(text)),
                Block::Change(text) if role == "system" => texts.extend((!text.is_empty()).then_some(text.into())),
                Block::ToolResult { id, text } if role == "user" => {
                    self.say(role, std::mem::take(&mut texts));
                    self.messages.push(json!({"role": "tool", "tool_call_id": id, "content": text}));
                }
                other => return Err(other.misplaced(role, &format!("{}[{index}]", message.path("content")))),
            }
        }
        self.say(role, texts);
        Ok(())
    }

    fn say(&mut self, role: &str, texts: Vec<Cow<'_, str>>) {
        if !texts.is_empty() {
            self.messages.push(json!({"role": role, "content": join(texts.iter().map(Cow::as_ref))}));
        }
    }
}

/// Whether a message holds words of the user's, and not only what tools gave: their results belong to the turn that called.
fn is_of_user(message: &Value) -> bool {
    let is_result = |block: &Value| block["type"] == "tool_result";
    let only_results = message["content"].as_array().is_some_and(|blocks| blocks.iter().all(is_result));
    message["role"] == "user" && !only_results
}

/// Where a message stands.
#[derive(Clone, Copy)]
struct Place {
    is_last: bool,
    /// Its text is not shown any more.
    is_gone: bool,
}

/// What the assistant said.
#[derive(Default)]
struct Turn {
    reasoning: String,
    text: String,
    calls: Vec<Value>,
}

impl Turn {
    /// Text is text in one piece, however it is cut into blocks: a reply's are.
    fn of(blocks: Vec<Block<'_>>, message: &Fields<'_>) -> Result<Self, ApiError> {
        let mut turn = Self::default();
        for (index, block) in blocks.into_iter().enumerate() {
            match block {
                Block::Text(text) => turn.text.push_str(text),
                Block::Thinking(text) => turn.reasoning.push_str(text),
                Block::ToolUse { id, name, input } => turn.calls.push(json!({
                    "id": id, "type": "function", "function": {"name": name, "arguments": input}
                })),
                other => return Err(other.misplaced("assistant", &format!("{}[{index}]", message.path("content")))),
            }
        }
        Ok(turn)
    }

    fn into_message(self) -> Value {
        let mut message = json!({"role": "assistant", "content": self.text});
        // Where there is none, a template may look for reasoning in the text, unless it is told so; but with calls that may
        // mean that it was left out.
        if !self.reasoning.is_empty() || self.calls.is_empty() {
            message["reasoning_content"] = self.reasoning.into();
        }
        if !self.calls.is_empty() {
            message["tool_calls"] = self.calls.into();
        }
        message
    }
}

/// A content block.
enum Block<'v> {
    Text(&'v str),
    /// Empty if it is only for Anthropic to read.
    Thinking(&'v str),
    ToolUse {
        id: &'v str,
        name: &'v str,
        input: &'v Map<String, Value>,
    },
    ToolResult {
        id: &'v str,
        text: String,
    },
    /// What is said of tools that come or go.
    Change(String),
}

impl<'v> Block<'v> {
    fn read(block: &Fields<'v>, shown: &mut Shown<'_>) -> Result<Self, ApiError> {
        let text = |name: &str| fields::string(block.required(name)?, &block.path(name));
        match text("type")? {
            "text" => Ok(Self::Text(text("text")?)),
            "thinking" => Ok(Self::Thinking(text("thinking")?)),
            "redacted_thinking" => Ok(Self::Thinking("")),
            "document" => document(block).map(Self::Text),
            "tool_use" => match block.required("input")? {
                Value::Object(input) => Ok(Self::ToolUse { id: text("id")?, name: text("name")?, input }),
                other => Err(fields::wrong_type(&block.path("input"), "an object", other)),
            },
            "tool_result" => Ok(Self::ToolResult { id: text("tool_use_id")?, text: result(block, shown)? }),
            "image" => Err(no_images(block)),
            other => shown.tell(block)?.map(Self::Change).ok_or_else(|| unknown(block, other)),
        }
    }

    fn misplaced(self, role: &str, path: &str) -> ApiError {
        let kind = match self {
            Self::Text(_) => "text",
            Self::Thinking(_) => "thinking",
            Self::ToolUse { .. } => "tool_use",
            Self::ToolResult { .. } => "tool_result",
            Self::Change(_) => "tool_addition\" or \"tool_removal",
        };
        ApiError::parameter(
            path,
            format!("'{path}' is of type \"{kind}\", which a message of role {role} cannot hold."),
        )
    }
}

/// The text of a tool's result.
fn result(block: &Fields<'_>, shown: &mut Shown<'_>) -> Result<String, ApiError> {
    let text = match block.value("content") {
        None => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let read = |(index, part)| {
                part_of_result(&Fields::of(part, &format!("{}[{index}]", block.path("content")))?, shown)
            };
            let parts: Vec<Cow<'_, str>> = parts.iter().enumerate().map(read).collect::<Result<_, _>>()?;
            join(parts.iter().map(Cow::as_ref))
        }
        Some(other) => return Err(fields::wrong_type(&block.path("content"), "a string or an array of blocks", other)),
    };
    // Templates know no other place for it.
    let failed = block.boolean("is_error")?.unwrap_or(false);
    Ok(if failed { format!("Error: {text}") } else { text })
}

fn part_of_result<'v>(part: &Fields<'v>, shown: &mut Shown<'_>) -> Result<Cow<'v, str>, ApiError> {
    let text = |name: &str| fields::string(part.required(name)?, &part.path(name));
    match text("type")? {
        "text" => text("text").map(Cow::from),
        "image" => Ok(NO_IMAGE.into()),
        "document"
            if part.object("source")?.is_some_and(|source| source.value("type").is_some_and(|kind| kind != "text")) =>
        {
            Ok(NO_DOCUMENT.into())
        }
        "document" => document(part).map(Cow::from),
        "tool_reference" => text("tool_name").map(|name| shown.refer(name).into()),
        other => Err(unknown(part, other)),
    }
}

/// The text of a document that is text.
fn document<'v>(block: &Fields<'v>) -> Result<&'v str, ApiError> {
    let source = Fields::of(block.required("source")?, &block.path("source"))?;
    match fields::string(source.required("type")?, &source.path("type"))? {
        "text" => fields::string(source.required("data")?, &source.path("data")),
        other => {
            let path = source.path("type");
            let message = format!("'{path}' is {}; of documents only plain text can be read.", fields::quoted(other));
            Err(ApiError::parameter(path, message).unlogged())
        }
    }
}

fn no_images(block: &Fields<'_>) -> ApiError {
    let path = block.path("type");
    let message = format!("'{path}' is \"image\"; this server reads text only. Send the message without the image.");
    ApiError::parameter(path, message)
}

fn unknown(block: &Fields<'_>, kind: &str) -> ApiError {
    let path = block.path("type");
    let message = format!(
        "'{path}' is {}; this server takes blocks of type text, thinking, tool_use, tool_result and document.",
        fields::quoted(kind)
    );
    ApiError::parameter(path, message).unlogged()
}

#[cfg(test)]
mod tests {
    use super::{Messages, NO_DOCUMENT, NO_IMAGE, Tools};
    use serde_json::{Value, json};

    fn read(messages: Value) -> Value {
        json!(Messages::read(Some(messages), &Tools::default()).expect("fine").messages)
    }

    fn text(text: &str) -> Value {
        json!({"type": "text", "text": text})
    }

    #[test]
    fn a_conversation_with_tools() {
        let call = |id: &str, input: Value| json!({"type": "tool_use", "id": id, "name": "f", "input": input});
        let messages = json!([
            {"role": "user", "content": "Go"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "x"}, {"type": "redacted_thinking", "data": "y"},
                text("One "), text("moment."), call("a", json!({"n": 1})), call("b", json!({}))]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": [text("1"), {"type": "image", "source": {}}]},
                {"type": "tool_result", "tool_use_id": "b", "content": "no such file", "is_error": true},
                text("Go on."), {"type": "document", "source": {"type": "text", "data": "So."}}]},
            {"role": "system", "content": "Mind the time."},
            {"role": "assistant", "content": [text("I do.")]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"}, {"type": "tool_result",
                "tool_use_id": "d", "content": [{"type": "document", "source": {"type": "base64", "data": "x"}}]}]},
        ]);
        let function = |arguments: Value| json!({"name": "f", "arguments": arguments});
        let expected = json!([
            {"role": "user", "content": "Go"},
            {"role": "assistant", "content": "One moment.", "reasoning_content": "Hm.", "tool_calls": [
                {"id": "a", "type": "function", "function": function(json!({"n": 1}))},
                {"id": "b", "type": "function", "function": function(json!({}))}]},
            {"role": "tool", "tool_call_id": "a", "content": format!("1\n\n{NO_IMAGE}")},
            {"role": "tool", "tool_call_id": "b", "content": "Error: no such file"},
            {"role": "user", "content": "Go on.\n\nSo."},
            {"role": "system", "content": "Mind the time."},
            {"role": "assistant", "content": "I do.", "reasoning_content": ""},
            {"role": "tool", "tool_call_id": "c", "content": ""},
            {"role": "tool", "tool_call_id": "d", "content": NO_DOCUMENT},
        ]);
        assert_eq!(read(messages), expected);
    }

    #[test]
    fn the_last_word_of_the_assistant_begins_the_reply() {
        let user = json!({"role": "user", "content": "Go"});
        for (content, prefill) in [
            (json!("{\"a\": \n"), Some("{\"a\":")),
            (
                json!([{"type": "thinking", "thinking": "x", "signature": ""}, text("The "), text("end")]),
                Some("The end"),
            ),
            (json!(" "), None),
            (json!([]), None),
        ] {
            let messages = json!([user, {"role": "assistant", "content": content}]);
            let read = Messages::read(Some(messages), &Tools::default()).expect("fine");
            assert_eq!((read.messages.len(), read.prefill.as_deref()), (1, prefill));
        }
    }

    #[test]
    fn an_error_names_the_way_to_it() {
        let blocks = |role: &str, block: Value| json!([{"role": role, "content": [text("a"), block]}]);
        for (messages, path) in [
            (json!("hi"), "messages"),
            (json!([]), "messages"),
            (json!([{"role": "assistant", "content": "a"}]), "messages"),
            (json!([7]), "messages[0]"),
            (json!([{"content": "a"}]), "messages[0].role"),
            (json!([{"role": "tool", "content": "a"}]), "messages[0].role"),
            (json!([{"role": "user"}]), "messages[0].content"),
            (json!([{"role": "user", "content": {}}]), "messages[0].content"),
            (blocks("user", json!({"text": "a"})), "messages[0].content[1].type"),
            (blocks("user", json!({"type": "text"})), "messages[0].content[1].text"),
            (blocks("user", json!({"type": "image", "source": {}})), "messages[0].content[1].type"),
            (blocks("user", json!({"type": "dance"})), "messages[0].content[1].type"),
            (blocks("user", json!({"type": "thinking", "thinking": "a"})), "messages[0].content[1]"),
            (blocks("system", json!({"type": "tool_result", "tool_use_id": "a"})), "messages[0].content[1]"),
            (blocks("assistant", json!({"type": "tool_result", "tool_use_id": "a"})), "messages[0].content[1]"),
            (blocks("user", json!({"type": "tool_result"})), "messages[0].content[1].tool_use_id"),
            (
                blocks("user", json!({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "sound"}]})),
                "messages[0].content[1].content[0].type",
            ),
            (
                blocks("user", json!({"type": "document", "source": {"type": "base64", "data": ""}})),
                "messages[0].content[1].source.type",
            ),
            (
                blocks("assistant", json!({"type": "tool_use", "id": "a", "name": "f", "input": "{}"})),
                "messages[0].content[1].input",
            ),
            (blocks("assistant", json!({"type": "tool_use", "id": "a", "name": "f", "input": {}})), "messages"),
        ] {
            let error = Messages::read(Some(messages.clone()), &Tools::default()).expect_err("wrong");
            assert_eq!(error.body()["error"]["param"], path, "{messages}");
        }
    }
}

//! Input items, as clients and the store have them, to the messages that a conversation is made of.
//!
//! Items of a reply that follow each other (reasoning, a message, calls) are one assistant's message. Reasoning is read
//! from a reasoning item's content or else its summary; what OpenAI's API has encrypted is passed over.

use crate::error::ApiError;
use crate::fields::{self, Fields, quoted};
use crate::messages::NOT_TEXT;
use crate::responses::custom::PARAMETER;
use crate::responses::functions::shown_name;
use serde_json::{Map, Value, json};

/// Items that hold nothing a model here could read, which agents send back in conversations begun elsewhere.
const PASSED_OVER: [&str; 10] = [
    "compaction",
    "compaction_summary",
    "compaction_trigger",
    "context_compaction",
    "ghost_snapshot",
    "image_generation_call",
    "local_shell_call",
    "tool_search_call",
    "tool_search_output",
    "web_search_call",
];

/// Reads items, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Items<'v> {
    messages: Vec<Value>,
    /// The assistant's message that is not complete.
    turn: Turn,
    /// Tools that came as items, each with its path.
    tools: Vec<(&'v Value, String)>,
}

#[derive(Debug, Default)]
struct Turn {
    reasoning: String,
    content: String,
    calls: Vec<Value>,
}

impl<'v> Items<'v> {
    /// `instructions`: a system message before all.
    pub(crate) fn new(instructions: Option<&str>) -> Self {
        let system = instructions.map(|text| json!({"role": "system", "content": text}));
        Self { messages: system.into_iter().collect(), ..Self::default() }
    }

    /// Takes the item found at `path`.
    pub(crate) fn take(&mut self, item: &'v Value, path: &str) -> Result<(), ApiError> {
        let fields = Fields::of(item, path)?;
        let kind = match fields.string("type")? {
            None if fields.contains("role") => "message",
            None => fields::string(fields.required("type")?, &fields.path("type"))?,
            Some(kind) => kind,
        };
        match kind {
            "message" => self.message(&fields),
            "reasoning" => self.reasoning(&fields),
            "function_call" => {
                let arguments = fields::string(fields.required("arguments")?, &fields.path("arguments"))?;
                self.call(&fields, arguments.to_owned())
            }
            "custom_tool_call" => {
                let input = fields::string(fields.required("input")?, &fields.path("input"))?;
                self.call(&fields, json!({PARAMETER: input}).to_string())
            }
            "function_call_output" | "custom_tool_call_output" => self.output(&fields),
            "additional_tools" => {
                let tools = fields.array("tools")?.unwrap_or_default();
                let path = |index| format!("{}[{index}]", fields.path("tools"));
                self.tools.extend(tools.iter().enumerate().map(|(index, tool)| (tool, path(index))));
                Ok(())
            }
            kind if PASSED_OVER.contains(&kind) => Ok(()),
            kind => {
                let path = fields.path("type");
                let message = format!(
                    "'{path}' is {}; this server takes items of type message, reasoning, function_call, \
                     function_call_output, custom_tool_call, custom_tool_call_output, item_reference and \
                     additional_tools.",
                    quoted(kind)
                );
                Err(ApiError::parameter(path, message).unlogged())
            }
        }
    }

    /// The messages, and the tools that came as items.
    pub(crate) fn into_messages(mut self) -> (Vec<Value>, Vec<(&'v Value, String)>) {
        self.end_turn();
        (self.messages, self.tools)
    }

    fn message(&mut self, message: &Fields<'_>) -> Result<(), ApiError> {
        let role = fields::string(message.required("role")?, &message.path("role"))?;
        match role {
            "assistant" => self.assistant(message),
            "system" | "developer" | "user" => {
                let content = text(message, "content", None)?;
                self.end_turn();
                self.messages.push(json!({"role": role, "content": content}));
                Ok(())
            }
            _ => {
                let path = message.path("role");
                let message = format!("'{path}' must be system, developer, user or assistant, not {}.", quoted(role));
                Err(ApiError::parameter(path, message).unlogged())
            }
        }
    }

    fn assistant(&mut self, message: &Fields<'_>) -> Result<(), ApiError> {
        let content = text(message, "content", None)?;
        // Within a reply text may follow a call, but no text follows text.
        if !self.turn.content.is_empty() && self.turn.calls.is_empty() {
            self.end_turn();
        }
        self.turn.content.push_str(&content);
        Ok(())
    }

    fn reasoning(&mut self, item: &Fields<'_>) -> Result<(), ApiError> {
        let mut whole = Vec::new();
        for field in ["content", "summary"] {
            if !whole.is_empty() {
                break;
            }
            for (index, part) in item.array(field)?.unwrap_or_default().iter().enumerate() {
                let part = Fields::of(part, &format!("{}[{index}]", item.path(field)))?;
                whole.extend(part.string("text")?);
            }
        }
        // Reasoning comes first in a reply.
        if !self.turn.content.is_empty() || !self.turn.calls.is_empty() {
            self.end_turn();
        }
        for text in whole {
            if !self.turn.reasoning.is_empty() {
                self.turn.reasoning.push_str("\n\n");
            }
            self.turn.reasoning.push_str(text);
        }
        Ok(())
    }

    fn call(&mut self, item: &Fields<'_>, arguments: String) -> Result<(), ApiError> {
        let id = fields::string(item.required("call_id")?, &item.path("call_id"))?;
        let name = fields::string(item.required("name")?, &item.path("name"))?;
        let name = shown_name(item.string("namespace")?, name);
        self.turn.calls.push(json!({
            "id": id, "type": "function", "function": {"name": name, "arguments": arguments},
        }));
        Ok(())
    }

    /// What a tool has answered.
    fn output(&mut self, item: &Fields<'_>) -> Result<(), ApiError> {
        let id = fields::string(item.required("call_id")?, &item.path("call_id"))?;
        let content = text(item, "output", Some(NOT_TEXT))?;
        self.end_turn();
        self.messages.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
        Ok(())
    }

    fn end_turn(&mut self) {
        let Turn { reasoning, content, calls } = std::mem::take(&mut self.turn);
        if reasoning.is_empty() && content.is_empty() && calls.is_empty() {
            return;
        }
        let mut message = Map::new();
        message.insert("role".into(), "assistant".into());
        message.insert("content".into(), content.into());
        if !reasoning.is_empty() {
            message.insert("reasoning_content".into(), reasoning.into());
        }
        if !calls.is_empty() {
            message.insert("tool_calls".into(), calls.into());
        }
        self.messages.push(message.into());
    }
}

/// The text of a field that is a string or an array of parts. `instead`: what stands for a part that is no text, which
/// is refused without it.
fn text(item: &Fields<'_>, field: &str, instead: Option<&str>) -> Result<String, ApiError> {
    let path = item.path(field);
    let parts = match item.required(field)? {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(parts) => parts,
        other => return Err(fields::wrong_type(&path, "a string or an array of parts", other)),
    };
    let mut whole = String::new();
    for (index, part) in parts.iter().enumerate() {
        let part = Fields::of(part, &format!("{path}[{index}]"))?;
        let kind = fields::string(part.required("type")?, &part.path("type"))?;
        let field = match (kind, instead) {
            ("input_text" | "output_text" | "text", _) => "text",
            ("refusal", _) => "refusal",
            (_, Some(instead)) => {
                whole.push_str(instead);
                continue;
            }
            (kind, None) => {
                let path = part.path("type");
                let message = format!(
                    "'{path}' is {}; this server reads text only. Send the message with parts of type \"input_text\" alone.",
                    quoted(kind)
                );
                return Err(ApiError::parameter(path, message).unlogged());
            }
        };
        whole.push_str(fields::string(part.required(field)?, &part.path(field))?);
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::{Items, NOT_TEXT};
    use serde_json::{Value, json};

    fn read(items: &Value) -> Result<Vec<Value>, Value> {
        let mut reader = Items::new(None);
        for (index, item) in items.as_array().expect("an array").iter().enumerate() {
            let taken = reader.take(item, &format!("input[{index}]"));
            taken.map_err(|error| error.body()["error"]["param"].clone())?;
        }
        Ok(reader.into_messages().0)
    }

    fn call(id: &str, name: &str, arguments: &str) -> Value {
        json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
    }

    #[test]
    fn items_of_one_reply_are_one_message() {
        let messages = read(&json!([
            {"role": "user", "content": "Go"},
            {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Look:"}]},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{\"a\": 1}"},
            {"type": "custom_tool_call", "call_id": "2", "name": "patch", "input": "x\n"},
            {"type": "message", "role": "assistant", "content": "And"},
            {"type": "function_call", "call_id": "3", "name": "read", "namespace": "mcp", "arguments": ""},
            {"type": "web_search_call", "id": "w"},
            {"type": "function_call_output", "call_id": "1", "output": "one"},
            {"type": "custom_tool_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "two"},
                {"type": "input_image", "image_url": "data:"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "So"},
                {"type": "summary_text", "text": "it is"}], "encrypted_content": "x"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done"},
                {"type": "refusal", "refusal": "."}]},
            {"role": "assistant", "content": "Another reply"},
            {"role": "developer", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        ]));
        let expected = [
            json!({"role": "user", "content": "Go"}),
            json!({"role": "assistant", "content": "Look:And", "reasoning_content": "Hm", "tool_calls": [
                call("1", "f", "{\"a\": 1}"), call("2", "patch", "{\"input\":\"x\\n\"}"), call("3", "mcp__read", "")]}),
            json!({"role": "tool", "tool_call_id": "1", "content": "one"}),
            json!({"role": "tool", "tool_call_id": "2", "content": format!("two{NOT_TEXT}")}),
            json!({"role": "assistant", "content": "Done.", "reasoning_content": "So\n\nit is"}),
            json!({"role": "assistant", "content": "Another reply"}),
            json!({"role": "developer", "content": "ab"}),
        ];
        assert_eq!(messages.expect("fine"), expected);
    }

    #[test]
    fn reasoning_alone_is_a_message_and_none_is_none() {
        let user = json!({"role": "user", "content": "Go"});
        let hidden = json!({"type": "reasoning", "summary": [], "encrypted_content": "x"});
        assert_eq!(read(&json!([hidden, user])), Ok(vec![user.clone()]));
        let cut = json!({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]});
        let message = json!({"role": "assistant", "content": "", "reasoning_content": "Hm"});
        assert_eq!(read(&json!([cut, user])), Ok(vec![message, user]));
    }

    #[test]
    fn tools_that_come_as_items_are_taken_out() {
        let tools = json!({"type": "additional_tools", "role": "developer", "tools": [{"type": "x"}]});
        let mut reader = Items::new(Some("Be brief."));
        reader.take(&tools, "input[0]").expect("fine");
        let (messages, more) = reader.into_messages();
        assert_eq!(messages, [json!({"role": "system", "content": "Be brief."})]);
        assert_eq!(more, [(&json!({"type": "x"}), "input[0].tools[0]".to_owned())]);
    }

    #[test]
    fn an_error_names_the_way_to_it() {
        let call = |name: &str, value: Value| {
            let mut call = json!({"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"});
            call[name] = value;
            call
        };
        for (item, path) in [
            (json!("hi"), "input[0]"),
            (json!({}), "input[0].type"),
            (json!({"type": 7}), "input[0].type"),
            (json!({"type": "dance"}), "input[0].type"),
            (json!({"type": "mcp_call"}), "input[0].type"),
            (json!({"role": "wizard", "content": "x"}), "input[0].role"),
            (json!({"type": "message", "content": "x"}), "input[0].role"),
            (json!({"role": "user"}), "input[0].content"),
            (json!({"role": "user", "content": 7}), "input[0].content"),
            (json!({"role": "user", "content": ["x"]}), "input[0].content[0]"),
            (json!({"role": "user", "content": [{"text": "x"}]}), "input[0].content[0].type"),
            (json!({"role": "user", "content": [{"type": "input_image"}]}), "input[0].content[0].type"),
            (json!({"role": "user", "content": [{"type": "input_text"}]}), "input[0].content[0].text"),
            (json!({"type": "reasoning", "content": "x"}), "input[0].content"),
            (json!({"type": "reasoning", "summary": [{"text": 1}]}), "input[0].summary[0].text"),
            (call("call_id", Value::Null), "input[0].call_id"),
            (call("name", json!(1)), "input[0].name"),
            (call("arguments", json!({})), "input[0].arguments"),
            (json!({"type": "custom_tool_call", "call_id": "1", "name": "f"}), "input[0].input"),
            (json!({"type": "function_call_output", "output": "x"}), "input[0].call_id"),
            (json!({"type": "function_call_output", "call_id": "1", "output": {}}), "input[0].output"),
        ] {
            assert_eq!(read(&json!([item])), Err(json!(path)), "{item}");
        }
    }
}

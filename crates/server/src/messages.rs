//! The messages of a chat request: checked, then handed to the template as they came.

use crate::error::ApiError;
use crate::fields::{self, Fields};
use serde_json::{Value, json};

/// What stands for a picture or a file in a tool's result: refusing it would end the conversation.
pub(crate) const NOT_TEXT: &str = "[left out: the model reads text only]";

/// Checks `messages`; the template's side prepares them further.
pub(crate) fn read_messages(messages: Value) -> Result<Vec<Value>, ApiError> {
    let Value::Array(mut messages) = messages else {
        return Err(fields::wrong_type("messages", "an array", &messages));
    };
    if messages.is_empty() {
        return Err(ApiError::parameter("messages", "'messages' is empty."));
    }
    for (index, message) in messages.iter().enumerate() {
        check(&Fields::of(message, &format!("messages[{index}]"))?)?;
    }
    messages.iter_mut().for_each(parts_to_text);
    Ok(messages)
}

/// Templates know text alone: what the model refused it has said, and in a tool's result a note stands for what is no text.
fn parts_to_text(message: &mut Value) {
    let parts = message.get_mut("content").and_then(Value::as_array_mut).into_iter().flatten();
    for part in parts.filter(|part| part["type"] != "text") {
        let text = if part["type"] == "refusal" { part["refusal"].take() } else { NOT_TEXT.into() };
        *part = json!({"type": "text", "text": text});
    }
}

fn check(message: &Fields<'_>) -> Result<(), ApiError> {
    let role = fields::string(message.required("role")?, &message.path("role"))?;
    match role {
        "system" | "developer" | "user" | "tool" if !message.contains("content") => {
            message.required("content")?;
        }
        "system" | "developer" | "user" | "tool" | "assistant" => {}
        _ => {
            let path = message.path("role");
            let message =
                format!("'{path}' must be system, developer, user, assistant or tool, not {}.", fields::quoted(role));
            return Err(ApiError::parameter(path, message).unlogged());
        }
    }
    check_content(message)?;
    message.string("name")?;
    message.string("tool_call_id")?;
    message.string("reasoning_content")?;
    message.string("reasoning")?;
    for (index, call) in message.array("tool_calls")?.unwrap_or_default().iter().enumerate() {
        if role != "assistant" {
            let path = message.path("tool_calls");
            return Err(ApiError::parameter(&path, format!("'{path}': only an assistant calls tools.")));
        }
        let call = Fields::of(call, &format!("{}[{index}]", message.path("tool_calls")))?;
        call.string("id")?;
        let function = Fields::of(call.required("function")?, &call.path("function"))?;
        fields::string(function.required("name")?, &function.path("name"))?;
        if let Some(other) = function.value("arguments").filter(|value| !value.is_string() && !value.is_object()) {
            return Err(fields::wrong_type(&function.path("arguments"), "a string of JSON", other));
        }
    }
    Ok(())
}

/// A string, null, or a list of text parts; in a tool's result of any.
fn check_content(message: &Fields<'_>) -> Result<(), ApiError> {
    let path = message.path("content");
    let parts = match message.value("content") {
        None | Some(Value::String(_)) => return Ok(()),
        Some(Value::Array(parts)) => parts,
        Some(other) => return Err(fields::wrong_type(&path, "a string or an array of parts", other)),
    };
    for (index, part) in parts.iter().enumerate() {
        let part = Fields::of(part, &format!("{path}[{index}]"))?;
        let kind = fields::string(part.required("type")?, &part.path("type"))?;
        if kind == "refusal" && message.string("role")? == Some("assistant") {
            fields::string(part.required("refusal")?, &part.path("refusal"))?;
            continue;
        }
        if kind != "text" && message.string("role")? == Some("tool") {
            continue;
        }
        if kind != "text" {
            let path = part.path("type");
            let message = format!(
                "'{path}' is {}; this server reads text only. Send the message with parts of type \"text\" alone.",
                fields::quoted(kind)
            );
            return Err(ApiError::parameter(path, message).unlogged());
        }
        fields::string(part.required("text")?, &part.path("text"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{NOT_TEXT, read_messages};
    use serde_json::{Value, json};

    fn param(messages: Value) -> Value {
        read_messages(messages).expect_err("wrong").body()["error"]["param"].clone()
    }

    #[test]
    fn what_an_assistant_refused_is_text() {
        let refusal = json!([{"type": "refusal", "refusal": "No."}]);
        let read = read_messages(json!([{"role": "assistant", "content": refusal}])).expect("fine");
        assert_eq!(read[0]["content"], json!([{"type": "text", "text": "No."}]));
        assert_eq!(param(json!([{"role": "user", "content": refusal}])), "messages[0].content[0].type");
    }

    #[test]
    fn what_is_no_text_is_a_note_in_a_tools_result_alone() {
        let picture = json!({"type": "image_url", "image_url": {"url": "data:"}});
        let said = json!({"type": "text", "text": "Look:"});
        let of = |role: &str| json!([{"role": role, "content": [said, picture]}]);
        let read = read_messages(of("tool")).expect("fine");
        assert_eq!(read[0]["content"], json!([said, {"type": "text", "text": NOT_TEXT}]));
        assert_eq!(param(of("user")), "messages[0].content[1].type");
    }

    #[test]
    fn an_error_names_the_way_to_it() {
        let user = json!({"role": "user", "content": "a"});
        let call = |function: Value| json!([{"role": "assistant", "tool_calls": [{"id": "1", "function": function}]}]);
        for (messages, path) in [
            (json!("hi"), "messages"),
            (json!([]), "messages"),
            (json!([user, "hi"]), "messages[1]"),
            (json!([user, {"content": "a"}]), "messages[1].role"),
            (json!([{"role": 1, "content": "a"}]), "messages[0].role"),
            (json!([{"role": "robot", "content": "a"}]), "messages[0].role"),
            (json!([{"role": "user"}]), "messages[0].content"),
            (json!([{"role": "user", "content": 1}]), "messages[0].content"),
            (json!([user, {"role": "user", "content": ["a"]}]), "messages[1].content[0]"),
            (json!([{"role": "user", "content": [{"text": "a"}]}]), "messages[0].content[0].type"),
            (json!([{"role": "user", "content": [{"type": "image_url"}]}]), "messages[0].content[0].type"),
            (json!([{"role": "user", "content": [{"type": "text"}]}]), "messages[0].content[0].text"),
            (json!([{"role": "user", "content": "a", "tool_calls": [{}]}]), "messages[0].tool_calls"),
            (json!([{"role": "assistant", "content": "a", "reasoning_content": 1}]), "messages[0].reasoning_content"),
            (call(json!({"arguments": "{}"})), "messages[0].tool_calls[0].function.name"),
            (call(json!({"name": "f", "arguments": 1})), "messages[0].tool_calls[0].function.arguments"),
        ] {
            assert_eq!(param(messages.clone()), path, "{messages}");
        }
    }
}

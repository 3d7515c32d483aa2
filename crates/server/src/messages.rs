//! The messages and tools of a chat request: checked, then handed to the template as they came.

use crate::error::ApiError;
use crate::fields::{self, Fields};
use serde_json::Value;

/// Checks `messages`; the template's side prepares them further.
pub(crate) fn read_messages(messages: Value) -> Result<Vec<Value>, ApiError> {
    let Value::Array(messages) = messages else {
        return Err(fields::wrong_type("messages", "an array", &messages));
    };
    if messages.is_empty() {
        return Err(ApiError::parameter("messages", "'messages' is empty."));
    }
    for (index, message) in messages.iter().enumerate() {
        check(&Fields::of(message, &format!("messages[{index}]"))?)?;
    }
    Ok(messages)
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
            return Err(ApiError::parameter(path, message).quoting_prompt());
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

/// A string, null, or a list of text parts.
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
        if kind != "text" {
            let path = part.path("type");
            let message = format!(
                "'{path}' is {}; this build of the server takes parts of type \"text\" only.",
                fields::quoted(kind)
            );
            return Err(ApiError::parameter(path, message).quoting_prompt());
        }
        fields::string(part.required("text")?, &part.path("text"))?;
    }
    Ok(())
}

/// The tools to show to the model: none if `tool_choice` is "none".
pub(crate) fn read_tools(request: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let tools = request.array("tools")?.unwrap_or_default();
    for (index, tool) in tools.iter().enumerate() {
        let tool = Fields::of(tool, &format!("tools[{index}]"))?;
        let kind = fields::string(tool.required("type")?, &tool.path("type"))?;
        if kind != "function" {
            let path = tool.path("type");
            let message = format!("'{path}' must be \"function\", not {}.", fields::quoted(kind));
            return Err(ApiError::parameter(path, message).quoting_prompt());
        }
        let function = Fields::of(tool.required("function")?, &tool.path("function"))?;
        fields::string(function.required("name")?, &function.path("name"))?;
        function.string("description")?;
        function.object("parameters")?;
    }
    match request.value("tool_choice") {
        None => Ok(tools.to_vec()),
        Some(Value::String(choice)) if choice == "auto" => Ok(tools.to_vec()),
        Some(Value::String(choice)) if choice == "none" => Ok(Vec::new()),
        Some(Value::String(_) | Value::Object(_)) => Err(ApiError::parameter(
            "tool_choice",
            "'tool_choice' must be \"auto\" or \"none\": this server cannot yet make the model call a tool.",
        )),
        Some(other) => Err(fields::wrong_type("tool_choice", "a string or an object", other)),
    }
}

#[cfg(test)]
mod tests {
    use super::{read_messages, read_tools};
    use crate::fields::Fields;
    use serde_json::{Value, json};

    fn param(messages: Value) -> Value {
        read_messages(messages).expect_err("wrong").body()["error"]["param"].clone()
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

    #[test]
    fn tools_are_checked_and_can_be_dropped() {
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": {}}});
        let read = |request: Value| {
            read_tools(&Fields::of(&request, "").expect("an object")).map_err(|e| e.body()["error"]["param"].clone())
        };
        assert_eq!(read(json!({"tools": [tool]})), Ok(vec![tool.clone()]));
        assert_eq!(read(json!({"tools": [tool], "tool_choice": "none"})), Ok(Vec::new()));
        assert_eq!(read(json!({"tools": [tool], "tool_choice": "required"})), Err(json!("tool_choice")));
        assert_eq!(read(json!({"tools": [tool, {"type": "x"}]})), Err(json!("tools[1].type")));
        assert_eq!(
            read(json!({"tools": [{"type": "function", "function": {}}]})),
            Err(json!("tools[0].function.name"))
        );
    }
}

//! Messages as clients send them, made into what templates expect.

use serde_json::{Map, Value};

use crate::TemplateError;
use crate::tools::salvage;

/// Prepares messages for a template:
/// - `developer` becomes `system`;
/// - leading system messages become one, in order, a blank line between, because official templates refuse a second;
///   later ones stay where they are;
/// - `reasoning`, as some clients name it, becomes `reasoning_content` unless that is there too;
/// - a tool call's `arguments` given as a JSON string, as OpenAI's format has it, becomes the object that templates
///   walk through. The beginning of an object, as a client has it that stopped the call while it was written, becomes the
///   object of what is there: refused, it would end the conversation for good.
pub(crate) fn prepare(messages: &[Value]) -> Result<Vec<Value>, TemplateError> {
    let mut prepared: Vec<Map<String, Value>> = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        let Value::Object(message) = message else {
            return Err(TemplateError::Message { message: index, reason: "a message must be an object".into() });
        };
        let mut message = message.clone();
        if message.get("role").and_then(Value::as_str) == Some("developer") {
            message.insert("role".into(), "system".into());
        }
        if message.get("reasoning_content").is_none_or(Value::is_null)
            && let Some(reasoning) = message.remove("reasoning")
        {
            message.insert("reasoning_content".into(), reasoning);
        }
        parse_arguments(index, &mut message)?;
        match prepared.as_mut_slice() {
            [system] if is_system(system) && is_system(&message) => merge(system, message),
            _ => prepared.push(message),
        }
    }
    Ok(prepared.into_iter().map(Value::Object).collect())
}

fn is_system(message: &Map<String, Value>) -> bool {
    message.get("role").and_then(Value::as_str) == Some("system")
}

/// Appends the content of `next` to that of `system`: text to text, otherwise parts to parts.
fn merge(system: &mut Map<String, Value>, mut next: Map<String, Value>) {
    let first = system.remove("content").unwrap_or_default();
    let second = next.remove("content").unwrap_or_default();
    let merged = match (first, second) {
        (Value::Null, other) | (other, Value::Null) => other,
        (Value::String(first), Value::String(second)) => match (first.trim(), second.trim()) {
            ("", _) => Value::String(second),
            (_, "") => Value::String(first),
            _ => Value::String(format!("{}\n\n{}", first.trim_end(), second.trim_start())),
        },
        (first, second) => {
            let mut parts = into_parts(first);
            parts.push(text_part("\n\n".into()));
            parts.extend(into_parts(second));
            Value::Array(parts)
        }
    };
    system.insert("content".into(), merged);
}

fn into_parts(content: Value) -> Vec<Value> {
    match content {
        Value::Array(parts) => parts,
        Value::String(text) => vec![text_part(text)],
        // Neither text nor parts: the template says what is wrong with it.
        other => vec![other],
    }
}

fn text_part(text: String) -> Value {
    serde_json::json!({ "type": "text", "text": text })
}

fn parse_arguments(index: usize, message: &mut Map<String, Value>) -> Result<(), TemplateError> {
    let Some(Value::Array(calls)) = message.get_mut("tool_calls") else { return Ok(()) };
    for (call, value) in calls.iter_mut().enumerate() {
        // OpenAI nests name and arguments in `function`; templates accept them bare, too.
        let call_object = match value.get("function") {
            Some(_) => value.get_mut("function"),
            None => Some(value),
        };
        let Some(arguments) = call_object.and_then(|object| object.get_mut("arguments")) else { continue };
        let Value::String(text) = arguments else { continue };
        let Some(object) = salvage(text) else {
            let reason = match serde_json::from_str::<Value>(text) {
                Ok(_) => "they are no JSON object".into(),
                Err(reason) => format!("they are no JSON: {reason}"),
            };
            return Err(TemplateError::Arguments { message: index, call, reason });
        };
        *arguments = Value::Object(object);
    }
    Ok(())
}

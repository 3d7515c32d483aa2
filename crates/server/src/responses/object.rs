//! The response's object and its items' ids, as OpenAI writes them.

use crate::error::ApiError;
use crate::fields::Fields;
use crate::params::Parameters;
use crate::shared::now;
use serde_json::{Map, Value, json};

/// The response at its beginning: what was asked for, and what applies where the request is silent.
pub(crate) fn begun(
    request: &Fields<'_>,
    id: &str,
    model: &str,
    parameters: &Parameters,
    parallel: bool,
    store: bool,
) -> Result<Value, ApiError> {
    let asked = |name: &str| request.value(name).cloned();
    let text = |name: &str| request.string(name).map(Value::from);
    let within = |object: &str, name: &str| request.value(object).map_or(Value::Null, |object| object[name].clone());
    let (format, verbosity) = (within("text", "format"), within("text", "verbosity"));
    Ok(json!({
        "id": id,
        "object": "response",
        "created_at": now(),
        "status": "in_progress",
        "background": false,
        "completed_at": null,
        "error": null,
        "incomplete_details": null,
        "instructions": asked("instructions"),
        "max_output_tokens": asked("max_output_tokens"),
        "max_tool_calls": asked("max_tool_calls"),
        "model": model,
        "output": [],
        "parallel_tool_calls": parallel,
        "previous_response_id": asked("previous_response_id"),
        "prompt_cache_key": text("prompt_cache_key")?,
        "reasoning": {"effort": within("reasoning", "effort"), "summary": within("reasoning", "summary")},
        "safety_identifier": text("safety_identifier")?,
        "service_tier": "default",
        "store": store,
        "temperature": decimal(parameters.sampling.temperature),
        "text": {
            "format": if format.is_null() { json!({"type": "text"}) } else { format },
            "verbosity": if verbosity.is_null() { "medium".into() } else { verbosity },
        },
        "tool_choice": asked("tool_choice").unwrap_or_else(|| "auto".into()),
        "tools": asked("tools").unwrap_or_else(|| json!([])),
        "top_logprobs": 0,
        "top_p": decimal(parameters.sampling.top_p),
        "truncation": "disabled",
        "usage": null,
        "user": text("user")?,
        "metadata": asked("metadata").unwrap_or_else(|| json!({})),
    }))
}

/// 0.7 for 0.7, and not what a longer binary fraction makes of it.
fn decimal(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

/// What a string as the whole input stands for.
pub(crate) fn user_message(text: String) -> Value {
    json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]})
}

/// The input's items as they are listed, the ids and types added that clients may leave out. `response`: what the ids of a
/// response's items have in common.
pub(crate) fn with_ids(input: Vec<Value>, response: &str) -> Vec<Value> {
    input.into_iter().enumerate().map(|(index, item)| listed(item, &format!("{response}_i{index}"))).collect()
}

fn listed(item: Value, id: &str) -> Value {
    let Value::Object(fields) = item else { return item };
    let kind = fields.get("type").and_then(Value::as_str);
    let is_message = kind.map_or(fields.contains_key("role"), |kind| kind == "message");
    let prefix = match kind {
        _ if is_message => "msg",
        Some("reasoning") => "rs",
        Some("function_call") => "fc",
        Some("custom_tool_call") => "ctc",
        Some("function_call_output") => "fco",
        Some("custom_tool_call_output") => "ctco",
        _ => "item",
    };
    let mut listed = Map::new();
    listed.insert("id".into(), format!("{prefix}_{id}").into());
    if is_message {
        listed.insert("type".into(), "message".into());
        listed.insert("status".into(), "completed".into());
    }
    let is_assistant = fields.get("role").is_some_and(|role| role == "assistant");
    // What the client has said goes before what is added.
    listed.extend(fields.into_iter().filter(|(_, value)| !value.is_null()));
    if is_message && let Some(Value::String(text)) = listed.get("content") {
        let part = if is_assistant {
            json!({"type": "output_text", "text": text, "annotations": []})
        } else {
            json!({"type": "input_text", "text": text})
        };
        listed.insert("content".into(), json!([part]));
    }
    listed.into()
}

#[cfg(test)]
mod tests {
    use super::{decimal, with_ids};
    use serde_json::json;

    #[test]
    fn numbers_are_as_they_were_asked_for() {
        assert_eq!([decimal(0.7), decimal(1.0), decimal(0.0)], [json!(0.7), json!(1.0), json!(0.0)]);
    }

    #[test]
    fn listed_items_have_ids_types_and_parts() {
        let input = vec![
            json!({"role": "user", "content": "a"}),
            json!({"role": "assistant", "content": "b", "id": null}),
            json!({"type": "function_call_output", "id": "fco_mine", "call_id": "1", "output": "x"}),
            json!({"type": "reasoning", "summary": []}),
        ];
        let expected = [
            json!({"id": "msg_7_i0", "type": "message", "status": "completed", "role": "user",
                "content": [{"type": "input_text", "text": "a"}]}),
            json!({"id": "msg_7_i1", "type": "message", "status": "completed", "role": "assistant",
                "content": [{"type": "output_text", "text": "b", "annotations": []}]}),
            json!({"id": "fco_mine", "type": "function_call_output", "call_id": "1", "output": "x"}),
            json!({"id": "rs_7_i3", "type": "reasoning", "summary": []}),
        ];
        assert_eq!(with_ids(input, "7"), expected);
    }
}

//! Messages whose text has a format.

use super::errors::refused;
use super::stream::gather;
use super::{anonymous, ask, count, send};
use crate::serving::model;
use serde_json::{Value, json};

fn schema() -> Value {
    json!({"type": "object", "required": ["answer", "sure"], "additionalProperties": false, "properties": {
        "answer": {"type": "integer", "minimum": 0, "maximum": 999}, "sure": {"type": "boolean"}}})
}

#[test]
fn the_text_is_of_the_schema_streamed_or_not() {
    let format = json!({"type": "json_schema", "schema": schema()});
    for (changes, blocks) in [
        (json!({"output_config": {"format": format}}), 1),
        (json!({"output_config": {"effort": "high", "format": format}, "thinking": {"type": "adaptive"}}), 2),
        (json!({"output_format": format}), 1),
    ] {
        // The embedded model writes much space where it may.
        let mut request = ask("What is 38 + 57?", changes);
        request["max_tokens"] = json!(600);
        let message = send(model(), &request).ok();
        assert_eq!(
            (&message["stop_reason"], message["content"].as_array().map(Vec::len)),
            (&json!("end_turn"), Some(blocks))
        );
        let text = message["content"][blocks - 1]["text"].as_str().expect("text");
        let value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        jsonschema::validate(&schema(), &value).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!(anonymous(gather(model(), &request)), anonymous(message));
    }
}

#[test]
fn what_cannot_be_followed_is_refused_but_can_be_counted() {
    let format = |format: Value| json!({"output_config": {"format": format}});
    let impossible = json!({"type": "integer", "minimum": 2, "maximum": 1});
    for (changes, part) in [
        (format(json!({"type": "yaml"})), "'output_config.format.type'"),
        (format(json!({"type": "json_schema"})), "'output_config.format.schema'"),
        (format(json!("json")), "'output_config.format'"),
        (format(json!({"type": "json_schema", "schema": impossible})), "'output_config.format.schema' cannot be used"),
    ] {
        let (kind, message) = refused(&send(model(), &ask("Hello", changes)), 400);
        assert!(kind == "invalid_request_error" && message.contains(part), "{message}");
    }
    let mut begun = ask("Hello", format(json!({"type": "json_object"})));
    begun["messages"] = json!([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "{"}]);
    let (_, message) = refused(&send(model(), &begun), 400);
    assert!(message.contains("the last message begins it"), "{message}");
    // Whoever counts asks for no reply.
    let counted = ask("Hello", format(json!({"type": "json_schema", "schema": impossible})));
    assert_eq!(count(model(), &counted), count(model(), &ask("Hello", json!({}))));
}

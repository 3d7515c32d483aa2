//! Responses whose text has a format.

use super::{events, gather, respond, with};
use crate::serving::model;
use serde_json::{Value, json};

fn schema() -> Value {
    json!({"type": "object", "required": ["answer", "sure"], "additionalProperties": false, "properties": {
        "answer": {"type": "integer", "minimum": 0, "maximum": 999}, "sure": {"type": "boolean"}}})
}

/// As the openai package sends it.
fn strict(schema: &Value) -> Value {
    json!({"format": {"type": "json_schema", "name": "reply", "strict": true, "schema": schema}})
}

#[test]
fn the_text_is_of_the_schema_streamed_or_not() {
    for effort in ["none", "medium"] {
        let request = json!({"input": "What is 38 + 57?", "temperature": 0, "max_output_tokens": 600,
            "reasoning": {"effort": effort}, "text": strict(&schema())});
        let whole = respond(model(), &request).ok();
        let streamed = gather(&events(&respond(model(), &with(request, &json!({"stream": true})))));
        for response in [&whole, &streamed] {
            assert_eq!(
                (&response["status"], &response["text"]["format"]),
                (&json!("completed"), &strict(&schema())["format"])
            );
            let items = response["output"].as_array().expect("items");
            assert_eq!(items.len(), if effort == "none" { 1 } else { 2 });
            let text = items[items.len() - 1]["content"][0]["text"].as_str().expect("text");
            let value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
            jsonschema::validate(&schema(), &value).unwrap_or_else(|error| panic!("{error}: {text}"));
        }
    }
}

#[test]
fn what_cannot_be_followed_is_named() {
    for (text, param) in [
        (json!({"format": "json"}), "text.format"),
        (json!({"format": {"type": "json_schema", "name": "x"}}), "text.format.schema"),
        (strict(&json!({"type": "integer", "minimum": 2, "maximum": 1})), "text.format.schema"),
        (strict(&json!({"type": "string", "not": {}})), "text.format.schema"),
    ] {
        let (named, _, message) = respond(model(), &json!({"input": "Hello", "text": text})).error(400);
        assert_eq!(named, param, "{message}");
    }
}

//! What is wrong with a request is said, by name, in OpenAI's shape.

use super::{respond, user, with};
use crate::client::{get, request};
use crate::scripted::Scripted;
use crate::serving::{CONTEXT, Speaker, model, scripted, wait_until};
use serde_json::{Value, json};
use std::time::Duration;

#[test]
fn wrong_parameters_are_named() {
    let long = "x".repeat(600);
    let many: serde_json::Map<String, Value> = (0..17).map(|number| (number.to_string(), json!("x"))).collect();
    for (changes, param) in [
        (json!({"input": null}), "input"),
        (json!({"input": 7}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": [user("Go"), "x"]}), "input[1]"),
        (json!({"input": [user("Go"), {"type": "dance"}]}), "input[1].type"),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}),
            "input[0].content[0].type",
        ),
        (json!({"input": [{"type": "item_reference", "id": "msg_1_0"}]}), "input[0].id"),
        (json!({"instructions": ["x"]}), "instructions"),
        (json!({"model": 1}), "model"),
        (json!({"max_output_tokens": 0}), "max_output_tokens"),
        (json!({"temperature": 3}), "temperature"),
        (json!({"top_p": "x"}), "top_p"),
        (json!({"n": 2}), "n"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"store": 1}), "store"),
        (json!({"background": true}), "background"),
        (json!({"conversation": "conv_1"}), "conversation"),
        (json!({"prompt": {"id": "x"}}), "prompt"),
        (json!({"previous_response_id": "resp_unheard_of"}), "previous_response_id"),
        (json!({"previous_response_id": 7}), "previous_response_id"),
        (json!({"include": "x"}), "include"),
        (json!({"include": ["message.output_text.logprobs"]}), "include[0]"),
        (json!({"top_logprobs": 2}), "top_logprobs"),
        (json!({"truncation": "some"}), "truncation"),
        (json!({"metadata": {"a": 1}}), "metadata"),
        (json!({"metadata": {"a": long}}), "metadata"),
        (json!({"metadata": many}), "metadata"),
        (json!({"reasoning": "high"}), "reasoning"),
        (json!({"reasoning": {"effort": "extreme"}}), "reasoning.effort"),
        (json!({"reasoning": {"summary": "none"}}), "reasoning.summary"),
        (json!({"text": {"format": {"type": "yaml"}}}), "text.format.type"),
        (json!({"structured_outputs": 5}), "structured_outputs"),
        (json!({"structured_outputs": {"bogus": 1}}), "structured_outputs"),
        (
            json!({"structured_outputs": {"regex": "a"}, "text": {"format": {"type": "json_object"}}}),
            "structured_outputs.regex",
        ),
        (json!({"tools": [{"type": "function"}]}), "tools[0].name"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"tool_choice": {"type": "function", "name": "f"}}), "tool_choice.name"),
        (json!({"chat_template_kwargs": "x"}), "chat_template_kwargs"),
        (json!({"user": 1}), "user"),
    ] {
        let asked = with(json!({"input": "Hello", "max_output_tokens": 2}), &changes);
        let (named, _, message) = respond(model(), &asked).error(400);
        assert_eq!(named, param, "{changes}: {message}");
    }
    respond(model(), &json!({"input": "Hello", "max_output_tokens": 2})).ok();
}

#[test]
fn odd_but_good_requests_are_taken() {
    for changes in [
        json!({"temperature": null, "tools": null, "stream": null, "instructions": null, "reasoning": null, "text": null}),
        json!({"background": false, "conversation": null, "prompt": null, "n": 1, "top_logprobs": 0, "include": []}),
        json!({"truncation": "auto", "text": {"format": {"type": "text"}}, "unheard_of": [1], "service_tier": "flex"}),
        json!({"reasoning": {"effort": "none"}, "tools": [], "tool_choice": "none", "safety_identifier": "x"}),
        json!({"stream_options": {"include_obfuscation": false}, "max_tool_calls": 3, "prompt_cache_retention": "24h"}),
        json!({"max_output_tokens": i64::MAX, "stop": "."}),
    ] {
        respond(model(), &with(json!({"input": "Hello", "max_output_tokens": 2}), &changes)).ok();
    }
}

#[test]
fn every_other_error_has_its_shape() {
    let (param, code, message) = respond(model(), &json!({"input": "word ".repeat(3000)})).error(400);
    assert_eq!((param, code), (json!("input"), json!("context_length_exceeded")));
    assert!(message.contains(&CONTEXT.to_string()), "{message}");
    // What the template refuses.
    let speaker = Speaker::new(true, 4096);
    let nobody_asks = json!({"input": [{"role": "assistant", "content": "x"}]});
    let (param, _, message) = respond(speaker.server.address, &nobody_asks).error(400);
    assert_eq!((param, message.as_str()), (json!("input"), "no user message asks anything"));
    request(model(), "POST", "/v1/responses", &[], b"{\"input\": ").error(400);
    request(model(), "POST", "/v1/responses", &[], b"[]").error(400);
    for path in ["/v1/responses/resp_1", "/v1/responses/resp_1/input_items"] {
        let (_, code, message) = get(model(), path).error(404);
        assert_eq!(code, "response_not_found", "{message}");
    }
    let (param, _, _) = get(model(), "/v1/responses/resp_1?stream=true").error(400);
    assert_eq!(param, "stream");
    let (_, code, _) = get(model(), "/v1/responses").error(405);
    assert_eq!(code, "method_not_allowed");
    let (_, code, message) = request(model(), "POST", "/responses", &[], b"{}").error(404);
    assert_eq!(code, "not_found");
    assert!(message.contains("Did you mean /v1/responses?"), "{message}");
}

#[test]
fn a_full_queue_is_503_with_advice() {
    let server = scripted(Scripted::new(1_000_000).taking(Duration::from_millis(10)), |_| {});
    wait_until("readiness", || get(server.address, "/ready").status == 200);
    let endless = |stream: bool| json!({"input": "Hello", "stream": stream});
    let begin = || {
        let mut connection = crate::client::Connection::open(server.address);
        connection.send("POST", "/v1/responses", &[], endless(true).to_string().as_bytes());
        connection
    };
    let _running = begin();
    wait_until("the first runs", || server.engine.stats().running == 1);
    let _waiting = begin();
    wait_until("the second waits", || server.engine.stats().queued == 1);
    let refused = respond(server.address, &endless(false));
    let (_, code, _) = refused.error(503);
    assert_eq!(code, "queue_full");
    assert!(refused.header("retry-after").is_some());
}

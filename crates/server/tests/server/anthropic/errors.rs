//! Errors in Anthropic's shape.

use super::{ask, send};
use crate::client::{Answer, Connection, get, post, request};
use crate::scripted::Scripted;
use crate::serving::{CONTEXT, model, scripted, wait_until};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// The error's type and message, if it has `status` and Anthropic's shape.
pub(super) fn refused(answer: &Answer, status: u16) -> (String, String) {
    assert_eq!(answer.status, status, "{}", answer.text());
    let body = answer.json();
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(body["type"], "error", "{body}");
    assert!(answer.header("request-id").is_some_and(|id| id.starts_with("req_") && body["request_id"] == id));
    assert_eq!(body["error"].as_object().map(Map::len), Some(2), "{body}");
    let text = |name: &str| body["error"][name].as_str().expect("a string").to_owned();
    (text("type"), text("message"))
}

#[test]
fn wrong_requests_say_what_is_wrong() {
    let user = json!({"role": "user", "content": "Hello"});
    for (changes, part) in [
        (json!({"messages": null}), "'messages' is missing"),
        (json!({"messages": []}), "'messages' is empty"),
        (json!({"messages": [user, {"role": "wizard", "content": "x"}]}), "'messages[1].role'"),
        (json!({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}), "reads text only"),
        (json!({"max_tokens": 0}), "'max_tokens'"),
        (json!({"temperature": "hot"}), "'temperature'"),
        (json!({"stop_sequences": ["a", ""]}), "'stop_sequences[1]' is empty"),
        (json!({"stop_sequences": [1]}), "'stop_sequences[0]'"),
        (json!({"stop_sequences": "a"}), "'stop_sequences' must be an array"),
        (json!({"output_config": {"effort": "x"}}), "'output_config.effort' must be one of"),
        (json!({"structured_outputs": 5}), "'structured_outputs' must be an object"),
        (json!({"structured_outputs": {"bogus": 1}}), "'structured_outputs' may hold"),
        (
            json!({"structured_outputs": {"regex": "a"}, "output_config": {"format": {"type": "json_schema", "schema": {}}}}),
            "'structured_outputs.regex' cannot both",
        ),
        (json!({"system": 1}), "'system'"),
        (json!({"thinking": {"type": "deep"}}), "'thinking.type'"),
        (json!({"tools": [{"name": "f"}]}), "'tools[0].input_schema' is missing"),
        (json!({"tool_choice": {"type": "any"}}), "'tool_choice'"),
        (json!({"mcp_servers": [{"type": "url", "url": "https://example.com"}]}), "'mcp_servers'"),
    ] {
        let request = ask("Hello", changes);
        for path in ["/v1/messages", "/v1/messages/count_tokens"] {
            // Counting looks at the prompt only.
            if path.ends_with("tokens") && ["max_tokens", "temperature", "stop_"].iter().any(|name| part.contains(name))
            {
                post(model(), path, &request).ok();
                continue;
            }
            let (kind, message) = refused(&post(model(), path, &request), 400);
            assert_eq!(kind, "invalid_request_error");
            assert!(message.contains(part), "{message}");
        }
    }
    let (_, message) = refused(&send(model(), &ask(&"word ".repeat(CONTEXT), json!({}))), 400);
    assert!(message.starts_with("prompt is too long: ") && message.contains(&CONTEXT.to_string()), "{message}");
    let answer = send(model(), &ask("Hello", json!({"max_tokens": 1})));
    assert!(answer.status == 200 && answer.header("request-id").is_some_and(|id| id.starts_with("req_")));
}

#[test]
fn tools_that_come_and_go_are_such_as_there_are() {
    let refer = |name: &str| json!({"type": "tool_reference", "name": name});
    for (kind, tool, choice, part) in [
        ("tool_addition", json!({}), "auto", "tool.type' must be \"tool_reference\" or \"tool_definition\"."),
        ("tool_addition", json!({"type": "x"}), "auto", "must be \"tool_reference\" or \"tool_definition\", not \"x\""),
        (
            "tool_removal",
            json!({"type": "tool_definition"}),
            "auto",
            "must be \"tool_reference\", not \"tool_definition\"",
        ),
        ("tool_addition", refer("g"), "auto", "'messages[1].content[0].tool.name' is \"g\", which no tool is called"),
        ("tool_removal", refer("g"), "auto", "'messages[1].content[0].tool.name' is \"g\", which no tool is called"),
        ("tool_removal", refer("f"), "any", "but the conversation has withdrawn every one"),
        ("tool_removal", refer("f"), "tool", "'tool_choice.name' is \"f\", which the conversation has withdrawn"),
    ] {
        let user = json!({"role": "user", "content": "Hello"});
        let system = json!({"role": "system", "content": [{"type": kind, "tool": tool}]});
        let mut request = ask("Hello", json!({"messages": [user, system, user]}));
        request["tools"] = json!([{"name": "f", "input_schema": {"type": "object"}}]);
        request["tool_choice"] = json!({"type": choice, "name": "f"});
        let (_, message) = refused(&send(model(), &request), 400);
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn every_kind_has_its_type() {
    let not_json = request(model(), "POST", "/v1/messages", &[], b"{");
    assert_eq!(refused(&not_json, 400).0, "invalid_request_error");
    assert_eq!(refused(&get(model(), "/v1/messages"), 405).0, "invalid_request_error");
    assert_eq!(refused(&post(model(), "/v1/messages/batches", &json!({})), 404).0, "not_found_error");

    let server = scripted(Scripted::new(1000), |config| config.body_limit = 1000);
    let long = ask(&"x".repeat(1500), json!({}));
    assert_eq!(refused(&send(server.address, &long), 413).0, "request_too_large");

    let server = scripted(Scripted::new(1000).failing_at(1), |_| {});
    let (kind, message) = refused(&send(server.address, &ask("Go", json!({}))), 500);
    assert_eq!(kind, "api_error");
    assert!(message.contains("the script ends here"), "{message}");
}

#[test]
fn a_full_queue_is_overload() {
    let server = scripted(Scripted::new(1_000_000).taking(Duration::from_millis(20)), |_| {});
    wait_until("ready", || get(server.address, "/ready").status == 200);
    let endless = ask("Go", json!({"stream": true, "max_tokens": 900_000}));
    let begin = || {
        let mut connection = Connection::open(server.address);
        connection.send("POST", "/v1/messages", &[], endless.to_string().as_bytes());
        connection
    };
    let running = begin();
    wait_until("the first runs", || server.engine.stats().running == 1);
    let waiting = begin();
    wait_until("the second waits", || server.engine.stats().queued == 1);
    let answer = send(server.address, &ask("Go", json!({})));
    assert_eq!(refused(&answer, 529).0, "overloaded_error");
    let seconds: Option<u64> = answer.header("retry-after").and_then(|seconds| seconds.parse().ok());
    assert!(seconds.is_some_and(|seconds| seconds >= 1));
    drop((running, waiting));
    wait_until("a client that goes ends its reply", || server.engine.stats().running == 0);
}

/// Other paths keep OpenAI's shape.
#[test]
fn others_are_left_alone() {
    for path in ["/v1/chat/completions", "/v1/messages_of_others"] {
        let answer = post(model(), path, &Value::Null);
        answer.error(answer.status);
        assert!(answer.header("request-id").is_none());
    }
}

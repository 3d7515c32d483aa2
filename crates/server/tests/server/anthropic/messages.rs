//! Messages of the embedded model.

use super::errors::refused;
use super::{anonymous, ask, count, send};
use crate::client::{get, request};
use crate::serving::{CONTEXT, model};
use serde_json::{Value, json};

#[test]
fn it_answers_and_thinks_when_asked_to() {
    let plain = send(model(), &ask("What is 38 + 57?", json!({}))).ok();
    assert_eq!(plain["content"], json!([{"type": "text", "text": "38 + 57 = 95"}]));
    assert_eq!(plain["stop_reason"], "end_turn");
    let thinking = json!({"thinking": {"type": "enabled", "budget_tokens": 1024}});
    let thought = send(model(), &ask("What is 38 + 57?", thinking)).ok();
    assert!(thought["content"][0]["thinking"].as_str().expect("thinking").contains("write 5, carry 1"), "{thought}");
    assert_eq!(thought["content"][1], plain["content"][0]);
}

/// It calls a tool, gets the result, and answers.
#[test]
fn it_goes_round_the_loop() {
    let tools = json!([{"name": "get_stock_price", "description": "Get the price of a stock.", "input_schema":
        {"type": "object", "properties": {"symbol": {"type": "string"}}, "required": ["symbol"]}}]);
    for thinking in [json!({"type": "adaptive"}), json!({"type": "adaptive", "display": "omitted"})] {
        let mut messages = vec![json!({"role": "user", "content": "What is the stock price of TWU?"})];
        let request = |messages: &[Value]| {
            ask("", json!({"messages": messages, "tools": tools, "thinking": thinking, "max_tokens": 200}))
        };
        let first = send(model(), &request(&messages)).ok();
        assert_eq!(first["stop_reason"], "tool_use", "{first}");
        let call = first["content"].as_array().and_then(|blocks| blocks.last()).expect("a block").clone();
        assert_eq!((&call["name"], &call["input"]), (&json!("get_stock_price"), &json!({"symbol": "TWU"})));
        messages.push(json!({"role": "assistant", "content": first["content"]}));
        messages.push(json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "{\"price\": 371}"}]}]}));
        let second = send(model(), &request(&messages)).ok();
        assert_eq!(second["stop_reason"], "end_turn");
        let text = second["content"].as_array().and_then(|blocks| blocks.last()).expect("a block")["text"].clone();
        assert!(text.as_str().expect("text").contains("371"), "{second}");
    }
}

#[test]
fn what_is_counted_is_what_the_prompt_has() {
    let tool = super::tool("weather");
    let history = json!([
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "weather", "input": {"days": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "rain"}]},
    ]);
    for changes in [
        json!({}),
        json!({"system": "You are Lily."}),
        json!({"thinking": {"type": "adaptive"}}),
        json!({"tools": [tool]}),
        json!({"tools": [tool], "tool_choice": {"type": "any"}}),
        json!({"tools": [tool], "messages": history}),
        json!({"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good"}]}),
    ] {
        let mut request = ask("Hello", changes);
        request["max_tokens"] = json!(1);
        let usage = send(model(), &request).ok()["usage"].clone();
        assert_eq!(usage["input_tokens"], count(model(), &request), "{request}");
        assert_eq!(usage["output_tokens"], 1);
        request.as_object_mut().expect("an object").remove("max_tokens");
        assert_eq!(usage["input_tokens"], count(model(), &request));
    }
    assert!(
        count(model(), &ask(&"word ".repeat(2 * CONTEXT), json!({}))) > 2 * CONTEXT as u64,
        "also what does not fit"
    );
}

#[test]
fn parameters_of_chat_completions_are_taken_too() {
    let request = |seed: i64| ask("Once", json!({"temperature": 1, "seed": seed, "max_tokens": 20, "n": 3}));
    let reply = |seed: i64| anonymous(send(model(), &request(seed)).ok());
    assert_eq!(reply(1), reply(1));
    let replies: Vec<Value> = (1..6).map(|seed| reply(seed)["content"].clone()).collect();
    assert!(replies.iter().any(|reply| reply != &replies[0]), "{replies:?}");
    let endless = json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": null});
    assert_eq!(send(model(), &endless).ok()["stop_reason"], "end_turn");
}

/// As the anthropic package reads them; without its header they are OpenAI's.
#[test]
fn models_are_listed_in_its_words() {
    let ask = |path: &str| request(model(), "GET", path, &[("anthropic-version", "2023-06-01")], b"");
    let list = ask("/v1/models").ok();
    let entry = &list["data"][0];
    let expected = json!({"data": [entry], "first_id": entry["id"], "last_id": entry["id"], "has_more": false});
    assert_eq!(list, expected);
    assert_eq!(
        (&entry["type"], &entry["display_name"], &entry["max_input_tokens"]),
        (&json!("model"), &entry["id"], &json!(CONTEXT))
    );
    assert!(entry["created_at"].is_string() && entry["lifecycle"] == "active", "{entry}");
    let id = entry["id"].as_str().expect("an id");
    assert_eq!(&ask(&format!("/v1/models/{id}")).ok(), entry);
    assert_eq!(refused(&ask("/v1/models/other"), 404).0, "not_found_error");
    assert_eq!(get(model(), "/v1/models").ok()["object"], "list");
}

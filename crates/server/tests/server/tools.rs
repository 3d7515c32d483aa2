//! Calls of tools over HTTP, by the numbers of the field cases. What the parser makes of texts is in crates/chat.

use crate::client::chat;
use crate::gather::gather;
use crate::serving::{Speaker, model};
use serde_json::{Value, json};
use std::sync::OnceLock;

/// Shared by the tests that look at replies only; whoever looks at prompts has one of their own.
fn speaker() -> &'static std::sync::Mutex<Speaker> {
    static SPEAKER: OnceLock<std::sync::Mutex<Speaker>> = OnceLock::new();
    SPEAKER.get_or_init(|| std::sync::Mutex::new(Speaker::new(false, 4096)))
}

fn tool(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "options": {"type": "object"}}}}})
}

fn request(changes: Value) -> Value {
    let mut request = json!({"messages": [{"role": "user", "content": "Go"}], "enable_thinking": false,
        "tools": [tool("weather"), tool("now")]});
    for (name, value) in changes.as_object().expect("an object") {
        request[name] = value.clone();
    }
    request
}

/// A call as the template writes it.
fn written(name: &str, parameters: &[(&str, &str)]) -> String {
    let parameters: String =
        parameters.iter().map(|(key, value)| format!("<parameter={key}>\n{value}\n</parameter>\n")).collect();
    format!("<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>")
}

/// The choice of a reply of `text`, which is the same streamed.
fn choice(text: &str, changes: Value) -> Value {
    let speaker = speaker().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut whole = speaker.reply(text, &request(changes.clone()))["choices"][0].take();
    speaker.lines.say(crate::serving::tokenizer().encode(text).expect("tokens"));
    let (mut streamed, _) = gather(speaker.server.address, &request(changes), 0);
    for choice in [&mut whole, &mut streamed] {
        // Looking a field up by index would put it in.
        let calls = choice["message"].get_mut("tool_calls").and_then(Value::as_array_mut);
        for call in calls.into_iter().flatten() {
            assert!(call["id"].take().as_str().is_some_and(|id| id.starts_with("call_") && id.len() <= 40));
        }
    }
    assert_eq!(streamed, whole, "{text:?}");
    whole
}

/// Name and arguments of each call.
fn calls(choice: &Value) -> Vec<(String, String)> {
    let calls = choice["message"]["tool_calls"].as_array().expect("calls");
    let text = |value: &Value| value.as_str().expect("a string").to_owned();
    calls.iter().map(|call| (text(&call["function"]["name"]), text(&call["function"]["arguments"]))).collect()
}

fn one(name: &str, arguments: &str) -> Vec<(String, String)> {
    vec![(name.to_owned(), arguments.to_owned())]
}

#[test]
fn case_16_and_25_content_then_calls() {
    let text = format!("Let me look.\n\n{}\n{}", written("weather", &[("city", "Oslo")]), written("now", &[]));
    let all = choice(&text, json!({}));
    assert_eq!((&all["message"]["content"], &all["finish_reason"]), (&json!("Let me look."), &json!("tool_calls")));
    assert_eq!(calls(&all), [one("weather", r#"{"city":"Oslo"}"#), one("now", "{}")].concat());
    assert!(all["message"]["tool_calls"].as_array().expect("calls").iter().all(|call| call["type"] == "function"));

    let silent = choice(&written("now", &[]), json!({}));
    assert_eq!(silent["message"]["content"], Value::Null);
    for (text, tools) in
        [("Just text.", json!([tool("now")])), ("Just text.", Value::Null), (&written("now", &[]), json!([]))]
    {
        let plain = choice(text, json!({"tools": tools}));
        assert_eq!((&plain["message"]["content"], &plain["finish_reason"]), (&json!(text), &json!("stop")));
        assert!(plain["message"].get("tool_calls").is_none(), "absent, never []");
    }
}

#[test]
fn case_17_to_20_calls_are_salvaged_typed_and_byte_exact() {
    let doubled = "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</parameter>\n</function>\n</tool_call>";
    let unclosed = "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>";
    let json = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\":\"Oslo\"}}\n</tool_call>";
    for text in [doubled, unclosed, json] {
        let salvaged = choice(text, json!({}));
        assert_eq!(calls(&salvaged), one("weather", r#"{"city":"Oslo"}"#));
        assert_eq!(salvaged["finish_reason"], "tool_calls");
    }
    // 18: in the middle of a thought.
    let thought = format!("I must look.\n{}", written("weather", &[("city", "Oslo")]));
    let early = choice(&thought, json!({"enable_thinking": true}));
    assert_eq!((&early["message"]["reasoning_content"], calls(&early).len()), (&json!("I must look."), 1));
    for (parameters, arguments) in [
        ([("city", "3.10.5-beta"), ("days", "5.0")], r#"{"city":"3.10.5-beta","days":5}"#),
        ([("city", "2026-01-02"), ("options", "{'a': True}")], r#"{"city":"2026-01-02","options":{"a":true}}"#),
        ([("city", " a\r\nb\n"), ("days", "1")], r#"{"city":" a\r\nb\n","days":1}"#),
        ([("city", "🦔</tool_call>"), ("days", "1")], r#"{"city":"🦔</tool_call>","days":1}"#),
        ([("city", ""), ("days", "1")], r#"{"city":"","days":1}"#),
    ] {
        assert_eq!(calls(&choice(&written("weather", &parameters), json!({}))), one("weather", arguments));
    }
    assert_eq!(calls(&choice(&written("unheard_of", &[("a", "x")]), json!({}))), one("unheard_of", r#"{"a":"x"}"#));
}

#[test]
fn case_23_a_cut_call_gives_what_is_there_and_is_not_to_be_run() {
    let text = written("weather", &[("city", "Oslo and then some more")]);
    let tokens = crate::serving::tokenizer().encode(&text).expect("tokens").len();
    for most in 1..tokens {
        let cut = choice(&text, json!({"max_tokens": most}));
        assert_eq!(cut["finish_reason"], "length");
        for call in cut["message"]["tool_calls"].as_array().into_iter().flatten() {
            let arguments = call["function"]["arguments"].as_str().expect("a string");
            let arguments: Value = serde_json::from_str(arguments).expect("whole JSON");
            assert!("Oslo and then some more".starts_with(arguments["city"].as_str().unwrap_or_default()));
        }
    }
    let stopped = choice(&text, json!({"stop": " and then"}));
    assert_eq!((calls(&stopped), &stopped["finish_reason"]), (one("weather", r#"{"city":"Oslo"}"#), &json!("stop")));
}

#[test]
fn case_24_tool_choice() {
    let speaker = Speaker::new(false, 4096);
    let ask = |text: &str, choice: Value| {
        let reply = speaker.reply(text, &request(json!({"tool_choice": choice, "enable_thinking": true})));
        (reply["choices"][0].clone(), speaker.prompt())
    };
    let (auto, prompt) = ask("Hi", json!("auto"));
    assert!(prompt.contains("<tools>") && prompt.ends_with("<think>\n"), "{prompt}");
    assert_eq!(auto["message"]["reasoning"], "Hi");

    let (none, prompt) = ask("x</think>\n\nHi", json!("none"));
    assert!(!prompt.contains("<tools>"), "{prompt}");
    assert_eq!((&none["message"]["content"], &none["finish_reason"]), (&json!("Hi"), &json!("stop")));

    let named = json!({"type": "function", "function": {"name": "now"}});
    for (text, arguments) in [
        ("</function>\n</tool_call>", "{}"),
        ("", "{}"),
        ("<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>", r#"{"city":"Oslo"}"#),
    ] {
        let (called, prompt) = ask(text, named.clone());
        assert!(prompt.ends_with("<think>\n\n</think>\n\n<tool_call>\n<function=now>\n"), "{prompt}");
        assert_eq!((calls(&called), &called["finish_reason"]), (one("now", arguments), &json!("tool_calls")));
        assert!(called["message"].get("reasoning").is_none());
    }
    let (any, prompt) = ask("=weather>\n</function>\n</tool_call>", json!("required"));
    assert!(prompt.ends_with("</think>\n\n<tool_call>\n<function"), "{prompt}");
    assert_eq!(calls(&any), one("weather", "{}"));

    let wrong = request(json!({"tool_choice": {"type": "function", "function": {"name": "tomorrow"}}}));
    let (param, _, message) = chat(speaker.server.address, &wrong).error(400);
    assert_eq!(param, "tool_choice.function.name", "{message}");
}

#[test]
fn a_single_call_ends_the_reply() {
    let text = format!("{}\n{}", written("weather", &[("days", "1")]), written("now", &[]));
    let single = choice(&text, json!({"parallel_tool_calls": false}));
    assert_eq!((calls(&single), &single["finish_reason"]), (one("weather", r#"{"days":1}"#), &json!("tool_calls")));
    assert_eq!(calls(&choice(&text, json!({"parallel_tool_calls": true}))).len(), 2);
}

#[test]
fn case_26_arguments_come_in_many_deltas() {
    let text = written("weather", &[("city", "a long name of a town that goes on and on")]);
    let speaker = Speaker::new(false, 4096);
    speaker.lines.say(crate::serving::tokenizer().encode(&text).expect("tokens"));
    let (events, _) = crate::client::events(&chat(speaker.server.address, &request(json!({"stream": true}))));
    let deltas = events.iter().filter(|event| event["choices"][0]["delta"].get("tool_calls").is_some()).count();
    assert!(deltas > 8, "{deltas}");
    assert_eq!(events.last().expect("an end")["choices"][0]["finish_reason"], "tool_calls");
}

/// The embedded model calls a tool, gets the result, and answers.
#[test]
fn the_embedded_model_goes_round_the_loop() {
    let tools = json!([{"type": "function", "function": {"name": "get_stock_price", "description": "Get the price of a stock.",
        "parameters": {"type": "object", "properties": {"symbol": {"type": "string"}}, "required": ["symbol"]}}}]);
    let mut messages = vec![json!({"role": "user", "content": "What is the stock price of TWU?"})];
    let ask = |messages: &[Value]| json!({"messages": messages, "tools": tools, "temperature": 0, "max_tokens": 120});
    let first = chat(model(), &ask(&messages)).ok()["choices"][0].clone();
    assert_eq!(
        (calls(&first), &first["finish_reason"]),
        (one("get_stock_price", r#"{"symbol":"TWU"}"#), &json!("tool_calls"))
    );
    messages.push(first["message"].clone());
    let id = &first["message"]["tool_calls"][0]["id"];
    messages.push(json!({"role": "tool", "tool_call_id": id, "content": "{\"price\": 371}"}));
    let second = chat(model(), &ask(&messages)).ok()["choices"][0].clone();
    assert!(second["message"]["content"].as_str().expect("text").contains("371"), "{second}");
    assert_eq!(second["finish_reason"], "stop");
}

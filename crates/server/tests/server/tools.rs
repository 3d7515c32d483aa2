//! Calls of tools over HTTP, by the numbers of the field cases. What the parser makes of texts is in crates/chat.

use crate::client::chat;
use crate::gather::gather;
use crate::serving::{Speaker, model, tokenizer};
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
    speaker.lines.say(tokenizer().encode(text).expect("tokens"));
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

/// Clients run what they can parse, whatever the finish reason: a call that was cut must be no JSON.
#[test]
fn case_23_a_cut_call_gives_what_is_there_and_cannot_be_run() {
    let text = written("weather", &[("city", "Oslo and then some more")]);
    let tokens = tokenizer().encode(&text).expect("tokens");
    for most in 1..tokens.len() {
        let cut = choice(&text, json!({"max_tokens": most}));
        assert_eq!(cut["finish_reason"], "length");
        let so_far = tokenizer().decode(&tokens[..most]);
        let is_complete = so_far.contains("</function>");
        for call in cut["message"]["tool_calls"].as_array().into_iter().flatten() {
            let arguments = call["function"]["arguments"].as_str().expect("a string");
            assert!(r#"{"city":"Oslo and then some more"}"#.starts_with(arguments), "{arguments}");
            assert_eq!(serde_json::from_str::<Value>(arguments).is_ok(), is_complete, "{so_far:?}: {arguments:?}");
            let value = so_far.split_once("<parameter=city>\n").map_or("", |(_, value)| value);
            assert!(value.contains('\n') || arguments.ends_with(value), "{so_far:?}: {arguments:?}");
        }
        assert_eq!(cut["message"].get("tool_calls").is_some(), so_far.contains("<function=weather>"), "{so_far:?}");
    }
    let stopped = choice(&text, json!({"stop": " and then"}));
    assert_eq!((calls(&stopped), &stopped["finish_reason"]), (one("weather", r#"{"city":"Oslo"#), &json!("stop")));
}

/// The token that ends a reply, written where it ends nothing: the model copies it from a file about templates.
#[test]
fn the_end_within_a_value_is_a_cut() {
    let whole = written("weather", &[("city", "<|im_start|>user\nHi<|im_end|>\nmore")]);
    let cut = choice(&whole, json!({}));
    assert_eq!(calls(&cut), one("weather", r#"{"city":"<|im_start|>user\nHi"#));
    assert_eq!(cut["finish_reason"], "length");
    // After a call that is complete, too; in JSON, and in a name.
    for (second, arguments) in [
        ("<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": \"b", Some(r#"{"a":"b"#)),
        ("<tool_call>\n<function=now>\n<parameter=ci", Some("{")),
        ("<tool_call>\n<function=no", None),
    ] {
        let all = choice(&format!("{}\n{second}", written("now", &[])), json!({}));
        let expected = [one("now", "{}"), arguments.map_or_else(Vec::new, |arguments| one("now", arguments))].concat();
        assert_eq!((calls(&all), &all["finish_reason"]), (expected, &json!("length")), "{second}");
    }
    // What lacks nothing but tags has been said.
    let salvaged = choice("<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>", json!({}));
    assert_eq!(
        (calls(&salvaged), &salvaged["finish_reason"]),
        (one("weather", r#"{"city":"Oslo"}"#), &json!("tool_calls"))
    );
}

/// Control tokens that end nothing are what the model wrote.
#[test]
fn other_control_tokens_are_text() {
    let value = "<|im_start|>user<|vision_pad|>";
    let all = choice(&format!("Say {value}.\n{}", written("weather", &[("city", value)])), json!({"logprobs": true}));
    assert_eq!(all["message"]["content"], format!("Say {value}."));
    assert_eq!(calls(&all), one("weather", &json!({"city": value}).to_string()));
}

#[test]
fn choices_have_calls_of_their_own() {
    let speaker = speaker().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let tokens = tokenizer().encode(&written("weather", &[("days", "1")])).expect("tokens");
    (0..2).for_each(|_| speaker.lines.say(tokens.clone()));
    let reply = chat(speaker.server.address, &request(json!({"n": 2, "logprobs": true}))).ok();
    let ids = [0, 1].map(|index| reply["choices"][index]["message"]["tool_calls"][0]["id"].clone());
    assert_ne!(ids[0], ids[1]);
    for choice in reply["choices"].as_array().expect("choices") {
        assert_eq!((calls(choice), &choice["finish_reason"]), (one("weather", r#"{"days":1}"#), &json!("tool_calls")));
        assert_eq!(choice["logprobs"]["content"].as_array().map(Vec::len), Some(tokens.len()));
    }
}

/// What a client has that stopped a stream within a call is no end of the conversation.
#[test]
fn half_a_call_can_be_sent_back() {
    let speaker = Speaker::new(true, 4096);
    for (arguments, rendered) in [
        (r#"{"city":"Os"#, "<function=weather>\n<parameter=city>\nOs\n</parameter>\n</function>"),
        (r#"{"city":"Oslo","da"#, "<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>"),
        ("{", "<function=weather>\n</function>"),
        ("null", "<function=weather>\n</function>"),
    ] {
        let call = json!({"id": "1", "type": "function", "function": {"name": "weather", "arguments": arguments}});
        let messages = json!([{"role": "user", "content": "Go"}, {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "aborted"}]);
        speaker.reply("ok", &request(json!({"messages": messages})));
        assert!(speaker.prompt().contains(rendered), "{}", speaker.prompt());
    }
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

    // The same prompt, so that what is kept of it is found; and no call, which the script would make.
    let (none, same) = ask("x</think>\n\n<tool_call>Hi", json!("none"));
    assert_eq!(same, prompt);
    assert_eq!((&none["message"]["content"], &none["finish_reason"]), (&json!("Hi"), &json!("stop")));

    let named = json!({"type": "function", "function": {"name": "now"}});
    for (text, arguments) in [
        ("</function>\n</tool_call>", "{}"),
        ("<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>", r#"{"city":"Oslo"}"#),
    ] {
        let (called, prompt) = ask(text, named.clone());
        assert!(prompt.ends_with("<think>\n\n</think>\n\n<tool_call>\n<function=now>\n"), "{prompt}");
        assert_eq!((calls(&called), &called["finish_reason"]), (one("now", arguments), &json!("tool_calls")));
        assert!(called["message"].get("reasoning").is_none());
    }
    let (one_call, _) = ask(&format!("</function>\n</tool_call>\n{}", written("weather", &[])), named.clone());
    assert_eq!(calls(&one_call), one("now", "{}"));
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
    speaker.lines.say(tokenizer().encode(&text).expect("tokens"));
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

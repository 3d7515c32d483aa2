//! Chat replies of the embedded model.

use crate::client::{chat, events};
use crate::gather::gather;
use crate::serving::model;
use lily_chat::{CallOptions, ReplyEvent, ReplyParser, ToolSet};
use serde_json::{Value, json};
use std::sync::Arc;
use std::thread;

const SUM: &str = "What is 38 + 57?";

/// A greedy request with `changes`.
fn ask(question: &str, changes: Value) -> Value {
    let mut request = json!({"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 120});
    for (name, value) in changes.as_object().expect("an object") {
        request[name] = value.clone();
    }
    request
}

#[test]
fn reasoning_and_content_are_told_apart_and_counted() {
    let answer = chat(model(), &ask(SUM, json!({"logprobs": true}))).ok();
    let message = &answer["choices"][0]["message"];
    assert!(message["reasoning_content"].as_str().expect("reasoning").contains("write 5, carry 1"), "{message}");
    assert_eq!(message["content"], "38 + 57 = 95");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let usage = &answer["usage"];
    let count = |value: &Value| value.as_u64().expect("a count");
    assert_eq!(count(&usage["total_tokens"]), count(&usage["prompt_tokens"]) + count(&usage["completion_tokens"]));
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
    // All tokens but the stop token are listed; up to the first of the content they are reasoning.
    let tokens = answer["choices"][0]["logprobs"]["content"].as_array().expect("logprobs");
    assert_eq!(tokens.len() as u64 + 1, count(&usage["completion_tokens"]));
    let reasoning = count(&usage["completion_tokens_details"]["reasoning_tokens"]) as usize;
    let text = |tokens: &[Value]| tokens.iter().filter_map(|token| token["token"].as_str()).collect::<String>();
    assert_eq!(text(&tokens[reasoning..]), "38 + 57 = 95");
    assert!(text(&tokens[..reasoning]).ends_with("</think>\n\n"));
}

#[test]
fn thinking_can_be_turned_off_in_each_way() {
    let off = chat(model(), &ask(SUM, json!({"chat_template_kwargs": {"enable_thinking": false}}))).ok();
    assert!(off["choices"][0]["message"].get("reasoning_content").is_none());
    assert_eq!(off["usage"]["completion_tokens_details"]["reasoning_tokens"], 0);
    for changes in [
        json!({"enable_thinking": false}),
        json!({"reasoning_effort": "none"}),
        json!({"enable_thinking": true, "chat_template_kwargs": {"enable_thinking": false}}),
    ] {
        let answer = chat(model(), &ask(SUM, changes)).ok();
        assert_eq!(answer["choices"], off["choices"]);
    }
}

#[test]
fn a_stream_amounts_to_the_whole_answer() {
    for (question, changes) in [
        (SUM, json!({})),
        (SUM, json!({"logprobs": true, "top_logprobs": 2})),
        (SUM, json!({"max_tokens": 10})),
        (SUM, json!({"stop": [" = 9", "\u{1f994}"], "logprobs": true})),
        (SUM, json!({"temperature": 1.5, "seed": 5, "logprobs": true})),
        ("Write these words as emoji: cat, rocket, star", json!({"enable_thinking": false, "logprobs": true})),
    ] {
        let request = ask(question, changes.clone());
        let whole = chat(model(), &request).ok();
        let (choice, usage) = gather(model(), &request, 0);
        assert_eq!((&choice, &usage), (&whole["choices"][0], &whole["usage"]), "{changes}");
    }
}

#[test]
fn deltas_come_as_they_are_made() {
    let (events, _) = events(&chat(model(), &ask(SUM, json!({"stream": true}))));
    let with_text = events.iter().filter(|event| event["choices"][0]["delta"]["reasoning_content"].is_string());
    assert!(with_text.count() > 20);
    assert!(events.iter().all(|event| event.get("usage").is_none()));
}

#[test]
fn choices_equal_requests_with_their_seeds() {
    let request = |changes: Value| {
        let mut request = ask("Tell me a story.", json!({"temperature": 1.3, "max_tokens": 24, "seed": 40, "n": 3}));
        for (name, value) in changes.as_object().expect("an object") {
            request[name] = value.clone();
        }
        request
    };
    let together = chat(model(), &request(json!({}))).ok();
    assert_eq!(together["choices"].as_array().expect("choices").len(), 3);
    assert_ne!(together["choices"][0]["message"], together["choices"][1]["message"]);
    let mut tokens = 0;
    for index in 0..3 {
        let alone = chat(model(), &request(json!({"n": 1, "seed": 40 + index}))).ok();
        assert_eq!(alone["choices"][0]["message"], together["choices"][index]["message"]);
        tokens += alone["usage"]["completion_tokens"].as_u64().expect("a count");
        assert_eq!(alone["usage"]["prompt_tokens"], together["usage"]["prompt_tokens"]);
        let (streamed, usage) = gather(model(), &request(json!({})), index);
        assert_eq!((&streamed, &usage), (&together["choices"][index], &together["usage"]));
    }
    assert_eq!(together["usage"]["completion_tokens"], tokens);
}

#[test]
fn a_stop_string_may_span_tokens() {
    for (stop, content) in [("7 = ", "38 + 5"), ("= 95", "38 + 57 "), (" + ", "38"), ("38", "")] {
        let answer = chat(model(), &ask(SUM, json!({"stop": stop, "enable_thinking": false}))).ok();
        assert_eq!(answer["choices"][0]["message"]["content"], content, "{stop:?}");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    }
}

#[test]
fn max_tokens_ends_a_reply() {
    for name in ["max_tokens", "max_completion_tokens"] {
        let mut request = ask(SUM, json!({}));
        request.as_object_mut().expect("an object").remove("max_tokens");
        request[name] = json!(7);
        let answer = chat(model(), &request).ok();
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        assert_eq!(answer["usage"]["completion_tokens"], 7);
        assert_eq!(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 7);
        assert_eq!(answer["choices"][0]["message"]["content"], "");
    }
}

#[test]
fn logprobs_have_openais_shape() {
    let changes = json!({"logprobs": true, "top_logprobs": 4, "enable_thinking": false});
    let question = "Write these words as emoji: cat, rocket, star";
    let answer = chat(model(), &ask(question, changes)).ok();
    let choice = &answer["choices"][0];
    let mut bytes = Vec::new();
    for entry in choice["logprobs"]["content"].as_array().expect("logprobs") {
        let own: Vec<u8> = serde_json::from_value(entry["bytes"].clone()).expect("bytes");
        assert_eq!(entry["token"], String::from_utf8_lossy(&own).as_ref());
        bytes.extend(own);
        let top = entry["top_logprobs"].as_array().expect("top");
        assert_eq!(top.len(), 4);
        // Greedy: the token is the most probable one.
        assert_eq!((&top[0]["token"], &top[0]["logprob"]), (&entry["token"], &entry["logprob"]));
        let logprobs: Vec<f64> = top.iter().filter_map(|other| other["logprob"].as_f64()).collect();
        assert!(logprobs.is_sorted_by(|a, b| a >= b) && logprobs[0] <= 0.0, "{logprobs:?}");
    }
    assert_eq!(choice["message"]["content"].as_str().expect("content").as_bytes(), bytes);
    let bare = chat(model(), &ask(question, json!({"logprobs": true, "enable_thinking": false}))).ok();
    assert_eq!(bare["choices"][0]["logprobs"]["content"][0]["top_logprobs"], json!([]));
    let none = chat(model(), &ask(question, json!({}))).ok();
    assert_eq!(none["choices"][0]["logprobs"], Value::Null);
}

#[test]
fn parameters_reach_the_model() {
    let content = |changes: Value| chat(model(), &ask(SUM, changes)).ok()["choices"][0]["message"].clone();
    let plain = content(json!({"max_tokens": 12}));
    // A greedy default, so that top_k 1 at any temperature is the same.
    assert_eq!(content(json!({"max_tokens": 12, "temperature": 2, "top_k": 1})), plain);
    assert_eq!(content(json!({"max_tokens": 12, "temperature": 2, "top_p": 1e-9})), plain);
    assert_eq!(content(json!({"max_tokens": 12, "temperature": 2, "min_p": 1})), plain);
    assert_ne!(content(json!({"max_tokens": 12, "repetition_penalty": 5})), plain);
    assert_ne!(
        content(json!({"max_tokens": 12, "presence_penalty": 2, "frequency_penalty": 2,
                              "logit_bias": {"8": -100, "9": 100}})),
        plain
    );
}

/// Reasoning, content, and the calls' names and arguments.
type Parts = (String, String, Vec<(String, String)>);

fn given(message: &Value) -> Parts {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let calls = message["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
    let call = |call: &Value| (text(&call["function"]["name"]), text(&call["function"]["arguments"]));
    (text(&message["reasoning_content"]), text(&message["content"]), calls.iter().map(call).collect())
}

/// The parts of a reply's text; `whole`: whether the model has ended it.
fn read(text: &str, whole: bool, thinks: bool, tools: Option<&Vec<Value>>) -> Parts {
    let tools = tools.filter(|tools| !tools.is_empty()).map(|tools| Arc::new(ToolSet::new(tools)));
    let calls = tools.map(|tools| CallOptions { tools, id_prefix: String::new(), single: false });
    let mut parser = ReplyParser::new(Some(thinks), calls);
    let mut parts = Parts::default();
    let mut events = parser.push(text);
    events.extend(if whole { parser.finish() } else { parser.cut() });
    for event in events {
        match event {
            ReplyEvent::Reasoning(text) => parts.0 += &text,
            ReplyEvent::Content(text) => parts.1 += &text,
            ReplyEvent::CallBegin { name, .. } => parts.2.push((name, String::new())),
            ReplyEvent::CallArguments { index, json } => parts.2[index].1 += &json,
            ReplyEvent::CallEnd { .. } => {}
        }
    }
    parts
}

/// The reference conversations, tools and calls among them, through all of the server.
#[test]
fn replies_are_those_of_the_reference() {
    let reference = include_str!("../../../../models/tiny/reference/reference.json");
    let reference: Value = serde_json::from_str(reference).expect("JSON");
    let mut compared = 0;
    for case in reference["prompts"].as_array().expect("prompts") {
        let tokens = case["tokens"].as_u64().expect("a count");
        if case["messages"].is_null() || tokens > 600 {
            continue;
        }
        let answer = chat(
            model(),
            &json!({"messages": case["messages"], "tools": case["tools"], "temperature": 0, "max_tokens": 64,
                    "enable_thinking": case["mode"] == "think"}),
        )
        .ok();
        let message = &answer["choices"][0]["message"];
        let thinks = case["mode"] == "think";
        let text = case["greedy_text"].as_str().expect("a text");
        let whole = !case["ends_at"].is_null();
        assert_eq!(given(message), read(text, whole, thinks, case["tools"].as_array()), "{}", case["name"]);
        let reason = match case["ends_at"].is_null() {
            true => "length",
            false if message.get("tool_calls").is_some() => "tool_calls",
            false => "stop",
        };
        assert_eq!(answer["choices"][0]["finish_reason"], reason);
        assert_eq!(answer["usage"]["prompt_tokens"], tokens);
        compared += 1;
    }
    assert!(compared >= 5);
}

/// The prompt is the same, so that it is found in the cache, and the model, which would call, does not.
#[test]
fn tools_that_may_not_be_chosen_are_not_called() {
    let tool = json!({"type": "function", "function": {"name": "get_stock_price", "description": "Get the price of a stock.",
        "parameters": {"type": "object", "properties": {"symbol": {"type": "string"}}, "required": ["symbol"]}}});
    let reply = |choice: &str| {
        let changes = json!({"tools": [tool], "tool_choice": choice});
        chat(model(), &ask("What is the stock price of TWU?", changes)).ok()
    };
    let (auto, none) = (reply("auto"), reply("none"));
    assert_eq!(auto["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!(none["usage"]["prompt_tokens"], auto["usage"]["prompt_tokens"]);
    let message = &none["choices"][0]["message"];
    assert!(message.get("tool_calls").is_none() && none["choices"][0]["finish_reason"] != "tool_calls", "{message}");
    assert!(!message["content"].as_str().expect("text").contains("<tool_call>"), "{message}");
}

#[test]
fn requests_at_once_equal_those_alone() {
    let requests: Vec<Value> = (0..16)
        .map(|index| {
            let question = format!("What is {} + {}?", 11 + 3 * index, 70 - index);
            ask(&question, json!({"temperature": f64::from(index % 3) * 0.6, "seed": index, "max_tokens": 16}))
        })
        .collect();
    let run = |request: &Value| {
        let answer = chat(model(), request).ok();
        (answer["choices"].clone(), answer["usage"].clone())
    };
    let alone: Vec<_> = requests.iter().map(run).collect();
    thread::scope(|scope| {
        let threads: Vec<_> = requests.iter().map(|request| scope.spawn(move || run(request))).collect();
        for (thread, alone) in threads.into_iter().zip(&alone) {
            assert_eq!(&thread.join().expect("an answer"), alone);
        }
    });
}

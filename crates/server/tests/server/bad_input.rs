//! What is wrong with a request is said, by name, and the server goes on.

use crate::client::{Connection, chat, get, post, request};
use crate::scripted::Scripted;
use crate::serving::{CONTEXT, NAME, model, scripted, with_template};
use serde_json::{Value, json};

/// A short good request with `changes`.
fn hello(changes: Value) -> Value {
    let mut request = json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2});
    for (name, value) in changes.as_object().expect("an object") {
        request[name] = value.clone();
    }
    request
}

#[test]
fn wrong_chat_parameters_are_named() {
    let user = json!({"role": "user", "content": "Hello"});
    for (changes, param) in [
        (json!({"messages": null}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": "Hello"}), "messages"),
        (json!({"messages": [user, {"role": "wizard", "content": "x"}]}), "messages[1].role"),
        (json!({"messages": [{"role": "user", "content": 7}]}), "messages[0].content"),
        (json!({"messages": [user, {"role": "user", "content": [{"type": "dance"}]}]}), "messages[1].content[0].type"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url"}]}]}),
            "messages[0].content[1].type",
        ),
        (
            json!({"messages": [user, {"role": "assistant", "tool_calls":
                [{"function": {"name": "f", "arguments": "{1"}}]}]}),
            "messages[1].tool_calls[0].function.arguments",
        ),
        (json!({"max_completion_tokens": u64::MAX}), "max_completion_tokens"),
        (json!({"max_tokens": -1}), "max_tokens"),
        (json!({"max_tokens": 1.5}), "max_tokens"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"temperature": "NaN"}), "temperature"),
        (json!({"top_p": 0}), "top_p"),
        (json!({"n": 0}), "n"),
        (json!({"n": 9}), "n"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"stream_options": []}), "stream_options"),
        (json!({"logprobs": 3}), "logprobs"),
        (json!({"top_logprobs": 3}), "top_logprobs"),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
        (json!({"logit_bias": {"6112": 101}}), "logit_bias.6112"),
        (json!({"logit_bias": {"6113": 1}}), "logit_bias"),
        (json!({"logit_bias": {"a": 1}}), "logit_bias"),
        (json!({"stop": [["x"]]}), "stop[0]"),
        (json!({"chat_template_kwargs": "x"}), "chat_template_kwargs"),
        (json!({"chat_template_kwargs": {"enable_thinking": "no"}}), "chat_template_kwargs.enable_thinking"),
        (json!({"enable_thinking": 0}), "enable_thinking"),
        (json!({"response_format": {"type": "yaml"}}), "response_format.type"),
        (json!({"tools": [{"type": "function"}]}), "tools[0].function"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"reasoning_effort": "extreme"}), "reasoning_effort"),
        (json!({"thinking_budget": -1}), "thinking_budget"),
        (json!({"functions": [{"name": "f"}]}), "functions"),
        (json!({"model": {}}), "model"),
    ] {
        let (named, _, message) = chat(model(), &hello(changes.clone())).error(400);
        assert_eq!(named, param, "{changes}: {message}");
        assert!(message.contains(param.split('[').next().expect("one")), "{param}: {message}");
    }
    chat(model(), &hello(json!({}))).ok();
}

#[test]
fn what_is_wrong_with_a_number_is_said_truly() {
    let seed = "'seed' must be between -9223372036854775808 and 9223372036854775807, not 1e+30.";
    for (changes, said) in [
        (json!({"seed": 1e30}), seed),
        (json!({"seed": 1.5}), "'seed' must be an integer, not a number with a fraction."),
        (json!({"top_p": 0}), "'top_p' must be above 0 and at most 1, not 0."),
        (json!({"top_p": 1e-60}), "'top_p' must be above 0 and at most 1, not 1e-60."),
        (json!({"top_p": 1.5}), "'top_p' must be above 0 and at most 1, not 1.5."),
        (json!({"logit_bias": {"x": 1}}), "'logit_bias' has the key \"x\"; its keys must be token ids below 6113."),
        (json!({"logit_bias": {"7": "x"}}), "'logit_bias.7' must be a number, not a string."),
    ] {
        let (_, _, message) = chat(model(), &hello(changes)).error(400);
        assert_eq!(message, said);
    }
}

#[test]
fn odd_but_good_requests_are_taken() {
    for changes in [
        json!({"temperature": null, "stop": null, "tools": null, "stream": null, "logit_bias": null, "n": null}),
        json!({"user": "me", "metadata": {"a": "b"}, "store": true, "unheard_of": [1, {"a": null}]}),
        json!({"model": "gpt-4o", "response_format": {"type": "text"}, "reasoning_effort": "high"}),
        json!({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"}),
        json!({"messages": [{"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
                            {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
                            {"role": "assistant", "content": null, "reasoning_content": "A tool.", "tool_calls":
                                [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
                            {"role": "tool", "tool_call_id": "1", "content": "7"}]}),
    ] {
        let answer = chat(model(), &hello(changes)).ok();
        assert_eq!(answer["model"], NAME);
    }
}

#[test]
fn wrong_completion_parameters_are_named() {
    for (body, param) in [
        (json!({}), "prompt"),
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": ""}), "prompt"),
        (json!({"prompt": 5}), "prompt"),
        (json!({"prompt": ["a", 5]}), "prompt[1]"),
        (json!({"prompt": ["a", ""]}), "prompt[1]"),
        (json!({"prompt": [1, "a"]}), "prompt[1]"),
        (json!({"prompt": [1, -1]}), "prompt[1]"),
        (json!({"prompt": [[1], [6113]]}), "prompt[1][0]"),
        (json!({"prompt": vec!["a"; 33]}), "prompt"),
        (json!({"prompt": vec!["a"; 5], "n": 8}), "prompt"),
        (json!({"prompt": "a", "logprobs": true}), "logprobs"),
        (json!({"prompt": "a", "logprobs": 1, "echo": true}), "echo"),
        (json!({"prompt": "a", "suffix": 5}), "suffix"),
        (json!({"prompt": "a", "best_of": 3}), "best_of"),
    ] {
        let (named, _, message) = post(model(), "/v1/completions", &body).error(400);
        assert_eq!(named, param, "{body}: {message}");
    }
}

#[test]
fn bodies_that_are_no_json_are_refused() {
    let messages = br#"{"messages": [{"role": "user", "content": ""#;
    let mut invalid_utf8 = messages.to_vec();
    invalid_utf8.extend(b"\xff\xfe\"}]}");
    let mut surrogate = messages.to_vec();
    surrogate.extend(br#"\ud800"}]}"#);
    let deep = "[".repeat(100_000);
    let bodies: [&[u8]; 9] = [
        b"",
        b"hello",
        b"{\"messages\": [",
        b"{\"temperature\": NaN}",
        b"{\"temperature\": 1e999}",
        b"[1]",
        deep.as_bytes(),
        &invalid_utf8,
        &surrogate,
    ];
    for path in ["/v1/chat/completions", "/v1/completions"] {
        for body in bodies {
            let (param, _, message) = request(model(), "POST", path, &[], body).error(400);
            assert_eq!(param, Value::Null);
            assert!(message.contains("JSON"), "{message}");
        }
    }
    let body = hello(json!({})).to_string();
    // A wrong Content-Type over good JSON is forgiven.
    request(model(), "POST", "/v1/chat/completions", &[("content-type", "text/plain")], body.as_bytes()).ok();
}

#[test]
fn unknown_paths_methods_and_models() {
    let (_, code, _) = get(model(), "/v2/nothing").error(404);
    assert_eq!(code, "not_found");
    for (method, path, allowed) in [
        ("GET", "/v1/chat/completions", "POST"),
        ("DELETE", "/v1/models", "GET,HEAD"),
        ("PUT", "/v1/responses/x", "GET,HEAD,DELETE"),
        ("POST", "/", "GET,HEAD"),
    ] {
        let answer = request(model(), method, path, &[], b"");
        let (_, code, message) = answer.error(405);
        assert_eq!((code, answer.header("allow")), (json!("method_not_allowed"), Some(allowed)));
        let allowed = allowed.replace(',', ", ");
        assert_eq!(message, format!("{path} does not take {method}, only {allowed}."));
    }
    let (param, code, message) = get(model(), "/v1/models/other").error(404);
    assert_eq!((param, code), (json!("model"), json!("model_not_found")));
    assert!(message.contains(NAME));

    let list = get(model(), "/v1/models").ok();
    assert_eq!(list["data"][0]["id"], NAME);
    assert_eq!(get(model(), &format!("/v1/models/{NAME}")).ok(), list["data"][0]);
}

/// Field case 38.
#[test]
fn a_prompt_over_the_context_is_refused_with_both_counts() {
    let limit = CONTEXT;
    let ids = vec![7; limit];
    let (param, code, message) = post(model(), "/v1/completions", &json!({"prompt": ids})).error(400);
    assert_eq!((param, code), (json!("prompt"), json!("context_length_exceeded")));
    assert!(message.contains(&format!("{limit} tokens")), "{message}");

    let long = "word ".repeat(limit);
    let (param, code, message) = chat(model(), &json!({"messages": [{"role": "user", "content": long}]})).error(400);
    assert_eq!((param, code), (json!("messages"), json!("context_length_exceeded")));
    let counts: Vec<usize> = message.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
    assert!(counts[0] > limit && counts[1] == limit, "{message}");
}

#[test]
fn a_longer_context_is_advised_only_where_there_is_one() {
    for (longest, advised) in [(None, false), (Some(1000), false), (Some(1001), true)] {
        let server = scripted(Scripted::new(1000), |config| config.longest_context = longest);
        let (_, code, message) = post(server.address, "/v1/completions", &json!({"prompt": vec![7; 1000]})).error(400);
        assert_eq!(code, "context_length_exceeded");
        assert_eq!(message.contains("--max-context"), advised, "{message}");
        assert!(message.contains("Shorten the prompt"), "{message}");
    }
}

#[test]
fn a_path_that_is_not_there_leads_on() {
    for (path, meant) in [
        ("/chat/completions", Some("/v1/chat/completions")),
        ("/v1/v1/models/", Some("/v1/models")),
        ("/completions", Some("/v1/completions")),
        ("/nowhere", None),
        ("/v1/v1/messages", Some("/v1/messages")),
    ] {
        let (_, code, message) = get(model(), path).error(404);
        assert_eq!(code, "not_found");
        let hint = meant.map(|meant| format!("Did you mean {meant}?"));
        assert_eq!(message.contains("Did you mean"), hint.is_some(), "{message}");
        assert!(hint.is_none_or(|hint| message.contains(&hint)), "{message}");
        assert!(message.contains("/v1/chat/completions, /v1/completions, /v1/responses, "), "{message}");
    }
}

#[test]
fn ten_megabytes_of_prompt_are_refused_without_being_tokenised() {
    for unit in ["lorem ipsum dolor ", "a", "\u{1f994}"] {
        let long = unit.repeat((10 << 20) / unit.len());
        let (_, code, message) = chat(model(), &json!({"messages": [{"role": "user", "content": long}]})).error(400);
        assert_eq!(code, "context_length_exceeded");
        assert!(message.contains("at least"), "{message}");
    }
    chat(model(), &hello(json!({}))).ok();
}

#[test]
fn a_body_over_the_limit_is_refused() {
    let server = scripted(Scripted::new(1000), |config| config.body_limit = 10_000);
    let body = |bytes: usize| {
        let content = "x".repeat(bytes);
        json!({"messages": [{"role": "user", "content": content}], "max_tokens": 1}).to_string()
    };
    let send = |bytes| request(server.address, "POST", "/v1/chat/completions", &[], body(bytes).as_bytes());
    send(900).ok();
    // Read to the end, so that clients that do not listen before that get the answer; and without a length, too.
    let (_, code, message) = send(15_000).error(413);
    assert_eq!(code, "body_too_large");
    assert!(message.contains("10000 bytes"), "{message}");
    let server_of_megabytes = scripted(Scripted::new(1000), |config| config.body_limit = 1 << 20);
    let mut connection = Connection::open(server_of_megabytes.address);
    connection.raw(b"POST /v1/completions HTTP/1.1\r\nhost: test\r\ncontent-length: 100000000\r\n\r\n");
    let (_, _, message) = connection.answer().error(413);
    assert!(message.contains("1 MiB"), "{message}");
    let mut chunked = Connection::open(server.address);
    chunked.raw(b"POST /v1/completions HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n");
    for _ in 0..15 {
        chunked.raw(b"3e8\r\n");
        chunked.raw(&[b' '; 1000]);
        chunked.raw(b"\r\n");
    }
    chunked.raw(b"0\r\n\r\n");
    chunked.answer().error(413);
    // Far over it, or asked before sending: refused at once.
    let mut far = Connection::open(server.address);
    far.raw(b"POST /v1/completions HTTP/1.1\r\nhost: test\r\ncontent-length: 100000000\r\n\r\n");
    far.answer().error(413);
    let mut asked = Connection::open(server.address);
    asked.raw(b"POST /v1/completions HTTP/1.1\r\nhost: test\r\ncontent-length: 15000\r\nexpect: 100-continue\r\n\r\n");
    asked.answer().error(413);
    send(900).ok();
}

/// Field case 12, on every endpoint that renders the template.
#[test]
fn a_template_that_refuses_gives_its_reason() {
    // The embedded template takes everything; the official one does not.
    let template = "{{ raise_exception('No user query found in messages.') }}";
    let server = with_template(Scripted::new(1000), template);
    for (path, body) in [
        ("/v1/chat/completions", hello(json!({}))),
        ("/v1/responses", json!({"input": "Hello"})),
        ("/v1/messages", hello(json!({"max_tokens": 9}))),
        ("/v1/messages/count_tokens", hello(json!({}))),
        ("/apply-template", hello(json!({}))),
    ] {
        let answer = post(server.address, path, &body);
        let message = answer.json()["error"]["message"].clone();
        assert_eq!((answer.status, message), (400, json!("No user query found in messages.")), "{path}");
    }
    let (param, ..) = chat(server.address, &hello(json!({}))).error(400);
    assert_eq!(param, json!("messages"));
    // A fault of the template's own is told as well, and is no fault of the server's.
    let server = with_template(Scripted::new(1000), "{{ messages[0].content / 2 }}");
    let (_, _, message) = chat(server.address, &hello(json!({}))).error(400);
    assert!(!message.is_empty());
}

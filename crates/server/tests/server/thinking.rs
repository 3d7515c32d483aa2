//! Thinking, and room for it, by the numbers of the field cases.

use crate::client::chat;
use crate::gather::gather;
use crate::serving::{Speaker, model, tokenizer};
use serde_json::{Value, json};

fn request(changes: Value) -> Value {
    let mut request = json!({"messages": [{"role": "user", "content": "Go"}]});
    for (name, value) in changes.as_object().expect("an object") {
        request[name] = value.clone();
    }
    request
}

#[test]
fn case_27_without_a_closing_tag_everything_is_reasoning() {
    let speaker = Speaker::new(true, 4096);
    let tool = json!([{"type": "function", "function": {"name": "f"}}]);
    for changes in [json!({}), json!({"tools": tool})] {
        for (most, reason) in [(100, "stop"), (3, "length")] {
            let mut request = request(changes.clone());
            request["max_tokens"] = json!(most);
            let reply = speaker.reply("on and on and on", &request);
            let message = &reply["choices"][0]["message"];
            assert!("on and on and on".starts_with(message["reasoning_content"].as_str().expect("reasoning")));
            assert_eq!(message["reasoning"], message["reasoning_content"]);
            assert_eq!((&message["content"], &reply["choices"][0]["finish_reason"]), (&json!(""), &json!(reason)));
            assert_eq!(
                reply["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().map(|n| n > 0),
                Some(true)
            );
        }
    }
}

#[test]
fn case_13_and_28_thinking_is_switched_off_and_on() {
    let speaker = Speaker::new(true, 4096);
    let thinks = |changes: Value| {
        speaker.reply("x", &request(changes));
        speaker.prompt().ends_with("<think>\n")
    };
    for off in [
        json!({"reasoning_effort": "none"}),
        json!({"enable_thinking": false}),
        json!({"chat_template_kwargs": {"enable_thinking": false}}),
        json!({"reasoning_effort": "high", "enable_thinking": false}),
    ] {
        assert!(!thinks(off.clone()), "{off}");
    }
    for effort in ["minimal", "low", "medium", "high", "xhigh"] {
        assert!(thinks(json!({"reasoning_effort": effort})), "{effort}");
    }
    assert!(thinks(json!({})));
}

/// What is thought over may hold what is to end the answer.
#[test]
fn a_stop_string_ends_the_answer_and_not_the_thought() {
    let speaker = Speaker::new(true, 4096);
    let said = "The capital of Norway.\nOslo.\n</think>\n\nIn Norway it is Oslo.";
    for (stop, content) in [(json!(["Norway"]), "In "), (json!("\n"), "In Norway it is Oslo.")] {
        let request = request(json!({"stop": stop}));
        let whole = speaker.reply(said, &request);
        let choice = &whole["choices"][0];
        assert_eq!(choice["message"]["reasoning_content"], "The capital of Norway.\nOslo.", "{stop}");
        assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&json!(content), &json!("stop")));
        speaker.lines.say(tokenizer().encode(said).expect("tokens"));
        let (streamed, usage) = gather(speaker.server.address, &request, 0);
        assert_eq!((&streamed, &usage), (choice, &whole["usage"]), "{stop}");
    }
}

/// The script goes on as if nothing had happened; what it says while the reasoning is closed is lost.
#[test]
fn case_31_a_budget_closes_reasoning_and_the_answer_follows() {
    let speaker = Speaker::new(true, 4096);
    let thought = "one two three four five six seven eight nine ten";
    let tokens = tokenizer().encode(thought).expect("tokens");
    let text = |tokens: &[u32]| tokenizer().decode(tokens);
    let close = tokenizer().encode("\n</think>\n\n").expect("tokens").len();
    for budget in [1, 4] {
        for changes in [
            json!({"thinking_budget": budget}),
            json!({"chat_template_kwargs": {"thinking_budget": budget}}),
            json!({"thinking_budget": 9, "chat_template_kwargs": {"thinking_budget": budget}, "logprobs": true}),
        ] {
            let request = request(changes);
            let whole = speaker.reply(thought, &request);
            let message = &whole["choices"][0]["message"];
            assert_eq!(message["reasoning_content"], text(&tokens[..budget]));
            assert_eq!(message["content"], text(&tokens[budget + close..]));
            assert_eq!(whole["choices"][0]["finish_reason"], "stop");
            let usage = &whole["usage"];
            assert_eq!(usage["completion_tokens"], tokens.len() + 1);
            assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], budget + close);
            speaker.lines.say(tokens.clone());
            let (streamed, same) = gather(speaker.server.address, &request, 0);
            assert_eq!((&streamed, &same), (&whole["choices"][0], usage));
        }
    }
    let reply = |text: &str, changes: Value| {
        let reply = speaker.reply(text, &request(changes))["choices"][0].take();
        (
            reply["message"]["reasoning_content"].clone(),
            reply["message"]["content"].clone(),
            reply["finish_reason"].clone(),
        )
    };
    // Closed in time; a limit that comes first; no thinking at all.
    let closed = reply("a b\n</think>\n\nc d e f g h", json!({"thinking_budget": 6}));
    assert_eq!(closed, (json!("a b"), json!("c d e f g h"), json!("stop")));
    let limited = reply(thought, json!({"thinking_budget": 6, "max_tokens": 7}));
    assert_eq!(limited, (json!(text(&tokens[..6])), json!(""), json!("length")));
    let none = reply(thought, json!({"thinking_budget": 0}));
    assert_eq!(none, (Value::Null, json!(thought), json!("stop")));
    assert!(speaker.prompt().ends_with("<think>\n\n</think>\n\n"));
    assert_eq!(reply(thought, json!({"thinking_budget": 2, "enable_thinking": false})).1, thought);
    // A budget of "low" is larger than that.
    assert_eq!(reply(thought, json!({"reasoning_effort": "low"})).0, thought);
    // A call that comes before the end of the reasoning is not closed in its middle.
    let call =
        "I\n<tool_call>\n<function=f>\n<parameter=a>\none two three four\n</parameter>\n</function>\n</tool_call>";
    let tool = json!([{"type": "function", "function": {"name": "f"}}]);
    let called = speaker.reply(call, &request(json!({"thinking_budget": 8, "tools": tool})));
    let function = &called["choices"][0]["message"]["tool_calls"][0]["function"];
    assert_eq!(function["arguments"], r#"{"a":"one two three four"}"#);
}

#[test]
fn the_embedded_model_answers_when_its_thought_is_closed() {
    let ask = json!({"messages": [{"role": "user", "content": "What is 38 + 57?"}], "temperature": 0, "max_tokens": 120,
        "thinking_budget": 5});
    let reply = chat(model(), &ask).ok();
    let choice = &reply["choices"][0];
    let content = choice["message"]["content"].as_str().expect("text");
    assert!(!content.is_empty() && !content.contains("think>"), "{choice}");
    assert_eq!(choice["finish_reason"], "stop", "{choice}");
    let close = tokenizer().encode("\n</think>\n\n").expect("tokens").len();
    assert_eq!(reply["usage"]["completion_tokens_details"]["reasoning_tokens"], 5 + close);
    let (streamed, usage) = gather(model(), &ask, 0);
    assert_eq!((&streamed, &usage), (choice, &reply["usage"]));
}

/// What a server was started with holds where a request is silent.
#[test]
fn defaults_are_what_a_request_is_silent_about() {
    let sampling = lily_backend::Sampling { temperature: 0.7, top_k: 20, top_p: 0.8, min_p: 0.0 };
    let speaker = Speaker::with(true, 4096, |config| {
        config.defaults = lily_server::Defaults { sampling, presence_penalty: 1.5, thinking: false, ..config.defaults };
    });
    let run = |changes: Value| {
        speaker.reply("a b c", &request(changes));
        let (sampling, adjustments) = speaker.lines.sampling();
        (sampling, adjustments.iter().map(|a| a.add).fold(0.0, f32::min), speaker.prompt().ends_with("<think>\n"))
    };
    assert_eq!(run(json!({})), (sampling, -1.5, false));
    let own = lily_backend::Sampling { temperature: 0.25, top_k: 3, ..sampling };
    assert_eq!(run(json!({"temperature": 0.25, "top_k": 3, "presence_penalty": 0})), (own, 0.0, false));
    for thinks in [
        json!({"enable_thinking": true}),
        json!({"reasoning_effort": "high"}),
        json!({"thinking_budget": 100}),
        json!({"chat_template_kwargs": {"enable_thinking": true}}),
    ] {
        assert_eq!(run(thinks.clone()), (sampling, -1.5, true), "{thinks}");
    }
}

#[test]
fn more_tokens_than_there_is_room_for_are_what_is_left() {
    let speaker = Speaker::new(true, 200);
    for most in [json!({"max_tokens": 32_000}), json!({"max_completion_tokens": i64::MAX}), json!({})] {
        // Without a line the script goes on for ever.
        let reply = chat(speaker.server.address, &request(most.clone())).ok();
        assert_eq!(reply["choices"][0]["finish_reason"], "length", "{most}");
        assert_eq!(reply["usage"]["total_tokens"], 200, "{most}");
        let (streamed, usage) = gather(speaker.server.address, &request(most), 0);
        assert_eq!((streamed["finish_reason"].clone(), usage["total_tokens"].clone()), (json!("length"), json!(200)));
    }
    let long = json!([{"role": "user", "content": "word ".repeat(300)}]);
    let (_, code, message) =
        chat(speaker.server.address, &request(json!({"messages": long, "max_tokens": 9}))).error(400);
    assert_eq!(code, "context_length_exceeded");
    assert!(message.contains("200 tokens"), "{message}");
}

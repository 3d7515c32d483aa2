//! Events: their order, their shapes, and that they amount to the whole.

use super::{events, gather, names, replied, respond, say, user, with, without_ids};
use crate::client::Connection;
use crate::scripted::Scripted;
use crate::serving::{Server, Speaker, model, scripted, wait_until};
use serde_json::{Value, json};
use std::time::Duration;

const CALL: &str = "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>";

fn tools() -> Value {
    json!([{"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {
        "city": {"type": "string"}}}}, {"type": "custom", "name": "patch"}])
}

#[test]
fn every_event_of_a_reply_in_its_place() {
    let speaker = Speaker::new(false, 4096);
    say(&speaker, &format!("Hm</think>\n\nOne\n\n{CALL}"));
    let request = json!({"input": "Go", "stream": true, "tools": tools()});
    let events = events(&respond(speaker.server.address, &request));
    let mut names = names(&events);
    // However many deltas there are.
    names.dedup_by(|a, b| a == b && a.ends_with(".delta"));
    let expected = [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ];
    assert_eq!(names, expected);
    let response = gather(&events);
    let kinds: Vec<_> = response["output"].as_array().expect("items").iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call"]);
}

/// The response's own fields, none more and none less.
#[test]
fn the_response_has_every_field() {
    let speaker = Speaker::new(false, 4096);
    let request = json!({"model": "any", "instructions": "Be brief.", "input": [user("Go")], "temperature": 0.7,
        "top_p": 0.9, "max_output_tokens": 50, "metadata": {"a": "b"}, "user": "me", "prompt_cache_key": "k",
        "reasoning": {"effort": "low", "summary": null}, "parallel_tool_calls": false, "store": false,
        "text": {"verbosity": "low"}, "include": ["reasoning.encrypted_content"], "service_tier": "auto"});
    let response = without_ids(&replied(&speaker, "Hm\n</think>\n\nDone", &request));
    let part = json!({"type": "output_text", "text": "Done", "annotations": [], "logprobs": []});
    let output = json!([
        {"id": "rs_N_0", "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}],
            "status": "completed"},
        {"id": "msg_N_1", "type": "message", "status": "completed", "role": "assistant", "content": [part]},
    ]);
    let usage = &response["usage"];
    let count = |value: &Value| value.as_u64().expect("a count");
    assert_eq!(count(&usage["total_tokens"]), count(&usage["input_tokens"]) + count(&usage["output_tokens"]));
    let reasoning = count(&usage["output_tokens_details"]["reasoning_tokens"]);
    assert!(reasoning > 0 && reasoning < count(&usage["output_tokens"]), "{usage}");
    let expected = json!({
        "id": "resp_N", "object": "response", "created_at": null, "status": "completed", "background": false,
        "completed_at": null, "error": null, "incomplete_details": null, "instructions": "Be brief.",
        "max_output_tokens": 50, "max_tool_calls": null, "model": "lily/tiny", "output": output,
        "parallel_tool_calls": false, "previous_response_id": null, "prompt_cache_key": "k",
        "reasoning": {"effort": "low", "summary": null}, "safety_identifier": null, "service_tier": "default",
        "store": false, "temperature": 0.7, "text": {"format": {"type": "text"}, "verbosity": "low"},
        "tool_choice": "auto", "tools": [], "top_logprobs": 0, "top_p": 0.9, "truncation": "disabled",
        "usage": usage, "user": "me", "metadata": {"a": "b"},
    });
    assert_eq!(response, expected);
    assert!(speaker.prompt().starts_with("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nGo<|im_end|>\n"));
}

#[test]
fn a_stream_amounts_to_the_whole_response() {
    let speaker = Speaker::new(false, 4096);
    let patch = "<tool_call>\n<function=patch>\n<parameter=input>\n*** Begin\n+\"x\"\t🦔\n\n</parameter>\n</function>\n</tool_call>";
    for (text, changes) in [
        ("Hm\n</think>\n\nAn answer of some words.", json!({})),
        ("Hm\n</think>\n\nAn answer.", json!({"reasoning": {"summary": "auto"}})),
        ("An answer.", json!({"reasoning": {"effort": "none"}})),
        ("", json!({})),
        ("On and on and on", json!({"max_output_tokens": 3})),
        ("Hm\n</think>\n\nOn and on and on", json!({"max_output_tokens": 8})),
        ("An answer.", json!({"stop": "ans", "enable_thinking": false})),
        (CALL, json!({"enable_thinking": false})),
        (&format!("Now:\n\n{CALL}\n{patch}\n\nand\n\n{CALL}"), json!({"enable_thinking": false})),
        (&format!("{patch}\n{CALL}"), json!({"parallel_tool_calls": false, "enable_thinking": false})),
        ("</function>\n</tool_call>", json!({"tool_choice": {"type": "function", "name": "weather"}})),
    ] {
        let request = with(json!({"input": "Go", "tools": tools()}), &changes);
        let whole = replied(&speaker, text, &request);
        say(&speaker, text);
        let streamed = events(&respond(speaker.server.address, &with(request, &json!({"stream": true}))));
        assert_eq!(without_ids(&gather(&streamed)), without_ids(&whole), "{text:?}");
    }
    for changes in [json!({}), json!({"temperature": 1.2, "seed": 7, "max_output_tokens": 40})] {
        let request = with(json!({"input": "What is 38 + 57?"}), &changes);
        let whole = respond(model(), &request).ok();
        let streamed = events(&respond(model(), &with(request, &json!({"stream": true}))));
        assert_eq!(without_ids(&gather(&streamed)), without_ids(&whole));
    }
}

/// Clients run a call as soon as it is said to be done.
#[test]
fn a_cut_call_is_never_said_to_be_done() {
    let speaker = Speaker::new(false, 4096);
    let tokens = crate::serving::tokenizer().encode(CALL).expect("tokens").len();
    let (mut begun, mut cut) = (0, Vec::new());
    for most in 1..=tokens {
        cut.push(json!({"max_output_tokens": most}));
    }
    cut.push(json!({"stop": "Os"}));
    for changes in cut {
        say(&speaker, CALL);
        let request = json!({"input": "Go", "tools": tools(), "stream": true, "enable_thinking": false});
        let events = events(&respond(speaker.server.address, &with(request, &changes)));
        let response = gather(&events);
        let stopped = changes.get("stop").is_some();
        let (status, last) = if stopped { ("completed", "completed") } else { ("incomplete", "incomplete") };
        assert_eq!((&response["status"], names(&events).pop()), (&json!(status), Some(last)));
        let details = if stopped { Value::Null } else { json!({"reason": "max_output_tokens"}) };
        assert_eq!(response["incomplete_details"], details);
        let items = response["output"].as_array().expect("items");
        if let Some(call) = items.iter().find(|item| item["type"] == "function_call") {
            let is_cut = call["status"] == "incomplete";
            begun += usize::from(is_cut);
            let arguments = call["arguments"].as_str().expect("text");
            assert_eq!(serde_json::from_str::<Value>(arguments).is_err(), is_cut, "{arguments}");
            assert_eq!(names(&events).contains(&"function_call_arguments.done"), !is_cut);
        }
    }
    assert!(begun > 5, "{begun}");
}

#[test]
fn arguments_and_inputs_come_in_many_deltas() {
    let speaker = Speaker::new(false, 4096);
    let long = "a long text that goes on and on \"in quotes\"\nand lines";
    for (name, parameter, delta) in [
        ("weather", "city", "response.function_call_arguments.delta"),
        ("patch", "input", "response.custom_tool_call_input.delta"),
    ] {
        say(
            &speaker,
            &format!(
                "<tool_call>\n<function={name}>\n<parameter={parameter}>\n{long}\n</parameter>\n</function>\n</tool_call>"
            ),
        );
        let request = json!({"input": "Go", "tools": tools(), "stream": true, "enable_thinking": false});
        let events = events(&respond(speaker.server.address, &request));
        assert!(events.iter().filter(|event| event["type"] == delta).count() > 8);
        let call = &gather(&events)["output"][0];
        let arguments = json!({"city": long}).to_string();
        assert!(call["arguments"] == arguments.as_str() || call["input"] == long, "{call}");
    }
}

fn slow(step: Duration) -> Server {
    let server = scripted(Scripted::new(1_000_000).taking(step), |_| {});
    wait_until("readiness", || crate::client::get(server.address, "/ready").status == 200);
    server
}

fn begin(server: &Server, request: &Value) -> Connection {
    let mut connection = Connection::open(server.address);
    connection.send("POST", "/v1/responses", &[], request.to_string().as_bytes());
    connection
}

/// Field case 39.
#[test]
fn a_long_prompt_keeps_its_stream_alive() {
    let server = slow(Duration::from_millis(700));
    let mut connection = begin(&server, &json!({"input": "word ".repeat(60_000), "stream": true}));
    assert_eq!(connection.head().0, 200);
    let mut chunk = || String::from_utf8(connection.chunk().expect("a chunk")).expect("UTF-8");
    assert!(
        chunk().starts_with("event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,")
    );
    assert!(chunk().starts_with("event: response.in_progress\n"));
    let third = chunk();
    assert!(third.starts_with(": prefill ") && third.ends_with("\n\n"), "{third}");
}

#[test]
fn a_failure_within_a_stream_is_an_event() {
    let server = scripted(Scripted::new(1000).failing_at(30), |_| {});
    wait_until("readiness", || crate::client::get(server.address, "/ready").status == 200);
    let events = events(&respond(server.address, &json!({"input": "Hello", "stream": true})));
    let last = &events.last().expect("events")["response"];
    assert_eq!((names(&events).pop(), &last["status"]), (Some("failed"), &json!("failed")));
    assert_eq!(last["error"]["code"], "server_error");
    assert!(last["error"]["message"].as_str().expect("a message").contains("the script ends here"), "{last}");
    assert!(events.len() > 8);
    let (_, _, message) = respond(server.address, &json!({"input": "Hello"})).error(500);
    assert!(message.contains("the script ends here"), "{message}");
}

#[test]
fn a_shutdown_is_a_failure_too() {
    let script = Scripted::new(1_000_000).taking(Duration::from_millis(10));
    let mut server = scripted(script, |config| config.shutdown_grace = Duration::from_millis(300));
    wait_until("readiness", || crate::client::get(server.address, "/ready").status == 200);
    let mut streamed = begin(&server, &json!({"input": "Hello", "stream": true}));
    wait_until("it runs", || server.engine.stats().running == 1);
    server.stop();
    let events = events(&streamed.answer());
    assert_eq!(names(&events).pop(), Some("failed"));
    server.join();
}

#[test]
fn a_client_that_goes_ends_its_reply() {
    let server = slow(Duration::from_millis(10));
    for stream in [true, false] {
        let connection = begin(&server, &json!({"input": "Hello", "stream": stream}));
        wait_until("it runs", || server.engine.stats().running == 1);
        drop(connection);
        wait_until("it has ended", || server.engine.stats().running == 0);
    }
}

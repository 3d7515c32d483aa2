//! Events: their order, and that they amount to the whole message.

use super::{anonymous, ask, both, reply, send, tool, written};
use crate::client::{Answer, Connection};
use crate::scripted::Scripted;
use crate::serving::{Speaker, model, scripted, tokenizer, wait_until};
use serde_json::{Map, Value, json};
use std::net::SocketAddr;
use std::time::Duration;

/// The data of a stream's events, each of which is named as its type is. Comments and pings are skipped.
pub(super) fn events(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    let text = String::from_utf8(answer.body.clone()).expect("UTF-8");
    let mut events = Vec::new();
    for block in text.split_terminator("\n\n") {
        let lines: Vec<&str> = block.lines().filter(|line| !line.starts_with(':')).collect();
        let [name, data] = lines.as_slice() else {
            assert!(lines.is_empty(), "no event: {block:?}");
            continue;
        };
        let name = name.strip_prefix("event: ").unwrap_or_else(|| panic!("no name: {block:?}"));
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
        assert_eq!(data["type"], name);
        if name != "ping" {
            events.push(data);
        }
    }
    events
}

/// What a streamed message amounts to. The order of its events is checked on the way.
pub(super) fn gather(address: SocketAddr, request: &Value) -> Value {
    let mut request = request.clone();
    request["stream"] = json!(true);
    let events = events(&send(address, &request));
    let [start, blocks @ .., end, stop] = events.as_slice() else { panic!("too few events: {events:?}") };
    assert_eq!(start["type"], "message_start");
    let mut message = start["message"].clone();
    assert_eq!((&message["content"], &message["stop_reason"]), (&json!([]), &Value::Null));
    assert_eq!(message["usage"]["output_tokens"], 0);
    let mut content = Vec::new();
    let mut open: Option<(Value, String)> = None;
    for event in blocks {
        match (event["type"].as_str().expect("a type"), &mut open) {
            ("content_block_start", open @ None) => *open = Some((event["content_block"].clone(), String::new())),
            ("content_block_delta", Some((block, json))) => extend(block, json, &event["delta"]),
            ("content_block_stop", open @ Some(_)) => {
                let (mut block, json) = open.take().expect("it is open");
                assert_eq!(event["index"], content.len());
                if block["type"] == "tool_use" {
                    match serde_json::from_str(&json) {
                        Ok(input) => block["input"] = input,
                        // A call that was cut is the last, and no part of the whole message.
                        Err(_) => {
                            assert_ne!(end["delta"]["stop_reason"], "tool_use", "{json}");
                            assert_eq!(event, &blocks[blocks.len() - 1]);
                            continue;
                        }
                    }
                }
                content.push(block);
                continue;
            }
            _ => panic!("out of order: {event}"),
        }
        assert_eq!(event["index"], content.len());
    }
    assert!(open.is_none(), "a block is left open");
    assert_eq!((&end["type"], stop), (&json!("message_delta"), &json!({"type": "message_stop"})));
    for name in ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"] {
        assert_eq!(message["usage"][name], end["usage"][name], "{name} is right from the first event on");
    }
    message["content"] = json!(content);
    message["usage"] = end["usage"].clone();
    for (name, value) in end["delta"].as_object().expect("an object") {
        message[name] = value.clone();
    }
    message
}

fn extend(block: &mut Value, json: &mut String, delta: &Value) {
    let delta = delta.as_object().expect("an object");
    let text = |name: &str| delta[name].as_str().expect("a string");
    let mut append = |name: &str, more: &str| {
        let so_far = block[name].as_str().expect("a string").to_owned();
        block[name] = json!(so_far + more);
    };
    match text("type") {
        "text_delta" => append("text", text("text")),
        "thinking_delta" => append("thinking", text("thinking")),
        "signature_delta" => append("signature", text("signature")),
        "input_json_delta" => json.push_str(text("partial_json")),
        other => panic!("no such delta: {other}"),
    }
    assert_eq!(delta.len(), 2);
}

#[test]
fn a_stream_amounts_to_the_whole_message() {
    let thinking = json!({"type": "enabled", "budget_tokens": 4096});
    for (question, changes) in [
        ("What is 38 + 57?", json!({})),
        ("What is 38 + 57?", json!({"thinking": thinking})),
        ("What is 38 + 57?", json!({"thinking": {"type": "adaptive", "display": "omitted"}})),
        ("What is 38 + 57?", json!({"thinking": thinking, "max_tokens": 10})),
        ("What is 38 + 57?", json!({"stop_sequences": [" = 9", "\u{1f994}"]})),
        ("Write these words as emoji: cat, rocket, star", json!({})),
        ("Hello", json!({"temperature": 1, "top_k": 5, "top_p": 0.9, "seed": 3})),
    ] {
        let request = ask(question, changes.clone());
        let whole = send(model(), &request).ok();
        assert_eq!(anonymous(gather(model(), &request)), anonymous(whole), "{changes}");
    }
}

#[test]
fn blocks_follow_each_other_in_order() {
    let text = format!(
        "Hm, Oslo.\n</think>\n\nLet me look.\n\n{}\n{}",
        written("weather", &[("city", "Oslo in the north"), ("days", "2.0")]),
        written("now", &[])
    );
    let request = ask("Go", json!({"tools": [tool("weather"), tool("now")], "thinking": {"type": "adaptive"}}));
    let speaker = Speaker::new(true, 4096);
    let whole = both(&speaker, &text, &request);
    let block = |kind: &str, rest: Value| {
        let mut block = json!({"type": kind});
        block.as_object_mut().expect("an object").extend(rest.as_object().expect("an object").clone());
        block
    };
    let id = |index: usize| whole["content"][index]["id"].clone();
    let expected = json!([
        block("thinking", json!({"thinking": "Hm, Oslo.", "signature": whole["content"][0]["signature"]})),
        block("text", json!({"text": "Let me look."})),
        block("tool_use", json!({"id": id(2), "name": "weather", "input": {"city": "Oslo in the north", "days": 2}})),
        block("tool_use", json!({"id": id(3), "name": "now", "input": {}})),
    ]);
    assert_eq!(whole["content"], expected);
    assert_ne!(id(2), id(3));
    assert_ne!(whole["content"][0]["signature"], "");
    assert_eq!((&whole["stop_reason"], &whole["stop_sequence"]), (&json!("tool_use"), &Value::Null));

    speaker.lines.say(tokenizer().encode(&text).expect("tokens"));
    let mut streamed = request;
    streamed["stream"] = json!(true);
    let events = events(&send(speaker.server.address, &streamed));
    let deltas = |kind: &str| events.iter().filter(|event| event["delta"]["type"] == kind).count();
    assert!(deltas("text_delta") > 1 && deltas("thinking_delta") > 1, "text comes as it is made");
    assert!(deltas("input_json_delta") > 4, "arguments too");
    let mut order: Vec<String> = events
        .iter()
        .map(|event| {
            let part = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let index = event["index"].as_u64().map_or(String::new(), |index| index.to_string());
            let kind = part(&event["content_block"]["type"]) + &part(&event["delta"]["type"]);
            format!("{} {index} {kind}", part(&event["type"])).trim().to_owned()
        })
        .collect();
    order.dedup();
    let expected = [
        "message_start",
        "content_block_start 0 thinking",
        "content_block_delta 0 thinking_delta",
        "content_block_delta 0 signature_delta",
        "content_block_stop 0",
        "content_block_start 1 text",
        "content_block_delta 1 text_delta",
        "content_block_stop 1",
        "content_block_start 2 tool_use",
        "content_block_delta 2 input_json_delta",
        "content_block_stop 2",
        "content_block_start 3 tool_use",
        "content_block_delta 3 input_json_delta",
        "content_block_stop 3",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(order, expected);
}

#[test]
fn every_way_to_end_has_its_name() {
    let speaker = Speaker::new(true, 4096);
    let tools = json!([tool("weather")]);
    let call = written("weather", &[("city", "Oslo and some more")]);
    let most = tokenizer().encode(&call).expect("tokens").len() - 8;
    for (text, changes, reason, sequence, kinds) in [
        ("All well.", json!({}), "end_turn", Value::Null, json!(["text"])),
        ("", json!({}), "end_turn", Value::Null, json!([])),
        ("All is well.", json!({"max_tokens": 2}), "max_tokens", Value::Null, json!(["text"])),
        ("All well.", json!({"stop_sequences": ["x", " we"]}), "stop_sequence", json!(" we"), json!(["text"])),
        ("All well.", json!({"stop_sequences": ["All"]}), "stop_sequence", json!("All"), json!([])),
        (&call, json!({"tools": tools}), "tool_use", Value::Null, json!(["tool_use"])),
        (&call, json!({"tools": tools, "stop_sequences": ["some"]}), "stop_sequence", json!("some"), json!([])),
        (&call, json!({"tools": tools, "max_tokens": most}), "max_tokens", Value::Null, json!([])),
        (&call, json!({}), "end_turn", Value::Null, json!(["text"])),
    ] {
        let message = both(&speaker, text, &ask("Go", changes.clone()));
        assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&json!(reason), &sequence), "{changes}");
        let blocks = message["content"].as_array().expect("blocks");
        assert_eq!(json!(blocks.iter().map(|block| &block["type"]).collect::<Vec<_>>()), kinds, "{changes}");
    }
}

#[test]
fn thinking_can_be_left_out() {
    let speaker = Speaker::new(true, 4096);
    let shown = |display: &str| {
        let thinking = json!({"type": "adaptive", "display": display});
        both(&speaker, "Hm.\n</think>\n\nYes", &ask("Go", json!({"thinking": thinking})))["content"].clone()
    };
    let (summarized, omitted) = (shown("summarized"), shown("omitted"));
    assert_eq!((&summarized[0]["thinking"], &omitted[0]["thinking"]), (&json!("Hm."), &json!("")));
    assert_eq!((&summarized[1], &summarized[0]["signature"]), (&omitted[1], &omitted[0]["signature"]));
    let never_closed = both(&speaker, "Hm and so on", &ask("Go", json!({"thinking": {"type": "adaptive"}})));
    assert_eq!(never_closed["content"].as_array().map(Vec::len), Some(1));
    assert_eq!(never_closed["content"][0]["thinking"], "Hm and so on");
}

/// Field case 39.
#[test]
fn a_long_prompt_is_told_in_pings() {
    // One step of a long prompt takes longer than clients wait in silence.
    let server = scripted(Scripted::new(1_000_000).taking(Duration::from_millis(700)), |_| {});
    wait_until("ready", || crate::client::get(server.address, "/ready").status == 200);
    let mut connection = Connection::open(server.address);
    let request = ask(&"word ".repeat(20_000), json!({"stream": true}));
    connection.send("POST", "/v1/messages", &[], request.to_string().as_bytes());
    assert_eq!(connection.head().0, 200);
    let mut chunk = || String::from_utf8(connection.chunk().expect("a chunk")).expect("UTF-8");
    let first = chunk();
    assert!(first.starts_with("event: message_start\ndata: {"), "{first}");
    let second = chunk();
    assert!(second.starts_with(": prefill "), "{second}");
    assert!(second.ends_with("\nevent: ping\ndata: {\"type\":\"ping\"}\n\n"), "{second}");
}

#[test]
fn a_failure_within_a_stream_is_an_event() {
    let server = scripted(Scripted::new(1000).failing_at(30), |_| {});
    wait_until("ready", || crate::client::get(server.address, "/ready").status == 200);
    let events = events(&send(server.address, &ask("Go", json!({"stream": true, "max_tokens": 500}))));
    let (last, before) = events.split_last().expect("events");
    assert!(before.len() > 5 && before.iter().all(|event| event["type"] != "error"));
    assert_eq!((&last["type"], &last["error"]["type"]), (&json!("error"), &json!("api_error")));
    assert!(last["error"]["message"].as_str().expect("a message").contains("the script ends here"));
}

#[test]
fn a_message_has_what_clients_look_for() {
    let speaker = Speaker::new(true, 4096);
    let message = reply(&speaker, "Hi", &ask("Go", json!({})));
    let names: Vec<&String> = message.as_object().map(Map::keys).expect("an object").collect();
    assert_eq!(names, ["id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"]);
    assert_eq!((&message["type"], &message["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!(message["model"], crate::serving::NAME);
    assert_eq!(message["content"], json!([{"type": "text", "text": "Hi"}]));
}

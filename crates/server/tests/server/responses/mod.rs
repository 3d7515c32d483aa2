//! The Responses endpoint.

mod calls;
mod conversation;
mod errors;
mod format;
mod stream;

use crate::client::{Answer, post};
use crate::serving::{Speaker, tokenizer};
use serde_json::{Value, json};
use std::net::SocketAddr;

fn respond(address: SocketAddr, request: &Value) -> Answer {
    post(address, "/v1/responses", request)
}

/// `request` with `changes`.
fn with(mut request: Value, changes: &Value) -> Value {
    for (name, value) in changes.as_object().expect("an object") {
        request[name] = value.clone();
    }
    request
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

/// The speaker's next reply will be `text`.
fn say(speaker: &Speaker, text: &str) {
    speaker.lines.say(tokenizer().encode(text).expect("tokens"));
}

/// The response whose reply is `text`.
fn replied(speaker: &Speaker, text: &str, request: &Value) -> Value {
    say(speaker, text);
    respond(speaker.server.address, request).ok()
}

/// The events of a stream, in which each bears its name and number.
fn events(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    let text = String::from_utf8(answer.body.clone()).expect("UTF-8");
    let mut events = Vec::new();
    for block in text.split_terminator("\n\n").filter(|block| !block.starts_with(':')) {
        let (name, data) = block.split_once('\n').unwrap_or_else(|| panic!("one line: {block:?}"));
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        assert_eq!(data["sequence_number"], events.len());
        events.push(data);
    }
    events
}

/// The events' names without what all begin with.
fn names(events: &[Value]) -> Vec<&str> {
    events
        .iter()
        .map(|event| event["type"].as_str().and_then(|name| name.strip_prefix("response.")).expect("a name"))
        .collect()
}

/// The response that a stream ends with, after all that was told on the way has proved to amount to it.
fn gather(events: &[Value]) -> Value {
    let [created, in_progress, .., last] = events else { panic!("too few: {events:?}") };
    let begun = &created["response"];
    assert_eq!(
        (&begun["status"], &begun["output"], &begun["usage"]),
        (&json!("in_progress"), &json!([]), &Value::Null)
    );
    assert_eq!(&in_progress["response"], begun);
    let last = &last["response"];
    for (name, value) in begun.as_object().expect("an object") {
        if !["status", "output", "usage", "completed_at", "incomplete_details", "error"].contains(&name.as_str()) {
            assert_eq!(value, &last[name], "{name}");
        }
    }
    let mut gathered = Gathered::default();
    for event in &events[2..events.len() - 1] {
        gathered.take(event);
    }
    gathered.end(&last["output"]);
    last.clone()
}

#[derive(Default)]
struct Gathered {
    done: Vec<Value>,
    /// The item that has begun, and the texts of its parts.
    open: Option<(Value, Vec<String>)>,
}

impl Gathered {
    fn take(&mut self, event: &Value) {
        assert_eq!(event["output_index"], self.done.len(), "{event}");
        let name = event["type"].as_str().expect("a name");
        if name == "response.output_item.added" {
            assert!(self.open.is_none(), "{event}");
            assert_eq!(event["item"]["status"], "in_progress");
            self.open = Some((event["item"].clone(), Vec::new()));
            return;
        }
        let (item, parts) = self.open.as_mut().unwrap_or_else(|| panic!("nothing is open: {event}"));
        match name {
            "response.output_item.done" => {
                assert_eq!((&event["item"]["id"], &event["item"]["type"]), (&item["id"], &item["type"]));
                assert_eq!(texts(&event["item"]), *parts, "{event}");
                self.done.push(event["item"].clone());
                self.open = None;
                return;
            }
            "response.content_part.added" | "response.reasoning_summary_part.added" => {
                assert_eq!(event["part"]["text"], "");
                parts.push(String::new());
            }
            // Whether it has had parts or not, a call has one text.
            _ if parts.is_empty() => parts.push(String::new()),
            _ => {}
        }
        assert_eq!(event["item_id"], item["id"], "{event}");
        let index = event["content_index"].as_u64().or(event["summary_index"].as_u64()).unwrap_or(0) as usize;
        let part = &mut parts[index];
        if let Some(delta) = event["delta"].as_str() {
            assert!(!delta.is_empty(), "{event}");
            *part += delta;
        }
        for whole in [&event["text"], &event["arguments"], &event["input"]] {
            assert!(whole.as_str().is_none_or(|whole| whole == part), "{event}");
        }
        if name.ends_with("part.done") {
            assert_eq!(event["part"]["text"], part.as_str());
        }
    }

    /// What has not been said to be done is a call that was cut.
    fn end(mut self, output: &Value) {
        if let Some((item, parts)) = self.open.take() {
            let cut = &output[self.done.len()];
            assert_eq!((&cut["id"], &cut["status"]), (&item["id"], &json!("incomplete")));
            assert_eq!(texts(cut).concat(), parts.concat());
            self.done.push(cut.clone());
        }
        assert_eq!(output, &json!(self.done));
    }
}

/// The texts of an item.
fn texts(item: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().expect("a string").to_owned();
    match item["type"].as_str() {
        Some("function_call") => vec![text(&item["arguments"])],
        Some("custom_tool_call") => vec![text(&item["input"])],
        _ => {
            let parts = [&item["content"], &item["summary"]].map(|parts| parts.as_array().cloned().unwrap_or_default());
            parts.concat().iter().map(|part| text(&part["text"])).collect()
        }
    }
}

/// A response without what differs from one to the next: ids and times.
fn without_ids(response: &Value) -> Value {
    let number = response["id"].as_str().and_then(|id| id.strip_prefix("resp_")).expect("an id");
    let mut text = response.to_string().replace(number, "N");
    for item in response["output"].as_array().expect("items") {
        if let Some((reply, _)) = item["call_id"].as_str().and_then(|id| id.rsplit_once('_')) {
            assert!(reply.starts_with("call_"));
            text = text.replace(reply, "call");
        }
    }
    let mut response: Value = serde_json::from_str(&text).expect("JSON");
    for time in ["created_at", "completed_at"] {
        assert!(response[time].take().as_u64() > Some(1_700_000_000), "{time}");
    }
    response
}

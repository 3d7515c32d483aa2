//! Anthropic's Messages API.

mod cache;
mod errors;
mod format;
mod messages;
mod prompts;
mod stream;

use crate::client::{Answer, post};
use crate::serving::{Speaker, tokenizer};
use serde_json::{Map, Value, json};
use std::net::SocketAddr;

/// What comes of a request for a message.
fn send(address: SocketAddr, request: &Value) -> Answer {
    post(address, "/v1/messages", request)
}

/// How many tokens its prompt has.
fn count(address: SocketAddr, request: &Value) -> u64 {
    let counted = post(address, "/v1/messages/count_tokens", request).ok();
    assert_eq!(counted.as_object().map(Map::len), Some(1), "{counted}");
    counted["input_tokens"].as_u64().expect("a count")
}

/// A short greedy request with `changes`.
fn ask(question: &str, changes: Value) -> Value {
    let mut request = json!({"model": "claude-any", "max_tokens": 120, "temperature": 0,
        "messages": [{"role": "user", "content": question}]});
    for (name, value) in changes.as_object().expect("an object") {
        request[name] = value.clone();
    }
    request
}

fn tool(name: &str) -> Value {
    json!({"name": name, "input_schema": {"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "options": {"type": "object"}}}})
}

/// A call as the template writes it.
fn written(name: &str, parameters: &[(&str, &str)]) -> String {
    let parameters: String =
        parameters.iter().map(|(key, value)| format!("<parameter={key}>\n{value}\n</parameter>\n")).collect();
    format!("<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>")
}

/// Asks for a message that will be `text`.
fn reply(speaker: &Speaker, text: &str, request: &Value) -> Value {
    speaker.lines.say(tokenizer().encode(text).expect("tokens"));
    send(speaker.server.address, request).ok()
}

/// The same message, and streamed.
fn both(speaker: &Speaker, text: &str, request: &Value) -> Value {
    let whole = reply(speaker, text, request);
    speaker.lines.say(tokenizer().encode(text).expect("tokens"));
    assert_eq!(anonymous(stream::gather(speaker.server.address, request)), anonymous(whole.clone()), "{text:?}");
    whole
}

/// A message without its ids, which are checked.
fn anonymous(mut message: Value) -> Value {
    let hide = |id: &mut Value, prefix: &str| {
        let id = id.take();
        assert!(id.as_str().is_some_and(|id| id.starts_with(prefix) && id.len() <= 40), "{id}");
    };
    hide(&mut message["id"], "msg_");
    for block in message["content"].as_array_mut().expect("blocks") {
        if block["type"] == "tool_use" {
            hide(&mut block["id"], "toolu_");
        }
    }
    message
}

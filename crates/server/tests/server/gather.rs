//! What a stream amounts to.

use crate::client::{chat, events};
use serde_json::{Map, Value, json};
use std::net::SocketAddr;

/// What a streamed reply amounts to: `index` of its choices, in the form of a whole one, and the usage. Its deltas are
/// checked on the way.
pub(crate) fn gather(address: SocketAddr, request: &Value, index: usize) -> (Value, Value) {
    let mut request = request.clone();
    request["stream"] = json!(true);
    request["stream_options"] = json!({"include_usage": true});
    let (events, done) = events(&chat(address, &request));
    assert!(done);
    let (last, chunks) = events.split_last().expect("events");
    assert_eq!(last["choices"], json!([]));
    let mut choice = Gathered::default();
    for chunk in chunks {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!((&chunk["id"], chunk.get("usage")), (&last["id"], Some(&Value::Null)));
        if chunk["choices"][0]["index"] == index {
            choice.take(&chunk["choices"][0]);
        }
    }
    (choice.whole(index), last["usage"].clone())
}

#[derive(Default)]
struct Gathered {
    begun: bool,
    content: String,
    reasoning: String,
    calls: Vec<Value>,
    logprobs: Vec<Value>,
    reason: Value,
}

impl Gathered {
    fn take(&mut self, choice: &Value) {
        let delta = &choice["delta"];
        assert_eq!(delta.get("role").is_some(), !self.begun, "{choice}");
        self.begun = true;
        assert_eq!(self.reason, Value::Null, "nothing follows the end");
        self.content += delta["content"].as_str().unwrap_or_default();
        self.reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
        assert_eq!(delta["reasoning_content"], delta["reasoning"]);
        if let Some(calls) = delta.get("tool_calls") {
            assert_eq!(delta.as_object().map(Map::len), Some(1), "calls come alone: {delta}");
            let [call] = calls.as_array().expect("an array").as_slice() else { panic!("one at a time: {calls}") };
            self.take_call(call);
        }
        self.logprobs.extend(choice["logprobs"]["content"].as_array().cloned().unwrap_or_default());
        self.reason = choice["finish_reason"].clone();
    }

    /// A call's first delta has its id, type and name, the others have nothing but arguments.
    fn take_call(&mut self, delta: &Value) {
        let mut delta = delta.as_object().expect("an object").clone();
        let index = delta.remove("index").and_then(|index| index.as_u64()).expect("an index") as usize;
        if index == self.calls.len() {
            assert_eq!(delta["function"]["arguments"], "");
            assert_eq!(delta.len(), 3, "{delta:?}");
            self.calls.push(Value::Object(delta));
            return;
        }
        assert_eq!((index + 1, delta.len()), (self.calls.len(), 1), "{delta:?}");
        assert_eq!(delta["function"].as_object().map(Map::len), Some(1), "{delta:?}");
        let arguments = &mut self.calls[index]["function"]["arguments"];
        let more = delta["function"]["arguments"].as_str().expect("a string");
        assert!(!more.is_empty());
        *arguments = json!(arguments.as_str().expect("a string").to_owned() + more);
    }

    fn whole(self, index: usize) -> Value {
        let silent = self.content.is_empty() && !self.calls.is_empty();
        let mut message =
            json!({"role": "assistant", "content": if silent { Value::Null } else { json!(self.content) }});
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = json!(self.reasoning);
            message["reasoning"] = json!(self.reasoning);
        }
        if !self.calls.is_empty() {
            message["tool_calls"] = json!(self.calls);
        }
        message["refusal"] = Value::Null;
        let logprobs =
            if self.logprobs.is_empty() { Value::Null } else { json!({"content": self.logprobs, "refusal": null}) };
        json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": self.reason})
    }
}

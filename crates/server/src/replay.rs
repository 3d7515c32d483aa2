//! What the model wrote when it called tools, kept until the client sends the calls back.
//!
//! A client returns calls as JSON. Written out anew they may differ from what the model wrote, by a space or by the
//! tokens they are cut into, or lack the reasoning that led to them, and then neither the cached state fits nor what
//! the model sees is what it wrote. So the next prompt takes the very tokens, if the client's calls are still the same.

use crate::recent::Recent;
use serde_json::{Map, Value};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A reply that called tools.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Turn {
    /// All that follows the generation prompt, without the stop token.
    pub(crate) tokens: Vec<u32>,
    /// Whether the tokens begin with reasoning.
    pub(crate) begins_in_reasoning: bool,
    /// Where in `tokens` the reasoning and its marker have ended, if they have.
    pub(crate) content_start: Option<usize>,
    pub(crate) reasoning: String,
    pub(crate) content: String,
    pub(crate) calls: Vec<Call>,
}

/// A call as the client got it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) name: String,
    /// JSON text of an object.
    pub(crate) arguments: String,
}

impl Turn {
    /// Whether an assistant's message is this turn: the same calls, and no other text. Text that the client has left
    /// out counts as the same, as many do not keep it; reasoning that it says is empty does not.
    fn is(&self, message: &Value) -> bool {
        let calls = message["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
        let reasoning = ["reasoning_content", "reasoning"].iter().find_map(|name| message[*name].as_str());
        calls.len() == self.calls.len()
            && calls.iter().zip(&self.calls).all(|(call, own)| own.is(call))
            && same_or_left_out(
                &self.content,
                text_of(&message["content"]).as_deref().filter(|text| !text.trim().is_empty()),
            )
            && same_or_left_out(&self.reasoning, reasoning)
    }

    /// Bytes it takes up.
    fn size(&self) -> usize {
        let calls: usize =
            self.calls.iter().map(|call| call.id.len() + call.name.len() + call.arguments.len() + 100).sum();
        4 * self.tokens.len() + self.reasoning.len() + self.content.len() + calls + 300
    }
}

impl Call {
    fn is(&self, call: &Value) -> bool {
        let function = &call["function"];
        call["id"] == self.id.as_str() && function["name"] == self.name.as_str() && {
            let own: Option<Value> = serde_json::from_str(&self.arguments).ok();
            let none = || Some(Value::Object(Map::new()));
            let theirs = match &function["arguments"] {
                Value::Null => none(),
                Value::String(text) if matches!(text.trim(), "" | "null") => none(),
                Value::String(text) => serde_json::from_str(text).ok(),
                other => Some(other.clone()),
            };
            own.zip(theirs).is_some_and(|(own, theirs)| are_equal(&own, &theirs))
        }
    }
}

/// Numbers count by their value: what was `5.0` a client may write as `5`.
fn are_equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(a), Value::Number(b)) if a.is_f64() || b.is_f64() => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| are_equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, value)| b.get(key).is_some_and(|other| are_equal(value, other)))
        }
        _ => one == other,
    }
}

fn same_or_left_out(own: &str, theirs: Option<&str>) -> bool {
    theirs.is_none_or(|theirs| theirs.trim() == own.trim())
}

/// The text of a message's content; `None` if there is none.
fn text_of(content: &Value) -> Option<String> {
    match content {
        Value::Array(parts) => Some(parts.iter().filter_map(|part| part["text"].as_str()).collect()),
        content => content.as_str().map(str::to_owned),
    }
}

/// The turns that were used last, as many as a number of bytes holds.
#[derive(Debug)]
pub(crate) struct ReplayStore {
    /// By the id of the first call.
    turns: Mutex<Recent<Arc<Turn>>>,
}

impl ReplayStore {
    /// A store of at most `capacity` bytes.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { turns: Mutex::new(Recent::new(capacity)) }
    }

    /// Keeps a turn; the longest unused ones make room. One without calls, or larger than the store, is not kept.
    pub(crate) fn insert(&self, turn: Turn) {
        let Some(id) = turn.calls.first().map(|call| call.id.clone()) else { return };
        let size = turn.size();
        self.turns().insert(&id, Arc::new(turn), size);
    }

    /// The turn that a client's message is, if it is kept.
    pub(crate) fn find(&self, message: &Value) -> Option<Arc<Turn>> {
        let id = message["tool_calls"].get(0)?["id"].as_str()?;
        let turn = self.turns().find(id).cloned()?;
        turn.is(message).then_some(turn)
    }

    fn turns(&self) -> MutexGuard<'_, Recent<Arc<Turn>>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::{Call, ReplayStore, Turn};
    use serde_json::{Value, json};

    fn turn(id: &str) -> Turn {
        let call = Call { id: id.into(), name: "f".into(), arguments: r#"{"a":1,"b":"x"}"#.into() };
        Turn {
            tokens: vec![1, 2, 3],
            begins_in_reasoning: true,
            content_start: Some(2),
            reasoning: "why".into(),
            content: "Look:".into(),
            calls: vec![call],
        }
    }

    fn message(changes: Value) -> Value {
        let function = json!({"name": "f", "arguments": "{ \"b\": \"x\", \"a\": 1 }"});
        let mut message = json!({"role": "assistant", "content": "Look:", "reasoning_content": "why\n",
            "tool_calls": [{"id": "c0", "type": "function", "function": function}]});
        for (name, value) in changes.as_object().expect("an object") {
            message[name] = value.clone();
        }
        message
    }

    #[test]
    fn a_turn_is_found_as_long_as_it_is_the_same() {
        let store = ReplayStore::new(10_000);
        store.insert(turn("c0"));
        let call = |id: &str, name: &str, arguments: Value| {
            json!({"tool_calls": [{"id": id, "function":
            {"name": name, "arguments": arguments}}]})
        };
        for same in [
            json!({}),
            json!({"content": null, "reasoning_content": null}),
            json!({"content": [{"type": "text", "text": "Look:"}]}),
            json!({"content": ""}),
            call("c0", "f", json!({"a": 1, "b": "x"})),
        ] {
            assert_eq!(store.find(&message(same.clone())).as_deref(), Some(&turn("c0")), "{same}");
        }
        let twice = json!([message(json!({}))["tool_calls"][0], message(json!({}))["tool_calls"][0]]);
        for other in [
            json!({"content": "Listen:"}),
            json!({"reasoning_content": "no"}),
            json!({"reasoning_content": ""}),
            json!({"tool_calls": []}),
            json!({"tool_calls": twice}),
            call("c1", "f", json!({"a": 1, "b": "x"})),
            call("c0", "g", json!({"a": 1, "b": "x"})),
            call("c0", "f", json!({"a": 2, "b": "x"})),
            call("c0", "f", json!("{\"a\": 1, \"b\": \"x\"")),
        ] {
            assert_eq!(store.find(&message(other.clone())), None, "{other}");
        }
    }

    #[test]
    fn arguments_are_the_same_by_value() {
        let store = ReplayStore::new(10_000);
        let is_kept = |own: &str, theirs: Value| {
            let call = Call { id: "c0".into(), name: "f".into(), arguments: own.into() };
            store.insert(Turn { calls: vec![call], ..turn("c0") });
            let function = json!({"name": "f", "arguments": theirs});
            store.find(&message(json!({"tool_calls": [{"id": "c0", "function": function}]}))).is_some()
        };
        for none in [json!("{}"), json!({}), json!(""), json!("null"), Value::Null] {
            assert!(is_kept("{}", none.clone()), "{none}");
            assert!(!is_kept(r#"{"a":1}"#, none));
        }
        for (own, theirs) in [
            (r#"{"a":5.0}"#, r#"{"a":5}"#),
            (r#"{"a":1e3}"#, r#"{"a":1000}"#),
            (r#"{"a":[{"b":0.10}]}"#, r#"{"a":[{"b":0.1}]}"#),
            (r#"{"a":-0.0}"#, r#"{"a":0}"#),
        ] {
            assert!(is_kept(own, json!(theirs)), "{own} {theirs}");
        }
        for (own, theirs) in [
            (r#"{"a":5.0}"#, r#"{"a":"5"}"#),
            (r#"{"a":9007199254740993}"#, r#"{"a":9007199254740992}"#),
            (r#"{"a":[1]}"#, r#"{"a":[1,1]}"#),
            (r#"{"a":1}"#, r#"{"b":1}"#),
            (r#"{"a":1,"b":1}"#, r#"{"a":1}"#),
        ] {
            assert!(!is_kept(own, json!(theirs)), "{own} {theirs}");
        }
    }

    #[test]
    fn what_is_too_large_or_calls_nothing_is_not_kept() {
        let size = turn("c0").size();
        let store = ReplayStore::new(3 * size);
        for id in ["c0", "c1", "c2", "c3"] {
            store.insert(turn(id));
        }
        store.insert(Turn { calls: Vec::new(), ..turn("c4") });
        store.insert(Turn { tokens: vec![0; size], ..turn("c5") });
        let is_kept = |id: &str| {
            let function = json!({"name": "f", "arguments": {"a": 1, "b": "x"}});
            store.find(&message(json!({"tool_calls": [{"id": id, "function": function}]}))).is_some()
        };
        assert_eq!(["c0", "c1", "c2", "c3", "c4", "c5"].map(is_kept), [false, true, true, true, false, false]);
        ReplayStore::new(0).insert(turn("c0"));
    }
}

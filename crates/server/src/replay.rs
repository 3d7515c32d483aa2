//! What the model wrote when it called tools, kept until the client sends the calls back.
//!
//! A client returns calls as JSON. Written out anew they may differ from what the model wrote, by a space or by the
//! tokens they are cut into, or lack the reasoning that led to them, and then neither the cached state fits nor what
//! the model sees is what it wrote. So the next prompt takes the very tokens, if the client's calls are still the same.

use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

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
    capacity: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// By the id of the first call, with the time of the last use.
    turns: HashMap<String, (u64, Arc<Turn>)>,
    /// The ids by the time of the last use.
    uses: BTreeMap<u64, String>,
    clock: u64,
    bytes: usize,
}

impl ReplayStore {
    /// A store of at most `capacity` bytes.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, kept: Mutex::default() }
    }

    /// Keeps a turn; the longest unused ones make room. One without calls, or larger than the store, is not kept.
    pub(crate) fn insert(&self, turn: Turn) {
        let size = turn.size();
        let Some(id) = turn.calls.first().map(|call| call.id.clone()).filter(|_| size <= self.capacity) else { return };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.remove(&id);
        while kept.bytes + size > self.capacity
            && let Some((_, oldest)) = kept.uses.pop_first()
        {
            kept.remove(&oldest);
        }
        kept.bytes += size;
        kept.clock += 1;
        let now = kept.clock;
        kept.uses.insert(now, id.clone());
        kept.turns.insert(id, (now, Arc::new(turn)));
    }

    /// The turn that a client's message is, if it is kept.
    pub(crate) fn find(&self, message: &Value) -> Option<Arc<Turn>> {
        let id = message["tool_calls"].get(0)?["id"].as_str()?;
        let turn = {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.clock += 1;
            let now = kept.clock;
            let (used, turn) = kept.turns.get_mut(id)?;
            let before = std::mem::replace(used, now);
            let turn = Arc::clone(turn);
            kept.uses.remove(&before);
            kept.uses.insert(now, id.to_owned());
            turn
        };
        turn.is(message).then_some(turn)
    }
}

impl Kept {
    fn remove(&mut self, id: &str) {
        if let Some((used, turn)) = self.turns.remove(id) {
            self.uses.remove(&used);
            self.bytes -= turn.size();
        }
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
    fn the_longest_unused_make_room() {
        let size = turn("c0").size();
        let store = ReplayStore::new(3 * size);
        let is_kept = |id: &str| {
            store
                .find(&message(json!({"tool_calls": [{"id": id, "function":
            {"name": "f", "arguments": {"a": 1, "b": "x"}}}]})))
                .is_some()
        };
        for id in ["c0", "c1", "c2", "c2"] {
            store.insert(turn(id));
        }
        assert!(is_kept("c0"));
        store.insert(turn("c3"));
        assert_eq!(["c0", "c1", "c2", "c3"].map(is_kept), [true, false, true, true]);
        store.insert(Turn { tokens: vec![0; size], ..turn("c4") });
        assert_eq!(["c0", "c4"].map(is_kept), [true, false]);
        for number in 0..100 {
            store.insert(turn(&format!("x{}", number % 10)));
        }
        let kept = store.kept.lock().expect("fine");
        assert_eq!((kept.turns.len(), kept.uses.len(), kept.bytes), (3, 3, 3 * size));
        drop(kept);
        ReplayStore::new(0).insert(turn("c0"));
    }
}

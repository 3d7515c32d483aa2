//! Responses that are kept, so that a conversation can go on from one by its id: in memory, as many as a number of bytes
//! holds.
//!
//! A response holds what it added to its conversation and the id of the one before. Using one counts as a use of all
//! before it, the first of them first, so that a conversation gives way as a whole and from its beginning.

use crate::recent::Recent;
use serde_json::Value;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is kept of a response.
#[derive(Debug)]
pub(crate) struct Stored {
    /// As it was answered.
    pub(crate) response: Value,
    /// The items that the request brought, each with an id.
    pub(crate) input: Vec<Value>,
    /// The response that it went on from.
    pub(crate) previous: Option<String>,
}

impl Stored {
    /// The items that it gave.
    pub(crate) fn output(&self) -> &[Value] {
        self.response["output"].as_array().map_or(&[], Vec::as_slice)
    }

    fn bytes(&self) -> usize {
        200 + bytes(&self.response) + self.input.iter().map(bytes).sum::<usize>()
    }
}

/// About what a value takes of memory.
pub(super) fn bytes(value: &Value) -> usize {
    const EACH: usize = 32;
    EACH + match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(bytes).sum(),
        Value::Object(map) => map.iter().map(|(name, value)| 2 * EACH + name.len() + bytes(value)).sum(),
    }
}

/// The responses that were used last.
#[derive(Debug)]
pub(crate) struct ResponseStore {
    responses: Mutex<Recent<Arc<Stored>>>,
}

impl ResponseStore {
    /// A store of at most `capacity` bytes.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { responses: Mutex::new(Recent::new(capacity)) }
    }

    /// Keeps a response; the longest unused ones make room. One that is larger than the store is not kept.
    pub(crate) fn insert(&self, id: &str, stored: Stored) {
        let bytes = stored.bytes();
        self.responses().insert(id, Arc::new(stored), bytes);
    }

    /// The response of this id.
    pub(crate) fn find(&self, id: &str) -> Option<Arc<Stored>> {
        self.responses().find(id).cloned()
    }

    /// The conversation up to this response and with it, the first response first; `None` if one of them is not kept.
    pub(crate) fn conversation(&self, id: &str) -> Option<Vec<Arc<Stored>>> {
        let mut responses = self.responses();
        let mut ids = vec![id.to_owned()];
        let mut conversation = vec![responses.find(id).cloned()?];
        while let Some(previous) = conversation.last().and_then(|stored| stored.previous.clone()) {
            conversation.push(responses.find(&previous).cloned()?);
            ids.push(previous);
        }
        for id in ids.iter().rev() {
            responses.find(id);
        }
        conversation.reverse();
        Some(conversation)
    }

    /// Forgets the response; false if it is not kept.
    pub(crate) fn remove(&self, id: &str) -> bool {
        self.responses().remove(id).is_some()
    }

    /// The item of this id that a kept response gave.
    pub(crate) fn item(&self, id: &str) -> Option<Value> {
        // What stands between an item's prefix and its number is its response's.
        let (_, rest) = id.split_once('_')?;
        let (response, _) = rest.rsplit_once('_')?;
        let stored = self.find(&super::response_id(response))?;
        stored.output().iter().find(|item| item["id"] == id).cloned()
    }

    fn responses(&self) -> MutexGuard<'_, Recent<Arc<Stored>>> {
        self.responses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::{ResponseStore, Stored};
    use serde_json::json;

    fn stored(previous: Option<&str>) -> Stored {
        let output = json!([{"id": "msg_1_0", "type": "message", "content": "x".repeat(1000)}]);
        Stored { response: json!({"output": output}), input: Vec::new(), previous: previous.map(str::to_owned) }
    }

    #[test]
    fn a_conversation_is_found_from_its_end() {
        let store = ResponseStore::new(100_000);
        store.insert("resp_1", stored(None));
        store.insert("resp_2", stored(Some("resp_1")));
        store.insert("resp_3", stored(Some("resp_2")));
        let previous = |id: &str| -> Option<Vec<Option<String>>> {
            Some(store.conversation(id)?.iter().map(|stored| stored.previous.clone()).collect())
        };
        assert_eq!(previous("resp_3"), Some(vec![None, Some("resp_1".into()), Some("resp_2".into())]));
        assert_eq!(previous("resp_1"), Some(vec![None]));
        assert_eq!(store.item("msg_1_0").expect("kept")["type"], "message");
        for unknown in ["", "msg", "msg_1", "msg_1_1", "msg_4_0"] {
            assert_eq!(store.item(unknown), None, "{unknown}");
        }
        assert!(store.remove("resp_2") && !store.remove("resp_2"));
        assert_eq!((previous("resp_2"), previous("resp_3"), previous("resp_1")), (None, None, Some(vec![None])));
    }

    #[test]
    fn the_longest_unused_conversation_makes_room_from_its_beginning() {
        let store = ResponseStore::new(5 * stored(Some("resp_1")).bytes());
        store.insert("resp_1", stored(None));
        store.insert("resp_a", stored(None));
        store.insert("resp_2", stored(Some("resp_1")));
        store.insert("resp_b", stored(Some("resp_a")));
        assert_eq!(store.conversation("resp_2").map(|all| all.len()), Some(2));
        store.insert("resp_3", stored(Some("resp_2")));
        store.insert("resp_4", stored(Some("resp_3")));
        assert!(store.find("resp_a").is_none() && store.find("resp_b").is_some());
        assert_eq!(store.conversation("resp_4").map(|all| all.len()), Some(4));
        assert!(store.conversation("resp_b").is_none());
        store.insert("resp_large", Stored { response: json!("x".repeat(100_000)), ..stored(None) });
        assert!(store.find("resp_large").is_none() && store.find("resp_4").is_some());
    }
}

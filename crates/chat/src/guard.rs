//! Messages that hold the texts of control tokens.
//!
//! A file or a web page may hold `<|im_end|>`. In a prompt it would end the message it stands in, and what follows could
//! pass for a message of anybody's; the model, copying it, would end its reply. So before the template writes the
//! messages down, each such text in them is broken by a mark, the prompt is searched for tokens with the marks in it, and
//! only then are they taken out: what the template itself writes is control, what stands in a message is text.
//!
//! The markers of reasoning and calls are no control tokens, and stay what they are.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::{Tokenizer, TokenizerError, secret};

/// Keeps one prompt's messages from controlling the model.
#[derive(Debug)]
pub struct Guard<'t> {
    tokenizer: &'t Tokenizer,
    /// What breaks a text; nobody can have put it there.
    mark: String,
}

impl<'t> Guard<'t> {
    /// For one prompt.
    #[must_use]
    pub fn new(tokenizer: &'t Tokenizer) -> Self {
        Self { tokenizer, mark: secret() }
    }

    /// The tokens of a text that was rendered with this guard, or of a part of it.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.tokenizer.encode_marked(text, &self.mark)
    }

    /// A text as this prompt's messages hold theirs: nothing in it is control.
    #[must_use]
    pub fn text<'s>(&self, text: &'s str) -> Cow<'s, str> {
        self.broken(text).map_or(Cow::Borrowed(text), Cow::Owned)
    }

    /// The text without the marks.
    #[must_use]
    pub fn clean<'s>(&self, text: &'s str) -> Cow<'s, str> {
        without(text, &self.mark)
    }

    /// Breaks the texts of control tokens in all strings of `value`, and in its keys.
    pub(crate) fn protect(&self, value: &mut Value) {
        match value {
            Value::String(text) => {
                if let Some(broken) = self.broken(text) {
                    *text = broken;
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.protect(item)),
            Value::Object(map) => {
                if map.keys().any(|key| self.broken(key).is_some()) {
                    let entries = std::mem::take(map).into_iter();
                    *map = entries.map(|(key, value)| (self.broken(&key).unwrap_or(key), value)).collect::<Map<_, _>>();
                }
                map.values_mut().for_each(|value| self.protect(value));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// The text with marks; `None` if it needs none.
    fn broken(&self, text: &str) -> Option<String> {
        let breaks = self.tokenizer.control_breaks(text);
        if breaks.is_empty() {
            return None;
        }
        let mut broken = String::with_capacity(text.len() + breaks.len() * self.mark.len());
        let mut from = 0;
        for at in breaks {
            broken.push_str(&text[from..at]);
            broken.push_str(&self.mark);
            from = at;
        }
        broken.push_str(&text[from..]);
        Some(broken)
    }
}

/// `text` without `mark`, wherever it stands.
pub(crate) fn without<'t>(text: &'t str, mark: &str) -> Cow<'t, str> {
    if text.contains(mark) { text.replace(mark, "").into() } else { text.into() }
}

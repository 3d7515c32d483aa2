//! One parameter's value while it is read.

use serde_json::Value as Json;

use super::coerce::{coerce, escaped};
use super::schema::{Expected, Kinds};

/// A value whose text comes in pieces. A string is given as it comes, anything else once it is complete.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    expected: Expected,
    stage: Stage,
    /// What was not given yet.
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// A string for sure, of which this much as JSON text was given.
    String,
    /// A string unless it turns out to be `null`.
    StringOrNull,
    Whole,
}

const NULL: &str = "null";

impl Value {
    pub(crate) fn new(expected: Expected) -> Self {
        let is_text = expected.choices.iter().all(Json::is_string);
        let stage = match expected.kinds {
            Kinds::STRING if is_text => Stage::String,
            kinds if kinds == Kinds::STRING.with(Kinds::NULL) && expected.choices.is_empty() => Stage::StringOrNull,
            _ => Stage::Whole,
        };
        Self { expected, stage, text: String::new() }
    }

    /// The JSON text that the value begins with.
    pub(crate) fn begin(&self) -> &'static str {
        if self.stage == Stage::String { "\"" } else { "" }
    }

    /// Takes more text; gives the JSON text that is certain.
    pub(crate) fn push(&mut self, text: &str) -> String {
        match self.stage {
            Stage::String => escaped(text),
            Stage::Whole => {
                self.text.push_str(text);
                String::new()
            }
            Stage::StringOrNull => {
                self.text.push_str(text);
                if NULL.starts_with(&self.text) {
                    return String::new();
                }
                self.stage = Stage::String;
                format!("\"{}", escaped(&std::mem::take(&mut self.text)))
            }
        }
    }

    /// Ends the value; gives the rest of its JSON text.
    pub(crate) fn end(self) -> String {
        if self.stage == Stage::String { "\"".into() } else { coerce(&self.text, &self.expected) }
    }
}

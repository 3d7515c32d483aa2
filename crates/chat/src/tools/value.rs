//! One parameter's value while it is read.

use serde_json::Value as Json;

use super::coerce::{coerce, escaped, may_be_other};
use super::json_call::JsonCall;
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
    /// A string unless it turns out to be something else.
    StringOrOther,
    Whole,
    /// Not given at all.
    Dropped,
}

impl Value {
    pub(crate) fn new(expected: Expected) -> Self {
        let is_text = expected.choices.iter().all(Json::is_string);
        let stage = match expected.kinds {
            Kinds::STRING if is_text => Stage::String,
            kinds if kinds.has(Kinds::STRING) && expected.choices.is_empty() => Stage::StringOrOther,
            _ => Stage::Whole,
        };
        Self { expected, stage, text: String::new() }
    }

    /// A value that is read and means nothing.
    pub(crate) fn dropped() -> Self {
        Self { expected: Expected::anything(), stage: Stage::Dropped, text: String::new() }
    }

    /// The JSON text that the value begins with.
    pub(crate) fn begin(&self) -> &'static str {
        if self.stage == Stage::String { "\"" } else { "" }
    }

    /// Takes more text; gives the JSON text that is certain.
    pub(crate) fn push(&mut self, text: &str) -> String {
        match self.stage {
            Stage::String => escaped(text),
            Stage::Dropped => String::new(),
            Stage::Whole => {
                self.text.push_str(text);
                String::new()
            }
            Stage::StringOrOther => {
                self.text.push_str(text);
                if may_be_other(&self.text, self.expected.kinds) {
                    return String::new();
                }
                self.stage = Stage::String;
                format!("\"{}", escaped(&std::mem::take(&mut self.text)))
            }
        }
    }

    /// Ends the value; gives the rest of its JSON text.
    pub(crate) fn end(self) -> String {
        match self.stage {
            Stage::String => "\"".into(),
            Stage::Dropped => String::new(),
            Stage::StringOrOther | Stage::Whole => coerce(&self.text, &self.expected),
        }
    }

    /// Cuts the value; gives the rest of the JSON text that is there, which stays open.
    pub(crate) fn cut(self) -> String {
        match self.stage {
            Stage::String | Stage::Dropped => String::new(),
            _ if self.text.is_empty() => String::new(),
            // More brackets than it opens would close what it stands in.
            _ if JsonCall::stays_within(&self.text) => self.text,
            Stage::Whole | Stage::StringOrOther => format!("\"{}", escaped(&self.text)),
        }
    }
}

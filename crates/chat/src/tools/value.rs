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
    quoted: Quoted,
}

/// Where a text stands to the strings of the JSON that it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quoted {
    /// Nothing but white space has come.
    Unknown,
    /// It is no object and no array.
    Never,
    Outside,
    Within,
    /// Within, after a backslash.
    Escaped,
}

impl Quoted {
    /// After one more character. No string of JSON goes over a line's end.
    fn then(self, next: char) -> Self {
        match (self, next) {
            (Self::Unknown, '{' | '[') => Self::Outside,
            (Self::Unknown, next) if !next.is_whitespace() => Self::Never,
            (Self::Outside, '"') | (Self::Escaped, _) if next != '\n' => Self::Within,
            (Self::Within, '\\') => Self::Escaped,
            (Self::Within, '"') | (Self::Within | Self::Escaped, '\n') => Self::Outside,
            (same, _) => same,
        }
    }
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
        Self::in_stage(expected, stage)
    }

    fn in_stage(expected: Expected, stage: Stage) -> Self {
        let quoted = if stage == Stage::String { Quoted::Never } else { Quoted::Unknown };
        Self { expected, stage, text: String::new(), quoted }
    }

    /// A value that is read and means nothing.
    pub(crate) fn dropped() -> Self {
        Self::in_stage(Expected::anything(), Stage::Dropped)
    }

    /// The JSON text that the value begins with.
    pub(crate) fn begin(&self) -> &'static str {
        if self.stage == Stage::String { "\"" } else { "" }
    }

    /// Whether the text that has come ends within a string of an object or array, where a tag is text.
    pub(crate) fn is_quoted(&self) -> bool {
        matches!(self.quoted, Quoted::Within | Quoted::Escaped)
    }

    /// Takes more text; gives the JSON text that is certain.
    pub(crate) fn push(&mut self, text: &str) -> String {
        if self.quoted != Quoted::Never {
            self.quoted = text.chars().fold(self.quoted, Quoted::then);
        }
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
                (self.stage, self.quoted) = (Stage::String, Quoted::Never);
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

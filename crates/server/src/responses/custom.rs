//! Custom tools: their input is text of any form. The model calls them as functions with the one parameter
//! [`PARAMETER`]; what it writes there is the input.

use serde_json::Value;

/// The parameter that holds the input.
pub(crate) const PARAMETER: &str = "input";
/// How a call's arguments begin.
const OPENING: &str = "{\"input\":\"";

/// The input of a call, out of its arguments as they come.
#[derive(Debug, Default)]
pub(crate) struct CustomInput {
    /// Arguments that could not be read without what follows.
    unread: String,
    /// Whether [`OPENING`] has come.
    begun: bool,
    /// Whether there is nothing more to read: the input has ended, or it is not where it should be.
    ended: bool,
    /// Bytes of the input so far.
    given: usize,
}

impl CustomInput {
    /// Takes more of the arguments; gives more of the input.
    pub(crate) fn push(&mut self, json: &str) -> String {
        if self.ended {
            return String::new();
        }
        self.unread.push_str(json);
        if !self.begun {
            match self.unread.strip_prefix(OPENING) {
                Some(rest) => self.unread = rest.to_owned(),
                None => {
                    self.ended = !OPENING.starts_with(&self.unread);
                    return String::new();
                }
            }
            self.begun = true;
        }
        let (readable, ended) = readable(&self.unread);
        let text: String = serde_json::from_str(&format!("\"{}\"", &self.unread[..readable])).unwrap_or_default();
        self.unread.drain(..readable);
        self.ended = ended;
        self.given += text.len();
        text
    }

    /// What of the whole input has not been given yet.
    pub(crate) fn rest<'t>(&self, whole: &'t str) -> &'t str {
        whole.get(self.given..).unwrap_or_default()
    }
}

/// How many bytes of the inside of a JSON string can be read without what follows, and whether they are the last.
fn readable(text: &str) -> (usize, bool) {
    let mut at = 0;
    while let Some(found) = text.get(at..).and_then(|rest| rest.find(['\\', '"'])) {
        let special = at + found;
        let escape = &text[special..];
        let length = match escape.as_bytes() {
            [b'"', ..] => return (special, true),
            [_, b'u', ..] if is_high_surrogate(escape) => 12,
            [_, b'u', ..] => 6,
            _ => 2,
        };
        if escape.len() < length {
            return (special, false);
        }
        at = special + length;
    }
    (text.len(), false)
}

/// Whether an escape is the first of two that spell one character.
fn is_high_surrogate(escape: &str) -> bool {
    escape.get(2..6).and_then(|hex| u16::from_str_radix(hex, 16).ok()).is_some_and(|unit| unit & 0xfc00 == 0xd800)
}

/// The input that a call's arguments hold, or the beginning of it that those of a call that was cut hold. A model that has
/// not kept to the one parameter has most likely only given it another name; failing that, the arguments are the input.
pub(crate) fn whole_input(arguments: &str) -> String {
    let Ok(Value::Object(map)) = serde_json::from_str(arguments) else {
        return CustomInput::default().push(arguments);
    };
    let mut texts = map.values().filter_map(Value::as_str);
    match (map.get(PARAMETER).and_then(Value::as_str), texts.next(), map.len()) {
        (Some(input), _, _) | (None, Some(input), 1) => input.to_owned(),
        _ if map.is_empty() => String::new(),
        _ => arguments.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{CustomInput, whole_input};
    use serde_json::json;

    /// Pushes the arguments cut at every `size` characters; gives what came, and what the rest was.
    fn run(arguments: &str, size: usize) -> (String, String) {
        let characters: Vec<char> = arguments.chars().collect();
        let mut input = CustomInput::default();
        let given: String =
            characters.chunks(size).map(|piece| input.push(&piece.iter().collect::<String>())).collect();
        let whole = whole_input(arguments);
        (given, input.rest(&whole).to_owned())
    }

    #[test]
    fn the_input_comes_as_it_is_written() {
        for text in ["", "*** Begin Patch\n+a \"b\" \\n\t\u{1}\n*** End Patch\n", "\\\\\"\"", "🦔 wörld"] {
            let arguments = json!({"input": text}).to_string();
            for size in [1, 2, 3, 7, 1000] {
                assert_eq!(run(&arguments, size), (text.to_owned(), String::new()), "{text:?} by {size}");
            }
        }
        for size in 1..40 {
            let escaped = r#"{"input":"\ud83e\udd94\u00e9\/ \u0041","more":"\"x"}"#;
            assert_eq!(run(escaped, size), ("🦔é/ A".to_owned(), String::new()), "by {size}");
        }
    }

    #[test]
    fn a_cut_input_is_what_there_is_of_it() {
        for (arguments, input) in [("", ""), ("{\"inp", ""), (r#"{"input":"a\nb"#, "a\nb"), (r#"{"input":"a\"#, "a")] {
            assert_eq!(run(arguments, 2), (input.to_owned(), String::new()), "{arguments}");
        }
    }

    #[test]
    fn what_is_not_where_it_should_be_comes_at_the_end() {
        for (arguments, whole) in [
            (r#"{"patch":"x"}"#, "x"),
            (r#"{"why":"y","input":"x"}"#, "x"),
            ("{}", ""),
            (r#"{"a":"x","b":"y"}"#, r#"{"a":"x","b":"y"}"#),
            (r#"{"input":7}"#, r#"{"input":7}"#),
        ] {
            assert_eq!(run(arguments, 3), (String::new(), whole.to_owned()), "{arguments}");
        }
    }
}

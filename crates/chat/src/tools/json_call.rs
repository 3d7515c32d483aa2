//! Calls whose body is JSON, as other models write them: `{"name": "f", "arguments": {…}}`.

use serde_json::{Map, Value};

use super::literal;

/// A JSON object whose text comes in pieces.
#[derive(Clone, Debug, Default)]
pub(crate) struct JsonCall {
    text: String,
    /// The brackets that are open.
    open: Vec<char>,
    in_string: bool,
    escaped: bool,
}

impl JsonCall {
    /// Takes text up to the end of the object; gives the number of bytes taken. It stops short of a `<` outside
    /// strings.
    pub(crate) fn push(&mut self, text: &str) -> usize {
        for (at, c) in text.char_indices() {
            if !self.in_string && c == '<' || self.is_complete() {
                return at;
            }
            self.take(c);
        }
        text.len()
    }

    /// Takes one character.
    pub(crate) fn take(&mut self, c: char) {
        self.text.push(c);
        match c {
            _ if self.escaped => self.escaped = false,
            '\\' => self.escaped = self.in_string,
            '"' => self.in_string = !self.in_string,
            _ if self.in_string => {}
            '{' => self.open.push('}'),
            '[' => self.open.push(']'),
            '}' | ']' => {
                self.open.pop();
            }
            _ => {}
        }
    }

    /// Whether the object has ended.
    pub(crate) fn is_complete(&self) -> bool {
        self.open.is_empty() && !self.text.is_empty()
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The function's name and its arguments as JSON text. An object that was cut is closed where it was cut.
    pub(crate) fn read(&self) -> Option<(String, String)> {
        let parsed = serde_json::from_str(&self.text).ok();
        let value = parsed.or_else(|| literal::parse(&self.text)).or_else(|| literal::parse(&self.closed()))?;
        let Value::Object(call) = value else { return None };
        // Some write the call as clients do.
        let call = match call.get("function") {
            Some(Value::Object(function)) => function.clone(),
            _ => call,
        };
        let name = ["name", "function"].iter().find_map(|key| call.get(*key)?.as_str())?.to_owned();
        Some((name, arguments(&call)))
    }

    /// The text with what is open closed.
    fn closed(&self) -> String {
        let mut text = self.text.clone();
        if self.escaped {
            text.pop();
        }
        if self.in_string {
            text.push('"');
        } else {
            // A key or an item that was to follow.
            text.truncate(text.trim_end().trim_end_matches(',').len());
        }
        text.extend(self.open.iter().rev());
        text
    }
}

fn arguments(call: &Map<String, Value>) -> String {
    match ["arguments", "parameters"].iter().find_map(|key| call.get(*key)) {
        Some(object @ Value::Object(_)) => object.to_string(),
        Some(Value::String(text)) if serde_json::from_str::<Map<String, Value>>(text).is_ok() => text.trim().to_owned(),
        _ => "{}".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::JsonCall;

    fn read(text: &str) -> Option<(String, String)> {
        let mut call = JsonCall::default();
        call.push(text);
        call.read()
    }

    #[test]
    fn calls_are_read_in_every_form() {
        let call = |arguments: &str| Some(("f".to_owned(), arguments.to_owned()));
        for (text, expected) in [
            (r#"{"name": "f", "arguments": {"a": "}<"}} rest"#, call(r#"{"a":"}<"}"#)),
            (r#"{"name": "f", "arguments": "{\"a\": 1}"}"#, call(r#"{"a": 1}"#)),
            (r#"{"name": "f", "parameters": {}}"#, call("{}")),
            (r#"{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}"#, call(r#"{"a":1}"#)),
            ("{'name': 'f', 'arguments': {'a': True}}", call(r#"{"a":true}"#)),
            (r#"{"name": "f"}"#, call("{}")),
            (r#"{"name": "f", "arguments": {"a": "cut \"#, call(r#"{"a":"cut "}"#)),
            (r#"{"name": "f", "arguments": {"a": [1, "#, call(r#"{"a":[1]}"#)),
            (r#"{"arguments": {}}"#, None),
            (r#"{"na"#, None),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
    }
}

//! Calls whose body is JSON, as other models write them: `{"name": "f", "arguments": {…}}`; and objects that are not
//! quite right, or not whole.

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
    /// Where the last member or item begins, and the number of brackets that were open there.
    last: Option<(usize, usize)>,
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
        if !self.in_string && matches!(c, '{' | '[' | ',') {
            self.last = Some((self.text.len(), self.open.len()));
        }
    }

    /// Whether the object has ended.
    pub(crate) fn is_complete(&self) -> bool {
        self.open.is_empty() && !self.text.is_empty()
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Whether `text` is a number, or the beginning of an array or object or a whole one with nothing after it: it
    /// closes nothing that it has not opened.
    pub(crate) fn stays_within(text: &str) -> bool {
        let text = text.trim();
        let mut value = Self::default();
        match text.chars().next() {
            Some('{' | '[') => {
                let mut rest = text.chars().skip_while(|&c| {
                    let goes_on = !value.is_complete();
                    if goes_on {
                        value.take(c);
                    }
                    goes_on
                });
                rest.next().is_none()
            }
            Some(_) => text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte)),
            None => false,
        }
    }

    /// The function's name and its arguments as JSON text. What is not closed is closed where it ends.
    pub(crate) fn read(&self) -> Option<(String, String)> {
        let parsed = serde_json::from_str(&self.text).ok();
        call(parsed.or_else(|| literal::parse(&self.text)).or_else(|| self.begun())?)
    }

    /// Whether the text lacks nothing but the ends of what is open.
    pub(crate) fn lacks_only_ends(&self) -> bool {
        !self.in_string && self.closed(without_comma(&self.text)).is_some()
    }

    /// As [`Self::read`], of an object that was cut: its arguments stay open, so that nobody takes them for whole. `None`
    /// if the cut came before they began, or before a value of theirs that is neither a string nor an object could be read.
    pub(crate) fn read_cut(&self) -> Option<(String, String)> {
        if self.open.len() == 1 {
            // They are whole, if they are there; nothing may be left out to make a call of it.
            let whole = !self.in_string && self.text.contains("\"arguments\"");
            let (name, mut arguments) = call(self.closed(without_comma(&self.text)).filter(|_| whole)?)?;
            arguments.pop();
            return Some((name, arguments));
        }
        let (name, mut arguments) = self.read()?;
        for _ in 1..self.open.len() {
            if arguments.ends_with(['}', ']']) {
                arguments.pop();
            }
        }
        if self.in_string && arguments.ends_with('"') {
            arguments.pop();
        }
        Some((name, arguments))
    }

    /// The value of `text`, the beginning of this one, with the ends of what is open.
    fn closed(&self, text: &str) -> Option<Value> {
        let closed: String = text.chars().chain(self.open.iter().rev().copied()).collect();
        serde_json::from_str(&closed).ok().or_else(|| literal::parse(&closed))
    }

    /// The value of a text that is the beginning of one: what is open is closed, or, if that makes no value, what the
    /// text ends within is left out.
    fn begun(&self) -> Option<Value> {
        let mut whole = self.text.clone();
        if self.escaped {
            whole.pop();
        }
        if self.in_string {
            whole.push('"');
        }
        self.closed(without_comma(&whole)).or_else(|| {
            let (start, _) = self.last.filter(|&(_, depth)| depth > 0 && depth == self.open.len())?;
            let (before, last) = self.text.split_at(start);
            let begins_a_member = last.trim_start().is_empty() || last.trim_start().starts_with(['"', '\'']);
            (begins_a_member || self.open.last() == Some(&']')).then(|| self.closed(without_comma(before)))?
        })
    }
}

/// A call's name and its arguments as JSON text.
fn call(value: Value) -> Option<(String, String)> {
    let Value::Object(call) = value else { return None };
    // Some write the call as clients do.
    let call = match call.get("function") {
        Some(Value::Object(function)) => function.clone(),
        _ => call,
    };
    let name = ["name", "function"].iter().find_map(|key| call.get(*key)?.as_str())?.to_owned();
    // Nobody can run a function without one.
    if name.is_empty() {
        return None;
    }
    Some((name, arguments(&call)))
}

fn without_comma(text: &str) -> &str {
    text.trim_end().trim_end_matches(',')
}

fn arguments(call: &Map<String, Value>) -> String {
    match ["arguments", "parameters"].iter().find_map(|key| call.get(*key)) {
        Some(object @ Value::Object(_)) => object.to_string(),
        Some(Value::String(text)) if serde_json::from_str::<Map<String, Value>>(text).is_ok() => text.trim().to_owned(),
        _ => "{}".into(),
    }
}

/// The object that a text of arguments is meant to be: one of JSON or of Python, one in quotes, none, or the beginning
/// of one, of which counts what is there. `None` if it is something else.
pub(crate) fn salvage(text: &str) -> Option<Map<String, Value>> {
    let text = text.trim();
    if matches!(text, "" | "null" | "None") {
        return Some(Map::new());
    }
    let begun = || {
        let mut object = JsonCall::default();
        text.chars().for_each(|c| object.take(c));
        object.begun()
    };
    match serde_json::from_str(text).ok().or_else(|| literal::parse(text)).or_else(begun)? {
        Value::Object(object) => Some(object),
        Value::String(quoted) => serde_json::from_str(&quoted).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{JsonCall, salvage};
    use serde_json::{Value, json};

    fn pushed(text: &str) -> JsonCall {
        let mut call = JsonCall::default();
        call.push(text);
        call
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
            (r#"{"name": "f", "arguments": {"a": [1, "#, call(r#"{"a":[1]}"#)),
            (r#"{"arguments": {}}"#, None),
            (r#"{"name": "", "arguments": {}}"#, None),
            (r#"{"na"#, None),
        ] {
            assert_eq!(pushed(text).read(), expected, "{text}");
        }
    }

    #[test]
    fn cut_calls_stay_open() {
        let call = |arguments: &str| Some(("f".to_owned(), arguments.to_owned()));
        for (text, expected) in [
            (r#"{"name": "f", "arguments": {"a": "cut \"#, call(r#"{"a":"cut "#)),
            (r#"{"name": "f", "arguments": {"a": [1, "#, call(r#"{"a":[1"#)),
            (r#"{"name": "f", "arguments": {"a": {"b": "x"}"#, call(r#"{"a":{"b":"x"}"#)),
            (r#"{"name": "f", "arguments": {"#, call("{")),
            (r#"{"name": "f", "arguments": {"a": 1}"#, call(r#"{"a":1"#)),
            (r#"{"name": "f", "arguments": {}, "#, call("{")),
            (r#"{"name": "f", "arguments":"#, None),
            (r#"{"name": "f", "arguments": nul"#, None),
            (r#"{"function": {"name": "f", "arguments": "{\"a\": \"x"#, call("{")),
            (r#"{"name": "f", "arguments": "{\"a\": \"x"#, None),
            (r#"{"name": "f"#, None),
            (r#"{"name": "f", "#, None),
            (r#"{"name": "", "arguments": {"#, None),
        ] {
            assert_eq!(pushed(text).read_cut(), expected, "{text}");
        }
    }

    #[test]
    fn arguments_are_salvaged() {
        for (text, expected) in [
            ("", json!({})),
            (" null ", json!({})),
            ("{", json!({})),
            (r#"{"a": 1}"#, json!({"a": 1})),
            ("{'a': None}", json!({"a": null})),
            (r#""{\"a\": 1}""#, json!({"a": 1})),
            (r#"{"a": "half"#, json!({"a": "half"})),
            (r#"{"a": "half\"#, json!({"a": "half"})),
            (r#"{"a": 1, "#, json!({"a": 1})),
            (r#"{"a": 1, "b"#, json!({"a": 1})),
            (r#"{"a": 1, "b": "#, json!({"a": 1})),
            (r#"{"a": 1, "b": tr"#, json!({"a": 1})),
            (r#"{"a": [1, {"b": "x"}, nul"#, json!({"a": [1, {"b": "x"}]})),
        ] {
            assert_eq!(salvage(text).map(Value::Object), Some(expected), "{text}");
        }
        for text in ["[1]", "17", "{1", "text", "{a: 1}", "{\"a\": x}", "\"text\"", "}{", "[1, "] {
            assert_eq!(salvage(text), None, "{text}");
        }
    }
}

//! Python's literals, which models write where JSON is meant: `{'a': True, 'b': (1, None),}`.

use serde_json::{Map, Number, Value};

/// Levels that one literal may nest, as many as serde_json allows.
const DEEPEST: usize = 127;

/// The value of a text that is one Python literal, or one of JSON's, as a whole.
pub(crate) fn parse(text: &str) -> Option<Value> {
    let mut reader = Reader { rest: text, depth: 0 };
    let value = reader.value()?;
    reader.skip_space();
    reader.rest.is_empty().then_some(value)
}

struct Reader<'t> {
    rest: &'t str,
    depth: usize,
}

impl Reader<'_> {
    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn eat(&mut self, token: &str) -> bool {
        self.skip_space();
        let rest = self.rest.strip_prefix(token);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn value(&mut self) -> Option<Value> {
        self.skip_space();
        match self.rest.chars().next()? {
            '{' => self.nested(Self::map),
            '[' => self.nested(|reader| reader.items("[", "]")),
            '(' => self.nested(|reader| reader.items("(", ")")),
            '\'' | '"' => self.string().map(Value::String),
            '-' | '+' | '.' | '0'..='9' => self.number(),
            _ => self.word(),
        }
    }

    fn nested(&mut self, read: impl FnOnce(&mut Self) -> Option<Value>) -> Option<Value> {
        self.depth += 1;
        let value = if self.depth > DEEPEST { None } else { read(self) };
        self.depth -= 1;
        value
    }

    fn map(&mut self) -> Option<Value> {
        let mut map = Map::new();
        self.eat("{");
        while !self.eat("}") {
            let key = match self.value()? {
                Value::String(key) => key,
                key @ (Value::Number(_) | Value::Bool(_) | Value::Null) => key.to_string(),
                _ => return None,
            };
            if !self.eat(":") {
                return None;
            }
            let value = self.value()?;
            map.insert(key, value);
            if !self.eat(",") {
                return self.eat("}").then_some(Value::Object(map));
            }
        }
        Some(Value::Object(map))
    }

    fn items(&mut self, open: &str, close: &str) -> Option<Value> {
        let mut items = Vec::new();
        self.eat(open);
        while !self.eat(close) {
            items.push(self.value()?);
            if !self.eat(",") {
                return self.eat(close).then_some(Value::Array(items));
            }
        }
        Some(Value::Array(items))
    }

    fn number(&mut self) -> Option<Value> {
        let is_part = |c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e' | 'E');
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest;
        match serde_json::from_str::<Number>(text) {
            Ok(number) => Some(Value::Number(number)),
            // What is beyond a float's range is the largest float.
            Err(_) => Number::from_f64(text.parse::<f64>().ok()?.clamp(f64::MIN, f64::MAX)).map(Value::Number),
        }
    }

    fn word(&mut self) -> Option<Value> {
        let end = self.rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        match word {
            "True" | "true" => Some(Value::Bool(true)),
            "False" | "false" => Some(Value::Bool(false)),
            "None" | "null" => Some(Value::Null),
            _ => None,
        }
    }

    fn string(&mut self) -> Option<String> {
        let mut characters = self.rest.chars();
        let quote = characters.next()?;
        let mut text = String::new();
        loop {
            match characters.next()? {
                c if c == quote => break,
                '\\' => match characters.next()? {
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    'b' => text.push('\u{8}'),
                    'f' => text.push('\u{c}'),
                    'x' => text.push(char::from_u32(code(&mut characters, 2)?)?),
                    'U' => text.push(char::from_u32(code(&mut characters, 8)?)?),
                    'u' => match code(&mut characters, 4)? {
                        high @ 0xd800..=0xdbff => {
                            let second = (characters.next()?, characters.next()?);
                            let low = code(&mut characters, 4)?;
                            let pair = char::decode_utf16([u16::try_from(high).ok()?, u16::try_from(low).ok()?]).next();
                            text.push(pair?.ok().filter(|_| second == ('\\', 'u'))?);
                        }
                        unit => text.push(char::from_u32(unit)?),
                    },
                    '\n' => {}
                    c @ ('\\' | '\'' | '"' | '/') => text.push(c),
                    // As Python does with escapes that it does not have.
                    c => text.extend(['\\', c]),
                },
                c => text.push(c),
            }
        }
        self.rest = characters.as_str();
        Some(text)
    }
}

/// A character's code in hexadecimal digits.
fn code(characters: &mut std::str::Chars<'_>, digits: usize) -> Option<u32> {
    (0..digits).try_fold(0, |code: u32, _| Some(code << 4 | characters.next()?.to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::parse;
    use serde_json::json;

    #[test]
    fn literals_are_read() {
        for (text, value) in [
            ("{'a': True, \"b\": None, 'c': [1, 2.5, -3,],}", json!({"a": true, "b": null, "c": [1, 2.5, -3]})),
            ("( 'x', )", json!(["x"])),
            (r#"{'it\'s': 'a "b" \n\x41\u00e9\U0001f642\d'}"#, json!({"it's": "a \"b\" \nAé🙂\\d"})),
            (r#"["\ud83d\ude42"]"#, json!(["🙂"])),
            ("{1: .5, None: 1e3}", json!({"1": 0.5, "null": 1000.0})),
            ("[]", json!([])),
            ("{}", json!({})),
        ] {
            assert_eq!(parse(text), Some(value), "{text}");
        }
    }

    #[test]
    fn other_text_is_no_literal() {
        for text in ["", "{", "[1", "{'a'}", "{'a': x}", "[1] 2", "'open", "{[1]: 2}", "[1 2]", "['\\ud800']", "1.2.3"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(parse(&"[".repeat(100_000)), None);
    }
}

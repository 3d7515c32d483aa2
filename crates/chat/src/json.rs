//! JSON as Python's `json.dumps` spells it: models were trained on that spelling.

use std::fmt::Write;

use minijinja::value::{Serde, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// The arguments of `json.dumps`.
pub(crate) struct Style {
    /// Spell all but printable ASCII characters as `\uXXXX`.
    pub(crate) ensure_ascii: bool,
    pub(crate) sort_keys: bool,
    /// What each level is indented by; without it everything is on one line.
    pub(crate) indent: Option<String>,
    pub(crate) item_separator: String,
    pub(crate) key_separator: String,
}

impl Default for Style {
    /// What transformers' templates get without arguments: one line, and every character as it is.
    fn default() -> Self {
        Self {
            ensure_ascii: false,
            sort_keys: false,
            indent: None,
            item_separator: ", ".into(),
            key_separator: ": ".into(),
        }
    }
}

/// The value as JSON.
pub(crate) fn dumps(value: &Value, style: &Style) -> Result<String, Error> {
    let mut writer = Writer { style, out: String::new(), level: 0 };
    writer.value(value)?;
    Ok(writer.out)
}

/// A value as a chat template's `tojson` spells it.
#[must_use]
pub fn spelled(value: &serde_json::Value) -> String {
    // Whatever is JSON has a spelling.
    dumps(&Value::from(Serde(value)), &Style::default()).unwrap_or_else(|_| value.to_string())
}

struct Writer<'s> {
    style: &'s Style,
    out: String,
    level: usize,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value) -> Result<(), Error> {
        match value.kind() {
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.collection('[', ']', &items, |writer, item| writer.value(item))?;
            }
            ValueKind::Map => {
                let mut entries = Vec::new();
                for key in value.try_iter()? {
                    entries.push((atom(&key)?, value.get_item(&key)?));
                }
                if self.style.sort_keys {
                    entries.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.collection('{', '}', &entries, |writer, (key, value)| {
                    writer.string(key);
                    writer.out.push_str(&writer.style.key_separator);
                    writer.value(value)
                })?;
            }
            _ => self.out.push_str(&atom(value)?),
        }
        Ok(())
    }

    fn collection<T>(
        &mut self,
        open: char,
        close: char,
        items: &[T],
        write: impl Fn(&mut Self, &T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        self.level += 1;
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.out.push_str(&self.style.item_separator);
            }
            self.new_line();
            write(self, item)?;
        }
        self.level -= 1;
        if !items.is_empty() {
            self.new_line();
        }
        self.out.push(close);
        Ok(())
    }

    fn new_line(&mut self) {
        if let Some(indent) = &self.style.indent {
            self.out.push('\n');
            (0..self.level).for_each(|_| self.out.push_str(indent));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                '\0'..='\u{1f}' => self.escape(c),
                '\u{7f}'.. if self.style.ensure_ascii => self.escape(c),
                _ => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn escape(&mut self, c: char) {
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a string can't fail.
            let _ = write!(self.out, "\\u{unit:04x}");
        }
    }
}

/// A value that is no collection: as an element, and without its quotes as a key.
fn atom(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::None => Ok("null".into()),
        ValueKind::Bool => Ok(if value.is_true() { "true" } else { "false" }.into()),
        ValueKind::Number if value.is_integer() => Ok(value.to_string()),
        ValueKind::Number => f64::try_from(value.clone()).map(|number| match number {
            f64::INFINITY => "Infinity".into(),
            f64::NEG_INFINITY => "-Infinity".into(),
            _ if number.is_nan() => "NaN".into(),
            _ => float(number),
        }),
        ValueKind::String => Ok(value.to_string()),
        kind => Err(Error::new(ErrorKind::BadSerialization, format!("tojson: a value of kind {kind} has no JSON"))),
    }
}

/// Python's `repr` of a float: the shortest digits that read back the same, with an exponent below 1e-4 and from 1e16
/// on, else with at least one decimal.
pub(crate) fn float(number: f64) -> String {
    if !number.is_finite() {
        return if number.is_nan() { "nan".into() } else { number.to_string() };
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) || number == 0.0 {
        let plain = number.to_string();
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_spelled_as_in_python() {
        let spelled = [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.25e-7, "1.25e-07"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.1, "0.1"),
            (123_456_789.25, "123456789.25"),
        ];
        for (number, text) in spelled {
            assert_eq!(float(number), text);
        }
    }

    #[test]
    fn definitions_are_spelled_as_templates_spell_them() {
        let value = serde_json::json!({"b": [1, 2.5, 1e16, null, true], "a": {"ü\n": "\u{7f}", "n": -3}, "c": []});
        let mut environment = minijinja::Environment::new();
        crate::python::install(&mut environment);
        let written =
            environment.render_str("{{ value | tojson }}", Serde(serde_json::json!({"value": value}))).unwrap();
        assert_eq!(spelled(&value), written);
        assert!(written.starts_with(r#"{"b": [1, 2.5, 1e+16, null, true], "a": {"ü\n": "#), "{written}");
    }
}

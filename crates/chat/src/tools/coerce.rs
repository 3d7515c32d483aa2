//! A parameter's text as the JSON value that its schema asks for.

use serde_json::{Number, Value};

use super::literal;
use super::schema::{Expected, Kinds};
use crate::json::float;

/// The JSON text of a value that was written as `text`.
///
/// Strings are taken byte for byte. Where other kinds are allowed beside them, a text is of another kind only if that is
/// how the template would write the value: `3.10` is no number then, as that would be `3.1`, nor is `['a']` an array.
/// Where no string is allowed, spellings that only resemble JSON are understood: `5.0` for an integer, `True`, Python's
/// literals, a value in quotes. What fits nothing stays a string, so that whoever checks it can say what is wrong.
pub(crate) fn coerce(text: &str, expected: &Expected) -> String {
    let Expected { kinds, choices } = expected;
    if let Some(choice) = choices.iter().find(|choice| choice.as_str() == Some(text)) {
        return choice.to_string();
    }
    if *kinds == Kinds::STRING {
        return quoted(text);
    }
    let trimmed = text.trim();
    let lenient = !kinds.has(Kinds::STRING);
    if !lenient && looks_like_a_number(trimmed) && !is_as_written(trimmed) {
        return quoted(text);
    }
    if let Some(json) = as_kinds(trimmed, *kinds, lenient) {
        return json;
    }
    if lenient {
        if let Ok(inner) = serde_json::from_str::<String>(trimmed)
            && let Some(json) = as_kinds(inner.trim(), *kinds, true)
        {
            return json;
        }
        // Of another kind than was asked for, but a value all the same.
        if let Some(json) = as_kinds(trimmed, Kinds::ANY, false) {
            return json;
        }
    }
    quoted(text)
}

/// Whether a text that begins so, where a string and these kinds are allowed, may turn out to be no string.
pub(crate) fn may_be_other(text: &str, kinds: Kinds) -> bool {
    // Of what is no container, and of white space before it, no more is written.
    const LONGEST: usize = 64;
    let start = text.trim_start();
    if text.len() - start.len() > LONGEST {
        return false;
    }
    if start.starts_with('[') && kinds.has(Kinds::ARRAY) || start.starts_with('{') && kinds.has(Kinds::OBJECT) {
        return true;
    }
    if start.len() > LONGEST {
        return false;
    }
    let start = start.trim_end();
    let begins = |kind: Kinds, words: &[&str]| kinds.has(kind) && words.iter().any(|word| word.starts_with(start));
    start.is_empty()
        || begins(Kinds::NULL, &["null"])
        || begins(Kinds::BOOLEAN, &["true", "false"])
        || looks_like_a_number(start) && (kinds.has(Kinds::INTEGER) || kinds.has(Kinds::NUMBER))
}

/// A text as a JSON string.
pub(crate) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// The text of a JSON string without its quotes. Pieces of a text escaped one by one join to the whole escaped.
pub(crate) fn escaped(text: &str) -> String {
    let quoted = quoted(text);
    quoted[1..quoted.len() - 1].to_owned()
}

/// As the first of the kinds but strings that `text` can be read as.
fn as_kinds(text: &str, kinds: Kinds, lenient: bool) -> Option<String> {
    if kinds.has(Kinds::NULL) && (text == "null" || lenient && matches!(text, "" | "None")) {
        return Some("null".into());
    }
    if kinds.has(Kinds::BOOLEAN) {
        for name in ["true", "false"] {
            if text == name || lenient && text.eq_ignore_ascii_case(name) {
                return Some(name.into());
            }
        }
    }
    if kinds.has(Kinds::INTEGER)
        && let Some(json) = integer(text, lenient && !kinds.has(Kinds::NUMBER))
    {
        return Some(json);
    }
    if kinds.has(Kinds::NUMBER)
        && let Some(json) = number(text, lenient)
    {
        return Some(json);
    }
    let container = match text.chars().next()? {
        '[' | '(' => kinds.has(Kinds::ARRAY),
        '{' => kinds.has(Kinds::OBJECT),
        _ => false,
    };
    if !container {
        return None;
    }
    match serde_json::from_str::<Value>(text) {
        // JSON keeps its spelling: digits that no float has survive.
        Ok(_) => Some(text.into()),
        // Where it may be a text, only JSON is taken for more than that.
        Err(error) if lenient || error.to_string().starts_with("number out of range") => {
            literal::parse(text).map(|value| value.to_string())
        }
        Err(_) => None,
    }
}

fn integer(text: &str, lenient: bool) -> Option<String> {
    let is_number = is_json_number(text);
    if is_number && !text.contains(['.', 'e', 'E']) {
        return Some(text.into());
    }
    if !lenient {
        return None;
    }
    if let Ok(value) = text.parse::<i128>() {
        return Some(value.to_string());
    }
    // Whole numbers up to here are exact in a float.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let value: f64 = text.parse().ok().filter(|_| looks_like_a_number(text))?;
    (value.fract() == 0.0 && value.abs() <= EXACT).then(|| (value as i64).to_string())
}

/// One beyond a float's range is the largest float of its sign: few readers take what JSON allows.
fn number(text: &str, lenient: bool) -> Option<String> {
    if is_json_number(text) {
        return Some(text.into());
    }
    let read = text.parse().ok().filter(|value: &f64| lenient || value.is_infinite());
    let value = read.filter(|_| looks_like_a_number(text))?;
    Number::from_f64(value.clamp(f64::MIN, f64::MAX)).map(|number| number.to_string())
}

fn is_json_number(text: &str) -> bool {
    // serde_json allows space around a value.
    looks_like_a_number(text) && serde_json::from_str::<Number>(text).is_ok()
}

/// Whether the template writes the number just so: a version or a key in digits need not be one.
fn is_as_written(text: &str) -> bool {
    text.parse::<i64>().is_ok_and(|number| number.to_string() == text)
        || text.parse::<u64>().is_ok_and(|number| number.to_string() == text)
        || text.parse::<f64>().is_ok_and(|number| float(number) == text)
}

/// Rust reads "inf" and "nan", too.
fn looks_like_a_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.' | b'e' | b'E'))
}

#[cfg(test)]
mod tests {
    use super::super::ToolSet;
    use super::{coerce, escaped};
    use serde_json::{Value, json};

    fn read(text: &str, schema: &Value) -> String {
        let parameters = json!({"properties": {"p": schema}});
        let tools = ToolSet::new(&[json!({"function": {"name": "f", "parameters": parameters}})]);
        coerce(text, &tools.expected("f", "p"))
    }

    #[test]
    fn text_becomes_what_the_schema_asks_for() {
        let kind = |name: &str| json!({ "type": name });
        let either = |names: &[&str]| json!({ "type": names });
        for (schema, text, json) in [
            // Field case 19.
            (kind("string"), "3.10.5-beta", "\"3.10.5-beta\""),
            (kind("string"), "2026-01-02", "\"2026-01-02\""),
            (kind("string"), "5.0", "\"5.0\""),
            (kind("string"), "null", "\"null\""),
            (kind("string"), "{\"a\": 1}", r#""{\"a\": 1}""#),
            (kind("string"), " a\r\n", r#"" a\r\n""#),
            (kind("string"), "", "\"\""),
            (kind("integer"), "5.0", "5"),
            (kind("integer"), "+7", "7"),
            (kind("integer"), "007", "7"),
            (kind("integer"), " 12 ", "12"),
            (kind("integer"), "1e3", "1000"),
            (kind("integer"), "\"5\"", "5"),
            (kind("integer"), "123456789012345678901234567890", "123456789012345678901234567890"),
            (kind("integer"), "5.5", "5.5"),
            (kind("integer"), "five", "\"five\""),
            (kind("integer"), "nan", "\"nan\""),
            (kind("number"), "1.10", "1.10"),
            (kind("number"), "5.0", "5.0"),
            (kind("number"), "-.5", "-0.5"),
            (kind("number"), "-8E31729", "-1.7976931348623157e+308"),
            (kind("integer"), "1e999", "1.7976931348623157e+308"),
            (kind("number"), "inf", "\"inf\""),
            (kind("boolean"), "True", "true"),
            (kind("boolean"), "false", "false"),
            (kind("boolean"), "maybe", "\"maybe\""),
            (kind("null"), "None", "null"),
            (kind("array"), "[1, 2]", "[1, 2]"),
            (kind("array"), "['a', 'b']", r#"["a","b"]"#),
            (kind("array"), "('a',)", r#"["a"]"#),
            (kind("array"), "a, b", "\"a, b\""),
            (kind("object"), "{'a': True, 'b': None}", r#"{"a":true,"b":null}"#),
            (kind("object"), "{\"a\": 1.50}", "{\"a\": 1.50}"),
            (kind("object"), r#""{\"a\": 1}""#, "{\"a\": 1}"),
            (kind("object"), r#"{"a": [-2e511], "b": "1e999"}"#, r#"{"a":[-1.7976931348623157e+308],"b":"1e999"}"#),
            (either(&["string", "array"]), "[1e999]", "[1.7976931348623157e+308]"),
            (either(&["string", "number"]), "1e999", "\"1e999\""),
            (kind("object"), "{broken", "\"{broken\""),
            (either(&["string", "null"]), "null", "null"),
            (either(&["string", "null"]), "nullify", "\"nullify\""),
            (either(&["integer", "null"]), "None", "null"),
            (either(&["string", "integer"]), "5", "5"),
            (either(&["string", "integer"]), "5.0", "\"5.0\""),
            (either(&["string", "array"]), "['a']", "\"['a']\""),
            (either(&["string", "array"]), "('a',)", "\"('a',)\""),
            (either(&["string", "array"]), "[\"a\"]", "[\"a\"]"),
            (either(&["string", "number"]), "3.10", "\"3.10\""),
            (either(&["string", "number"]), "1e5", "\"1e5\""),
            (either(&["string", "number"]), "-2.5", "-2.5"),
            (either(&["integer", "null"]), "5.0", "5"),
            (kind("str"), "5", "\"5\""),
            (kind("int"), "5.0", "5"),
            (kind("dict"), "{'a': 1}", r#"{"a":1}"#),
            (json!({"anyOf": [{"type": "number"}, {"type": "boolean"}]}), "TRUE", "true"),
            (json!({"enum": ["1", "2"]}), "1", "\"1\""),
            (json!({"enum": ["1", 1]}), "1", "\"1\""),
            (json!({"enum": [1, 2]}), "2.0", "2"),
            (json!({}), "3.10", "\"3.10\""),
            (json!({}), "3.1", "3.1"),
            (json!({}), "5.0", "5.0"),
            (json!({}), "-17", "-17"),
            (json!({}), "18446744073709551615", "18446744073709551615"),
            (json!({}), "12345678901234567890123", "\"12345678901234567890123\""),
            (json!({}), "3.10.5-beta", "\"3.10.5-beta\""),
            (json!({}), "{'a': 1}", "\"{'a': 1}\""),
            (json!({}), "[1]", "[1]"),
            (json!({}), "True", "\"True\""),
        ] {
            assert_eq!(read(text, &schema), json, "{schema} {text:?}");
        }
    }

    #[test]
    fn pieces_are_escaped_as_the_whole() {
        let text = "a\"\\\n\r\t\u{1}é🙂\u{7f}/";
        let pieces: String = text.chars().map(|c| escaped(&c.to_string())).collect();
        assert_eq!(pieces, escaped(text));
        assert_eq!(serde_json::from_str::<String>(&format!("\"{pieces}\"")).expect("JSON"), text);
    }
}

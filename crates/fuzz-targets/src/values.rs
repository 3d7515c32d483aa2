//! JSON values out of any bytes.

use arbitrary::{Result, Unstructured};
use serde_json::{Map, Value, json};

/// Parts of a text.
const PARTS: usize = 6;
/// Items of an array or object.
const ITEMS: usize = 4;

/// A text of these words and of any others.
pub(crate) fn text(source: &mut Unstructured<'_>, words: &[&str]) -> Result<String> {
    let mut text = String::new();
    for _ in 0..source.int_in_range(0..=PARTS)? {
        text.push_str(match source.int_in_range(0..=4)? {
            0 => source.arbitrary::<&str>()?,
            _ => source.choose(words)?,
        });
    }
    Ok(text)
}

/// Any value, nested up to `depth`.
pub(crate) fn value(source: &mut Unstructured<'_>, words: &[&str], depth: usize) -> Result<Value> {
    Ok(match source.int_in_range(0..=if depth == 0 { 7 } else { 9 })? {
        0 => Value::Null,
        1 => Value::Bool(source.arbitrary()?),
        2 => json!(source.int_in_range(-3..=20)?),
        3 => json!(source.arbitrary::<i64>()?),
        4 => json!(source.arbitrary::<f64>()?),
        5 => json!(*source.choose(words)?),
        6 | 7 => json!(text(source, words)?),
        8 => (0..source.int_in_range(0..=ITEMS)?).map(|_| value(source, words, depth - 1)).collect::<Result<_>>()?,
        _ => Value::Object(object(source, words, depth - 1)?),
    })
}

/// An object with any values.
pub(crate) fn object(source: &mut Unstructured<'_>, words: &[&str], depth: usize) -> Result<Map<String, Value>> {
    (0..source.int_in_range(0..=ITEMS)?)
        .map(|_| {
            let key = if source.arbitrary()? { (*source.choose(words)?).to_owned() } else { text(source, words)? };
            Ok((key, value(source, words, depth)?))
        })
        .collect()
}

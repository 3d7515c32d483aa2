//! What Jinja templates written for Python take for granted.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};

use crate::json::{self, Style};

/// The reason a template gave to `raise_exception`, carried as the source of minijinja's error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Raised(pub(crate) String);

/// Adds Python's methods and spellings, and the functions that transformers gives to templates.
pub(crate) fn install(environment: &mut Environment<'_>) {
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(print);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |value: &Value| as_string(value).unwrap_or_else(|| value.to_string()));
    // Jinja2 asks whether a value has a length and items, so strings and mappings count; and Python's bool is a number.
    environment.add_test("sequence", |value: &Value| is_collection(value));
    environment.add_test("iterable", |value: &Value| is_collection(value) || value.kind() == ValueKind::Iterable);
    environment.add_test("number", |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool));
}

fn is_collection(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map)
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message.to_string())))
}

/// The local time in the form that `format` describes.
fn strftime_now(format: &str) -> Result<String, Error> {
    use chrono::format::{Item, StrftimeItems};
    let items: Vec<Item<'_>> = StrftimeItems::new(format).collect();
    if items.contains(&Item::Error) {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {format:?} is no time format")));
    }
    Ok(chrono::Local::now().format_with_items(items.iter()).to_string())
}

/// transformers' filter: `json.dumps` that keeps non-ASCII characters, its arguments in transformers' order.
fn tojson(
    value: &Value,
    ensure_ascii: Option<Value>,
    indent: Option<Value>,
    separators: Option<Value>,
    named: Kwargs,
) -> Result<String, Error> {
    let argument = |name: &str, positional: Option<Value>| -> Result<Option<Value>, Error> {
        Ok(named.get::<Option<Value>>(name)?.or(positional).filter(|value| !value.is_none()))
    };
    let ensure_ascii = argument("ensure_ascii", ensure_ascii)?;
    let indent = argument("indent", indent)?;
    let separators = argument("separators", separators)?;
    let sort_keys = argument("sort_keys", None)?;
    named.assert_all_used()?;
    let indent = match &indent {
        None => None,
        Some(text) if text.as_str().is_some() => Some(text.to_string()),
        Some(spaces) => Some(" ".repeat(usize::try_from(i64::try_from(spaces.clone())?.clamp(0, 64)).unwrap_or(0))),
    };
    let (item, key) = match separators {
        Some(pair) => (pair.get_item_by_index(0)?.to_string(), pair.get_item_by_index(1)?.to_string()),
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let style = Style {
        ensure_ascii: ensure_ascii.is_some_and(|value| value.is_true()),
        sort_keys: sort_keys.is_some_and(|value| value.is_true()),
        indent,
        item_separator: item,
        key_separator: key,
    };
    json::dumps(value, &style)
}

fn print(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    match as_string(value) {
        Some(text) => out.write_str(&text).map_err(Error::from),
        None => minijinja::escape_formatter(out, state, value),
    }
}

/// Python's `str` of a float, which minijinja spells without exponents.
fn as_string(value: &Value) -> Option<String> {
    (value.kind() == ValueKind::Number && !value.is_integer())
        .then(|| f64::try_from(value.clone()).ok().map(json::float))?
}

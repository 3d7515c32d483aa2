//! Typed reading of a JSON object that remembers the way to each value, so that an error can name it.
//!
//! `null` counts as absent everywhere, as clients write optional parameters either way. Unknown fields are never looked
//! at. Types are exact: `"1"` is not a number and `1.0` not an integer.

use crate::error::ApiError;
use serde_json::{Map, Value};
use std::fmt::Display;
use std::ops::RangeInclusive;

/// An object and where it stands in the request.
pub(crate) struct Fields<'v> {
    map: &'v Map<String, Value>,
    path: String,
}

impl<'v> Fields<'v> {
    /// Reads `value`, found at `path` (empty for the request itself), as an object.
    pub(crate) fn of(value: &'v Value, path: &str) -> Result<Self, ApiError> {
        match value {
            Value::Object(map) => Ok(Self { map, path: path.to_owned() }),
            other if path.is_empty() => {
                Err(ApiError::request(format!("The request body must be a JSON object, not {}.", kind(other))))
            }
            other => Err(wrong_type(path, "an object", other)),
        }
    }

    /// The way to the field `name` of this object.
    pub(crate) fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// The field's value unless it is absent or null.
    pub(crate) fn value(&self, name: &str) -> Option<&'v Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// True if the field is there, even if it is null.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    pub(crate) fn required(&self, name: &str) -> Result<&'v Value, ApiError> {
        self.value(name).ok_or_else(|| {
            let path = self.path(name);
            ApiError::parameter(&path, format!("'{path}' is missing."))
        })
    }

    pub(crate) fn string(&self, name: &str) -> Result<Option<&'v str>, ApiError> {
        self.value(name).map(|value| string(value, &self.path(name))).transpose()
    }

    pub(crate) fn boolean(&self, name: &str) -> Result<Option<bool>, ApiError> {
        self.value(name)
            .map(|value| value.as_bool().ok_or_else(|| wrong_type(&self.path(name), "a boolean", value)))
            .transpose()
    }

    pub(crate) fn integer(&self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        self.value(name).map(|value| integer(value, self.path(name), range)).transpose()
    }

    pub(crate) fn number(&self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f32>, ApiError> {
        self.value(name).map(|value| number(value, &self.path(name), range)).transpose()
    }

    /// A number over 0 and at most `high`.
    pub(crate) fn positive(&self, name: &str, high: f64) -> Result<Option<f32>, ApiError> {
        self.value(name).map(|value| positive(value, &self.path(name), high)).transpose()
    }

    pub(crate) fn object(&self, name: &str) -> Result<Option<Fields<'v>>, ApiError> {
        self.value(name).map(|value| Fields::of(value, &self.path(name))).transpose()
    }

    pub(crate) fn array(&self, name: &str) -> Result<Option<&'v [Value]>, ApiError> {
        self.value(name)
            .map(|value| match value {
                Value::Array(items) => Ok(items.as_slice()),
                other => Err(wrong_type(&self.path(name), "an array", other)),
            })
            .transpose()
    }

    /// Every field with its value.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&'v String, &'v Value)> {
        self.map.iter()
    }
}

/// Reads a string.
pub(crate) fn string<'v>(value: &'v Value, path: &str) -> Result<&'v str, ApiError> {
    value.as_str().ok_or_else(|| wrong_type(path, "a string", value))
}

/// Reads an integer within `range`. Its path is made where there is something to say of it alone: a prompt can be 100,000 of them.
pub(crate) fn integer(value: &Value, path: impl Display, range: RangeInclusive<i64>) -> Result<i64, ApiError> {
    // Beyond 64 bits a whole number is read as one with a fraction.
    let is_beyond = value.as_f64().is_some_and(|number| number.abs() >= i64::MAX as f64);
    if !value.is_i64() && !value.is_u64() && !is_beyond {
        return Err(wrong_type(&path.to_string(), "an integer", value));
    }
    // What does not fit an i64 is over every range here.
    value.as_i64().filter(|number| range.contains(number)).ok_or_else(|| {
        let message = match (*range.start(), *range.end()) {
            (low, i64::MAX) if value.is_i64() => format!("'{path}' must be at least {low}, not {value}."),
            (low, high) => format!("'{path}' must be between {low} and {high}, not {value}."),
        };
        ApiError::parameter(path.to_string(), message)
    })
}

/// Reads a number within `range`.
pub(crate) fn number(value: &Value, path: &str, range: RangeInclusive<f64>) -> Result<f32, ApiError> {
    let (low, high) = (range.start(), range.end());
    number_that(value, path, |number| range.contains(&number), &format!("between {low} and {high}"))
}

/// Reads a number over 0 and at most `high`.
pub(crate) fn positive(value: &Value, path: &str, high: f64) -> Result<f32, ApiError> {
    // It may be over 0 and still be 0 in the end.
    let is_in = |number: f64| number as f32 > 0.0 && number <= high;
    number_that(value, path, is_in, &format!("above 0 and at most {high}"))
}

/// Reads a number that `is_in`; `wanted` says which are.
fn number_that(value: &Value, path: &str, is_in: impl Fn(f64) -> bool, wanted: &str) -> Result<f32, ApiError> {
    let number = value.as_f64().ok_or_else(|| wrong_type(path, "a number", value))?;
    if !is_in(number) {
        return Err(ApiError::parameter(path, format!("'{path}' must be {wanted}, not {value}.")));
    }
    Ok(number as f32)
}

/// 400 that says what was wanted and what came, without repeating the value: it may be long or private.
pub(crate) fn wrong_type(path: &str, wanted: &str, got: &Value) -> ApiError {
    ApiError::parameter(path, format!("'{path}' must be {wanted}, not {}.", kind(got)))
}

/// A value of the client's for an error's message: quoted, and cut, since it may be megabytes.
pub(crate) fn quoted(text: &str) -> String {
    const MOST: usize = 60;
    match text.char_indices().nth(MOST) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}…", &text[..end]),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(number) if number.is_f64() => "a number with a fraction",
        Value::Number(_) => "an integer",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

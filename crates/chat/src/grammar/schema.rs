//! A client's schema made ready for llguidance's compiler, which refuses what it cannot follow. What no reply could ever satisfy
//! is refused here.

use std::collections::HashMap;

use serde_json::{Map, Number, Value, json};

use super::document::Budget;
use super::followable::followable;
use super::latitude::{Latitude, States};
use super::nesting::check_schema;
use super::reason::refused;
use super::{GrammarError, formats, json_text};
use crate::tools::target;

/// Formats that are checked. To JSON Schema any other is a note.
pub(super) const FORMATS: [&str; 10] =
    ["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"];
/// Between the parts of JSON: a line break with what indents the next line, or a few spaces. A model that has lost its way
/// writes as many as it may.
const SPACE: &str = r"\r?\n[ \t]{0,40}|[ \t]{1,4}";
/// The options of llguidance's compiler, in the schema itself.
pub(super) const OPTIONS: &str = "x-guidance";

/// Keywords whose value is a schema.
pub(super) const ONE: [&str; 11] = [
    "additionalItems",
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];
/// Keywords whose value is an array of schemas.
pub(super) const SEVERAL: [&str; 5] = ["allOf", "anyOf", "items", "oneOf", "prefixItems"];
/// Keywords whose value is an object of schemas.
pub(super) const NAMED: [&str; 5] = ["$defs", "definitions", "dependentSchemas", "patternProperties", "properties"];

/// A format's schema, ready for its compiler: all of it has to be followed, as that of a strict function.
///
/// # Errors
/// [`GrammarError::Schema`] or [`GrammarError::Refused`] if it cannot be.
pub(super) fn of_format(schema: &Value, budget: &Budget, states: &States<'_>) -> Result<Value, GrammarError> {
    check_schema(schema)?;
    let latitude = Latitude { function: "", strict: true, states };
    let ready = followable(schema, &latitude, &Budget::default()).and_then(|plain| {
        json_text::take(&plain, true, budget, states)?;
        prepare(plain)
    });
    ready.map_err(|error| match error {
        GrammarError::Parameter { path, reason, .. } if path.is_empty() => refused(reason),
        GrammarError::Parameter { path, reason, .. } => GrammarError::Schema { path, reason },
        other => other,
    })
}

/// The schema to compile, of what is [`followable`].
pub(super) fn prepare(mut schema: Value) -> Result<Value, GrammarError> {
    check_schema(&schema)?;
    check_numbers(&schema)?;
    check_ending(&schema)?;
    json_text::each_map(&mut schema, &formats::spell_out);
    if let Some(map) = schema.as_object_mut() {
        map.insert(OPTIONS.into(), json!({"whitespace_pattern": SPACE}));
    }
    Ok(schema)
}

/// Refuses what no finite value satisfies.
pub(super) fn check_ending(schema: &Value) -> Result<(), GrammarError> {
    if Endings::of(schema).ends(schema) {
        return Ok(());
    }
    Err(refused("no value satisfies the schema: it requires itself within itself, without end"))
}

/// Refuses what lists a number that the compiler, to which all are floats, would put another in the place of.
fn check_numbers(schema: &Value) -> Result<(), GrammarError> {
    each_schema(schema, false, &|map| {
        let listed = map.iter().filter(|(key, _)| matches!(key.as_str(), "const" | "enum"));
        listed.map(|(_, values)| values).find_map(rounded).map_or(Ok(()), |number| {
            Err(refused(format!("the number {number} is listed, and no 64-bit float is that; bind a string instead")))
        })
    })
}

/// Checks a schema and all that are within it, but for values. `named`: whether the keys are names and no keywords.
fn each_schema(
    schema: &Value,
    named: bool,
    check: &impl Fn(&Map<String, Value>) -> Result<(), GrammarError>,
) -> Result<(), GrammarError> {
    match schema {
        Value::Object(map) => {
            if !named {
                check(map)?;
            }
            map.iter().try_for_each(|(key, part)| match key.as_str() {
                "const" | "enum" | "default" | "examples" if !named => Ok(()),
                key => each_schema(part, !named && NAMED.contains(&key), check),
            })
        }
        Value::Array(parts) => parts.iter().try_for_each(|part| each_schema(part, false, check)),
        _ => Ok(()),
    }
}

/// The first number of a value that no float is.
fn rounded(value: &Value) -> Option<&Number> {
    match value {
        Value::Number(number) => number.as_i128().is_some_and(|whole| whole as f64 as i128 != whole).then_some(number),
        Value::Array(items) => items.iter().find_map(rounded),
        Value::Object(map) => map.values().find_map(rounded),
        _ => None,
    }
}

/// Which of the schemas that are referred to some finite value could satisfy, as far as their references go: the least such
/// set, from the leaves up.
struct Endings<'s> {
    known: HashMap<&'s str, bool>,
}

impl<'s> Endings<'s> {
    fn of(root: &'s Value) -> Self {
        let mut known = HashMap::new();
        references(root, &mut known);
        let mut endings = Self { known };
        loop {
            let ends = |reference: &&&str| target(root, reference).is_none_or(|schema| endings.ends(schema));
            let new: Vec<&str> = endings
                .known
                .iter()
                .filter(|(_, known)| !**known)
                .map(|(name, _)| name)
                .filter(ends)
                .copied()
                .collect();
            if new.is_empty() {
                return endings;
            }
            endings.known.extend(new.into_iter().map(|name| (name, true)));
        }
    }

    /// Whether some value satisfies a schema without going round in a circle. What else may be wrong with it is for the
    /// compiler to find.
    fn ends(&self, schema: &Value) -> bool {
        let Some(map) = schema.as_object() else { return true };
        let all = |name: &str| map.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let reference = map.get("$ref").and_then(Value::as_str);
        reference.is_none_or(|reference| self.known.get(reference).copied().unwrap_or(true))
            && all("allOf").iter().all(|part| self.ends(part))
            && ["anyOf", "oneOf"].iter().all(|&name| {
                let options = all(name);
                options.is_empty() || options.iter().any(|option| self.ends(option))
            })
            && self.some_type_ends(map)
    }

    fn some_type_ends(&self, map: &Map<String, Value>) -> bool {
        if map.contains_key("const") || map.contains_key("enum") {
            return true;
        }
        let ends = |name: &str| match name {
            "object" => self.required_end(map),
            "array" => self.items_end(map),
            _ => true,
        };
        match map.get("type") {
            Some(Value::String(name)) => ends(name),
            Some(Value::Array(names)) => names.is_empty() || names.iter().filter_map(Value::as_str).any(ends),
            _ => true,
        }
    }

    fn required_end(&self, map: &Map<String, Value>) -> bool {
        let required = map.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        let mut schemas = required.filter_map(|name| {
            let declared = map.get("properties").and_then(|properties| properties.get(name));
            declared.or_else(|| map.get("additionalProperties"))
        });
        schemas.all(|schema| self.ends(schema))
    }

    fn items_end(&self, map: &Map<String, Value>) -> bool {
        let least = map.get("minItems").and_then(Value::as_u64).unwrap_or(0) as usize;
        let first = map.get("prefixItems").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        first.iter().take(least).all(|item| self.ends(item))
            && (least <= first.len() || map.get("items").is_none_or(|items| self.ends(items)))
    }
}

/// Every reference of a document, none of them known to end.
fn references<'s>(value: &'s Value, found: &mut HashMap<&'s str, bool>) {
    match value {
        Value::Object(map) => {
            if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
                found.insert(reference, false);
            }
            map.values().for_each(|value| references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::prepare;

    #[test]
    fn listed_numbers_that_no_float_is_are_refused() {
        let large = 9_007_199_254_740_993_i64;
        for schema in [
            json!({"const": large}),
            json!({"enum": ["a", [{"b": large}]]}),
            json!({"properties": {"enum": {"enum": [u64::MAX]}}}),
            json!({"anyOf": [{"items": {"const": -large}}]}),
        ] {
            let error = prepare(schema.clone()).expect_err(&schema.to_string()).to_string();
            assert!(error.contains("64-bit float"), "{error}");
        }
        for schema in [
            json!({"enum": [large - 1, 1_u64 << 63, 0.1, i64::MIN]}),
            json!({"properties": {"const": {"maximum": large}}}),
            json!({"type": "integer", "maximum": i64::MAX, "default": large}),
            json!({"default": {"enum": [large]}, "examples": [{"const": large}]}),
        ] {
            prepare(schema.clone()).unwrap_or_else(|error| panic!("{error}: {schema}"));
        }
    }

    #[test]
    fn what_never_ends_is_refused() {
        let node = |required: Value, next: Value| json!({"$ref": "#/$defs/N", "$defs": {"N": {"type": "object", "properties": {"next": next}, "required": required}}});
        let itself = json!({"$ref": "#/$defs/N"});
        for endless in [
            node(json!(["next"]), itself.clone()),
            node(json!(["next"]), json!({"type": "array", "items": itself, "minItems": 1})),
            node(json!(["next"]), json!({"allOf": [{}, itself]})),
            json!({"$ref": "#"}),
            json!({"anyOf": [{"$ref": "#"}]}),
        ] {
            prepare(endless.clone()).expect_err(&endless.to_string());
        }
        for finite in [
            node(json!([]), itself.clone()),
            node(json!(["next"]), json!({"anyOf": [itself, {"type": "null"}]})),
            node(json!(["next"]), json!({"type": "array", "items": itself})),
            node(json!(["other"]), itself.clone()),
            json!({"$ref": "http://elsewhere"}),
        ] {
            prepare(finite.clone()).unwrap_or_else(|error| panic!("{error}: {finite}"));
        }
    }
}

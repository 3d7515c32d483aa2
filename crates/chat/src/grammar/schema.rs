//! A client's schema made ready for llguidance's compiler, which refuses what it cannot follow: what JSON Schema says means
//! nothing is taken out first, and what no reply could ever satisfy is refused here.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde_json::{Map, Number, Value, json};

use super::document::Budget;
use super::json_text::each_map;
use super::nesting::check_schema;
use super::one_of::Comparison;
use super::reason::refused;
use super::{GrammarError, formats};
use crate::tools::{Kinds, target, unescaped};

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

/// The schema to compile.
pub(super) fn prepare(schema: &Value) -> Result<Value, GrammarError> {
    if !schema.is_object() && !schema.is_boolean() {
        return Err(refused("a schema must be an object or a boolean"));
    }
    check_schema(schema)?;
    check_numbers(schema)?;
    check_ending(schema)?;
    each_schema(schema, false, &names_it_asks_for)?;
    let mut ready = schema.clone();
    simplify(&mut ready, &Comparison::new(schema, &Budget::default()));
    each_map(&mut ready, &formats::spell_out);
    if let Some(map) = ready.as_object_mut() {
        map.entry(OPTIONS).or_insert_with(options);
    }
    Ok(ready)
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

/// Whether the grammar has as many properties as the object is asked for: it does not remember names, so that of those which
/// are not `required` it would take one twice for two.
///
/// # Errors
/// [`GrammarError::Refused`] if `minProperties` asks for two that nothing names, or more.
pub(super) fn names_it_asks_for(map: &Map<String, Value>) -> Result<(), GrammarError> {
    let least = map.get("minProperties").and_then(Value::as_f64).unwrap_or(0.0);
    let required = map.get("required").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let named: HashSet<&str> = required.iter().filter_map(Value::as_str).collect();
    if least <= named.len() as f64 + 1.0 {
        return Ok(());
    }
    Err(refused(format!(
        "a minProperties of {least} is supported only where \"required\" names all of them but one: a name could come twice"
    )))
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

/// Options of the compiler.
fn options() -> Value {
    json!({"whitespace_pattern": SPACE})
}

/// Takes out what means nothing, says types by JSON Schema's names, and `oneOf` as `anyOf` where it is the same.
fn simplify(schema: &mut Value, comparison: &Comparison<'_>) {
    let Some(map) = schema.as_object_mut() else { return };
    if map.shift_remove("nullable") == Some(Value::Bool(true)) {
        allow_null(map);
    }
    let types = map.get("type").map(|kind| kind.as_array().map_or(std::slice::from_ref(kind), Vec::as_slice));
    if let Some(kinds) = types.and_then(kinds_of) {
        let names = kinds.names();
        map.insert("type".into(), if let [only] = names[..] { only.into() } else { json!(names) });
    }
    if map.get("format").and_then(Value::as_str).is_some_and(|format| !FORMATS.contains(&format)) {
        map.shift_remove("format");
    }
    // To the compiler the reference is a plain path.
    if let Some(reference) = map.get("$ref").and_then(Value::as_str)
        && let Some(Cow::Owned(plain)) = unescaped(reference)
    {
        map.insert("$ref".into(), plain.into());
    }
    if map.get("uniqueItems") == Some(&Value::Bool(false)) {
        map.shift_remove("uniqueItems");
    }
    if let Some(options) = comparison.exclusive(map) {
        map.shift_remove("oneOf");
        if let Some(all) = map.get_mut("allOf").and_then(Value::as_array_mut) {
            all.push(json!({"anyOf": options}));
        } else if map.contains_key("anyOf") {
            map.insert("allOf".into(), json!([{"anyOf": options}]));
        } else {
            map.insert("anyOf".into(), options.into());
        }
    }
    for (name, value) in map.iter_mut() {
        match value {
            Value::Object(named) if NAMED.contains(&name.as_str()) => {
                named.values_mut().for_each(|part| simplify(part, comparison));
            }
            Value::Array(several) if SEVERAL.contains(&name.as_str()) => {
                several.iter_mut().for_each(|part| simplify(part, comparison));
            }
            Value::Object(_) if ONE.contains(&name.as_str()) => simplify(value, comparison),
            _ => {}
        }
    }
}

/// What OpenAPI says by `nullable`, where the schema says its type itself.
fn allow_null(map: &mut Map<String, Value>) {
    let Some(declared) = map.get("type").cloned() else { return };
    let mut types = if let Value::Array(types) = declared { types } else { vec![declared] };
    types.push("null".into());
    map.insert("type".into(), types.into());
    if let Some(values) = map.get_mut("enum").and_then(Value::as_array_mut) {
        values.push(Value::Null);
    }
}

/// The kinds that all of these names are known to name.
pub(super) fn kinds_of(names: &[Value]) -> Option<Kinds> {
    let kinds: Option<Vec<Kinds>> =
        names.iter().map(|name| name.as_str().map(Kinds::named).filter(|kinds| *kinds != Kinds::ANY)).collect();
    Some(kinds?.into_iter().fold(Kinds::NONE, Kinds::with)).filter(|kinds| *kinds != Kinds::NONE)
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

    use super::{OPTIONS, prepare};

    fn prepared(schema: Value) -> Value {
        let mut ready = prepare(&schema).expect("fine");
        ready.as_object_mut().and_then(|map| map.remove(OPTIONS));
        ready
    }

    #[test]
    fn what_means_nothing_is_taken_out() {
        for (schema, ready) in [
            (json!({"type": "string", "format": "password"}), json!({"type": "string"})),
            (
                json!({"properties": {"format": {"format": "int32"}, "oneOf": {"uniqueItems": false}}}),
                json!({"properties": {"format": {}, "oneOf": {}}}),
            ),
            (json!({"enum": [{"format": "x"}]}), json!({"enum": [{"format": "x"}]})),
            (
                json!({"type": "INTEGER", "items": {"type": "dict"}}),
                json!({"type": "integer", "items": {"type": "object"}}),
            ),
            (json!({"type": "objekt"}), json!({"type": "objekt"})),
            (json!({"type": ["str", "null"]}), json!({"type": ["string", "null"]})),
            (json!({"type": ["integer", "file"]}), json!({"type": ["integer", "file"]})),
            (json!({"items": {"type": "int", "nullable": true}}), json!({"items": {"type": ["integer", "null"]}})),
            (
                json!({"type": "string", "enum": ["a"], "nullable": true}),
                json!({"type": ["string", "null"], "enum": ["a", null]}),
            ),
            (json!({"type": "string", "nullable": false}), json!({"type": "string"})),
            (
                json!({"items": {"oneOf": [{"type": "string", "format": "x"}, {"type": "null"}]}}),
                json!({"items": {"anyOf": [{"type": "string"}, {"type": "null"}]}}),
            ),
            (
                json!({"anyOf": [{}], "oneOf": [{"const": 1}, {"const": 2}]}),
                json!({"anyOf": [{}], "allOf": [{"anyOf": [{"const": 1}, {"const": 2}]}]}),
            ),
            (
                json!({"oneOf": [{"type": "number"}, {"const": 2}]}),
                json!({"oneOf": [{"type": "number"}, {"const": 2}]}),
            ),
        ] {
            assert_eq!(prepared(schema.clone()), ready, "{schema}");
        }
        assert_eq!(prepare(&json!({"x-guidance": {"lenient": true}})), Ok(json!({"x-guidance": {"lenient": true}})));
    }

    #[test]
    fn listed_numbers_that_no_float_is_are_refused() {
        let large = 9_007_199_254_740_993_i64;
        for schema in [
            json!({"const": large}),
            json!({"enum": ["a", [{"b": large}]]}),
            json!({"properties": {"enum": {"enum": [u64::MAX]}}}),
            json!({"anyOf": [{"items": {"const": -large}}]}),
        ] {
            let error = prepare(&schema).expect_err(&schema.to_string()).to_string();
            assert!(error.contains("64-bit float"), "{error}");
        }
        for schema in [
            json!({"enum": [large - 1, 1_u64 << 63, 0.1, i64::MIN]}),
            json!({"properties": {"const": {"maximum": large}}}),
            json!({"type": "integer", "maximum": i64::MAX, "default": large}),
            json!({"default": {"enum": [large]}, "examples": [{"const": large}]}),
        ] {
            prepare(&schema).unwrap_or_else(|error| panic!("{error}: {schema}"));
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
            prepare(&endless).expect_err(&endless.to_string());
        }
        for finite in [
            node(json!([]), itself.clone()),
            node(json!(["next"]), json!({"anyOf": [itself, {"type": "null"}]})),
            node(json!(["next"]), json!({"type": "array", "items": itself})),
            node(json!(["other"]), itself.clone()),
            json!({"$ref": "http://elsewhere"}),
        ] {
            prepare(&finite).unwrap_or_else(|error| panic!("{error}: {finite}"));
        }
        prepare(&json!("object")).expect_err("no schema");
    }
}

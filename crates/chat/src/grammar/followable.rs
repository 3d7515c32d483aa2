//! A schema as the grammar can follow it, that of a function's parameters or of a format: what it has no words for is
//! [left out](Latitude), and what can be said in JSON Schema's plainest words is said in them.

use std::cell::{Cell, RefCell};

use serde_json::{Map, Value, json};

use super::document::Budget;
use super::latitude::Latitude;
use super::one_of::Comparison;
use super::reason::refused;
use super::schema::{FORMATS, NAMED, ONE, SEVERAL};
use super::{GrammarError, numbers, properties, text};
use crate::tools::{Kinds, target};

/// Schemas that one function may come to, each definition where it is referred to as a whole or in part.
const MOST: usize = 50_000;
/// Keywords that bind and that no grammar can express.
const UNKNOWN: [&str; 12] = [
    "$dynamicRef",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "if",
    "not",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
];
/// The other keywords that bind, as JSON Schema and OpenAPI have them. What else there is says nothing, or
/// is part of what these say.
const KNOWN: [&str; 28] = [
    "$ref",
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "nullable",
    "oneOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "required",
    "type",
];
/// Keywords that bind what no other keyword beside them does: without the first, the second would bind that, too.
const RESTS: [(&str, &str); 3] =
    [("properties", "additionalProperties"), ("patternProperties", "additionalProperties"), ("prefixItems", "items")];
/// Keywords by which an object may need more properties than it declares.
const CONDITIONS: [&str; 5] = ["dependencies", "dependentRequired", "dependentSchemas", "else", "then"];
/// Keywords whose value is a number.
const NUMBERS: [&str; 5] = ["exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"];
/// Keywords whose value is a count.
const COUNTS: [&str; 6] = ["maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"];

/// The schema. All that it refers to is in its `$defs`. `comparisons`: for the options of a `oneOf`.
///
/// # Errors
/// [`GrammarError::Parameter`] where all of it has to be followed and has a keyword that cannot be;
/// [`GrammarError::Refused`] if there is too much of it.
pub(super) fn followable(root: &Value, latitude: &Latitude<'_>, comparisons: &Budget) -> Result<Value, GrammarError> {
    let rewriting = Rewriting {
        root,
        latitude,
        comparison: Comparison::new(root, comparisons),
        references: RefCell::default(),
        left: Cell::new(MOST),
    };
    let mut whole = rewriting.schema(root, "")?;
    let mut definitions = Map::new();
    // Each may refer to more.
    loop {
        let index = definitions.len();
        let Some(reference) = rewriting.references.borrow().get(index).cloned() else { break };
        let part = target(root, &reference).unwrap_or(&Value::Bool(true));
        let path = reference.trim_start_matches(['#', '/']).replace('/', ".");
        definitions.insert(name(index), rewriting.schema(part, &path)?);
    }
    if let Some(map) = whole.as_object_mut().filter(|_| !definitions.is_empty()) {
        map.insert("$defs".into(), definitions.into());
    }
    Ok(whole)
}

/// What the definition is called that the reference of this index leads to.
fn name(index: usize) -> String {
    format!("d{index}")
}

struct Rewriting<'r> {
    root: &'r Value,
    latitude: &'r Latitude<'r>,
    comparison: Comparison<'r>,
    references: RefCell<Vec<String>>,
    left: Cell<usize>,
}

impl Rewriting<'_> {
    fn schema(&self, schema: &Value, path: &str) -> Result<Value, GrammarError> {
        let left = self.left.get().checked_sub(1).ok_or_else(|| {
            refused(format!("with what it refers to it comes to over {MOST} schemas, the most that are taken"))
        })?;
        self.left.set(left);
        let Some(map) = schema.as_object() else {
            if !schema.is_boolean() {
                self.latitude.leave_out(path, "a schema must be an object or a boolean")?;
            }
            return Ok(Value::Bool(schema != &Value::Bool(false)));
        };
        let named = properties::named(map, self.root);
        let map = named.as_ref().unwrap_or(map);
        let mut ready = Map::new();
        for (keyword, value) in map {
            if let Some(value) = self.keyword(map, keyword, value, path)? {
                ready.insert(keyword.clone(), value);
            }
        }
        plain_items(&mut ready);
        if let Err(reason) = numbers::plain_bounds(&mut ready) {
            self.latitude.leave_out(path, reason)?;
        }
        if is_closed(map) {
            ready.insert("additionalProperties".into(), false.into());
        }
        for (keyword, other) in RESTS {
            if map.contains_key(keyword) && !ready.contains_key(keyword) {
                ready.insert(other.into(), true.into());
            }
        }
        // Where parameters are declared there are no others, but where it is said so.
        let declared = self.root.get("properties").unwrap_or(&Value::Null);
        if CONDITIONS.iter().filter_map(|keyword| map.get(*keyword)).any(|part| names_others(part, declared)) {
            ready.entry("additionalProperties").or_insert(Value::Bool(true));
        }
        if let Some(options) = ready.shift_remove("oneOf") {
            // Those that exclude each other, or could not be told to.
            if ready.contains_key("anyOf") {
                let all = ready.entry("allOf").or_insert_with(|| json!([]));
                all.as_array_mut().into_iter().for_each(|all| all.push(json!({"anyOf": options})));
            } else {
                ready.insert("anyOf".into(), options);
            }
        }
        // As the parser of calls reads it. The parameters themselves are never null.
        if ready.shift_remove("nullable") == Some(Value::Bool(true)) && !path.is_empty() {
            return Ok(json!({"anyOf": [ready, {"type": "null"}]}));
        }
        Ok(Value::Object(ready))
    }

    /// What takes a keyword's place; `None` if nothing does.
    fn keyword(
        &self,
        map: &Map<String, Value>,
        keyword: &str,
        value: &Value,
        path: &str,
    ) -> Result<Option<Value>, GrammarError> {
        let without = |reason: String| self.latitude.leave_out(path, reason).map(|()| None);
        let inner = |more: &str| if path.is_empty() { more.to_owned() } else { format!("{path}.{more}") };
        let says_something = match keyword {
            "uniqueItems" => value != &Value::Bool(false),
            // A name is a string.
            "propertyNames" => ![json!(true), json!({}), json!({"type": "string"})].contains(value),
            "unevaluatedProperties" => value != &Value::Bool(true) && !is_closed(map),
            _ => UNKNOWN.contains(&keyword),
        };
        if says_something {
            return without(format!("the schema has keywords that are not supported: \"{keyword}\""));
        }
        if !KNOWN.contains(&keyword) {
            return Ok(None);
        }
        match keyword {
            "$ref" => {
                let within = value.as_str().filter(|reference| reference.starts_with('#'));
                let Some(reference) = within else {
                    return without(format!(
                        "only references within the schema, as #/$defs/name, are supported, not {value}"
                    ));
                };
                if target(self.root, reference).is_none() {
                    return without(format!("there is no {value}"));
                }
                let mut references = self.references.borrow_mut();
                let known = references.iter().position(|known| known == reference);
                let index = known.unwrap_or_else(|| {
                    references.push(reference.to_owned());
                    references.len() - 1
                });
                return Ok(Some(format!("#/$defs/{}", name(index)).into()));
            }
            "type" => {
                let names = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
                let Some(kinds) = kinds_of(names) else { return without(format!("{value} is no type")) };
                return Ok(Some(match kinds.names().as_slice() {
                    [only] => (*only).into(),
                    names => json!(names),
                }));
            }
            "pattern" => {
                let expression = value.as_str().ok_or_else(|| refused("pattern must be a string"));
                if let Err(error) = expression.and_then(|pattern| self.latitude.states.expression(pattern)) {
                    return without(error.to_string());
                }
            }
            "format" => match value.as_str() {
                None => return without("format must be a string".into()),
                Some(name) if !FORMATS.contains(&name) => return Ok(None),
                Some(_) => {}
            },
            // As older drafts have it: whether the other bound is allowed itself.
            "exclusiveMaximum" | "exclusiveMinimum" if value.is_boolean() => {
                let bound = if keyword == "exclusiveMaximum" { "maximum" } else { "minimum" };
                let bound = map.get(bound).filter(|bound| value == &Value::Bool(true) && bound.is_number());
                return Ok(bound.cloned());
            }
            "required" if !value.as_array().is_some_and(|names| names.iter().all(Value::is_string)) => {
                return without("required must be an array of strings".into());
            }
            "enum" if !value.is_array() => return without("enum must be an array".into()),
            _ if NUMBERS.contains(&keyword) && !value.is_number() => {
                return without(format!("{keyword} must be a number"));
            }
            "multipleOf" => match value.as_f64().map(numbers::plain_step) {
                Some(Ok(step)) => return Ok(Some(step.into())),
                Some(Err(reason)) => return without(reason),
                None => {}
            },
            _ if COUNTS.contains(&keyword) => {
                let count = match text::length(value, keyword) {
                    Ok(count) => count,
                    Err(error) => return without(error.to_string()),
                };
                if keyword.ends_with("Properties") {
                    let closed = is_closed(map) || map.get("additionalProperties") == Some(&Value::Bool(false));
                    match properties::count_says_something(map, keyword, closed) {
                        Ok(true) => {}
                        Ok(false) => return Ok(None),
                        Err(reason) => return without(reason),
                    }
                }
                return Ok(Some(count.into()));
            }
            _ => {}
        }
        let options = match keyword {
            "oneOf" => self.comparison.exclusive(map),
            "anyOf" => self.comparison.tagged(map),
            _ => None,
        };
        let options = options.map(Value::from);
        if keyword == "oneOf" && value.is_array() && options.is_none() {
            self.latitude.leave_out(path, "oneOf is supported only where no value can be of two of its schemas")?;
        }
        let value = options.as_ref().unwrap_or(value);
        let several = |values: &Vec<Value>| {
            let each = values.iter().enumerate().map(|(index, part)| {
                let path = if keyword == "allOf" { path.to_owned() } else { inner(&format!("{keyword}.{index}")) };
                self.schema(part, &path)
            });
            each.collect::<Result<Vec<_>, _>>()
        };
        Ok(Some(match value {
            Value::Array(values) if SEVERAL.contains(&keyword) => several(values)?.into(),
            Value::Object(parts) if NAMED.contains(&keyword) => {
                let each = parts
                    .iter()
                    .map(|(name, part)| Ok((name.clone(), self.schema(part, &inner(&format!("{keyword}.{name}")))?)));
                Value::Object(each.collect::<Result<_, GrammarError>>()?)
            }
            _ if ONE.contains(&keyword) => self.schema(value, &inner(keyword))?,
            _ if NAMED.contains(&keyword) => return without(format!("{keyword} must be an object")),
            _ if SEVERAL.contains(&keyword) => return without(format!("{keyword} must be an array")),
            other => other.clone(),
        }))
    }
}

/// Whether the properties of an object that is composed of nothing are all there are.
fn is_closed(map: &Map<String, Value>) -> bool {
    let composed = [
        "$dynamicRef",
        "$recursiveRef",
        "$ref",
        "additionalProperties",
        "allOf",
        "anyOf",
        "dependentSchemas",
        "if",
        "oneOf",
        "patternProperties",
    ];
    (map.get("unevaluatedProperties") == Some(&Value::Bool(false)) || properties::are_all_named(map))
        && !composed.iter().any(|name| map.contains_key(*name))
}

/// Whether a condition names a property that is not declared.
fn names_others(condition: &Value, declared: &Value) -> bool {
    match condition {
        Value::Array(parts) => parts.iter().any(|part| match part {
            Value::String(name) => declared.get(name).is_none(),
            part => names_others(part, declared),
        }),
        Value::Object(parts) => parts.iter().any(|(keyword, part)| match (keyword.as_str(), part) {
            ("$ref", _) => true,
            ("properties", Value::Object(named)) => named.keys().any(|name| declared.get(name).is_none()),
            ("const" | "enum" | "type", _) => false,
            _ => names_others(part, declared),
        }),
        _ => false,
    }
}

/// The items of older drafts, whose `items` may be a list of the first ones and `additionalItems` the others. To the compiler
/// `additionalItems` makes a schema one of those.
fn plain_items(map: &mut Map<String, Value>) {
    if map.get("items").is_some_and(Value::is_array)
        && let Some(first) = map.shift_remove("items")
    {
        map.insert("prefixItems".into(), first);
    }
    if let Some(others) = map.shift_remove("additionalItems")
        && map.contains_key("prefixItems")
    {
        map.entry("items").or_insert(others);
    }
}

/// The kinds that all of these names are known to name.
fn kinds_of(names: &[Value]) -> Option<Kinds> {
    let kinds: Option<Vec<Kinds>> =
        names.iter().map(|name| name.as_str().map(Kinds::named).filter(|kinds| *kinds != Kinds::ANY)).collect();
    Some(kinds?.into_iter().fold(Kinds::NONE, Kinds::with)).filter(|kinds| *kinds != Kinds::NONE)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Budget, GrammarError, Latitude, followable};
    use crate::grammar::latitude::States;
    use crate::grammar::states::Counter;

    fn followed(schema: &Value) -> Result<Value, GrammarError> {
        let counter = Counter::default();
        let latitude = Latitude { function: "", strict: true, states: &States::new(&counter) };
        followable(schema, &latitude, &Budget::default())
    }

    #[test]
    fn what_is_said_is_said_in_the_plainest_words() {
        for (schema, ready) in [
            (json!({"type": "string", "format": "password"}), json!({"type": "string"})),
            (json!({"type": "string", "format": "uuid"}), json!({"type": "string", "format": "uuid"})),
            (
                json!({"properties": {"format": {"format": "int32"}, "oneOf": {"uniqueItems": false}}}),
                json!({"properties": {"format": {}, "oneOf": {}}}),
            ),
            (json!({"enum": [{"format": "x"}]}), json!({"enum": [{"format": "x"}]})),
            (
                json!({"type": "INTEGER", "items": {"type": "dict"}}),
                json!({"type": "integer", "items": {"type": "object"}}),
            ),
            (json!({"type": ["str", "null"]}), json!({"type": ["string", "null"]})),
            (
                json!({"items": {"type": "int", "nullable": true}}),
                json!({"items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}),
            ),
            (json!({"items": {"nullable": false, "title": "x", "x-y": {}, "default": 1}}), json!({"items": {}})),
            (
                json!({"items": {"oneOf": [{"type": "string", "format": "x"}, {"type": "null"}]}}),
                json!({"items": {"anyOf": [{"type": "string"}, {"type": "null"}]}}),
            ),
            (
                json!({"anyOf": [{}], "oneOf": [{"const": 1}, {"const": 2}]}),
                json!({"anyOf": [{}], "allOf": [{"anyOf": [{"const": 1}, {"const": 2}]}]}),
            ),
            (json!({"x-guidance": {"lenient": true}}), json!({})),
            (
                json!({"$ref": "#/properties/a~1b", "properties": {"a/b": {}}}),
                json!({"$ref": "#/$defs/d0", "properties": {"a/b": {}}, "$defs": {"d0": {}}}),
            ),
        ] {
            assert_eq!(followed(&schema), Ok(ready), "{schema}");
        }
    }

    #[test]
    fn what_cannot_be_followed_is_refused_with_its_place() {
        for (schema, place, told) in [
            (json!("object"), "", "must be an object or a boolean"),
            (json!({"type": ["integer", "file"]}), "", "is no type"),
            (json!({"items": {"minLength": "é".repeat(101)}}), "items", "minLength must be"),
            (json!({"$ref": "#/$defs/A", "$defs": {"A": {"items": {"not": {}}}}}), "$defs.A.items", "\"not\""),
        ] {
            let Err(GrammarError::Parameter { path, reason, .. }) = followed(&schema) else { panic!("{schema}") };
            assert!(path == place && reason.contains(told), "{schema}: {path} {reason}");
        }
    }
}

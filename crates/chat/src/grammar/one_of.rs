//! Whether the schemas of a `oneOf` exclude each other, so that a value of any is a value of one.

use serde_json::{Map, Value};

use super::schema::target;
use crate::tools::Kinds;

/// References that are followed one after the other.
const LONGEST_CHAIN: usize = 32;

/// True if no value can be of two of the schemas. Where it cannot be told it is false.
pub(super) fn exclusive(options: &[Value], root: &Value) -> bool {
    let followed: Vec<Option<&Map<String, Value>>> = options.iter().map(|option| follow(option, root)).collect();
    let pairs =
        followed.iter().enumerate().flat_map(|(index, one)| followed[..index].iter().map(move |other| (one, other)));
    pairs.into_iter().all(|(one, other)| one.zip(*other).is_some_and(|(one, other)| disjoint(one, other, root, true)))
}

fn follow<'s>(mut schema: &'s Value, root: &'s Value) -> Option<&'s Map<String, Value>> {
    for _ in 0..LONGEST_CHAIN {
        match schema.get("$ref").and_then(Value::as_str) {
            Some(reference) => schema = target(root, reference)?,
            None => return schema.as_object(),
        }
    }
    None
}

fn disjoint(one: &Map<String, Value>, other: &Map<String, Value>, root: &Value, look_inside: bool) -> bool {
    if kinds(one).and(kinds(other)) == Kinds::NONE {
        return true;
    }
    if let (Some(ones), Some(others)) = (choices(one), choices(other))
        && !ones.iter().any(|one| others.iter().any(|other| same(one, other)))
    {
        return true;
    }
    let objects = [one, other].iter().all(|schema| kinds(schema) == Kinds::OBJECT);
    objects && look_inside && told_apart_by_a_property(one, other, root)
}

/// Whether there is a property that one of them requires and whose values in the two are never the same.
fn told_apart_by_a_property(one: &Map<String, Value>, other: &Map<String, Value>, root: &Value) -> bool {
    let required = |schema: &Map<String, Value>| -> Vec<String> {
        let names = schema.get("required").and_then(Value::as_array).into_iter().flatten();
        names.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let property = |schema: &'_ Map<String, Value>, name: &str| {
        schema.get("properties").and_then(|properties| properties.get(name)).cloned()
    };
    required(one).into_iter().chain(required(other)).any(|name| {
        let (Some(one), Some(other)) = (property(one, &name), property(other, &name)) else { return false };
        let followed = follow(&one, root).zip(follow(&other, root));
        followed.is_some_and(|(one, other)| disjoint(one, other, root, false))
    })
}

/// The only values allowed, where they are listed.
fn choices(schema: &Map<String, Value>) -> Option<&[Value]> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(only), _) => Some(std::slice::from_ref(only)),
        (None, Some(Value::Array(choices))) => Some(choices),
        _ => None,
    }
}

/// What is allowed at most.
fn kinds(schema: &Map<String, Value>) -> Kinds {
    let declared = match schema.get("type") {
        Some(Value::String(name)) => Kinds::named(name),
        Some(Value::Array(names)) => {
            names.iter().filter_map(Value::as_str).map(Kinds::named).fold(Kinds::NONE, Kinds::with)
        }
        _ => Kinds::ANY,
    };
    let listed = choices(schema).map(|choices| choices.iter().map(Kinds::of).fold(Kinds::NONE, Kinds::with));
    declared.and(listed.unwrap_or(Kinds::ANY))
}

/// To JSON Schema 1 and 1.0 are one.
fn same(one: &Value, other: &Value) -> bool {
    one == other || one.as_f64().zip(other.as_f64()).is_some_and(|(one, other)| one == other)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::exclusive;

    fn kind(name: &str, properties: Value) -> Value {
        let mut properties = properties;
        properties["kind"] = json!({"const": name});
        json!({"type": "object", "properties": properties, "required": ["kind"]})
    }

    #[test]
    fn options_exclude_each_other_by_type_by_value_or_by_a_property() {
        let root = json!({"$defs": {"A": kind("a", json!({})), "B": kind("b", json!({"x": {"$ref": "#/$defs/A"}}))}});
        let (a, b) = (json!({"$ref": "#/$defs/A"}), json!({"$ref": "#/$defs/B"}));
        let nothing = json!({"type": "null"});
        for (options, expected) in [
            (json!([a, b, nothing]), true),
            (json!([a, b, a]), false),
            (json!([a, {"type": "object"}]), false),
            (json!([{"type": "integer"}, {"type": "string"}]), true),
            (json!([{"type": "integer"}, {"type": "number"}]), false),
            (json!([{"type": ["string", "null"]}, nothing]), false),
            (json!([{"const": 1}, {"enum": [2, "1"]}]), true),
            (json!([{"const": 1}, {"enum": [1.0]}]), false),
            (json!([{"minimum": 1}, {"type": "string"}]), false),
            (json!([{"$ref": "#/$defs/C"}, nothing]), false),
            (json!([true, nothing]), false),
        ] {
            assert_eq!(exclusive(options.as_array().expect("an array"), &root), expected, "{options}");
        }
    }
}

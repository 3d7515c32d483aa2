//! Whether the schemas of a `oneOf` exclude each other, so that a value of any is a value of one.

use std::cell::Cell;

use serde_json::{Map, Value};

use crate::tools::{Kinds, follow};

/// Values, names and schemas that are compared in all of a document: pairs grow with the square of what a client sends.
const MOST_COMPARED: usize = 1_000_000;

/// Compares the options of a document's `oneOf`s.
pub(super) struct Comparison<'s> {
    root: &'s Value,
    left: Cell<usize>,
}

impl<'s> Comparison<'s> {
    pub(super) fn new(root: &'s Value) -> Self {
        Self { root, left: Cell::new(MOST_COMPARED) }
    }

    /// True if no value can be of two of the schemas. Where it cannot be told, or only with too many comparisons, it is false.
    pub(super) fn exclusive(&self, options: &[Value]) -> bool {
        let followed: Vec<_> = options.iter().map(|option| self.follow(option)).collect();
        followed.iter().enumerate().all(|(index, one)| {
            followed[..index]
                .iter()
                .all(|other| one.zip(*other).is_some_and(|(one, other)| self.disjoint(one, other, true)))
        })
    }

    /// Whether so many comparisons more are allowed.
    fn spend(&self, count: usize) -> bool {
        let left = self.left.get().checked_sub(count);
        self.left.set(left.unwrap_or(0));
        left.is_some()
    }

    /// What a schema says; `None` if it is a reference that leads nowhere.
    fn follow<'v>(&'v self, schema: &'v Value) -> Option<&'v Map<String, Value>> {
        follow(self.root, schema).as_object().filter(|schema| !schema.get("$ref").is_some_and(Value::is_string))
    }

    fn disjoint(&self, one: &Map<String, Value>, other: &Map<String, Value>, look_inside: bool) -> bool {
        let listed = [one, other].map(choices);
        let [ones, others] = listed.map(|values| values.map_or(1, <[Value]>::len));
        if !self.spend(ones.saturating_mul(others).saturating_add(1)) {
            return false;
        }
        if kinds(one).and(kinds(other)) == Kinds::NONE {
            return true;
        }
        if let [Some(ones), Some(others)] = listed
            && !ones.iter().any(|one| others.iter().any(|other| same(one, other)))
        {
            return true;
        }
        let objects = [one, other].iter().all(|schema| kinds(schema) == Kinds::OBJECT);
        objects && look_inside && self.told_apart_by_a_property(one, other)
    }

    /// Whether there is a property that one of them requires and whose values in the two are never the same.
    fn told_apart_by_a_property(&self, one: &Map<String, Value>, other: &Map<String, Value>) -> bool {
        required(one).chain(required(other)).any(|name| {
            self.spend(1)
                && property(one, name).zip(property(other, name)).is_some_and(|(one, other)| {
                    let followed = self.follow(one).zip(self.follow(other));
                    followed.is_some_and(|(one, other)| self.disjoint(one, other, false))
                })
        })
    }
}

fn required(schema: &Map<String, Value>) -> impl Iterator<Item = &str> {
    schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

fn property<'v>(schema: &'v Map<String, Value>, name: &str) -> Option<&'v Value> {
    schema.get("properties")?.get(name)
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
pub(super) fn same(one: &Value, other: &Value) -> bool {
    one == other || one.as_f64().zip(other.as_f64()).is_some_and(|(one, other)| one == other)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::Comparison;

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
            let options = options.as_array().expect("an array");
            assert_eq!(Comparison::new(&root).exclusive(options), expected, "{options:?}");
        }
    }

    #[test]
    fn what_takes_too_many_comparisons_cannot_be_told() {
        let (root, options) =
            (Value::Null, |count| (0..count).map(|value| json!({"const": value})).collect::<Vec<_>>());
        assert!(Comparison::new(&root).exclusive(&options(300)));
        assert!(!Comparison::new(&root).exclusive(&options(3000)));
        let listed = |from: usize| json!({"enum": (from..from + 2000).collect::<Vec<_>>()});
        assert!(!Comparison::new(&root).exclusive(&[listed(0), listed(2000)]));
    }
}

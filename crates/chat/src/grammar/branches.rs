//! A schema as alternatives, none of which is composed of others or refers to one.

use serde_json::{Map, Value};

use super::GrammarError;
use super::one_of::Comparison;
use super::reason::refused;
use crate::tools::{Kinds, target};

/// Alternatives of one schema. All of one together with each of another are as many as their product.
const MOST: usize = 256;
/// Compositions and references within each other.
const DEEPEST: usize = 32;

/// Schemas all of which a value is of, each as far as it says so itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Branch<'s>(pub(super) Vec<&'s Map<String, Value>>);

/// The alternatives of a schema; none if no value is of it.
pub(super) fn branches<'s>(
    schema: &'s Value,
    root: &'s Value,
    comparison: &Comparison<'_>,
) -> Result<Vec<Branch<'s>>, GrammarError> {
    Expansion { root, comparison }.of(schema, 0)
}

struct Expansion<'s, 'c> {
    root: &'s Value,
    comparison: &'c Comparison<'c>,
}

impl<'s> Expansion<'s, '_> {
    fn of(&self, schema: &'s Value, depth: usize) -> Result<Vec<Branch<'s>>, GrammarError> {
        let map = match schema {
            Value::Bool(true) => return Ok(vec![Branch::default()]),
            Value::Bool(false) => return Ok(Vec::new()),
            Value::Object(map) => map,
            _ => return Err(refused("a schema must be an object or a boolean")),
        };
        if depth > DEEPEST {
            return Err(refused(format!("it is composed of others, or refers to them, over {DEEPEST} levels deep")));
        }
        let mut all = vec![Branch(vec![map])];
        if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
            let target = target(self.root, reference).ok_or_else(|| refused(format!("there is no {reference:?}")))?;
            all = both(&all, &self.of(target, depth + 1)?)?;
        }
        for part in parts(map, "allOf")?.into_iter().flatten() {
            all = both(&all, &self.of(part, depth + 1)?)?;
        }
        for name in ["anyOf", "oneOf"] {
            let Some(options) = parts(map, name)? else { continue };
            if name == "oneOf" && !self.comparison.exclusive(options) {
                return Err(refused("oneOf is supported only where no value can be of two of its schemas"));
            }
            let mut either = Vec::new();
            for option in options {
                either.extend(self.of(option, depth + 1)?);
            }
            all = both(&all, &either)?;
        }
        Ok(all)
    }
}

fn parts<'s>(map: &'s Map<String, Value>, name: &str) -> Result<Option<&'s Vec<Value>>, GrammarError> {
    match map.get(name) {
        None => Ok(None),
        Some(Value::Array(parts)) => Ok(Some(parts)),
        Some(_) => Err(refused(format!("{name} must be an array"))),
    }
}

fn both<'s>(ones: &[Branch<'s>], others: &[Branch<'s>]) -> Result<Vec<Branch<'s>>, GrammarError> {
    if ones.len() * others.len() > MOST {
        return Err(refused(format!("it has over {MOST} alternatives")));
    }
    let pair = |one: &Branch<'s>, other: &Branch<'s>| Branch([&one.0[..], &other.0[..]].concat());
    Ok(ones.iter().flat_map(|one| others.iter().map(move |other| pair(one, other))).collect())
}

impl<'s> Branch<'s> {
    /// The values of a keyword.
    pub(super) fn each(&self, name: &str) -> impl Iterator<Item = &'s Value> {
        self.0.iter().filter_map(move |map| map.get(name))
    }

    /// What its values may be.
    pub(super) fn kinds(&self) -> Kinds {
        let declared = self.each("type").map(|kind| match kind {
            Value::String(name) => Kinds::named(name),
            Value::Array(names) => {
                names.iter().filter_map(Value::as_str).map(Kinds::named).fold(Kinds::NONE, Kinds::with)
            }
            _ => Kinds::ANY,
        });
        let listed = self.listed().map(|values| values.iter().map(Kinds::of).fold(Kinds::NONE, Kinds::with));
        declared.chain(listed).fold(Kinds::ANY, Kinds::and)
    }

    /// The lists of values one of which each value is.
    pub(super) fn listed(&self) -> impl Iterator<Item = &'s [Value]> {
        let only = self.each("const").map(std::slice::from_ref);
        only.chain(self.each("enum").filter_map(Value::as_array).map(Vec::as_slice))
    }

    /// Whether it allows all values of a kind.
    pub(super) fn is_free(&self, kind: Kinds) -> bool {
        self.kinds().has(kind) && !self.says(&["const", "enum"]) && self.only_lists(kind)
    }

    /// Whether it says nothing of the values of a kind but which there are.
    pub(super) fn only_lists(&self, kind: Kinds) -> bool {
        !self.says(&["not", "if"]) && !self.says(binding(kind))
    }

    fn says(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.each(name).next().is_some())
    }
}

/// Keywords that say something about the values of a kind.
fn binding(kind: Kinds) -> &'static [&'static str] {
    const BINDING: [(Kinds, &[&str]); 4] = [
        (Kinds::STRING, &["minLength", "maxLength", "pattern", "format"]),
        (Kinds::INTEGER, &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]),
        (
            Kinds::ARRAY,
            &[
                "items",
                "additionalItems",
                "prefixItems",
                "contains",
                "minItems",
                "maxItems",
                "uniqueItems",
                "unevaluatedItems",
            ],
        ),
        (
            Kinds::OBJECT,
            &[
                "properties",
                "required",
                "additionalProperties",
                "patternProperties",
                "propertyNames",
                "minProperties",
                "maxProperties",
                "dependencies",
                "dependentRequired",
                "dependentSchemas",
                "unevaluatedProperties",
            ],
        ),
    ];
    // A number may be a whole one.
    let kind = if kind.has(Kinds::NUMBER) { Kinds::INTEGER } else { kind };
    BINDING.iter().find(|(of, _)| kind.has(*of)).map_or(&[], |(_, names)| names)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Comparison, branches};
    use crate::tools::Kinds;

    fn kinds(schema: Value) -> Result<Vec<Kinds>, String> {
        let comparison = Comparison::new(&schema);
        let branches = branches(&schema, &schema, &comparison).map_err(|error| error.to_string())?;
        Ok(branches.iter().map(super::Branch::kinds).collect())
    }

    #[test]
    fn compositions_are_alternatives() {
        for (schema, expected) in [
            (json!(true), vec![Kinds::ANY]),
            (json!(false), vec![]),
            (json!({"anyOf": [{"type": "string"}, false, {"type": "null"}]}), vec![Kinds::STRING, Kinds::NULL]),
            (json!({"allOf": [{"type": ["string", "null"]}, {"enum": ["a", 1]}]}), vec![Kinds::STRING]),
            (json!({"type": "string", "const": 1}), vec![Kinds::NONE]),
            (
                json!({"allOf": [{"anyOf": [{"type": "string"}, {}]}, {"oneOf": [{"type": "null"}, {"type": "string"}]}]}),
                vec![Kinds::NONE, Kinds::STRING, Kinds::NULL, Kinds::STRING],
            ),
            (json!({"$ref": "#/$defs/A", "$defs": {"A": {"type": "array"}}}), vec![Kinds::ARRAY]),
        ] {
            assert_eq!(kinds(schema.clone()), Ok(expected), "{schema}");
        }
        for (schema, reason) in [
            (json!({"$ref": "#"}), "levels deep"),
            (json!({"$ref": "#/$defs/A"}), "no \"#/$defs/A\""),
            (json!({"anyOf": {}}), "anyOf must be an array"),
            (json!({"oneOf": [{"type": "number"}, {"type": "integer"}]}), "no value can be of two"),
            (json!({"allOf": vec![json!({"anyOf": [{}, {}, {}, {}]}); 5]}), "over 256 alternatives"),
        ] {
            let given = kinds(schema.clone()).expect_err("refused");
            assert!(given.contains(reason), "{schema}: {given}");
        }
    }

    #[test]
    fn what_binds_a_kind() {
        let free = |schema: Value, kind: Kinds| {
            let comparison = Comparison::new(&schema);
            branches(&schema, &schema, &comparison).expect("branches").iter().any(|branch| branch.is_free(kind))
        };
        assert!(free(json!({"title": "x", "default": "y", "minimum": 3}), Kinds::STRING));
        assert!(free(json!({"anyOf": [{"type": "string", "maxLength": 3}, {"type": "string"}]}), Kinds::STRING));
        assert!(!free(json!({"minimum": 3}), Kinds::NUMBER));
        assert!(!free(json!({"allOf": [{"type": "string"}, {"pattern": "a"}]}), Kinds::STRING));
        assert!(!free(json!({"type": "array"}), Kinds::STRING));
        assert!(!free(json!({"not": {"const": "a"}}), Kinds::STRING));
    }
}

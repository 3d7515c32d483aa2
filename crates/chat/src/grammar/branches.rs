//! A schema as alternatives, none of which is composed of others or refers to one.

use serde_json::{Map, Value};

use super::GrammarError;
use super::document::Document;
use super::reason::refused;
use crate::tools::{Kinds, target};

/// Alternatives of one schema. All of one together with each of another are as many as their product.
const MOST: usize = 256;
/// Compositions and references within each other.
const DEEPEST: usize = 32;

/// Schemas all of which a value is of, each as far as it says so itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Branch<'s>(pub(super) Vec<&'s Map<String, Value>>);

/// The alternatives of a schema; none if no value is of it. Of a `oneOf` those of each option, as of an `anyOf`.
pub(super) fn branches<'s>(schema: &'s Value, document: &Document<'s>) -> Result<Vec<Branch<'s>>, GrammarError> {
    Expansion(document).of(schema, 0)
}

/// The alternatives of what is of all of these schemas.
pub(super) fn all_of<'s>(schemas: &[&'s Value], document: &Document<'s>) -> Result<Vec<Branch<'s>>, GrammarError> {
    let expansion = Expansion(document);
    let whole = vec![Branch::default()];
    schemas.iter().try_fold(whole, |all, schema| expansion.both(&all, &expansion.of(schema, 0)?))
}

struct Expansion<'d, 's>(&'d Document<'s>);

impl<'s> Expansion<'_, 's> {
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
        self.0.budget.spend(1)?;
        let mut all = vec![Branch(vec![map])];
        if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
            self.0.budget.spend(reference.len())?;
            let target = target(self.0.root, reference);
            let target = target.ok_or_else(|| refused(format!("there is no {reference:?}")))?;
            all = self.both(&all, &self.of(target, depth + 1)?)?;
        }
        for part in parts(map, "allOf")?.into_iter().flatten() {
            all = self.both(&all, &self.of(part, depth + 1)?)?;
        }
        for name in ["anyOf", "oneOf"] {
            let Some(options) = parts(map, name)? else { continue };
            let mut either = Vec::new();
            for option in options {
                either.extend(self.of(option, depth + 1)?);
                check_count(either.len())?;
            }
            all = self.both(&all, &either)?;
        }
        Ok(all)
    }

    fn both(&self, ones: &[Branch<'s>], others: &[Branch<'s>]) -> Result<Vec<Branch<'s>>, GrammarError> {
        check_count(ones.len() * others.len())?;
        let maps = |branches: &[Branch<'s>]| branches.iter().map(|branch| branch.0.len()).sum::<usize>();
        self.0.budget.spend(maps(ones) * others.len() + maps(others) * ones.len())?;
        let pair = |one: &Branch<'s>, other: &Branch<'s>| Branch([&one.0[..], &other.0[..]].concat());
        Ok(ones.iter().flat_map(|one| others.iter().map(move |other| pair(one, other))).collect())
    }
}

fn check_count(alternatives: usize) -> Result<(), GrammarError> {
    if alternatives > MOST {
        return Err(refused(format!("it has over {MOST} alternatives")));
    }
    Ok(())
}

fn parts<'s>(map: &'s Map<String, Value>, name: &str) -> Result<Option<&'s Vec<Value>>, GrammarError> {
    match map.get(name) {
        None => Ok(None),
        Some(Value::Array(parts)) => Ok(Some(parts)),
        Some(_) => Err(refused(format!("{name} must be an array"))),
    }
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

    /// Pairs of its listed values that are compared to find those on all lists.
    pub(super) fn pairs(&self) -> usize {
        let lengths: Vec<usize> = self.listed().map(<[Value]>::len).collect();
        lengths.split_first().map_or(0, |(first, rest)| first * rest.iter().sum::<usize>())
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

    use super::super::document::{Budget, Document};
    use super::branches;
    use crate::tools::Kinds;

    fn kinds(schema: Value) -> Result<Vec<Kinds>, String> {
        let budget = Budget::default();
        let branches =
            branches(&schema, &Document { root: &schema, budget: &budget }).map_err(|error| error.to_string())?;
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
            (json!({"allOf": vec![json!({"anyOf": [{}, {}, {}, {}]}); 5]}), "over 256 alternatives"),
        ] {
            let given = kinds(schema.clone()).expect_err("refused");
            assert!(given.contains(reason), "{schema}: {given}");
        }
    }

    /// Each of a kilobyte to half a megabyte; worked out, they would take up to all the memory there is.
    #[test]
    fn what_takes_too_much_to_put_together_is_refused() {
        let chain = |length: usize| {
            let link = |index: usize| {
                let next = json!({"$ref": format!("#/$defs/a{}", index + 1)});
                (format!("a{index}"), json!({"allOf": [next, next, next]}))
            };
            let mut links: serde_json::Map<String, Value> = (0..length).map(link).collect();
            links.insert(format!("a{length}"), json!({"type": "string"}));
            json!({"$ref": "#/$defs/a0", "$defs": links})
        };
        let wide = json!({"anyOf": vec![json!({}); 256]});
        let mut long = vec![json!({}); 8000];
        long.insert(0, wide.clone());
        for (schema, reason) in [
            (chain(12), "too many steps"),
            (chain(14), "too many steps"),
            (json!({ "allOf": long }), "too many steps"),
            (
                json!({"anyOf": vec![json!({"$ref": "#/$defs/W"}); 16_000], "$defs": {"W": wide}}),
                "over 256 alternatives",
            ),
        ] {
            let given = kinds(schema).expect_err("refused");
            assert!(given.contains(reason), "{given}");
        }
        assert_eq!(kinds(chain(8)), Ok(vec![Kinds::STRING]));
    }

    #[test]
    fn what_binds_a_kind() {
        let free = |schema: Value, kind: Kinds| {
            let budget = Budget::default();
            let branches = branches(&schema, &Document { root: &schema, budget: &budget }).expect("branches");
            branches.iter().any(|branch| branch.is_free(kind))
        };
        assert!(free(json!({"title": "x", "default": "y", "minimum": 3}), Kinds::STRING));
        assert!(free(json!({"anyOf": [{"type": "string", "maxLength": 3}, {"type": "string"}]}), Kinds::STRING));
        assert!(!free(json!({"minimum": 3}), Kinds::NUMBER));
        assert!(!free(json!({"allOf": [{"type": "string"}, {"pattern": "a"}]}), Kinds::STRING));
        assert!(!free(json!({"type": "array"}), Kinds::STRING));
        assert!(!free(json!({"not": {"const": "a"}}), Kinds::STRING));
    }
}

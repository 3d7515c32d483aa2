//! Whether the schemas of a `oneOf` exclude each other, so that a value of any is a value of one.

use serde_json::{Map, Value, json};

use super::branches::{Branch, branches};
use super::document::{Budget, Document};
use crate::tools::Kinds;

/// Compares the options of a document's `oneOf`s.
pub(super) struct Comparison<'s> {
    root: &'s Value,
    budget: &'s Budget,
}

impl<'s> Comparison<'s> {
    /// `budget`: for comparisons only, as what is left untold for want of it is no error.
    pub(super) fn new(root: &'s Value, budget: &'s Budget) -> Self {
        Self { root, budget }
    }

    /// The options of a schema's `oneOf`, if no value can be of two of them; `None` also where that cannot be told, or only with
    /// too many comparisons. Options that are told apart by a property which not all of them require, as classes are whose tag
    /// has a default, require it here, and so they do by the property that is named to tell them apart: so each value is of the
    /// schema and can be read by it, if not each of the schema's is among them.
    pub(super) fn exclusive(&self, schema: &Map<String, Value>) -> Option<Vec<Value>> {
        let options = schema.get("oneOf")?.as_array()?;
        let expanded = self.within(schema, options)?;
        if self.apart(&expanded) {
            let tagged = named_tag(schema).and_then(|tag| self.require(tag, options, &expanded));
            return Some(tagged.unwrap_or_else(|| options.clone()));
        }
        let tags = named_tag(schema).into_iter().chain(expanded.iter().flatten().next().into_iter().flat_map(tags));
        tags.map_while(|tag| self.require(tag, options, &expanded))
            .find(|options| self.within(schema, options).is_some_and(|expanded| self.apart(&expanded)))
    }

    /// The options of a schema's `anyOf` that names the property to tell them apart by: they require it.
    pub(super) fn tagged(&self, schema: &Map<String, Value>) -> Option<Vec<Value>> {
        let options = schema.get("anyOf")?.as_array()?;
        self.require(named_tag(schema)?, options, &self.within(schema, options)?)
    }

    /// The alternatives of each option, with what the schema itself says of them all.
    fn within<'v>(&'v self, schema: &'v Map<String, Value>, options: &'v [Value]) -> Option<Vec<Vec<Branch<'v>>>> {
        let mut expanded = self.expanded(options)?;
        expanded.iter_mut().flatten().for_each(|branch| branch.0.push(schema));
        Some(expanded)
    }

    fn expanded<'v>(&'v self, options: &'v [Value]) -> Option<Vec<Vec<Branch<'v>>>> {
        let document = Document { root: self.root, budget: self.budget };
        options.iter().map(|option| branches(option, &document).ok()).collect()
    }

    /// The options, of which those that declare this property require it.
    fn require(&self, tag: &str, options: &[Value], expanded: &[Vec<Branch<'_>>]) -> Option<Vec<Value>> {
        options.iter().try_for_each(|option| self.budget.spend_on_copy(option)).ok()?;
        let leaves_open = |branch: &Branch<'_>| !required(branch).any(|name| name == tag);
        let each = options.iter().zip(expanded).map(|(option, branches)| {
            let declared = branches.iter().all(|branch| property(branch, tag).next().is_some());
            if declared && branches.iter().any(leaves_open) {
                json!({"allOf": [option, {"required": [tag]}]})
            } else {
                option.clone()
            }
        });
        Some(each.collect())
    }

    /// Whether each two exclude each other, and so all of their alternatives.
    fn apart(&self, options: &[Vec<Branch<'_>>]) -> bool {
        options.iter().enumerate().all(|(index, one)| {
            let others = || options[..index].iter().flatten();
            one.iter().all(|one| others().all(|other| self.disjoint(one, other, true)))
        })
    }

    fn disjoint(&self, one: &Branch<'_>, other: &Branch<'_>, look_inside: bool) -> bool {
        let lists = || one.listed().flat_map(|ones| other.listed().map(move |others| (ones, others)));
        let pairs =
            lists().map(|(ones, others)| ones.len().saturating_mul(others.len())).fold(1, usize::saturating_add);
        if self.budget.spend(pairs).is_err() {
            return false;
        }
        let kinds = one.kinds().and(other.kinds());
        kinds == Kinds::NONE
            || lists().any(|(ones, others)| !ones.iter().any(|one| others.iter().any(|other| same(one, other))))
            || kinds == Kinds::OBJECT
                && look_inside
                && (self.told_apart_by_what_it_requires(one, other) || self.told_apart_by_what_it_requires(other, one))
    }

    /// Whether there is a property that one of them requires and that the other does not allow, or not with such a value.
    fn told_apart_by_what_it_requires(&self, one: &Branch<'_>, other: &Branch<'_>) -> bool {
        let differ = |ones: &Value, others: &Value| {
            let expanded = self.expanded(std::slice::from_ref(ones)).zip(self.expanded(std::slice::from_ref(others)));
            expanded.is_some_and(|(ones, others)| {
                let others = || others.iter().flatten();
                ones.iter().flatten().all(|one| others().all(|other| self.disjoint(one, other, false)))
            })
        };
        required(one).any(|name| {
            other.0.iter().any(|map| forbids(map, name))
                || property(one, name).any(|ones| property(other, name).any(|others| differ(ones, others)))
        })
    }
}

/// The property by which a reader tells the options of a schema apart, as OpenAPI names it.
fn named_tag(schema: &Map<String, Value>) -> Option<&str> {
    schema.get("discriminator")?.get("propertyName")?.as_str()
}

fn required<'b>(branch: &'b Branch<'_>) -> impl Iterator<Item = &'b str> {
    branch.each("required").filter_map(Value::as_array).flatten().filter_map(Value::as_str)
}

/// What the schemas of a branch say of a property.
fn property<'b>(branch: &'b Branch<'_>, name: &'b str) -> impl Iterator<Item = &'b Value> {
    branch.each("properties").filter_map(move |properties| properties.get(name))
}

fn forbids(map: &Map<String, Value>, name: &str) -> bool {
    map.get("additionalProperties") == Some(&Value::Bool(false))
        && !map.contains_key("patternProperties")
        && map.get("properties").is_none_or(|properties| properties.get(name).is_none())
}

/// Properties that may only be what is listed.
fn tags<'b>(branch: &'b Branch<'_>) -> impl Iterator<Item = &'b str> {
    let properties = branch.each("properties").filter_map(Value::as_object).flatten();
    properties.filter(|(_, schema)| schema.get("const").or(schema.get("enum")).is_some()).map(|(name, _)| name.as_str())
}

/// To JSON Schema 1 and 1.0 are one.
pub(super) fn same(one: &Value, other: &Value) -> bool {
    one == other || one.as_f64().zip(other.as_f64()).is_some_and(|(one, other)| one == other)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Budget, Comparison};

    fn kind(name: &str, properties: Value) -> Value {
        let mut properties = properties;
        properties["kind"] = json!({"const": name});
        json!({"type": "object", "properties": properties, "required": ["kind"]})
    }

    /// The options that take a `oneOf`'s place.
    fn told(root: &Value, options: &Value) -> Option<Value> {
        let schema = json!({"oneOf": options});
        Comparison::new(root, &Budget::default()).exclusive(schema.as_object().expect("an object")).map(Value::Array)
    }

    #[test]
    fn options_exclude_each_other_by_type_by_value_or_by_a_property() {
        let root = json!({"$defs": {"A": kind("a", json!({})), "B": kind("b", json!({"x": {"$ref": "#/$defs/A"}}))}});
        let (a, b) = (json!({"$ref": "#/$defs/A"}), json!({"$ref": "#/$defs/B"}));
        let nothing = json!({"type": "null"});
        let only = |name: &str| json!({"type": "object", "properties": {name: {}}, "required": [name], "additionalProperties": false});
        let heir = |name: &str| {
            let base = json!({"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]});
            json!({"allOf": [base, {"properties": {"kind": {"const": name}}}]})
        };
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
            // Of an alternative's options each.
            (json!([{"anyOf": [a, {"const": 1}]}, {"oneOf": [b, nothing]}]), true),
            (json!([{"anyOf": [a, {"const": 1}]}, {"oneOf": [b, {"type": "integer"}]}]), false),
            // By what one requires and another does not allow.
            (json!([only("Circle"), only("Square"), {"const": "Empty"}]), true),
            (json!([only("Circle"), {"type": "object", "properties": {"Square": {}}, "required": ["Square"]}]), true),
            (
                json!([{"type": "object", "properties": {"a": {}}, "additionalProperties": false}, {"type": "object"}]),
                false,
            ),
            (
                json!([only("x"), {"patternProperties": {"x": {}}, "additionalProperties": false, "type": "object"}]),
                false,
            ),
            // By what it inherits.
            (json!([heir("a"), heir("b"), nothing]), true),
            (json!([heir("a"), heir("a")]), false),
        ] {
            assert_eq!(told(&root, &options), expected.then(|| options.clone()), "{options}");
        }
    }

    #[test]
    fn a_tag_that_none_requires_is_asked_for() {
        let of = |name: &str| json!({"type": "object", "properties": {"x": {"enum": [1, 2]}, "kind": {"const": name, "default": name}}});
        let root = json!({"$defs": {"A": of("a"), "B": of("b")}});
        let (a, b, nothing) = (json!({"$ref": "#/$defs/A"}), json!({"$ref": "#/$defs/B"}), json!({"type": "null"}));
        let required = |option: &Value| json!({"allOf": [option, {"required": ["kind"]}]});
        assert_eq!(told(&root, &json!([a, nothing, b])), Some(json!([required(&a), nothing, required(&b)])));
        assert_eq!(told(&root, &json!([a, b, a])), None);
        assert_eq!(told(&root, &json!([a, {"type": "object"}])), None);
    }

    /// As of a class whose tag has no default beside one whose tag has: a reader looks for it in either.
    #[test]
    fn a_tag_that_is_named_is_asked_for_where_not_all_require_it() {
        let bird = json!({"type": "object", "properties": {"kind": {"const": "bird", "default": "bird"}}});
        let (cat, nothing) = (kind("cat", json!({})), json!({"type": "null"}));
        let options = json!([cat, bird, nothing]);
        let tagged = json!([cat, {"allOf": [bird, {"required": ["kind"]}]}, nothing]);
        assert_eq!(told(&Value::Null, &options), Some(options.clone()));
        let budget = Budget::default();
        let comparison = Comparison::new(&Value::Null, &budget);
        for named in [json!({"propertyName": "kind"}), json!({"propertyName": "kind", "mapping": {}})] {
            let one = json!({"oneOf": options, "discriminator": named});
            assert_eq!(
                comparison.exclusive(one.as_object().expect("an object")).map(Value::from),
                Some(tagged.clone())
            );
            let any = json!({"anyOf": options, "discriminator": named});
            assert_eq!(comparison.tagged(any.as_object().expect("an object")).map(Value::from), Some(tagged.clone()));
        }
        let any = json!({"anyOf": options});
        assert_eq!(comparison.tagged(any.as_object().expect("an object")), None);
    }

    #[test]
    fn what_takes_too_many_comparisons_cannot_be_told() {
        let (root, options) = (Value::Null, |count| (0..count).map(|value| json!({"const": value})).collect::<Value>());
        assert!(told(&root, &options(300)).is_some());
        assert_eq!(told(&root, &options(3000)), None);
        let listed = |from: usize| json!({"enum": (from..from + 2000).collect::<Vec<_>>()});
        assert_eq!(told(&root, &json!([listed(0), listed(2000)])), None);
    }
}

//! What the declared JSON schemas say about a parameter.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::Value;

/// The functions that a reply may call.
#[derive(Clone, Debug, Default)]
pub struct ToolSet {
    /// The schemas of their arguments by name.
    functions: HashMap<String, Value>,
}

impl ToolSet {
    /// Of definitions as OpenAI's chat format has them: `{"type": "function", "function": {"name", "parameters"}}`. Of
    /// two with one name the first counts; what has no name is left out.
    #[must_use]
    pub fn new(tools: &[Value]) -> Self {
        let mut functions = HashMap::new();
        for function in tools.iter().filter_map(|tool| tool.get("function")) {
            if let Some(name) = function.get("name").and_then(Value::as_str) {
                let schema = || function.get("parameters").cloned().unwrap_or_default();
                functions.entry(name.to_owned()).or_insert_with(schema);
            }
        }
        Self { functions }
    }

    /// Whether there is a function of this name.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.functions.contains_key(name)
    }

    /// Whether the name of some function begins so.
    pub(crate) fn some_begins_with(&self, start: &str) -> bool {
        self.functions.keys().any(|name| name.starts_with(start))
    }

    /// What a function's parameter may be; anything if nothing is said about it.
    pub(crate) fn expected(&self, function: &str, parameter: &str) -> Expected {
        let Some(root) = self.functions.get(function) else { return Expected::anything() };
        let mut resolver = Resolver { root, fuel: MOST_SCHEMAS, values: MOST_VALUES, looks: MOST_LOOKS };
        let declared = resolver.property(root, parameter);
        let others = || follow(root, root).get("additionalProperties");
        declared.or_else(|| others().map(|schema| resolver.resolve(schema))).unwrap_or_else(Expected::anything)
    }
}

/// Schemas that are looked at for a parameter. One that leads to others counts as some, so that few are within each other.
const MOST_SCHEMAS: usize = 1000;
/// What such a one counts as.
const COMPOSED: usize = 5;
/// Values that a parameter may list, and parts of them, also where it refers to one list many times; with more it is read
/// by its types only.
const MOST_VALUES: usize = 5000;
/// Listed values that are looked at for their kinds, each as often as it is referred to; with more it may be of any. No schema
/// that a call can be held to lists so many.
const MOST_LOOKS: usize = 1 << 17;
/// Bytes of a text that are as good as a value.
const TEXT: usize = 64;
/// References that are followed one after the other.
const LONGEST_CHAIN: usize = 32;
/// Bytes of a reference, which is read each time that it is followed.
const LONGEST_REFERENCE: usize = 4096;

/// What a reference within a document refers to. None is followed out of it, nor one longer than any is meant to be.
pub(crate) fn target<'s>(root: &'s Value, reference: &str) -> Option<&'s Value> {
    if reference.len() > LONGEST_REFERENCE {
        return None;
    }
    root.pointer(unescaped(reference)?.strip_prefix('#')?.trim_end_matches('/'))
}

/// A reference as it is meant: it is part of an address, in which a byte may be written as `%20`. `None` if it is none.
pub(crate) fn unescaped(reference: &str) -> Option<Cow<'_, str>> {
    if !reference.contains('%') {
        return Some(reference.into());
    }
    let (mut bytes, mut rest) = (Vec::with_capacity(reference.len()), reference.as_bytes());
    while let Some((&first, after)) = rest.split_first() {
        let digits =
            after.first_chunk::<2>().filter(|digits| first == b'%' && digits.iter().all(u8::is_ascii_hexdigit));
        let byte = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

/// Where a chain of references leads: to a schema that is none, or to the last one that can be followed.
fn follow<'s>(root: &'s Value, mut schema: &'s Value) -> &'s Value {
    for _ in 0..LONGEST_CHAIN {
        match schema.get("$ref").and_then(Value::as_str).and_then(|reference| target(root, reference)) {
            Some(next) => schema = next,
            None => break,
        }
    }
    schema
}

/// Kinds of JSON values, as a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kinds(u8);

impl Kinds {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const STRING: Self = Self(1);
    pub(crate) const INTEGER: Self = Self(2);
    /// Any number.
    pub(crate) const NUMBER: Self = Self(4);
    pub(crate) const BOOLEAN: Self = Self(8);
    pub(crate) const NULL: Self = Self(16);
    pub(crate) const ARRAY: Self = Self(32);
    pub(crate) const OBJECT: Self = Self(64);
    pub(crate) const ANY: Self = Self(127);

    /// Whether all of `kinds` are in it.
    pub(crate) fn has(self, kinds: Self) -> bool {
        self.0 & kinds.0 == kinds.0
    }

    pub(crate) fn with(self, kinds: Self) -> Self {
        Self(self.0 | kinds.0)
    }

    pub(crate) fn and(self, kinds: Self) -> Self {
        Self(self.0 & kinds.0)
    }

    pub(crate) fn without(self, kinds: Self) -> Self {
        Self(self.0 & !kinds.0)
    }

    /// The names of the types in it.
    pub(crate) fn names(self) -> Vec<&'static str> {
        const NAMES: [(Kinds, &str); 6] = [
            (Kinds::STRING, "string"),
            (Kinds::INTEGER, "integer"),
            (Kinds::BOOLEAN, "boolean"),
            (Kinds::NULL, "null"),
            (Kinds::ARRAY, "array"),
            (Kinds::OBJECT, "object"),
        ];
        let number = self.has(Self::NUMBER).then_some("number");
        let others = NAMES.iter().filter(|(kind, _)| self.has(*kind)).map(|(_, name)| *name);
        number.into_iter().chain(others.filter(|name| number.is_none() || *name != "integer")).collect()
    }

    pub(crate) fn named(name: &str) -> Self {
        // Those that JSON schema has, in any case, and what programming languages call them.
        match name.to_ascii_lowercase().as_str() {
            "string" | "str" | "text" => Self::STRING,
            "integer" | "int" => Self::INTEGER,
            "number" | "float" | "double" => Self::NUMBER.with(Self::INTEGER),
            "boolean" | "bool" => Self::BOOLEAN,
            "null" | "none" => Self::NULL,
            "array" | "list" | "tuple" => Self::ARRAY,
            "object" | "dict" => Self::OBJECT,
            // Nothing is known.
            _ => Self::ANY,
        }
    }

    pub(crate) fn of(value: &Value) -> Self {
        match value {
            Value::Null => Self::NULL,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Number(number) if number.is_f64() => Self::NUMBER.with(Self::INTEGER),
            Value::Number(_) => Self::INTEGER,
            Value::String(_) => Self::STRING,
            Value::Array(_) => Self::ARRAY,
            Value::Object(_) => Self::OBJECT,
        }
    }
}

/// What a value may be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Expected {
    pub(crate) kinds: Kinds,
    /// The only values allowed; empty if all of the kinds are.
    pub(crate) choices: Vec<Value>,
}

impl Expected {
    pub(crate) fn anything() -> Self {
        Self { kinds: Kinds::ANY, choices: Vec::new() }
    }
}

/// Reads schemas that refer to each other, in bounded time: references may form circles.
struct Resolver<'s> {
    root: &'s Value,
    /// Schemas that may yet be looked at.
    fuel: usize,
    /// Listed values, and parts of them, that may yet be copied.
    values: usize,
    /// Listed values whose kinds may yet be looked at.
    looks: usize,
}

impl<'s> Resolver<'s> {
    /// For a look at a schema; `None`, and so for all that follow, if there is too little left.
    fn spend(&mut self, schema: &Value) -> Option<()> {
        let composed = ["$ref", "allOf", "anyOf", "oneOf"].iter().any(|name| schema.get(name).is_some());
        let left = self.fuel.checked_sub(if composed { COMPOSED } else { 1 });
        self.fuel = left.unwrap_or(0);
        left.map(|_| ())
    }

    /// What a property may be, as far as an object's schema, and those that it is composed of, declare it.
    fn property(&mut self, schema: &'s Value, name: &str) -> Option<Expected> {
        self.spend(schema)?;
        let object = follow(self.root, schema);
        let own = object.get("properties").and_then(|properties| properties.get(name));
        let mut declared = own.map(|schema| self.resolve(schema));
        for part in object.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            let part = self.property(part, name);
            declared = declared.into_iter().chain(part).reduce(both);
        }
        for composed in ["anyOf", "oneOf"] {
            let options = object.get(composed).and_then(Value::as_array).into_iter().flatten();
            let options: Vec<Expected> = options.filter_map(|option| self.property(option, name)).collect();
            if !options.is_empty() {
                declared = declared.into_iter().chain([either(options)]).reduce(both);
            }
        }
        declared
    }

    /// What a schema, and those that it refers to, allow.
    fn resolve(&mut self, schema: &'s Value) -> Expected {
        if self.spend(schema).is_none() {
            return Expected::anything();
        }
        let target = follow(self.root, schema);
        let mut expected = self.own(target);
        for name in ["anyOf", "oneOf"] {
            if let Some(branches) = target.get(name).and_then(Value::as_array).filter(|branches| !branches.is_empty()) {
                let branches: Vec<Expected> = branches.iter().map(|branch| self.resolve(branch)).collect();
                expected = both(expected, either(branches));
            }
        }
        for part in target.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            let part = self.resolve(part);
            expected = both(expected, part);
        }
        if [schema, target].iter().any(|schema| schema.get("nullable") == Some(&Value::Bool(true))) {
            expected.kinds = expected.kinds.with(Kinds::NULL);
        }
        expected
    }

    /// Whether so much more may be copied; if not, nothing more may.
    fn may_copy(&mut self, value: &Value) -> bool {
        let bytes = match value {
            Value::String(text) => text.len(),
            Value::Object(parts) => parts.keys().map(String::len).sum(),
            _ => 0,
        };
        let left = self.values.checked_sub(1 + bytes / TEXT);
        self.values = left.unwrap_or(0);
        left.is_some()
            && match value {
                Value::Array(items) => items.iter().all(|item| self.may_copy(item)),
                Value::Object(parts) => parts.values().all(|part| self.may_copy(part)),
                _ => true,
            }
    }

    /// The kinds of listed values.
    fn kinds(&mut self, listed: &[Value]) -> Kinds {
        let mut kinds = Kinds::NONE;
        for value in listed {
            if self.looks == 0 {
                return Kinds::ANY;
            }
            self.looks -= 1;
            kinds = kinds.with(Kinds::of(value));
        }
        kinds
    }

    /// What a schema says without its parts.
    fn own(&mut self, schema: &Value) -> Expected {
        let listed = match (schema.get("const"), schema.get("enum").and_then(Value::as_array)) {
            (Some(only), _) => std::slice::from_ref(only),
            (None, Some(choices)) => choices,
            (None, None) => &[],
        };
        let choices = if listed.iter().all(|value| self.may_copy(value)) { listed.to_vec() } else { Vec::new() };
        let kinds = match schema.get("type") {
            Some(Value::String(name)) => Kinds::named(name),
            Some(Value::Array(names)) => {
                names.iter().filter_map(Value::as_str).map(Kinds::named).fold(Kinds::NONE, Kinds::with)
            }
            _ if !listed.is_empty() => self.kinds(listed),
            _ if schema.get("properties").is_some() => Kinds::OBJECT,
            _ if schema.get("items").is_some() => Kinds::ARRAY,
            _ => Kinds::ANY,
        };
        let kinds = if kinds == Kinds::NONE { Kinds::ANY } else { kinds };
        // Where a type is declared a listed value of another is none.
        let (choices, others): (Vec<Value>, Vec<Value>) =
            choices.into_iter().partition(|choice| kinds.and(Kinds::of(choice)) != Kinds::NONE);
        Expected { kinds, choices: if choices.is_empty() { others } else { choices } }
    }
}

fn either(branches: Vec<Expected>) -> Expected {
    let kinds = branches.iter().fold(Kinds::NONE, |kinds, branch| kinds.with(branch.kinds));
    let all_choose = branches.iter().all(|branch| !branch.choices.is_empty());
    let choices = if all_choose { branches.into_iter().flat_map(|b| b.choices).collect() } else { Vec::new() };
    Expected { kinds, choices }
}

fn both(one: Expected, other: Expected) -> Expected {
    let kinds = match one.kinds.and(other.kinds) {
        // A schema that nothing satisfies: the model has to write something all the same.
        Kinds::NONE => one.kinds.with(other.kinds),
        kinds => kinds,
    };
    let choices = if one.choices.is_empty() { other.choices } else { one.choices };
    Expected { kinds, choices }
}

#[cfg(test)]
mod tests {
    use super::{Kinds, ToolSet};
    use serde_json::{Value, json};

    fn kinds(parameter: Value) -> Kinds {
        let definitions = json!({"Text": {"type": "string"}, "Loop": {"$ref": "#/$defs/Loop"},
            "My T": {"type": "null"}, "x".repeat(4000): {"type": "null"}, "x".repeat(5000): {"type": "null"}, "100%": {"type": "boolean"},
            "Tree": {"anyOf": [{"$ref": "#/$defs/Tree"}, {"$ref": "#/$defs/Tree"}]}});
        let parameters = json!({"type": "object", "properties": {"p": parameter}, "$defs": definitions});
        ToolSet::new(&[json!({"function": {"name": "f", "parameters": parameters}})]).expected("f", "p").kinds
    }

    #[test]
    fn kinds_are_found_in_every_form() {
        let text_or_null = Kinds::STRING.with(Kinds::NULL);
        for (schema, expected) in [
            (json!({"type": "string"}), Kinds::STRING),
            (json!({"type": "number"}), Kinds::NUMBER.with(Kinds::INTEGER)),
            (json!({"type": ["string", "null"]}), text_or_null),
            (json!({"type": "string", "nullable": true}), text_or_null),
            (json!({"anyOf": [{"type": "string"}, {"type": "null"}]}), text_or_null),
            (json!({"oneOf": [{"$ref": "#/$defs/Text"}, {"type": "null"}]}), text_or_null),
            (json!({"allOf": [{"$ref": "#/$defs/Text"}], "description": "x"}), Kinds::STRING),
            (json!({"$ref": "#/$defs/Text", "nullable": true}), text_or_null),
            (json!({"enum": ["a", 1]}), Kinds::STRING.with(Kinds::INTEGER)),
            (json!({"const": true}), Kinds::BOOLEAN),
            (
                json!({"anyOf": (0..256).map(|value| json!({"const": value.to_string()})).collect::<Vec<_>>()}),
                Kinds::STRING,
            ),
            (json!({"items": {}}), Kinds::ARRAY),
            (json!({"properties": {}}), Kinds::OBJECT),
            (json!({"description": "x"}), Kinds::ANY),
            (json!({"type": "file"}), Kinds::ANY),
            (json!({"type": "str"}), Kinds::STRING),
            (json!({"type": "INTEGER"}), Kinds::INTEGER),
            (json!({"type": "dict"}), Kinds::OBJECT),
            (json!({"$ref": "#/$defs/My%20T"}), Kinds::NULL),
            (json!({"$ref": "#/$defs/100%"}), Kinds::BOOLEAN),
            (json!({"$ref": "#/$defs/%FF"}), Kinds::ANY),
            (json!({"$ref": "#/$defs/Missing"}), Kinds::ANY),
            (json!({"$ref": format!("#/$defs/{}", "x".repeat(4000))}), Kinds::NULL),
            (json!({"$ref": format!("#/$defs/{}", "x".repeat(5000))}), Kinds::ANY),
            (json!({"$ref": "#/$defs/Loop"}), Kinds::ANY),
            (json!({"$ref": "#/$defs/Tree"}), Kinds::ANY),
            (json!(true), Kinds::ANY),
        ] {
            assert_eq!(kinds(schema.clone()), expected, "{schema}");
        }
    }

    #[test]
    fn what_is_not_declared_may_be_anything() {
        let tools = json!({"function": {"name": "f", "parameters": {"additionalProperties": {"type": "string"}}}});
        let tools = ToolSet::new(&[tools, json!({"function": {"name": "g"}}), json!(7)]);
        assert_eq!(tools.expected("f", "x").kinds, Kinds::STRING);
        assert_eq!(tools.expected("g", "x").kinds, Kinds::ANY);
        assert_eq!(tools.expected("h", "x").kinds, Kinds::ANY);
        assert!(tools.contains("g") && !tools.contains("h"));
    }

    #[test]
    fn what_a_composed_object_declares() {
        let parameters = json!({"properties": {"a": {"type": ["string", "null"]}}, "allOf": [{"$ref": "#/$defs/O"}],
            "anyOf": [{"properties": {"c": {"type": "integer"}}}, {"properties": {"c": {"type": "null"}}}, {}],
            "$defs": {"O": {"properties": {"a": {"type": "string"}, "b": {"type": "boolean"}}}}});
        let tools = ToolSet::new(&[json!({"function": {"name": "f", "parameters": parameters}})]);
        let kinds = ["a", "b", "c", "d"].map(|name| tools.expected("f", name).kinds);
        assert_eq!(kinds, [Kinds::STRING, Kinds::BOOLEAN, Kinds::INTEGER.with(Kinds::NULL), Kinds::ANY]);
    }

    #[test]
    fn a_listed_value_of_another_type_is_none() {
        let parameters = json!({"properties": {"a": {"type": "integer", "enum": ["1", 1]}}});
        let tools = ToolSet::new(&[json!({"function": {"name": "f", "parameters": parameters}})]);
        assert_eq!(tools.expected("f", "a").choices, [json!(1)]);
    }

    /// A parameter's list may be referred to many times: each copy of it would take as much again.
    #[test]
    fn with_too_many_listed_values_the_types_count() {
        let list: Vec<String> = (0..1000).map(|index| format!("v{index}")).collect();
        let refer = |times: usize| json!({"anyOf": vec![json!({"$ref": "#/$defs/E"}); times]});
        let long = json!({"const": "word ".repeat(100_000)});
        let key = json!({"enum": [{"k".repeat(500_000): 1}]});
        let parameters = json!({"properties": {"few": refer(2), "many": refer(100), "more": refer(190), "long": long, "key": key},
            "$defs": {"E": {"enum": list}}});
        let tools = ToolSet::new(&[json!({"function": {"name": "f", "parameters": parameters}})]);
        let read = |name: &str| {
            let expected = tools.expected("f", name);
            (expected.kinds, expected.choices.len())
        };
        assert_eq!(read("few"), (Kinds::STRING, 2000));
        assert_eq!(read("many"), (Kinds::STRING, 0));
        assert_eq!(read("more"), (Kinds::ANY, 0));
        assert_eq!(read("long"), (Kinds::STRING, 0));
        assert_eq!(read("key"), (Kinds::OBJECT, 0));
    }
}

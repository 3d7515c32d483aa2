//! The grammar of replies that call tools, in the model's markup.
//!
//! A string stands in it as it is, up to the next closing tag, so that of its schema only the listed values are held to;
//! anything else is JSON of its schema. Parameters come in their declared order, those that are not required may be left out.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::lark_string;
use super::nesting::check_schema;
use super::schema::{OPTIONS, check_numbers, options};
use crate::ToolSet;
use crate::tools::{Expected, Kinds, follow};

/// Rules that every such grammar has: a text up to its closing tag, and a parameter that was not declared.
const COMMON: &str = r#"
text[lazy]: /(?s:.*)<\/parameter>/
other: /<parameter=[^<>\n]+>\n/ text "\n"
"#;
/// Bytes of a grammar up to which its parameters are held to all of their schemas; the later ones are held to their types.
const LONGEST_STRICT: usize = 1 << 20;

/// Calls that a reply must make.
#[derive(Clone, Debug)]
pub struct ForcedCalls<'t> {
    /// As OpenAI's chat format has them: `{"type": "function", "function": {"name", "parameters"}}`.
    pub definitions: &'t [Value],
    /// The only function that may be called, if not any.
    pub function: Option<&'t str>,
    /// Whether there may be more than one call.
    pub parallel: bool,
}

impl ForcedCalls<'_> {
    /// The grammar, in Lark. Without `strict` any JSON of its type will do for a parameter.
    pub(super) fn grammar(&self, strict: bool) -> String {
        let tools = ToolSet::new(self.definitions);
        let mut grammar = String::from(COMMON);
        let mut calls = Vec::new();
        for (index, function) in self.definitions.iter().filter_map(|tool| tool.get("function")).enumerate() {
            let Some(name) = function.get("name").and_then(Value::as_str) else { continue };
            if self.function.is_some_and(|only| only != name) {
                continue;
            }
            let rule = format!("f{index}");
            let parameters = Parameters::of(function.get("parameters").unwrap_or(&Value::Null));
            let body = parameters.body(&rule, |key| tools.expected(name, key), strict, &mut grammar);
            rule_of(&mut grammar, &rule, &format!("{} {body}", lark_string(&format!("{name}>\n"))));
            calls.push(rule);
        }
        rule_of(&mut grammar, "function", &calls.join(" | "));
        let (open, close) = (lark_string("<tool_call>\n<function="), lark_string("</function>\n</tool_call>"));
        rule_of(&mut grammar, "call", &format!("{open} function {close}"));
        rule_of(&mut grammar, "start", if self.parallel { r#"call ("\n" call)*"# } else { "call" });
        grammar
    }
}

fn rule_of(grammar: &mut String, name: &str, body: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(grammar, "{name}: {body}");
}

/// A function's parameters, as far as their schema says which there are.
struct Parameters<'s> {
    root: &'s Value,
    declared: Option<&'s Map<String, Value>>,
    required: Vec<&'s str>,
    /// Whether there may be others.
    others: bool,
}

impl<'s> Parameters<'s> {
    fn of(root: &'s Value) -> Self {
        let object = follow(root, root);
        let declared = object.get("properties").and_then(Value::as_object);
        let required = object.get("required").and_then(Value::as_array).into_iter().flatten();
        let composed = ["allOf", "anyOf", "oneOf", "$ref"].iter().any(|name| object.get(name).is_some());
        let others = match object.get("additionalProperties") {
            Some(Value::Bool(allowed)) => *allowed,
            Some(_) => true,
            // A function of which nothing is said takes nothing; an object of which nothing is said may hold anything.
            None => composed || declared.is_none() && object.is_object(),
        };
        Self { root, declared, required: required.filter_map(Value::as_str).collect(), others }
    }

    /// What stands between the name and the end of the function; writes the rules that it needs.
    fn body(&self, function: &str, expected: impl Fn(&str) -> Expected, strict: bool, grammar: &mut String) -> String {
        let mut body = String::new();
        for (index, (key, schema)) in self.declared.into_iter().flatten().enumerate() {
            // Such a key cannot be written in the markup.
            if key.is_empty() || key.contains(['<', '>', '\n', '\r']) {
                continue;
            }
            let rule = format!("{function}_{index}");
            let strict = strict && grammar.len() < LONGEST_STRICT;
            let value = value(&expected(key), strict.then(|| self.alone(schema)).flatten());
            rule_of(grammar, &rule, &format!("{} {value}", lark_string(&format!("<parameter={key}>\n"))));
            let optional = if self.required.contains(&key.as_str()) { "" } else { "?" };
            let _ = write!(body, "{rule}{optional} ");
        }
        if self.others {
            body.push_str("other*");
        }
        body
    }

    /// A parameter's schema with what it may refer to; `None` if it is beyond what can be followed: then its value is held to
    /// its kind only, as a client whose tools are taken one by one could not tell which of them to mend.
    fn alone(&self, schema: &Value) -> Option<Value> {
        let mut alone = schema.as_object()?.clone();
        for (name, key) in definitions(schema, self.root) {
            let named = alone.entry(name).or_insert_with(|| Value::Object(Map::new())).as_object_mut()?;
            if let (false, Some(definition)) = (named.contains_key(&key), self.root[name].get(&key)) {
                named.insert(key, definition.clone());
            }
        }
        alone.insert(OPTIONS.into(), options(true));
        let alone = Value::Object(alone);
        check_schema(&alone).and_then(|()| check_numbers(&alone)).ok().map(|()| alone)
    }
}

/// Which of the root's definitions a schema refers to, also through others.
fn definitions(schema: &Value, root: &Value) -> BTreeSet<(&'static str, String)> {
    let (mut found, mut ahead) = (BTreeSet::new(), vec![schema]);
    while let Some(value) = ahead.pop() {
        match value {
            Value::Array(items) => ahead.extend(items),
            Value::Object(map) => {
                ahead.extend(map.values());
                let Some(reference) = map.get("$ref").and_then(Value::as_str) else { continue };
                for name in ["$defs", "definitions"] {
                    let Some(path) = reference.strip_prefix("#/").and_then(|path| path.strip_prefix(name)) else {
                        continue;
                    };
                    let key = path.trim_start_matches('/').split('/').next().unwrap_or_default();
                    let key = key.replace("~1", "/").replace("~0", "~");
                    if let Some(definition) = root.get(name).and_then(|all| all.get(&key))
                        && found.insert((name, key))
                    {
                        ahead.push(definition);
                    }
                }
            }
            _ => {}
        }
    }
    found
}

/// A value and its closing tag.
fn value(expected: &Expected, schema: Option<Value>) -> String {
    let close = lark_string("\n</parameter>\n");
    let Expected { kinds, choices } = expected;
    if !choices.is_empty() {
        let written = |choice: &Value| match choice {
            Value::String(text) => lark_string(text),
            other => lark_string(&other.to_string()),
        };
        let choices: Vec<String> = choices.iter().map(written).collect();
        return format!("({}) {close}", choices.join(" | "));
    }
    if kinds.has(Kinds::STRING) {
        return "text \"\\n\"".into();
    }
    let schema = schema.unwrap_or_else(|| {
        let mut any = json!({"type": kinds.names()});
        any[OPTIONS] = options(true);
        any
    });
    format!("%json {schema} {close}")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::ForcedCalls;

    fn grammar(parameters: Value) -> String {
        let definitions = [json!({"type": "function", "function": {"name": "f", "parameters": parameters}})];
        ForcedCalls { definitions: &definitions, function: None, parallel: false }.grammar(true)
    }

    fn rule(grammar: &str, name: &str) -> String {
        let line = grammar.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.unwrap_or_else(|| panic!("no {name}: {grammar}")).trim_end().to_owned()
    }

    #[test]
    fn a_parameter_is_a_text_a_choice_or_json() {
        let grammar = grammar(json!({"type": "object", "required": ["city", "days"], "properties": {
            "city": {"type": "string", "maxLength": 3}, "unit": {"enum": ["C", "F", null]}, "days": {"$ref": "#/$defs/N"},
            "a>b": {"type": "string"}}, "$defs": {"N": {"type": "integer"}}}));
        assert_eq!(rule(&grammar, "f0"), r#""f>\n" f0_0 f0_1? f0_2"#);
        assert_eq!(rule(&grammar, "f0_0"), r#""<parameter=city>\n" text "\n""#);
        assert_eq!(rule(&grammar, "f0_1"), r#""<parameter=unit>\n" ("C" | "F" | "null") "\n</parameter>\n""#);
        let days = rule(&grammar, "f0_2");
        assert!(days.contains(r##"%json {"$ref":"#/$defs/N""##) && days.contains(r#""lenient":true"#), "{days}");
        assert_eq!(rule(&grammar, "start"), "call");
    }

    #[test]
    fn a_parameter_has_the_definitions_that_it_reaches() {
        let grammar = grammar(json!({"type": "object", "properties": {
            "a": {"$ref": "#/$defs/A/properties/of"}, "b": {"type": "array", "items": {"$ref": "#/$defs/x~1y"}}, "c": {"type": "integer"}},
            "$defs": {"A": {"properties": {"of": {"$ref": "#/definitions/B"}}}, "x/y": {"type": "null"}, "unused": {"const": "never"}},
            "definitions": {"B": {"type": "object", "properties": {"b": {"$ref": "#/definitions/B"}}}}}));
        let defined = |rule_name: &str| {
            let rule = rule(&grammar, rule_name);
            ["\"A\":", "\"B\":", "\"x/y\":", "never"].map(|part| rule.contains(part))
        };
        assert_eq!(defined("f0_0"), [true, true, false, false]);
        assert_eq!(defined("f0_1"), [false, false, true, false]);
        assert_eq!(defined("f0_2"), [false; 4]);
    }

    #[test]
    fn many_parameters_that_share_large_definitions_make_no_grammar_without_end() {
        let properties: serde_json::Map<String, Value> =
            (0..1000).map(|index| (format!("p{index}"), json!({"$ref": "#/$defs/A"}))).collect();
        let large = json!({"type": "array", "items": {"enum": (0..20_000).collect::<Vec<_>>()}});
        let grammar = grammar(json!({"properties": properties, "$defs": {"A": large}}));
        assert!(grammar.len() < 2 << 20, "{}", grammar.len());
        assert!(rule(&grammar, "f0_999").contains(r#""type":["array"]"#), "{}", rule(&grammar, "f0_999"));
    }

    #[test]
    fn parameters_that_are_not_declared() {
        for (parameters, body) in [
            (Value::Null, ""),
            (json!({"type": "object", "properties": {}}), ""),
            (json!({"type": "object"}), "other*"),
            (json!({}), "other*"),
            (json!({"additionalProperties": false}), ""),
            (json!({"properties": {"a": {}}, "additionalProperties": {"type": "string"}}), "f0_0? other*"),
            (json!({"anyOf": [{"properties": {"a": {}}}]}), "other*"),
            (json!({"$ref": "#/$defs/P", "$defs": {"P": {"properties": {"a": {}}, "required": ["a"]}}}), "f0_0"),
        ] {
            assert_eq!(
                rule(&grammar(parameters.clone()), "f0"),
                format!(r#""f>\n" {body}"#).trim_end(),
                "{parameters}"
            );
        }
    }
}

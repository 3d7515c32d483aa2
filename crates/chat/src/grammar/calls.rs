//! The grammar of replies that call tools, in the model's markup.
//!
//! Parameters come in their declared order, those that are not required may be left out; each is held to all of its schema
//! ([`Parameter`]) as far as a grammar can say it ([`followable`]).

use std::collections::{HashMap, HashSet};
use std::fmt::{Display, Write};

use serde_json::{Map, Value};

use super::branches::{Branch, branches};
use super::document::{Budget, Document};
use super::followable::followable;
use super::latitude::{Latitude, Need, States, leave_out};
use super::nesting::{check_alternatives, check_schema, check_side_by_side};
use super::parameter::{Parameter, says_nothing};
use super::reason::refused;
use super::schema::check_ending;
use super::states::Counter;
use super::text::RULES;
use super::{GrammarError, lark_string};
use crate::ToolSet;
use crate::tools::Kinds;

/// Bytes that a grammar may have: each parameter has its own copy of the definitions that it reaches.
const LONGEST: usize = 4 << 20;
/// A text that comes by what texts in calls come by.
const SAMPLE: &str = "Text, <a b=\"c\">\n  <d>e</d>\n</a>\n";
/// The name of a parameter that was not declared, as the parser of calls reads it.
const NAME: &str = r#"/[^<>\n"'\s]([^<>\n]{0,100}[^<>\n"'\s])?/"#;
/// What an object of parameters may say that no order of parameters can be held to.
const UNSUPPORTED: [&str; 5] = ["const", "enum", "maxProperties", "minProperties", "patternProperties"];
/// Those of them that may say of parameters that are not declared what they are.
const NAMING: [&str; 3] = ["const", "enum", "patternProperties"];

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

/// Calls as a grammar.
pub(super) struct Calls {
    /// In Lark.
    pub(super) grammar: String,
    /// What is to be looked at by itself where the grammar is refused.
    pub(super) parts: Vec<Part>,
    /// A reply's beginning up to the end of a text that is held to nothing, if there is one that short.
    pub(super) sample: Option<String>,
}

/// What one parameter's value is held to.
pub(super) struct Part {
    pub(super) function: String,
    pub(super) path: String,
    pub(super) strict: bool,
    /// In Lark, with `start` for the value and its end.
    pub(super) grammar: String,
    /// Whether it has JSON that could be held to its types only.
    has_json: bool,
}

/// What parameters are held to instead, by the number of their part.
pub(super) type Looser = HashMap<usize, Hold>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// Of JSON the types.
    Types,
    Nothing,
}

impl Part {
    pub(super) fn refused(&self, reason: String) -> GrammarError {
        GrammarError::Parameter { function: self.function.clone(), path: self.path.clone(), reason }
    }

    /// What it may be held to where it was refused for anything but that there is no value.
    pub(super) fn loosen(&self, refusal: GrammarError) -> Result<Hold, GrammarError> {
        let held = self.has_json && !says_nothing(&refusal);
        match refusal {
            GrammarError::Parameter { path, reason, .. } if held => self.leave_out(&path, reason).map(|()| Hold::Types),
            other => Err(other),
        }
    }

    /// Goes without all of it.
    pub(super) fn free(&self, reason: &str) -> Result<Hold, GrammarError> {
        self.leave_out(&self.path, reason).map(|()| Hold::Nothing)
    }

    fn leave_out(&self, path: &str, reason: impl Display) -> Result<(), GrammarError> {
        leave_out(&self.function, self.strict, path, reason)
    }
}

impl ForcedCalls<'_> {
    /// # Errors
    /// [`GrammarError::Parameter`] where a schema has no value, or cannot be followed.
    pub(super) fn write(&self, looser: &Looser, counter: &Counter) -> Result<Calls, GrammarError> {
        let tools = ToolSet::new(self.definitions);
        let mut calls = Calls { grammar: RULES.into(), parts: Vec::new(), sample: None };
        let mut functions = Vec::new();
        let (budget, comparisons) = (Budget::default(), Budget::default());
        let (states, mut names) = (States::new(counter), HashSet::new());
        for (index, function) in self.definitions.iter().filter_map(|tool| tool.get("function")).enumerate() {
            let Some(name) = function.get("name").and_then(Value::as_str) else { continue };
            // Of two of one name the first counts, as where calls are read.
            if self.function.is_some_and(|only| only != name) || !names.insert(name) {
                continue;
            }
            let strict = function.get("strict") == Some(&Value::Bool(true));
            let latitude = Latitude { function: name, strict, states: &states };
            let root = function.get("parameters").unwrap_or(&Value::Null);
            let root = if root.is_null() {
                Value::Null
            } else {
                check_schema(root).map_err(|error| at(error, name, ""))?;
                followable(root, &latitude, &comparisons).map_err(|error| at(error, name, ""))?
            };
            let document = Document { root: &root, budget: &budget };
            let mut writer = Writer { tools: &tools, function: name, document, latitude, looser, calls: &mut calls };
            let body = writer.function(index)?;
            let rule = format!("f{index}");
            let begin = lark_string(&format!("{name}>\n<"));
            rule_of(&mut calls.grammar, &rule, &format!("{begin} {body}"));
            functions.push(rule);
        }
        check_side_by_side("functions that may be called", functions.len())?;
        rule_of(&mut calls.grammar, "function", &functions.join(" | "));
        let (open, close) = (lark_string("<tool_call>\n<function="), lark_string("/function>\n</tool_call>"));
        rule_of(&mut calls.grammar, "call", &format!("{open} function {close}"));
        rule_of(&mut calls.grammar, "start", if self.parallel { r#"call ("\n" call)*"# } else { "call" });
        Ok(calls)
    }
}

fn rule_of(grammar: &mut String, name: &str, body: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(grammar, "{name}: {body}");
}

/// Writes one function's parameters.
struct Writer<'w> {
    tools: &'w ToolSet,
    function: &'w str,
    document: Document<'w>,
    latitude: Latitude<'w>,
    looser: &'w Looser,
    calls: &'w mut Calls,
}

/// Parameters as one alternative of their schema has them.
struct Declared {
    /// Each by its name, with its schema and whether it must be there.
    parameters: Vec<(String, Value, bool)>,
    /// What others are held to, if there may be any.
    others: Option<Value>,
}

impl Writer<'_> {
    /// What stands between the name and the end of the function.
    fn function(&mut self, index: usize) -> Result<String, GrammarError> {
        let (root, budget) = (self.document.root, self.document.budget);
        if root.is_null() {
            return Ok(String::new());
        }
        let refuse = |error| at(error, self.function, "");
        check_ending(root).map_err(refuse)?;
        let (branches, whole) = match branches(root, &self.document) {
            Ok(branches) => (branches, true),
            Err(error) if budget.is_spent() => return Err(refuse(error)),
            Err(error) => {
                self.latitude.leave_out("", error)?;
                (vec![Branch(root.as_object().into_iter().collect())], false)
            }
        };
        let objects = branches.iter().filter(|branch| branch.kinds().has(Kinds::OBJECT));
        let declared = objects.map(|branch| Declared::of(branch, whole, budget, &self.latitude));
        let declared: Vec<Declared> = declared.collect::<Result<_, _>>().map_err(refuse)?;
        check_alternatives(declared.iter().map(|declared| declared.parameters.len()).sum()).map_err(refuse)?;
        for (name, ..) in declared.iter().flat_map(|declared| &declared.parameters) {
            let need = Need::from([(format!("{name:?}"), (name.len(), "the names of all parameters".into()))]);
            self.latitude.states.take(need).map_err(refused).map_err(refuse)?;
        }
        let mut bodies = Vec::new();
        let mut never = None;
        for (branch, declared) in declared.iter().enumerate() {
            match self.parameters(&format!("{index}_{branch}"), declared)? {
                Ok(body) => bodies.push(body),
                Err(name) => never = Some(name),
            }
        }
        match (bodies.as_slice(), never) {
            ([], Some(name)) => Err(at(
                refused("it is required, and no value is allowed"),
                self.function,
                &format!("properties.{name}"),
            )),
            ([], None) => Err(refuse(refused("no arguments satisfy it"))),
            ([body], _) => Ok(body.clone()),
            _ => Ok(format!("({})", bodies.join(" | "))),
        }
    }

    /// The parameters of one alternative, or the name of one that must be there and never may.
    fn parameters(&mut self, prefix: &str, declared: &Declared) -> Result<Result<String, String>, GrammarError> {
        let (mut body, mut some_required) = (String::new(), false);
        for (index, (name, schema, required)) in declared.parameters.iter().enumerate() {
            let path = format!("properties.{name}");
            // Such a name cannot be written in the markup.
            let is_written = name.trim().trim_matches(['"', '\'']) == name && !name.contains(['<', '>', '\n', '\r']);
            if !is_written || name.is_empty() || name.len() > 256 {
                if *required {
                    let reason = "it is required, and its name cannot be written in a call";
                    return Err(at(refused(reason), self.function, &path));
                }
                continue;
            }
            let Some(value) = self.value(&format!("t{prefix}_{index}"), name, schema, &path)? else {
                if *required {
                    return Ok(Err(name.clone()));
                }
                continue;
            };
            // Of the parameters before it none must be there.
            if value == "(text)" && !some_required && self.calls.sample.is_none() {
                let begin = format!("<tool_call>\n<function={}>\n<parameter={name}>", self.function);
                self.calls.sample = Some(format!("{begin}\n{SAMPLE}\n</parameter>\n<"));
            }
            let rule = format!("p{prefix}_{index}");
            rule_of(
                &mut self.calls.grammar,
                &rule,
                &format!("{} {value}", lark_string(&format!("parameter={name}>\n"))),
            );
            body.push_str(&rule);
            body.push_str(if *required { " " } else { "? " });
            some_required |= *required;
        }
        if let Some(schema) = &declared.others {
            // Of a name that was not declared nothing more is known, so any will do.
            let others = self.value(&format!("t{prefix}"), "", schema, "additionalProperties")?;
            let names: String =
                declared.parameters.iter().map(|(name, ..)| format!(" & ~{}", lark_string(name))).collect();
            if let Some(value) = others {
                rule_of(&mut self.calls.grammar, &format!("NAME{prefix}"), &format!("{NAME}{names}"));
                rule_of(
                    &mut self.calls.grammar,
                    &format!("o{prefix}"),
                    &format!("\"parameter=\" NAME{prefix} \">\\n\" {value}"),
                );
                body.push_str(&format!("o{prefix}*"));
            }
        }
        Ok(Ok(body))
    }

    /// A value with its end; `None` if it is never allowed.
    fn value(&mut self, rule: &str, name: &str, schema: &Value, path: &str) -> Result<Option<String>, GrammarError> {
        let expected = self.tools.expected(self.function, name);
        let parameter = Parameter::of(schema, &self.document, &expected, &self.latitude, path);
        let parameter = parameter.map_err(|error| at(error, self.function, path))?;
        let Some(parameter) = parameter else { return Ok(None) };
        let mut rules = String::new();
        let mut body = parameter.body(rule, &mut rules);
        if parameter.can_fail() {
            let grammar = format!("{RULES}{rules}start: {body}\n");
            let json = parameter.json();
            match (self.looser.get(&self.calls.parts.len()), &json) {
                (Some(Hold::Nothing), _) => (rules, body) = (String::new(), "(text)".into()),
                (Some(Hold::Types), Some((own, plainer))) => body = body.replace(own, plainer),
                _ => {}
            }
            let (function, path, strict) = (self.function.to_owned(), path.to_owned(), self.latitude.strict);
            self.calls.parts.push(Part { function, path, strict, grammar, has_json: json.is_some() });
        }
        self.calls.grammar.push_str(&rules);
        if self.calls.grammar.len() > LONGEST {
            let reason = format!("the tools come to a grammar of over {LONGEST} bytes with it, the most that is taken");
            return Err(at(refused(reason), self.function, path));
        }
        Ok(Some(body))
    }
}

impl Declared {
    /// `whole`: whether nothing that it is composed of was left out.
    fn of(branch: &Branch<'_>, whole: bool, budget: &Budget, latitude: &Latitude<'_>) -> Result<Self, GrammarError> {
        if let Some(name) = UNSUPPORTED.iter().find(|name| branch.each(name).next().is_some()) {
            latitude.leave_out("", format!("the schema has keywords that are not supported: \"{name}\""))?;
        }
        let mut schemas: Map<String, Value> = Map::new();
        for (name, schema) in branch.each("properties").filter_map(Value::as_object).flatten() {
            budget.spend_on_copy(schema)?;
            match schemas.get_mut(name) {
                None => drop(schemas.insert(name.clone(), schema.clone())),
                Some(known) => {
                    budget.spend_on_copy(known)?;
                    *known = serde_json::json!({"allOf": [known, schema]});
                }
            }
        }
        let required = branch.each("required").filter_map(Value::as_array).flatten().filter_map(Value::as_str);
        let required: Vec<&str> = required.collect();
        // A function of which nothing is said takes nothing; an object of which nothing is said may hold anything.
        let says = |name: &&str| branch.each(name).next().is_some();
        let open = !whole || !says(&"properties") || says(&"additionalProperties") || NAMING.iter().any(says);
        let mut others: Vec<&Value> = Vec::new();
        // Where those of a pattern are left out, what is said of the others would be said of them, too.
        for map in branch.0.iter().filter(|map| !map.contains_key("patternProperties")) {
            let Some(more) = map.get("additionalProperties") else { continue };
            let own = map.get("properties").and_then(Value::as_object);
            // What the others of these schemas declare is more to this one.
            for (name, schema) in &mut schemas {
                if !own.is_some_and(|own| own.contains_key(name)) {
                    budget.spend_on_copy(schema)?;
                    budget.spend_on_copy(more)?;
                    *schema = serde_json::json!({"allOf": [schema, more]});
                }
            }
            others.push(more);
        }
        let others = match others.as_slice() {
            _ if !open => None,
            [] => Some(Value::Bool(true)),
            [only] => Some((*only).clone()),
            several => Some(serde_json::json!({ "allOf": several })),
        };
        for &name in &required {
            if !schemas.contains_key(name) {
                schemas.insert(name.to_owned(), others.clone().unwrap_or(Value::Bool(true)));
            }
        }
        let parameters = schemas.into_iter().map(|(name, schema)| {
            let required = required.contains(&name.as_str());
            (name, schema, required)
        });
        Ok(Self { parameters: parameters.collect(), others })
    }
}

/// The error of a function's parameters at this place.
fn at(error: GrammarError, function: &str, path: &str) -> GrammarError {
    match error {
        GrammarError::Refused(reason) => {
            GrammarError::Parameter { function: function.into(), path: path.into(), reason }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Counter, ForcedCalls, GrammarError, Looser};

    fn write(parameters: Value) -> Result<String, GrammarError> {
        let definitions = [json!({"type": "function", "function": {"name": "f", "parameters": parameters}})];
        let calls = ForcedCalls { definitions: &definitions, function: None, parallel: false }
            .write(&Looser::new(), &Counter::default())?;
        Ok(calls.grammar)
    }

    fn rule(grammar: &str, name: &str) -> String {
        let line = grammar.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.unwrap_or_else(|| panic!("no {name}: {grammar}")).trim_end().to_owned()
    }

    #[test]
    fn a_parameter_is_a_text_a_choice_or_json() {
        let grammar = write(json!({"type": "object", "required": ["city", "days"], "properties": {
            "city": {"type": "string"}, "unit": {"enum": ["C", "F", null]}, "days": {"$ref": "#/$defs/N"},
            "a>b": {"type": "string"}, "any": {}, "code": {"type": "string", "pattern": "^a/b$", "maxLength": 7}, "never": false},
            "$defs": {"N": {"type": "integer"}}}))
        .expect("fine");
        assert_eq!(rule(&grammar, "f0"), r#""f>\n<" p0_0_0 p0_0_1? p0_0_2 p0_0_4? p0_0_5?"#);
        assert_eq!(rule(&grammar, "p0_0_0"), r#""parameter=city>\n" (text)"#);
        assert_eq!(rule(&grammar, "t0_0_1[lazy]"), r#"("C" | "F" | "null") CLOSE"#);
        let days = rule(&grammar, "p0_0_2");
        assert!(days.contains(r##"%json {"$ref":"#/$defs/d0""##), "{days}");
        assert_eq!(rule(&grammar, "p0_0_4"), r#""parameter=any>\n" (text)"#);
        let code = rule(&grammar, "t0_0_5[lazy]");
        assert!(code.starts_with(r"(/(?:a\/b)/ & /(?s:.{0,7})/ & /[^<]*"), "{code}");
        assert_eq!(rule(&grammar, "start"), "call");
    }

    #[test]
    fn parameters_that_are_not_declared() {
        for (parameters, body) in [
            (Value::Null, ""),
            (json!({"type": "object", "properties": {}}), ""),
            (json!({"type": "object"}), "o0_0*"),
            (json!({}), "o0_0*"),
            (json!({"additionalProperties": false}), ""),
            (json!({"properties": {"a": {}}, "additionalProperties": {"type": "string"}}), "p0_0_0? o0_0*"),
            (json!({"required": ["a"]}), "p0_0_0 o0_0*"),
            (
                json!({"anyOf": [{"properties": {"a": {}}}, {"required": ["b"], "properties": {}}]}),
                "(p0_0_0? | p0_1_0 )",
            ),
            (json!({"$ref": "#/$defs/P", "$defs": {"P": {"properties": {"a": {}}, "required": ["a"]}}}), "p0_0_0"),
            (
                json!({"properties": {"a": {}, "b": {}}, "allOf": [{"properties": {"a": {}}, "additionalProperties": false}]}),
                "p0_0_0?",
            ),
        ] {
            let grammar = write(parameters.clone()).expect("fine");
            let rule = rule(&grammar, "f0").replace("  ", " ");
            assert_eq!(rule, format!(r#""f>\n<" {body}"#).trim_end(), "{parameters}");
        }
        let grammar = write(json!({"properties": {"a": false}, "additionalProperties": true})).expect("fine");
        assert!(
            rule(&grammar, "NAME0_0").ends_with(r#"& ~"a""#),
            "what is never allowed does not come back: {grammar}"
        );
    }

    #[test]
    fn many_parameters_that_share_large_definitions_make_no_grammar_without_end() {
        let properties: serde_json::Map<String, Value> =
            (0..1000).map(|index| (format!("p{index}"), json!({"$ref": "#/$defs/A"}))).collect();
        let large = json!({"type": "array", "items": {"enum": (0..6000).collect::<Vec<_>>()}});
        let error = write(json!({"properties": properties, "$defs": {"A": large}})).expect_err("too long");
        assert!(matches!(&error, GrammarError::Parameter { path, .. } if path.starts_with("properties.p")), "{error}");
    }

    #[test]
    fn what_all_parameters_take_together_is_bounded() {
        let properties = |count: usize, schema: Value| -> serde_json::Map<String, Value> {
            (0..count).map(|index| (format!("p{index}"), schema.clone())).collect()
        };
        let chain: serde_json::Map<String, Value> = (0..8)
            .map(|index| {
                let next = json!({"$ref": format!("#/$defs/a{}", index + 1)});
                (format!("a{index}"), json!({"allOf": [next, next, next]}))
            })
            .chain([("a8".to_owned(), json!({"type": "string"}))])
            .collect();
        let values: Vec<String> = (0..5000).map(|index| format!("value {index}")).collect();
        for (parameters, reason) in [
            (json!({"properties": properties(100, json!({"$ref": "#/$defs/a0"})), "$defs": chain}), "too many steps"),
            (json!({"properties": {"x": {"allOf": [{"enum": values}, {"enum": values}]}}}), "too many steps"),
            (
                json!({"properties": properties(1000, json!({})), "allOf": vec![json!({"additionalProperties": {}}); 200]}),
                "too many steps",
            ),
            (
                json!({"properties": properties(200, json!({"$ref": "#/$defs/V"})), "$defs": {"V": {"enum": vec![1; 6000]}}}),
                "too many steps",
            ),
            (
                json!({"properties": properties(20, json!({"items": {"$ref": "#/$defs/V"}})), "$defs": {"V": {"enum": vec![1; 100_000]}}}),
                "too many steps",
            ),
            (
                json!({"properties": properties(200, json!({"$ref": "#/$defs/V"})), "$defs": {"V": {"const": {"k".repeat(250_000): 1}}}}),
                "too many steps",
            ),
            (json!({"properties": properties(20_000, json!({"type": "string"}))}), "at most 262144 are taken"),
        ] {
            let error = write(parameters).err().map(|error| error.to_string());
            assert!(error.as_ref().is_some_and(|error| error.contains(reason)), "{reason}: {error:?}");
        }
        // What people send is far from it.
        let large = json!({"type": "object", "properties": properties(100, json!({"enum": values[..100]}))});
        write(large).expect("fine");
        let shared = json!({"V": {"enum": values[..500]}});
        write(json!({"properties": properties(20, json!({"$ref": "#/$defs/V"})), "$defs": shared})).expect("fine");
    }
}

//! A parameter of a call: what its schema says of the text that stands between its tags.
//!
//! The parser of calls reads a string as it stands, and anything else as JSON; where both are allowed, what is written as
//! something else is that. So a schema becomes texts, JSON, or both, of which each is read as a value of it.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::branches::{Branch, branches};
use super::document::Document;
use super::latitude::{Latitude, Need, States};
use super::one_of::same;
use super::reason::refused;
use super::text::{Fit, Text};
use super::{GrammarError, definitions, json_text, lark_string, schema};
use crate::ReplyEvent;
use crate::tools::{CallOptions, CallParser, Expected, Kinds, ToolSet, coerce, quoted};

/// The kinds that may be beside strings, and what texts look like that could be read as one.
const LOOKS: [(Kinds, &str); 5] = [
    (Kinds::NULL, r"\s*null\s*(\n(?s:.*))?"),
    (Kinds::BOOLEAN, r"\s*(true|false)\s*(\n(?s:.*))?"),
    (Kinds::INTEGER, r"\s*-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?\s*(\n(?s:.*))?"),
    (Kinds::ARRAY, r"\s*\[(?s:.*)"),
    (Kinds::OBJECT, r"\s*\{(?s:.*)"),
];
/// Values of these kinds as the parser of calls tells them from strings, in texts that a lexer has at the same time.
const SCALARS: [(Kinds, &str); 4] = [
    (Kinds::NULL, "null"),
    (Kinds::BOOLEAN, "true|false"),
    (Kinds::NUMBER, r"0|-?[1-9][0-9]{0,14}|-?(0|[1-9][0-9]{0,8})\.[0-9]{0,3}[1-9]|-?[1-9][0-9]{0,8}\.0"),
    (Kinds::INTEGER, "0|-?[1-9][0-9]{0,14}"),
];
const READ_AS_ANOTHER: &str =
    "a value that is listed would be read as another in a call, as 5 beside \"5\", which are written alike";
/// Whole numbers that are written in one way only.
const LARGEST: i64 = 999_999_999_999_999;

/// What may stand between a parameter's tags.
#[derive(Debug)]
pub(super) struct Parameter {
    /// Texts that are held to something, each with its end, in Lark.
    texts: Vec<String>,
    /// Whether any text may.
    any: bool,
    /// JSON of this schema, which is ready for its compiler.
    json: Option<Value>,
    /// What the JSON may be if its compiler refuses the schema.
    plainer: Kinds,
}

impl Default for Parameter {
    fn default() -> Self {
        Self { texts: Vec::new(), any: false, json: None, plainer: Kinds::NONE }
    }
}

impl Parameter {
    /// `None` if the parameter is never allowed. Its schema may refer to parts of the document; it is read as `expected` says.
    pub(super) fn of<'s>(
        schema: &'s Value,
        document: &Document<'s>,
        expected: &Expected,
        latitude: &Latitude<'_>,
        path: &str,
    ) -> Result<Option<Self>, GrammarError> {
        let branches = match branches(schema, document) {
            Ok(branches) => branches,
            Err(error) if document.budget.is_spent() => return Err(error),
            Err(error) => {
                latitude.leave_out(path, error)?;
                return Self::of_kinds(expected.kinds).map(Some);
            }
        };
        let lists = || branches.iter().flat_map(Branch::listed);
        lists().flatten().try_for_each(|value| document.budget.spend_on_copy(value))?;
        let listed_values = lists().map(<[Value]>::len).sum::<usize>();
        let pairs = branches.iter().map(Branch::pairs).sum::<usize>();
        document.budget.spend_on_pairs(pairs.saturating_add(listed_values.saturating_mul(expected.choices.len())))?;
        if branches.is_empty() {
            return Ok(None);
        }
        let kinds = branches.iter().map(Branch::kinds).fold(Kinds::NONE, Kinds::with);
        if kinds == Kinds::NONE {
            return Err(refused("no value is of all the types, and one of the values, that it asks for"));
        }
        if let Some(values) = listed(&branches) {
            return Self::one_of(&values, expected, latitude, path).map(Some);
        }
        // What is read as a string whatever it looks like is never anything else.
        let mut others = if expected.kinds == Kinds::STRING { Kinds::NONE } else { kinds.without(Kinds::STRING) };
        let may_be_text = expected.kinds.has(Kinds::STRING) && kinds.has(Kinds::STRING);
        let mut parameter = Self::default();
        let mut nothing = None;
        if may_be_text {
            match Self::texts(&branches, &mut others, expected, latitude, path)? {
                Ok(texts) => parameter = texts,
                Err(reason) => nothing = Some(reason),
            }
        }
        if !parameter.any && others != Kinds::NONE {
            match json_of(schema, document, others, kinds, expected, latitude, path) {
                Ok(json) => parameter.json = Some(json),
                Err(error) if says_nothing(&error) => nothing = Some(error),
                Err(error @ GrammarError::Parameter { .. }) => return Err(error),
                Err(error) if document.budget.is_spent() => return Err(error),
                Err(error) => {
                    latitude.leave_out(path, error)?;
                    parameter.json = Some(schema::prepare(json!({"type": others.names()}))?);
                }
            }
        }
        if !parameter.any && parameter.texts.is_empty() && parameter.json.is_none() {
            return Err(nothing
                .unwrap_or_else(|| refused("what stands in a call would be read as another value than it allows")));
        }
        parameter.plainer = others;
        Ok(Some(parameter))
    }

    /// Of what the parser of calls reads as one of these kinds.
    fn of_kinds(kinds: Kinds) -> Result<Self, GrammarError> {
        if kinds.has(Kinds::STRING) {
            return Ok(Self { any: true, ..Self::default() });
        }
        Ok(Self { json: Some(schema::prepare(json!({"type": kinds.names()}))?), ..Self::default() })
    }

    /// One of the values that can be told from each other.
    fn one_of(
        values: &[Value],
        expected: &Expected,
        latitude: &Latitude<'_>,
        path: &str,
    ) -> Result<Self, GrammarError> {
        let reads_back = |value: &&Value| {
            let read = serde_json::from_str::<Value>(&coerce(&written(value), expected));
            read.is_ok_and(|read| same(&read, value)) && is_text(&written(value))
        };
        let choices: Vec<String> = values.iter().filter(reads_back).map(|value| lark_string(&written(value))).collect();
        if choices.is_empty() {
            return Err(refused(
                "none of the values that are listed can stand in a call: each would be read as another",
            ));
        }
        if choices.len() < values.len() {
            latitude.leave_out(path, READ_AS_ANOTHER)?;
        }
        let text = format!("({}) CLOSE", choices.join(" | "));
        if let Err(reason) = latitude.states.take(Need::from([(text.clone(), (text.len(), "a list of values".into()))]))
        {
            latitude.leave_out(path, reason)?;
            return Self::of_kinds(expected.kinds);
        }
        Ok(Self { texts: vec![text], ..Self::default() })
    }

    /// The strings, and of the `others` beside them those that are texts, too; or why there are none.
    fn texts(
        branches: &[Branch<'_>],
        others: &mut Kinds,
        expected: &Expected,
        latitude: &Latitude<'_>,
        path: &str,
    ) -> Result<Result<Self, GrammarError>, GrammarError> {
        let mut impossible = None;
        let mut texts = Vec::new();
        for branch in branches.iter().filter(|branch| branch.kinds().has(Kinds::STRING)) {
            match Text::of(branch, latitude.states) {
                Ok(mut text) => {
                    let (some, all) = text.keep(|choice| coerce(choice, expected) == quoted(choice) && is_text(choice));
                    if !all && (some || *others != Kinds::NONE) {
                        latitude.leave_out(path, READ_AS_ANOTHER)?;
                    }
                    if some {
                        texts.push(text);
                    } else {
                        impossible = Some(refused("none of the values that are listed can stand in a call"));
                    }
                }
                Err(reason) => impossible = Some(reason),
            }
        }
        let is_free = |kind: Kinds| branches.iter().any(|branch| branch.is_free(kind));
        let mut numbers_are_free = is_free(Kinds::NUMBER);
        // Of a number the parser has to be told that it is no string.
        if others.has(Kinds::NUMBER) && !numbers_are_free && !texts.is_empty() && !texts.iter().any(Text::is_free) {
            let reason = "a number beside a string that is held to something can be held to nothing itself";
            latitude.leave_out(path, reason)?;
            numbers_are_free = true;
        }
        let bounded = |kind: Kinds| match kind {
            Kinds::INTEGER if expected.kinds.has(Kinds::NUMBER) => !numbers_are_free,
            kind => expected.kinds.has(kind) && !is_free(kind),
        };
        // What could be read as another value is that, of its own schema; what any such value is, is a text besides.
        let looks = LOOKS.iter().filter(|(kind, _)| {
            expected.kinds.has(*kind)
                && (bounded(*kind) || others.has(*kind) && (*kind == Kinds::ARRAY || *kind == Kinds::OBJECT))
        });
        let looks: Vec<&str> = looks.map(|(_, look)| *look).collect();
        let mut held = Vec::new();
        for mut text in texts {
            match text.fit(&looks, latitude, path)? {
                Fit::Held => held.push(text),
                Fit::Nothing => impossible = Some(refused("no string is of it that can stand in a call")),
                // What it is of is left out, so that it is any text.
                Fit::Unseen => return Ok(Ok(Self { any: true, ..Self::default() })),
            }
        }
        if held.iter().any(Text::is_free) && !LOOKS.iter().any(|(kind, _)| bounded(*kind)) {
            return Ok(Ok(Self { any: true, ..Self::default() }));
        }
        if let Err(reason) = take_together(&held, &looks, latitude.states) {
            latitude.leave_out(path, reason)?;
            return Ok(Ok(Self { any: true, ..Self::default() }));
        }
        if held.is_empty() {
            return Ok(Err(impossible.unwrap_or_else(|| refused("no string is of it that can stand in a call"))));
        }
        let mut texts: Vec<String> = held.iter().map(|text| text.terminal(&looks)).collect();
        for (kind, text) in SCALARS {
            if others.has(kind) && (if kind == Kinds::NUMBER { numbers_are_free } else { is_free(kind) }) {
                texts.push(format!("/{text}/ CLOSE"));
                *others = others.without(kind);
                if kind == Kinds::NUMBER {
                    *others = others.without(Kinds::INTEGER);
                }
            }
        }
        Ok(Ok(Self { texts, ..Self::default() }))
    }

    /// Its JSON and a plainer one, in Lark.
    pub(super) fn json(&self) -> Option<(String, String)> {
        let schema = self.json.as_ref()?;
        let plainer = schema::prepare(json!({"type": self.plainer.names()})).ok()?;
        Some((format!("%json {schema} CLOSE"), format!("%json {plainer} CLOSE")))
    }

    /// Whether a compiler may refuse it.
    pub(super) fn can_fail(&self) -> bool {
        !self.any
    }

    /// The value with its end, in Lark. The rule it may need, of this name, goes to the `grammar`.
    pub(super) fn body(&self, rule: &str, grammar: &mut String) -> String {
        let mut options = Vec::new();
        if self.any {
            options.push("text".to_owned());
        } else if !self.texts.is_empty() {
            let texts: Vec<&str> = self.texts.iter().map(String::as_str).collect();
            // Writing to a string cannot fail.
            let _ = writeln!(grammar, "{rule}[lazy]: {}", texts.join(" | "));
            options.push(rule.to_owned());
        }
        options.extend(self.json.iter().map(|schema| format!("%json {schema} CLOSE")));
        format!("({})", options.join(" | "))
    }
}

/// Takes the states of texts that the lexer has at the same time: it may be in each place of the one with each of the others.
fn take_together(texts: &[Text], looks: &[&str], states: &States<'_>) -> Result<(), String> {
    // Lengths alone do not multiply.
    if texts.len() < 2 || !texts.iter().any(Text::has_expressions) {
        return Ok(());
    }
    let what = "what its alternatives come to together";
    let count = Text::count(texts, looks, states).map_err(|reason| format!("{what} {reason}"))?;
    states.take(Need::from([(format!("{looks:?} {texts:?}"), (count.unwrap_or(0), what.into()))]))
}

/// All the values there are, if the schema lists them and says nothing else about them.
fn listed(branches: &[Branch<'_>]) -> Option<Vec<Value>> {
    let mut all = Vec::new();
    for branch in branches {
        let lists: Vec<&[Value]> = branch.listed().collect();
        let kinds = branch.kinds();
        let fits = |value: &&Value| match value.as_f64().filter(|number| number.fract() != 0.0) {
            Some(_) => kinds.has(Kinds::NUMBER),
            None => kinds.and(Kinds::of(value)) != Kinds::NONE,
        };
        let (first, rest) = lists.split_first()?;
        for value in first.iter().filter(fits) {
            if !branch.only_lists(Kinds::of(value)) {
                return None;
            }
            if rest.iter().all(|list| list.iter().any(|other| same(value, other))) {
                all.push(value.clone());
            }
        }
    }
    Some(all)
}

/// A value as the model writes it.
fn written(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Whether the parser of calls reads the text as the whole value.
fn is_text(text: &str) -> bool {
    let read = |rest: &str| {
        let schema = json!({"properties": {"x": {"type": "string"}, "y": {"type": "string"}}});
        let tools = ToolSet::new(&[json!({"function": {"name": "f", "parameters": schema}})]).into();
        let mut parser = CallParser::new(CallOptions { tools, id_prefix: String::new(), single: false });
        let call = format!("<tool_call>\n<function=f>\n<parameter=x>\n{text}\n</parameter>\n{rest}");
        let mut events = parser.push(&call);
        events.extend(parser.finish());
        let arguments = events.iter().filter_map(|event| match event {
            ReplyEvent::CallArguments { json, .. } => Some(json.as_str()),
            _ => None,
        });
        arguments.collect::<String>()
    };
    let string = Value::from(text);
    !text.contains('<')
        || read("</function>\n</tool_call>") == format!("{{\"x\":{string}}}")
            && read("<parameter=y>\n\n</parameter>\n</function>\n</tool_call>")
                == format!("{{\"x\":{string},\"y\":\"\"}}")
}

/// Whether an error is that no value satisfies a schema.
pub(super) fn says_nothing(error: &GrammarError) -> bool {
    matches!(error, GrammarError::Refused(reason) | GrammarError::Parameter { reason, .. }
        if reason.contains("no value satisfies") || reason.contains("nsatisfiable"))
}

/// The schema of the values of these kinds, of `all` that there are, with what it may refer to, ready for its compiler. Beside
/// a string a whole number is of those that are written in one way only.
fn json_of(
    schema: &Value,
    document: &Document<'_>,
    kinds: Kinds,
    all: Kinds,
    expected: &Expected,
    latitude: &Latitude<'_>,
    path: &str,
) -> Result<Value, GrammarError> {
    let beside = expected.kinds.has(Kinds::STRING);
    document.budget.spend_on_copy(schema)?;
    let mut parts = vec![schema.clone()];
    if kinds != all {
        parts.push(json!({"type": kinds.names()}));
    }
    if beside && kinds.has(Kinds::INTEGER) && !kinds.has(Kinds::NUMBER) {
        // None of them is -0.
        parts.push(json!({"anyOf": [{"minimum": 0, "maximum": LARGEST}, {"minimum": -LARGEST, "maximum": -1}]}));
    }
    let mut alone = match parts.as_slice() {
        [Value::Object(map)] => map.clone(),
        _ => Map::from_iter([("allOf".to_owned(), Value::Array(parts))]),
    };
    for (name, defined) in definitions::reached(schema, document.root)? {
        let defined = Value::Object(defined);
        document.budget.spend_on_copy(&defined)?;
        alone.insert(name.into(), defined);
    }
    let mut alone = Value::Object(alone);
    json_text::fit(&mut alone, false, document.budget, latitude, path)?;
    schema::prepare(alone)
}

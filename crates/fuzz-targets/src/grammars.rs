//! Grammars of schemas, expressions, choices, Lark and forced calls.

use std::sync::LazyLock;

use arbitrary::{Result, Unstructured};
use lily_chat::{ForcedCalls, Format, GrammarError, Grammars, ReplyGrammar};
use serde_json::{Map, Value, json};

use crate::conversation::tools;
use crate::tiny::{CHECKPOINT, TOKENIZER};
use crate::values::{object, text, value};

static GRAMMARS: LazyLock<Grammars> =
    LazyLock::new(|| Grammars::new(TOKENIZER.clone(), &CHECKPOINT.generation.eos_token_ids).expect("grammars"));

/// Tokens of a reply that is followed.
const LONGEST: usize = 200;

const SCHEMA_WORDS: [&str; 24] = [
    "a",
    "b",
    "c",
    "kind",
    "#",
    "#/$defs/a",
    "#/$defs/b",
    "#/definitions/a",
    "#/properties/a",
    "string",
    "integer",
    "number",
    "boolean",
    "null",
    "array",
    "object",
    "date-time",
    "email",
    "uuid",
    "ipv6",
    "^[a-z]+$",
    "\\d{3}",
    ".*",
    "(x|y)+",
];
const TYPES: [&str; 8] = ["string", "integer", "number", "boolean", "null", "array", "object", "file"];
/// Keywords by the kind of value that they take.
const SCHEMAS: [&str; 9] = [
    "items",
    "additionalProperties",
    "not",
    "contains",
    "propertyNames",
    "if",
    "then",
    "additionalItems",
    "unevaluatedProperties",
];
const LISTS: [&str; 4] = ["anyOf", "oneOf", "allOf", "prefixItems"];
const NAMED: [&str; 4] = ["properties", "$defs", "patternProperties", "definitions"];
const COUNTS: [&str; 6] = ["minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"];
const BOUNDS: [&str; 5] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
const ANYTHING: [&str; 9] =
    ["const", "default", "format", "pattern", "$ref", "nullable", "uniqueItems", "title", "x-guidance"];

/// Any bytes are what a reply is to be, and a way through it.
///
/// It is refused or it is a grammar; then each token that it allows leads on, and where one of JSON may end, JSON has been written,
/// which the schema allows as far as another reader of schemas can tell.
pub fn grammars(data: &[u8]) {
    let mut source = Unstructured::new(data);
    if let Ok(Some((grammar, format))) = asked(&mut source) {
        follow(grammar, format.as_ref(), &mut source);
    }
}

fn asked(source: &mut Unstructured<'_>) -> Result<Option<(ReplyGrammar, Option<Format>)>> {
    let kind = source.int_in_range(0..=7)?;
    if kind == 0 {
        let definitions = tools(source, |source| schema(source, 3))?;
        let function = if source.arbitrary()? { Some("f") } else { None };
        let calls = ForcedCalls { definitions: &definitions, function, parallel: source.arbitrary()? };
        let primed = if source.arbitrary()? { "<tool_call>\n<function=" } else { "" };
        return Ok(made(GRAMMARS.calls(&calls, primed)).map(|grammar| (grammar, None)));
    }
    let format = match kind {
        1 => Format::Regex(text(
            source,
            &[
                "a", "[a-z]", "\\d", "+", "*", "?", "{2,5}", "|", "(", ")", "(?i)", "^", "$", ".", "\\w", "[^é]",
                "\\p{L}",
            ],
        )?),
        2 => Format::Choice(
            (0..source.int_in_range(0..=4)?).map(|_| text(source, &SCHEMA_WORDS)).collect::<Result<_>>()?,
        ),
        3 => Format::Lark(text(
            source,
            &[
                "start: ",
                "a ",
                "b: ",
                "\"x\"",
                "/[a-z]+/",
                "\n",
                "A: ",
                "| ",
                "( ",
                ") ",
                "* ",
                "? ",
                "+ ",
                "%json {\"type\": \"object\"} ",
                "%ignore /\\s+/\n",
                "[lazy]",
                "[capture, max_tokens=3]",
                "<|im_end|> ",
                "{3,7} ",
                "~4 ",
                "& ",
            ],
        )?),
        4 => Format::JsonObject,
        _ => Format::JsonSchema(schema(source, 4)?),
    };
    let (begins_in_reasoning, may_call) = (source.int_in_range(0..=7)? == 7, source.int_in_range(0..=7)? == 7);
    let grammar = made(GRAMMARS.answer(&format, begins_in_reasoning, may_call));
    Ok(grammar.map(|grammar| (grammar, Some(format).filter(|_| !begins_in_reasoning && !may_call))))
}

fn made(grammar: std::result::Result<ReplyGrammar, GrammarError>) -> Option<ReplyGrammar> {
    match grammar {
        Ok(grammar) => Some(grammar),
        Err(GrammarError::Refused(_) | GrammarError::Schema { .. } | GrammarError::Parameter { .. }) => None,
        Err(error @ GrammarError::Failed(_)) => panic!("{error}"),
    }
}

/// A schema, mostly one.
pub(crate) fn schema(source: &mut Unstructured<'_>, depth: usize) -> Result<Value> {
    let mut schema = Map::new();
    if source.int_in_range(0..=3)? > 0 {
        let of_type = match source.int_in_range(0..=7)? {
            7 => json!([source.choose(&TYPES)?, source.choose(&TYPES)?]),
            _ => json!(source.choose(&TYPES)?),
        };
        schema.insert("type".into(), of_type);
    }
    for _ in 0..source.int_in_range(0..=3)? {
        let (key, value) = keyword(source, depth)?;
        schema.insert(key.into(), value);
    }
    Ok(match source.int_in_range(0..=31)? {
        31 => value(source, &SCHEMA_WORDS, depth)?,
        30 => Value::Bool(source.arbitrary()?),
        _ => Value::Object(schema),
    })
}

fn keyword(source: &mut Unstructured<'_>, depth: usize) -> Result<(&'static str, Value)> {
    let names = |source: &mut Unstructured<'_>| -> Result<Vec<&str>> {
        (0..source.int_in_range(0..=3)?).map(|_| source.choose(&["a", "b", "c", "kind"]).copied()).collect()
    };
    Ok(match source.int_in_range(if depth == 0 { 4..=8 } else { 0..=8 })? {
        0 => ("properties", named(source, depth)?),
        1 => (
            source.choose(&LISTS)?,
            (0..source.int_in_range(0..=3)?).map(|_| schema(source, depth - 1)).collect::<Result<_>>()?,
        ),
        2 => (source.choose(&NAMED)?, named(source, depth)?),
        3 => (source.choose(&SCHEMAS)?, schema(source, depth - 1)?),
        4 => ("required", json!(names(source)?)),
        5 => (source.choose(&COUNTS)?, json!(source.int_in_range(-1..=6)?)),
        6 => (
            source.choose(&BOUNDS)?,
            if source.arbitrary()? {
                json!(source.int_in_range(-20..=200)?)
            } else {
                json!(source.arbitrary::<f64>()?)
            },
        ),
        7 => {
            ("enum", (0..source.int_in_range(0..=4)?).map(|_| value(source, &SCHEMA_WORDS, 1)).collect::<Result<_>>()?)
        }
        _ => {
            let key = *source.choose(&ANYTHING)?;
            let value = match key {
                "x-guidance" => Value::Object(object(
                    source,
                    &["lenient", "whitespace_pattern", "item_separator", "coerce_one_of"],
                    1,
                )?),
                _ => value(source, &SCHEMA_WORDS, 1)?,
            };
            (key, value)
        }
    })
}

fn named(source: &mut Unstructured<'_>, depth: usize) -> Result<Value> {
    let names = ["a", "b", "c", "kind", "^x", "é\"\n"];
    (0..source.int_in_range(0..=3)?)
        .map(|_| Ok(((*source.choose(&names)?).to_owned(), schema(source, depth - 1)?)))
        .collect::<Result<Map<_, _>>>()
        .map(Value::Object)
}

/// Goes through a grammar by what is left of the source.
fn follow(mut grammar: ReplyGrammar, format: Option<&Format>, source: &mut Unstructured<'_>) {
    let stops = &CHECKPOINT.generation.eos_token_ids;
    let mut written = Vec::new();
    for _ in 0..LONGEST {
        let Some(words) = grammar.allowed() else { return };
        let tokens: Vec<u32> = (0_u32..)
            .zip(words)
            .filter(|(_, word)| **word != 0)
            .flat_map(|(index, word)| (0..32).filter(move |bit| word >> bit & 1 == 1).map(move |bit| index * 32 + bit))
            .collect();
        let ends = tokens.iter().any(|token| stops.contains(token));
        if ends && let Some(Format::JsonSchema(_) | Format::JsonObject) = format {
            check(&written, format);
        }
        let goes_on: Vec<u32> = tokens.iter().copied().filter(|token| !stops.contains(token)).collect();
        assert!(ends || !goes_on.is_empty(), "nothing may come after {:?}", String::from_utf8_lossy(&written));
        if goes_on.is_empty() || source.is_empty() && ends {
            return;
        }
        // With nothing left, the first of what is allowed: single bytes.
        let token = goes_on[source.int_in_range(0..=goes_on.len() - 1).unwrap_or(0)];
        if let Err(error) = grammar.accept(token) {
            panic!("{error}: {:?} after {:?}", TOKENIZER.bytes(token), String::from_utf8_lossy(&written));
        }
        written.extend_from_slice(TOKENIZER.bytes(token));
    }
}

/// What was written, where it may end.
fn check(written: &[u8], format: Option<&Format>) {
    if let Err(error) = serde_json::from_slice::<serde::de::IgnoredAny>(written) {
        panic!("{error}: {:?} of {format:?}", String::from_utf8_lossy(written));
    }
    // A number may be larger than any that is read.
    let Ok(json) = serde_json::from_slice::<Value>(written) else { return };
    match format {
        Some(Format::JsonObject) => assert!(json.is_object(), "{json}"),
        Some(Format::JsonSchema(schema)) if is_plain(schema) => {
            if let Ok(validator) = jsonschema::options().build(schema) {
                assert!(validator.is_valid(&json), "{json} of {schema}");
            }
        }
        _ => {}
    }
}

/// Whether two readers of schemas can be expected to agree: expressions have dialects, formats are notes to one of them, a float is
/// a multiple up to some rounding, and a lenient compiler passes over what it cannot follow.
fn is_plain(schema: &Value) -> bool {
    match schema {
        Value::Object(map) => map.iter().all(|(key, value)| {
            !["pattern", "patternProperties", "format", "multipleOf", "x-guidance", "$ref"].contains(&key.as_str())
                && is_plain(value)
        }),
        Value::Array(items) => items.iter().all(is_plain),
        _ => true,
    }
}

//! Grammars over both vocabularies, and schemas to make them of.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::sync::{Arc, OnceLock};

use lily_chat::{Format, GrammarError, Grammars, ReplyGrammar, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::common;
use crate::walk::allows;

/// The grammars of a vocabulary, its tokenizer and its stop tokens.
pub(crate) struct Vocabulary {
    pub(crate) grammars: Grammars,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) stops: Vec<u32>,
}

pub(crate) fn make(tokenizer: Arc<Tokenizer>) -> Vocabulary {
    let stops: Vec<u32> =
        ["<|im_end|>", "<|endoftext|>"].iter().map(|token| tokenizer.id(token).expect("a stop token")).collect();
    Vocabulary { grammars: Grammars::new(Arc::clone(&tokenizer), &stops).expect("grammars"), tokenizer, stops }
}

pub(crate) fn tiny() -> &'static Vocabulary {
    static TINY: OnceLock<Vocabulary> = OnceLock::new();
    TINY.get_or_init(|| make(common::tiny()))
}

pub(crate) fn real() -> &'static Vocabulary {
    static REAL: OnceLock<Vocabulary> = OnceLock::new();
    REAL.get_or_init(|| make(common::real()))
}

impl Vocabulary {
    pub(crate) fn schema(&self, schema: Value) -> ReplyGrammar {
        self.answer(Format::JsonSchema(schema))
    }

    pub(crate) fn answer(&self, format: Format) -> ReplyGrammar {
        self.grammars.answer(&format, false, false).unwrap_or_else(|error| panic!("{format:?}: {error}"))
    }

    pub(crate) fn refusal(&self, format: &Format) -> String {
        match self.grammars.answer(format, false, false) {
            Err(GrammarError::Refused(reason) | GrammarError::Schema { reason, .. }) => reason,
            other => panic!("{format:?}: {other:?}"),
        }
    }

    /// Where the reply ends as far as the stop tokens tell: `None` if it may not, else whether it must.
    pub(crate) fn end(&self, grammar: &ReplyGrammar) -> Option<bool> {
        let all = |ends: bool| self.stops.iter().all(|&stop| allows(grammar, stop) == ends);
        assert!(all(true) || all(false), "the stop tokens are as one");
        let others = (0..self.tokenizer.vocabulary() as u32).filter(|id| !self.stops.contains(id));
        all(true).then(|| !others.into_iter().any(|id| allows(grammar, id)))
    }

    /// Takes `text` token by token, as the model would write it; says after which of its bytes the reply may end.
    pub(crate) fn follow(&self, grammar: &mut ReplyGrammar, text: &str) -> Result<Vec<usize>, String> {
        let mut ends = Vec::new();
        let mut at = 0;
        for token in self.tokenizer.encode(text).expect("tokens") {
            if self.end(grammar).is_some() {
                ends.push(at);
            }
            if !allows(grammar, token) {
                let all = (0..self.tokenizer.vocabulary() as u32).filter(|&id| allows(grammar, id));
                let some: Vec<_> = all.take(5).map(|id| String::from_utf8_lossy(self.tokenizer.bytes(id))).collect();
                return Err(format!(
                    "{:?} after {:?}, where {some:?} may come",
                    String::from_utf8_lossy(self.tokenizer.bytes(token)),
                    &text[..at]
                ));
            }
            grammar.accept(token).map_err(|error| error.to_string())?;
            at += self.tokenizer.bytes(token).len();
        }
        if self.end(grammar).is_some() {
            ends.push(at);
        }
        Ok(ends)
    }
}

pub(crate) fn both() -> [&'static Vocabulary; 2] {
    [tiny(), real()]
}

pub(crate) fn tools() -> Vec<Value> {
    let weather = json!({"type": "object", "required": ["city", "days"], "properties": {"city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1, "maximum": 14}, "unit": {"enum": ["C", "F"]},
        "options": {"type": "object", "properties": {"wind": {"type": "boolean"}}, "additionalProperties": false}}});
    let tool = |name: &str, parameters: Value| {
        json!({"type": "function", "function":
        {"name": name, "parameters": parameters}})
    };
    vec![
        tool("get_weather", weather),
        tool("get", json!({"type": "object", "properties": {}})),
        tool("any", json!({"type": "object"})),
    ]
}

/// Schemas of every kind that the grammar knows, some levels deep.
pub(crate) fn schemas() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        Just(json!({})),
        (0u32..4, 0u32..4).prop_map(|(least, more)| { json!({"minLength": least, "maxLength": least + more}) }),
        Just(json!({"pattern": "^[a-z]{2,5}-[0-9]+$"})),
        Just(json!({"format": "date"}))
    ];
    let leaf = prop_oneof![
        text.prop_map(|mut schema| {
            schema["type"] = json!("string");
            schema
        }),
        (-50i32..50, 0i32..300)
            .prop_map(|(low, more)| json!({"type": "integer", "minimum": low, "maximum": low + more})),
        Just(json!({"type": "number", "minimum": 0, "exclusiveMaximum": 1})),
        Just(json!({"type": ["boolean", "null"]})),
        (1u32..40, prop::sample::select(vec!["null", "boolean", "integer", "number"]))
            .prop_map(|(most, other)| json!({"type": ["string", other], "maxLength": most})),
        Just(json!({"enum": ["a \"quoted\" word", "é🦔", 3, null, false]})),
        Just(json!({"const": {"a": [1, "x"]}})),
    ];
    leaf.prop_recursive(3, 20, 4, |inner| {
        let names = prop::sample::subsequence(vec!["name", "größe", "a b", "x\"y", "items"], 0..5);
        let object = (names, prop::collection::vec((inner.clone(), any::<bool>()), 5), any::<bool>());
        prop_oneof![
            object.prop_map(|(names, parts, open)| {
                let properties: serde_json::Map<String, Value> =
                    names.iter().zip(&parts).map(|(name, (schema, _))| ((*name).to_owned(), schema.clone())).collect();
                let required: Vec<&str> =
                    names.iter().zip(&parts).filter(|(_, (_, required))| *required).map(|(name, _)| *name).collect();
                let additional = if open { json!({"type": "integer"}) } else { json!(false) };
                json!({"type": "object", "properties": properties, "required": required, "additionalProperties": additional})
            }),
            (inner.clone(), 0usize..3, 0usize..3).prop_map(|(items, least, more)| {
                json!({"type": "array", "items": items, "minItems": least, "maxItems": least + more})
            }),
            prop::collection::vec(inner, 1..4).prop_map(|options| json!({"anyOf": options})),
        ]
    })
}

//! Grammars over both vocabularies: what they let through is what was asked for, whichever of the allowed tokens come, and
//! the end comes where it may and nowhere else.

mod common;
mod walk;

use std::sync::{Arc, OnceLock};

use lily_chat::{ForcedCalls, Format, GrammarError, Grammars, ReplyGrammar, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};
use walk::{Walk, allows};

/// The grammars of a vocabulary, its tokenizer and its stop tokens.
struct Vocabulary {
    grammars: Grammars,
    tokenizer: Arc<Tokenizer>,
    stops: Vec<u32>,
}

fn make(tokenizer: Arc<Tokenizer>) -> Vocabulary {
    let stops: Vec<u32> =
        ["<|im_end|>", "<|endoftext|>"].iter().map(|token| tokenizer.id(token).expect("a stop token")).collect();
    Vocabulary { grammars: Grammars::new(Arc::clone(&tokenizer), &stops).expect("grammars"), tokenizer, stops }
}

fn tiny() -> &'static Vocabulary {
    static TINY: OnceLock<Vocabulary> = OnceLock::new();
    TINY.get_or_init(|| make(common::tiny()))
}

fn real() -> &'static Vocabulary {
    static REAL: OnceLock<Vocabulary> = OnceLock::new();
    REAL.get_or_init(|| make(common::real()))
}

impl Vocabulary {
    fn schema(&self, schema: Value) -> ReplyGrammar {
        self.answer(Format::JsonSchema(schema))
    }

    fn answer(&self, format: Format) -> ReplyGrammar {
        self.grammars.answer(&format, false, false).unwrap_or_else(|error| panic!("{format:?}: {error}"))
    }

    fn refusal(&self, format: &Format) -> String {
        match self.grammars.answer(format, false, false) {
            Err(GrammarError::Refused(reason)) => reason,
            other => panic!("{format:?}: {other:?}"),
        }
    }

    /// Where the reply ends as far as the stop tokens tell: `None` if it may not, else whether it must.
    fn end(&self, grammar: &ReplyGrammar) -> Option<bool> {
        let all = |ends: bool| self.stops.iter().all(|&stop| allows(grammar, stop) == ends);
        assert!(all(true) || all(false), "the stop tokens are as one");
        let others = (0..self.tokenizer.vocabulary() as u32).filter(|id| !self.stops.contains(id));
        all(true).then(|| !others.into_iter().any(|id| allows(grammar, id)))
    }

    /// Takes `text` token by token, as the model would write it; says after which of its bytes the reply may end.
    fn follow(&self, grammar: &mut ReplyGrammar, text: &str) -> Result<Vec<usize>, String> {
        let mut ends = Vec::new();
        let mut at = 0;
        for token in self.tokenizer.encode(text).expect("tokens") {
            if self.end(grammar).is_some() {
                ends.push(at);
            }
            if !allows(grammar, token) {
                return Err(format!(
                    "{:?} after {:?}",
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

fn both() -> [&'static Vocabulary; 2] {
    [tiny(), real()]
}

#[test]
fn the_end_is_where_the_grammar_can_end_and_then_nothing_else() {
    for vocabulary in both() {
        let object = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
            "additionalProperties": false});
        for (format, text, earlier, must) in [
            (Format::JsonSchema(object), r#"{"a": 12}"#, vec![], Some(true)),
            (Format::JsonObject, r#"{"x": [1, {}], "y": "z"}"#, vec![], Some(true)),
            (Format::JsonSchema(json!({"type": "integer"})), "17", vec![1], Some(false)),
            (Format::Choice(vec!["yes".into(), "no".into(), "not at all".into()]), "not at all", vec![2], Some(true)),
            (Format::Regex("^[ab]{2}c?$".into()), "abc", vec![2], Some(true)),
            (Format::Lark("start: \"x\" (\",\" \"x\")*".into()), "x,x", vec![1], Some(false)),
        ] {
            let mut grammar = vocabulary.answer(format.clone());
            let mut found = vocabulary.follow(&mut grammar, text).unwrap_or_else(|error| panic!("{format:?}: {error}"));
            assert_eq!(found.pop(), Some(text.len()), "{format:?}");
            // A token may go past an earlier place.
            assert!(found.iter().all(|end| earlier.contains(end)), "{format:?}: {found:?}");
            assert_eq!(vocabulary.end(&grammar), must, "{format:?}");
        }
    }
}

#[test]
fn what_is_not_of_the_grammar_is_not_allowed() {
    for vocabulary in both() {
        let object = json!({"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"],
            "additionalProperties": false});
        for (format, text) in [
            // Field case 30.
            (Format::JsonObject, "17"),
            (Format::JsonObject, "Sure: {}"),
            (Format::JsonObject, "\n{}"),
            (Format::JsonObject, "{}\n"),
            (Format::JsonObject, "{\"a\": \"\n\"}"),
            (Format::JsonSchema(object.clone()), "{\"a\": \"z\"}"),
            (Format::JsonSchema(object.clone()), "{}"),
            (Format::JsonSchema(object), "{\"a\": \"x\", \"b\": 1}"),
            (Format::Regex("[0-9]+".into()), "12a"),
            (Format::Choice(vec!["a\u{7f}\"".into()]), "a\u{7f}'"),
        ] {
            let mut grammar = vocabulary.answer(format.clone());
            vocabulary.follow(&mut grammar, text).expect_err(&format!("{format:?} {text}"));
        }
        let mut grammar = vocabulary.answer(Format::Choice(vec!["a\u{7f}\"".into()]));
        vocabulary.follow(&mut grammar, "a\u{7f}\"").expect("a choice of any characters");
    }
}

/// What looks like a control token in a schema is text, and no control token is ever drawn for it.
#[test]
fn control_tokens_are_never_text() {
    for vocabulary in both() {
        let text = r#"{"a":"<|im_end|>"}"#;
        let schema = json!({"type": "object", "properties": {"a": {"const": "<|im_end|>"}}, "required": ["a"]});
        for mut grammar in [vocabulary.schema(schema), vocabulary.answer(Format::JsonObject)] {
            for &byte in text.as_bytes() {
                assert_eq!(vocabulary.end(&grammar), None);
                let byte = vocabulary.tokenizer.encode(&char::from(byte).to_string()).expect("a token")[0];
                // Where the grammar leaves no choice it allows the one token that the model knows.
                if !allows(&grammar, byte) {
                    break;
                }
                grammar.accept(byte).expect("allowed");
            }
        }
    }
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    let schema = Format::JsonSchema;
    for (format, reason) in [
        (schema(json!({"type": "object", "properties": {"a": {"not": {}}}})), "not"),
        (schema(json!({"type": "string", "minLength": 5, "maxLength": 2})), ""),
        (schema(json!({"type": "integer", "minimum": 5, "maximum": 2})), "nsatisfiable"),
        (schema(json!(false)), "nsatisfiable"),
        (schema(json!({"allOf": [{"type": "string"}, {"type": "integer"}]})), "nsatisfiable"),
        (schema(json!({"type": "objekt"})), "objekt"),
        (schema(json!({"$ref": "#/$defs/missing"})), "missing"),
        (schema(json!({"oneOf": [{"type": "number"}, {"type": "integer"}]})), "oneOf is supported only where"),
        (schema(json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true})), "uniqueItems"),
        (schema(json!({"type": "string", "pattern": "(?=a)b"})), "is not supported (character 1)"),
        (schema(json!({"$ref": "https://a.example/b"})), "only references within the schema"),
        (Format::Regex("ab(".into()), "invalid regular expression: unclosed group (character 3)"),
        (Format::Regex("a(?!b)".into()), "is not supported (character 2)"),
        (Format::Regex("\\bword".into()), "look-around"),
        (Format::Regex(String::new()), "empty"),
        (Format::Choice(Vec::new()), "nothing to choose"),
        (Format::Lark("root ::= \"a\"".into()), "GBNF"),
        (Format::Lark("begin: \"a\"".into()), "start"),
        (Format::Lark("start: missing".into()), "line 1, column 8: unknown name: \"missing\""),
        (Format::Lark("start: (\"a\"".into()), "line 1, column"),
        (
            Format::Lark("start: /[/".into()),
            "line 1, column 8: invalid regular expression: unclosed character class (character 1)",
        ),
        (Format::Lark("start: <foo>".into()), "unknown special token: \"<foo>\""),
        (Format::Lark("start: start".into()), "there is no text that it allows"),
    ] {
        let given = tiny().refusal(&format);
        assert!(given.contains(reason) && !given.is_empty(), "{format:?}: {given:?}");
        // The compiler's own words, and what it was given in place of the client's text.
        for inner in ["backtrace", "\n", "Unimplemented", "coerce", "feature", "(in regex)", "⟦", "NoExtension"] {
            assert!(!given.contains(inner), "{format:?}: {given:?}");
        }
        assert!(matches!(format, Format::Lark(_)) || !given.contains("start:"), "{format:?}: {given:?}");
    }
}

/// As deep as anything gets that is not refused: the compilers' recursion must fit their stack.
#[test]
fn what_is_nested_deep_is_compiled_or_refused_and_nothing_breaks() {
    let compile = |format: Format| tiny().grammars.answer(&format, false, false).map(drop);
    for length in [120, 100_000] {
        let link = |index: usize| {
            (
                format!("d{index}"),
                json!({"type": "object", "required": ["x"], "properties": {"x":
            {"$ref": format!("#/$defs/d{}", index + 1)}}}),
            )
        };
        let mut links: serde_json::Map<String, Value> = (0..length).map(link).collect();
        links.insert(format!("d{length}"), json!({"type": "null"}));
        let outcome = compile(Format::JsonSchema(json!({"$defs": links, "$ref": "#/$defs/d0"})));
        assert_eq!(outcome.is_ok(), length < 1000, "{length}: {outcome:?}");
    }
    for rules in [4900, 100_000] {
        let mut grammar: String = (0..rules).map(|index| format!("r{index}: \"a\" r{}\n", index + 1)).collect();
        grammar += &format!("r{rules}: \"b\"\nstart: r0\n");
        let outcome = compile(Format::Lark(grammar));
        assert_eq!(outcome.is_ok(), rules < 10_000, "{rules}: {outcome:?}");
    }
    compile(Format::Lark(format!("start: {}\"a\"{}", "(".repeat(50_000), ")".repeat(50_000)))).expect_err("too deep");
    compile(Format::Regex("(".repeat(5000) + &")".repeat(5000))).expect_err("too deep");
    compile(Format::Regex("a?".repeat(5000))).map_or_else(drop, drop);
}

#[test]
fn the_grammar_binds_after_thinking() {
    for vocabulary in both() {
        let thinking = || vocabulary.grammars.answer(&Format::JsonObject, true, true).expect("a grammar");
        let mut grammar = thinking();
        let thought = "Let me see: {\"a\": 1}, <b> </b> </thin </think </thinks> 🦔\n";
        assert_eq!(vocabulary.follow(&mut grammar, thought), Ok(Vec::new()), "the end is not allowed");
        let mut control = vocabulary.stops.clone();
        control.extend(["<|im_start|>", "<tool_call>"].iter().filter_map(|token| vocabulary.tokenizer.id(token)));
        assert!(control.iter().all(|&token| !allows(&grammar, token)));
        vocabulary.follow(&mut grammar.clone(), "</think>{").expect_err("two newlines come first");
        assert_eq!(vocabulary.follow(&mut grammar, "</think>\n\n{}").expect("an object").len(), 1);

        // The tag in other tokens would be text to some and an end to others.
        let mut grammar = thinking();
        for token in vocabulary.tokenizer.encode("</think").expect("tokens") {
            assert!(allows(&grammar, token));
            grammar.accept(token).expect("allowed");
        }
        let closes = |id: u32| vocabulary.tokenizer.bytes(id).starts_with(b">");
        let closing: Vec<u32> = (0..vocabulary.tokenizer.vocabulary() as u32).filter(|&id| closes(id)).collect();
        assert!(!closing.is_empty() && closing.iter().all(|&id| !allows(&grammar, id)));
        assert_eq!(vocabulary.follow(&mut grammar, "ing</think>\n\n{}").expect("an object").len(), 1);
    }
}

#[test]
fn a_call_may_come_instead_of_the_content_if_there_are_tools() {
    for vocabulary in both() {
        let call = "<tool_call>\n<function=f>\n</function>\n</tool_call>";
        for (reasons, text) in [(false, call.to_owned()), (true, format!("x\n</think>\n\n{call}"))] {
            let mut grammar = vocabulary.grammars.answer(&Format::JsonObject, reasons, true).expect("a grammar");
            vocabulary.follow(&mut grammar, &text).expect("a call");
            assert!(grammar.allowed().is_none(), "the call is free");
            let mut grammar = vocabulary.grammars.answer(&Format::JsonObject, reasons, false).expect("a grammar");
            vocabulary.follow(&mut grammar, &text).expect_err("no call without tools");
        }
    }
}

fn tools() -> Vec<Value> {
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
        // What cannot be followed is left out, and everything else holds.
        tool(
            "odd",
            json!({"type": "object", "required": ["n"], "properties": {"n": {"type": "array", "not": {"maxItems": 1},
            "items": {"type": "integer"}}}}),
        ),
    ]
}

fn calls(function: Option<&'static str>, parallel: bool, primed: &str, vocabulary: &Vocabulary) -> ReplyGrammar {
    let definitions = tools();
    let calls = ForcedCalls { definitions: &definitions, function, parallel };
    vocabulary.grammars.calls(&calls, primed).expect("a grammar")
}

/// Field cases 22 and 24: the grammar takes the tokens that the model writes, `=get` among them.
#[test]
fn forced_calls_are_of_the_declared_parameters() {
    let whole = "<parameter=city>\n  São\n\nPaulo </tool_call> 🦔\n</parameter>\n<parameter=days>\n3\n</parameter>\n";
    for vocabulary in both() {
        let end = "</function>\n</tool_call>";
        let any = || calls(None, true, "<tool_call>\n<function", vocabulary);
        for text in [
            format!("=get_weather>\n{whole}{end}"),
            format!("=get_weather>\n{whole}<parameter=unit>\nC\n</parameter>\n{end}"),
            format!("=get_weather>\n{whole}<parameter=options>\n{{\"wind\": true}}\n</parameter>\n{end}"),
            format!("=get>\n{end}"),
            format!("=any>\n<parameter=x>\n1\n</parameter>\n{end}"),
            format!("=odd>\n<parameter=n>\n[1, 2]\n</parameter>\n{end}"),
            format!("=get>\n{end}\n<tool_call>\n<function=get>\n{end}"),
        ] {
            let mut grammar = any();
            let ends = vocabulary.follow(&mut grammar, &text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
            assert_eq!(ends.last(), Some(&text.len()), "{text:?}");
            assert_eq!(vocabulary.end(&grammar), Some(false), "there may be another");
        }
        for text in [
            format!("=get_wea>\n{end}"),
            format!("=get_weather>\n{end}"),
            "=get_weather>\n<parameter=days>".into(),
            "=get_weather>\n<parameter=city>\nx\n</parameter>\n<parameter=days>\n15".into(),
            format!("=get_weather>\n{whole}<parameter=unit>\nK"),
            format!("=get_weather>\n{whole}<parameter=other>"),
            "=get>\n<parameter=x>".into(),
            format!("=get>\n{end}\n\nThat"),
        ] {
            vocabulary.follow(&mut any(), &text).expect_err(&text);
        }
        let mut single = calls(Some("get"), false, "<tool_call>\n<function=get>\n", vocabulary);
        vocabulary.follow(&mut single, end).expect("a call without arguments");
        assert_eq!(vocabulary.end(&single), Some(true), "and nothing else");
    }
    let get = real().tokenizer.encode("=get_weather").expect("tokens")[0];
    assert_eq!(real().tokenizer.bytes(get), b"=get");
    assert!(allows(&calls(None, true, "<tool_call>\n<function", real()), get));
}

/// Whether a parameter may stand in the markup as it is: of such only the listed values are held to, where all that it may
/// be is listed.
fn may_be_text(schema: &Value) -> bool {
    let lists_text =
        |option: &Value| option["enum"].as_array().is_some_and(|values| values.iter().any(Value::is_string));
    let options = schema["anyOf"].as_array();
    schema["type"] == "string"
        || options.is_some_and(|options| options.iter().any(|option| may_be_text(option) || lists_text(option)))
}

/// Schemas of every kind that the grammar knows, some levels deep.
fn schemas() -> impl Strategy<Value = Value> {
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Whichever of the allowed tokens come, the reply is JSON that the schema allows.
    #[test]
    fn any_walk_gives_what_the_schema_allows(schema in schemas(), seed: u64, use_real in prop::bool::weighted(0.3)) {
        let vocabulary = if use_real { real() } else { tiny() };
        let validator = jsonschema::validator_for(&schema).expect("a schema");
        let mut walk = Walk::new(seed, &vocabulary.tokenizer, &vocabulary.stops);
        for _ in 0..2 {
            let text = walk.reply(vocabulary.schema(schema.clone()));
            let value: Value = serde_json::from_str(&text).map_err(|error| TestCaseError::fail(format!("{error}: {text}")))?;
            prop_assert!(validator.is_valid(&value), "{schema} {text}");
        }
    }

    /// Whichever of the allowed tokens come, the reply is a call as the parser reads them, with arguments of the schema.
    #[test]
    fn any_walk_of_calls_is_read_as_calls(
        parts in prop::collection::vec((schemas(), any::<bool>()), 0..3),
        seed: u64,
        use_real in prop::bool::weighted(0.3),
    ) {
        let vocabulary = if use_real { real() } else { tiny() };
        let properties: serde_json::Map<String, Value> =
            parts.iter().enumerate().map(|(index, (schema, _))| (format!("p{index}"), schema.clone())).collect();
        let required: Vec<String> =
            parts.iter().enumerate().filter(|(_, (_, required))| *required).map(|(index, _)| format!("p{index}")).collect();
        let parameters = json!({"type": "object", "properties": properties, "required": required});
        let definitions = [json!({"type": "function", "function": {"name": "f", "parameters": parameters}})];
        let calls = ForcedCalls { definitions: &definitions, function: None, parallel: true };
        let primed = "<tool_call>\n<function=f>\n";
        let mut walk = Walk::new(seed, &vocabulary.tokenizer, &vocabulary.stops);
        let text = primed.to_owned() + &walk.reply(vocabulary.grammars.calls(&calls, primed).expect("a grammar"));
        for arguments in walk::arguments(&text, &definitions) {
            let given: Value = serde_json::from_str(&arguments).expect("JSON");
            prop_assert!(required.iter().all(|name| given.get(name).is_some()), "{arguments} {text}");
            for (name, value) in given.as_object().expect("an object") {
                let schema = properties.get(name).expect("a declared parameter");
                let fits = may_be_text(schema) || jsonschema::is_valid(schema, value);
                prop_assert!(fits, "{name}: {value} of {schema}: {text}");
            }
        }
    }
}

/// What the time of a step is: `cargo test -p lily-chat --test grammar -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn how_long_masks_take() {
    use std::time::{Duration, Instant};
    let tokenizer = common::real();
    let start = Instant::now();
    let vocabulary = make(Arc::clone(&tokenizer));
    println!("vocabulary of {}: {:?}", tokenizer.vocabulary(), start.elapsed());
    let person = json!({"type": "object", "additionalProperties": false, "required": ["name", "age", "tags", "address"],
        "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 40}, "maxItems": 8},
        "born": {"type": "string", "format": "date"}, "kind": {"enum": ["a", "b", "c"]},
        "address": {"type": "object", "properties": {"street": {"type": "string"}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
        "required": ["street", "zip"], "additionalProperties": false}}});
    let definitions = tools();
    let forced = ForcedCalls { definitions: &definitions, function: None, parallel: true };
    let text = "  Some text with words, a number 12.5, and <tags> in it; then more of the same.\n".repeat(8);
    let json_text = serde_json::to_string(&text).expect("JSON");
    let html = "<div class=\"a\">\n  <p>Some <b>text</b></p>\n</div>\n".repeat(12);
    let call = |text: &str| {
        let days = "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>";
        format!("=get_weather>\n<parameter=city>\n{text}\n</parameter>\n{days}")
    };
    let force = || vocabulary.grammars.calls(&forced, "<tool_call>\n<function").expect("a grammar");
    type Compile<'c> = Box<dyn Fn() -> ReplyGrammar + 'c>;
    let grammars: [(&str, Compile<'_>, String); 6] = [
        (
            "json_object",
            Box::new(|| vocabulary.answer(Format::JsonObject)),
            format!("{{\"text\": {json_text}, \"list\": [1, 2.5, null, {{\"a\": true}}]}}"),
        ),
        (
            "json_schema",
            Box::new(|| vocabulary.schema(person.clone())),
            format!(
                "{{\"name\": {json_text}, \"age\": 42, \"tags\": [\"one tag\", \"another\"], \"born\": \"1999-12-31\", \"kind\": \"b\", \"address\": {{\"street\": \"Main Street 5\", \"zip\": \"12345\"}}}}"
            ),
        ),
        ("forced call", Box::new(force), call(&text)),
        ("forced call with HTML", Box::new(force), call(&html)),
        (
            "regex",
            Box::new(|| vocabulary.answer(Format::Regex(r"(\w+[ ,.;<>\n]*)+".into()))),
            text.trim_start().to_owned(),
        ),
        (
            "lark",
            Box::new(|| vocabulary.answer(Format::Lark("start: (LINE \"\\n\")+\nLINE: /[^\\n]+/".into()))),
            text.clone(),
        ),
    ];
    for (name, compile, text) in grammars {
        let start = Instant::now();
        let grammar = compile();
        let compiled = start.elapsed();
        for round in ["first", "second"] {
            let mut times: Vec<Duration> = Vec::new();
            let mut run = grammar.clone();
            for token in tokenizer.encode(&text).expect("tokens") {
                assert!(allows(&run, token), "{name}: {:?}", String::from_utf8_lossy(tokenizer.bytes(token)));
                let start = Instant::now();
                run.accept(token).expect("allowed");
                times.push(start.elapsed());
            }
            times.sort();
            let mean = times.iter().sum::<Duration>() / times.len() as u32;
            println!(
                "{name}, {round} run: compiled in {compiled:?}; {} steps, mean {mean:?}, median {:?}, 99 % {:?}, most {:?}",
                times.len(),
                times[times.len() / 2],
                times[times.len() * 99 / 100],
                times[times.len() - 1]
            );
        }
    }
}

//! Grammars over both vocabularies: what they let through is what was asked for, whichever of the allowed tokens come, and
//! the end comes where it may and nowhere else.

mod common;
mod vocabulary;
mod walk;

use std::sync::Arc;

use lily_chat::{ForcedCalls, Format, ReplyGrammar};
use proptest::prelude::*;
use serde_json::{Value, json};
use vocabulary::{both, make, real, schemas, tiny, tools};
use walk::{Walk, allows};

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

/// A model that has lost its way writes spaces and empty lines as long as it may.
#[test]
fn the_space_in_json_is_that_of_lists_and_lines() {
    let deep = (0..12).fold(json!({}), |inner, _| json!({"a": [1, "b"], "c": inner}));
    for text in [deep.to_string(), serde_json::to_string_pretty(&deep).expect("JSON"), "{\r\n\t\"a\":\t1\r\n}".into()] {
        let mut grammar = tiny().answer(Format::JsonObject);
        let ends = tiny().follow(&mut grammar, &text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(ends.last(), Some(&text.len()));
    }
    for text in ["{\n\n", "{     ", "{\"a\":     ", "{ \n", &format!("{{\n{}", " ".repeat(41))] {
        let mut grammar = tiny().answer(Format::JsonObject);
        tiny().follow(&mut grammar, text).expect_err(text);
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

/// As where a text stands in a call.
#[test]
fn formats_are_within_json_what_they_are_elsewhere() {
    for (format, yes, no) in [
        ("date-time", "2024-02-29T23:20:50.5+02:00", ["6971-12-30T20:18:60+14:24", "2024-02-29t23:20:50z"]),
        ("time", "23:20:50Z", ["20:59:60Z", "23:20:50z"]),
        ("date", "2024-02-29", ["2023-02-29", "2024-02-1"]),
        ("uri", "https://a.example/0?b#c", ["//a.example/0", "https://a b/0"]),
    ] {
        for schema in [json!({"format": format}), json!({"format": format, "pattern": "0"})] {
            let grammar = tiny().schema(json!({"type": "array", "items": schema}));
            let text = json!([yes]).to_string();
            assert_eq!(tiny().follow(&mut grammar.clone(), &text), Ok(vec![text.len()]), "{schema}");
            for text in no {
                tiny().follow(&mut grammar.clone(), &json!([text]).to_string()).expect_err(&format!("{schema} {text}"));
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
        (schema(json!({"items": {"minProperties": 2}})), "minProperties of 2"),
        (schema(json!({"properties": {"a": {}}, "required": ["a", "a"], "minProperties": 3})), "minProperties of 3"),
        (schema(json!({"type": "string", "pattern": "(?=a)b"})), "is not supported (character 1)"),
        (schema(json!({"$ref": "https://a.example/b"})), "only references within the schema"),
        // As many states as no reply may come to.
        (schema(json!({"maxLength": 20_000})), "a length of 20000 takes more than one reply may"),
        (schema(json!({"maxLength": 1000, "pattern": "(e[a-z ]{6}|a[^x]{3,9}y)"})), "a length of 1000 takes"),
        (schema(json!({"items": {"pattern": "e[a-z ]{40}"}})), "the pattern takes"),
        (schema(json!({"enum": ["word ".repeat(50_000)]})), "a list of values takes"),
        (schema(json!({"pattern": r"\pL".repeat(2000)})), "at most 65536 are taken"),
        (Format::Regex(r"\pL".repeat(2000)), "at most 65536 are taken"),
        (Format::Regex("ab".repeat(5000)), "at most 8192 are taken"),
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
    compile(Format::Regex("a?".repeat(4000))).map_or_else(drop, drop);
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
    let note =
        json!({"type": "object", "required": ["note"], "properties": {"note": {"type": "string", "maxLength": 2000}}});
    let notes = [json!({"type": "function", "function": {"name": "note", "parameters": note}})];
    let noted = ForcedCalls { definitions: &notes, function: None, parallel: true };
    let held = || vocabulary.grammars.calls(&noted, "<tool_call>\n<function=note>\n").expect("a grammar");
    type Compile<'c> = Box<dyn Fn() -> ReplyGrammar + 'c>;
    let grammars: [(&str, Compile<'_>, String); 7] = [
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
            "forced call, at most 2,000 characters",
            Box::new(held),
            format!("<parameter=note>\n{text}\n</parameter>\n</function>\n</tool_call>"),
        ),
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

#[test]
fn an_object_has_as_many_properties_as_it_is_asked_for() {
    let least = json!({"required": ["a", "b"], "minProperties": 3, "additionalProperties": {"type": "integer"}});
    let schema = json!({"properties": {"minProperties": least}, "enum": [{"minProperties": {"a": 1, "b": 2, "c": 3}}]});
    for (schema, name) in [(least, ""), (schema, "{\"minProperties\":")] {
        let grammar = tiny().schema(schema);
        let end = if name.is_empty() { "" } else { "}" };
        let whole = format!("{name}{{\"a\":1,\"b\":2,\"c\":3}}{end}");
        assert_eq!(tiny().follow(&mut grammar.clone(), &whole), Ok(vec![whole.len()]), "{whole}");
        tiny().follow(&mut grammar.clone(), &format!("{name}{{\"a\":1,\"b\":2}}")).expect_err("too few");
    }
}

/// Of a format a pattern with an end is taken also where its states take long to count.
#[test]
fn long_patterns_are_taken() {
    let lines = "some words\n".repeat(20);
    let lines = lines.trim_end();
    for (schema, text) in [
        (json!({"pattern": "^(.{1,80}\n){1,20}$"}), format!("{lines}\n")),
        (json!({"pattern": "^[^\n]{1,120}(\n[^\n]{1,120}){0,20}$", "maxLength": 2000}), lines.to_owned()),
        (json!({"pattern": r"^\p{L}[\p{L}\p{N} .'-]{0,99}$"}), "größe 日本".repeat(9)),
    ] {
        let mut grammar = tiny().schema(json!({"type": "string", "allOf": [schema]}));
        let text = Value::from(text).to_string();
        let ends = tiny().follow(&mut grammar, &text).unwrap_or_else(|error| panic!("{schema}: {error}"));
        assert_eq!(ends.last(), Some(&text.len()), "{schema}");
    }
}

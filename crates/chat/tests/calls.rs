//! Grammars of calls that a reply must make: each parameter is held to all of its schema, and what the grammar lets through
//! is what the parser reads back.

mod common;
mod vocabulary;
mod walk;

use lily_chat::{ForcedCalls, GrammarError, ReplyGrammar};
use proptest::prelude::*;
use serde_json::{Value, json};
use vocabulary::{Vocabulary, both, real, schemas, tiny, tools};
use walk::{Walk, allows};

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

/// Field case 24, and every keyword: what of a parameter's schema no call can be held to is told with its place.
#[test]
fn parameters_that_no_call_can_be_held_to_are_refused_with_their_place() {
    let refusal = |parameters: Value| {
        let definitions = [json!({"type": "function", "function": {"name": "f", "parameters": parameters}})];
        let calls = ForcedCalls { definitions: &definitions, function: None, parallel: false };
        match tiny().grammars.calls(&calls, "<tool_call>\n<function=f>\n") {
            Err(GrammarError::Parameter { function, path, reason }) => {
                assert_eq!(function, "f");
                (path, reason)
            }
            other => panic!("{definitions:?}: {other:?}"),
        }
    };
    for (schema, reason) in [
        (json!({"type": "string", "enum": [1, null]}), "of all the types"),
        (json!({"type": "integer", "enum": ["a"]}), "of all the types"),
        (json!({"type": "string", "minLength": 5, "maxLength": 2}), "minLength (5) is greater than maxLength (2)"),
        (json!({"type": "string", "enum": ["abc"], "maxLength": 2}), "none of the values"),
        (json!({"type": "string", "maxLength": 100_000}), "held to 1000 at most"),
        (json!({"type": "string", "pattern": "^a{3}$", "maxLength": 2}), "no string"),
        (json!({"type": "string", "pattern": "^a\n</parameter>\n<"}), "no string"),
        (json!({"type": "string", "pattern": "(?=a)"}), "look-around"),
        (json!({"type": "string", "const": "a\n</parameter>\n</function>"}), "can stand in a call"),
        (json!({"type": "string", "not": {"const": "a"}}), "not supported: \"not\""),
        (json!({"type": "string", "minLength": -1}), "minLength must be"),
        (json!({"allOf": [{"type": "string"}, {"type": "null"}]}), "of all the types"),
        (json!({"type": "integer", "minimum": 5, "maximum": 2}), "nsatisfiable"),
        (json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true}), "uniqueItems"),
        (json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/missing"}}}), "no \"#/$defs/missing\""),
        (json!({"type": "array", "items": {"$ref": "#"}}), "only references to definitions"),
        (json!({"type": "array", "not": {}, "x-guidance": {"lenient": true}}), "\"not\""),
        (json!({"$ref": "#/properties/x"}), "levels deep"),
        (json!({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}), "oneOf is supported only"),
        (json!({"anyOf": [{"type": "string", "format": "date"}, {"type": "number"}]}), "a number beside a string"),
        (json!({"enum": ["a\n</parameter>\n</function>"]}), "can stand in a call"),
    ] {
        let (path, given) = refusal(json!({"properties": {"y": {"type": "string"}, "x": schema}}));
        assert_eq!(path, "properties.x", "{schema}");
        assert!(given.contains(reason), "{schema}: {given}");
    }
    for (parameters, path, reason) in [
        (json!({"properties": {"x": false}, "required": ["x"]}), "properties.x", "no value is allowed"),
        (json!({"properties": {"a>b": {}}, "required": ["a>b"]}), "properties.a>b", "cannot be written"),
        (json!({"patternProperties": {"^a": {}}}), "", "patternProperties"),
        (
            json!({"additionalProperties": {"type": "integer", "minimum": 2, "maximum": 1}}),
            "additionalProperties",
            "nsat",
        ),
        (json!({"type": "string"}), "", "no arguments"),
    ] {
        let (given, told) = refusal(parameters.clone());
        assert_eq!(given, path, "{parameters}: {told}");
        assert!(told.contains(reason), "{parameters}: {told}");
    }
}

/// Strings of every kind of constraint, and beside other values: what may come, and what may not.
#[test]
fn strings_in_calls_are_held_to_all_of_their_schema() {
    for (schema, yes, no) in [
        (
            json!({"type": "string", "pattern": "^[a-z]+(-[0-9]{2})?$"}),
            vec!["ab", "ab-12"],
            vec!["Ab", "ab-1", "", "ab\n"],
        ),
        (json!({"type": "string", "pattern": "b/c"}), vec!["b/c", "ab/cd", "\nb/c\n"], vec!["bc"]),
        (
            json!({"type": "string", "minLength": 2, "maxLength": 4}),
            vec!["ab", "é🦔\n<", "</p>"],
            vec!["a", "abcde", ""],
        ),
        (json!({"type": "string", "format": "date"}), vec!["2024-02-29"], vec!["2023-02-29", "today"]),
        (json!({"type": "string", "const": "a\nb"}), vec!["a\nb"], vec!["a", "b"]),
        (json!({"enum": ["a", "a\nb", 5, null]}), vec!["a", "a\nb", "5", "null"], vec!["b", "6"]),
        (
            json!({"allOf": [{"type": "string"}, {"enum": ["ab", "abc", "b"]}, {"pattern": "^a"}, {"maxLength": 2}]}),
            vec!["ab"],
            vec!["abc", "b"],
        ),
        (
            json!({"anyOf": [{"type": "string", "format": "ipv4"}, {"type": "null"}]}),
            vec!["1.2.3.4", "null"],
            vec!["x"],
        ),
        (
            json!({"anyOf": [{"type": "string", "format": "uuid"}, {"type": "integer"}]}),
            vec!["123e4567-e89b-12d3-a456-426614174000", "17", "-3"],
            vec!["1.5", "x", "-0"],
        ),
        (
            json!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
            vec!["a", "[\"a\", \"b\"]", "a [b]"],
            vec!["[1]"],
        ),
        (json!({"type": ["string", "integer"], "maximum": 9}), vec!["a", "7", "1.2.3"], vec!["10"]),
        (json!({"$ref": "#/$defs/Code"}), vec!["AB1"], vec!["ab1"]),
        (json!({"type": ["string", "null"]}), vec!["null", "", "5"], vec![]),
        (json!({"type": "number", "minimum": 0, "maximum": 1}), vec!["0.5"], vec!["1.5", "a"]),
    ] {
        let parameters = json!({"properties": {"x": schema}, "required": ["x"], "$defs": {"Code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]$"}}});
        let definitions = [json!({"type": "function", "function": {"name": "f", "parameters": parameters}})];
        let calls = ForcedCalls { definitions: &definitions, function: None, parallel: false };
        let primed = "<tool_call>\n<function=f>\n";
        let rest = |text: &str| format!("<parameter=x>\n{text}\n</parameter>\n</function>\n</tool_call>");
        for vocabulary in both() {
            let grammar = vocabulary.grammars.calls(&calls, primed).unwrap_or_else(|error| panic!("{schema}: {error}"));
            let known = jsonschema::options().should_validate_formats(true).build(&parameters).expect("a schema");
            for text in &yes {
                let whole = rest(text);
                let ends = vocabulary.follow(&mut grammar.clone(), &whole);
                assert_eq!(ends, Ok(vec![whole.len()]), "{schema} {text:?}");
                let read = walk::arguments(&format!("{primed}{whole}"), &definitions);
                let read: Value = serde_json::from_str(&read[0]).expect("JSON");
                assert!(known.is_valid(&read), "{schema} {text:?}: {read}");
                assert!(read["x"].as_str().is_none_or(|read| read == *text), "{schema} {text:?}: {read}");
            }
            for text in &no {
                vocabulary.follow(&mut grammar.clone(), &rest(text)).expect_err(&format!("{schema} {text:?}"));
            }
        }
    }
}

/// Pieces of texts about calls.
fn markup() -> impl Strategy<Value = String> {
    let pieces = [
        "</tool_call>",
        "<tool_call>",
        "<function=f>",
        "<function=x>",
        "</function>",
        "<parameter=x>",
        "<parameter=y>",
        "</parameter>",
        "\n",
        "\n",
        " ",
        "\r\n",
        "a",
        "é🦔",
        "<",
        "</",
        ">",
        "=",
        "\n</parameter>\n",
        "\n<function=f>\n<parameter=x>\n",
        "\u{a0}",
        "null",
    ];
    prop::collection::vec(prop::sample::select(pieces.to_vec()), 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

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
        let grammar = match vocabulary.grammars.calls(&calls, primed) {
            Err(GrammarError::Parameter { reason, .. }) if reason.contains("a number beside a string") => return Ok(()),
            grammar => grammar.expect("a grammar"),
        };
        let text = primed.to_owned() + &walk.reply(grammar);
        for arguments in walk::arguments(&text, &definitions) {
            let given: Value = serde_json::from_str(&arguments).expect("JSON");
            prop_assert!(required.iter().all(|name| given.get(name).is_some()), "{arguments} {text}");
            for (name, value) in given.as_object().expect("an object") {
                let schema = properties.get(name).expect("a declared parameter");
                prop_assert!(jsonschema::is_valid(schema, value), "{name}: {value} of {schema}: {text}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Field case 20: a text about calls that the grammar lets through is read back byte for byte; and it lets through what
    /// the parser can tell, but for a line `</parameter>` before a line that begins with `<`, and tags too near each other.
    #[test]
    fn case_20_texts_of_forced_calls_are_byte_exact(text in markup(), bounded: bool) {
        let schema = if bounded { json!({"type": "string", "maxLength": 500}) } else { json!({"type": "string"}) };
        let parameters = json!({"properties": {"x": schema, "y": {"type": "string"}}, "required": ["x"]});
        let definitions = [json!({"type": "function", "function": {"name": "f", "parameters": parameters}})];
        let calls = ForcedCalls { definitions: &definitions, function: None, parallel: true };
        let primed = "<tool_call>\n<function=f>\n";
        let grammar = tiny().grammars.calls(&calls, primed).expect("a grammar");
        for rest in ["</function>\n</tool_call>", "<parameter=y>\n\n</parameter>\n</function>\n</tool_call>"] {
            let whole = format!("<parameter=x>\n{text}\n</parameter>\n{rest}");
            let ends = tiny().follow(&mut grammar.clone(), &whole);
            let fits = ends.is_ok_and(|ends| ends.last() == Some(&whole.len()));
            let read = walk::read(&format!("{primed}{whole}"), &definitions);
            let expected = if rest.contains('y') { json!({"x": text, "y": ""}) } else { json!({"x": text}) };
            let exact = read.as_ref().is_some_and(|calls| {
                calls.len() == 1 && serde_json::from_str::<Value>(&calls[0]).is_ok_and(|arguments| arguments == expected)
            });
            prop_assert!(!fits || exact, "{text:?} is read as {read:?}");
            prop_assert!(fits || !exact || text.contains("</") || text.contains("<function="), "{text:?} could be told");
        }
    }
}

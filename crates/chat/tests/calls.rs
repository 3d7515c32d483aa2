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

/// A grammar of one function with these parameters.
fn of(vocabulary: &Vocabulary, parameters: &Value, strict: bool) -> Result<ReplyGrammar, GrammarError> {
    let function = json!({"name": "f", "parameters": parameters, "strict": strict});
    let definitions = [json!({"type": "function", "function": function})];
    let calls = ForcedCalls { definitions: &definitions, function: None, parallel: false };
    vocabulary.grammars.calls(&calls, "<tool_call>\n<function=f>\n")
}

/// Why there is none.
fn refusal(parameters: &Value, strict: bool) -> (String, String) {
    match of(tiny(), parameters, strict) {
        Err(GrammarError::Parameter { function, path, reason }) => {
            assert_eq!(function, "f");
            (path, reason)
        }
        other => panic!("{parameters}: {other:?}"),
    }
}

/// Field case 24: what no value satisfies is told with its place, strict or not.
#[test]
fn parameters_that_no_call_can_satisfy_are_refused_with_their_place() {
    for (schema, reason) in [
        (json!({"type": "string", "enum": [1, null]}), "of all the types"),
        (json!({"type": "integer", "enum": ["a"]}), "of all the types"),
        (json!({"type": "string", "minLength": 5, "maxLength": 2}), "minLength (5) is greater than maxLength (2)"),
        (json!({"type": "string", "enum": ["abc"], "maxLength": 2}), "none of the values"),
        (json!({"type": "string", "pattern": "^a{3}$", "maxLength": 2}), "no string"),
        (json!({"type": "string", "pattern": "^a\n</parameter>\n<"}), "no string"),
        (json!({"type": "string", "const": "a\n</parameter>\n</function>"}), "can stand in a call"),
        (json!({"allOf": [{"type": "string"}, {"type": "null"}]}), "of all the types"),
        (json!({"type": "integer", "minimum": 5, "maximum": 2}), "nsatisfiable"),
        (json!({"enum": ["a\n</parameter>\n</function>"]}), "can stand in a call"),
        (json!({"type": "object", "properties": {"a": {"$ref": "#/properties/x"}}, "required": ["a"]}), "without end"),
    ] {
        for strict in [false, true] {
            let (path, given) = refusal(&json!({"properties": {"y": {"type": "string"}, "x": schema}}), strict);
            assert_eq!(path, "properties.x", "{schema}");
            assert!(given.contains(reason), "{schema}: {given}");
        }
    }
    for (parameters, path, reason) in [
        (json!({"properties": {"x": false}, "required": ["x"]}), "properties.x", "no value is allowed"),
        (json!({"properties": {"a>b": {}}, "required": ["a>b"]}), "properties.a>b", "cannot be written"),
        (
            json!({"additionalProperties": {"type": "integer", "minimum": 2, "maximum": 1}}),
            "additionalProperties",
            "nsat",
        ),
        (json!({"type": "string"}), "", "no arguments"),
    ] {
        for strict in [false, true] {
            let (given, told) = refusal(&parameters, strict);
            assert_eq!(given, path, "{parameters}: {told}");
            assert!(told.contains(reason), "{parameters}: {told}");
        }
    }
}

/// Every keyword that a grammar cannot say is an error with its place where the function is strict. Where it is not, just
/// that keyword binds nothing.
#[test]
fn what_a_grammar_cannot_say_is_left_out_unless_the_function_is_strict() {
    let look = json!({"type": "string", "pattern": "^(?!a).*$"});
    for (schema, inner, reason, yes, no) in [
        // As pydantic and zod write them: the alternative stays.
        (
            json!({"anyOf": [{"type": "string", "maxLength": 5000}, {"type": "null"}]}),
            "",
            "length of 5000",
            vec!["some text", "null"],
            vec![],
        ),
        (json!({"anyOf": [look, {"type": "null"}]}), ".anyOf.0", "look-around", vec!["a", "null"], vec![]),
        (
            json!({"anyOf": [{"const": "auto"}, {"type": "string", "maxLength": 5000}]}),
            "",
            "length",
            vec!["auto", "manual"],
            vec![],
        ),
        (
            json!({"anyOf": [{"type": "string", "maxLength": 5000}, {"type": "array", "items": {"type": "integer"}}]}),
            "",
            "length",
            vec!["text", "[1]"],
            vec!["[\"a\"]"],
        ),
        (
            json!({"anyOf": [{"type": "number"}, {"type": "string", "pattern": "^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$"}]}),
            ".anyOf.1",
            "look-around",
            vec!["1.5", "text"],
            vec![],
        ),
        (json!({"type": "string", "maxLength": 4096}), "", "length", vec!["text"], vec![]),
        (json!({"type": "string", "pattern": "^[\\s\\S]{0,5000}$"}), "", "pattern takes", vec!["<p>\n</p>"], vec![]),
        (json!({"type": "string", "pattern": "^{.*}$"}), "", "repetition", vec!["{}", "a"], vec![]),
        (json!({"type": "string", "not": {"const": "a"}}), "", "\"not\"", vec!["a", "5"], vec![]),
        (json!({"type": "string", "minLength": -1}), "", "minLength must be", vec!["a"], vec![]),
        (
            json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true}),
            "",
            "uniqueItems",
            vec!["[1, 1]"],
            vec!["[\"a\"]", "a"],
        ),
        (
            json!({"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string", "maxLength": 9000}}}}),
            "",
            "length of 9000",
            vec!["[{\"a\": \"b\"}]"],
            vec!["[{\"a\": 1}]"],
        ),
        (
            json!({"type": "object", "propertyNames": {"enum": ["a"]}, "additionalProperties": {"type": "integer"}}),
            "",
            "propertyNames",
            vec!["{\"b\": 1}"],
            vec!["{\"b\": null}"],
        ),
        (
            json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/missing"}}}),
            ".properties.a",
            "missing",
            vec!["{\"a\": 1}"],
            vec!["1"],
        ),
        (json!({"type": "array", "not": {}, "x-guidance": {"lenient": true}}), "", "\"not\"", vec!["[]"], vec!["a"]),
        (json!({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}), "", "oneOf is", vec!["a"], vec![]),
        (
            json!({"anyOf": [{"type": "string", "format": "date"}, {"type": "number", "minimum": 3}]}),
            "",
            "a number beside a string",
            vec!["2024-02-29", "2.5"],
            vec!["x", "2.50"],
        ),
        (json!({"type": "any"}), "", "no type", vec!["a", "1"], vec![]),
        (json!({"type": ["integer", "file"]}), "", "no type", vec!["a", "1"], vec![]),
        (json!({"$ref": "#/properties/x"}), "", "levels deep", vec!["a"], vec![]),
        // What only llguidance's compiler finds: of it the types stay.
        (
            json!({"type": "object", "properties": {"a": {"type": "number", "multipleOf": 1e-12}}}),
            "",
            "multipleOf",
            vec!["{\"a\": 1}"],
            vec!["[]", "a"],
        ),
    ] {
        let parameters = json!({"properties": {"y": {"type": "string"}, "x": schema}});
        let (path, given) = refusal(&parameters, true);
        assert!(given.contains(reason), "{schema}: {given}");
        assert_eq!(path, format!("properties.x{inner}"), "{schema}");
        let grammar = of(tiny(), &parameters, false).unwrap_or_else(|error| panic!("{schema}: {error}"));
        takes(tiny(), &grammar, &yes, &no, &schema);
    }
    for (parameters, reason, yes, no) in [
        (json!({"patternProperties": {"^a": {"type": "integer"}}}), "patternProperties", "<parameter=b>\n1", "a"),
        (
            json!({"properties": {"u": {}, "p": {}}, "oneOf": [{"required": ["u"]}, {"required": ["p"]}]}),
            "oneOf",
            "<parameter=p>\n1",
            "</function>",
        ),
        (json!({"properties": {"u": {}}, "minProperties": 1}), "minProperties", "<parameter=u>\n1", "<parameter=v>"),
        (
            json!({"properties": {"u": {}}, "if": {"required": ["u"]}, "then": {"required": ["v"]}}),
            "\"if\"",
            "<parameter=u>\n1",
            "<parameter=v>",
        ),
    ] {
        let (path, told) = refusal(&parameters, true);
        assert!(path.is_empty() && told.contains(reason), "{parameters}: {path:?} {told}");
        let grammar = of(tiny(), &parameters, false).unwrap_or_else(|error| panic!("{parameters}: {error}"));
        let whole = format!("{yes}\n</parameter>\n</function>\n</tool_call>");
        let ends = tiny().follow(&mut grammar.clone(), &whole);
        assert_eq!(ends, Ok(vec![whole.len()]), "{parameters}");
        tiny().follow(&mut grammar.clone(), no).expect_err(no);
    }
}

/// Whether the parameter `x` may be these texts, and none of the others.
fn takes(vocabulary: &Vocabulary, grammar: &ReplyGrammar, yes: &[&str], no: &[&str], schema: &Value) {
    let rest = |text: &str| format!("<parameter=x>\n{text}\n</parameter>\n</function>\n</tool_call>");
    for text in yes {
        let ends = vocabulary.follow(&mut grammar.clone(), &rest(text));
        assert_eq!(ends, Ok(vec![rest(text).len()]), "{schema} {text:?}");
    }
    for text in no {
        vocabulary.follow(&mut grammar.clone(), &rest(text)).expect_err(&format!("{schema} {text:?}"));
    }
}

/// What frameworks write and a grammar can say, strict or not.
#[test]
fn what_frameworks_write_is_followed() {
    let root = json!({"a": {"type": "array", "items": {"type": "integer"}}, "b": {"type": "object", "properties": {"c": {"type": "boolean"}}}});
    for (schema, yes, no) in [
        (json!({"$ref": "#/properties/a"}), vec!["[1]"], vec!["[\"a\"]", "a"]),
        (json!({"$ref": "#/properties/b/properties/c"}), vec!["true"], vec!["a"]),
        (
            json!({"type": "array", "items": {"$ref": "#"}}),
            vec!["[]", "[{\"a\": [1]}]", "[{\"x\": [{}]}]"],
            vec!["[1]", "[{\"a\": [null]}]"],
        ),
        (
            json!({"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "integer"}}),
            vec!["{\"b\": 1}"],
            vec!["{\"b\": null}"],
        ),
        (json!({"type": ["str", "null"], "maxLength": 3}), vec!["abc", "null"], vec!["abcd"]),
        (json!({"type": "array", "items": {"type": ["int", "null"]}}), vec!["[1, null]"], vec!["[\"a\"]"]),
        (json!({"type": "integer", "nullable": true}), vec!["null", "4"], vec!["a", "4.5"]),
        (json!({"type": "string", "nullable": true}), vec!["null", "</b> <function=", "4"], vec![]),
        (json!({"type": "array", "items": {"type": "integer", "nullable": true}}), vec!["[null, 1]"], vec!["[\"a\"]"]),
        (json!({"properties": {"a": {"type": "integer"}}, "maxLength": 3}), vec!["{\"a\": 1}"], vec!["\"abc\"", "abc"]),
        (json!({"items": {"type": "integer"}}), vec!["[1]"], vec!["\"abc\"", "abc"]),
        (
            json!({"anyOf": [{"const": "auto"}, {"type": "number"}]}),
            vec!["auto", "0.25", "-3", "17.0", "0"],
            vec!["aut", "1.50", "1e5", "-0", "x"],
        ),
        (
            json!({"anyOf": [{"type": "string", "format": "date-time"}, {"type": "number"}]}),
            vec!["2024-02-29T10:20:30Z", "12.5"],
            vec!["12.50"],
        ),
        (
            json!({"type": "object", "properties": {"a": {}}, "unevaluatedProperties": false}),
            vec!["{\"a\": 1}"],
            vec!["{\"b\": 1}"],
        ),
        (json!({"type": "integer", "minimum": 3, "exclusiveMinimum": true}), vec!["4"], vec!["3"]),
        (
            json!({"type": "array", "items": [{"type": "integer"}], "additionalItems": {"type": "boolean"}}),
            vec!["[1, true]"],
            vec!["[true]", "[1, 1]"],
        ),
    ] {
        let mut parameters = json!({"type": "object", "properties": root.clone()});
        parameters["properties"]["x"] = schema.clone();
        for strict in [false, true] {
            let grammar = of(tiny(), &parameters, strict).unwrap_or_else(|error| panic!("{schema}: {error}"));
            takes(tiny(), &grammar, &yes, &no, &schema);
        }
    }
}

/// Lengths beside other values, filled to their end: what is accepted never fails midway.
#[test]
fn no_reply_dies_midway() {
    let html = "<div class=\"x\"> é <p>\n</p></div>".repeat(100);
    let cut = |count: usize| html.chars().take(count).collect::<String>();
    for (schema, texts) in [
        (
            json!({"anyOf": [{"type": "string", "maxLength": 100}, {"type": "null"}]}),
            vec!["null".to_owned(), "null pointer".into(), cut(100)],
        ),
        (json!({"anyOf": [{"type": "string", "maxLength": 900}, {"type": "null"}]}), vec!["null".into(), cut(900)]),
        (json!({"type": ["string", "boolean"], "maxLength": 50}), vec!["true".into(), "truer".into(), cut(50)]),
        (json!({"type": ["string", "integer"], "maxLength": 30}), vec!["5".into(), "5 apples".into(), cut(30)]),
        (json!({"type": ["string", "integer"], "minLength": 50}), vec!["5".into(), cut(80)]),
        (json!({"type": ["string", "integer"], "minLength": 50, "minimum": 3}), vec!["5".into(), cut(80)]),
        (
            json!({"type": ["string", "array"], "maxLength": 50, "items": {"type": "integer"}}),
            vec!["[1, 2]".into(), cut(50), format!("[{}1]", "1, ".repeat(50))],
        ),
    ] {
        let parameters = json!({"properties": {"x": schema}});
        for vocabulary in both() {
            let grammar = of(vocabulary, &parameters, false).unwrap_or_else(|error| panic!("{schema}: {error}"));
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            takes(vocabulary, &grammar, &texts, &[], &schema);
        }
    }
    // Within JSON as well.
    let schema = json!({"type": "array", "items": {"type": "string", "maxLength": 2000}});
    let grammar = of(real(), &json!({"properties": {"x": schema}}), true).expect("it fits");
    let texts = [2000, 2001].map(|count| json!([cut(count)]).to_string());
    takes(real(), &grammar, &[&texts[0]], &[&texts[1]], &schema);
    let text = |length: usize| json!({"type": "string", "maxLength": length});
    let two = json!({"properties": {"a": text(600), "b": text(599), "c": {"type": "array", "items": text(598)}}, "required": ["a", "b"]});
    let (path, reason) = refusal(&two, true);
    assert!(path == "properties.b" && reason.contains("a length of 599"), "{path}: {reason}");
    let grammar = of(real(), &two, false).expect("looser");
    let [a, b] = [cut(600), cut(1200)];
    let whole =
        format!("<parameter=a>\n{a}\n</parameter>\n<parameter=b>\n{b}\n</parameter>\n</function>\n</tool_call>");
    assert_eq!(real().follow(&mut grammar.clone(), &whole), Ok(vec![whole.len()]));
    let whole = format!("<parameter=a>\n{b}");
    real().follow(&mut grammar.clone(), &whole).expect_err("the first is held to its length");
}

/// Of two functions of one name the first counts, as where calls are read.
#[test]
fn the_first_of_two_functions_of_one_name_counts() {
    let function = |kind: &str| json!({"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {"type": kind}}}}});
    let definitions = [function("integer"), function("boolean")];
    let calls = ForcedCalls { definitions: &definitions, function: None, parallel: false };
    let grammar = tiny().grammars.calls(&calls, "<tool_call>\n<function=f>\n").expect("a grammar");
    takes(tiny(), &grammar, &["1"], &["true"], &definitions[0]);
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

/// A closing tag that begins a line ends a text, also where the model would end the call without what is required, or go on
/// with a parameter that there is not: it is never a part of the text, with which the model would not come to an end.
#[test]
fn a_closing_tag_on_a_line_of_its_own_ends_a_text() {
    let parameters =
        json!({"required": ["x", "y"], "properties": {"x": {"type": "string"}, "y": {"enum": ["a", "b"]}}});
    let (close, rest) = ("\n</parameter>", "\n<parameter=y>\na\n</parameter>\n</function>\n</tool_call>");
    let quoted = "<tool_call>\n<function=g>\n<parameter=z>\n1\n</parameter>\n</function>\n</tool_call>";
    for vocabulary in both() {
        let grammar = of(vocabulary, &parameters, true).expect("a grammar");
        let follow = |text: &str| vocabulary.follow(&mut grammar.clone(), &format!("<parameter=x>\n{text}"));
        for text in ["Oslo", "", "a </parameter> b", "a\n </function>\nb", quoted] {
            follow(&format!("{text}{close}{rest}")).unwrap_or_else(|error| panic!("{text:?}: {error}"));
            for next in ["\n</", "\n\n", "\n<parameter=x", "\n<parameter=z", "\n<function", "\na", " ", "a"] {
                follow(&format!("{text}{close}{next}")).expect_err(&format!("{text:?} {next:?}"));
            }
        }
        for text in ["</parameter>", "Oslo\n</function>", "</function>", &format!("{quoted}\n</function>")] {
            follow(text).expect_err(text);
        }
    }
}

/// What looks like a reference and is data, and references with escapes.
#[test]
fn references_are_followed_where_they_are_meant() {
    let parameters = json!({"required": ["x"], "properties": {"x": {"type": "array", "items": {"$ref": "#/$defs/My%20T"},
        "default": {"$ref": "foo"}, "examples": [{"$ref": "#/bar"}]}}, "$defs": {"My T": {"type": "integer"}}});
    let definitions = [json!({"type": "function", "function": {"name": "f", "parameters": parameters}})];
    let calls = ForcedCalls { definitions: &definitions, function: None, parallel: false };
    let grammar = tiny().grammars.calls(&calls, "<tool_call>\n<function=f>\n").expect("a grammar");
    let follow = |value: &str| {
        let text = format!("<parameter=x>\n{value}\n</parameter>\n</function>\n</tool_call>");
        tiny().follow(&mut grammar.clone(), &text)
    };
    follow("[1, 2]").expect("integers");
    follow("[\"a\"]").expect_err("no string");
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
        // What cannot be followed would be left out, and arguments not be of the schema.
        let function = json!({"name": "f", "parameters": parameters, "strict": true});
        let definitions = [json!({"type": "function", "function": function})];
        let calls = ForcedCalls { definitions: &definitions, function: None, parallel: true };
        let primed = "<tool_call>\n<function=f>\n";
        let mut walk = Walk::new(seed, &vocabulary.tokenizer, &vocabulary.stops);
        let grammar = match vocabulary.grammars.calls(&calls, primed) {
            Err(GrammarError::Parameter { reason, .. }) if ["a number beside a string", "a length of"].iter().any(|known| reason.contains(known)) => return Ok(()),
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

/// What ends a value, and where.
const CLOSE: &str = "\n</parameter>\n<";

/// Whether the parser may tell such a text and the grammar not: a text that is held to something has no tags; in one that is
/// free none are too near each other, and a line begins with `</parameter>` or `</function>` only in a quoted call.
fn excepted(text: &str, bounded: bool) -> bool {
    const NEAR: [&str; 4] = [
        // The parser looks whether the function is known.
        r"</parameter>[ \t\r\n]*<function=",
        // It takes a name to be anything up to its end.
        r"<function=[^>\n]*<",
        r"<function=>",
        r"</function>[ \t\r]*<function=",
    ];
    if bounded {
        return ["</parameter>", "</tool_call>", "<function="].iter().any(|tag| text.contains(tag));
    }
    const QUOTED: &str = r"(?s)<function=[^<>\n]+>\r?\n[ \t]*(<parameter=.*?)?</function>";
    let expression = |text: &str| regex::Regex::new(text).expect("an expression");
    // What follows a quoted call on its line is taken to begin one.
    let outside = expression(QUOTED).replace_all(text, "");
    expression("(?m)^</(parameter|function)>").is_match(&outside)
        || NEAR.iter().any(|near| expression(near).is_match(text))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Field case 20: a text about calls that the grammar lets through is read back byte for byte; and it lets through what
    /// the parser can tell, but for what is [excepted].
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
            // A line within may be the value's end, and what follows another parameter.
            let x = read.as_ref().and_then(|calls| serde_json::from_str::<Value>(&calls[0]).ok()?["x"].as_str().map(str::to_owned));
            let closed = format!("{text}{CLOSE}");
            let ends_within = closed.match_indices(CLOSE).any(|(end, _)| end < text.len() && x.as_deref() == Some(&text[..end]));
            prop_assert!(!fits || exact || ends_within, "{text:?} is read as {read:?}");
            prop_assert!(fits || !exact || excepted(&text, bounded), "{text:?} could be told");
        }
    }
}

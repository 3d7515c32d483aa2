//! What the schemas of forced calls bind: each parameter is held to all of its schema that a grammar can say, and what cannot
//! be followed is refused or left out.

mod common;
mod one_function;
mod vocabulary;
mod walk;

use lily_chat::{ForcedCalls, GrammarError};
use one_function::{of, refusal, takes};
use serde_json::{Value, json};
use vocabulary::{both, tiny};

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
        (json!({"type": "string", "maxLength": 6000}), "", "length", vec!["text"], vec![]),
        (
            json!({"type": "string", "pattern": "^[\\s\\S]{0,6000}$"}),
            "",
            "length of 6000 takes",
            vec!["<p>\n</p>"],
            vec![],
        ),
        (json!({"type": "string", "pattern": "^{.*}$"}), "", "repetition", vec!["{}", "a"], vec![]),
        (json!({"enum": ["5", 5, "a"]}), "", "read as another", vec!["5", "a"], vec!["b"]),
        (
            json!({"anyOf": [{"enum": ["5", "a"]}, {"type": "integer"}]}),
            "",
            "read as another",
            vec!["5", "6", "a"],
            vec!["b"],
        ),
        (json!({"anyOf": [{"const": "5"}, {"type": "integer"}]}), "", "read as another", vec!["5", "6"], vec!["b"]),
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
            json!({"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string", "maxLength": 20_000}}}}),
            "",
            "length of 20000",
            vec!["[{\"a\": \"b\"}]"],
            vec!["[{\"a\": 1}]"],
        ),
        (
            json!({"additionalProperties": {"type": "integer"}, "minProperties": 2}),
            "",
            "minProperties of 2",
            vec!["{\"a\": 1, \"a\": 1}"],
            vec!["{\"a\": null}"],
        ),
        (
            json!({"type": "object", "propertyNames": {"maxLength": 3}, "additionalProperties": {"type": "integer"}}),
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
        (
            json!({"type": "object", "properties": {"a": {"type": "number", "multipleOf": 1e-12}}}),
            ".properties.a",
            "multipleOf",
            vec!["{\"a\": 1}"],
            vec!["{\"a\": \"b\"}", "[]", "a"],
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "number", "minimum": 1e30}}}),
            ".properties.a",
            "minimum is supported up to",
            vec!["{\"a\": 1}"],
            vec!["{\"a\": \"b\"}"],
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "minProperties": 1}),
            "",
            "minProperties is supported only",
            vec!["{}", "{\"b\": 1}"],
            vec!["{\"a\": \"b\"}"],
        ),
        // What only llguidance's compiler finds: of it the types stay.
        (
            json!({"type": "object", "patternProperties": {"^x-": {"type": "integer"}, "^[a-z-]+$": {"type": "integer"}}}),
            "",
            "not disjoint",
            vec!["{\"x-a\": 1}", "{\"x-a\": \"b\"}"],
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
            json!({"properties": {"u": {}, "v": {}}, "if": {"required": ["u"]}, "then": {"required": ["v"]}}),
            "\"if\"",
            "<parameter=u>\n1",
            "<parameter=w>",
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

/// What is left out makes nothing narrower: where it said what another keyword does not bind, or what else there may be, that
/// is open.
#[test]
fn what_is_left_out_takes_nothing_else_away() {
    let integer = json!({"type": "integer"});
    for (parameters, yes, no) in [
        (json!({"patternProperties": {"^a": integer}, "additionalProperties": false}), "ab", None),
        (
            json!({"properties": {"u": {}}, "patternProperties": {"^a": integer}, "additionalProperties": false}),
            "ab",
            None,
        ),
        (json!({"properties": {"u": {}}, "patternProperties": {"^a": integer}}), "ab", None),
        (json!({"patternProperties": {"^a": integer}, "additionalProperties": false, "required": ["ab"]}), "ab", None),
        // Another's own still binds.
        (
            json!({"properties": {"u": {}}, "additionalProperties": integer, "allOf": [
                {"patternProperties": {"^a": integer}, "additionalProperties": false}]}),
            "ab",
            Some("<parameter=ab>\nx"),
        ),
        (json!({"patternProperties": ["^a"], "properties": {"u": {}}, "additionalProperties": false}), "ab", None),
        (json!({"properties": ["u"], "additionalProperties": false}), "u", None),
        (json!({"properties": {"u": {}}, "enum": [{"ab": 1}]}), "ab", None),
        (json!({"properties": {"u": {}}, "if": {"required": ["u"]}, "then": {"required": ["v"]}}), "v", None),
        (json!({"properties": {"u": {}}, "if": {}, "then": {"properties": {"v": integer}}}), "v", None),
        (json!({"properties": {"u": {}}, "dependentRequired": {"u": ["v"]}}), "v", None),
        (json!({"properties": {"u": {}}, "dependentSchemas": {"u": {"$ref": "#/$defs/v"}}}), "v", None),
        (
            json!({"properties": {"u": {}}, "dependentSchemas": {"u": {"properties": {"v": {}}}}, "unevaluatedProperties": false}),
            "v",
            None,
        ),
        (
            json!({"properties": {"u": {}}, "allOf": vec![json!({"anyOf": [{"properties": {"v": {}}}, {}, {}, {}]}); 5]}),
            "v",
            None,
        ),
        // The conditions of what is declared.
        (
            json!({"properties": {"u": {}, "v": {}}, "allOf": [
                {"if": {"required": ["u"]}, "then": {"required": ["v"], "properties": {"v": {"type": ["integer", "null"]}}}}]}),
            "v",
            Some("<parameter=w>"),
        ),
        (
            json!({"properties": {"u": {}, "v": {}}, "dependencies": {"u": ["v"]}, "additionalProperties": false}),
            "v",
            Some("<parameter=w>"),
        ),
    ] {
        refusal(&parameters, true);
        let grammar = of(tiny(), &parameters, false).unwrap_or_else(|error| panic!("{parameters}: {error}"));
        let whole = format!("<parameter={yes}>\n1\n</parameter>\n</function>\n</tool_call>");
        assert_eq!(tiny().follow(&mut grammar.clone(), &whole), Ok(vec![whole.len()]), "{parameters}");
        if let Some(no) = no {
            tiny().follow(&mut grammar.clone(), no).expect_err(no);
        }
    }
    for (schema, yes) in [
        (json!({"type": "object", "properties": 5, "additionalProperties": false}), "{\"a\": 1}"),
        (json!({"type": "array", "prefixItems": 5, "items": false}), "[1]"),
        (
            json!({"type": "object", "dependentSchemas": {"a": {"properties": {"b": {}}}}, "unevaluatedProperties": false}),
            "{\"b\": 1}",
        ),
    ] {
        let parameters = json!({"properties": {"x": schema}});
        refusal(&parameters, true);
        let grammar = of(tiny(), &parameters, false).unwrap_or_else(|error| panic!("{schema}: {error}"));
        takes(tiny(), &grammar, &[yes], &[], &schema);
    }
}

/// A string that nothing but its looks keeps out of a call is left out as a keyword is: where the function is strict it is
/// refused, else the parameter may be any text.
#[test]
fn strings_that_look_like_what_is_beside_them_are_not_dropped_silently() {
    let array = json!({"type": "array", "items": {"type": "integer"}});
    for (schema, text) in [
        (json!({"anyOf": [{"const": "[all]"}, array]}), "[all]"),
        (json!({"anyOf": [{"type": "string", "pattern": "^\\[.*\\]$"}, array]}), "[all]"),
        (json!({"anyOf": [{"enum": ["{x"]}, {"type": "object", "required": ["a"]}]}), "{x"),
        (json!({"anyOf": [{"enum": ["none", "[all]"]}, array]}), "[all]"),
    ] {
        let parameters = json!({"properties": {"x": schema}});
        let (path, reason) = refusal(&parameters, true);
        assert!(path == "properties.x" && reason.contains("cannot be told"), "{schema}: {path} {reason}");
        let grammar = of(tiny(), &parameters, false).unwrap_or_else(|error| panic!("{schema}: {error}"));
        takes(tiny(), &grammar, &[text], &[], &schema);
    }
    // Of what no string is nothing is lost.
    let empty = json!({"anyOf": [{"type": "string", "pattern": "^a{3}$", "maxLength": 2}, array]});
    let grammar = of(tiny(), &json!({"properties": {"x": empty}}), true).expect("an array");
    takes(tiny(), &grammar, &["[1]"], &["a", "[\"a\"]"], &empty);
}

/// Where only all parameters together are too much, those that need not be followed are free.
#[test]
fn too_much_together_is_left_out_unless_the_functions_are_strict() {
    let object = |index: usize| {
        let names = (0..240).map(|name| {
            (
                format!("n{name}_{index}"),
                json!({"type": "array", "items": {"type": "integer", "maximum": name * index}}),
            )
        });
        json!({"type": "object", "properties": names.collect::<serde_json::Map<_, _>>()})
    };
    let function = |name: &str, parts: std::ops::Range<usize>, strict: bool| {
        let properties: serde_json::Map<String, Value> = parts
            .map(|index| (format!("p{index}"), object(index)))
            .chain([("x".into(), json!({"enum": ["a"]}))])
            .collect();
        json!({"type": "function", "function": {"name": name, "strict": strict, "parameters": {"properties": properties}}})
    };
    let grammar = |strict: [bool; 2]| {
        let mut definitions = vec![function("g", 0..5, strict[0]), function("f", 5..15, strict[1])];
        definitions.extend((2..7).map(|index| function(&format!("f{index}"), 10 * index..10 * index + 10, strict[1])));
        let calls = ForcedCalls { definitions: &definitions, function: None, parallel: false };
        tiny().grammars.calls(&calls, "<tool_call>\n<function")
    };
    let error = grammar([true, true]).expect_err("too much");
    assert!(matches!(&error, GrammarError::Refused(reason) if reason.contains("all together")), "{error}");
    let loose = grammar([true, false]).expect("looser");
    let whole = |function: &str, parameter: &str, value: &str| {
        format!("={function}>\n<parameter={parameter}>\n{value}\n</parameter>\n</function>\n</tool_call>")
    };
    for (function, parameter, value) in [
        ("g", "p3", "{\"n1_3\": [1]}"),
        ("g", "x", "a"),
        ("f", "p10", "{\"n1_10\": []}"),
        ("f6", "p69", "b"),
        ("f6", "x", "a"),
    ] {
        let whole = whole(function, parameter, value);
        assert_eq!(tiny().follow(&mut loose.clone(), &whole), Ok(vec![whole.len()]), "{whole}");
    }
    for (function, parameter, value) in
        [("g", "p3", "b"), ("g", "p3", "{\"n1_3\": [7]}"), ("g", "x", "b"), ("f6", "x", "b")]
    {
        let whole = whole(function, parameter, value);
        tiny().follow(&mut loose.clone(), &whole).expect_err(&whole);
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

/// As many properties, alternatives and functions as are taken: no reply dies of them midway.
#[test]
fn what_may_come_side_by_side_is_bounded() {
    let end = "\n</parameter>\n</function>\n</tool_call>";
    for (count, fits) in [(1000, true), (1001, false)] {
        let names = (0..count).map(|index| (format!("p{index}"), json!({"type": "boolean"})));
        let properties: serde_json::Map<String, Value> = names.collect();
        let last = count - 1;
        let option = |index: usize| json!({"properties": {format!("q{index}"): {"type": "integer"}}, "required": [format!("q{index}")]});
        let options: Vec<Value> = (0..count).map(|index| json!({"type": "object", "allOf": [option(index)]})).collect();
        let object = json!({"type": "object", "properties": properties, "additionalProperties": false});
        for (parameters, value) in [
            (json!({"properties": {"x": object}}), format!("<parameter=x>\n{{\"p{last}\": true}}")),
            (object, format!("<parameter=p{last}>\ntrue")),
            (
                json!({"properties": {"x": {"type": "array", "items": {"anyOf": options}}}}),
                format!("<parameter=x>\n[{{\"q{last}\": 1}}]"),
            ),
        ] {
            let grammar = of(tiny(), &parameters, true);
            assert_eq!(grammar.is_ok(), fits, "{:?}", grammar.err());
            let whole = format!("{value}{end}");
            if let Ok(mut grammar) = grammar {
                assert_eq!(tiny().follow(&mut grammar, &whole), Ok(vec![whole.len()]));
            }
        }
        let function = |index: usize| json!({"type": "function", "function": {"name": format!("f{index}")}});
        let definitions: Vec<Value> = (0..count).map(function).collect();
        let calls = ForcedCalls { definitions: &definitions, function: None, parallel: false };
        let grammar = tiny().grammars.calls(&calls, "<tool_call>\n<function");
        assert_eq!(grammar.is_ok(), fits, "{:?}", grammar.err());
        if let Ok(mut grammar) = grammar {
            tiny().follow(&mut grammar, &format!("=f{last}>\n</function>\n</tool_call>")).expect("a call");
        }
    }
}

/// The parser has all alternatives of a value at the same time, where one begins. Otherwise the reply would die there.
#[test]
fn alternatives_have_no_more_properties_than_a_reply_may() {
    let object = |index: usize, count: usize| {
        let names = (0..count).map(|name| (format!("o{index}_{name}"), json!({"type": "integer"})));
        json!({"type": "object", "properties": names.collect::<serde_json::Map<_, _>>()})
    };
    let begin = "<parameter=x>\n{";
    for (alternatives, properties, fits) in [(20, 100, true), (2, 1000, true), (21, 100, false), (300, 10, false)] {
        let all: Vec<Value> = (0..alternatives).map(|index| object(index, properties)).collect();
        let reference = json!({"$ref": "#/$defs/O"});
        let many = json!({"anyOf": vec![reference; alternatives], "$defs": {"O": object(0, properties)}});
        let nested = json!({"properties": {"x": {"anyOf": all}}});
        for (parameters, begin) in [
            (nested, begin.to_owned()),
            (json!({"properties": {"x": {"anyOf": many["anyOf"]}}, "$defs": many["$defs"]}), begin.to_owned()),
            (json!({"anyOf": all}), format!("<parameter=o1_{}>\n5", properties - 1)),
        ] {
            let grammar = of(tiny(), &parameters, true);
            // More alternatives of the parameters themselves are refused before.
            assert_eq!(grammar.is_ok(), fits, "{alternatives} of {properties}: {:?}", grammar.err());
            let Ok(mut grammar) = grammar else { continue };
            tiny().follow(&mut grammar, &format!("{begin}\n")).expect("it begins");
        }
    }
}

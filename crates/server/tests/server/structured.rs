//! Replies held to a grammar, over HTTP.

use crate::client::{chat, post};
use crate::gather::gather;
use crate::serving::{Speaker, model};
use serde_json::{Value, json};

fn ask(changes: Value) -> Value {
    let mut request =
        json!({"messages": [{"role": "user", "content": "What is 38 + 57?"}], "temperature": 0, "max_tokens": 600});
    for (name, value) in changes.as_object().expect("an object") {
        request[name] = value.clone();
    }
    request
}

/// Nothing in it can go on for long, so that the embedded model comes to an end.
fn schema() -> Value {
    json!({"type": "object", "required": ["answer", "unit", "note", "list"], "additionalProperties": false, "properties": {
        "answer": {"type": "integer", "minimum": 0, "maximum": 999}, "unit": {"enum": ["kg", "m", null]},
        "note": {"type": "string", "maxLength": 12},
        "list": {"type": "array", "items": {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"],
            "additionalProperties": false}, "maxItems": 3}}})
}

fn strict(schema: &Value) -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "reply", "strict": true, "schema": schema}})
}

/// The JSON that a choice's content is.
fn content(choice: &Value) -> Value {
    let text = choice["message"]["content"].as_str().expect("content");
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text:?}"))
}

fn assert_valid(choice: &Value, schema: &Value) {
    assert_eq!(choice["finish_reason"], "stop", "{choice}");
    jsonschema::validate(schema, &content(choice)).unwrap_or_else(|error| panic!("{error}: {choice}"));
}

/// Field cases 29 and 30: with thinking and without, the content is what was asked for, and the reasoning is none of it.
#[test]
fn a_strict_schema_is_satisfied_streamed_or_not() {
    for thinking in [true, false] {
        let request = ask(json!({"response_format": strict(&schema()), "enable_thinking": thinking}));
        let whole = chat(model(), &request).ok()["choices"][0].take();
        assert_valid(&whole, &schema());
        let reasoning = whole["message"].get("reasoning_content").and_then(Value::as_str);
        assert_eq!(reasoning.is_some_and(|text| text.contains("carry 1")), thinking, "{whole}");
        assert_eq!(gather(model(), &request, 0).0, whole);
    }
}

#[test]
fn every_choice_is_bound_and_is_what_it_is_alone() {
    let warm = json!({"response_format": strict(&schema()), "enable_thinking": false, "temperature": 1.0, "seed": 11});
    let mut several = ask(warm.clone());
    several["n"] = json!(3);
    let choices = chat(model(), &several).ok()["choices"].take();
    for (index, choice) in choices.as_array().expect("choices").iter().enumerate() {
        assert_valid(choice, &schema());
        let mut alone = ask(warm.clone());
        alone["seed"] = json!(11 + index);
        assert_eq!(chat(model(), &alone).ok()["choices"][0]["message"], choice["message"]);
    }
    assert_ne!(choices[0]["message"], choices[1]["message"], "they are warm");
}

#[test]
fn the_words_of_other_clients_bind_too() {
    let object = json!({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
        "additionalProperties": false});
    for words in [
        json!({"structured_outputs": {"json": object}}),
        json!({"guided_json": object.to_string()}),
        json!({"json_schema": object}),
        json!({"response_format": {"type": "json_object", "schema": object}}),
    ] {
        let mut request = ask(words);
        request["enable_thinking"] = json!(false);
        assert_valid(&chat(model(), &request).ok()["choices"][0], &object);
    }
    let complete = |changes: Value| {
        let mut request = json!({"prompt": "The number is", "temperature": 0, "max_tokens": 100});
        for (name, value) in changes.as_object().expect("an object") {
            request[name] = value.clone();
        }
        let choice = post(model(), "/v1/completions", &request).ok()["choices"][0].take();
        assert_eq!(choice["finish_reason"], "stop", "{choice}");
        choice["text"].as_str().expect("text").to_owned()
    };
    let code = complete(json!({"guided_regex": "[A-F]{2}-[0-9]{3}"}));
    assert!(code.len() == 6 && code.as_bytes()[2] == b'-', "{code:?}");
    assert!(["red", "green"].contains(&complete(json!({"structured_outputs": {"choice": ["red", "green"]}})).as_str()));
    assert_eq!(complete(json!({"grammar": "start: \"a\"{3} B?\nB: /b{2}/"})).trim_end_matches('b'), "aaa");
}

#[test]
fn the_words_of_other_servers_bind_on_every_endpoint() {
    let question = json!([{"role": "user", "content": "Hello!"}]);
    let choices = json!({"choice": ["red", "green"]});
    let message = json!({"messages": question, "max_tokens": 100, "structured_outputs": choices});
    let message = post(model(), "/v1/messages", &message).ok();
    assert!(["red", "green"].contains(&message["content"][0]["text"].as_str().expect("text")), "{message}");
    let response = json!({"input": question, "max_output_tokens": 100, "structured_outputs": choices,
        "reasoning": {"effort": "none"}});
    let response = post(model(), "/v1/responses", &response).ok();
    let text = &response["output"][0]["content"][0]["text"];
    assert!(["red", "green"].contains(&text.as_str().expect("text")), "{response}");
}

#[test]
fn counting_needs_no_grammar() {
    let request = ask(json!({"response_format": strict(&json!({"type": "string", "not": {}}))}));
    chat(model(), &request).error(400);
    post(model(), "/apply-template", &request).ok();
}

#[test]
fn a_reply_that_is_cut_has_the_reason_length() {
    let request = ask(json!({"response_format": strict(&schema()), "enable_thinking": false, "max_tokens": 4}));
    let cut = chat(model(), &request).ok()["choices"][0].take();
    assert_eq!(cut["finish_reason"], "length");
    assert!(cut["message"]["content"].as_str().expect("text").starts_with('{'), "{cut}");
    let thought = ask(json!({"response_format": strict(&schema()), "max_tokens": 4}));
    let cut = chat(model(), &thought).ok()["choices"][0].take();
    assert_eq!((&cut["message"]["content"], &cut["finish_reason"]), (&json!(""), &json!("length")));
}

/// Field case 24, and the arguments are of the declared kinds.
#[test]
fn a_forced_call_is_of_the_declared_parameters() {
    let parameters = json!({"type": "object", "required": ["on", "level", "color"], "properties": {
        "on": {"type": "boolean"}, "level": {"type": "integer", "minimum": 1, "maximum": 9},
        "color": {"type": "string", "enum": ["red", "green"]},
        "scene": {"type": "object", "properties": {"x": {"type": "null"}}, "additionalProperties": false}}});
    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    for choice in [json!("required"), json!({"type": "function", "function": {"name": "set_light"}})] {
        let request = ask(json!({"tools": [tool("set_light"), tool("get_light")], "tool_choice": choice,
            "parallel_tool_calls": false, "messages": [{"role": "user", "content": "Good morning!"}]}));
        let whole = chat(model(), &request).ok()["choices"][0].take();
        let (streamed, _) = gather(model(), &request, 0);
        let [one, other] = [&whole, &streamed].map(|choice| {
            assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
            let calls = choice["message"]["tool_calls"].as_array().expect("calls").as_slice();
            let [call] = calls else { panic!("one call: {calls:?}") };
            call["function"].clone()
        });
        assert_eq!(one, other);
        assert!(["set_light", "get_light"].contains(&one["name"].as_str().expect("a name")));
        let arguments: Value = serde_json::from_str(one["arguments"].as_str().expect("text")).expect("JSON");
        jsonschema::validate(&parameters, &arguments).unwrap_or_else(|error| panic!("{error}: {arguments}"));
    }
}

/// Each argument is held to all of its schema, however the model goes on.
#[test]
fn a_forced_call_is_held_to_every_keyword() {
    let parameters = json!({"type": "object", "required": ["code", "note", "when", "count"], "additionalProperties": false,
        "properties": {
            "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}, "note": {"type": "string", "minLength": 2, "maxLength": 12},
            "when": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]}, "unit": {"$ref": "#/$defs/Unit"},
            "count": {"type": "integer", "minimum": 3, "maximum": 40}, "never": false},
        "$defs": {"Unit": {"enum": ["kg", "m"]}}});
    let validator = jsonschema::options().should_validate_formats(true).build(&parameters).expect("a schema");
    let tools = json!([{"type": "function", "function": {"name": "record", "parameters": parameters}}]);
    for seed in 0..4 {
        let request = ask(json!({"tools": tools, "tool_choice": "required", "parallel_tool_calls": false,
            "temperature": 1.2, "seed": seed, "messages": [{"role": "user", "content": "Good morning!"}]}));
        let whole = chat(model(), &request).ok()["choices"][0].take();
        assert_eq!(whole["finish_reason"], "tool_calls", "{whole}");
        let arguments = whole["message"]["tool_calls"][0]["function"]["arguments"].as_str().expect("text").to_owned();
        let arguments: Value = serde_json::from_str(&arguments).expect("JSON");
        assert!(validator.is_valid(&arguments), "{arguments}");
    }
}

/// A text ends where the model closes it, also where it would end the call without what is still required.
#[test]
fn a_forced_call_has_all_that_is_required_and_no_tag_in_its_texts() {
    let city = json!({"type": "string"});
    for properties in [
        json!({"city": city, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}),
        json!({"city": city, "note": {"type": "string"}, "days": {"type": "integer"}}),
    ] {
        let required: Vec<&String> = properties.as_object().expect("an object").keys().collect();
        let parameters = json!({"type": "object", "properties": properties, "required": required});
        let tools = json!([{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}]);
        for seed in 0..4 {
            let request = ask(json!({"tools": tools, "tool_choice": "required", "parallel_tool_calls": false,
                "temperature": if seed == 0 { 0.0 } else { 1.0 }, "seed": seed,
                "messages": [{"role": "user", "content": "What is the weather in Oslo?"}]}));
            let whole = chat(model(), &request).ok()["choices"][0].take();
            assert_eq!(whole["finish_reason"], "tool_calls", "{whole}");
            let arguments = whole["message"]["tool_calls"][0]["function"]["arguments"].as_str().expect("text");
            let read: Value = serde_json::from_str(arguments).expect("JSON");
            jsonschema::validate(&parameters, &read).unwrap_or_else(|error| panic!("{error}: {arguments}"));
            assert!(!arguments.contains("</"), "{arguments}");
        }
    }
}

/// On every endpoint, with the place that the client knows it by.
#[test]
fn a_parameter_that_no_call_can_be_held_to_is_a_400_that_names_it() {
    for (schema, strict, reason) in [
        (
            json!({"type": "string", "minLength": 5, "maxLength": 2}),
            false,
            "minLength (5) is greater than maxLength (2).",
        ),
        (json!({"type": "string", "enum": [1, 2]}), false, "no value is of all the types"),
        (json!({"type": "string", "const": "a\n</parameter>\n</function>"}), false, "can stand in a call"),
        (json!({"type": "array", "items": {}, "uniqueItems": true}), true, "uniqueItems"),
    ] {
        let parameters = json!({"type": "object", "properties": {"ok": {"type": "string"}, "odd": schema}});
        let flat = json!({"type": "function", "name": "f", "parameters": parameters, "strict": strict});
        let function =
            json!({"type": "function", "function": {"name": "f", "parameters": parameters, "strict": strict}});
        let messages = json!([{"role": "user", "content": "Hi"}]);
        let said = |path: &str, message: &str| {
            let begin = format!("'{path}' cannot bind a call: ");
            assert!(message.starts_with(&begin) && message.contains(reason), "{message}");
        };
        let free = json!({"tools": [function], "messages": messages, "max_tokens": 4});
        chat(model(), &free).ok();
        let path = "tools[0].function.parameters.properties.odd";
        for choice in [json!("required"), json!({"type": "function", "function": {"name": "f"}})] {
            let mut forced = free.clone();
            forced["tool_choice"] = choice;
            let (param, _, message) = chat(model(), &forced).error(400);
            assert_eq!(param, path);
            said(path, &message);
        }
        let path = "tools[1].parameters.properties.odd";
        let request = json!({"input": "Hi", "tools": [{"type": "web_search"}, flat], "tool_choice": "required"});
        let (param, _, message) = post(model(), "/v1/responses", &request).error(400);
        assert_eq!(param, path);
        said(path, &message);
        let request = json!({"model": "lily", "max_tokens": 9, "messages": messages, "tool_choice": {"type": "any"},
            "tools": [{"name": "f", "input_schema": parameters, "strict": strict}]});
        let refused = post(model(), "/v1/messages", &request);
        assert_eq!(refused.status, 400, "{}", refused.text());
        let path = "tools[0].input_schema.properties.odd";
        said(
            path,
            refused.json()["error"]["message"].as_str().expect("a message").trim_start_matches(&format!("{path}: ")),
        );
    }
}

/// A tool that the conversation defines is held to its parameters as one of the head is.
#[test]
fn a_tool_defined_amid_a_conversation_can_be_strict() {
    let schema = json!({"type": "array", "items": {}, "uniqueItems": true});
    let define = |strict: Value| {
        let definition = json!({"name": "f", "strict": strict,
            "input_schema": {"type": "object", "properties": {"odd": schema}}});
        json!({"type": "tool_addition", "tool": {"type": "tool_definition", "definition": definition}})
    };
    let head = json!({"name": "f", "strict": true, "input_schema": {"type": "object", "properties": {"odd": schema}}});
    let ask = |blocks: Value| {
        json!({"model": "lily", "max_tokens": 2, "tools": [head], "tool_choice": {"type": "any"},
            "messages": [{"role": "user", "content": "Hi"}, {"role": "system", "content": blocks}]})
    };
    for blocks in [json!([define(json!(true))]), json!([define(Value::Null), define(json!(true))])] {
        let refused = post(model(), "/v1/messages", &ask(blocks.clone()));
        let message = refused.json()["error"]["message"].as_str().expect("a message").to_owned();
        let last = blocks.as_array().map_or(0, Vec::len) - 1;
        let path = format!("messages[1].content[{last}].tool.definition.input_schema.properties.odd");
        assert!(refused.status == 400 && message.contains(&path) && message.contains("uniqueItems"), "{message}");
    }
    post(model(), "/v1/messages", &ask(json!([define(json!(true)), define(json!(false))]))).ok();
}

/// The same on every endpoint: without `strict` a keyword that no grammar can say binds nothing.
#[test]
fn a_function_that_is_not_strict_can_be_called_all_the_same() {
    let parameters = json!({"type": "object", "required": ["x"],
        "properties": {"x": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2, "uniqueItems": true}}});
    let messages = json!([{"role": "user", "content": "Hi"}]);
    for strict in [json!(false), Value::Null] {
        let flat = json!({"type": "function", "name": "f", "parameters": parameters, "strict": strict});
        let function =
            json!({"type": "function", "function": {"name": "f", "parameters": parameters, "strict": strict}});
        let request = json!({"messages": messages, "max_tokens": 2, "tools": [function], "tool_choice": "required"});
        chat(model(), &request).ok();
        let request = json!({"input": "Hi", "max_output_tokens": 16, "tools": [flat], "tool_choice": "required"});
        post(model(), "/v1/responses", &request).ok();
        let request = json!({"model": "lily", "max_tokens": 2, "messages": messages, "tool_choice": {"type": "any"},
            "tools": [{"name": "f", "input_schema": parameters, "strict": strict}]});
        post(model(), "/v1/messages", &request).ok();
    }
}

#[test]
fn what_cannot_be_followed_is_a_400_that_says_why() {
    let format = |schema: Value| json!({"response_format": strict(&schema)});
    let path = "response_format.json_schema.schema";
    for (changes, param, reason) in [
        (format(json!({"type": "string", "not": {}})), path, "not"),
        (format(json!({"type": "integer", "minimum": 2, "maximum": 1})), path, "nsatisfiable"),
        (format(json!({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})), path, "without end"),
        (
            format(
                json!({"type": "object", "properties": {"of": {"type": "array", "items": {"type": "string", "not": {}}}}}),
            ),
            "response_format.json_schema.schema.properties.of.items",
            "not",
        ),
        (
            format(
                json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 2, "maximum": 1}}, "required": ["n"]}),
            ),
            "response_format.json_schema.schema.properties.n",
            "properties.n' cannot be used: Unsatisfiable schema: minimum",
        ),
        (format(json!({"type": "object", "additionalProperties": false, "required": ["a"]})), path, ""),
        (json!({"guided_regex": "("}), "guided_regex", ""),
        (json!({"structured_outputs": {"grammar": "root ::= \"a\""}}), "structured_outputs.grammar", "GBNF"),
        (json!({"guided_choice": []}), "guided_choice", "choose"),
    ] {
        let (given, _, message) = chat(model(), &ask(changes.clone())).error(400);
        assert_eq!(given, param, "{message}");
        assert!(message.contains(reason), "{message}");
    }
}

#[test]
fn a_call_may_come_instead_and_reasoning_stays_apart() {
    let speaker = Speaker::new(false, 4096);
    let tools = json!([{"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}]);
    let ask = |line: &str, thinking: bool| {
        let request =
            ask(json!({"tools": tools, "response_format": {"type": "json_object"}, "enable_thinking": thinking}));
        speaker.reply(line, &request)["choices"][0].take()
    };
    let call = "<tool_call>\n<function=now>\n</function>\n</tool_call>";
    assert_eq!(ask(call, false)["finish_reason"], "tool_calls");
    assert_eq!(ask(&format!("Hm.\n</think>\n\n{call}"), true)["finish_reason"], "tool_calls");
    let thought = ask("Hm {\"a\": 1}\n</think>\n\n{\"a\": 2}", true);
    assert_eq!(thought["message"]["reasoning"], "Hm {\"a\": 1}");
    assert_eq!((content(&thought), &thought["finish_reason"]), (json!({"a": 2}), &json!("stop")));
}

/// A backend that draws what is not allowed costs the one reply.
#[test]
fn a_reply_that_leaves_its_grammar_fails_and_no_other() {
    let speaker = Speaker::new(false, 4096);
    speaker.lines.say(crate::serving::tokenizer().encode("Sure: {}").expect("tokens"));
    let request = ask(json!({"response_format": {"type": "json_object"}, "enable_thinking": false}));
    let (_, _, message) = chat(speaker.server.address, &request).error(500);
    assert!(message.contains("does not allow"), "{message}");
    assert_eq!(content(&speaker.reply("{}", &request)["choices"][0]), json!({}));
}

//! Rendering against Python's Jinja2, MODEL.md and the small checkpoint's reference.

mod common;

use lily_chat::{ChatTemplate, Prompt, TemplateError, begins_in_reasoning};
use serde_json::{Map, Value, json};

fn official() -> ChatTemplate {
    ChatTemplate::from_source(&common::real_template()).expect("compiles")
}

fn tiny() -> ChatTemplate {
    let source = std::fs::read_to_string(common::tiny_folder().join("chat_template.jinja")).expect("template");
    ChatTemplate::from_source(&source).expect("compiles")
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

fn chat(messages: Value) -> Prompt {
    Prompt { messages: list(&messages), add_generation_prompt: true, ..Prompt::default() }
}

/// Without the beginning of a reply.
fn history(messages: Value) -> Prompt {
    Prompt { add_generation_prompt: false, ..chat(messages) }
}

fn kwargs(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

#[test]
fn renders_what_python_renders() {
    let goldens: Value = serde_json::from_slice(&common::fixture("template_goldens.json")).expect("JSON");
    let mut wrong = Vec::new();
    // Where the official template refuses a late system message, it is served: case 10.
    let served = |case: &&Value| case["conversation"] == "late system" && case["template"] == "qwen3_6";
    for case in goldens["cases"].as_array().expect("cases").iter().filter(|case| !served(case)) {
        let (template, prompt) = match case["source"].as_str() {
            Some(source) => {
                let kwargs = kwargs(&json!({ "v": goldens["v"] }));
                let prompt = Prompt { messages: list(&goldens["messages"]), kwargs, ..Prompt::default() };
                (ChatTemplate::from_source(source), prompt)
            }
            None => {
                let prompt = Prompt {
                    messages: list(&goldens["conversations"][case["conversation"].as_str().expect("a title")]),
                    tools: if case["tools"] == true { list(&goldens["tools"]) } else { Vec::new() },
                    add_generation_prompt: case["add_generation_prompt"] == true,
                    kwargs: kwargs(&case["kwargs"]),
                };
                (Ok(if case["template"] == "tiny" { tiny() } else { official() }), prompt)
            }
        };
        let got = match template.and_then(|template| template.render(&prompt)) {
            Ok(text) => json!({ "text": text }),
            Err(TemplateError::Raised(reason)) => json!({ "raised": reason }),
            Err(error) => json!({ "failed": error.to_string() }),
        };
        if ["text", "raised"].iter().any(|key| got.get(key) != case.get(key)) {
            wrong.push(format!("{case:#}\n  gave {got:#}"));
        }
    }
    assert!(wrong.is_empty(), "{} cases differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// The tensor of 32-bit ids of this name in the small checkpoint's reference.safetensors.
fn reference_ids(name: &str) -> Vec<u32> {
    let file = std::fs::read(common::tiny_folder().join("reference/reference.safetensors")).expect("reference");
    let (length, rest) = file.split_at(8);
    let (header, data) = rest.split_at(u64::from_le_bytes(length.try_into().expect("eight bytes")) as usize);
    let header: Value = serde_json::from_slice(header).expect("a header");
    let bound = |index: usize| header[name]["data_offsets"][index].as_u64().expect(name) as usize;
    let ids = data[bound(0)..bound(1)].chunks_exact(4);
    ids.map(|id| u32::from_le_bytes(id.try_into().expect("four bytes"))).collect()
}

#[test]
fn the_small_checkpoints_prompts_and_ids() {
    let file = std::fs::read(common::tiny_folder().join("reference/reference.json")).expect("reference");
    let reference: Value = serde_json::from_slice(&file).expect("JSON");
    let template = tiny();
    let cases = reference["prompts"].as_array().expect("prompts");
    assert_eq!(cases.len(), 8);
    for case in cases {
        let name = case["name"].as_str().expect("a name");
        let text = if case["messages"].is_array() {
            let thinks = case["mode"] == "think";
            let prompt = Prompt {
                messages: list(&case["messages"]),
                tools: list(&case["tools"]),
                add_generation_prompt: true,
                kwargs: kwargs(&json!({ "enable_thinking": thinks })),
            };
            let text = template.render(&prompt).expect("renders");
            assert_eq!(begins_in_reasoning(&text), thinks);
            text
        } else {
            case["prompt"].as_str().expect("a raw prompt").to_owned()
        };
        // The long prompts are given by their ids alone.
        assert_eq!(text, case["prompt"].as_str().unwrap_or(&text), "{name}");
        assert_eq!(common::tiny().encode(&text).expect("encodes"), reference_ids(&format!("{name}.ids")), "{name}");
    }
    let text = std::fs::read_to_string(common::tiny_folder().join("reference/eval.txt")).expect("text");
    assert_eq!(common::tiny().encode(&text).expect("encodes"), reference_ids("eval.ids"));
}

#[test]
fn the_goldens_of_the_models_description() {
    let template = official();
    let hello = template.render(&chat(json!([{ "role": "user", "content": "hello" }])));
    assert_eq!(hello.as_deref(), Ok("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n<think>\n"));

    let messages = json!([{ "role": "system", "content": "  be concise  " }, { "role": "user", "content": "hello" }]);
    let concise = template.render(&Prompt { messages: list(&messages), ..Prompt::default() });
    assert_eq!(concise.as_deref(), Ok("<|im_start|>system\nbe concise<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n"));

    // As a client sends it: arguments are a string of JSON.
    let arguments = r#"{"flag":true,"nested":{"x":[1,2]}}"#;
    let messages = json!([
        { "role": "user", "content": "hi" },
        { "role": "assistant", "content": null, "tool_calls": [{ "function": { "name": "f", "arguments": arguments } }] },
    ]);
    let call = template.render(&Prompt { messages: list(&messages), ..Prompt::default() }).expect("renders");
    assert!(call.ends_with(concat!(
        "<|im_start|>assistant\n<think>\n\n</think>\n\n<tool_call>\n<function=f>\n<parameter=flag>\ntrue\n</parameter>\n",
        "<parameter=nested>\n{\"x\": [1, 2]}\n</parameter>\n</function>\n</tool_call><|im_end|>\n"
    )));
}

#[test]
fn reasoning_has_two_names() {
    let render = |fields: Value| {
        let mut answer = json!({ "role": "assistant", "content": "b" });
        answer.as_object_mut().expect("an object").extend(kwargs(&fields));
        official().render(&chat(json!([{ "role": "user", "content": "a" }, answer]))).expect("renders")
    };
    let expected = render(json!({ "reasoning_content": "why" }));
    assert!(expected.contains("<think>\nwhy\n</think>\n\nb"), "{expected}");
    assert_eq!(render(json!({ "reasoning": "why" })), expected);
    assert_eq!(render(json!({ "reasoning": "why", "reasoning_content": null })), expected);
    assert_eq!(render(json!({ "reasoning": "not this", "reasoning_content": "why" })), expected);
}

#[test]
fn numbers_keep_their_digits() {
    let template = ChatTemplate::from_source("{{ messages[0].x | tojson }}").expect("compiles");
    // The nearest f64 of each has these digits and no others; a careless parser gives its neighbour.
    for digits in ["90.42225290942383", "31.245270191439438", "0.1", "2.2250738585072014e-308", "18446744073709551615"]
    {
        let message: Value = serde_json::from_str(&format!("{{\"x\": {digits}}}")).expect("JSON");
        assert_eq!(template.render(&chat(json!([message]))).as_deref(), Ok(digits));
    }
}

#[test]
fn only_printable_ascii_is_left_by_ensure_ascii() {
    let template = ChatTemplate::from_source("{{ messages[0].x | tojson(ensure_ascii=true) }}").expect("compiles");
    let rendered = template.render(&chat(json!([{ "x": "~\u{7f}\u{80}🙂" }])));
    assert_eq!(rendered.as_deref(), Ok(r#""~\u007f\u0080\ud83d\ude42""#));
}

#[test]
fn leading_system_and_developer_messages_become_one() {
    let template = official();
    let render = |messages| template.render(&chat(messages));
    let merged = render(json!([
        { "role": "system", "content": "one\n" },
        { "role": "developer", "content": [{ "type": "text", "text": "two" }] },
        { "role": "system", "content": null },
        { "role": "developer", "content": "three" },
        { "role": "user", "content": "hi" },
    ]));
    let merged = merged.expect("renders");
    assert!(merged.starts_with("<|im_start|>system\none\n\n\ntwo\n\nthree<|im_end|>\n<|im_start|>user\n"), "{merged}");
    let texts = render(json!([
        { "role": "developer", "content": " one\n" },
        { "role": "system", "content": "\ntwo " },
        { "role": "user", "content": "hi" },
    ]));
    assert!(texts.expect("renders").starts_with("<|im_start|>system\none\n\ntwo<|im_end|>\n"));
}

#[test]
fn case_10_a_late_system_message_is_served_in_its_place() {
    let messages = json!([
        { "role": "user", "content": "one" },
        { "role": "assistant", "content": "two" },
        { "role": "system", "content": [{ "type": "text", "text": "three" }] },
        { "role": "user", "content": "four" },
    ]);
    let turns = "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\ntwo<|im_end|>\n\
                 <|im_start|>system\nthree<|im_end|>\n<|im_start|>user\nfour<|im_end|>\n";
    for template in [official(), tiny()] {
        assert_eq!(template.render(&history(messages.clone())).as_deref(), Ok(turns));
    }
    // It is no question: the reasoning since the last one stays.
    let call = json!({ "function": { "name": "f", "arguments": {} } });
    let messages = json!([
        { "role": "user", "content": "go" },
        { "role": "assistant", "reasoning_content": "why", "tool_calls": [call] },
        { "role": "tool", "content": "done" },
        { "role": "developer", "content": "be quick" },
    ]);
    let text = official().render(&history(messages)).expect("renders");
    assert!(text.contains("<think>\nwhy\n</think>"), "{text}");
    assert!(text.ends_with("</tool_response><|im_end|>\n<|im_start|>system\nbe quick<|im_end|>\n"), "{text}");
    // What is wrong all the same is told.
    let alone = official().render(&history(json!([
        { "role": "assistant", "content": "a" },
        { "role": "system", "content": "b" },
    ])));
    assert_eq!(alone, Err(TemplateError::Raised("no user message asks anything".into())));
}

#[test]
fn case_11_leading_system_and_developer_messages_are_merged_in_order() {
    let text = official().render(&history(json!([
        { "role": "system", "content": "one" },
        { "role": "developer", "content": "two" },
        { "role": "user", "content": "hi" },
    ])));
    let expected = "<|im_start|>system\none\n\ntwo<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n";
    assert_eq!(text.as_deref(), Ok(expected));
}

#[test]
fn case_14_a_message_without_content_beside_calls_is_rendered() {
    let call = json!({ "function": { "name": "f", "arguments": "{\"a\": 1}" } });
    for message in [
        json!({ "role": "assistant", "tool_calls": [call] }),
        json!({ "role": "assistant", "content": null, "tool_calls": [call] }),
        json!({ "role": "assistant", "content": "", "tool_calls": [call] }),
    ] {
        for template in [official(), tiny()] {
            let text = template.render(&history(json!([{ "role": "user", "content": "hi" }, message])));
            let turn = "</think>\n\n<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call><|im_end|>\n";
            assert!(text.expect("renders").ends_with(turn));
        }
    }
}

#[test]
fn case_15_tools_keep_their_order_and_pythons_separators() {
    let tool: Value = serde_json::from_str(
        r#"{"type":"function","function":{"name":"z","description":"é","parameters":{"b":1,"a":[1,2.0]}}}"#,
    )
    .expect("JSON");
    let prompt = Prompt { tools: vec![tool], ..chat(json!([{ "role": "user", "content": "hi" }])) };
    let expected =
        r#"{"type": "function", "function": {"name": "z", "description": "é", "parameters": {"b": 1, "a": [1, 2.0]}}}"#;
    for template in [official(), tiny()] {
        let text = template.render(&prompt).expect("renders");
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn bad_messages_are_named() {
    let call = |arguments: Value| {
        let call = json!({ "function": { "name": "f", "arguments": arguments } });
        chat(json!([{ "role": "user", "content": "hi" }, { "role": "assistant", "tool_calls": [call] }]))
    };
    for bad in ["{1", "[1]", "17"] {
        let error = official().render(&call(bad.into())).expect_err(bad);
        assert!(matches!(error, TemplateError::Arguments { message: 1, call: 0, .. }), "{error}");
        assert!(error.to_string().starts_with("messages[1].tool_calls[0]: "), "{error}");
    }
    for none in ["", "null", "{"] {
        assert!(official().render(&call(none.into())).expect("no arguments").contains("<function=f>\n</function>"));
    }
    // As clients have it that stop a reply.
    let half = official().render(&call(r#"{"a": "half"#.into())).expect("half a call");
    assert!(half.contains("<parameter=a>\nhalf\n</parameter>\n</function>"), "{half}");
    let error = official().render(&chat(json!(["hi"]))).expect_err("no object");
    assert!(matches!(error, TemplateError::Message { message: 0, .. }), "{error}");
    let error = official().render(&chat(json!([{ "content": "hi" }]))).expect_err("no role");
    assert!(matches!(error, TemplateError::Raised(_) | TemplateError::Failed(_)), "{error}");
}

#[test]
fn bad_templates_do_not_compile_and_bad_expressions_fail() {
    let error = ChatTemplate::from_source("{% for x in %}").expect_err("a syntax error");
    assert!(matches!(error, TemplateError::Syntax(_)), "{error}");
    for source in
        ["{{ missing.attribute }}", "{{ missing | tojson }}", "{{ strftime_now('%Q') }}", "{{ no_function() }}"]
    {
        let error = ChatTemplate::from_source(source).expect(source).render(&Prompt::default()).expect_err(source);
        assert!(matches!(error, TemplateError::Failed(_)), "{source}: {error}");
    }
}

#[test]
fn what_transformers_offers_is_there() {
    let config =
        br#"{"bos_token": null, "eos_token": "<|im_end|>", "pad_token": {"content": "<|endoftext|>"}, "x": 1}"#;
    let source = "{{ bos_token is defined }}|{{ eos_token }}|{{ pad_token }}|{{ tools is none }}|{{ add_generation_prompt }}\
                  |{{ strftime_now('%Y') | length }}|{{ extra.deep[0] }}";
    let template = ChatTemplate::from_source(source).expect("compiles").with_special_tokens(config).expect("config");
    let prompt = Prompt { kwargs: kwargs(&json!({ "extra": { "deep": [5] }, "tools": [1] })), ..Prompt::default() };
    assert_eq!(template.render(&prompt).as_deref(), Ok("False|<|im_end|>|<|endoftext|>|True|False|4|5"));
}

#[test]
fn one_template_serves_many_threads() {
    let template = official();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let template = &template;
            scope.spawn(move || {
                for turn in 0..20 {
                    let text = format!("{thread} {turn}");
                    let prompt = template.render(&chat(json!([{ "role": "user", "content": text }]))).expect("renders");
                    assert!(prompt.starts_with(&format!("<|im_start|>user\n{text}<|im_end|>")));
                }
            });
        }
    });
}

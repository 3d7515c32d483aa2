//! The endpoints that show what a prompt is, and the one that there is not.

use crate::client::{chat, get, post};
use crate::serving::{CONTEXT, NAME, Speaker, model, tokenizer};
use serde_json::{Value, json};

const TEXT: &str = "<|im_start|>user\nA 🦔 and\u{e9} more<|im_end|>";

#[test]
fn texts_become_tokens_and_texts_again() {
    let expected = tokenizer().encode(TEXT).expect("any text");
    for name in ["content", "prompt"] {
        let answer = post(model(), "/tokenize", &json!({name: TEXT, "add_special": true, "model": "x"})).ok();
        assert_eq!(answer["tokens"], json!(expected));
        assert_eq!((&answer["count"], &answer["max_model_len"]), (&json!(expected.len()), &json!(CONTEXT)));
        assert_eq!(answer["token_strs"], Value::Null);
    }
    let back = post(model(), "/detokenize", &json!({"tokens": expected})).ok();
    assert_eq!((&back["content"], &back["prompt"]), (&json!(TEXT), &json!(TEXT)));
    assert_eq!(post(model(), "/detokenize", &json!({"tokens": []})).ok()["content"], "");

    let long = "word ".repeat(2 * CONTEXT);
    let count = post(model(), "/tokenize", &json!({"content": long})).ok()["count"].as_u64().expect("a count");
    assert!(count >= 2 * CONTEXT as u64, "also what no context holds");
}

#[test]
fn pieces_are_text_or_bytes() {
    let request = json!({"content": TEXT, "with_pieces": true, "return_token_strs": true});
    let answer = post(model(), "/tokenize", &request).ok();
    let tokens = answer["tokens"].as_array().expect("tokens");
    let mut bytes = Vec::new();
    for token in tokens {
        match &token["piece"] {
            Value::String(text) => bytes.extend(text.as_bytes()),
            Value::Array(raw) => bytes.extend(raw.iter().map(|byte| byte.as_u64().expect("a byte") as u8)),
            other => panic!("neither text nor bytes: {other}"),
        }
    }
    assert_eq!(String::from_utf8(bytes).as_deref(), Ok(TEXT));
    assert!(tokens.iter().any(|token| token["piece"].is_array()), "the hedgehog is no token of its own");
    assert_eq!(answer["token_strs"].as_array().map(Vec::len), Some(tokens.len()));
    assert_eq!(answer["token_strs"][0], "<|im_start|>");
}

#[test]
fn a_conversations_prompt_is_the_one_that_is_read() {
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    let speaker = Speaker::new(true, 4096);
    for (reply, request) in [
        ("x", json!({"messages": [{"role": "user", "content": "Go"}]})),
        (
            "x",
            json!({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go"}],
                "tools": [tool], "chat_template_kwargs": {"enable_thinking": false}, "add_generation_prompt": true}),
        ),
        (
            "</function>\n</tool_call>",
            json!({"messages": [{"role": "user", "content": "Go"}], "tools": [tool], "tool_choice": "required"}),
        ),
    ] {
        let shown = post(speaker.server.address, "/apply-template", &request).ok();
        let tokens = post(speaker.server.address, "/tokenize", &request).ok();
        let usage = speaker.reply(reply, &request)["usage"].clone();
        assert_eq!(shown, json!({"prompt": speaker.prompt()}));
        assert_eq!(tokens["tokens"], json!(speaker.lines.prompts().pop().expect("a prompt")));
        assert_eq!(tokens["count"], usage["prompt_tokens"]);
    }
}

#[test]
fn what_is_wrong_is_named() {
    for (path, body, param) in [
        ("/tokenize", json!({}), "content"),
        ("/tokenize", json!({"content": 5}), "content"),
        ("/tokenize", json!({"prompt": ["a"]}), "prompt"),
        ("/tokenize", json!({"content": "a", "with_pieces": "yes"}), "with_pieces"),
        ("/tokenize", json!({"content": "a", "parse_special": false}), "parse_special"),
        ("/tokenize", json!({"messages": []}), "messages"),
        ("/detokenize", json!({}), "tokens"),
        ("/detokenize", json!({"tokens": "a"}), "tokens"),
        ("/detokenize", json!({"tokens": [1, 6113]}), "tokens[1]"),
        ("/apply-template", json!({}), "messages"),
        ("/apply-template", json!({"messages": [{"role": "user"}]}), "messages[0].content"),
        (
            "/apply-template",
            json!({"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": false}),
            "add_generation_prompt",
        ),
    ] {
        let (named, _, message) = post(model(), path, &body).error(400);
        assert_eq!(named, param, "{path} {body}: {message}");
    }
}

#[test]
fn embeddings_are_not_there_and_the_answer_says_why() {
    for answer in
        [post(model(), "/v1/embeddings", &json!({"input": "a", "model": "b"})), get(model(), "/v1/embeddings")]
    {
        let (_, code, message) = answer.error(404);
        assert_eq!(code, "not_supported");
        assert!(message.contains("no embeddings") && message.contains(NAME), "{message}");
    }
    chat(model(), &json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1})).ok();
}

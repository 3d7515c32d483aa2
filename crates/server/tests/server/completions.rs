//! Raw completions of the embedded model.

use crate::client::{events, post};
use crate::serving::{Speaker, checkpoint, model};
use lily_chat::Tokenizer;
use serde_json::{Value, json};

const TEXT: &str = "The capital of Norway is";

fn complete(body: &Value) -> Value {
    post(model(), "/v1/completions", body).ok()
}

fn tokenizer() -> Tokenizer {
    let files = &checkpoint().files;
    Tokenizer::from_files(&files.tokenizer, files.tokenizer_config.as_deref()).expect("a tokenizer")
}

fn base(prompt: Value) -> Value {
    json!({"prompt": prompt, "temperature": 0, "max_tokens": 6})
}

#[test]
fn a_prompt_is_text_or_tokens_one_or_several() {
    let answer = complete(&base(json!(TEXT)));
    assert_eq!(answer["object"], "text_completion");
    let text = answer["choices"][0]["text"].as_str().expect("text");
    assert!(text.starts_with(" Oslo"), "{text}");
    let ids = tokenizer().encode(TEXT).expect("any text");
    assert_eq!(answer["usage"]["prompt_tokens"], ids.len());
    for prompt in [json!([TEXT]), json!(ids), json!([ids])] {
        assert_eq!(complete(&base(prompt))["choices"], answer["choices"]);
    }
    let other = complete(&base(json!("The capital of Sweden is")));
    for prompt in [
        json!([TEXT, "The capital of Sweden is"]),
        json!([ids, tokenizer().encode("The capital of Sweden is").expect("any text")]),
    ] {
        let mut request = base(prompt);
        request["n"] = json!(2);
        let both = complete(&request);
        let texts: Vec<&Value> = both["choices"].as_array().expect("choices").iter().map(|c| &c["text"]).collect();
        let (first, second) = (&answer["choices"][0]["text"], &other["choices"][0]["text"]);
        assert_eq!(texts, [first, first, second, second]);
        let sum = |name: &str, times: u64| {
            times * (answer["usage"][name].as_u64().expect("a count") + other["usage"][name].as_u64().expect("a count"))
        };
        assert_eq!(both["usage"]["prompt_tokens"], sum("prompt_tokens", 1));
        assert_eq!(both["usage"]["completion_tokens"], sum("completion_tokens", 2));
    }
}

#[test]
fn an_echo_precedes_the_text() {
    let plain = complete(&base(json!(TEXT)))["choices"][0]["text"].as_str().expect("text").to_owned();
    let mut request = base(json!(TEXT));
    request["echo"] = json!(true);
    assert_eq!(complete(&request)["choices"][0]["text"], format!("{TEXT}{plain}"));
    request["stream"] = json!(true);
    let (events, done) = events(&post(model(), "/v1/completions", &request));
    let text: String = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert_eq!((text, done), (format!("{TEXT}{plain}"), true));
}

/// What a raw prompt holds of control tokens is text where a reply writes it, and so in the echo.
#[test]
fn an_echo_has_the_control_tokens() {
    let mut request = base(json!("<|im_start|>user"));
    request["echo"] = json!(true);
    let text = complete(&request)["choices"][0]["text"].as_str().expect("text").to_owned();
    assert!(text.starts_with("<|im_start|>user"), "{text}");
}

/// The embedded model was never trained for it, so that only the prompt can be looked at.
#[test]
fn a_suffix_makes_the_prompt_the_beginning_of_a_gap() {
    let speaker = Speaker::new(false, 100);
    let ids = tokenizer().encode("fn one() {").expect("any text");
    for prompt in [json!("fn one() {"), json!(ids)] {
        speaker.lines.say(tokenizer().encode(" 1 ").expect("any text"));
        let body = json!({"prompt": prompt, "suffix": "}", "echo": true});
        let answer = post(speaker.server.address, "/v1/completions", &body).ok();
        assert_eq!(answer["choices"][0]["text"], "fn one() { 1 ");
        let written = "<|fim_prefix|>fn one() {<|fim_suffix|>}<|fim_middle|>";
        assert_eq!(speaker.prompt(), written);
        assert_eq!(answer["usage"]["prompt_tokens"], tokenizer().encode(written).expect("any text").len());
    }
    let plain = complete(&base(json!(TEXT)));
    let mut empty = base(json!(TEXT));
    empty["suffix"] = json!("");
    assert_eq!(complete(&empty)["choices"], plain["choices"]);
    let long = json!({"prompt": vec![7; 90], "suffix": "a word or two and some more of them"});
    let (param, code, _) = post(speaker.server.address, "/v1/completions", &long).error(400);
    assert_eq!((param, code), (json!("prompt"), json!("context_length_exceeded")));
}

#[test]
fn logprobs_have_the_older_shape() {
    let mut request = base(json!(TEXT));
    request["logprobs"] = json!(3);
    let answer = complete(&request);
    let (text, logprobs) = (&answer["choices"][0]["text"], &answer["choices"][0]["logprobs"]);
    let tokens: Vec<&str> = logprobs["tokens"].as_array().expect("tokens").iter().filter_map(Value::as_str).collect();
    assert_eq!(text.as_str().expect("text"), tokens.concat());
    let mut offset = 0;
    for (index, token) in tokens.iter().enumerate() {
        assert_eq!(logprobs["text_offset"][index], offset);
        offset += token.chars().count();
        let top = logprobs["top_logprobs"][index].as_object().expect("an object");
        assert!(top.len() == 3 && top[*token] == logprobs["token_logprobs"][index]);
    }
    request["stream"] = json!(true);
    let (events, _) = events(&post(model(), "/v1/completions", &request));
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let parts = events.iter().filter_map(|event| event["choices"][0]["logprobs"][name].as_array());
        assert_eq!(json!(parts.flatten().collect::<Vec<_>>()), logprobs[name], "{name}");
    }
}

#[test]
fn stop_and_seed_work_here_too() {
    let mut request = base(json!(TEXT));
    request["stop"] = json!(["slo"]);
    let answer = complete(&request);
    assert_eq!((&answer["choices"][0]["text"], &answer["choices"][0]["finish_reason"]), (&json!(" O"), &json!("stop")));
    let seeded = |seed: i64| {
        let request = json!({"prompt": "Once", "temperature": 1.5, "max_tokens": 20, "seed": seed});
        complete(&request)["choices"].clone()
    };
    assert_eq!(seeded(-3), seeded(-3));
    assert_ne!(seeded(-3), seeded(4));
}

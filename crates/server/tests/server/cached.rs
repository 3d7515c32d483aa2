//! Every endpoint says how much of a prompt it did not have to read.

use crate::client::{chat, get, post};
use crate::serving::{model_with_cache, wait_until};
use serde_json::{Value, json};

/// The object named `usage` that comes last in an answer, streamed or not, whatever it is in.
fn usage(text: &str) -> Value {
    let values = text.lines().map(|line| line.strip_prefix("data: ").unwrap_or(line));
    let values = values.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut usages = values.filter_map(|value| {
        let place = if value["response"].is_object() { &value["response"]["usage"] } else { &value["usage"] };
        place.is_object().then(|| place.clone())
    });
    usages.next_back().unwrap_or_else(|| panic!("no usage: {text}"))
}

/// What `names` lead to.
fn count(usage: &Value, names: &str) -> u64 {
    let found = usage.pointer(names).and_then(Value::as_u64);
    found.unwrap_or_else(|| panic!("{names}: {usage}"))
}

/// Field cases 6 and 8: what is said to be cached is what was not read.
#[test]
fn case_6_and_8_cached_tokens_are_true_on_every_endpoint() {
    let server = model_with_cache();
    // The engine's first reply is to nobody.
    wait_until("ready", || get(server.address, "/ready").status == 200);
    let rules = |name: &str| format!("You are {name}. {}", "Answer each question in one short sentence. ".repeat(30));
    for stream in [false, true] {
        // Prompts of its own for each, so that none finds another's.
        for (endpoint, total, cached) in [
            ("/v1/chat/completions", "/prompt_tokens", "/prompt_tokens_details/cached_tokens"),
            ("/v1/completions", "/prompt_tokens", "/prompt_tokens_details/cached_tokens"),
            ("/v1/responses", "/input_tokens", "/input_tokens_details/cached_tokens"),
            ("/v1/messages", "", "/cache_read_input_tokens"),
        ] {
            let rules = rules(&format!("{endpoint} {stream}"));
            let ask = |question: &str| {
                let mut request = match endpoint {
                    "/v1/completions" => json!({"prompt": rules.clone() + question}),
                    "/v1/responses" => json!({"instructions": rules, "input": question, "max_output_tokens": 4}),
                    "/v1/messages" => json!({"system": rules, "messages": [{"role": "user", "content": question}]}),
                    _ => {
                        json!({"messages": [{"role": "system", "content": rules}, {"role": "user", "content": question}]})
                    }
                };
                request["stream"] = json!(stream);
                if endpoint != "/v1/responses" {
                    request["max_tokens"] = json!(4);
                }
                if stream && endpoint.ends_with("completions") {
                    request["stream_options"] = json!({"include_usage": true});
                }
                let before = server.engine.stats().prefilled_tokens;
                let answer = post(server.address, endpoint, &request);
                assert_eq!(answer.status, 200, "{}", answer.text());
                let usage = usage(&answer.text());
                let cached = count(&usage, cached);
                let total =
                    if total.is_empty() { cached + count(&usage, "/input_tokens") } else { count(&usage, total) };
                let read = server.engine.stats().prefilled_tokens - before;
                assert_eq!(read, total - cached, "{endpoint}, stream {stream}: {usage}");
                (total, cached)
            };
            assert_eq!(ask("What is 38 + 57?").1, 0, "{endpoint}, stream {stream}");
            let (total, cached) = ask("What is 38 + 57?");
            assert!(cached * 10 > total * 8, "{endpoint}, stream {stream}: {cached} of {total}");
        }
    }
}

/// A second turn of a chat finds what the first one read and what was replied. (On a GPU: crates/host/tests/engine.rs.)
#[test]
fn a_next_question_reads_nothing_again() {
    let server = model_with_cache();
    let address = server.address;
    wait_until("ready", || get(address, "/ready").status == 200);
    let rules = "Answer each question in one short sentence. ".repeat(16);
    let mut messages =
        vec![json!({"role": "system", "content": rules}), json!({"role": "user", "content": "What is 38 + 57?"})];
    let ask = |messages: &[Value]| {
        let request = json!({"messages": messages, "max_tokens": 200, "preserve_thinking": true});
        let answer = chat(address, &request).ok();
        let message = answer["choices"][0]["message"].clone();
        let count = |name: &str| answer["usage"].pointer(name).and_then(Value::as_u64).expect("a count");
        (message, ["/prompt_tokens", "/completion_tokens", "/prompt_tokens_details/cached_tokens"].map(count))
    };
    let (message, [prompt, reply, cached]) = ask(&messages);
    assert_eq!(cached, 0);
    assert!(reply >= 10, "a reply of {reply} tokens shows nothing: {message}");
    messages.push(message.clone());
    messages.push(json!({"role": "user", "content": "And 12 + 30?"}));
    let (_, [next, _, found]) = ask(&messages);
    // The last token that was drawn has not been read.
    assert_eq!(found, prompt + reply - 1, "of {next} tokens; {message}");
    assert!(found * 10 > next * 9, "{found} of {next}");
}

/// Field case 44: what a model that reads text cannot see is no part of a prompt of which anything could be reused.
#[test]
fn case_44_images_are_refused_before_anything_is_read_or_kept() {
    let server = model_with_cache();
    wait_until("ready", || get(server.address, "/ready").status == 200);
    let before = server.engine.stats();
    for data in ["data:image/png;base64,AAAA", "data:image/png;base64,BBBB"] {
        let user =
            |part: Value| json!([{"role": "user", "content": [{"type": "text", "text": "What is this?"}, part]}]);
        let source = json!({"type": "base64", "media_type": "image/png", "data": data});
        for (path, body) in [
            (
                "/v1/chat/completions",
                json!({"messages": user(json!({"type": "image_url", "image_url": {"url": data}}))}),
            ),
            (
                "/v1/responses",
                json!({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": data}]}]}),
            ),
            ("/v1/messages", json!({"max_tokens": 4, "messages": user(json!({"type": "image", "source": source}))})),
        ] {
            let answer = post(server.address, path, &body);
            assert_eq!(answer.status, 400, "{path}: {}", answer.text());
        }
    }
    let after = server.engine.stats();
    assert_eq!(
        (after.prefilled_tokens, after.cache.hits, after.cache.snapshots),
        (before.prefilled_tokens, before.cache.hits, before.cache.snapshots)
    );
}

//! A conversation that goes on is not read again, whatever agents write around it.

use super::stream::gather;
use super::{ask, count, send, tool};
use crate::serving::model_with_cache;
use serde_json::{Value, json};

fn number(usage: &Value, name: &str) -> u64 {
    usage[name].as_u64().unwrap_or_else(|| panic!("{name}: {usage}"))
}

/// A system prompt as an agent sends it: a line for Anthropic's accounts that is another each time, and much text.
fn system(turn: usize) -> Value {
    let rules = "Answer each question in one short sentence, and think before you do. ".repeat(20);
    json!([
        {"type": "text", "text": format!("x-anthropic-billing-header: cc_version=2.1.1; cch={turn:05x};")},
        {"type": "text", "text": rules, "cache_control": {"type": "ephemeral"}},
    ])
}

#[test]
fn the_second_turn_reads_only_what_is_new() {
    for thinking in [json!({"type": "adaptive"}), json!({"type": "disabled"})] {
        let server = model_with_cache();
        let mut messages = Vec::new();
        let mut known = 0;
        for (turn, question) in
            ["What is 38 + 57?", "What is the capital of Norway?", "What is 20 + 9?"].iter().enumerate()
        {
            messages.push(json!({"role": "user", "content": question}));
            let changes = json!({"messages": messages, "system": system(turn), "tools": [tool("weather")],
                "thinking": thinking});
            let request = ask("", changes);
            let counted = count(server.address, &request);
            // Every other one streamed.
            let message =
                if turn == 1 { gather(server.address, &request) } else { send(server.address, &request).ok() };
            let usage = &message["usage"];
            let (fresh, cached) = (number(usage, "input_tokens"), number(usage, "cache_read_input_tokens"));
            assert_eq!(fresh + cached, counted, "{usage}");
            assert_eq!(number(usage, "cache_creation_input_tokens"), 0);
            // The last token of a reply has not been read, nor has the one that ends it.
            assert!(cached + 2 >= known, "{cached} of {known} tokens, thinking {thinking}");
            assert!(turn == 0 || cached * 10 > counted * 9, "{cached} of {counted} tokens, thinking {thinking}");
            known = counted + number(usage, "output_tokens");
            messages.push(json!({"role": "assistant", "content": message["content"]}));
        }
    }
}

#[test]
fn another_conversation_with_the_same_system_prompt_begins_behind_it() {
    let server = model_with_cache();
    let usage = |turn: usize, question: &str| {
        let request = ask(question, json!({"system": system(turn), "max_tokens": 4}));
        send(server.address, &request).ok()["usage"].clone()
    };
    assert_eq!(number(&usage(0, "Hello"), "cache_read_input_tokens"), 0);
    let second = usage(1, "What is the capital of Norway?");
    assert!(number(&second, "cache_read_input_tokens") > 4 * number(&second, "input_tokens"), "{second}");
}

//! Thinking, and room for it, by the numbers of the field cases.

use crate::client::chat;
use crate::gather::gather;
use crate::serving::Speaker;
use serde_json::{Value, json};

fn request(changes: Value) -> Value {
    let mut request = json!({"messages": [{"role": "user", "content": "Go"}]});
    for (name, value) in changes.as_object().expect("an object") {
        request[name] = value.clone();
    }
    request
}

#[test]
fn case_27_without_a_closing_tag_everything_is_reasoning() {
    let speaker = Speaker::new(true, 4096);
    let tool = json!([{"type": "function", "function": {"name": "f"}}]);
    for changes in [json!({}), json!({"tools": tool})] {
        for (most, reason) in [(100, "stop"), (3, "length")] {
            let mut request = request(changes.clone());
            request["max_tokens"] = json!(most);
            let reply = speaker.reply("on and on and on", &request);
            let message = &reply["choices"][0]["message"];
            assert!("on and on and on".starts_with(message["reasoning_content"].as_str().expect("reasoning")));
            assert_eq!(message["reasoning"], message["reasoning_content"]);
            assert_eq!((&message["content"], &reply["choices"][0]["finish_reason"]), (&json!(""), &json!(reason)));
            assert_eq!(
                reply["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().map(|n| n > 0),
                Some(true)
            );
        }
    }
}

#[test]
fn case_13_and_28_thinking_is_switched_off_and_on() {
    let speaker = Speaker::new(true, 4096);
    let thinks = |changes: Value| {
        speaker.reply("x", &request(changes));
        speaker.prompt().ends_with("<think>\n")
    };
    for off in [
        json!({"reasoning_effort": "none"}),
        json!({"enable_thinking": false}),
        json!({"chat_template_kwargs": {"enable_thinking": false}}),
        json!({"reasoning_effort": "high", "enable_thinking": false}),
    ] {
        assert!(!thinks(off.clone()), "{off}");
    }
    for effort in ["minimal", "low", "medium", "high", "xhigh"] {
        assert!(thinks(json!({"reasoning_effort": effort})), "{effort}");
    }
    assert!(thinks(json!({})));
}

#[test]
fn more_tokens_than_there_is_room_for_are_what_is_left() {
    let speaker = Speaker::new(true, 200);
    for most in [json!({"max_tokens": 32_000}), json!({"max_completion_tokens": i64::MAX}), json!({})] {
        // Without a line the script goes on for ever.
        let reply = chat(speaker.server.address, &request(most.clone())).ok();
        assert_eq!(reply["choices"][0]["finish_reason"], "length", "{most}");
        assert_eq!(reply["usage"]["total_tokens"], 200, "{most}");
        let (streamed, usage) = gather(speaker.server.address, &request(most), 0);
        assert_eq!((streamed["finish_reason"].clone(), usage["total_tokens"].clone()), (json!("length"), json!(200)));
    }
    let long = json!([{"role": "user", "content": "word ".repeat(300)}]);
    let (_, code, message) =
        chat(speaker.server.address, &request(json!({"messages": long, "max_tokens": 9}))).error(400);
    assert_eq!(code, "context_length_exceeded");
    assert!(message.contains("200 tokens"), "{message}");
}

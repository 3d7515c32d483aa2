//! What the model is shown: the same as of a chat completion's messages that say the same.

use super::{ask, reply, send, tool, written};
use crate::serving::{Speaker, tokenizer};
use serde_json::{Value, json};

fn text(tokens: &[u32]) -> String {
    let bytes: Vec<u8> = tokens.iter().flat_map(|&token| tokenizer().bytes(token).to_vec()).collect();
    String::from_utf8(bytes).expect("text")
}

fn result(id: &Value, content: Value) -> Value {
    json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": content}]})
}

#[test]
fn a_conversation_is_that_of_a_chat_completion() {
    let anthropic = json!({
        "system": [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind.",
            "cache_control": {"type": "ephemeral"}}],
        "tools": [tool("weather"), {"type": "web_search_20250305", "name": "web_search"}],
        "metadata": {"user_id": "me"}, "service_tier": "auto", "context_management": {"edits": []},
        "thinking": {"type": "enabled", "budget_tokens": 1024}, "output_config": {"effort": "high"},
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "Two"}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "text", "text": "Look:"},
                {"type": "tool_use", "id": "t", "name": "weather", "input": {"city": "Oslo", "days": 2}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "rain"}], "is_error": true},
                {"type": "text", "text": "And now?"}]},
            {"role": "assistant", "content": "Wet."},
            {"role": "user", "content": "Thanks"},
        ],
    });
    let function = json!({"name": "weather", "parameters": tool("weather")["input_schema"]});
    let arguments = json!({"city": "Oslo", "days": 2});
    let openai = json!({
        "tools": [{"type": "function", "function": function}], "preserve_thinking": true,
        "messages": [
            {"role": "system", "content": "Be brief.\n\nBe kind."},
            {"role": "user", "content": "One\n\nTwo"},
            {"role": "assistant", "content": "Look:", "reasoning_content": "Hm.", "tool_calls":
                [{"id": "t", "type": "function", "function": {"name": "weather", "arguments": arguments.to_string()}}]},
            {"role": "tool", "tool_call_id": "t", "content": "Error: rain"},
            {"role": "user", "content": "And now?"},
            {"role": "assistant", "content": "Wet."},
            {"role": "user", "content": "Thanks"},
        ],
    });
    for official in [false, true] {
        let speaker = Speaker::new(official, 4096);
        reply(&speaker, "x", &ask("", anthropic.clone()));
        let prompt = speaker.prompt();
        speaker.reply("x", &openai);
        assert_eq!(prompt, speaker.prompt());
        assert!(prompt.contains("<think>\nHm.\n</think>") && prompt.ends_with("<think>\n"), "{prompt}");
    }
}

#[test]
fn without_thinking_unless_it_is_asked_for() {
    let speaker = Speaker::new(true, 4096);
    for (changes, thinks) in [
        (json!({}), false),
        (json!({"thinking": {"type": "disabled"}}), false),
        (json!({"thinking": {"type": "adaptive"}}), true),
        (json!({"chat_template_kwargs": {"enable_thinking": true}}), true),
    ] {
        reply(&speaker, "x", &ask("Go", changes.clone()));
        assert_eq!(speaker.prompt().ends_with("<think>\n"), thinks, "{changes}");
    }
}

#[test]
fn the_reply_goes_on_where_the_client_began_it() {
    for official in [false, true] {
        let speaker = Speaker::new(official, 4096);
        let begun = json!([{"role": "user", "content": "Go"}, {"role": "assistant", "content": "The capital is "}]);
        let request = ask("", json!({"messages": begun, "thinking": {"type": "adaptive"}}));
        let message = reply(&speaker, " Oslo.", &request);
        assert_eq!(message["content"], json!([{"type": "text", "text": " Oslo."}]));
        let prompt = speaker.prompt();
        assert!(prompt.ends_with("assistant\n<think>\n\n</think>\n\nThe capital is"), "{prompt}");
        assert_eq!(message["usage"]["input_tokens"], super::count(speaker.server.address, &request));
        // As the client sends it on, it is what the model has read.
        let before = speaker.lines.prompts().pop().expect("a prompt");
        let more = json!([{"role": "user", "content": "Go"}, {"role": "assistant", "content": "The capital is Oslo."},
            {"role": "user", "content": "Sure?"}]);
        reply(&speaker, "Yes.", &ask("", json!({"messages": more})));
        assert!(
            text(&speaker.lines.prompts().pop().expect("a prompt")).starts_with(&(text(&before) + " Oslo.<|im_end|>"))
        );
    }
}

#[test]
fn tool_choice() {
    let speaker = Speaker::new(false, 4096);
    let ask_for = |text: &str, choice: Value| {
        let changes = json!({"tools": [tool("weather"), tool("now")], "tool_choice": choice, "thinking":
            {"type": "adaptive"}});
        (reply(&speaker, text, &ask("Go", changes)), speaker.prompt())
    };
    let (_, prompt) = ask_for("Hi", json!({"type": "auto"}));
    assert!(prompt.contains("<tools>") && prompt.ends_with("<think>\n"), "{prompt}");
    let (none, _) = ask_for("x\n</think>\n\nHi", json!({"type": "none"}));
    assert_eq!((&none["content"][1]["text"], &none["stop_reason"]), (&json!("Hi"), &json!("end_turn")));
    let (any, prompt) = ask_for("=weather>\n</function>\n</tool_call>", json!({"type": "any"}));
    assert!(prompt.ends_with("</think>\n\n<tool_call>\n<function"), "{prompt}");
    let (named, prompt) = ask_for("</function>\n</tool_call>", json!({"type": "tool", "name": "now"}));
    assert!(prompt.ends_with("<tool_call>\n<function=now>\n"), "{prompt}");
    for (message, name) in [(any, "weather"), (named, "now")] {
        assert_eq!(message["stop_reason"], "tool_use");
        assert_eq!((&message["content"][0]["name"], &message["content"][0]["input"]), (&json!(name), &json!({})));
    }
    let two = format!("x\n</think>\n\n{}\n{}", written("weather", &[("days", "1")]), written("now", &[]));
    let calls = |message: &Value| message["content"].as_array().map_or(0, |blocks| blocks.len() - 1);
    assert_eq!(calls(&ask_for(&two, json!({"type": "auto"})).0), 2);
    let (single, _) = ask_for(&two, json!({"type": "auto", "disable_parallel_tool_use": true}));
    assert_eq!((calls(&single), &single["stop_reason"]), (1, &json!("tool_use")));
}

/// What no rendering of the call would give: a number and space in the model's own spelling.
const ODD: &str = "Hm,  I need it. \n</think>\n\nNow:\n<tool_call>\n<function=weather>\n<parameter=days>\n5.0\n</parameter>\n\
                   <parameter=options>\n{'a':  1}\n</parameter>\n</function>\n</tool_call>\n";

#[test]
fn the_next_prompts_hold_what_the_model_wrote() {
    type Change = fn(&mut Vec<Value>);
    let changes: [(&str, Change); 3] = [
        ("as it came", |_| {}),
        ("without thinking", |blocks| blocks.retain(|block| block["type"] != "thinking")),
        ("with the signature alone", |blocks| blocks[0]["thinking"] = json!("")),
    ];
    for official in [false, true] {
        for (what, change) in changes {
            let speaker = Speaker::new(official, 4096);
            let settings = |messages: &[Value]| {
                ask("", json!({"messages": messages, "tools": [tool("weather")], "thinking": {"type": "adaptive"}}))
            };
            let mut messages = vec![json!({"role": "user", "content": "Go"})];
            let first = reply(&speaker, ODD, &settings(&messages));
            let mut content = first["content"].as_array().expect("blocks").clone();
            assert_eq!((content.len(), &content[2]["input"]), (3, &json!({"days": 5, "options": {"a": 1}})));
            let id = content[2]["id"].clone();
            change(&mut content);
            messages.push(json!({"role": "assistant", "content": content}));
            messages.push(result(&id, json!("done")));
            let second = reply(&speaker, "Fine\n</think>\n\nIt is done.", &settings(&messages));
            messages.push(json!({"role": "assistant", "content": second["content"]}));
            messages.push(json!({"role": "user", "content": "Good."}));
            reply(&speaker, "x", &settings(&messages));

            let prompts = speaker.lines.prompts();
            let [first, second, third] = prompts.as_slice() else { panic!("three prompts, not {}", prompts.len()) };
            let with_reply =
                |prompt: &[u32], reply: &str| [prompt, &tokenizer().encode(reply).expect("tokens"), &[6082]].concat();
            assert!(second.starts_with(&with_reply(first, ODD)), "{what}: {}", text(second));
            assert!(text(second).contains("<tool_response>\ndone\n</tool_response>"), "{}", text(second));
            // The next question changes nothing of what has been said.
            let so_far = with_reply(second, "Fine\n</think>\n\nIt is done.");
            assert!(third.starts_with(&so_far), "{what}: {}", text(third));
        }
    }
}

#[test]
fn what_only_anthropics_servers_can_do_is_refused_in_words() {
    let speaker = Speaker::new(true, 4096);
    let search = json!({"type": "web_search_20250305", "name": "web_search", "max_uses": 8});
    for changes in [
        json!({"tools": [search]}),
        json!({"tools": [search, tool("f")], "tool_choice": {"type": "tool", "name": "web_search"}}),
    ] {
        let (_, message) = super::errors::refused(&send(speaker.server.address, &ask("Go", changes)), 400);
        assert!(message.contains("\"web_search\"") && message.contains("Anthropic's servers"), "{message}");
    }
}

//! Tools of every kind, and what coding agents send.

use super::{replied, respond, user, with};
use crate::serving::{Speaker, model, tokenizer};
use serde_json::{Value, json};

/// The embedded model calls a tool, gets the result, and answers.
#[test]
fn the_embedded_model_goes_round_the_loop() {
    let tools = json!([{"type": "function", "name": "get_stock_price", "description": "Get the price of a stock.",
        "parameters": {"type": "object", "properties": {"symbol": {"type": "string"}}, "required": ["symbol"]}}]);
    let request = json!({"input": "What is the stock price of TWU?", "tools": tools, "temperature": 0,
        "max_output_tokens": 120});
    let first = respond(model(), &request).ok();
    let call = first["output"].as_array().and_then(|items| items.last()).expect("a call");
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("get_stock_price")));
    assert_eq!((&call["arguments"], &call["status"]), (&json!(r#"{"symbol":"TWU"}"#), &json!("completed")));
    assert_eq!(first["status"], "completed");
    let output = json!({"type": "function_call_output", "call_id": call["call_id"], "output": "{\"price\": 371}"});
    let second = with(request, &json!({"previous_response_id": first["id"], "input": [output]}));
    let second = respond(model(), &second).ok();
    let message = second["output"].as_array().and_then(|items| items.last()).expect("a message");
    assert!(message["content"][0]["text"].as_str().expect("text").contains("371"), "{second}");
}

/// As codex declares them, with what it only sends because OpenAI's servers know it.
fn codex_tools() -> Value {
    let command = json!({"type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}}});
    json!([
        {"type": "function", "name": "shell", "description": "Runs a command.", "strict": false, "parameters": command},
        {"type": "custom", "name": "apply_patch", "description": "Edits files.",
            "format": {"type": "grammar", "syntax": "lark", "definition": "start: \"*** Begin Patch\""}},
        {"type": "namespace", "name": "mcp__docs__", "description": "Documents.", "tools": [
            {"type": "function", "name": "search", "strict": false, "defer_loading": true, "parameters": {"type": "object",
                "properties": {"query": {"type": "string"}}}}]},
        {"type": "web_search", "external_web_access": false},
        {"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": {"type": "object"}},
        {"type": "image_generation", "output_format": "png"},
        {"type": "local_shell"},
    ])
}

#[test]
fn what_codex_sends_is_taken_whole() {
    let speaker = Speaker::new(true, 4096);
    let text = |kind: &str, text: &str| json!([{"type": kind, "text": text}]);
    let request = json!({
        "model": "lily", "instructions": "You are a coding agent.", "tools": codex_tools(), "tool_choice": "auto",
        "parallel_tool_calls": true, "reasoning": {"summary": "auto"}, "store": false, "stream": false,
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "0199", "text": {"verbosity": "medium"},
        "client_metadata": {"x": "y"}, "service_tier": null,
        "input": [
            {"type": "message", "role": "developer", "content": text("input_text", "Sandboxed.")},
            {"type": "message", "role": "user", "content": text("input_text", "<environment_context/>")},
            {"type": "message", "role": "user", "content": text("input_text", "Look.")},
            {"type": "reasoning", "summary": text("summary_text", "I look."), "content": null, "encrypted_content": null},
            {"type": "message", "role": "assistant", "content": text("output_text", "Looking."), "phase": "commentary"},
            {"type": "function_call", "name": "shell", "arguments": "{\"command\":[\"ls\"]}", "call_id": "c1"},
            {"type": "function_call", "name": "search", "namespace": "mcp__docs__", "arguments": "{\"query\":\"x\"}",
                "call_id": "c2"},
            {"type": "custom_tool_call", "status": "completed", "name": "apply_patch", "input": "*** Begin Patch\n+x",
                "call_id": "c3"},
            {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "x"}},
            {"type": "function_call_output", "call_id": "c1", "output": "README.md"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "found"},
                {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]},
            {"type": "custom_tool_call_output", "call_id": "c3", "output": "Done."},
        ],
    });
    let response = replied(&speaker, "So</think>\n\nReady.", &request);
    assert_eq!(response["output"][1]["content"][0]["text"], "Ready.");
    assert_eq!(response["output"][0]["summary"], json!([{"type": "summary_text", "text": "So"}]));
    let prompt = speaker.prompt();
    for part in [
        "You are a coding agent.\n\nSandboxed.<|im_end|>\n",
        "<|im_start|>user\n<environment_context/><|im_end|>\n<|im_start|>user\nLook.<|im_end|>\n",
        "<|im_start|>assistant\n<think>\nI look.\n</think>\n\nLooking.\n\n<tool_call>\n<function=shell>\n<parameter=command>\n\
         [\"ls\"]\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=mcp__docs__search>\n",
        "<function=apply_patch>\n<parameter=input>\n*** Begin Patch\n+x\n</parameter>\n",
        "<tool_response>\nREADME.md\n</tool_response>\n<tool_response>\nfound[left out: the model reads text only]\n",
        "\"name\": \"mcp__docs__search\"",
    ] {
        assert!(prompt.contains(part), "{part}\nis not in\n{prompt}");
    }
    assert!(!prompt.contains("web_search") && !prompt.contains("image_generation"), "{prompt}");
}

#[test]
fn calls_come_back_under_the_names_that_the_client_knows() {
    let speaker = Speaker::new(false, 4096);
    let patch = "*** Begin Patch\n+ \"x\"\n*** End Patch\n";
    let text = format!(
        "<tool_call>\n<function=mcp__docs__search>\n<parameter=query>\nx\n</parameter>\n</function>\n</tool_call>\n\
         <tool_call>\n<function=apply_patch>\n<parameter=input>\n{patch}\n</parameter>\n</function>\n</tool_call>"
    );
    let ask = |input: Value| json!({"input": input, "tools": codex_tools(), "enable_thinking": false});
    let response = replied(&speaker, &text, &ask(json!([user("Go")])));
    let [search, edit] = response["output"].as_array().expect("items").as_slice() else { panic!("{response}") };
    assert_eq!((&search["namespace"], &search["name"]), (&json!("mcp__docs__"), &json!("search")));
    assert_eq!(
        (&edit["type"], &edit["name"], &edit["input"]),
        (&json!("custom_tool_call"), &json!("apply_patch"), &json!(patch))
    );
    assert!(edit.get("namespace").is_none() && edit.get("arguments").is_none(), "{edit}");
    // And are the same when they are sent back.
    let outputs = [
        json!({"type": "function_call_output", "call_id": search["call_id"], "output": "1"}),
        json!({"type": "custom_tool_call_output", "call_id": edit["call_id"], "output": "2"}),
    ];
    replied(&speaker, "ok", &ask(json!([user("Go"), search, edit, outputs[0], outputs[1]])));
    let [first, second] = speaker.lines.prompts().try_into().expect("two prompts");
    let written = tokenizer().encode(&text).expect("tokens");
    assert!(second.starts_with(&[first, written, vec![6082]].concat()), "{}", speaker.prompt());
}

#[test]
fn tool_choice_is_kept_to() {
    let speaker = Speaker::new(false, 4096);
    let ask = |text: &str, changes: Value| {
        let request = json!({"input": "Go", "tools": codex_tools()});
        (replied(&speaker, text, &with(request, &changes)), speaker.prompt())
    };
    // The prompt stays the same, so that what is kept of it is found.
    let (_, prompt) = ask("x", json!({}));
    let (none, same) = ask("x</think>\n\n<tool_call>Hi", json!({"tool_choice": "none"}));
    assert_eq!(same, prompt);
    assert_eq!(none["output"][1]["type"], "message");
    let (_, prompt) = ask("=shell>\n</function>\n</tool_call>", json!({"tool_choice": "required"}));
    assert!(prompt.ends_with("<tool_call>\n<function"), "{prompt}");
    let custom = json!({"type": "custom", "name": "apply_patch"});
    let text = "<parameter=input>\nx\n</parameter>\n</function>\n</tool_call>";
    let (named, prompt) = ask(text, json!({"tool_choice": custom}));
    assert!(prompt.ends_with("<tool_call>\n<function=apply_patch>\n"), "{prompt}");
    assert_eq!((&named["output"][0]["input"], &named["tool_choice"]), (&json!("x"), &custom));
    let allowed = json!({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "shell"}]});
    let (_, prompt) = ask("x", json!({"tool_choice": allowed}));
    assert!(prompt.contains("\"shell\"") && !prompt.contains("apply_patch"), "{prompt}");
    // Tools may come as an item, too.
    let tools =
        json!({"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "late"}]});
    let (_, prompt) = ask("x", json!({"input": [tools, user("Go")]}));
    assert!(prompt.contains("\"late\"") && prompt.contains("\"shell\""), "{prompt}");
}

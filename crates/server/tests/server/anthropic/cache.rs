//! A conversation that goes on is not read again, whatever agents write around it.

use super::stream::gather;
use super::{ask, count, reply, send, tool, written};
use crate::serving::{Speaker, model_with_cache};
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

/// A tool that is shown once a search has found it.
fn deferred(name: &str) -> Value {
    let mut tool = tool(name);
    tool["defer_loading"] = json!(true);
    tool
}

/// What Claude Code 2.1 sends: a system message behind the user's that is blocks at first and text later, thinking whose
/// text is left out, a tool that stands for those to come, and then such a tool itself, amid the others.
#[test]
fn tools_that_are_found_leave_what_was_read() {
    let rules = "Answer each question in one short sentence, and think before you do. ".repeat(20);
    let text = |text: &str| json!({"type": "text", "text": text, "cache_control": {"type": "ephemeral"}});
    let later = |content: Value| json!({"role": "system", "content": content});
    let question = json!({"role": "user", "content": [text("<system-reminder>Be kind.</system-reminder>"),
        text("Fetch it.")]});
    let reference = |name: &str| json!({"type": "tool_reference", "tool_name": name});
    let request = |tools: Value, messages: Value| {
        ask(
            "",
            json!({"system": rules, "tools": tools, "messages": messages, "stream": false,
            "thinking": {"type": "adaptive", "display": "omitted"}, "output_config": {"effort": "high"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}}),
        )
    };
    for official in [false, true] {
        let speaker = Speaker::new(official, 4096);
        let first = request(
            json!([tool("bash"), tool("search"), deferred("placeholder"), tool("write")]),
            json!([question, later(json!([text("It is Monday.")]))]),
        );
        let said = format!("I  search. \n</think>\n\n{}", written("search", &[("city", "x")]));
        let message = reply(&speaker, &said, &first);
        let read = speaker.prompt();
        assert!(
            !read.contains("placeholder") && read.contains("Fetch it.<|im_end|>\n<|im_start|>system\nIt is Monday."),
            "{read}"
        );
        let id = &message["content"][1]["id"];
        assert_eq!((&message["content"][0]["thinking"], id.is_string()), (&json!(""), true), "{message}");
        let second = request(
            json!([tool("bash"), deferred("fetch"), tool("search"), deferred("placeholder"), tool("write")]),
            json!([question, later(json!("It is Monday.")), {"role": "assistant", "content": message["content"]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id,
                    "content": [reference("fetch"), reference("fetch"), reference("bash")]}]}]),
        );
        let call = format!("x\n</think>\n\n{}", written("fetch", &[("days", "3.0")]));
        let message = reply(&speaker, &call, &second);
        // What is called is known, with the types of its parameters.
        assert_eq!(
            (&message["content"][1]["name"], &message["content"][1]["input"]),
            (&json!("fetch"), &json!({"days": 3}))
        );
        let prompt = speaker.prompt();
        assert!(prompt.starts_with(&(read + &said + "<|im_end|>")), "{prompt}");
        let found = r#"<tool_response>
This function can be called now:
{"type": "function", "function": {"name": "fetch", "parameters": {"type": "object", "properties": {"city": "#;
        assert!(prompt.contains(found) && prompt.contains("}}\n\nfetch\n\nbash\n</tool_response>"), "{prompt}");
    }
}

/// Tools that a system message offers, defines or withdraws change nothing of what was read before it.
#[test]
fn tools_that_come_and_go_leave_what_was_read() {
    let change = |kind: &str, tool: Value| json!({"type": kind, "tool": tool});
    let refer = |name: &str| json!({"type": "tool_reference", "name": name});
    let define = |tool: Value| json!({"type": "tool_definition", "definition": tool});
    let says = |text: &str| json!({"role": "assistant", "content": [{"type": "text", "text": text}]});
    let question = |text: &str| json!({"role": "user", "content": text});
    let tools = json!([tool("bash"), tool("search"), deferred("fetch")]);
    let first = json!([question("Hello")]);
    let system = json!({"role": "system", "content": [
        {"type": "text", "text": "The network is up."}, change("tool_addition", refer("fetch")),
        change("tool_removal", refer("bash")), change("tool_addition", define(tool("weather")))]});
    let second = json!([question("Hello"), says("Hi."), question("Fetch it."), system]);
    let third = json!([question("Hello"), says("Hi."), question("Fetch it."), system, says("Done."), question("More"),
        {"role": "system", "content": [change("tool_removal", refer("weather")), change("tool_addition", refer("bash"))]}]);
    for official in [false, true] {
        let speaker = Speaker::new(official, 4096);
        let request = |messages: &Value| ask("", json!({"tools": tools, "messages": messages, "stream": false}));
        reply(&speaker, "Hi.", &request(&first));
        let read = speaker.prompt();
        assert!(read.contains("search") && !read.contains("fetch"), "{read}");
        // What was defined is called with the types of its parameters.
        let message = reply(&speaker, &written("weather", &[("days", "3.0")]), &request(&second));
        let call = &message["content"][0];
        assert_eq!((&call["name"], &call["input"]), (&json!("weather"), &json!({"days": 3})), "{message}");
        let prompt = speaker.prompt();
        let said = "<|im_start|>system\nThe network is up.\n\nThis function can be called now:\n{\"type\": \"function\", \
            \"function\": {\"name\": \"fetch\",";
        assert!(prompt.starts_with(read.split("<|im_start|>assistant").next().expect("a turn")), "{prompt}");
        assert!(
            prompt.contains(said) && prompt.contains("The function bash cannot be called any more.\n\n"),
            "{prompt}"
        );
        // What was withdrawn is no function any more, and what is back is one.
        let message = reply(&speaker, &written("bash", &[("days", "1")]), &request(&third));
        assert_eq!(message["content"][0]["name"], "bash", "{message}");
        assert!(speaker.prompt().contains("The function bash can be called now."), "{}", speaker.prompt());
        let forced = |name: &str, messages: &Value| {
            let choice = json!({"type": "tool", "name": name});
            let request =
                ask("", json!({"tools": tools, "messages": messages, "stream": false, "tool_choice": choice}));
            send(speaker.server.address, &request).status
        };
        assert_eq!([forced("bash", &second), forced("weather", &third), forced("nobody", &first)], [400; 3]);
        // What is offered has to be there.
        let nobody =
            json!([question("Hello"), {"role": "system", "content": [change("tool_addition", refer("nobody"))]}]);
        let (_, message) = super::errors::refused(&send(speaker.server.address, &request(&nobody)), 400);
        assert!(message.contains("messages[1].content[0].tool.name") && message.contains("\"nobody\""), "{message}");
    }
}

/// Without tools of the request's own the head shows the first that the conversation defines, as that was, whatever comes later.
#[test]
fn tools_that_are_defined_one_after_another_leave_what_was_read() {
    let system = |tools: &[Value]| {
        let define =
            |tool: &Value| json!({"type": "tool_addition", "tool": {"type": "tool_definition", "definition": tool}});
        json!({"role": "system", "content": tools.iter().map(define).collect::<Vec<_>>()})
    };
    let mut newer = tool("weather");
    newer["description"] = json!("Better than before.");
    for official in [false, true] {
        let speaker = Speaker::new(official, 4096);
        let mut messages = vec![json!({"role": "user", "content": "Hello"})];
        let mut read = String::new();
        // The last is as the head shows it, which is not the last word that the model has read.
        for (tools, called) in [
            (vec![tool("weather")], "weather"),
            (vec![tool("bash")], "bash"),
            (vec![newer.clone()], "weather"),
            (vec![tool("weather")], "weather"),
        ] {
            messages.push(system(&tools));
            let request = ask("", json!({"messages": messages, "stream": false}));
            let message = reply(&speaker, &written(called, &[("days", "3.0")]), &request);
            let call = &message["content"][0];
            assert_eq!((&call["name"], &call["input"]), (&json!(called), &json!({"days": 3})), "{message}");
            let prompt = speaker.prompt();
            assert!(prompt.starts_with(&read), "{read}\n\nbecame\n\n{prompt}");
            // Up to where the reply begins.
            read = prompt.rsplit_once("<|im_start|>assistant").expect("a reply's beginning").0.to_owned();
            messages
                .extend([json!({"role": "assistant", "content": "Hm."}), json!({"role": "user", "content": "More"})]);
        }
        let counts = ["Better than before.", "<tools>", "\"name\": \"weather\""].map(|text| read.matches(text).count());
        assert_eq!(counts, [1, 1, 3], "{read}");
    }
}

/// A system message for one turn is gone in the next; what it changed about tools is not.
#[test]
fn a_message_for_one_turn_is_gone_in_the_next() {
    let system = json!({"role": "system", "clear_at": "next_user_message", "content": [{"type": "text", "text": "Be quick."},
        {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "fetch"}}]});
    let empty = json!({"role": "system", "output_config": {"effort": "low"}});
    let speaker = Speaker::new(true, 4096);
    let mut messages = vec![json!({"role": "user", "content": "Hello"}), system, empty];
    for (more, is_there) in [
        (json!([]), true),
        // The turn goes on with what a tool gave.
        (
            json!([{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "bash", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "done"}]}]),
            true,
        ),
        (json!([{"role": "assistant", "content": "Hi."}, {"role": "user", "content": "More"}]), false),
    ] {
        messages.extend(more.as_array().expect("messages").clone());
        let request = json!({"tools": [tool("bash"), deferred("fetch")], "messages": messages, "stream": false});
        reply(&speaker, "Yes.", &ask("", request));
        let prompt = speaker.prompt();
        assert_eq!((prompt.contains("Be quick."), prompt.contains("\"fetch\"")), (is_there, true), "{prompt}");
    }
}

/// A tool is held back only where the client's own search can find it.
#[test]
fn tools_that_nothing_could_find_are_shown() {
    let search = json!({"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"});
    let speaker = Speaker::new(true, 4096);
    let shown = |tools: Value, choice: Value| {
        reply(&speaker, "x\n</think>\n\nYes.", &ask("Fetch it.", json!({"tools": tools, "tool_choice": choice})));
        let prompt = speaker.prompt();
        ["fetch", "search"].map(|name| prompt.contains(&format!("\"name\": \"{name}\"")))
    };
    let auto = || json!({"type": "auto"});
    assert_eq!(shown(json!([tool("search"), deferred("fetch")]), auto()), [false, true]);
    assert_eq!(shown(json!([search, tool("search"), deferred("fetch")]), auto()), [true, true]);
    assert_eq!(shown(json!([deferred("search"), deferred("fetch")]), auto()), [true, true]);
}

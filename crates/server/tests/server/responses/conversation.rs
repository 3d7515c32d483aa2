//! Conversations: gone on with by the id of a response, or by its items.

use super::{replied, respond, user, with};
use crate::client::{get, request};
use crate::scripted::Scripted;
use crate::serving::{Speaker, model, model_with_cache, scripted, tokenizer};
use serde_json::{Value, json};

fn id(response: &Value) -> &str {
    response["id"].as_str().expect("an id")
}

/// A call that no rendering would give: space and numbers in the model's own spelling.
const ODD: &str = "Hm,  I need it. \n</think>\n\nNow:\n<tool_call>\n<function=f>\n<parameter=n>\n5.0\n</parameter>\n\
                   <parameter=o>\n{'a':  1}\n</parameter>\n</function>\n</tool_call>\n";

fn with_tool(changes: Value) -> Value {
    let tool = json!({"type": "function", "name": "f", "strict": false, "parameters": {"type": "object", "properties": {
        "n": {"type": "integer"}, "o": {"type": "object"}}}});
    with(json!({"input": [user("Go")], "tools": [tool]}), &changes)
}

/// The question, what was answered, and the tool's result.
fn all(items: Vec<Value>, output: Value) -> Vec<Value> {
    [vec![user("Go")], items, vec![output]].concat()
}

/// By the id, by all items, as codex sends them (without the reasoning's content and the items' ids), and as clients that
/// keep calls only: the prompt is the same, and holds what the model wrote.
#[test]
fn the_next_prompt_holds_what_the_model_wrote() {
    for official in [false, true] {
        let mut prompts = Vec::new();
        for way in 0..4 {
            let speaker = Speaker::new(official, 4096);
            let first = replied(&speaker, ODD, &with_tool(json!({})));
            let call = &first["output"][2];
            let output = json!({"type": "function_call_output", "call_id": call["call_id"], "output": "done"});
            let mut items = first["output"].as_array().expect("items").clone();
            let changes = match way {
                0 => json!({"previous_response_id": id(&first), "input": [output]}),
                1 => json!({"input": all(items, output)}),
                2 => {
                    for item in &mut items {
                        item.as_object_mut().expect("an object").remove("id");
                        item.as_object_mut().expect("an object").remove("status");
                    }
                    items[0].as_object_mut().expect("an object").remove("content");
                    json!({"input": all(items, output), "store": false})
                }
                _ => json!({"input": [user("Go"), call, output]}),
            };
            replied(&speaker, "ok</think>\n\nok", &with_tool(changes));
            let [before, after] = speaker.lines.prompts().try_into().expect("two prompts");
            let written = tokenizer().encode(ODD).expect("tokens");
            assert!(after.starts_with(&[before, written, vec![6082]].concat()), "{}", speaker.prompt());
            assert!(speaker.prompt().contains("<tool_response>\ndone\n</tool_response><|im_end|>\n"));
            prompts.push(after);
        }
        prompts.dedup();
        assert_eq!(prompts.len(), 1);
    }
}

#[test]
fn the_second_turn_reads_only_what_is_new() {
    let server = model_with_cache();
    let instructions = "You are Lily, a small and friendly assistant. ".repeat(12);
    let ask = |changes: Value| {
        let request = json!({"instructions": instructions, "reasoning": {"effort": "none"}, "temperature": 0});
        respond(server.address, &with(request, &changes)).ok()
    };
    let count = |response: &Value| response["usage"]["input_tokens"].as_u64().expect("a count");
    let cached =
        |response: &Value| response["usage"]["input_tokens_details"]["cached_tokens"].as_u64().expect("a count");
    let first = ask(json!({"input": "My name is Anna."}));
    assert_eq!(cached(&first), 0);
    let question = user("What is my name?");
    let by_id = ask(json!({"previous_response_id": id(&first), "input": [question]}));
    let items = [vec![user("My name is Anna.")], first["output"].as_array().expect("items").clone(), vec![question]];
    let by_items = ask(json!({"input": items.concat()}));
    for second in [&by_id, &by_items] {
        // All of the first prompt, with the empty thought at its end.
        assert!(cached(second) + 1 >= count(&first), "{second}");
        assert_eq!(second["output"][0]["content"], by_id["output"][0]["content"]);
        assert_eq!(count(second), count(&by_id));
    }
}

/// Instructions are the request's, not the conversation's.
#[test]
fn instructions_are_not_handed_on() {
    let speaker = Speaker::new(true, 4096);
    let first = replied(&speaker, "x</think>\n\nOne", &json!({"input": "Go", "instructions": "Be brief."}));
    let second = json!({"input": "More", "previous_response_id": id(&first), "instructions": "Be long."});
    let second = replied(&speaker, "x</think>\n\nTwo", &second);
    let prompt = speaker.prompt();
    let turns = "<|im_start|>user\nGo<|im_end|>\n<|im_start|>assistant\n<think>\nx\n</think>\n\nOne<|im_end|>\n\
        <|im_start|>user\nMore<|im_end|>\n";
    assert!(prompt.starts_with(&format!("<|im_start|>system\nBe long.<|im_end|>\n{turns}")), "{prompt}");
    assert_eq!(second["previous_response_id"], first["id"]);
}

/// What was thought stays, so that a turn only adds to what was read, unless the client wants it gone.
#[test]
fn reasoning_of_earlier_turns_stays() {
    let thought = "<|im_start|>user\nGo<|im_end|>\n<|im_start|>assistant\n<think>\nx\n</think>\n\nOne<|im_end|>\n";
    let forgotten = "<|im_start|>user\nGo<|im_end|>\n<|im_start|>assistant\nOne<|im_end|>\n";
    for (changes, expected) in [
        (json!({}), thought),
        (json!({"reasoning": {"context": "auto"}}), thought),
        (json!({"reasoning": {"context": "all_turns", "effort": "none"}}), thought),
        (json!({"reasoning": {"context": "current_turn"}}), forgotten),
        (json!({"preserve_thinking": false}), forgotten),
    ] {
        for by_id in [true, false] {
            let speaker = Speaker::new(true, 4096);
            let first = replied(&speaker, "x\n</think>\n\nOne", &json!({"input": "Go"}));
            let read = speaker.prompt();
            let second = if by_id {
                json!({"input": "More", "previous_response_id": id(&first)})
            } else {
                let output = first["output"].as_array().expect("items").clone();
                let items = [vec![user("Go")], output, vec![user("More")]].concat();
                json!({"input": items})
            };
            replied(&speaker, "y\n</think>\n\nTwo", &with(second, &changes));
            let prompt = speaker.prompt();
            assert!(prompt.starts_with(&format!("{expected}<|im_start|>user\nMore")), "{changes}: {prompt}");
            assert!(expected == forgotten || prompt.starts_with(&read), "{changes}: {prompt}");
        }
    }
}

/// A conversation that is kept here begins to think, and leaves off, without a change to what was read before.
#[test]
fn thinking_may_begin_amid_a_conversation() {
    let speaker = Speaker::new(true, 4096);
    let (mut last, mut read) = (Value::Null, String::new());
    for (effort, says) in [
        ("none", "One"),
        ("none", "Two"),
        ("high", "x\n</think>\n\nThree"),
        ("high", "\n</think>\n\nFour"),
        ("none", "Five"),
    ] {
        let request = json!({"input": "More", "previous_response_id": last, "reasoning": {"effort": effort}});
        let response = replied(&speaker, says, &request);
        let prompt = speaker.prompt();
        assert!(prompt.starts_with(&read), "{says}: {read}\n\nbecame\n\n{prompt}");
        last = response["id"].clone();
        // But for the beginning of the thoughts, which the reply is a part of.
        read = prompt.rsplit_once("<think>").expect("the reply's beginning").0.to_owned();
    }
}

#[test]
fn responses_are_given_again_listed_and_deleted() {
    let speaker = Speaker::new(false, 4096);
    let address = speaker.server.address;
    let first = replied(&speaker, "One", &json!({"input": "Go", "enable_thinking": false}));
    let path = format!("/v1/responses/{}", id(&first));
    assert_eq!(get(address, &path).ok(), first);

    let second = replied(&speaker, "Two", &json!({"input": [user("More")], "previous_response_id": id(&first)}));
    let items = format!("/v1/responses/{}/input_items", id(&second));
    let listed = get(address, &format!("{items}?order=asc")).ok();
    let texts: Vec<_> =
        listed["data"].as_array().expect("items").iter().map(|item| &item["content"][0]["text"]).collect();
    assert_eq!(texts, ["Go", "One", "More"]);
    assert_eq!((&listed["object"], &listed["has_more"]), (&json!("list"), &json!(false)));
    let newest = get(address, &format!("{items}?limit=1")).ok();
    assert_eq!((&newest["data"][0], &newest["has_more"]), (&listed["data"][2], &json!(true)));
    get(address, &format!("{items}?limit=1000")).error(400);

    // An item may be referred to by its id.
    let reference = json!({"type": "item_reference", "id": first["output"][0]["id"]});
    replied(&speaker, "x", &json!({"input": [user("Go"), reference, user("So?")]}));
    assert!(speaker.prompt().contains("<|im_start|>assistant\nOne<|im_end|>\n"), "{}", speaker.prompt());

    let deleted = request(address, "DELETE", &path, &[], b"").ok();
    assert_eq!(deleted, json!({"id": first["id"], "object": "response", "deleted": true}));
    for answer in [get(address, &path), request(address, "DELETE", &path, &[], b""), get(address, &items)] {
        let (_, code, _) = answer.error(404);
        assert_eq!(code, "response_not_found");
    }
    let go_on = json!({"input": "x", "previous_response_id": id(&second)});
    let (param, code, _) = respond(address, &go_on).error(400);
    assert_eq!((param, code), (json!("previous_response_id"), json!("previous_response_not_found")));
}

#[test]
fn what_is_referred_to_counts_as_if_it_were_sent() {
    let server = scripted(Scripted::new(1000), |config| config.body_limit = 10_000);
    let first = respond(server.address, &json!({"input": "Hello", "max_output_tokens": 2})).ok();
    let referring = |times: usize| {
        let reference = json!({"type": "item_reference", "id": first["output"][0]["id"]});
        let input = [vec![user("Go")], vec![reference; times], vec![user("So?")]].concat();
        respond(server.address, &json!({"input": input, "max_output_tokens": 2}))
    };
    referring(1).ok();
    let (_, code, _) = referring(80).error(413);
    assert_eq!(code, "body_too_large");
}

#[test]
fn what_is_not_to_be_stored_is_not() {
    let response = respond(model(), &json!({"input": "Hello", "store": false, "max_output_tokens": 2})).ok();
    get(model(), &format!("/v1/responses/{}", id(&response))).error(404);
    let go_on = json!({"input": "x", "previous_response_id": id(&response)});
    respond(model(), &go_on).error(400);
}

/// However many responses there are, the store holds as many bytes as it may.
#[test]
fn older_responses_make_room() {
    let server = scripted(Scripted::new(1000), |config| config.response_bytes = 60_000);
    let ids: Vec<String> = (0..30)
        .map(|_| {
            let response = respond(server.address, &json!({"input": "Hello", "max_output_tokens": 2})).ok();
            id(&response).to_owned()
        })
        .collect();
    let kept: Vec<bool> =
        ids.iter().map(|id| get(server.address, &format!("/v1/responses/{id}")).status == 200).collect();
    let count = kept.iter().filter(|kept| **kept).count();
    assert!(count > 2 && count < 20, "{count}");
    assert!(kept[30 - count..].iter().all(|kept| *kept), "the newest: {kept:?}");
}

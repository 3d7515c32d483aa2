//! Case 9: what the model wrote for a call is what the next prompt holds.

use crate::serving::{Speaker, tokenizer};
use serde_json::{Value, json};

fn request(messages: &[Value], changes: Value) -> Value {
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
        "n": {"type": "integer"}, "o": {"type": "object"}}}}});
    let mut request = json!({"messages": messages, "tools": [tool]});
    for (name, value) in changes.as_object().expect("an object") {
        request[name] = value.clone();
    }
    request
}

/// What no rendering of the call would give: numbers and space in the model's own spelling, reasoning with space at its
/// end.
const ODD: &str = "Hm,  I need it. \n</think>\n\nNow:\n<tool_call>\n<function=f>\n<parameter=n>\n5.0\n</parameter>\n\
                   <parameter=o>\n{'a':  1}\n</parameter>\n</function>\n</tool_call>\n";

/// Asks, is answered with `text`, and sends the call back with `change`; gives the first prompt and the second.
fn round(official: bool, text: &str, changes: Value, change: impl FnOnce(&mut Value)) -> (Vec<u32>, Vec<u32>) {
    let speaker = Speaker::new(official, 4096);
    let mut messages = vec![json!({"role": "user", "content": "Go"})];
    let reply = speaker.reply(text, &request(&messages, changes.clone()));
    let mut message = reply["choices"][0]["message"].clone();
    let id = message["tool_calls"][0]["id"].clone();
    change(&mut message);
    messages.push(message);
    messages.push(json!({"role": "tool", "tool_call_id": id, "content": "done"}));
    speaker.reply("ok</think>\n\nok", &request(&messages, json!({})));
    let [first, second] = speaker.lines.prompts().try_into().expect("two prompts");
    (first, second)
}

fn text(tokens: &[u32]) -> String {
    let bytes: Vec<u8> = tokens.iter().flat_map(|&token| tokenizer().bytes(token).to_vec()).collect();
    String::from_utf8(bytes).expect("text")
}

/// The first prompt and the reply in the tokens that the model wrote.
fn with_reply(first: &[u32], reply: &str) -> Vec<u32> {
    [first, &tokenizer().encode(reply).expect("tokens"), &[6082]].concat()
}

#[test]
fn the_next_prompt_holds_what_the_model_wrote() {
    for official in [false, true] {
        for (what, change) in [
            ("as it came", Box::new(|_: &mut Value| {}) as Box<dyn FnOnce(&mut Value)>),
            (
                "without the reasoning",
                Box::new(|message: &mut Value| {
                    let message = message.as_object_mut().expect("an object");
                    message.remove("reasoning");
                    message.remove("reasoning_content");
                }),
            ),
            ("without content", Box::new(|message: &mut Value| message["content"] = Value::Null)),
            (
                "arguments spelled anew",
                Box::new(|message: &mut Value| {
                    message["tool_calls"][0]["function"]["arguments"] = json!("{ \"o\" : {\"a\":1}, \"n\": 5.0 }");
                }),
            ),
        ] {
            let (first, second) = round(official, ODD, json!({}), change);
            assert!(second.starts_with(&with_reply(&first, ODD)), "{what}: {}", text(&second));
            assert!(
                text(&second)
                    .ends_with("<tool_response>\ndone\n</tool_response><|im_end|>\n<|im_start|>assistant\n<think>\n")
            );
        }
    }
}

#[test]
fn calls_that_were_changed_are_written_out() {
    let other = |change: Box<dyn FnOnce(&mut Value)>| text(&round(true, ODD, json!({}), change).1);
    let changed = other(Box::new(|message| message["tool_calls"][0]["function"]["arguments"] = json!("{\"n\": 6}")));
    assert!(changed.contains("<parameter=n>\n6\n</parameter>\n</function>\n</tool_call><|im_end|>"), "{changed}");
    assert!(!changed.contains("5.0"));
    let unknown = other(Box::new(|message| message["tool_calls"][0]["id"] = json!("call_other")));
    assert!(unknown.contains("Now:\n\n<tool_call>\n<function=f>\n<parameter=n>\n5\n"), "{unknown}");
    assert!(unknown.contains("<parameter=o>\n{\"a\": 1}\n"), "{unknown}");
    let said = other(Box::new(|message| message["content"] = json!("Later:")));
    assert!(said.contains("</think>\n\nLater:\n\n<tool_call>"), "{said}");
}

#[test]
fn calls_that_were_asked_for_are_kept_whole() {
    let choice = json!({"tool_choice": {"type": "function", "function": {"name": "f"}}});
    // JSON of the schema, in a spelling that no rendering has.
    let written = "<parameter=n>\n7\n</parameter>\n<parameter=o>\n{\"a\":1}\n</parameter>\n</function>\n</tool_call>";
    for official in [false, true] {
        let (first, second) = round(official, written, choice.clone(), |_| {});
        assert!(text(&first).ends_with("<tool_call>\n<function=f>\n"));
        assert!(second.starts_with(&with_reply(&first, written)), "{}", text(&second));
    }
}

#[test]
fn without_thinking_too() {
    let written = "Go:\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>";
    let (first, second) = round(true, written, json!({"enable_thinking": false}), |_| {});
    assert!(second.starts_with(&with_reply(&first, written)), "{}", text(&second));
}

/// A turn before the last question is shown without its reasoning, as the template has it.
#[test]
fn reasoning_that_the_template_leaves_out_stays_out() {
    let speaker = Speaker::new(true, 4096);
    let mut messages = vec![json!({"role": "user", "content": "Go"})];
    let reply = speaker.reply(ODD, &request(&messages, json!({})));
    messages.push(reply["choices"][0]["message"].clone());
    messages.push(json!({"role": "tool", "content": "done"}));
    messages.push(json!({"role": "user", "content": "And now?"}));
    speaker.reply("x", &request(&messages, json!({})));
    let prompt = speaker.prompt();
    let kept = ODD.split_once("</think>\n\n").expect("there").1;
    assert!(prompt.contains(&format!("<|im_start|>assistant\n{kept}<|im_end|>")), "{prompt}");
    speaker.reply("x", &request(&messages, json!({"preserve_thinking": true})));
    assert!(speaker.prompt().contains(&format!("<|im_start|>assistant\n<think>\n{ODD}<|im_end|>")));
}

/// Calls that came before the reasoning was closed, of which the template wants the rest only, have no rest: they are
/// written out, and cost the others nothing.
#[test]
fn turns_that_do_not_fit_cost_the_others_nothing() {
    let speaker = Speaker::new(true, 4096);
    let mut messages = vec![json!({"role": "user", "content": "Go"})];
    let open = |n: usize| {
        format!("I must.\n<tool_call>\n<function=f>\n<parameter=n>\n {n} \n</parameter>\n</function>\n</tool_call>")
    };
    for text in [open(1).as_str(), ODD, open(2).as_str()] {
        let reply = speaker.reply(text, &request(&messages, json!({})));
        let message = reply["choices"][0]["message"].clone();
        let id = message["tool_calls"][0]["id"].clone();
        messages.extend([message, json!({"role": "tool", "tool_call_id": id, "content": "done"})]);
    }
    messages.push(json!({"role": "user", "content": "And now?"}));
    speaker.reply("x", &request(&messages, json!({})));
    let prompt = speaker.prompt();
    let kept = ODD.split_once("</think>\n\n").expect("there").1;
    assert!(prompt.contains(&format!("<|im_start|>assistant\n{kept}<|im_end|>")), "{prompt}");
    for n in [1, 2] {
        let anew = format!("<|im_start|>assistant\n<tool_call>\n<function=f>\n<parameter=n>\n{n}\n</parameter>\n");
        assert!(prompt.contains(&anew), "{prompt}");
    }
    assert!(!prompt.contains("I must."), "{prompt}");
}

/// Calls without arguments come back in many forms.
#[test]
fn no_arguments_are_no_arguments() {
    let written = "ok</think>\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>\n";
    for none in [json!(""), json!("null"), json!({}), Value::Null] {
        let change = |message: &mut Value| message["tool_calls"][0]["function"]["arguments"] = none.clone();
        let (first, second) = round(true, written, json!({}), change);
        assert!(second.starts_with(&with_reply(&first, written)), "{none}: {}", text(&second));
    }
}

/// A client that leaves out reasoning to fit the context does not get it back when it does not fit.
#[test]
fn what_was_left_out_stays_out_where_there_is_no_room() {
    let speaker = Speaker::new(true, 1000);
    let mut messages = vec![json!({"role": "user", "content": "Go"})];
    let written = "so ".repeat(300) + ODD;
    let reply = speaker.reply(&written, &request(&messages, json!({})));
    let count = |name: &str| reply["usage"][name].as_u64().expect("a count") as usize;
    let (before, own) = (count("prompt_tokens"), count("completion_tokens"));
    assert!(before + own < 900 && own > 300, "{before} {own}");
    let mut message = reply["choices"][0]["message"].clone();
    message.as_object_mut().expect("an object").retain(|name, _| !name.starts_with("reasoning"));
    messages.push(message);
    // With the reasoning it is too much.
    messages.push(json!({"role": "tool", "content": " a".repeat(1000 - before - own)}));
    speaker.reply("ok", &request(&messages, json!({})));
    let prompt = speaker.prompt();
    assert!(!prompt.contains("so so") && prompt.contains("<parameter=n>\n5\n"), "{prompt}");
    // Nor does one that says that it is empty.
    let (_, second) = round(true, ODD, json!({}), |message| {
        message["reasoning_content"] = json!("");
        message["reasoning"] = json!("");
    });
    assert!(!text(&second).contains("I need it"), "{}", text(&second));
}

/// What a stop string has taken away was never said.
#[test]
fn what_follows_a_stop_string_is_not_replayed() {
    let call = "ok</think>\n\n<tool_call>\n<function=f>\n<parameter=n>\n 5 \n</parameter>\n</function>\n</tool_call>";
    let stop = json!({"stop": ["Observation"]});
    let (_, second) = round(true, &format!("{call}\nObservation: x"), stop, |_| {});
    assert!(text(&second).contains("<parameter=n>\n5\n") && !text(&second).contains("Observ"), "{}", text(&second));
    // A single call ends the reply at its tag, and is kept; what came in the place of the tag is not.
    let single = json!({"parallel_tool_calls": false});
    let (first, second) = round(true, &format!("{call}\nAnd"), single.clone(), |_| {});
    assert!(second.starts_with(&with_reply(&first, call)), "{}", text(&second));
    let untagged = call.strip_suffix("\n</tool_call>").expect("there");
    let (_, second) = round(true, &format!("{untagged}\nAnd so on"), single, |_| {});
    assert!(text(&second).contains("</tool_call><|im_end|>") && !text(&second).contains("And"), "{}", text(&second));
}

/// A reply that was cut is no example to go on from.
#[test]
fn cut_replies_are_not_kept() {
    let most = tokenizer().encode(ODD).expect("tokens").len() - 2;
    let (_, second) = round(true, ODD, json!({"max_tokens": most}), |_| {});
    assert!(text(&second).contains("</tool_call><|im_end|>"), "{}", text(&second));
}

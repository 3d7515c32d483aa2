//! The parser of replies: reasoning, content and calls.

use std::sync::{Arc, LazyLock};

use lily_chat::{CallOptions, ReplyEvent, ReplyParser, ToolSet};
use serde_json::{Map, Value, json};

use crate::stream::{characters, pieces};

static TOOLS: LazyLock<Arc<ToolSet>> = LazyLock::new(|| {
    let parameters = json!({"type": "object", "properties": {
        "text": {"type": "string"}, "count": {"type": "integer"}, "size": {"type": "number"}, "flag": {"type": "boolean"},
        "list": {"type": "array"}, "options": {"type": "object"}, "unit": {"enum": ["a", "b", 1, null]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}, {"type": "array"}]},
    }});
    Arc::new(ToolSet::new(&[
        json!({"type": "function", "function": {"name": "f", "parameters": parameters}}),
        json!({"type": "function", "function": {"name": "now"}}),
    ]))
});

/// How a reply is read.
#[derive(Clone, Copy, Debug)]
struct Form {
    reasoning: Option<bool>,
    single: bool,
    /// Whether the model has ended the text.
    own: bool,
}

/// What comes of a reply.
#[derive(Debug, PartialEq)]
struct Read {
    /// Joined as far as they can be.
    events: Vec<ReplyEvent>,
    was_cut: bool,
    is_done: bool,
    reasoning_was_open: bool,
}

/// The first byte says how the reply is read; the rest is its text, cut at bytes 255.
///
/// However it is cut the same events come, a call's arguments are a JSON object if the call is complete and no JSON if not, and
/// a text that holds no tag of a call comes back from a written call to the byte.
pub fn tool_calls(data: &[u8]) {
    let Some((&flags, rest)) = data.split_first() else { return };
    let form =
        Form { reasoning: (flags & 1 == 0).then_some(flags & 2 == 0), single: flags & 4 != 0, own: flags & 8 == 0 };
    let pieces = pieces(rest);
    let whole = pieces.concat();
    let read = parse(form, std::slice::from_ref(&whole));
    check(form, &read);
    assert_eq!(parse(form, &pieces), read, "in pieces: {pieces:?}");
    assert_eq!(parse(form, &characters(&whole)), read, "in characters: {whole:?}");
    if !whole.contains("</") && !whole.contains("<function=") {
        comes_back(&whole, rest.len());
    }
}

fn parse(form: Form, pushes: &[String]) -> Read {
    let calls = CallOptions { tools: Arc::clone(&TOOLS), id_prefix: "call_".into(), single: form.single };
    let mut parser = ReplyParser::new(form.reasoning, Some(calls));
    let mut events = Vec::new();
    let given: Vec<ReplyEvent> = pushes.iter().flat_map(|text| parser.push(text)).collect();
    let last = if form.own { parser.finish() } else { parser.cut() };
    for event in given.into_iter().chain(last) {
        if let ReplyEvent::Reasoning(text) | ReplyEvent::Content(text) | ReplyEvent::CallArguments { json: text, .. } =
            &event
        {
            assert!(!text.is_empty(), "an empty event");
        }
        event.join(&mut events);
    }
    let (was_cut, is_done) = (parser.was_cut(), parser.is_done());
    Read { events, was_cut, is_done, reasoning_was_open: parser.reasoning_was_open() }
}

fn check(form: Form, read: &Read) {
    let (mut calls, mut open) = (Vec::new(), false);
    for event in &read.events {
        match event {
            ReplyEvent::Reasoning(_) => assert!(form.reasoning.is_some(), "reasoning that nobody asked for"),
            ReplyEvent::Content(_) => {}
            ReplyEvent::CallBegin { index, id, name } => {
                assert_eq!((*index, id), (calls.len(), &format!("call_{index}")));
                assert!(!name.is_empty(), "a call without a name");
                calls.push((String::new(), false));
                open = true;
            }
            ReplyEvent::CallArguments { index, json } => {
                assert!(open && index + 1 == calls.len(), "arguments of a call that has ended");
                calls[*index].0.push_str(json);
            }
            ReplyEvent::CallEnd { index } => {
                assert!(open && index + 1 == calls.len(), "the end of a call that has ended");
                calls[*index].1 = true;
                open = false;
            }
        }
    }
    assert!(!form.single || calls.len() <= 1, "more than the single call");
    for (arguments, complete) in &calls {
        let parsed: Result<Map<String, Value>, _> = serde_json::from_str(arguments);
        assert_eq!(parsed.is_ok(), *complete, "arguments {arguments:?}");
        assert!(*complete || read.was_cut);
    }
}

/// A call with this text as the value of a string, written as the template writes it.
fn comes_back(value: &str, cuts: usize) {
    let text = format!(
        "<tool_call>\n<function=f>\n<parameter=text>\n{value}\n</parameter>\n<parameter=count>\n{cuts}\n</parameter>\n</function>\n</tool_call>"
    );
    let read = parse(Form { reasoning: Some(false), single: false, own: true }, &[text]);
    let arguments: String = read
        .events
        .iter()
        .map(|event| match event {
            ReplyEvent::CallArguments { json, .. } => json.as_str(),
            ReplyEvent::CallBegin { .. } | ReplyEvent::CallEnd { .. } => "",
            other => panic!("{other:?} beside the call"),
        })
        .collect();
    assert_eq!(serde_json::from_str::<Value>(&arguments).ok(), Some(json!({"text": value, "count": cuts})));
}

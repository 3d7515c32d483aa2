//! What the parser makes of a reply, however it comes.

use std::sync::Arc;

use lily_chat::{CallOptions, ReplyEvent, ReplyParser, ToolSet};
use serde_json::{Value, json};

/// What a reply amounts to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Read {
    pub(crate) reasoning: String,
    pub(crate) content: String,
    /// Name and arguments.
    pub(crate) calls: Vec<(String, String)>,
    /// Whether each call is complete.
    pub(crate) complete: Vec<bool>,
}

fn tools() -> Arc<ToolSet> {
    let parameters = json!({"type": "object", "properties": {
        "text": {"type": "string"}, "count": {"type": "integer"}, "flag": {"type": "boolean"},
        "list": {"type": "array"}, "options": {"type": "object"}, "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    }});
    Arc::new(ToolSet::new(&[
        json!({"type": "function", "function": {"name": "f", "parameters": parameters}}),
        json!({"type": "function", "function": {"name": "now"}}),
    ]))
}

pub(crate) fn parser(begins_in_reasoning: bool, single: bool) -> ReplyParser {
    let calls = CallOptions { tools: tools(), id_prefix: "call_x".into(), single };
    ReplyParser::new(Some(begins_in_reasoning), Some(calls))
}

pub(crate) fn gather(events: Vec<ReplyEvent>) -> Read {
    let mut read = Read::default();
    for event in events {
        match event {
            ReplyEvent::Reasoning(text) => read.reasoning += &text,
            ReplyEvent::Content(text) => read.content += &text,
            ReplyEvent::CallBegin { index, id, name } => {
                assert_eq!((index, id), (read.calls.len(), format!("call_x{index}")));
                read.calls.push((name, String::new()));
                read.complete.push(false);
            }
            ReplyEvent::CallArguments { index, json } => {
                assert!(!json.is_empty() && index + 1 == read.calls.len() && !read.complete[index]);
                read.calls[index].1 += &json;
            }
            ReplyEvent::CallEnd { index } => {
                assert_eq!(index + 1, read.calls.len());
                read.complete[index] = true;
            }
        }
    }
    for ((name, arguments), complete) in read.calls.iter().zip(&read.complete) {
        let parsed: Result<serde_json::Map<String, Value>, _> = serde_json::from_str(arguments);
        assert_eq!(parsed.is_ok(), *complete, "{name}: {arguments}");
    }
    read
}

/// `own`: whether the model has ended the text.
pub(crate) fn run(begins: bool, single: bool, own: bool, pushes: &[&str]) -> Read {
    let mut parser = parser(begins, single);
    let mut events: Vec<ReplyEvent> = pushes.iter().flat_map(|text| parser.push(text)).collect();
    events.extend(if own { parser.finish() } else { parser.cut() });
    let read = gather(events);
    // A call of which there is no name yet gives nothing.
    assert!(parser.was_cut() || read.complete.iter().all(|complete| *complete), "{read:?}");
    read
}

/// Reads `text` whole and in single characters.
pub(crate) fn read_to(own: bool, begins: bool, text: &str) -> Read {
    let whole = run(begins, false, own, &[text]);
    let characters: Vec<String> = text.chars().map(String::from).collect();
    let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
    assert_eq!(run(begins, false, own, &characters), whole, "{text:?}");
    whole
}

pub(crate) fn read_from(begins: bool, text: &str) -> Read {
    read_to(true, begins, text)
}

pub(crate) fn read(text: &str) -> Read {
    read_from(false, text)
}

/// The calls, all of which are complete.
pub(crate) fn calls(text: &str) -> Vec<(String, Value)> {
    let parse = |(name, arguments): (String, String)| (name, serde_json::from_str(&arguments).expect("JSON"));
    read(text).calls.into_iter().map(parse).collect()
}

/// The arguments of the only call, which was cut.
pub(crate) fn open(text: &str, own: bool) -> String {
    let mut all = read_to(own, false, text);
    assert_eq!(all.complete, [false], "{text:?}: {all:?}");
    all.calls.remove(0).1
}

pub(crate) fn one(name: &str, arguments: Value) -> Vec<(String, Value)> {
    vec![(name.to_owned(), arguments)]
}

/// A call as the template writes it.
pub(crate) fn written(parameters: &[(&str, &str)]) -> String {
    let parameters: String =
        parameters.iter().map(|(key, value)| format!("<parameter={key}>\n{value}\n</parameter>\n")).collect();
    format!("<tool_call>\n<function=f>\n{parameters}</function>\n</tool_call>")
}

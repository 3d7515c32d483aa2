//! The output items of a response, made of a reply's events, and the events of a stream that tell of them.
//!
//! ```text
//! output_item.added ─► content_part.added ─► …delta ─► …done ─► content_part.done ─► output_item.done    text
//! output_item.added ─► …arguments.delta ─► …arguments.done ─► output_item.done                           a call
//! ```
//!
//! Clients run a call as soon as its `output_item.done` comes: a call that was cut is never said to be done, and stands in
//! the response as "incomplete".

use crate::generate::Reason;
use crate::replay::Call;
use crate::responses::custom::{CustomInput, whole_input};
use crate::responses::functions::{Function, Functions};
use lily_chat::ReplyEvent;
use serde_json::{Value, json};
use std::sync::Arc;

/// An event of a stream, without its place in it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event {
    pub(crate) name: &'static str,
    pub(crate) fields: Value,
}

/// How a reply's reasoning is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ReasoningForm {
    /// As the content of a reasoning item, which is what it is.
    #[default]
    Content,
    /// As its summary, where clients look that ask for one.
    Summary,
}

/// The items so far.
pub(crate) struct Output {
    /// What the items' ids have in common.
    response: String,
    reasoning: ReasoningForm,
    functions: Arc<Functions>,
    done: Vec<Value>,
    open: Option<Open>,
}

/// An item in the making.
enum Open {
    Text(&'static TextItem, String),
    Call { call: Call, function: Function, input: Option<CustomInput> },
}

/// The names of things for an item that is text.
struct TextItem {
    kind: Kind,
    id_prefix: &'static str,
    index: &'static str,
    part_type: &'static str,
    part_added: &'static str,
    delta: &'static str,
    done: &'static str,
    part_done: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Message,
    Reasoning,
    Summary,
}

static MESSAGE: TextItem = TextItem {
    kind: Kind::Message,
    id_prefix: "msg",
    index: "content_index",
    part_type: "output_text",
    part_added: "response.content_part.added",
    delta: "response.output_text.delta",
    done: "response.output_text.done",
    part_done: "response.content_part.done",
};

static REASONING: TextItem = TextItem {
    kind: Kind::Reasoning,
    id_prefix: "rs",
    index: "content_index",
    part_type: "reasoning_text",
    part_added: "response.content_part.added",
    delta: "response.reasoning_text.delta",
    done: "response.reasoning_text.done",
    part_done: "response.content_part.done",
};

static SUMMARY: TextItem = TextItem {
    kind: Kind::Summary,
    id_prefix: "rs",
    index: "summary_index",
    part_type: "summary_text",
    part_added: "response.reasoning_summary_part.added",
    delta: "response.reasoning_summary_text.delta",
    done: "response.reasoning_summary_text.done",
    part_done: "response.reasoning_summary_part.done",
};

impl TextItem {
    fn part(&self, text: &str) -> Value {
        let mut part = json!({"type": self.part_type, "text": text});
        if self.kind == Kind::Message {
            part["annotations"] = json!([]);
            part["logprobs"] = json!([]);
        }
        part
    }

    /// `text`: `None` before there is a part.
    fn item(&self, id: &str, status: &str, text: Option<&str>) -> Value {
        let parts: Vec<Value> = text.iter().map(|text| self.part(text)).collect();
        match self.kind {
            Kind::Message => {
                json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": parts})
            }
            Kind::Reasoning => {
                json!({"id": id, "type": "reasoning", "summary": [], "content": parts, "status": status})
            }
            Kind::Summary => json!({"id": id, "type": "reasoning", "summary": parts, "status": status}),
        }
    }

    /// The fields of an event about the only part.
    fn fields(&self, id: &str, output_index: usize, field: &str, value: Value) -> Value {
        let mut fields = json!({"item_id": id, "output_index": output_index});
        fields[self.index] = json!(0);
        fields[field] = value;
        if self.kind == Kind::Message && matches!(field, "delta" | "text") {
            fields["logprobs"] = json!([]);
        }
        fields
    }
}

impl Open {
    fn id_prefix(&self) -> &'static str {
        match self {
            Self::Text(item, _) => item.id_prefix,
            Self::Call { function, .. } if function.custom => "ctc",
            Self::Call { .. } => "fc",
        }
    }

    /// The item; `begun`: it has no text yet.
    fn item(&self, id: &str, status: &str, begun: bool) -> Value {
        let (call, function) = match self {
            Self::Text(item, text) => return item.item(id, status, (!begun).then_some(text.as_str())),
            Self::Call { call, function, .. } => (call, function),
        };
        let kind = if function.custom { "custom_tool_call" } else { "function_call" };
        let mut item = json!({"id": id, "type": kind, "status": status, "call_id": call.id, "name": function.name});
        if let Some(namespace) = &function.namespace {
            item["namespace"] = namespace.as_str().into();
        }
        let field = if function.custom { "input" } else { "arguments" };
        let text = match (begun, function.custom) {
            (true, _) => String::new(),
            (false, true) => whole_input(&call.arguments),
            (false, false) => call.arguments.clone(),
        };
        item[field] = text.into();
        item
    }
}

impl Output {
    /// `response`: what the ids of the items have in common.
    pub(crate) fn new(response: String, reasoning: ReasoningForm, functions: Arc<Functions>) -> Self {
        Self { response, reasoning, functions, done: Vec::new(), open: None }
    }

    /// The items that are complete.
    pub(crate) fn items(&self) -> &[Value] {
        &self.done
    }

    /// Takes what comes next of the reply.
    pub(crate) fn push(&mut self, event: ReplyEvent) -> Vec<Event> {
        let mut events = Vec::new();
        match event {
            ReplyEvent::Reasoning(text) => {
                let item = if self.reasoning == ReasoningForm::Summary { &SUMMARY } else { &REASONING };
                self.text(item, &text, &mut events);
            }
            ReplyEvent::Content(text) => self.text(&MESSAGE, &text, &mut events),
            ReplyEvent::CallBegin { id, name, .. } => {
                self.close(true, &mut events);
                let function = self.functions.of(&name);
                let input = function.custom.then(CustomInput::default);
                let call = Call { id, name, arguments: String::new() };
                self.begin(Open::Call { call, function, input }, &mut events);
            }
            ReplyEvent::CallArguments { json, .. } => self.arguments(&json, &mut events),
            ReplyEvent::CallEnd { .. } => self.close(true, &mut events),
        }
        events
    }

    /// Ends the output: what is open is complete or was cut.
    pub(crate) fn finish(&mut self, reason: Reason) -> Vec<Event> {
        let mut events = Vec::new();
        // A call that was complete has been closed.
        let is_call = matches!(&self.open, Some(Open::Call { .. }));
        self.close(!is_call && reason != Reason::Length, &mut events);
        events
    }

    fn id(&self, open: &Open) -> String {
        format!("{}_{}_{}", open.id_prefix(), self.response, self.done.len())
    }

    fn begin(&mut self, open: Open, events: &mut Vec<Event>) {
        let (id, output_index) = (self.id(&open), self.done.len());
        let fields = json!({"output_index": output_index, "item": open.item(&id, "in_progress", true)});
        events.push(Event { name: "response.output_item.added", fields });
        if let Open::Text(item, _) = &open {
            let fields = item.fields(&id, output_index, "part", item.part(""));
            events.push(Event { name: item.part_added, fields });
        }
        self.open = Some(open);
    }

    fn text(&mut self, item: &'static TextItem, text: &str, events: &mut Vec<Event>) {
        if !matches!(&self.open, Some(Open::Text(open, _)) if open.kind == item.kind) {
            self.close(true, events);
            self.begin(Open::Text(item, String::new()), events);
        }
        let id = self.open.as_ref().map(|open| self.id(open)).unwrap_or_default();
        if let Some(Open::Text(_, whole)) = &mut self.open {
            whole.push_str(text);
        }
        let fields = item.fields(&id, self.done.len(), "delta", text.into());
        events.push(Event { name: item.delta, fields });
    }

    fn arguments(&mut self, json: &str, events: &mut Vec<Event>) {
        let id = self.open.as_ref().map(|open| self.id(open)).unwrap_or_default();
        let Some(Open::Call { call, input, .. }) = &mut self.open else { return };
        call.arguments.push_str(json);
        let (name, delta) = match input {
            Some(input) => ("response.custom_tool_call_input.delta", input.push(json)),
            None => ("response.function_call_arguments.delta", json.to_owned()),
        };
        if !delta.is_empty() {
            events
                .push(Event { name, fields: json!({"item_id": id, "output_index": self.done.len(), "delta": delta}) });
        }
    }

    /// Ends the open item, if there is one. `is_whole`: it was not cut.
    fn close(&mut self, is_whole: bool, events: &mut Vec<Event>) {
        let Some(open) = self.open.take() else { return };
        let (id, output_index) = (self.id(&open), self.done.len());
        let item = open.item(&id, if is_whole { "completed" } else { "incomplete" }, false);
        match &open {
            Open::Text(text_item, text) => {
                let text = text.as_str();
                let fields = text_item.fields(&id, output_index, "text", text.into());
                events.push(Event { name: text_item.done, fields });
                let fields = text_item.fields(&id, output_index, "part", text_item.part(text));
                events.push(Event { name: text_item.part_done, fields });
            }
            Open::Call { .. } if !is_whole => {}
            Open::Call { input: Some(input), .. } => {
                let whole = item["input"].as_str().unwrap_or_default();
                let rest = input.rest(whole);
                if !rest.is_empty() {
                    let fields = json!({"item_id": id, "output_index": output_index, "delta": rest});
                    events.push(Event { name: "response.custom_tool_call_input.delta", fields });
                }
                let fields = json!({"item_id": id, "output_index": output_index, "input": whole});
                events.push(Event { name: "response.custom_tool_call_input.done", fields });
            }
            Open::Call { call, function, .. } => {
                let fields = json!({"item_id": id, "output_index": output_index, "name": function.name,
                    "arguments": call.arguments});
                events.push(Event { name: "response.function_call_arguments.done", fields });
            }
        }
        if is_whole || matches!(open, Open::Text(..)) {
            let fields = json!({"output_index": output_index, "item": item});
            events.push(Event { name: "response.output_item.done", fields });
        }
        self.done.push(item);
    }
}

#[cfg(test)]
mod tests {
    use super::{Event, Output, ReasoningForm};
    use crate::generate::Reason;
    use crate::responses::functions::Functions;
    use lily_chat::ReplyEvent::{self, CallArguments, CallBegin, CallEnd, Content, Reasoning};
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn run(form: ReasoningForm, replies: Vec<ReplyEvent>, reason: Reason) -> (Vec<Event>, Vec<Value>) {
        let mut output = Output::new("7".into(), form, Arc::new(Functions::default()));
        let mut events: Vec<Event> = replies.into_iter().flat_map(|event| output.push(event)).collect();
        events.extend(output.finish(reason));
        (events, output.items().to_vec())
    }

    fn names(events: &[Event]) -> Vec<&str> {
        events.iter().map(|event| event.name.strip_prefix("response.").expect("all begin so")).collect()
    }

    fn call(index: usize) -> Vec<ReplyEvent> {
        let begin = CallBegin { index, id: format!("call_{index}"), name: "f".into() };
        vec![begin, CallArguments { index, json: "{\"a\":".into() }, CallArguments { index, json: "1}".into() }]
    }

    #[test]
    fn every_event_in_its_place() {
        let mut replies = vec![Reasoning("Hm".into()), Reasoning(".".into()), Content("Look:".into())];
        replies.extend(call(0));
        replies.push(CallEnd { index: 0 });
        let (events, items) = run(ReasoningForm::Content, replies, Reason::ToolCalls);
        assert_eq!(
            names(&events),
            [
                "output_item.added",
                "content_part.added",
                "reasoning_text.delta",
                "reasoning_text.delta",
                "reasoning_text.done",
                "content_part.done",
                "output_item.done",
                "output_item.added",
                "content_part.added",
                "output_text.delta",
                "output_text.done",
                "content_part.done",
                "output_item.done",
                "output_item.added",
                "function_call_arguments.delta",
                "function_call_arguments.delta",
                "function_call_arguments.done",
                "output_item.done",
            ]
        );
        let text = |text: &str| json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []});
        let expected = [
            json!({"id": "rs_7_0", "type": "reasoning", "summary": [], "status": "completed",
                "content": [{"type": "reasoning_text", "text": "Hm."}]}),
            json!({"id": "msg_7_1", "type": "message", "status": "completed", "role": "assistant",
                "content": [text("Look:")]}),
            json!({"id": "fc_7_2", "type": "function_call", "status": "completed", "call_id": "call_0", "name": "f",
                "arguments": "{\"a\":1}"}),
        ];
        assert_eq!(items, expected);
        let fields = |at: usize| events[at].fields.clone();
        assert_eq!(fields(7)["item"]["content"], json!([]));
        assert_eq!(
            fields(8),
            json!({"item_id": "msg_7_1", "output_index": 1, "content_index": 0,
            "part": text("")})
        );
        assert_eq!(
            fields(9),
            json!({"item_id": "msg_7_1", "output_index": 1, "content_index": 0, "delta": "Look:", "logprobs": []})
        );
        assert_eq!(
            fields(10),
            json!({"item_id": "msg_7_1", "output_index": 1, "content_index": 0, "text": "Look:", "logprobs": []})
        );
        assert_eq!(fields(11)["part"], text("Look:"));
        assert_eq!(fields(12), json!({"output_index": 1, "item": expected[1]}));
        assert_eq!(
            (&fields(13)["item"]["arguments"], &fields(13)["item"]["status"]),
            (&json!(""), &json!("in_progress"))
        );
        assert_eq!(fields(14), json!({"item_id": "fc_7_2", "output_index": 2, "delta": "{\"a\":"}));
        assert_eq!(fields(16)["arguments"], "{\"a\":1}");
    }

    #[test]
    fn a_summary_where_one_is_asked_for() {
        let (events, items) = run(ReasoningForm::Summary, vec![Reasoning("Hm".into())], Reason::Stop);
        assert_eq!(
            names(&events),
            [
                "output_item.added",
                "reasoning_summary_part.added",
                "reasoning_summary_text.delta",
                "reasoning_summary_text.done",
                "reasoning_summary_part.done",
                "output_item.done"
            ]
        );
        assert_eq!(
            events[2].fields,
            json!({"item_id": "rs_7_0", "output_index": 0, "summary_index": 0, "delta": "Hm"})
        );
        assert_eq!(items[0]["summary"], json!([{"type": "summary_text", "text": "Hm"}]));
        assert!(items[0].get("content").is_none());
    }

    #[test]
    fn what_is_cut_is_incomplete_and_a_cut_call_is_never_done() {
        let (events, items) = run(ReasoningForm::Content, vec![Content("On and".into())], Reason::Length);
        assert_eq!((names(&events)[5], &items[0]["status"]), ("output_item.done", &json!("incomplete")));
        for reason in [Reason::Length, Reason::Stop] {
            let mut replies = call(0);
            replies.push(CallEnd { index: 0 });
            replies.extend(call(1));
            let (events, items) = run(ReasoningForm::Content, replies, reason);
            let done = events.iter().filter(|event| event.name == "response.output_item.done");
            assert_eq!(done.map(|event| &event.fields["item"]["id"]).collect::<Vec<_>>(), ["fc_7_0"]);
            assert_eq!([&items[0]["status"], &items[1]["status"]], ["completed", "incomplete"]);
        }
        assert!(run(ReasoningForm::Content, Vec::new(), Reason::Length).1.is_empty());
    }
}

//! The calls of a reply, read from its text as it comes.

use std::sync::Arc;

use super::coerce::quoted;
use super::events::ReplyEvent;
use super::json_call::JsonCall;
use super::markup::{
    self, CLOSE, Ending, FUNCTION, FUNCTION_CLOSE, Found, LONGEST_NAME, OPEN, Opening, PARAMETER, PARAMETER_CLOSE,
    after,
};
use super::schema::ToolSet;
use super::value::Value;

/// How to read calls.
#[derive(Clone, Debug)]
pub struct CallOptions {
    /// The functions that were declared. Calls to others are calls, too: whoever runs them knows what to answer.
    pub tools: Arc<ToolSet>,
    /// What each call's id begins with; its number in the reply follows.
    pub id_prefix: String,
    /// Whether the reply ends with its first call.
    pub single: bool,
}

/// Splits text, in pieces of any size, into content and calls.
///
/// - White space between content and a call is no content, nor is any after the last call.
/// - A parameter's value is what stands between its tags, byte for byte, without the newline at either end that belongs
///   to the tags. A closing tag inside a value is text unless what must follow the value follows it.
/// - Calls that are not quite right are taken for what they mean: tags too many or too few, a body of JSON, a
///   function's tag without the one around it. What the end of the text cuts is closed.
///
/// How the text is cut into pushes makes no difference to the events joined, and the time is linear in the text.
#[derive(Clone, Debug)]
pub struct CallParser {
    options: CallOptions,
    place: Place,
    /// Text that cannot be read without what follows it.
    unread: String,
    /// Calls begun.
    calls: usize,
    /// The function of the call that is read.
    function: String,
    /// Parameters of that call so far.
    parameters: usize,
    /// White space after content, or between calls, that is content only if more content follows.
    space: String,
    content_given: bool,
    /// Whether a stray `</think>` may be left of reasoning that a call has ended.
    forgive_think: bool,
}

#[derive(Clone, Debug)]
enum Place {
    Content,
    /// After `<function=`.
    Name,
    /// In a call, outside its parameters.
    Call,
    /// After `<parameter=`.
    Key,
    Value {
        value: Value,
        /// Whether the newline after the tag has been looked for.
        begun: bool,
        /// Whether the text ends with a newline that may belong to the closing tag.
        newline: bool,
        /// Whether it is within a call that the text quotes.
        quoting: bool,
    },
    Json(JsonCall),
    /// After `</function>`.
    Called,
    /// After the only call there may be.
    Done,
}

impl CallParser {
    /// A parser at the beginning of a text.
    #[must_use]
    pub fn new(options: CallOptions) -> Self {
        Self {
            options,
            place: Place::Content,
            unread: String::new(),
            calls: 0,
            function: String::new(),
            parameters: 0,
            space: String::new(),
            content_given: false,
            forgive_think: false,
        }
    }

    /// Takes the next piece of the text; gives what is certain.
    pub fn push(&mut self, text: &str) -> Vec<ReplyEvent> {
        self.unread.push_str(text);
        self.read(false)
    }

    /// Ends the text: gives what was held back, and ends a call that was cut.
    pub fn finish(&mut self) -> Vec<ReplyEvent> {
        let mut events = self.read(true);
        match std::mem::replace(&mut self.place, Place::Content) {
            Place::Value { value, .. } => {
                self.argument(value.end(), &mut events);
                self.end_call(&mut events);
            }
            Place::Call | Place::Key => self.end_call(&mut events),
            Place::Json(call) => self.json_call(&call, &mut events),
            Place::Content if self.calls == 0 => self.content("", &mut events),
            Place::Content | Place::Name | Place::Called | Place::Done => {}
        }
        events
    }

    /// True once the only call there may be is complete; what follows is not looked at.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self.place, Place::Done)
    }

    /// A call has ended reasoning that was never closed: its closing tag may yet come, and means nothing.
    pub(crate) fn forgive_think(&mut self) {
        self.forgive_think = true;
    }

    fn read(&mut self, end: bool) -> Vec<ReplyEvent> {
        let mut events = Vec::new();
        let unread = std::mem::take(&mut self.unread);
        let mut rest = unread.as_str();
        while !rest.is_empty() {
            let Some(read) = self.step(rest, end, &mut events) else { break };
            rest = &rest[read..];
        }
        self.unread = rest.to_owned();
        events
    }

    /// Reads the beginning of `text` and says how many bytes that was; `None` if it takes more text to tell, which
    /// never happens at the `end`. Zero bytes always lead to another place.
    fn step(&mut self, text: &str, end: bool, events: &mut Vec<ReplyEvent>) -> Option<usize> {
        match &mut self.place {
            Place::Content => self.step_content(text, end, events),
            Place::Name => {
                let (name, read) = self.label(text, end)?;
                if !end || read < text.len() || text.ends_with('>') {
                    self.begin_call(name, events);
                }
                Some(read)
            }
            Place::Call => self.step_call(text, end, events),
            Place::Key => {
                let (key, read) = self.label(text, end)?;
                let closed = !end || read < text.len() || text.ends_with('>');
                self.place = Place::Call;
                if closed {
                    self.begin_parameter(&key, events);
                }
                Some(read)
            }
            Place::Value { .. } => self.step_value(text, end, events),
            Place::Json(call) => {
                let read = call.push(text);
                if call.is_complete() {
                    let call = std::mem::take(call);
                    self.place = Place::Called;
                    self.json_call(&call, events);
                    return Some(read);
                }
                match after(&text[read..], CLOSE) {
                    _ if read > 0 => Some(read),
                    Found::Maybe if !end => None,
                    Found::No => {
                        call.take('<');
                        Some(1)
                    }
                    // The tag says that the object has ended, complete or not.
                    Found::Yes(_) | Found::Maybe => {
                        let call = std::mem::take(call);
                        self.place = Place::Called;
                        self.json_call(&call, events);
                        Some(0)
                    }
                }
            }
            Place::Called => self.step_called(text, end),
            Place::Done => Some(text.len()),
        }
    }

    fn step_content(&mut self, text: &str, end: bool, events: &mut Vec<ReplyEvent>) -> Option<usize> {
        let words = text.trim_start();
        if words.len() < text.len() {
            self.space.push_str(&text[..text.len() - words.len()]);
            return Some(text.len() - words.len());
        }
        if !text.starts_with('<') {
            let words = text[..text.find('<').unwrap_or(text.len())].trim_end();
            self.content(words, events);
            return Some(words.len());
        }
        for (tag, drop) in [(CLOSE, self.calls > 0), ("</think>", self.forgive_think)] {
            match after(text, tag) {
                Found::Yes(_) if drop => return Some(tag.len()),
                // One character at the end may be anything.
                Found::Maybe if drop && text.len() > 1 => return end.then_some(text.len()),
                Found::Maybe if drop && !end => return None,
                _ => {}
            }
        }
        let begins_line = self.space.contains('\n') || !self.content_given && self.space.is_empty();
        match markup::opening(text, begins_line, &self.options.tools) {
            Found::Yes(Opening::Markup(read)) => {
                self.place = Place::Name;
                Some(read)
            }
            Found::Yes(Opening::Json(read)) => {
                self.place = Place::Json(JsonCall::default());
                Some(read)
            }
            Found::Maybe if !end => None,
            // A call of which nothing but the tag was written.
            Found::Maybe if text.starts_with(OPEN) => Some(text.len()),
            Found::Maybe | Found::No => {
                self.content("<", events);
                Some(1)
            }
        }
    }

    fn step_call(&mut self, text: &str, end: bool, events: &mut Vec<ReplyEvent>) -> Option<usize> {
        // What stands outside the parameters means nothing.
        let tag = text.find('<').unwrap_or(text.len());
        if tag > 0 {
            return Some(tag);
        }
        let mut undecided = false;
        for tag in [PARAMETER, PARAMETER_CLOSE, FUNCTION_CLOSE, CLOSE, OPEN, FUNCTION] {
            match after(text, tag) {
                Found::No => {}
                Found::Maybe => undecided = true,
                Found::Yes(_) => match tag {
                    PARAMETER => {
                        self.place = Place::Key;
                        return Some(tag.len());
                    }
                    PARAMETER_CLOSE => return Some(tag.len()),
                    _ => {
                        self.end_call(events);
                        self.place = Place::Called;
                        return Some(if tag == FUNCTION_CLOSE { tag.len() } else { 0 });
                    }
                },
            }
        }
        if undecided && !end { None } else { Some(1) }
    }

    fn step_called(&mut self, text: &str, end: bool) -> Option<usize> {
        let tags = text.trim_start();
        if tags.len() < text.len() {
            return Some(text.len() - tags.len());
        }
        let next = if self.options.single { Place::Done } else { Place::Content };
        match (after(text, CLOSE), after(text, FUNCTION)) {
            (Found::Yes(_), _) => {
                self.place = next;
                Some(CLOSE.len())
            }
            (_, Found::Yes(_)) if !self.options.single => {
                self.place = Place::Name;
                Some(FUNCTION.len())
            }
            (Found::Maybe, _) | (_, Found::Maybe) => end.then_some(text.len()),
            _ => {
                self.place = next;
                Some(0)
            }
        }
    }

    fn step_value(&mut self, text: &str, end: bool, events: &mut Vec<ReplyEvent>) -> Option<usize> {
        let Place::Value { begun, newline, quoting, .. } = &mut self.place else { return Some(0) };
        if !std::mem::replace(begun, true) && text.starts_with('\n') {
            return Some(1);
        }
        let plain = text.find(['\n', '<']).unwrap_or(text.len());
        if plain > 0 {
            return Some(self.value_text(&text[..plain], events));
        }
        if text.starts_with('\n') {
            if std::mem::replace(newline, true) {
                self.newline(events);
            }
            return Some(1);
        }
        let ending = match *quoting {
            true if text.starts_with(FUNCTION_CLOSE) => {
                *quoting = false;
                return Some(self.value_text(FUNCTION_CLOSE, events));
            }
            true => match after(text, FUNCTION_CLOSE) {
                Found::Maybe => Found::Maybe,
                _ => Found::No,
            },
            false => match if *newline { markup::quoted_call(text) } else { Found::No } {
                Found::Yes(bytes) => {
                    *quoting = true;
                    // Its newline is read next: it may be doubled.
                    return Some(self.value_text(&text[..bytes - 1], events));
                }
                Found::Maybe if !end => return None,
                _ => markup::ending(text),
            },
        };
        match ending {
            Found::Maybe if !end => None,
            Found::Yes(Ending::Own) => {
                self.end_parameter(events);
                Some(PARAMETER_CLOSE.len())
            }
            Found::Yes(Ending::Outer) => {
                self.end_parameter(events);
                Some(0)
            }
            // The text was cut within the tags that end the value, unless all there is of them is one character.
            Found::Maybe if text.len() > 1 => {
                self.end_parameter(events);
                Some(0)
            }
            Found::Maybe | Found::No => Some(self.value_text("<", events)),
        }
    }

    /// A name or key and the bytes that it and its end take; a newline ends it where `>` is missing.
    fn label(&self, text: &str, end: bool) -> Option<(String, usize)> {
        let clean = |label: &str| label.trim().trim_matches(['"', '\'']).to_owned();
        match text.find(['>', '\n']) {
            // The newline is read again, as the one after the tag.
            Some(at) => Some((clean(&text[..at]), at + usize::from(text[at..].starts_with('>')))),
            None if end || text.len() > LONGEST_NAME => Some((clean(text), text.len())),
            None => None,
        }
    }

    fn content(&mut self, text: &str, events: &mut Vec<ReplyEvent>) {
        let space = std::mem::take(&mut self.space);
        if self.calls == 0 || self.content_given {
            ReplyEvent::Content(space).join(events);
        }
        self.content_given |= !text.is_empty();
        ReplyEvent::Content(text.to_owned()).join(events);
    }

    fn begin_call(&mut self, name: String, events: &mut Vec<ReplyEvent>) {
        let index = self.calls;
        self.calls += 1;
        self.parameters = 0;
        self.place = Place::Call;
        let id = format!("{}{index}", self.options.id_prefix);
        self.function.clone_from(&name);
        events.push(ReplyEvent::CallBegin { index, id, name });
    }

    /// Ends the call with its arguments' last brace.
    fn end_call(&mut self, events: &mut Vec<ReplyEvent>) {
        let end = if self.parameters == 0 { "{}" } else { "}" };
        self.argument(end.into(), events);
        events.push(ReplyEvent::CallEnd { index: self.calls - 1 });
    }

    fn argument(&mut self, json: String, events: &mut Vec<ReplyEvent>) {
        ReplyEvent::CallArguments { index: self.calls - 1, json }.join(events);
    }

    fn begin_parameter(&mut self, key: &str, events: &mut Vec<ReplyEvent>) {
        let value = Value::new(self.options.tools.expected(&self.function, key));
        let before = if self.parameters == 0 { '{' } else { ',' };
        self.parameters += 1;
        self.argument(format!("{before}{}:{}", quoted(key), value.begin()), events);
        self.place = Place::Value { value, begun: false, newline: false, quoting: false };
    }

    fn end_parameter(&mut self, events: &mut Vec<ReplyEvent>) {
        if let Place::Value { value, .. } = std::mem::replace(&mut self.place, Place::Call) {
            self.argument(value.end(), events);
        }
    }

    /// Text of a value, with the newline before it that turned out not to belong to a tag. Gives the text's length.
    fn value_text(&mut self, text: &str, events: &mut Vec<ReplyEvent>) -> usize {
        if let Place::Value { newline, .. } = &mut self.place
            && std::mem::take(newline)
        {
            self.newline(events);
        }
        self.value_json(text, events);
        text.len()
    }

    fn newline(&mut self, events: &mut Vec<ReplyEvent>) {
        self.value_json("\n", events);
    }

    fn value_json(&mut self, text: &str, events: &mut Vec<ReplyEvent>) {
        if let Place::Value { value, .. } = &mut self.place {
            let json = value.push(text);
            self.argument(json, events);
        }
    }

    /// A call that is JSON, or text if it is none.
    fn json_call(&mut self, call: &JsonCall, events: &mut Vec<ReplyEvent>) {
        match call.read() {
            Some((name, arguments)) => {
                self.begin_call(name, events);
                self.argument(arguments, events);
                events.push(ReplyEvent::CallEnd { index: self.calls - 1 });
                self.place = Place::Called;
            }
            None => {
                self.content(&format!("{OPEN}\n{}", call.text()), events);
                self.place = Place::Content;
            }
        }
    }
}

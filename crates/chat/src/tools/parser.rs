//! The calls of a reply, read from its text as it comes.

mod values;

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Map;

use super::events::ReplyEvent;
use super::json_call::{JsonCall, salvage};
use super::markup::{
    self, CLOSE, FUNCTION, FUNCTION_CLOSE, Found, LONGEST_NAME, NAMED_PARAMETER, OPEN, Opening, PARAMETER,
    PARAMETER_CLOSE, after,
};
use super::schema::ToolSet;
use super::value::Value;

/// What ends reasoning.
const THINK_CLOSE: &str = "</think>";

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
///   function's tag without the one around it. Of two parameters with one name the first counts.
/// - A call that was [cut](Self::was_cut) gives what is there of it and stays open: it has no
///   [`CallEnd`](ReplyEvent::CallEnd), and its arguments are no whole JSON, so that nobody takes it for one to run.
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
    /// The names of that call's arguments so far.
    keys: HashSet<String>,
    /// Whether nothing but white space has followed that call's name.
    bare: bool,
    /// White space after content, or between calls, that is content only if more content follows.
    space: String,
    content_given: bool,
    /// Whether text outside of calls is reasoning, which a call has ended that came before its closing tag.
    reasoning: bool,
    /// Whether a call has just ended: one more of its closing tags is forgiven.
    called: bool,
    cut: bool,
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
        /// Whether a line has begun, of which there is nothing but white space.
        begins_line: bool,
        quote: Quote,
    },
    /// In an object that is a whole call or, if its name is known, a call's arguments.
    Json {
        object: JsonCall,
        named: bool,
    },
    /// After `</function>`.
    Called,
    /// After the only call there may be.
    Done,
}

/// How a value's text stands to a call that it quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quote {
    No,
    Within,
    /// Right after it.
    Ended,
}

/// A name or key.
struct Label {
    text: String,
    /// The bytes that it and its end take.
    read: usize,
    /// Whether its end was there.
    closed: bool,
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
            keys: HashSet::new(),
            bare: false,
            space: String::new(),
            content_given: false,
            reasoning: false,
            called: false,
            cut: false,
        }
    }

    /// Takes the next piece of the text; gives what is certain.
    pub fn push(&mut self, text: &str) -> Vec<ReplyEvent> {
        self.unread.push_str(text);
        self.read(false)
    }

    /// Ends the text where its writer has ended it: gives what was held back. A call that lacks nothing but closing tags
    /// is ended; one that ends within a name or a value was cut.
    pub fn finish(&mut self) -> Vec<ReplyEvent> {
        self.end(true)
    }

    /// As [`finish`](Self::finish), where the writer would have gone on: a call that is not complete was cut.
    pub fn cut(&mut self) -> Vec<ReplyEvent> {
        self.end(false)
    }

    /// Whether there is a call that is not complete.
    #[must_use]
    pub fn was_cut(&self) -> bool {
        self.cut
    }

    /// `own`: whether the writer has ended the text.
    fn end(&mut self, own: bool) -> Vec<ReplyEvent> {
        let mut events = self.read(true);
        match std::mem::replace(&mut self.place, Place::Content) {
            Place::Call if own => self.end_call(&mut events),
            Place::Call | Place::Key => self.leave_open("", &mut events),
            Place::Name => self.cut = true,
            Place::Value { value, .. } => self.leave_open(&value.cut(), &mut events),
            // What is no call at all is content.
            Place::Json { object, named: false } if own && (object.lacks_only_ends() || object.read().is_none()) => {
                self.json_call(object.text(), object.read(), &mut events);
            }
            Place::Json { object, named: false } => {
                self.cut = true;
                if let Some((name, arguments)) = object.read_cut() {
                    self.begin_call(name, &mut events);
                    self.argument(arguments, &mut events);
                }
            }
            Place::Json { object, named: true } if own && object.lacks_only_ends() => {
                self.arguments(object.text(), &mut events);
                self.end_call(&mut events);
            }
            Place::Json { object, named: true } => {
                self.cut = true;
                self.argument(object.text().to_owned(), &mut events);
            }
            Place::Content if self.calls == 0 => self.content("", &mut events),
            Place::Content | Place::Called | Place::Done => {}
        }
        events
    }

    /// True once the only call there may be is complete; what follows is not looked at.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self.place, Place::Done)
    }

    /// The text begins with a call that came in the middle of reasoning. What follows calls is reasoning until its
    /// closing tag comes.
    pub(crate) fn begin_in_reasoning(&mut self) {
        self.reasoning = true;
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
                let name = self.label(text, end)?;
                if name.closed && name.text.is_empty() {
                    self.place = Place::Content;
                    self.content(&format!("{FUNCTION}>"), events);
                } else if name.closed {
                    self.begin_call(name.text, events);
                }
                Some(name.read)
            }
            Place::Call => self.step_call(text, end, events),
            Place::Key => {
                let key = self.label(text, end)?;
                if key.closed {
                    self.begin_parameter(key.text, events);
                }
                Some(key.read)
            }
            Place::Value { .. } => self.step_value(text, end, events),
            Place::Json { object, named } => {
                let read = object.push(text);
                let close = if *named { FUNCTION_CLOSE } else { CLOSE };
                let closed = after(&text[read..], close);
                let ended = object.is_complete() || read == 0 && closed != Found::No && (end || closed != Found::Maybe);
                match closed {
                    // The tag says that the object has ended, complete or not.
                    _ if ended => self.end_object(events),
                    _ if read > 0 => {}
                    Found::Maybe => return None,
                    _ => {
                        object.take('<');
                        return Some(1);
                    }
                }
                Some(read)
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
        for (tag, drop) in [(CLOSE, self.called), (THINK_CLOSE, self.reasoning)] {
            match after(text, tag) {
                Found::Yes(_) if drop => {
                    self.called = false;
                    if tag == THINK_CLOSE {
                        self.reasoning = false;
                        self.space.clear();
                    }
                    return Some(tag.len());
                }
                // One character at the end may be anything.
                Found::Maybe if drop && text.len() > 1 => return end.then_some(text.len()),
                Found::Maybe if drop && !end => return None,
                _ => {}
            }
        }
        let begins_line = self.space.contains('\n') || !self.content_given && self.space.is_empty();
        let tools = &self.options.tools;
        let opening = match self.reasoning {
            true => markup::opening_in_reasoning(text, tools),
            false => markup::opening(text, begins_line, tools),
        };
        match opening {
            Found::Yes(Opening::Markup(read)) => {
                self.place = Place::Name;
                Some(read)
            }
            Found::Yes(Opening::Json(read)) => {
                self.place = Place::Json { object: JsonCall::default(), named: false };
                Some(read)
            }
            Found::Maybe if !end => None,
            // A call of which nothing but the tag was written.
            Found::Maybe if text.starts_with(OPEN) && !self.reasoning => {
                self.cut = true;
                Some(text.len())
            }
            Found::Maybe | Found::No => {
                self.content("<", events);
                Some(1)
            }
        }
    }

    fn step_call(&mut self, text: &str, end: bool, events: &mut Vec<ReplyEvent>) -> Option<usize> {
        let words = text.trim_start();
        if words.len() < text.len() {
            return Some(text.len() - words.len());
        }
        if std::mem::take(&mut self.bare) && text.starts_with('{') {
            self.place = Place::Json { object: JsonCall::default(), named: true };
            return Some(0);
        }
        // What else stands outside the parameters means nothing.
        let tag = text.find('<').unwrap_or(text.len());
        if tag > 0 {
            return Some(tag);
        }
        let mut undecided = false;
        for tag in [PARAMETER, NAMED_PARAMETER, PARAMETER_CLOSE, FUNCTION_CLOSE, CLOSE, OPEN, FUNCTION] {
            match after(text, tag) {
                Found::No => {}
                Found::Maybe => undecided = true,
                Found::Yes(_) => match tag {
                    PARAMETER | NAMED_PARAMETER => {
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
        self.called = true;
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

    /// A name or key; a newline ends it where `>` is missing, and so does the length that none has.
    fn label(&self, text: &str, end: bool) -> Option<Label> {
        let clean = |label: &str| label.trim().trim_matches(['"', '\'']).to_owned();
        let bound = text.floor_char_boundary(LONGEST_NAME);
        match text[..bound].find(['>', '\n']) {
            Some(at) => {
                // The newline is read again, as the one after the tag.
                let read = at + usize::from(text[at..].starts_with('>'));
                Some(Label { text: clean(&text[..at]), read, closed: true })
            }
            None if text.len() > LONGEST_NAME => Some(Label { text: clean(&text[..bound]), read: bound, closed: true }),
            None => end.then(|| Label { text: String::new(), read: text.len(), closed: false }),
        }
    }

    /// Text outside of calls, with the white space before it.
    fn content(&mut self, text: &str, events: &mut Vec<ReplyEvent>) {
        let space = std::mem::take(&mut self.space);
        self.called &= text.is_empty();
        if self.reasoning {
            ReplyEvent::Reasoning(space + text).join(events);
            return;
        }
        if self.calls == 0 || self.content_given {
            ReplyEvent::Content(space).join(events);
        }
        self.content_given |= !text.is_empty();
        ReplyEvent::Content(text.to_owned()).join(events);
    }

    fn begin_call(&mut self, name: String, events: &mut Vec<ReplyEvent>) {
        let index = self.calls;
        self.calls += 1;
        self.keys.clear();
        self.bare = true;
        self.place = Place::Call;
        let id = format!("{}{index}", self.options.id_prefix);
        self.function.clone_from(&name);
        events.push(ReplyEvent::CallBegin { index, id, name });
    }

    /// Ends the call with its arguments' last brace.
    fn end_call(&mut self, events: &mut Vec<ReplyEvent>) {
        let end = if self.keys.is_empty() { "{}" } else { "}" };
        self.argument(end.into(), events);
        events.push(ReplyEvent::CallEnd { index: self.calls - 1 });
    }

    /// Leaves a call as it is, with what is there of a value.
    fn leave_open(&mut self, rest: &str, events: &mut Vec<ReplyEvent>) {
        self.cut = true;
        // No arguments at all would pass for a call without any.
        let begin = if self.keys.is_empty() { "{" } else { "" };
        self.argument(format!("{begin}{rest}"), events);
    }

    fn argument(&mut self, json: String, events: &mut Vec<ReplyEvent>) {
        ReplyEvent::CallArguments { index: self.calls - 1, json }.join(events);
    }

    /// Ends the object that is read.
    fn end_object(&mut self, events: &mut Vec<ReplyEvent>) {
        match std::mem::replace(&mut self.place, Place::Call) {
            Place::Json { object, named: false } => self.json_call(object.text(), object.read(), events),
            Place::Json { object, named: true } => self.arguments(object.text(), events),
            other => self.place = other,
        }
    }

    /// Arguments that were written as an object instead of as parameters.
    fn arguments(&mut self, text: &str, events: &mut Vec<ReplyEvent>) {
        let object = salvage(text).unwrap_or_default();
        if object.is_empty() {
            return;
        }
        // JSON keeps its spelling.
        let is_json = serde_json::from_str::<Map<String, serde_json::Value>>(text).is_ok();
        let json = if is_json { text.to_owned() } else { serde_json::Value::Object(object.clone()).to_string() };
        self.keys.extend(object.into_iter().map(|(key, _)| key));
        // The last brace comes with the call's end.
        self.argument(json[..json.len() - 1].to_owned(), events);
    }

    /// A call that is JSON as it was `read`, or `text` if it is none.
    fn json_call(&mut self, text: &str, read: Option<(String, String)>, events: &mut Vec<ReplyEvent>) {
        match read {
            Some((name, arguments)) => {
                self.begin_call(name, events);
                self.argument(arguments, events);
                events.push(ReplyEvent::CallEnd { index: self.calls - 1 });
                self.place = Place::Called;
            }
            None => {
                self.content(&format!("{OPEN}\n{text}"), events);
                self.place = Place::Content;
            }
        }
    }
}

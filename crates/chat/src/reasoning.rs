//! Telling a reply's reasoning from its content while it streams.

use std::sync::Arc;

use crate::ToolSet;
use crate::tools::{Found, call_in_reasoning};

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// A run of a reply's text, never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Between `<think>` and `</think>`.
    Reasoning(String),
    /// The answer.
    Content(String),
}

/// Whether the reply to this rendered prompt begins inside reasoning: the template opened a think block and left it
/// open, as Qwen's generation prompt `<|im_start|>assistant\n<think>\n` does.
pub fn begins_in_reasoning(prompt: &str) -> bool {
    prompt.trim_end_matches(is_newline).ends_with(OPEN)
}

/// Splits a reply's text, in pieces of any size, into reasoning and content.
///
/// - A reply that begins with `<think>` opens reasoning even where the prompt did not; `</think>` ends it, or what the
///   prompt opened. Later markers are content: what the model writes about its own markup is text.
/// - Reasoning is given without newlines at its ends, content after reasoning without newlines at its beginning.
///   Newlines inside are kept, so those that may yet be the end are held back until more text comes.
/// - Without `</think>` everything is reasoning, unless [calls end it](Self::ended_by_calls).
///
/// How the text is cut into pushes makes no difference to the pieces joined, and the time is linear in the text.
#[derive(Clone, Debug)]
pub struct ReasoningSplitter {
    place: Place,
    /// Newlines of [`Place::Start`] and [`Place::Reasoning`] that may have to be dropped.
    newlines: String,
    /// Bytes of `</think>` that the reasoning so far ends with.
    matched: usize,
    /// The functions whose calls end reasoning.
    tools: Option<Arc<ToolSet>>,
    /// The text of [`Place::MaybeCall`], or what may be a marker at [`Place::Start`].
    held: String,
    ended_by_a_call: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nothing but newlines so far: a marker may follow. True if without it the text is reasoning.
    Start(bool),
    /// In reasoning; true once some of its text was given out, so that newlines count.
    Reasoning(bool),
    /// In reasoning that goes on with what may be a call.
    MaybeCall,
    /// After `</think>`, before the first character that is no newline.
    Gap,
    Content,
}

impl ReasoningSplitter {
    /// A splitter for a reply that begins inside reasoning or not; see [`begins_in_reasoning`].
    pub fn new(begins_in_reasoning: bool) -> Self {
        Self {
            place: Place::Start(begins_in_reasoning),
            newlines: String::new(),
            matched: 0,
            tools: None,
            held: String::new(),
            ended_by_a_call: false,
        }
    }

    /// Lets a call to one of these functions end reasoning that was not closed; with it the content begins.
    #[must_use]
    pub fn ended_by_calls(self, tools: Arc<ToolSet>) -> Self {
        Self { tools: Some(tools), ..self }
    }

    /// Whether a call has ended the reasoning.
    #[must_use]
    pub fn ended_by_a_call(&self) -> bool {
        self.ended_by_a_call
    }

    /// Whether the first of the content has come.
    #[must_use]
    pub fn is_past_reasoning(&self) -> bool {
        self.place == Place::Content
    }

    /// Bytes of `text`, if it came next, before the first of the content. Of a reply that began outside of reasoning and has
    /// opened none, all is content.
    #[must_use]
    pub fn before_content(&self, text: &str) -> usize {
        if matches!(self.place, Place::Content | Place::Start(false)) {
            return 0;
        }
        let mut ahead = self.clone();
        let begins = |&(at, sign): &(usize, char)| {
            ahead.read(&text[at..at + sign.len_utf8()], &mut Vec::new());
            ahead.is_past_reasoning()
        };
        text.char_indices().find(begins).map_or(text.len(), |(at, _)| at)
    }

    /// Takes the next piece of the reply; gives what is certain.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        let mut pieces = Vec::new();
        self.read(text, &mut pieces);
        pieces
    }

    fn read(&mut self, text: &str, pieces: &mut Vec<Piece>) {
        let mut rest = text;
        while !rest.is_empty() {
            rest = match self.place {
                Place::Start(in_reasoning) => self.start(in_reasoning, rest, pieces),
                Place::Reasoning(started) => self.reasoning(started, rest, pieces),
                Place::MaybeCall => self.maybe_call(rest, pieces),
                Place::Gap => {
                    let content = rest.trim_start_matches(is_newline);
                    if !content.is_empty() {
                        self.enter(Place::Content);
                    }
                    content
                }
                Place::Content => {
                    give(pieces, Piece::Content, &[rest]);
                    ""
                }
            };
        }
    }

    /// Ends the reply: gives what was held back and turned out to be text.
    pub fn finish(&mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        if let Place::Start(in_reasoning) = self.place {
            self.leave_start(in_reasoning, &mut pieces);
        }
        if matches!(self.place, Place::Reasoning(_)) && self.matched > 0 {
            self.give_reasoning(&CLOSE[..self.matched], &mut pieces);
        }
        if self.place == Place::MaybeCall {
            let held = std::mem::take(&mut self.held);
            self.give_reasoning(&held, &mut pieces);
        }
        self.newlines.clear();
        self.matched = 0;
        pieces
    }

    /// Takes up to one step of `text` at the reply's beginning; returns what is left of it.
    fn start<'t>(&mut self, in_reasoning: bool, text: &'t str, pieces: &mut Vec<Piece>) -> &'t str {
        if self.held.is_empty() && text.starts_with(is_newline) {
            return self.hold_newlines(text);
        }
        let end = text.chars().next().map_or(0, char::len_utf8);
        self.held.push_str(&text[..end]);
        match self.held.as_str() {
            OPEN => self.enter(Place::Reasoning(false)),
            // Reasoning that was closed before it began, also where there was to be none.
            CLOSE => self.enter(Place::Gap),
            held if OPEN.starts_with(held) || CLOSE.starts_with(held) => {}
            _ => self.leave_start(in_reasoning, pieces),
        }
        &text[end..]
    }

    /// The reply does not begin with a whole marker: what was held is text of where the reply began.
    fn leave_start(&mut self, in_reasoning: bool, pieces: &mut Vec<Piece>) {
        let held = std::mem::take(&mut self.held);
        if in_reasoning {
            self.enter(Place::Reasoning(false));
            // It may begin a call.
            self.read(&held, pieces);
        } else {
            give(pieces, Piece::Content, &[&self.newlines, &held]);
            self.enter(Place::Content);
        }
    }

    /// Takes one step of `text` inside reasoning; returns what is left of it.
    fn reasoning<'t>(&mut self, started: bool, text: &'t str, pieces: &mut Vec<Piece>) -> &'t str {
        if self.matched > 0 {
            let Some(rest) = self.advance(text) else {
                // "<" occurs only at the tag's beginning, so no other occurrence can begin inside what was held.
                if self.matched == 1 && self.tools.is_some() {
                    self.matched = 0;
                    self.place = Place::MaybeCall;
                    self.held.push('<');
                    return text;
                }
                self.give_reasoning(&CLOSE[..self.matched], pieces);
                self.matched = 0;
                return text;
            };
            if self.matched == CLOSE.len() {
                self.enter(Place::Gap);
            }
            return rest;
        }
        let plain = text.find(|c| c == '<' || is_newline(c)).unwrap_or(text.len());
        if plain > 0 {
            self.give_reasoning(&text[..plain], pieces);
            &text[plain..]
        } else if let Some(rest) = text.strip_prefix('<') {
            self.matched = 1;
            rest
        } else if started {
            self.hold_newlines(text)
        } else {
            text.trim_start_matches(is_newline)
        }
    }

    /// Takes the next character of what may be a call; returns what is left.
    fn maybe_call<'t>(&mut self, text: &'t str, pieces: &mut Vec<Piece>) -> &'t str {
        let end = text.chars().next().map_or(0, char::len_utf8);
        self.held.push_str(&text[..end]);
        match self.tools.as_ref().map_or(Found::No, |tools| call_in_reasoning(&self.held, tools)) {
            Found::Maybe => {}
            Found::Yes(()) => {
                self.ended_by_a_call = true;
                give(pieces, Piece::Content, &[&self.held]);
                self.enter(Place::Content);
            }
            Found::No => {
                let held = std::mem::take(&mut self.held);
                self.give_reasoning("<", pieces);
                self.read(&held[1..], pieces);
            }
        }
        &text[end..]
    }

    fn give_reasoning(&mut self, text: &str, pieces: &mut Vec<Piece>) {
        give(pieces, Piece::Reasoning, &[&self.newlines, text]);
        self.newlines.clear();
        self.place = Place::Reasoning(true);
    }

    fn enter(&mut self, place: Place) {
        self.place = place;
        self.newlines.clear();
        self.matched = 0;
        self.held.clear();
    }

    fn hold_newlines<'t>(&mut self, text: &'t str) -> &'t str {
        let rest = text.trim_start_matches(is_newline);
        self.newlines.push_str(&text[..text.len() - rest.len()]);
        rest
    }

    /// Matches the next bytes of `</think>`; none if `text` goes on differently. Returns what follows them.
    fn advance<'t>(&mut self, text: &'t str) -> Option<&'t str> {
        let wanted = &CLOSE.as_bytes()[self.matched..];
        let same = wanted.iter().zip(text.as_bytes()).take_while(|(a, b)| a == b).count();
        self.matched += same;
        (same > 0).then(|| &text[same..])
    }
}

fn is_newline(c: char) -> bool {
    matches!(c, '\n' | '\r')
}

/// Appends the joined `parts` to the last piece if it is of the same kind, else as a new piece.
fn give(pieces: &mut Vec<Piece>, kind: fn(String) -> Piece, parts: &[&str]) {
    let text = parts.concat();
    if text.is_empty() {
        return;
    }
    match (pieces.last_mut(), kind(text)) {
        (Some(Piece::Reasoning(last)), Piece::Reasoning(text)) | (Some(Piece::Content(last)), Piece::Content(text)) => {
            last.push_str(&text);
        }
        (_, piece) => pieces.push(piece),
    }
}

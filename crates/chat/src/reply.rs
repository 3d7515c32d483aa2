//! All that a reply's text holds, told apart.

use crate::reasoning::{Piece, ReasoningSplitter};
use crate::tools::{CallOptions, CallParser, ReplyEvent};

/// Splits a reply's text, in pieces of any size, into reasoning, content and calls: a [`ReasoningSplitter`] and, behind
/// it, a [`CallParser`].
///
/// A call to a known function ends reasoning that was not closed; after the call the reasoning goes on until it is closed.
#[derive(Clone, Debug)]
pub struct ReplyParser {
    splitter: Option<ReasoningSplitter>,
    calls: Option<CallParser>,
    content_begun: bool,
}

impl ReplyParser {
    /// `reasoning`: whether to tell reasoning from content and, if so, whether the reply begins within reasoning; see
    /// [`begins_in_reasoning`](crate::begins_in_reasoning). Without `calls`, what looks like one is content.
    #[must_use]
    pub fn new(reasoning: Option<bool>, calls: Option<CallOptions>) -> Self {
        let splitter = reasoning.map(|begins| match &calls {
            Some(calls) => ReasoningSplitter::new(begins).ended_by_calls(calls.tools.clone()),
            None => ReasoningSplitter::new(begins),
        });
        Self { splitter, calls: calls.map(CallParser::new), content_begun: false }
    }

    /// Takes the next piece of the reply; gives what is certain.
    pub fn push(&mut self, text: &str) -> Vec<ReplyEvent> {
        match &mut self.splitter {
            Some(splitter) => {
                let pieces = splitter.push(text);
                self.pieces(pieces)
            }
            None if text.is_empty() => Vec::new(),
            None => self.content(text.to_owned()),
        }
    }

    /// Ends the reply where the model has ended it: gives what was held back, as [`CallParser::finish`] does.
    pub fn finish(&mut self) -> Vec<ReplyEvent> {
        self.end(CallParser::finish)
    }

    /// Ends the reply where the model would have gone on: gives what was held back, as [`CallParser::cut`] does.
    pub fn cut(&mut self) -> Vec<ReplyEvent> {
        self.end(CallParser::cut)
    }

    fn end(&mut self, end: impl FnOnce(&mut CallParser) -> Vec<ReplyEvent>) -> Vec<ReplyEvent> {
        let pieces = self.splitter.as_mut().map(ReasoningSplitter::finish).unwrap_or_default();
        let mut events = self.pieces(pieces);
        events.extend(self.calls.as_mut().map(end).unwrap_or_default());
        events
    }

    /// Whether there is a call that is not complete, which nobody must run.
    #[must_use]
    pub fn was_cut(&self) -> bool {
        self.calls.as_ref().is_some_and(CallParser::was_cut)
    }

    /// True once the reply is as long as it may be: it was to make a single call, and that is complete.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.calls.as_ref().is_some_and(CallParser::is_done)
    }

    /// True once the first of the content or of a call has come, or if there is no reasoning to tell from it.
    #[must_use]
    pub fn is_past_reasoning(&self) -> bool {
        self.splitter.as_ref().is_none_or(ReasoningSplitter::is_past_reasoning)
    }

    /// Bytes of `text`, if it came next, before the first of the content or of a call.
    #[must_use]
    pub fn before_content(&self, text: &str) -> usize {
        self.splitter.as_ref().map_or(0, |splitter| splitter.before_content(text))
    }

    /// Whether a call has ended reasoning that was not closed.
    #[must_use]
    pub fn reasoning_was_open(&self) -> bool {
        self.splitter.as_ref().is_some_and(ReasoningSplitter::ended_by_a_call)
    }

    fn pieces(&mut self, pieces: Vec<Piece>) -> Vec<ReplyEvent> {
        let mut events = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Reasoning(text) => events.push(ReplyEvent::Reasoning(text)),
                Piece::Content(text) => events.extend(self.content(text)),
            }
        }
        events
    }

    fn content(&mut self, text: String) -> Vec<ReplyEvent> {
        let begins = !std::mem::replace(&mut self.content_begun, true);
        let was_open = self.reasoning_was_open();
        let Some(calls) = &mut self.calls else { return vec![ReplyEvent::Content(text)] };
        if begins && was_open {
            calls.begin_in_reasoning();
        }
        calls.push(&text)
    }
}

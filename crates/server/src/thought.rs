//! A reply's reasoning as the engine sees it: where it may be closed.

use lily_chat::{Detokenizer, ReplyEvent, ReplyParser, Tokenizer};
use lily_engine::{Place, Section};
use std::sync::Arc;

/// The beginning of a reply, read as far as to tell where its reasoning may be closed: not in the middle of a call that
/// came before the reasoning was closed, nor right after one, where the reply may end; nor within a character.
#[derive(Clone, Debug)]
pub(crate) struct Thought {
    detokenizer: Detokenizer,
    parser: ReplyParser,
    place: Place,
}

impl Thought {
    /// Of a reply that begins within reasoning, and that `parser` reads.
    pub(crate) fn new(tokenizer: Arc<Tokenizer>, parser: ReplyParser) -> Self {
        Self { detokenizer: Detokenizer::new(tokenizer), parser, place: Place::Within }
    }
}

impl Section for Thought {
    fn read(&mut self, token: u32) -> Place {
        let text = self.detokenizer.push(token);
        let events = self.parser.push(&text);
        let content = events.iter().any(|event| matches!(event, ReplyEvent::Content(_)));
        self.place = if content || self.parser.is_past_reasoning() && !self.parser.reasoning_was_open() {
            Place::Past
        } else {
            match events.last() {
                Some(ReplyEvent::Reasoning(_)) => Place::Within,
                Some(_) => Place::Busy,
                // Newlines may be held back.
                None if text.trim().is_empty() => self.place,
                // What is held back besides may be a call, or the end of the reasoning.
                None => Place::Busy,
            }
        };
        // Of half a character nothing would be left.
        if self.place == Place::Within && self.detokenizer.is_within_character() { Place::Busy } else { self.place }
    }

    fn boxed(&self) -> Box<dyn Section> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::Thought;
    use lily_chat::{CallOptions, ReplyParser, Tokenizer, ToolSet};
    use lily_engine::{Place, Section};
    use serde_json::json;
    use std::sync::Arc;

    /// Where a reply is after this text.
    fn place(text: &str) -> Place {
        *places(text).last().expect("a token")
    }

    /// Where it is after each of the text's tokens.
    fn places(text: &str) -> Vec<Place> {
        let json = include_bytes!("../../../models/tiny/tokenizer.json");
        let tokenizer = Arc::new(Tokenizer::from_files(json, None).expect("the embedded tokenizer"));
        let tools = ToolSet::new(&[json!({"type": "function", "function": {"name": "f", "parameters": {}}})]);
        let calls = CallOptions { tools: Arc::new(tools), id_prefix: "call_".into(), single: false };
        let tokens = tokenizer.encode(text).expect("any text");
        let mut thought = Thought::new(tokenizer, ReplyParser::new(Some(true), Some(calls)));
        tokens.into_iter().map(|token| thought.read(token)).collect()
    }

    #[test]
    fn a_thought_is_closed_where_it_breaks_nothing() {
        for within in ["Hm", "Hm.\n\n", "\n", "a < b", "I should not write <tool_call> yet", "No <tool_call>\n\nNow"] {
            assert_eq!(place(within), Place::Within, "{within}");
        }
        let call = "Hm.\n<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>";
        for busy in ["<tool_call>", "Hm.\n<tool_call>\n", &call[..25], &call[..50], call, &format!("{call}\n")] {
            assert_eq!(place(busy), Place::Busy, "{busy}");
        }
        assert_eq!(place(&format!("{call}\nNow I think on")), Place::Within);
        for past in ["</think>\n\nYes", "Hm.\n</think>\n\nYes", &format!("{call}\n</think>\n\nYes")] {
            assert_eq!(place(past), Place::Past, "{past}");
        }
    }

    /// Field cases 21 and 31: a sign that is several tokens is not cut in two.
    #[test]
    fn a_thought_is_closed_after_whole_characters() {
        let places = places("𒐫");
        let (last, before) = places.split_last().expect("tokens");
        assert!(!before.is_empty() && before.iter().all(|&place| place == Place::Busy), "{before:?}");
        assert_eq!(*last, Place::Within);
    }
}

//! A reply as a whole.

use crate::replay::Call;
use lily_backend::Sample;
use lily_chat::ReplyEvent;

/// What the events of a reply amount to, and its tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Reply {
    pub(crate) reasoning: String,
    pub(crate) content: String,
    pub(crate) calls: Vec<Call>,
    /// The tokens whose text was given out.
    pub(crate) tokens: Vec<Sample>,
}

impl Reply {
    pub(crate) fn extend(&mut self, events: Vec<ReplyEvent>) {
        for event in events {
            match event {
                ReplyEvent::Reasoning(text) => self.reasoning.push_str(&text),
                ReplyEvent::Content(text) => self.content.push_str(&text),
                ReplyEvent::CallBegin { id, name, .. } => self.calls.push(Call { id, name, arguments: String::new() }),
                ReplyEvent::CallArguments { index, json } => {
                    if let Some(call) = self.calls.get_mut(index) {
                        call.arguments.push_str(&json);
                    }
                }
                ReplyEvent::CallEnd { .. } => {}
            }
        }
    }
}

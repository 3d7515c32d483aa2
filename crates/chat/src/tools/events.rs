//! What comes of a reply's text.

/// A piece of a reply, in the order of the text. Neighbours of one kind may be joined or split at will.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyEvent {
    /// What the model thought, never empty.
    Reasoning(String),
    /// What it answers, never empty.
    Content(String),
    /// It calls a function.
    CallBegin {
        /// The call's number in the reply, from 0.
        index: usize,
        /// What the result will refer to.
        id: String,
        /// The function, which need not be one that was declared.
        name: String,
    },
    /// More of a call's arguments, which joined are a JSON object or, of a call that was cut, the beginning of one; never
    /// empty.
    CallArguments {
        /// The call.
        index: usize,
        /// A piece of JSON text.
        json: String,
    },
    /// A call is complete. One that was cut never is.
    CallEnd {
        /// The call.
        index: usize,
    },
}

impl ReplyEvent {
    /// Appends it to `events`, joined to the last one if both are text of one kind; an empty text is left out.
    pub fn join(self, events: &mut Vec<Self>) {
        use ReplyEvent::{CallArguments, Content, Reasoning};
        match (events.last_mut(), self) {
            (_, Reasoning(text) | Content(text) | CallArguments { json: text, .. }) if text.is_empty() => {}
            (Some(Reasoning(last)), Reasoning(text)) | (Some(Content(last)), Content(text)) => last.push_str(&text),
            (Some(CallArguments { index: at, json: last }), CallArguments { index, json }) if *at == index => {
                last.push_str(&json);
            }
            (_, event) => events.push(event),
        }
    }
}

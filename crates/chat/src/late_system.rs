//! System messages amid a conversation, for templates that refuse them there.
//!
//! Official templates take a system message in the first place only; clients put reminders anywhere. The template is
//! given a stand-in for each, and the text that it makes of the stand-in becomes the system turn. The stand-in is a
//! user's message in the form of a tool's response, which templates do not take for the question that the reply is to.

use serde_json::{Value, json};

use crate::secret;

const ROLE: &str = "user\n";

/// The stand-ins of the messages.
pub(crate) struct StandIns {
    /// Each with the text that it stands for.
    texts: Vec<(String, String)>,
}

impl StandIns {
    /// Puts stand-ins in the places of system messages that are not first; `None` if there are none, or one is not all
    /// text.
    pub(crate) fn put_in(messages: &mut [Value]) -> Option<Self> {
        let mut texts = Vec::new();
        for message in messages.iter_mut().skip(1).filter(|message| message["role"] == "system") {
            let mark = format!("<tool_response>{}</tool_response>", secret());
            texts.push((mark.clone(), text_of(&message["content"])?));
            *message = json!({"role": "user", "content": mark});
        }
        (!texts.is_empty()).then_some(Self { texts })
    }

    /// The prompt with the messages' own texts; `None` if the template made of a stand-in what was not expected.
    pub(crate) fn replace(self, prompt: &str) -> Option<String> {
        let mut written = String::with_capacity(prompt.len());
        let mut rest = prompt;
        for (mark, text) in self.texts {
            let (before, after) = rest.split_once(&mark)?;
            written.push_str(before.strip_suffix(ROLE)?);
            written.push_str("system\n");
            written.push_str(text.trim());
            rest = after;
        }
        written.push_str(rest);
        Some(written)
    }
}

fn text_of(content: &Value) -> Option<String> {
    match content {
        Value::Null => Some(String::new()),
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => parts.iter().map(|part| part["text"].as_str()).collect(),
        _ => None,
    }
}

//! From a conversation to the prompt's tokens, the same for every endpoint that has messages: each reads its own wire
//! form into a [`Conversation`].

use crate::error::ApiError;
use crate::params::Limits;
use crate::replay::{ReplayStore, Turn};
use crate::shared::Shared;
use crate::submit::{Reading, check_length, encode};
use crate::tools::Tools;
use lily_chat::{Prompt, TemplateError, begins_in_reasoning};
use serde_json::{Map, Value};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

/// What the model is to go on with.
pub(crate) struct Conversation {
    /// In OpenAI's chat form, checked.
    pub(crate) messages: Vec<Value>,
    pub(crate) tools: Tools,
    /// What the template gets beyond messages and tools.
    pub(crate) kwargs: Map<String, Value>,
    /// What the ids of calls begin with, as the endpoint's clients know them.
    pub(crate) id_prefix: &'static str,
}

impl Conversation {
    /// The prompt's tokens, and how to read the reply.
    pub(crate) fn into_prompt(self, shared: &Shared) -> Result<(Vec<u32>, Reading), ApiError> {
        let mut primer = self.tools.primer();
        let reading = |primed: String, reasoning: bool| Reading {
            reasoning: Some(reasoning),
            tools: self.tools.set(),
            single: !self.tools.parallel,
            primed,
            id_prefix: self.id_prefix,
        };
        let mut prompt = Prompt {
            messages: self.messages,
            tools: self.tools.shown().to_vec(),
            add_generation_prompt: true,
            kwargs: self.kwargs,
        };
        let mut parts = render(&mut prompt, shared)?;
        let Some(Part::Text(end)) = parts.last_mut() else { return Err(ApiError::internal("an empty prompt")) };
        let reasons = begins_in_reasoning(end);
        let reading = reading(primer.clone(), reasons && primer.is_empty());
        if !primer.is_empty() {
            // The call comes at once: it may not begin within reasoning.
            if reasons {
                primer.insert_str(0, "\n</think>\n\n");
            }
            end.push_str(&primer);
        }
        Ok((tokens(&parts, shared)?, reading))
    }
}

/// A piece of a prompt.
enum Part {
    Text(String),
    /// What the model wrote, from this token on.
    Turn(Arc<Turn>, usize),
}

fn tokens(parts: &[Part], shared: &Shared) -> Result<Vec<u32>, ApiError> {
    let limits: &Limits = &shared.limits;
    let mut tokens = Vec::new();
    for part in parts {
        match part {
            Part::Text(text) => tokens.extend(encode(&shared.tokenizer, limits, text, "messages")?),
            Part::Turn(turn, start) => tokens.extend_from_slice(&turn.tokens[*start..]),
        }
    }
    check_length(tokens.len(), limits, "messages")?;
    Ok(tokens)
}

/// The prompt, the last part of which is text, with the model's own tokens for the turns that are known.
fn render(prompt: &mut Prompt, shared: &Shared) -> Result<Vec<Part>, ApiError> {
    let mut turns = known_turns(&prompt.messages, &shared.replay);
    // A turn that cannot be put in is written out by the template as any other, in a second attempt.
    for _ in 0..2 {
        if turns.is_empty() {
            break;
        }
        let marks: Vec<Marks> = turns.iter().map(|_| Marks::new()).collect();
        // The messages can be megabytes: only those that change are copied.
        let mark = |((index, turn), marks): (&(usize, Arc<Turn>), &Marks)| {
            let message = &mut prompt.messages[*index];
            let original = message.clone();
            marks.put_in(message, turn);
            original
        };
        let originals: Vec<Value> = turns.iter().zip(&marks).map(mark).collect();
        let text = shared.template.render(prompt);
        for ((index, _), original) in turns.iter().zip(originals) {
            prompt.messages[*index] = original;
        }
        // What is wrong with the messages is better told by their own text.
        let Ok(text) = text else { break };
        match assemble(&text, &turns, &marks) {
            Ok(parts) => return Ok(parts),
            Err(misfit) => {
                turns.remove(misfit);
            }
        }
    }
    let text = shared.template.render(prompt).map_err(template_error)?;
    Ok(vec![Part::Text(text)])
}

fn known_turns(messages: &[Value], store: &ReplayStore) -> Vec<(usize, Arc<Turn>)> {
    let known = |(index, message)| store.find(message).map(|turn| (index, turn));
    messages.iter().enumerate().filter(|(_, message)| message["role"] == "assistant").filter_map(known).collect()
}

/// Texts that stand for a turn's reasoning and for the rest of it while the template puts everything in its place.
/// Nobody can know them before, so that no message can hold them.
struct Marks {
    reasoning: String,
    rest: String,
}

impl Marks {
    fn new() -> Self {
        // Each RandomState has keys of its own.
        let random = || RandomState::new().build_hasher().finish();
        let mark = |what: char| format!("\u{f8ff}{what}{:016x}{:016x}\u{f8ff}", random(), random());
        Self { reasoning: mark('r'), rest: mark('c') }
    }

    fn put_in(&self, message: &mut Value, turn: &Turn) {
        let Some(message) = message.as_object_mut() else { return };
        message.remove("tool_calls");
        message.remove("reasoning");
        message.insert("content".into(), self.rest.as_str().into());
        let reasoning = if turn.begins_in_reasoning { self.reasoning.as_str() } else { "" };
        message.insert("reasoning_content".into(), reasoning.into());
    }
}

/// The text cut at its marks, which give way to the turns; or the number of a turn that does not fit.
fn assemble(text: &str, turns: &[(usize, Arc<Turn>)], marks: &[Marks]) -> Result<Vec<Part>, usize> {
    let mut parts = Vec::with_capacity(2 * turns.len() + 1);
    let mut rest = text;
    for (number, ((_, turn), marks)) in turns.iter().zip(marks).enumerate() {
        let at = rest.find(&marks.rest).ok_or(number)?;
        let (start, token) = match rest[..at].find(&marks.reasoning) {
            Some(start) => (start, 0),
            // The template has left the reasoning out.
            None if turn.begins_in_reasoning => (at, turn.content_start.ok_or(number)?),
            None => (at, 0),
        };
        parts.push(Part::Text(rest[..start].to_owned()));
        parts.push(Part::Turn(Arc::clone(turn), token));
        rest = &rest[at + marks.rest.len()..];
    }
    parts.push(Part::Text(rest.to_owned()));
    Ok(parts)
}

pub(crate) fn template_error(error: TemplateError) -> ApiError {
    let text = error.to_string();
    match error {
        TemplateError::Syntax(_) | TemplateError::Config(_) => ApiError::internal(text),
        TemplateError::Raised(_) | TemplateError::Failed(_) => ApiError::parameter("messages", text).quoting_prompt(),
        TemplateError::Message { message, .. } => {
            ApiError::parameter(format!("messages[{message}]"), text).quoting_prompt()
        }
        TemplateError::Arguments { message, call, .. } => {
            ApiError::parameter(format!("messages[{message}].tool_calls[{call}].function.arguments"), text)
                .quoting_prompt()
        }
    }
}

//! From a conversation to the prompt's tokens, the same for every endpoint that has messages: each reads its own wire
//! form into a [`Conversation`].

use crate::error::ApiError;
use crate::params::Limits;
use crate::replay::{ReplayStore, Turn};
use crate::shared::Shared;
use crate::structured::{Structured, binding};
use crate::submit::{Reading, check_bytes, check_length};
use crate::thinking::THINKING_BUDGET;
use crate::tools::Tools;
use lily_chat::{Guard, Prompt, TemplateError, begins_in_reasoning, secret};
use serde_json::{Map, Value};
use std::mem;
use std::sync::Arc;

/// What the model is to go on with.
pub(crate) struct Conversation {
    /// In OpenAI's chat form, checked.
    pub(crate) messages: Vec<Value>,
    pub(crate) tools: Tools,
    /// What the content of the reply is to be.
    pub(crate) format: Option<Structured>,
    /// What the template gets beyond messages and tools; and `thinking_budget`, a number above 0, which it does not get.
    pub(crate) kwargs: Map<String, Value>,
    /// What the ids of calls begin with, as the endpoint's clients know them.
    pub(crate) id_prefix: &'static str,
}

impl Conversation {
    /// The prompt's tokens, and how to read the reply.
    pub(crate) fn into_prompt(mut self, shared: &Shared) -> Result<(Vec<u32>, Reading), ApiError> {
        let (tokens, mut reading) = self.within(&shared.limits, shared)?;
        let reasons = reading.reasoning == Some(true);
        reading.grammar = binding(self.format.as_ref(), &self.tools, shared, &reading.primed, reasons)?;
        Ok((tokens, reading))
    }

    /// The prompt's tokens, also where the context cannot hold them: for those who only count or look.
    pub(crate) fn into_tokens(mut self, shared: &Shared) -> Result<Vec<u32>, ApiError> {
        let (tokens, _reading) = self.within(&shared.limits.unbounded(), shared)?;
        Ok(tokens)
    }

    /// The prompt within these limits, its messages used up, and how to read a reply that nothing binds.
    fn within(&mut self, limits: &Limits, shared: &Shared) -> Result<(Vec<u32>, Reading), ApiError> {
        let thinking_budget = self.kwargs.remove(THINKING_BUDGET).and_then(|budget| budget.as_u64());
        if !limits.defaults.thinking {
            self.kwargs.entry("enable_thinking").or_insert(false.into());
        }
        let mut prompt = Prompt {
            messages: mem::take(&mut self.messages),
            tools: self.tools.in_head().cloned().collect(),
            add_generation_prompt: true,
            kwargs: mem::take(&mut self.kwargs),
        };
        let primed = self.tools.primer();
        let turns = known_turns(&prompt.messages, &shared.replay);
        let are_known = !turns.is_empty();
        let mut write = |turns| write(&mut prompt, turns, &primed, limits, shared);
        let (tokens, reasoning) = match write(turns) {
            // Reasoning that the client has left out may be what is too much.
            Err(error) if are_known && error.is_context_length() => write(Vec::new())?,
            written => written?,
        };
        let reading = Reading {
            reasoning: Some(reasoning),
            grammar: None,
            tools: self.tools.set(),
            single: self.tools.single(),
            primed,
            id_prefix: self.id_prefix,
            forbids_calls: self.tools.are_forbidden(),
            thinking_budget: thinking_budget.map(|tokens| usize::try_from(tokens).unwrap_or(usize::MAX)),
        };
        Ok((tokens, reading))
    }
}

/// The tokens of a prompt with these turns in it and the reply's beginning, and whether the reply goes on within reasoning.
fn write(
    prompt: &mut Prompt,
    turns: Vec<(usize, Arc<Turn>)>,
    primed: &str,
    limits: &Limits,
    shared: &Shared,
) -> Result<(Vec<u32>, bool), ApiError> {
    let guard = Guard::new(&shared.tokenizer);
    let mut parts = render(prompt, turns, shared, &guard)?;
    let Some(Part::Text(end)) = parts.last_mut() else { return Err(ApiError::internal("an empty prompt")) };
    let reasons = begins_in_reasoning(end);
    if !primed.is_empty() {
        // The call comes at once: it may not begin within reasoning.
        if reasons {
            end.push_str("\n</think>\n\n");
        }
        end.push_str(primed);
    }
    Ok((tokens(&parts, limits, &guard)?, reasons && primed.is_empty()))
}

/// A piece of a prompt.
enum Part {
    Text(String),
    /// What the model wrote, from this token on.
    Turn(Arc<Turn>, usize),
}

fn tokens(parts: &[Part], limits: &Limits, guard: &Guard<'_>) -> Result<Vec<u32>, ApiError> {
    let mut tokens = Vec::new();
    for part in parts {
        match part {
            Part::Text(text) => {
                check_bytes(guard.clean(text).len(), limits, "messages")?;
                tokens.extend(guard.encode(text).map_err(|error| ApiError::internal(error.to_string()))?);
            }
            Part::Turn(turn, start) => tokens.extend_from_slice(&turn.tokens[*start..]),
        }
    }
    check_length(tokens.len(), limits, "messages")?;
    Ok(tokens)
}

/// The prompt, the last part of which is text, with the model's own tokens for the turns that are known.
fn render(
    prompt: &mut Prompt,
    mut turns: Vec<(usize, Arc<Turn>)>,
    shared: &Shared,
    guard: &Guard<'_>,
) -> Result<Vec<Part>, ApiError> {
    if !turns.is_empty() {
        match render_turns(prompt, &turns, shared, guard) {
            Ok(parts) => return Ok(parts),
            // Those that cannot be put in are written out by the template as any other message.
            Err(fit) => {
                let mut fit = fit.into_iter();
                turns.retain(|_| fit.next().unwrap_or(false));
            }
        }
    }
    if !turns.is_empty()
        && let Ok(parts) = render_turns(prompt, &turns, shared, guard)
    {
        return Ok(parts);
    }
    let text = shared.template.render_guarded(prompt, guard).map_err(template_error)?;
    Ok(vec![Part::Text(text)])
}

/// The prompt with all of the turns; or which of them can be put in.
fn render_turns(
    prompt: &mut Prompt,
    turns: &[(usize, Arc<Turn>)],
    shared: &Shared,
    guard: &Guard<'_>,
) -> Result<Vec<Part>, Vec<bool>> {
    let marks: Vec<Marks> = turns.iter().map(|_| Marks::new()).collect();
    // The messages can be megabytes: only those that change are copied.
    let mark = |((index, turn), marks): (&(usize, Arc<Turn>), &Marks)| {
        let message = &mut prompt.messages[*index];
        let original = message.clone();
        marks.put_in(message, turn);
        original
    };
    let originals: Vec<Value> = turns.iter().zip(&marks).map(mark).collect();
    let text = shared.template.render_guarded(prompt, guard);
    for ((index, _), original) in turns.iter().zip(originals) {
        prompt.messages[*index] = original;
    }
    // What is wrong with the messages is better told by their own text.
    let Ok(text) = text else { return Err(vec![false; turns.len()]) };
    assemble(&text, turns, &marks)
}

fn known_turns(messages: &[Value], store: &ReplayStore) -> Vec<(usize, Arc<Turn>)> {
    let known = |(index, message)| store.find(message).map(|turn| (index, turn));
    messages.iter().enumerate().filter(|(_, message)| message["role"] == "assistant").filter_map(known).collect()
}

/// Texts that stand for a turn's reasoning and for the rest of it while the template puts everything in its place.
struct Marks {
    reasoning: String,
    rest: String,
}

impl Marks {
    fn new() -> Self {
        Self { reasoning: secret(), rest: secret() }
    }

    fn put_in(&self, message: &mut Value, turn: &Turn) {
        let Some(message) = message.as_object_mut() else { return };
        message.remove("tool_calls");
        message.remove("reasoning");
        message.insert("content".into(), self.rest.as_str().into());
        let reasoning = if turn.begins_in_reasoning { self.reasoning.as_str() } else { "" };
        message.insert("reasoning_content".into(), reasoning.into());
    }

    /// What stands before them in a text, the token from which on the turn takes their place, and what stands after them.
    fn find<'t>(&self, text: &'t str, turn: &Turn) -> Option<(&'t str, usize, &'t str)> {
        let (before, after) = text.split_once(&self.rest)?;
        match before.find(&self.reasoning) {
            Some(start) => Some((&before[..start], 0, after)),
            // The template has left the reasoning out.
            None if turn.begins_in_reasoning => Some((before, turn.content_start?, after)),
            None => Some((before, 0, after)),
        }
    }
}

/// The text cut at its marks, which give way to the turns; or which of them fit.
fn assemble(text: &str, turns: &[(usize, Arc<Turn>)], marks: &[Marks]) -> Result<Vec<Part>, Vec<bool>> {
    let mut parts = Vec::with_capacity(2 * turns.len() + 1);
    let mut fit = Vec::with_capacity(turns.len());
    let mut rest = text;
    for ((_, turn), marks) in turns.iter().zip(marks) {
        let place = marks.find(rest, turn);
        fit.push(place.is_some());
        if let Some((before, token, after)) = place {
            parts.push(Part::Text(before.to_owned()));
            parts.push(Part::Turn(Arc::clone(turn), token));
            rest = after;
        }
    }
    parts.push(Part::Text(rest.to_owned()));
    if fit.contains(&false) { Err(fit) } else { Ok(parts) }
}

pub(crate) fn template_error(error: TemplateError) -> ApiError {
    let text = error.to_string();
    match error {
        TemplateError::Syntax(_) | TemplateError::Config(_) => ApiError::internal(text),
        TemplateError::Raised(_) | TemplateError::Failed(_) => ApiError::parameter("messages", text).unlogged(),
        TemplateError::Message { message, .. } => ApiError::parameter(format!("messages[{message}]"), text).unlogged(),
        TemplateError::Arguments { message, call, .. } => {
            ApiError::parameter(format!("messages[{message}].tool_calls[{call}].function.arguments"), text).unlogged()
        }
    }
}

//! `POST /v1/completions`: raw text or token ids, without a template and without reasoning.

use crate::answer::{Answer, answer};
use crate::body;
use crate::completion_shape::CompletionShape;
use crate::error::ApiError;
use crate::fields::{self, Fields, wrong_type};
use crate::generate::Counts;
use crate::infill::Infill;
use crate::params::{Limits, MAX_TOP_LOGPROBS, Parameters};
use crate::shared::Shared;
use crate::structured::Structured;
use crate::submit::{Job, Reading, check_length, encode, submit};
use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use lily_chat::{Detokenizer, Tokenizer};
use serde_json::Value;
use std::sync::Arc;

/// Choices of one request, all prompts together: they take places in the queue that others need.
const MAX_CHOICES: usize = 32;

pub(crate) async fn handle(
    State(shared): State<Arc<Shared>>,
    Extension(counts): Extension<Arc<Counts>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (job, echo) = body::read_with(&shared, request, |request, shared| read(&request, shared)).await?;
    let choices = submit(&shared, &job, "prompt", &counts)?;
    let tokenizer = job.top_logprobs.map(|_| Arc::clone(&shared.tokenizer));
    let shape = CompletionShape::new(tokenizer, echo);
    answer(choices, shape, Answer::new(&shared, "cmpl-", "text_completion", counts), &job.parameters).await
}

/// The job, and what each choice's text begins with.
pub(crate) fn read(request: &Value, shared: &Shared) -> Result<(Job, Vec<String>), ApiError> {
    let fields = Fields::of(request, "")?;
    let parameters = Parameters::read(&fields, &shared.limits)?;
    let top_logprobs = fields.integer("logprobs", 0..=MAX_TOP_LOGPROBS)?.map(|count| count as usize);
    let echo = fields.boolean("echo")?.unwrap_or(false);
    if echo && top_logprobs.is_some() {
        let message =
            "'echo' with 'logprobs' is not supported yet: the prompt's own log-probabilities are not computed.";
        return Err(ApiError::parameter("echo", message));
    }
    let infill = match fields.string("suffix")? {
        None | Some("") => None,
        Some(suffix) => Some(Infill::new(&shared.tokenizer, &shared.limits, suffix)?),
    };
    if fields.integer("best_of", 1..=i64::MAX)?.is_some_and(|best_of| best_of as usize != parameters.choices) {
        return Err(ApiError::parameter("best_of", "'best_of' is not supported; it may only equal 'n'."));
    }
    let format = Structured::read(&fields)?;
    let prompts = Prompts { tokenizer: &shared.tokenizer, limits: &shared.limits }.read(fields.required("prompt")?)?;
    let choices = prompts.len() * parameters.choices;
    if choices > MAX_CHOICES {
        let message =
            format!("'prompt' holds {} prompts, {choices} choices; at most {MAX_CHOICES} are taken.", prompts.len());
        return Err(ApiError::parameter("prompt", message));
    }
    let mut texts = Vec::with_capacity(choices);
    for prompt in &prompts {
        let text = if echo { written(&shared.tokenizer, prompt) } else { String::new() };
        texts.extend(std::iter::repeat_n(text, parameters.choices));
    }
    let prompts = match infill {
        None => prompts,
        Some(infill) => prompts.iter().map(|prompt| infill.around(prompt, &shared.limits)).collect::<Result<_, _>>()?,
    };
    let grammar = format.map(|format| format.grammar(shared, false, false)).transpose()?;
    let reading = Reading { grammar, ..Reading::default() };
    Ok((Job { prompts, parameters, top_logprobs, reading }, texts))
}

/// A prompt as text, control tokens too: where a reply writes one it is text as well.
fn written(tokenizer: &Arc<Tokenizer>, prompt: &[u32]) -> String {
    let mut detokenizer = Detokenizer::new(Arc::clone(tokenizer));
    let mut text: String = prompt.iter().map(|&token| detokenizer.push(token)).collect();
    text.push_str(&detokenizer.finish());
    text
}

struct Prompts<'s> {
    tokenizer: &'s Tokenizer,
    limits: &'s Limits,
}

impl Prompts<'_> {
    /// One string, several, one run of token ids or several.
    fn read(&self, prompt: &Value) -> Result<Vec<Vec<u32>>, ApiError> {
        let several = match prompt {
            Value::Array(items) if !items.first().is_some_and(Value::is_number) => items,
            one => return Ok(vec![self.one(one, "prompt")?]),
        };
        if several.is_empty() {
            return Err(ApiError::parameter("prompt", "'prompt' is empty."));
        }
        // Before anything is encoded: each could be long.
        if several.len() > MAX_CHOICES {
            let message = format!("'prompt' holds {} prompts; at most {MAX_CHOICES} are taken.", several.len());
            return Err(ApiError::parameter("prompt", message));
        }
        several.iter().enumerate().map(|(index, one)| self.one(one, &format!("prompt[{index}]"))).collect()
    }

    fn one(&self, prompt: &Value, path: &str) -> Result<Vec<u32>, ApiError> {
        let tokens = match prompt {
            Value::String(text) => encode(self.tokenizer, self.limits, text, path)?,
            Value::Array(items) => {
                check_length(items.len(), self.limits, path)?;
                let highest = self.limits.vocabulary as i64 - 1;
                let id = |(index, item)| fields::integer(item, format_args!("{path}[{index}]"), 0..=highest);
                let ids = items.iter().enumerate().map(id);
                ids.map(|id| id.map(|id| id as u32)).collect::<Result<_, _>>()?
            }
            other => return Err(wrong_type(path, "a string or an array of token ids", other)),
        };
        if tokens.is_empty() {
            return Err(ApiError::parameter(path, format!("'{path}' is empty.")));
        }
        Ok(tokens)
    }
}

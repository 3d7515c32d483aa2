//! From a request to the engine: the prompt's tokens checked against the context, then one submission a choice.

use crate::error::ApiError;
use crate::generate::{Counts, Generation};
use crate::log;
use crate::params::{Limits, Parameters};
use crate::shared::Shared;
use crate::text::ReplyText;
use lily_chat::Tokenizer;
use lily_engine::{Request, SubmitError};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A request that is ready to run.
pub(crate) struct Job {
    /// Each gets `parameters.choices` choices, which follow each other in the answer.
    pub(crate) prompts: Vec<Vec<u32>>,
    pub(crate) parameters: Parameters,
    pub(crate) top_logprobs: Option<usize>,
    /// As [`ReplyText::new`] has it.
    pub(crate) reasoning: Option<bool>,
}

/// Turns a prompt into tokens, unless its length alone shows that the context cannot hold it: a text of megabytes takes
/// seconds.
pub(crate) fn encode(tokenizer: &Tokenizer, limits: &Limits, text: &str, param: &str) -> Result<Vec<u32>, ApiError> {
    // No token holds more bytes than the longest; normalisation to NFC, which comes first, leaves at least a third.
    let at_least = text.len() / 3 / limits.longest_token.max(1);
    if at_least >= limits.max_context {
        let counted = format!("at least {at_least} tokens ({} bytes)", text.len());
        return Err(ApiError::context_length(param, &counted, limits));
    }
    let tokens = tokenizer.encode(text).map_err(|error| ApiError::internal(error.to_string()))?;
    check_length(tokens.len(), limits, param)?;
    Ok(tokens)
}

/// 400 if a prompt of `count` tokens leaves no room for a reply.
pub(crate) fn check_length(count: usize, limits: &Limits, param: &str) -> Result<(), ApiError> {
    if count < limits.max_context {
        return Ok(());
    }
    Err(ApiError::context_length(param, &format!("{count} tokens"), limits))
}

/// Hands every choice to the engine. If one is refused, those before it are dropped and end.
pub(crate) fn submit(
    shared: &Shared,
    job: &Job,
    param: &str,
    counts: &Arc<Counts>,
) -> Result<Vec<Generation>, ApiError> {
    let parameters = &job.parameters;
    let mut choices = Vec::with_capacity(job.prompts.len() * parameters.choices);
    for prompt in &job.prompts {
        counts.prompt_tokens.fetch_add(prompt.len(), Ordering::Relaxed);
        for choice in 0..parameters.choices {
            let room = shared.limits.max_context.saturating_sub(prompt.len());
            let request = Request {
                prompt: prompt.clone(),
                sampling: parameters.sampling,
                penalties: parameters.penalties,
                logit_bias: parameters.logit_bias.clone(),
                seed: parameters.seed.map(|seed| seed.wrapping_add(choice as u64)),
                max_tokens: parameters.max_tokens.unwrap_or(room).min(room),
                stop_tokens: shared.stop_tokens.clone(),
                top_logprobs: job.top_logprobs,
            };
            let reply = shared.engine.submit(request).map_err(|error| refused(error, param, &shared.limits))?;
            let text = ReplyText::new(Arc::clone(&shared.tokenizer), parameters.stop.clone(), job.reasoning)
                .map_err(|error| ApiError::parameter(format!("stop[{}]", error.index), error.to_string()))?;
            let prompt_tokens = if choice == 0 { prompt.len() } else { 0 };
            choices.push(Generation::new(reply, text, prompt_tokens, Arc::clone(counts)));
        }
    }
    log::started(job.prompts.iter().map(Vec::len).sum());
    Ok(choices)
}

fn refused(error: SubmitError, param: &str, limits: &Limits) -> ApiError {
    match error {
        SubmitError::Empty | SubmitError::UnknownToken { .. } => ApiError::parameter(param, error.to_string()),
        SubmitError::TooLong { prompt, .. } => ApiError::context_length(param, &format!("{prompt} tokens"), limits),
        SubmitError::InvalidParameter { parameter, .. } => ApiError::parameter(parameter, error.to_string()),
        SubmitError::QueueFull { retry_after } => ApiError::queue_full(retry_after),
        SubmitError::ShuttingDown => ApiError::unavailable("The server is shutting down."),
        SubmitError::EngineGone => ApiError::internal(error.to_string()),
    }
}

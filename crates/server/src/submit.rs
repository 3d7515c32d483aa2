//! From a request to the engine: the prompt's tokens checked against the context, then one submission a choice.

use crate::constraint::Bound;
use crate::error::ApiError;
use crate::generate::{Counts, Generation};
use crate::log;
use crate::params::{Limits, Parameters};
use crate::recorder::Recorder;
use crate::shared::Shared;
use crate::text::ReplyText;
use crate::thought::Thought;
use lily_chat::{CallOptions, ReplyGrammar, ReplyParser, Tokenizer, ToolSet};
use lily_engine::{Budget, Constraint, Request, SubmitError};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A request that is ready to run.
pub(crate) struct Job {
    /// Each gets `parameters.choices` choices, which follow each other in the answer.
    pub(crate) prompts: Vec<Vec<u32>>,
    pub(crate) parameters: Parameters,
    pub(crate) top_logprobs: Option<usize>,
    pub(crate) reading: Reading,
}

/// How to read the replies: what in them is reasoning, content or a call. By default all is content, and free.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    /// Whether to tell reasoning from content and, if so, whether the reply begins within reasoning.
    pub(crate) reasoning: Option<bool>,
    /// What they must follow.
    pub(crate) grammar: Option<ReplyGrammar>,
    /// What calls are read by, if there may be any.
    pub(crate) tools: Option<Arc<ToolSet>>,
    /// Whether the reply ends with its first call.
    pub(crate) single: bool,
    /// The end of the prompt that is the beginning of the reply.
    pub(crate) primed: String,
    /// What the ids of calls begin with.
    pub(crate) id_prefix: &'static str,
    /// Whether the model may not begin a call.
    pub(crate) forbids_calls: bool,
    /// Tokens that reasoning may take.
    pub(crate) thinking_budget: Option<usize>,
}

/// What takes a token out of every choice.
const FORBIDDEN: f32 = -1e4;

impl Reading {
    /// What ends reasoning that grows too long.
    fn budget(&self, shared: &Shared) -> Result<Option<Budget>, ApiError> {
        let Some(tokens) = self.thinking_budget.filter(|_| self.reasoning == Some(true)) else { return Ok(None) };
        let close = shared.tokenizer.encode("\n</think>\n\n").map_err(|error| ApiError::internal(error.to_string()))?;
        let thought = Thought::new(Arc::clone(&shared.tokenizer), self.parser(shared));
        Ok(Some(Budget { tokens, section: Box::new(thought), close }))
    }

    /// The biases of a request, and what keeps the model from calls.
    fn biases(&self, asked: &[(u32, f32)], tokenizer: &Tokenizer) -> Vec<(u32, f32)> {
        let call = tokenizer.id("<tool_call>").filter(|_| self.forbids_calls);
        asked.iter().copied().chain(call.map(|token| (token, FORBIDDEN))).collect()
    }

    /// What reads one reply.
    fn parser(&self, shared: &Shared) -> ReplyParser {
        let calls = self.tools.as_ref().map(|tools| CallOptions {
            tools: Arc::clone(tools),
            id_prefix: shared.secret_id(self.id_prefix) + "_",
            single: self.single,
        });
        ReplyParser::new(self.reasoning, calls)
    }

    /// What binds one reply.
    fn constraint(&self) -> Option<Box<dyn Constraint>> {
        self.grammar.clone().map(|grammar| Box::new(Bound::new(grammar)) as Box<dyn Constraint>)
    }

    /// What keeps one reply for the prompts to come, if it may call tools.
    fn recorder(&self, shared: &Shared) -> Result<Option<Recorder>, ApiError> {
        if self.tools.is_none() {
            return Ok(None);
        }
        let primed = shared.tokenizer.encode(&self.primed).map_err(|error| ApiError::internal(error.to_string()))?;
        Ok(Some(Recorder::new(
            Arc::clone(&shared.replay),
            Arc::clone(&shared.tokenizer),
            primed,
            self.reasoning.unwrap_or(false),
        )))
    }
}

/// Turns a prompt into tokens, unless its length alone shows that the context cannot hold it: a text of megabytes takes
/// seconds.
pub(crate) fn encode(tokenizer: &Tokenizer, limits: &Limits, text: &str, param: &str) -> Result<Vec<u32>, ApiError> {
    check_bytes(text.len(), limits, param)?;
    let tokens = tokenizer.encode(text).map_err(|error| ApiError::internal(error.to_string()))?;
    check_length(tokens.len(), limits, param)?;
    Ok(tokens)
}

/// 400 if a text of `bytes` cannot but leave no room for a reply.
pub(crate) fn check_bytes(bytes: usize, limits: &Limits, param: &str) -> Result<(), ApiError> {
    // No token holds more bytes than the longest; normalisation to NFC, which comes first, leaves at least a third.
    let at_least = bytes / 3 / limits.longest_token.max(1);
    if at_least < limits.max_context {
        return Ok(());
    }
    Err(ApiError::context_length(param, &format!("at least {at_least} tokens ({bytes} bytes)"), limits))
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
                logit_bias: job.reading.biases(&parameters.logit_bias, &shared.tokenizer),
                seed: parameters.seed.map(|seed| seed.wrapping_add(choice as u64)),
                max_tokens: parameters.max_tokens.unwrap_or(room).min(room),
                stop_tokens: shared.stop_tokens.clone(),
                top_logprobs: job.top_logprobs,
                budget: job.reading.budget(shared)?,
                constraint: job.reading.constraint(),
                client: counts.client.get().copied().unwrap_or_default(),
            };
            let reply = shared.engine.submit(request).map_err(|error| refused(error, param, &shared.limits))?;
            let tokenizer = Arc::clone(&shared.tokenizer);
            let parser = job.reading.parser(shared);
            let text = ReplyText::new(tokenizer, parameters.stop.clone(), parser, &job.reading.primed)
                .map_err(|error| ApiError::parameter(format!("stop[{}]", error.index), error.to_string()))?;
            let recorder = job.reading.recorder(shared)?;
            let prompt_tokens = if choice == 0 { prompt.len() } else { 0 };
            choices.push(Generation::new(reply, text, recorder, prompt_tokens, Arc::clone(counts)));
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

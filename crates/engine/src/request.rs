//! What a client asks for, and whether it can be had.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use lily_backend::Sampling;

use crate::budget::{Budget, Spending};
use crate::constraint::Constraint;
use crate::penalties::Adjustments;
use crate::reply::Events;
use crate::sequence::Job;

/// Discouragement of tokens that have been used. The default changes nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalties {
    /// Subtracted from the logit of every token generated so far.
    pub presence: f32,
    /// Subtracted once for each time the token was generated.
    pub frequency: f32,
    /// Divides the logit of every token of prompt and reply if it is positive, else multiplies it; above 0, and 1
    /// changes nothing.
    pub repetition: f32,
}

impl Default for Penalties {
    fn default() -> Self {
        Self { presence: 0.0, frequency: 0.0, repetition: 1.0 }
    }
}

/// One reply to one prompt.
#[derive(Clone, Debug)]
pub struct Request {
    /// Token ids; not empty, and shorter than the context.
    pub prompt: Vec<u32>,
    /// How a token is chosen.
    pub sampling: Sampling,
    /// What is discouraged.
    pub penalties: Penalties,
    /// Added to the logits of single tokens; what is said twice of one token adds up.
    pub logit_bias: Vec<(u32, f32)>,
    /// The random stream: the same request with the same seed gives the same reply whatever else runs. Without one the
    /// engine picks one.
    pub seed: Option<u64>,
    /// The longest reply, the stop token counted; at least 1. The end of the context ends it too.
    pub max_tokens: usize,
    /// Tokens that end the reply.
    pub stop_tokens: Vec<u32>,
    /// Report log-probabilities of the chosen token and of this many most probable ones.
    pub top_logprobs: Option<usize>,
    /// Bounds the reply's first section.
    pub budget: Option<Budget>,
    /// What the reply must follow.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Whose request it is, by any number that tells clients apart: those that wait take turns.
    pub client: u64,
}

impl Request {
    /// A greedy request without anything special.
    #[must_use]
    pub fn new(prompt: Vec<u32>, max_tokens: usize) -> Self {
        Self {
            prompt,
            sampling: Sampling::GREEDY,
            penalties: Penalties::default(),
            logit_bias: Vec::new(),
            seed: None,
            max_tokens,
            stop_tokens: Vec::new(),
            top_logprobs: None,
            budget: None,
            constraint: None,
            client: 0,
        }
    }

    pub(crate) fn validate(&self, vocabulary: usize, max_context: usize) -> Result<(), SubmitError> {
        if self.prompt.is_empty() {
            return Err(SubmitError::Empty);
        }
        if self.prompt.len() >= max_context {
            return Err(SubmitError::TooLong { prompt: self.prompt.len(), limit: max_context });
        }
        if let Some(&token) = self.prompt.iter().find(|&&token| token as usize >= vocabulary) {
            return Err(SubmitError::UnknownToken { token, vocabulary });
        }
        let Sampling { temperature, top_k: _, top_p, min_p } = self.sampling;
        let Penalties { presence, frequency, repetition } = self.penalties;
        require(
            temperature.is_finite() && temperature >= 0.0,
            "temperature",
            "a finite number of at least 0",
            temperature,
        )?;
        require((0.0..=1.0).contains(&top_p), "top_p", "a number from 0 to 1", top_p)?;
        require((0.0..=1.0).contains(&min_p), "min_p", "a number from 0 to 1", min_p)?;
        require(presence.is_finite(), "presence_penalty", "a finite number", presence)?;
        require(frequency.is_finite(), "frequency_penalty", "a finite number", frequency)?;
        require(
            repetition.is_finite() && repetition > 0.0,
            "repetition_penalty",
            "a finite number above 0",
            repetition,
        )?;
        require(self.max_tokens > 0, "max_tokens", "at least 1", self.max_tokens)?;
        for &(token, bias) in &self.logit_bias {
            require((token as usize) < vocabulary, "logit_bias", "for tokens of the vocabulary", token)?;
            require(bias.is_finite(), "logit_bias", "finite", bias)?;
        }
        for &token in self.budget.iter().flat_map(|budget| &budget.close) {
            require((token as usize) < vocabulary, "budget", "closed by tokens of the vocabulary", token)?;
        }
        Ok(())
    }

    pub(crate) fn into_job(self, events: Events) -> Job {
        let adjustments = Adjustments::new(&self.prompt, self.penalties, &self.logit_bias);
        Job {
            adjustments,
            prompt: self.prompt.into(),
            sampling: self.sampling,
            // The keys of a hash map come from the system once a thread and differ from map to map; what SipHash makes of
            // them is random enough here.
            seed: self.seed.unwrap_or_else(|| RandomState::new().build_hasher().finish()),
            max_tokens: self.max_tokens,
            stop_tokens: self.stop_tokens,
            top_logprobs: self.top_logprobs,
            budget: self.budget.map(Spending::new),
            constraint: self.constraint,
            client: self.client,
            events,
        }
    }
}

fn require(holds: bool, parameter: &'static str, what: &str, got: impl std::fmt::Display) -> Result<(), SubmitError> {
    if holds {
        return Ok(());
    }
    Err(SubmitError::InvalidParameter { parameter, problem: format!("must be {what}, not {got}") })
}

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SubmitError {
    /// No prompt.
    #[error("the prompt holds no tokens")]
    Empty,
    /// A token id of the prompt that the vocabulary does not have.
    #[error("the prompt holds token id {token}, the vocabulary ends at {vocabulary}")]
    UnknownToken {
        /// The id.
        token: u32,
        /// Ids there are.
        vocabulary: usize,
    },
    /// The prompt leaves no room for a reply.
    #[error("the prompt is {prompt} tokens long; the context holds {limit}, of which at least one is for the reply")]
    TooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// [`Engine::max_context`](crate::Engine::max_context).
        limit: usize,
    },
    /// A value out of its range.
    #[error("{parameter} {problem}")]
    InvalidParameter {
        /// As OpenAI's API names it: `temperature`, `top_p`, `min_p`, `presence_penalty`, `frequency_penalty`,
        /// `repetition_penalty`, `logit_bias`, `max_tokens`; or `budget`.
        parameter: &'static str,
        /// What it must be, and what it was.
        problem: String,
    },
    /// As many requests wait as may.
    #[error("too many requests are waiting; try again in {} s", retry_after.as_secs_f32().ceil())]
    QueueFull {
        /// When a place in the queue may be free, judged by how long replies took of late.
        retry_after: Duration,
    },
    /// [`Engine::shutdown`](crate::Engine::shutdown) was called.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The engine's thread died; only a restart of the program helps.
    #[error("the engine has failed and must be restarted")]
    EngineGone,
}

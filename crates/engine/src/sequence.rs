//! One request on its way through the backend.

use std::slice;
use std::time::{Duration, Instant};

use lily_backend::{Draw, Output, Sample, Sampling, Segment, Want};

use crate::penalties::Adjustments;
use crate::reply::{Event, Events, FinishReason, Usage};
use crate::scheduler::Need;

/// A checked request that waits.
pub(crate) struct Job {
    pub(crate) prompt: Vec<u32>,
    pub(crate) sampling: Sampling,
    pub(crate) adjustments: Adjustments,
    pub(crate) seed: u64,
    pub(crate) max_tokens: usize,
    pub(crate) stop_tokens: Vec<u32>,
    pub(crate) top_logprobs: Option<usize>,
    pub(crate) events: Events,
}

/// A request that runs.
pub(crate) struct Sequence<S> {
    job: Job,
    state: S,
    /// Prompt tokens that came with the state and did not have to be read.
    cached: usize,
    /// Prompt tokens the state holds.
    position: usize,
    /// The token drawn last, which the next step reads.
    last: u32,
    /// Tokens drawn.
    generated: usize,
    /// The longest reply: what was asked for, or what the context leaves.
    limit: usize,
    /// The step that last read something of the prompt.
    served: u64,
    began: Instant,
}

impl<S> Sequence<S> {
    /// `state` holds the first `cached` tokens of the prompt, fewer than all: the last one's logits are needed.
    /// `step` is the step now, from which the wait for the first chunk counts.
    pub(crate) fn new(job: Job, state: S, cached: usize, max_context: usize, step: u64) -> Self {
        let limit = job.max_tokens.min(max_context - job.prompt.len());
        Self { job, state, cached, position: cached, last: 0, generated: 0, limit, served: step, began: Instant::now() }
    }

    pub(crate) fn cancelled(&self) -> bool {
        self.job.events.cancelled()
    }

    /// What the scheduler must know.
    pub(crate) fn need(&self) -> Need {
        Need { position: self.position, remaining: self.remaining(), served: self.served }
    }

    /// Prompt tokens the state holds.
    pub(crate) fn position(&self) -> usize {
        self.position
    }

    /// Tokens drawn.
    pub(crate) fn generated(&self) -> usize {
        self.generated
    }

    /// Time since it began to run.
    pub(crate) fn age(&self) -> Duration {
        self.began.elapsed()
    }

    /// Prompt tokens still to be read; 0 once it generates.
    fn remaining(&self) -> usize {
        self.job.prompt.len() - self.position
    }

    /// The segment that reads `tokens` more of the prompt or, if all is read, the token drawn last.
    pub(crate) fn segment(&mut self, tokens: usize, vocabulary: usize) -> Segment<'_, S> {
        let remaining = self.remaining();
        let job = &self.job;
        let draw = Want::Sample(Draw {
            vocabulary,
            sampling: job.sampling,
            seed: job.seed,
            counter: self.generated as u64,
            adjustments: job.adjustments.as_slice(),
            top_logprobs: job.top_logprobs,
        });
        let (tokens, want) = if remaining == 0 {
            (slice::from_ref(&self.last), draw)
        } else {
            let chunk = &job.prompt[self.position..self.position + tokens];
            (chunk, if tokens == remaining { draw } else { Want::Nothing })
        };
        Segment { state: &mut self.state, tokens, want }
    }

    /// Takes in what came of a segment of `tokens`, in the step of this number; says whether that ends the reply.
    ///
    /// # Errors
    /// If there is no token to go on with, or the output is not of the kind that was asked for.
    pub(crate) fn advance(&mut self, tokens: usize, output: Output, step: u64) -> Result<Option<FinishReason>, String> {
        if self.remaining() > 0 {
            self.prefilled(tokens, step);
        }
        match output {
            Output::Nothing if self.remaining() > 0 => Ok(None),
            Output::Sample(sample) if self.remaining() == 0 => Ok(self.drawn(sample)),
            Output::NoFiniteLogit if self.remaining() == 0 => Err("the model gave no finite logit".into()),
            _ => Err("the backend gave an output of a kind that was not asked for".into()),
        }
    }

    fn prefilled(&mut self, tokens: usize, step: u64) {
        self.served = step;
        self.position += tokens;
        let total = self.job.prompt.len();
        if tokens < total - self.cached {
            self.job.events.send(Event::Prefill { done: self.position, total });
        }
    }

    fn drawn(&mut self, sample: Sample) -> Option<FinishReason> {
        self.generated += 1;
        self.last = sample.token;
        if self.job.stop_tokens.contains(&sample.token) {
            return Some(FinishReason::Stop);
        }
        self.job.adjustments.record(sample.token);
        self.job.events.send(Event::Token(sample));
        (self.generated == self.limit).then_some(FinishReason::Length)
    }

    /// Gives up the state; what remains is to tell the client.
    pub(crate) fn end(self, reason: FinishReason) -> (Events, Event) {
        let usage = Usage {
            prompt_tokens: self.job.prompt.len(),
            cached_tokens: self.cached,
            completion_tokens: self.generated,
        };
        self.part_with(Event::Finished { reason, usage })
    }

    /// Gives up the state for a reason that is not the client's.
    pub(crate) fn fail(self, message: String) -> (Events, Event) {
        self.part_with(Event::Failed(message))
    }

    fn part_with(self, event: Event) -> (Events, Event) {
        // On its own and first: if a backend's state panics here, a value about to be returned would leak, and its
        // client would wait for ever.
        drop(self.state);
        (self.job.events, event)
    }
}

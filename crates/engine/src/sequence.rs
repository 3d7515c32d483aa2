//! One request on its way through the backend.

use std::collections::BTreeSet;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lily_backend::{Draw, Output, Sample, Sampling, Segment, Want};

use crate::budget::Spending;
use crate::constraint::{self, Constraint};
use crate::penalties::Adjustments;
use crate::reply::{Event, Events, FinishReason, Usage};
use crate::scheduler::Need;

/// A checked request that waits.
pub(crate) struct Job {
    pub(crate) prompt: Arc<[u32]>,
    pub(crate) sampling: Sampling,
    pub(crate) adjustments: Adjustments,
    pub(crate) seed: u64,
    pub(crate) max_tokens: usize,
    pub(crate) stop_tokens: Vec<u32>,
    pub(crate) top_logprobs: Option<usize>,
    pub(crate) budget: Option<Spending>,
    pub(crate) constraint: Option<Box<dyn Constraint>>,
    pub(crate) client: u64,
    pub(crate) events: Events,
}

/// Where a sequence begins.
pub(crate) struct Start<S> {
    /// Holds the first `cached` tokens of the prompt, fewer than all: the last one's logits are needed.
    pub(crate) state: S,
    pub(crate) cached: usize,
    /// Where in the prompt snapshots are to be taken.
    pub(crate) stops: Vec<usize>,
    /// The step now, from which the wait for the first chunk counts.
    pub(crate) step: u64,
}

/// A request that runs.
pub(crate) struct Sequence<S> {
    /// Tells sequences apart.
    id: u64,
    job: Job,
    state: S,
    /// Prompt tokens that came with the state and did not have to be read.
    cached: usize,
    /// Prompt tokens the state holds.
    position: usize,
    /// Where snapshots are to be taken, as far as it has not come yet.
    stops: BTreeSet<usize>,
    /// What was drawn; the last of it the next step reads.
    drawn: Vec<u32>,
    /// The longest reply: what was asked for, or what the context leaves.
    limit: usize,
    /// The step that last read something of the prompt.
    served: u64,
    began: Instant,
}

impl<S> Sequence<S> {
    pub(crate) fn new(id: u64, job: Job, start: Start<S>, max_context: usize) -> Self {
        let Start { state, cached, stops, step } = start;
        let limit = job.max_tokens.min(max_context - job.prompt.len());
        job.events.send(Event::Started { cached_tokens: cached });
        Self {
            id,
            job,
            state,
            cached,
            position: cached,
            stops: stops.into_iter().collect(),
            drawn: Vec::new(),
            limit,
            served: step,
            began: Instant::now(),
        }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn cancelled(&self) -> bool {
        self.job.events.cancelled()
    }

    /// For asking whether it is cancelled while its state is in use.
    pub(crate) fn events(&self) -> Events {
        self.job.events.clone()
    }

    /// What the scheduler must know; the shortest prompt that waits for this one has `waiting` tokens, if there is one.
    pub(crate) fn need(&self, waiting: Option<usize>) -> Need {
        let stop = self.stops.first().map_or(usize::MAX, |stop| stop - self.position);
        let remaining = self.remaining();
        let urgency = waiting.map_or(remaining, |prompt| remaining.min(prompt - self.position));
        Need { position: self.position, remaining, urgency, stop, served: self.served }
    }

    pub(crate) fn prompt(&self) -> &[u32] {
        &self.job.prompt
    }

    /// Prompt tokens the state holds.
    pub(crate) fn position(&self) -> usize {
        self.position
    }

    /// Where snapshots are still to be taken.
    pub(crate) fn stops(&self) -> &BTreeSet<usize> {
        &self.stops
    }

    /// Has a snapshot taken at a position ahead.
    pub(crate) fn add_stop(&mut self, position: usize) {
        self.stops.insert(position);
    }

    /// Whether a snapshot is to be taken right here; says so once.
    pub(crate) fn at_stop(&mut self) -> bool {
        self.stops.remove(&self.position)
    }

    pub(crate) fn state(&self) -> &S {
        &self.state
    }

    /// Tokens drawn.
    pub(crate) fn generated(&self) -> usize {
        self.drawn.len()
    }

    /// Time since it began to run.
    pub(crate) fn age(&self) -> Duration {
        self.began.elapsed()
    }

    /// Prompt tokens still to be read; 0 once it generates.
    pub(crate) fn remaining(&self) -> usize {
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
            counter: self.drawn.len() as u64,
            adjustments: job.adjustments.as_slice(),
            penalty: job.adjustments.penalty(),
            allowed: job.constraint.as_ref().and_then(|constraint| constraint.allowed()),
            top_logprobs: job.top_logprobs,
        });
        let (tokens, want) = match self.drawn.last() {
            Some(last) => (slice::from_ref(last), draw),
            None => {
                let chunk = &job.prompt[self.position..self.position + tokens];
                (chunk, if tokens == remaining { draw } else { Want::Nothing })
            }
        };
        Segment { state: &mut self.state, tokens, want }
    }

    /// Takes in what came of a segment of `tokens`, in the step of this number; says whether that ends the reply.
    ///
    /// # Errors
    /// If there is no token to go on with, the constraint gives up, or the output is not of the kind that was asked for.
    pub(crate) fn advance(&mut self, tokens: usize, output: Output, step: u64) -> Result<Option<FinishReason>, String> {
        if self.remaining() > 0 {
            self.prefilled(tokens, step);
        }
        match output {
            Output::Nothing if self.remaining() > 0 => Ok(None),
            Output::Sample(sample) if self.remaining() == 0 => self.take(sample),
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

    fn take(&mut self, drawn: Sample) -> Result<Option<FinishReason>, String> {
        let sample = self.within_budget(drawn)?;
        let Job { constraint, stop_tokens, adjustments, events, .. } = &mut self.job;
        let token = sample.token;
        if constraint.as_ref().and_then(|constraint| constraint.allowed()).is_some_and(|set| !set.contains(token)) {
            return Err(format!("the backend drew token {token}, which the reply's constraint does not allow"));
        }
        self.drawn.push(token);
        if stop_tokens.contains(&token) {
            return Ok(Some(FinishReason::Stop));
        }
        adjustments.record(token);
        events.send(Event::Token(sample));
        if self.drawn.len() == self.limit {
            return Ok(Some(FinishReason::Length));
        }
        match constraint {
            Some(constraint) => constraint::accept(constraint.as_mut(), token).map(|()| None),
            None => Ok(None),
        }
    }

    /// What was drawn or, if a section has used up its budget, what ends it.
    fn within_budget(&mut self, drawn: Sample) -> Result<Sample, String> {
        let Some(budget) = &mut self.job.budget else { return Ok(drawn) };
        let token = budget.instead(self.drawn.len(), drawn.token)?;
        if budget.is_spent() {
            self.job.budget = None;
        }
        let logprob = self.job.top_logprobs.map(|_| 0.0);
        Ok(token.map_or(drawn, |token| Sample { token, logprob, top: Vec::new() }))
    }

    /// What is left when nothing more is to come: the state, the tokens that it holds, and the way to the client.
    pub(crate) fn part(self) -> Parts<S> {
        let Self { job, state, position, drawn, .. } = self;
        // The last one drawn has not been read.
        let read = drawn.len().saturating_sub(1);
        let tokens = job.prompt[..position].iter().chain(&drawn[..read]).copied().collect();
        Parts { state, tokens, events: job.events }
    }

    /// What it took so far.
    pub(crate) fn usage(&self) -> Usage {
        Usage { prompt_tokens: self.job.prompt.len(), cached_tokens: self.cached, completion_tokens: self.drawn.len() }
    }
}

/// A sequence taken apart.
pub(crate) struct Parts<S> {
    pub(crate) state: S,
    pub(crate) tokens: Vec<u32>,
    pub(crate) events: Events,
}

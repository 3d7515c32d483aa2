//! The engine's thread.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::time::Instant;

use lily_backend::{Backend, BackendError, Output, Segment};

use crate::inbox::{Alive, Inbox, Progress, Stage};
use crate::reply::{Event, Events};
use crate::scheduler::{Need, Scheduler};
use crate::sequence::{Job, Sequence};
use crate::{Options, SubmitError};

/// Runs until it is told to end. Between two steps it drops what was cancelled and fills the free places.
pub(crate) fn run<B: Backend>(backend: B, options: &Options, alive: Alive) {
    let inbox = alive.inbox();
    let mut runner = Runner::new(backend, options);
    loop {
        runner.sequences.retain(|sequence| !sequence.cancelled());
        let turn = inbox.next(runner.sequences.len());
        runner.admit(turn.jobs);
        match turn.stage {
            Stage::Aborting => break,
            Stage::Draining if runner.sequences.is_empty() && turn.waiting == 0 => break,
            _ if runner.sequences.is_empty() => {}
            _ => runner.step(turn.waiting, inbox),
        }
    }
    for sequence in runner.sequences {
        tell(sequence.fail(SubmitError::ShuttingDown.to_string()));
    }
    drop(runner.backend);
    alive.end();
}

fn tell((events, event): (Events, Event)) {
    events.send(event);
}

struct Runner<B: Backend> {
    backend: B,
    scheduler: Scheduler,
    /// In order of arrival.
    sequences: Vec<Sequence<B::State>>,
    vocabulary: usize,
    /// Steps so far.
    step: u64,
}

impl<B: Backend> Runner<B> {
    fn new(backend: B, options: &Options) -> Self {
        let scheduler = Scheduler::new(options.prefill_chunk, !backend.description().chunk_invariant);
        Self { backend, scheduler, sequences: Vec::new(), vocabulary: options.vocabulary, step: 0 }
    }

    fn admit(&mut self, jobs: Vec<Job>) {
        let max_context = self.backend.description().max_context;
        for job in jobs {
            match guarded(|| self.backend.create()) {
                Ok(state) => self.sequences.push(Sequence::new(job, state, 0, max_context, self.step)),
                Err(error) => {
                    tracing::warn!(%error, "no state for a new sequence");
                    job.events.send(Event::Failed(format!("the request could not be started: {error}")));
                }
            }
        }
    }

    /// One call of the backend and what follows from it; `waiting` requests are in the queue.
    fn step(&mut self, waiting: usize, inbox: &Inbox) {
        self.step += 1;
        let needs: Vec<Need> = self.sequences.iter().map(Sequence::need).collect();
        let tokens = self.scheduler.plan(&needs, waiting);
        let before = Instant::now();
        let mut results = self.forward(&tokens).into_iter();
        let time = before.elapsed();

        let mut progress = Progress::default();
        let mut ended = Vec::new();
        for (mut sequence, tokens) in mem::take(&mut self.sequences).into_iter().zip(tokens) {
            if tokens == 0 {
                self.sequences.push(sequence);
                continue;
            }
            let generated = sequence.generated();
            let prefilled = sequence.position();
            let result = results.next().unwrap_or_else(|| Err("the backend left an output out".into()));
            let result = result.and_then(|output| sequence.advance(tokens, output, self.step));
            progress.prefilled_tokens += (sequence.position() - prefilled) as u64;
            progress.generated_tokens += (sequence.generated() - generated) as u64;
            match result {
                Ok(None) => self.sequences.push(sequence),
                Ok(Some(reason)) => {
                    progress.reply_times.push(sequence.age());
                    ended.push(sequence.end(reason));
                }
                Err(message) => {
                    tracing::warn!(%message, "a sequence failed");
                    ended.push(sequence.fail(message));
                }
            }
        }
        if progress.prefilled_tokens > 0 {
            self.scheduler.measured(progress.prefilled_tokens as usize, time);
        }
        // First the count, then the news: who hears that a reply ended finds its place free.
        inbox.report(self.sequences.len(), &progress);
        ended.into_iter().for_each(tell);
    }

    /// Gives each sequence its `tokens` (those with 0 are left out) and returns what came of each, in order.
    fn forward(&mut self, tokens: &[usize]) -> Vec<Result<Output, String>> {
        let Self { backend, sequences, vocabulary, .. } = self;
        let mut segments: Vec<Segment<'_, B::State>> = sequences
            .iter_mut()
            .zip(tokens)
            .filter(|&(_, &tokens)| tokens > 0)
            .map(|(sequence, &tokens)| sequence.segment(tokens, *vocabulary))
            .collect();
        match guarded(|| backend.forward(&mut segments)) {
            Ok(outputs) => outputs.into_iter().map(Ok).collect(),
            Err(BackendError::Device(message)) => vec![Err(message); segments.len()],
            Err(error) if segments.len() == 1 => vec![Err(error.to_string())],
            // One segment was refused and no state has changed: alone, the others go through.
            Err(_) => segments.iter_mut().map(|segment| forward_one(backend, segment)).collect(),
        }
    }
}

fn forward_one<B: Backend>(backend: &mut B, segment: &mut Segment<'_, B::State>) -> Result<Output, String> {
    let outputs = guarded(|| backend.forward(slice::from_mut(segment))).map_err(|error| error.to_string())?;
    outputs.into_iter().next().ok_or_else(|| "the backend left an output out".into())
}

/// Makes a panic of the backend a failure of the device: the states of the call are dropped, the backend goes on, as its
/// own buffers hold nothing from one call to the next. Should it be broken for good, each later call fails alike and
/// each client is told.
fn guarded<T>(call: impl FnOnce() -> Result<T, BackendError>) -> Result<T, BackendError> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        Err(BackendError::Device(format!("the backend panicked: {}", panic_message(panic.as_ref()))))
    })
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

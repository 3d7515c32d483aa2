//! The engine's thread.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::sync::Arc;
use std::time::Instant;

use lily_backend::{Backend, BackendError, Output, Segment};

use crate::admission::Parked;
use crate::cache::{Cache, Places};
use crate::inbox::{Alive, Inbox, Progress, Stage};
use crate::reply::{Event, Events};
use crate::scheduler::{Need, Scheduler};
use crate::sequence::{Parts, Sequence};
use crate::{Options, SubmitError};

/// Runs until it is told to end. Between two steps it drops what was cancelled and fills the free places.
pub(crate) fn run<B: Backend>(backend: B, options: &Options, alive: Alive) {
    let inbox = alive.inbox();
    let mut runner = Runner::new(backend, options, inbox);
    loop {
        runner.drop_cancelled();
        if runner.has_ready() {
            inbox.wake();
        }
        let turn = inbox.next(runner.sequences.len(), runner.parked.len());
        runner.admit(turn.jobs);
        runner.report_cache(inbox);
        match turn.stage {
            Stage::Aborting => break,
            Stage::Draining if runner.is_idle() && turn.waiting == 0 => break,
            _ if runner.sequences.is_empty() => {}
            _ => runner.step(turn.waiting, inbox),
        }
    }
    let Runner { backend, sequences, parked, cache, .. } = runner;
    let events = parked.into_iter().map(Parked::into_events);
    for events in events.chain(sequences.into_iter().map(|sequence| sequence.part().events)) {
        events.send(Event::Failed(SubmitError::ShuttingDown.to_string()));
    }
    // Waits for the disk.
    drop(cache);
    drop(backend);
    alive.end();
}

pub(crate) struct Runner<B: Backend> {
    pub(crate) backend: B,
    scheduler: Scheduler,
    /// In order of arrival.
    pub(crate) sequences: Vec<Sequence<B::State>>,
    /// Requests that have a place and wait for a snapshot.
    pub(crate) parked: Vec<Parked>,
    /// `None` if it is off.
    pub(crate) cache: Option<Cache<B::Snapshot>>,
    pub(crate) places: Places,
    /// The fewest tokens worth waiting for.
    pub(crate) spacing: usize,
    vocabulary: usize,
    /// Steps so far.
    pub(crate) step: u64,
    /// Sequences so far.
    pub(crate) begun: u64,
}

impl<B: Backend> Runner<B> {
    fn new(backend: B, options: &Options, inbox: &Arc<Inbox>) -> Self {
        let uniform = !backend.description().chunk_invariant;
        let cache = &options.cache;
        let grain = if uniform { options.prefill_chunk } else { 1 };
        let snapshot_bytes = backend.snapshot_bytes();
        let places = Places {
            boundaries: cache.boundaries.clone(),
            interval: cache.interval.next_multiple_of(grain),
            spacing: cache.spacing,
            grain,
            most: usize::try_from(cache.bytes / 2 / snapshot_bytes.max(1)).unwrap_or(usize::MAX).max(1),
        };
        let mut on = (cache.bytes > 0).then(|| Cache::new(cache.clone(), snapshot_bytes));
        if let (Some(on), Some(disk)) = (&mut on, &cache.disk) {
            let inbox = Arc::clone(inbox);
            let directory = disk.directory.display();
            match backend.archive() {
                Some(archive) => {
                    if let Err(error) = on.open_disk(disk, archive, grain, move || inbox.wake()) {
                        tracing::error!(%error, %directory, "the cache directory cannot be used: nothing is kept on disk");
                    }
                }
                None => tracing::warn!(%directory, "this backend keeps nothing on disk"),
            }
        }
        Self {
            backend,
            scheduler: Scheduler::new(options.prefill_chunk, uniform),
            sequences: Vec::new(),
            parked: Vec::new(),
            cache: on,
            places,
            spacing: cache.spacing,
            vocabulary: options.vocabulary,
            step: 0,
            begun: 0,
        }
    }

    fn is_idle(&self) -> bool {
        self.sequences.is_empty() && self.parked.is_empty()
    }

    fn report_cache(&self, inbox: &Inbox) {
        if let Some(cache) = &self.cache {
            inbox.report_cache(cache.stats());
        }
    }

    /// One call of the backend and what follows from it; `waiting` requests are in the queue.
    fn step(&mut self, waiting: usize, inbox: &Inbox) {
        self.step += 1;
        let needs: Vec<Need> = self.sequences.iter().map(Sequence::need).collect();
        let tokens = self.scheduler.plan(&needs, waiting + self.parked.len());
        let before = Instant::now();
        let mut results = self.forward(&tokens).into_iter();
        let time = before.elapsed();

        let mut progress = Progress::default();
        let mut ended: Vec<(Events, Event)> = Vec::new();
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
                Ok(None) => {
                    if sequence.at_stop() {
                        self.snapshot(&sequence);
                    }
                    self.sequences.push(sequence);
                }
                Ok(Some(reason)) => {
                    progress.reply_times.push(sequence.age());
                    let usage = sequence.usage();
                    let Parts { state, tokens, drawn, events } = sequence.part();
                    ended.push((events, Event::Finished { reason, usage }));
                    self.keep(state, &tokens, drawn);
                }
                Err(message) => {
                    tracing::warn!(%message, "a sequence failed");
                    let Parts { state, events, .. } = sequence.part();
                    ended.push((events, Event::Failed(message)));
                    // What it holds may be broken.
                    drop(state);
                }
            }
        }
        if progress.prefilled_tokens > 0 {
            self.scheduler.measured(progress.prefilled_tokens as usize, time);
        }
        // First the counts, then the news: who hears that a reply ended finds its place free.
        inbox.report(self.sequences.len() + self.parked.len(), &progress);
        self.report_cache(inbox);
        for (events, event) in ended {
            events.send(event);
        }
    }

    /// Gives each sequence its `tokens` (those with 0 are left out) and returns what came of each, in order.
    fn forward(&mut self, tokens: &[usize]) -> Vec<Result<Output, String>> {
        let Self { backend, sequences, cache, vocabulary, .. } = self;
        let mut segments: Vec<Segment<'_, B::State>> = sequences
            .iter_mut()
            .zip(tokens)
            .filter(|&(_, &tokens)| tokens > 0)
            .map(|(sequence, &tokens)| sequence.segment(tokens, *vocabulary))
            .collect();
        match forward_with_room(backend, cache.as_mut(), &mut segments) {
            Ok(outputs) => outputs.into_iter().map(Ok).collect(),
            Err(BackendError::Device(message)) => vec![Err(message); segments.len()],
            Err(error) if segments.len() == 1 => vec![Err(error.to_string())],
            // One segment was refused and no state has changed: alone, the others go through.
            Err(_) => segments.iter_mut().map(|segment| forward_one(backend, segment)).collect(),
        }
    }
}

/// One call of the backend, and again after the cache has let a snapshot go as long as there is no room without.
fn forward_with_room<B: Backend>(
    backend: &mut B,
    mut cache: Option<&mut Cache<B::Snapshot>>,
    segments: &mut [Segment<'_, B::State>],
) -> Result<Vec<Output>, BackendError> {
    loop {
        let result = guarded(|| backend.forward(segments));
        match result {
            Err(BackendError::Full(_)) if cache.as_mut().is_some_and(|cache| cache.let_one_go()) => {}
            result => return result,
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
pub(crate) fn guarded<T>(call: impl FnOnce() -> Result<T, BackendError>) -> Result<T, BackendError> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        Err(BackendError::Device(format!("the backend panicked: {}", panic_message(panic.as_ref()))))
    })
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

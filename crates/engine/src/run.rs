//! The engine's thread.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lily_backend::{Backend, BackendError, Output, Segment};

use crate::admission::{Parked, snapshot};
use crate::cache::{Cache, Lasts, Places};
use crate::constraint::panic_message;
use crate::inbox::{Alive, Inbox, Progress, Stage};
use crate::reply::{Event, Events};
use crate::scheduler::{Need, Plan, Scheduler};
use crate::sequence::{Parts, Sequence};
use crate::slices::Chunk;
use crate::{CacheStats, Options, SubmitError};

/// Runs until it is told to end. Between two steps it drops what was cancelled and fills the free places.
pub(crate) fn run<B: Backend>(backend: B, options: &Options, alive: Alive) {
    let inbox = alive.inbox();
    let mut runner = Runner::new(backend, options, inbox);
    loop {
        runner.drop_cancelled();
        if runner.has_cargo() {
            inbox.wake();
        }
        let turn = inbox.next(runner.sequences.len(), runner.parked_clients(), runner.ready());
        runner.carry();
        runner.admit(turn.jobs, &turn.parked);
        runner.report(inbox);
        match turn.stage {
            Stage::Aborting => break,
            Stage::Draining if runner.is_idle() && turn.waiting == 0 => break,
            _ if runner.sequences.is_empty() => {}
            _ => runner.step(inbox),
        }
    }
    let Runner { mut backend, sequences, parked, mut cache, .. } = runner;
    let events = parked.into_iter().map(Parked::into_events);
    for events in events.chain(sequences.into_iter().map(|sequence| sequence.part().events)) {
        events.send(Event::Failed(SubmitError::ShuttingDown.to_string()));
    }
    // Waits for the disk.
    while cache.as_mut().is_some_and(|cache| cache.carry_the_rest(&mut backend)) {}
    drop(cache);
    drop(backend);
    alive.end();
}

/// Between two steps, of the time of the first, the part in which snapshots are carried to the disk and from it.
const CARRYING: u32 = 8;

pub(crate) struct Runner<B: Backend> {
    pub(crate) backend: B,
    pub(crate) scheduler: Scheduler,
    /// In order of arrival.
    pub(crate) sequences: Vec<Sequence<B::State>>,
    /// The most of them at once.
    pub(crate) parallel: usize,
    /// The part of one of them that is being read in slices.
    pub(crate) chunk: Option<Chunk>,
    /// Requests that wait for a snapshot, and then for a place, in order of arrival.
    pub(crate) parked: Vec<Parked>,
    /// `None` if it is off.
    pub(crate) cache: Option<Cache<B::Snapshot>>,
    pub(crate) places: Places,
    /// The fewest tokens worth waiting for.
    pub(crate) spacing: usize,
    /// How long a request waits for the disk.
    pub(crate) patience: Duration,
    pub(crate) vocabulary: usize,
    /// Steps so far.
    pub(crate) step: u64,
    /// What the last one took.
    took: Duration,
    /// Sequences so far.
    pub(crate) begun: u64,
}

impl<B: Backend> Runner<B> {
    fn new(mut backend: B, options: &Options, inbox: &Arc<Inbox>) -> Self {
        let cache = &options.cache;
        let grain = backend.description().grain.max(1);
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
        let pausable = backend.pausable().is_some();
        Self {
            backend,
            scheduler: Scheduler::new(options.prefill_chunk, grain, pausable),
            sequences: Vec::new(),
            parallel: options.parallel,
            chunk: None,
            parked: Vec::new(),
            cache: on,
            places,
            spacing: cache.spacing,
            patience: cache.disk.as_ref().map_or(Duration::ZERO, |disk| disk.patience),
            vocabulary: options.vocabulary,
            step: 0,
            took: Duration::ZERO,
            begun: 0,
        }
    }

    /// Carries what is on its way to the disk and from it, for a share of the time that the last step took.
    fn carry(&mut self) {
        let (began, time) = (Instant::now(), self.took / CARRYING);
        if let Some(cache) = &mut self.cache {
            cache.carry_while(&mut self.backend, || began.elapsed() < time);
        }
    }

    /// Whether something is on its way to the disk or from it.
    fn has_cargo(&self) -> bool {
        self.cache.as_ref().is_some_and(Cache::has_cargo)
    }

    fn is_idle(&self) -> bool {
        self.sequences.is_empty() && self.parked.is_empty()
    }

    fn parked_clients(&self) -> Vec<u64> {
        self.parked.iter().map(Parked::client).collect()
    }

    fn report(&self, inbox: &Inbox) {
        let cache = self.cache.as_ref().map_or_else(CacheStats::default, Cache::stats);
        inbox.report(self.sequences.len(), self.parked_clients(), cache);
    }

    /// A call of the backend, a slice of one, or both, and what follows from it.
    fn step(&mut self, inbox: &Inbox) {
        self.step += 1;
        let needs: Vec<Need> =
            self.sequences.iter().map(|sequence| sequence.need(self.shortest_waiting(sequence.id()))).collect();
        let Plan { tokens, chunk } = self.scheduler.plan(&needs, self.under_way());
        let mut progress = Progress::default();
        let mut outcomes = self.whole_step(&tokens, &mut progress);
        if let Some((index, tokens)) = chunk {
            self.begin_chunk(index, tokens);
        }
        if let Some((index, tokens, result)) = self.slice(inbox) {
            progress.steps += 1;
            outcomes[index] = Some((tokens, result));
        }
        self.take_in(outcomes, progress, inbox);
    }

    /// One call of the backend that gives each sequence its `tokens`; what came of each, `None` for those with 0.
    fn whole_step(&mut self, tokens: &[usize], progress: &mut Progress) -> Vec<Option<Outcome>> {
        let mut outcomes: Vec<Option<Outcome>> = tokens.iter().map(|_| None).collect();
        if tokens.iter().all(|&tokens| tokens == 0) {
            return outcomes;
        }
        progress.steps += 1;
        let of_prompts =
            |(sequence, &tokens): (&Sequence<B::State>, &usize)| if sequence.remaining() > 0 { tokens } else { 0 };
        let prefilled: usize = self.sequences.iter().zip(tokens).map(of_prompts).sum();
        let before = Instant::now();
        let mut results = self.forward(tokens).into_iter();
        self.took = before.elapsed();
        if prefilled > 0 {
            self.scheduler.measured(prefilled, self.took);
        }
        for (outcome, &tokens) in outcomes.iter_mut().zip(tokens).filter(|(_, tokens)| **tokens > 0) {
            let result = results.next().unwrap_or_else(|| Err("the backend left an output out".into()));
            *outcome = Some((tokens, result));
        }
        outcomes
    }

    /// Takes in what came of each sequence that was in a call.
    fn take_in(&mut self, outcomes: Vec<Option<Outcome>>, mut progress: Progress, inbox: &Inbox) {
        let mut ended: Vec<(Events, Event)> = Vec::new();
        for (mut sequence, outcome) in mem::take(&mut self.sequences).into_iter().zip(outcomes) {
            let Some((tokens, result)) = outcome else {
                self.sequences.push(sequence);
                continue;
            };
            let generated = sequence.generated();
            let prefilled = sequence.position();
            let result = result.and_then(|output| sequence.advance(tokens, output, self.step));
            progress.prefilled_tokens += (sequence.position() - prefilled) as u64;
            progress.generated_tokens += (sequence.generated() - generated) as u64;
            match result {
                Ok(None) => {
                    if sequence.at_stop() {
                        snapshot(&mut self.backend, self.cache.as_mut(), &sequence, Lasts::OnDisk);
                    }
                    self.sequences.push(sequence);
                }
                Ok(Some(reason)) => {
                    progress.reply_times.push(sequence.age());
                    let usage = sequence.usage();
                    let Parts { state, tokens, events } = sequence.part();
                    ended.push((events, Event::Finished { reason, usage }));
                    self.keep(state, &tokens, Lasts::OnDisk);
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
        // First the counts, then the news: who hears that a reply ended finds its place free.
        inbox.count(&progress);
        self.report(inbox);
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
        match with_room(backend, cache.as_mut(), |backend| backend.forward(&mut segments)) {
            Ok(outputs) => outputs.into_iter().map(Ok).collect(),
            Err(BackendError::Device(message)) => vec![Err(message); segments.len()],
            Err(error) if segments.len() == 1 => vec![Err(error.to_string())],
            // One segment was refused and no state has changed: alone, the others go through.
            Err(_) => segments.iter_mut().map(|segment| forward_one(backend, segment)).collect(),
        }
    }
}

/// The tokens that a sequence was given, and what came of them.
type Outcome = (usize, Result<Output, String>);

/// A call of the backend, and again as long as there is no room and the cache can make some.
pub(crate) fn with_room<B: Backend, T>(
    backend: &mut B,
    mut cache: Option<&mut Cache<B::Snapshot>>,
    mut call: impl FnMut(&mut B) -> Result<T, BackendError>,
) -> Result<T, BackendError> {
    loop {
        let result = guarded(|| call(backend));
        let Some(cache) = cache.as_mut().filter(|_| matches!(result, Err(BackendError::Full(_)))) else {
            return result;
        };
        if !cache.let_one_go(|snapshot| backend.gives_room(snapshot)) && !cache.send_one_off(backend) {
            return result;
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

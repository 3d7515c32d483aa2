//! How a request begins, and what is kept of it: the engine's side of the prefix cache.

use std::mem;

use lily_backend::Backend;

use crate::cache::{Found, Id};
use crate::reply::{Event, Events};
use crate::run::{Runner, guarded};
use crate::sequence::{Job, Parts, Sequence, Start};

/// Times that a request waits for a snapshot on disk: one may be of no use, or gone before its turn comes.
const READS: u32 = 3;

/// A request that has a place and waits for what will save it work.
pub(crate) struct Parked {
    job: Job,
    wait: Wait,
    /// Times that it has waited for the disk.
    reads: u32,
}

impl Parked {
    pub(crate) fn into_events(self) -> Events {
        self.job.events
    }
}

/// What for.
#[derive(Clone, Copy)]
enum Wait {
    /// A sequence with the same beginning, until it has read so many tokens.
    Sequence { id: u64, position: usize },
    /// A snapshot on disk.
    Disk(Id),
}

impl<B: Backend> Runner<B> {
    /// Ends what nobody wants any more, and keeps what it has read: the same prompt may come again.
    pub(crate) fn drop_cancelled(&mut self) {
        self.parked.retain(|parked| !parked.job.events.cancelled());
        let (gone, staying) = mem::take(&mut self.sequences).into_iter().partition(Sequence::cancelled);
        self.sequences = staying;
        let gone: Vec<Sequence<B::State>> = gone;
        for sequence in gone {
            let Parts { state, tokens, drawn, .. } = sequence.part();
            self.keep(state, &tokens, drawn);
        }
    }

    /// Gives new requests their beginning, and those that have waited for theirs long enough.
    pub(crate) fn admit(&mut self, jobs: Vec<Job>) {
        let Self { cache, backend, .. } = self;
        if let Some(cache) = cache {
            cache.poll(|snapshot| backend.pieces(snapshot));
        }
        let parked = mem::take(&mut self.parked);
        let (waiting, ready): (Vec<_>, Vec<_>) = parked.into_iter().partition(|parked| self.still(parked.wait));
        self.parked = waiting;
        let ready = ready.into_iter().map(|parked| (parked.job, parked.reads));
        for (job, reads) in ready.chain(jobs.into_iter().map(|job| (job, 0))) {
            self.place(job, reads);
        }
    }

    /// Whether somebody has waited long enough.
    pub(crate) fn has_ready(&self) -> bool {
        self.parked.iter().any(|parked| !self.still(parked.wait))
    }

    /// Whether there is still something to wait for.
    fn still(&self, wait: Wait) -> bool {
        match wait {
            Wait::Sequence { id, position } => {
                self.sequences.iter().any(|sequence| sequence.id() == id && sequence.position() < position)
            }
            Wait::Disk(id) => self.cache.as_ref().is_some_and(|cache| cache.is_reading(id)),
        }
    }

    fn place(&mut self, job: Job, reads: u32) {
        let found = self.cache.as_mut().map_or(Found::Nothing, |cache| cache.find(&job.prompt, reads < READS));
        if let Some(wait) = self.ahead(&job.prompt, found.length()) {
            self.parked.push(Parked { job, wait, reads });
            return;
        }
        match found {
            Found::Disk(_, id) => {
                if let Some(cache) = &mut self.cache {
                    cache.read(id);
                }
                self.parked.push(Parked { job, wait: Wait::Disk(id), reads: reads + 1 });
            }
            Found::Memory(length, snapshot) => match guarded(|| self.backend.restore(&snapshot)) {
                Ok(state) => self.begin(job, state, length),
                Err(error) => {
                    tracing::warn!(%error, "a snapshot cannot be restored");
                    if let Some(cache) = &mut self.cache {
                        cache.forget(&job.prompt[..length]);
                    }
                    self.begin_afresh(job);
                }
            },
            Found::Nothing => self.begin_afresh(job),
        }
    }

    /// The sequence that will soon have read so much more of this prompt than the `found` tokens that waiting is worth it.
    fn ahead(&mut self, prompt: &[u32], found: usize) -> Option<Wait> {
        let Self { cache, sequences, places, spacing, .. } = self;
        cache.as_ref()?;
        let shared = |sequence: &Sequence<B::State>| {
            let most = sequence.prompt().len().min(prompt.len()) - 1;
            let common = sequence.prompt().iter().zip(prompt).take(most).take_while(|(a, b)| a == b).count();
            common / places.grain * places.grain
        };
        let reading = sequences.iter_mut().filter(|sequence| sequence.remaining() > 0);
        let (common, sequence) =
            reading.map(|sequence| (shared(sequence), sequence)).max_by_key(|(common, _)| *common)?;
        if common <= sequence.position() {
            return None;
        }
        let planned = sequence.stops().range(..=common).next_back().copied();
        let position = match planned {
            Some(planned) if planned + *spacing > common => planned,
            _ => common,
        };
        if position < found + *spacing {
            return None;
        }
        sequence.add_stop(position);
        Some(Wait::Sequence { id: sequence.id(), position })
    }

    fn begin_afresh(&mut self, job: Job) {
        match guarded(|| self.backend.create()) {
            Ok(state) => self.begin(job, state, 0),
            Err(error) => {
                tracing::warn!(%error, "no state for a new sequence");
                job.events.send(Event::Failed(format!("the request could not be started: {error}")));
            }
        }
    }

    fn begin(&mut self, job: Job, state: B::State, cached: usize) {
        let stops = match &mut self.cache {
            Some(cache) => {
                cache.began(cached);
                self.places.stops(&job.prompt, cached)
            }
            None => Vec::new(),
        };
        self.begun += 1;
        let start = Start { state, cached, stops, step: self.step };
        let max_context = self.backend.description().max_context;
        self.sequences.push(Sequence::new(self.begun, job, start, max_context));
    }

    /// Takes a snapshot of a sequence whose prompt is being read.
    pub(crate) fn snapshot(&mut self, sequence: &Sequence<B::State>) {
        let Self { backend, cache, .. } = self;
        let tokens = &sequence.prompt()[..sequence.position()];
        let Some(cache) = cache.as_mut() else { return };
        if !cache.wants(tokens) {
            return;
        }
        match guarded(|| backend.snapshot(sequence.state())) {
            Ok(snapshot) => {
                let pieces = backend.pieces(&snapshot);
                cache.insert(tokens, snapshot, pieces);
            }
            Err(error) => tracing::warn!(%error, "no snapshot could be taken"),
        }
    }

    /// Keeps a state that goes no further; of its `tokens` the last `drawn` were generated.
    pub(crate) fn keep(&mut self, state: B::State, tokens: &[u32], drawn: usize) {
        let Self { backend, cache, places, .. } = self;
        let sound = places.grain == 1 || (drawn == 0 && tokens.len().is_multiple_of(places.grain));
        let Some(cache) = cache.as_mut().filter(|_| sound) else { return };
        if !cache.wants(tokens) {
            return;
        }
        match guarded(|| backend.freeze(state)) {
            Ok(snapshot) => {
                let pieces = backend.pieces(&snapshot);
                cache.insert(tokens, snapshot, pieces);
            }
            Err(error) => tracing::warn!(%error, "no snapshot could be kept"),
        }
    }
}

//! How a request begins, and what is kept of it: the engine's side of the prefix cache.

use std::mem;
use std::sync::Arc;
use std::time::Instant;

use lily_backend::{Backend, BackendError};

use crate::cache::{Cache, Found, Id, Lasts, Reading};
use crate::reply::{Event, Events};
use crate::run::{Runner, guarded, with_room};
use crate::sequence::{Job, Parts, Sequence, Start};

/// Times that a request waits for a snapshot on disk: one may be of no use, or gone before its turn comes.
const READS: u32 = 3;

/// A request that waits for what will save it work, and then for a place.
pub(crate) struct Parked {
    job: Job,
    wait: Wait,
    /// Times that it has waited for the disk.
    reads: u32,
    /// When it began to.
    since: Option<Instant>,
}

impl Parked {
    fn new(job: Job) -> Self {
        Self { job, wait: Wait::Place, reads: 0, since: None }
    }

    pub(crate) fn client(&self) -> u64 {
        self.job.client
    }

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
    /// Room for it: something else that the disk has under way, when it had done so many things.
    DiskRoom(u64),
    /// Nothing but a place.
    Place,
}

impl<B: Backend> Runner<B> {
    /// Ends what nobody wants any more, and keeps what it has read, but for the chunk under way: the same prompt may come
    /// again.
    pub(crate) fn drop_cancelled(&mut self) {
        self.parked.retain(|parked| !parked.job.events.cancelled());
        let (gone, staying) = mem::take(&mut self.sequences).into_iter().partition(Sequence::cancelled);
        self.sequences = staying;
        let gone: Vec<Sequence<B::State>> = gone;
        for sequence in gone {
            let in_slices = self.chunk_of(sequence.id()).is_some();
            let Parts { state, tokens, .. } = sequence.part();
            if in_slices {
                self.abandon_chunk();
                // Some layers have read the chunk, others have not; what it was before it is kept already, if the cache had room.
                drop(state);
            } else {
                self.keep(state, &tokens, Lasts::InMemory);
            }
        }
    }

    /// Gives new requests their beginning, and those at these places that have waited for theirs.
    pub(crate) fn admit(&mut self, jobs: Vec<Job>, places: &[usize]) {
        for (place, parked) in mem::take(&mut self.parked).into_iter().enumerate() {
            if places.contains(&place) {
                self.place(parked);
            } else {
                self.parked.push(parked);
            }
        }
        jobs.into_iter().for_each(|job| self.place(Parked::new(job)));
        // Not for one that waits for a place.
        let for_room = |parked: &Parked| matches!(parked.wait, Wait::DiskRoom(_)) && self.still(parked);
        let hold = self.parked.iter().any(for_room);
        if let Some(cache) = &mut self.cache {
            cache.spare(self.parked.iter().map(|parked| Arc::clone(&parked.job.prompt)).collect());
            cache.hold_writes(hold);
        }
    }

    /// The places of requests that have waited long enough.
    pub(crate) fn ready(&self) -> Vec<usize> {
        (0..self.parked.len()).filter(|&place| !self.still(&self.parked[place])).collect()
    }

    /// The shortest prompt that waits for what a sequence reads.
    pub(crate) fn shortest_waiting(&self, sequence: u64) -> Option<usize> {
        let waits =
            |parked: &&Parked| matches!(parked.wait, Wait::Sequence { id, .. } if id == sequence) && self.still(parked);
        self.parked.iter().filter(waits).map(|parked| parked.job.prompt.len()).min()
    }

    /// Whether there is still something to wait for.
    fn still(&self, parked: &Parked) -> bool {
        let patient = || !self.out_of_patience(parked);
        let cache = self.cache.as_ref();
        match parked.wait {
            Wait::Sequence { id, position } => {
                self.sequences.iter().any(|sequence| sequence.id() == id && sequence.position() < position)
            }
            Wait::Disk(id) => cache.is_some_and(|cache| cache.is_reading(id)) && patient(),
            Wait::DiskRoom(done) => cache.is_some_and(|cache| cache.disk_done() == done) && patient(),
            Wait::Place => false,
        }
    }

    /// The disk may have stopped: then a request begins with what is in memory.
    fn out_of_patience(&self, parked: &Parked) -> bool {
        parked.since.is_some_and(|since| since.elapsed() >= self.patience)
    }

    fn place(&mut self, parked: Parked) {
        // For one that found no room there will hardly be any the next time.
        let in_vain = |id| self.cache.as_ref().is_some_and(|cache| cache.is_unplaced(id));
        let reads = if matches!(parked.wait, Wait::Disk(id) if in_vain(id)) { READS } else { parked.reads };
        let parked = Parked { reads, ..parked };
        let may_read = parked.reads < READS && !self.out_of_patience(&parked);
        let prompt = &parked.job.prompt;
        let mut found = self.cache.as_mut().map_or(Found::Nothing, |cache| cache.find(prompt, may_read));
        if let Some(wait) = self.ahead(prompt, found.length()) {
            self.parked.push(Parked { wait, ..parked });
            return;
        }
        if let Found::Disk(_, id) = found
            && let Some(cache) = &mut self.cache
        {
            let wait = match cache.read(id) {
                Reading::UnderWay => Some(Wait::Disk(id)),
                Reading::NoRoomNow => Some(Wait::DiskRoom(cache.disk_done())),
                Reading::NoRoom => None,
            };
            if let Some(wait) = wait {
                let reads = parked.reads + u32::from(matches!(wait, Wait::Disk(_)));
                let since = parked.since.or_else(|| Some(Instant::now()));
                self.parked.push(Parked { wait, reads, since, ..parked });
                return;
            }
            found = cache.find(prompt, false);
        }
        self.begin_from(parked.job, found);
    }

    fn begin_from(&mut self, job: Job, found: Found<B::Snapshot>) {
        let Found::Memory(length, snapshot) = found else { return self.begin_afresh(job) };
        let Self { backend, cache, .. } = self;
        match with_room(backend, cache.as_mut(), |backend| backend.restore(&snapshot)) {
            Ok(state) => self.begin(job, state, length),
            Err(error) => {
                tracing::warn!(%error, "a snapshot cannot be restored");
                if let Some(cache) = &mut self.cache {
                    cache.forget(&job.prompt[..length]);
                }
                self.begin_afresh(job);
            }
        }
    }

    /// The sequence that will soon have read so much more of this prompt than the `found` tokens that waiting is worth it.
    fn ahead(&mut self, prompt: &[u32], found: usize) -> Option<Wait> {
        let in_slices = self.under_way().map(|index| (index, self.chunk_of(self.sequences[index].id()).unwrap_or(0)));
        let Self { cache, sequences, places, spacing, .. } = self;
        cache.as_ref()?;
        let shared = |sequence: &Sequence<B::State>| {
            let most = sequence.prompt().len().min(prompt.len()) - 1;
            let common = sequence.prompt().iter().zip(prompt).take(most).take_while(|(a, b)| a == b).count();
            common / places.grain * places.grain
        };
        let reading = sequences.iter_mut().enumerate().filter(|(_, sequence)| sequence.remaining() > 0);
        let (common, index, sequence) =
            reading.map(|(index, sequence)| (shared(sequence), index, sequence)).max_by_key(|(common, ..)| *common)?;
        // A chunk that is under way stops nowhere before its end.
        let chunk = in_slices.filter(|(under_way, _)| *under_way == index).map_or(0, |(_, tokens)| tokens);
        let first = sequence.position() + chunk.max(1);
        if common < first {
            return None;
        }
        let planned = sequence.stops().range(first..=common).next_back().copied();
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
        let Self { backend, cache, .. } = self;
        match with_room(backend, cache.as_mut(), B::create) {
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

    /// Keeps a state that goes no further, with the tokens that it holds.
    pub(crate) fn keep(&mut self, state: B::State, tokens: &[u32], lasts: Lasts) {
        let Self { backend, cache, .. } = self;
        let Some(cache) = cache else { return };
        if !cache.wants(tokens, lasts) {
            return;
        }
        match guarded(|| backend.freeze(state)) {
            Ok(snapshot) => {
                let pieces = backend.pieces(&snapshot);
                cache.insert(tokens, snapshot, pieces, lasts);
            }
            Err(error) => tracing::warn!(%error, "no snapshot could be kept"),
        }
    }
}

/// Takes a snapshot of a sequence whose prompt is being read, unless there is one; says whether it has.
pub(crate) fn snapshot<B: Backend>(
    backend: &mut B,
    cache: Option<&mut Cache<B::Snapshot>>,
    sequence: &Sequence<B::State>,
    lasts: Lasts,
) -> bool {
    let tokens = &sequence.prompt()[..sequence.position()];
    let Some(cache) = cache else { return false };
    if !cache.wants(tokens, lasts) {
        return false;
    }
    // A backend's pool may be full though the cache is not; for a while only, nothing is let go there either.
    let to_let_go = (lasts != Lasts::AWhile).then_some(&mut *cache);
    match with_room(backend, to_let_go, |backend| backend.snapshot(sequence.state())) {
        Ok(snapshot) => {
            let pieces = backend.pieces(&snapshot);
            cache.insert(tokens, snapshot, pieces, lasts);
            true
        }
        Err(BackendError::Full(_)) if lasts == Lasts::AWhile => false,
        Err(error) => {
            tracing::warn!(%error, "no snapshot could be taken");
            false
        }
    }
}

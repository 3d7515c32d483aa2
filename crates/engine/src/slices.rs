//! A chunk of a prompt that takes longer than others should wait: read in slices, between which they go on.

use std::time::{Duration, Instant};

use lily_backend::{Backend, Output};

use crate::admission::snapshot;
use crate::cache::Lasts;
use crate::inbox::Inbox;
use crate::run::{Runner, with_room};
use crate::scheduler::STEP;

/// The chunk that is under way. Its sequence's state is of no use until it is through.
pub(crate) struct Chunk {
    sequence: u64,
    tokens: usize,
    /// That it has taken so far.
    time: Duration,
    /// The sequence's position before it, if a snapshot is kept from there for the time of the chunk only.
    kept: Option<usize>,
}

/// The sequence's place, the tokens of the chunk, and what came of it.
pub(crate) type Through = (usize, usize, Result<Output, String>);

impl<B: Backend> Runner<B> {
    /// Begins a chunk of the sequence at that place. Should its client go, what was read before is not lost, if the cache has
    /// room for it.
    pub(crate) fn begin_chunk(&mut self, index: usize, tokens: usize) {
        let Self { backend, cache, places, sequences, .. } = self;
        let sequence = &sequences[index];
        let kept = places.most > 1 && snapshot(backend, cache.as_mut(), sequence, Lasts::AWhile);
        let kept = kept.then(|| sequence.position());
        self.chunk = Some(Chunk { sequence: sequence.id(), tokens, time: Duration::ZERO, kept });
    }

    /// The place of the sequence of which a chunk is under way.
    pub(crate) fn under_way(&self) -> Option<usize> {
        let chunk = self.chunk.as_ref()?;
        self.sequences.iter().position(|sequence| sequence.id() == chunk.sequence)
    }

    /// Whether a chunk of this sequence is under way, and how long it is.
    pub(crate) fn chunk_of(&self, sequence: u64) -> Option<usize> {
        self.chunk.as_ref().filter(|chunk| chunk.sequence == sequence).map(|chunk| chunk.tokens)
    }

    /// Gives the chunk under way up.
    pub(crate) fn abandon_chunk(&mut self) {
        self.chunk = None;
        if let Some(pausable) = self.backend.pausable() {
            pausable.abandon();
        }
    }

    /// Goes on with the chunk under way: until a step's time is over or, if there is nobody else, somebody comes or its
    /// client goes. Says what came of it if that is its end.
    pub(crate) fn slice(&mut self, inbox: &Inbox) -> Option<Through> {
        let index = self.under_way()?;
        let (alone, free) = (self.sequences.len() == 1, self.sequences.len() < self.parallel);
        let Self { backend, sequences, cache, vocabulary, chunk, scheduler, .. } = self;
        let Chunk { tokens, time, .. } = chunk.as_mut()?;
        let tokens = *tokens;
        let events = sequences[index].events();
        let began = Instant::now();
        let pause = || events.cancelled() || inbox.calls(free) || (!alone && began.elapsed() >= STEP);
        let mut segments = [sequences[index].segment(tokens, *vocabulary)];
        let advanced = with_room(backend, cache.as_mut(), |backend| match backend.pausable() {
            Some(pausable) => pausable.advance(&mut segments, &pause),
            None => backend.forward(&mut segments).map(Some),
        });
        *time += began.elapsed();
        let result = match advanced {
            Ok(None) => return None,
            Ok(Some(outputs)) => {
                scheduler.measured(tokens, *time);
                outputs.into_iter().next().ok_or_else(|| "the backend left an output out".into())
            }
            Err(error) => Err(error.to_string()),
        };
        let kept = chunk.take().and_then(|chunk| chunk.kept);
        if let (Some(position), Some(cache)) = (kept, cache) {
            cache.release(&sequences[index].prompt()[..position]);
        }
        Some((index, tokens, result))
    }
}

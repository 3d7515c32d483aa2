//! The boundary between the engine and whatever runs the model.
//!
//! A [`Backend`] knows token ids and sequence states; it knows no text and no wire format. The engine hands it
//! [`Segment`]s, each a run of tokens of one sequence, and says what it [`Want`]s at their end. A decode step is a
//! segment of one token, a prefill chunk a longer one; one call may hold both, so a backend can read its weights once
//! for all of them.
//!
//! Sampling is part of the step because a GPU draws on the device: the engine describes the draw ([`Draw`]), the
//! backend makes it. [`sample`] is the reference; the CPU backend calls it, others draw the same up to the rounding of sums.

mod archive;
mod pausable;
mod plan;
mod random;
mod sampling;
mod token_set;

use std::sync::Arc;

pub use archive::{Archive, Piece, check_follows};
pub use pausable::Pausable;
pub use plan::MemoryPlan;
pub use random::uniform;
pub use sampling::{Adjustment, Draw, Penalty, Sample, Sampling, TokenLogprob, sample};
pub use token_set::TokenSet;

/// What a backend runs and on what, for reports and for the engine's limits.
#[derive(Clone, Debug)]
pub struct Description {
    /// For people: `cpu (avx2, 2 threads)`.
    pub name: String,
    /// Rows of the logits: the padded vocabulary.
    pub logits: usize,
    /// The longest sequence a state can hold, in tokens.
    pub max_context: usize,
    /// A prompt may be cut into segments after any multiple of so many tokens of its sequence and nowhere else, if its results
    /// are to be the same bits: 1 if the engine may cut where it likes.
    ///
    /// A sequence may go on from a state of any length all the same, as after its reply. Where this is more than 1, results then
    /// are as near the model's as ever, but not the bits that the whole read in one go would have: tokens that were drawn one by
    /// one were computed otherwise than a prompt's, and what follows is cut at another place. They depend on where that was and
    /// on nothing else.
    pub grain: usize,
}

impl Description {
    /// Whether the segments can be appended, before anything changes; `length` tells the tokens that a state holds.
    ///
    /// # Errors
    /// [`BackendError::EmptySegment`], [`BackendError::UnknownToken`] or [`BackendError::ContextFull`].
    pub fn check<S>(&self, segments: &[Segment<'_, S>], length: impl Fn(&S) -> usize) -> Result<(), BackendError> {
        let &Self { logits, max_context: limit, .. } = self;
        for Segment { state, tokens, .. } in segments {
            if tokens.is_empty() {
                return Err(BackendError::EmptySegment);
            }
            if let Some(&token) = tokens.iter().find(|&&token| token as usize >= logits) {
                return Err(BackendError::UnknownToken { token, logits });
            }
            let wanted = length(state) + tokens.len();
            if wanted > limit {
                return Err(BackendError::ContextFull { wanted, limit });
            }
        }
        Ok(())
    }
}

/// What the caller wants at the end of a segment.
#[derive(Clone, Copy, Debug)]
pub enum Want<'a> {
    /// Only the state moves on: a chunk of a prompt that is not the last.
    Nothing,
    /// A token drawn from the logits at the segment's last position.
    Sample(Draw<'a>),
    /// The raw logits of every position, row-major `[tokens, logits]`: for evaluation. The caller keeps segments
    /// short; a row of the 35B is a megabyte.
    Logits,
}

/// What came of a segment, in the form its [`Want`] asked for.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Nothing was asked.
    Nothing,
    /// The drawn token.
    Sample(Sample),
    /// No token could be drawn because no logit that may be chosen is finite. This sequence's state is broken and must be
    /// dropped; the others of the call are sound.
    NoFiniteLogit,
    /// Row-major `[tokens, logits]`.
    Logits(Vec<f32>),
}

/// A run of tokens of one sequence.
pub struct Segment<'a, S> {
    /// The sequence's state; the tokens are appended to it.
    pub state: &'a mut S,
    /// Never empty; every id is below [`Description::logits`].
    pub tokens: &'a [u32],
    /// What to give back.
    pub want: Want<'a>,
}

/// Why a backend could not do what it was asked. [`Backend::forward`] says what each means for the states.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The segment would pass the end of the context.
    #[error("the sequence would hold {wanted} tokens, the context holds {limit}")]
    ContextFull {
        /// Tokens after the segment.
        wanted: usize,
        /// [`Description::max_context`].
        limit: usize,
    },
    /// A token id has no row in the embedding.
    #[error("token id {token} is outside the vocabulary of {logits}")]
    UnknownToken {
        /// The id.
        token: u32,
        /// Rows of the embedding.
        logits: usize,
    },
    /// A segment without tokens.
    #[error("a segment holds no tokens")]
    EmptySegment,
    /// A recurrent state holds no history: it goes back only to a snapshot or to the start.
    #[error(
        "the sequence holds {length} tokens and cannot be cut to {wanted}: a recurrent state only goes back to 0 or to a snapshot"
    )]
    CannotTruncate {
        /// Tokens held.
        length: usize,
        /// Tokens asked for.
        wanted: usize,
    },
    /// There is no room until snapshots are dropped; no state has changed. The message says what there is no room for.
    #[error("{0}")]
    Full(String),
    /// The device failed; the message is its own.
    #[error("{0}")]
    Device(String),
}

/// Runs the model over sequence states. One thread owns it.
pub trait Backend: Send + 'static {
    /// A sequence's KV pages, recurrent state and conv window. Dropping it frees them.
    type State: Send + 'static;
    /// A frozen copy of a state, cheap to clone; KV pages are shared with the states it came from and went to.
    type Snapshot: Clone + Send + Sync + 'static;

    /// What runs here.
    fn description(&self) -> &Description;

    /// An empty sequence.
    ///
    /// # Errors
    /// [`BackendError::Full`] if memory is exhausted.
    fn create(&mut self) -> Result<Self::State, BackendError>;

    /// Tokens a state holds.
    fn length(&self, state: &Self::State) -> usize;

    /// Appends each segment's tokens to its state; outputs come in the segments' order.
    ///
    /// A sequence's output does not depend on what else is in the call. On an error no state has changed, unless it is
    /// [`BackendError::Device`], after which the states of this call must be dropped. After [`BackendError::Full`] the same
    /// call may go through once snapshots have been dropped.
    ///
    /// # Errors
    /// As [`BackendError`] says.
    fn forward(&mut self, segments: &mut [Segment<'_, Self::State>]) -> Result<Vec<Output>, BackendError>;

    /// This backend, if a call can be run in slices: where a long one takes seconds.
    fn pausable(&mut self) -> Option<&mut dyn Pausable<Self::State>> {
        None
    }

    /// Freezes a state so that sequences can start from it.
    ///
    /// # Errors
    /// [`BackendError::Full`] if memory is exhausted.
    fn snapshot(&mut self, state: &Self::State) -> Result<Self::Snapshot, BackendError>;

    /// As [`snapshot`](Self::snapshot), of a state that is needed no more, so that nothing has to be copied.
    ///
    /// # Errors
    /// As [`snapshot`](Self::snapshot).
    fn freeze(&mut self, state: Self::State) -> Result<Self::Snapshot, BackendError> {
        self.snapshot(&state)
    }

    /// Bytes that taking a snapshot allocates: those that it does not share with its sequence.
    fn snapshot_bytes(&self) -> u64;

    /// Everything that a snapshot holds, shared or not.
    fn pieces(&self, snapshot: &Self::Snapshot) -> Vec<Piece>;

    /// How snapshots are kept on disk; `None` if they cannot be.
    fn archive(&self) -> Option<Arc<dyn Archive<Self::Snapshot>>> {
        None
    }

    /// Brings what an archive needs of a snapshot, its state and the history from token `from` on, to where any thread can read
    /// it. Each call does a millisecond or so of that; `None`: it is to be called once more, with the same arguments. Another
    /// snapshot's turn comes when this one is done.
    ///
    /// # Errors
    /// [`BackendError::Device`] if it was lost, or the device fails.
    fn fetch(&mut self, snapshot: &Self::Snapshot, _from: usize) -> Result<Option<Self::Snapshot>, BackendError> {
        Ok(Some(snapshot.clone()))
    }

    /// Brings what an archive has read to where sequences can go on from it; in steps, as [`fetch`](Self::fetch).
    ///
    /// # Errors
    /// [`BackendError::Full`] if memory is exhausted, [`BackendError::Device`] if the device fails, or what it was read onto was
    /// lost.
    fn adopt(&mut self, read: &Self::Snapshot) -> Result<Option<Self::Snapshot>, BackendError> {
        Ok(Some(read.clone()))
    }

    /// Whether dropping a snapshot gives back some of what a call has found exhausted ([`BackendError::Full`]): not if others share all
    /// of that.
    fn gives_room(&self, _snapshot: &Self::Snapshot) -> bool {
        true
    }

    /// Which of these snapshots, by index and the first ones if there is a choice, have to be dropped so that [`adopt`](Self::adopt)
    /// finds room for what it did not; `None` if all of them would not do. One that somebody else has too frees nothing, nor what it
    /// shares with a sequence.
    fn evictions_for(&self, _read: &Self::Snapshot, _snapshots: &[&Self::Snapshot]) -> Option<Vec<usize>> {
        None
    }

    /// A new sequence that goes on from a snapshot, with the bits the original would have.
    ///
    /// # Errors
    /// [`BackendError::Full`] if memory is exhausted, [`BackendError::Device`] if the snapshot was lost in a failure of the device.
    fn restore(&mut self, snapshot: &Self::Snapshot) -> Result<Self::State, BackendError>;

    /// Cuts a state to `length` tokens where the architecture allows: to its own length (nothing happens) or to 0.
    ///
    /// # Errors
    /// [`BackendError::CannotTruncate`] otherwise.
    fn truncate(&mut self, state: &mut Self::State, length: usize) -> Result<(), BackendError>;
}

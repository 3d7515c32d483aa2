//! The step that runs ahead: while the engine looks at the tokens of a step, the device makes the next one from the tokens
//! that it drew itself. If the engine then asks for just that, it has been done; if not, nothing is lost, because a
//! sequence's record says which of its two recurrent states counts, and keys and values beyond its length are never read.

use lily_backend::{Adjustment, BackendError, Draw, Output, Penalty, Sampling, Segment, Want};
use tracing::debug;

use crate::batch::{Batch, Picks, on_device, padded};
use crate::device::{Device, Ticket};
use crate::kernels::NONE;
use crate::runner::Runner;
use crate::shapes::MAX_DECODE_ROWS;
use crate::state::{State, States};
use crate::step::Head;

/// A decode step that has been submitted and not been asked for.
pub(crate) struct Ahead {
    pub(crate) ticket: Ticket,
    /// Its sequences, by its rows.
    entries: Vec<Entry>,
}

/// A sequence of it.
struct Entry {
    id: u64,
    /// Before the step.
    length: usize,
    /// What it reads; `None` until the CPU has seen it, or if there is none.
    token: Option<u32>,
    draw: Drawing,
    /// Those of its draw; until the token is seen, of the one before.
    adjustments: Vec<Adjustment>,
}

/// What must not change from one draw to the next.
#[derive(Clone, Copy, PartialEq)]
struct Drawing {
    vocabulary: usize,
    sampling: Sampling,
    seed: u64,
    counter: u64,
    penalty: Option<Penalty>,
    top_logprobs: Option<usize>,
}

impl Drawing {
    /// `None` if the device can't make the draw, or the next one can't be foreseen.
    fn of(draw: &Draw<'_>) -> Option<Self> {
        let &Draw { vocabulary, sampling, seed, counter, penalty, top_logprobs, .. } = draw;
        // What a grammar allows depends on the token before.
        (on_device(draw) && draw.allowed.is_none()).then_some(Self {
            vocabulary,
            sampling,
            seed,
            counter,
            penalty,
            top_logprobs,
        })
    }

    /// The draw after it; `None` at the end of what a 32-bit counter on the device can follow.
    fn next(self) -> Option<Self> {
        let counter = self.counter.checked_add(1).filter(|counter| counter & 0xffff_ffff != 0)?;
        Some(Self { counter, ..self })
    }

    fn with(self, adjustments: &[Adjustment]) -> Draw<'_> {
        let Self { vocabulary, sampling, seed, counter, penalty, top_logprobs } = self;
        Draw { vocabulary, sampling, seed, counter, adjustments, allowed: None, penalty, top_logprobs }
    }
}

/// Whether two lists change logits alike.
fn alike(a: &[Adjustment], b: &[Adjustment]) -> bool {
    let change = |one: &Adjustment| (one.token, one.repetition, one.add);
    a.iter().map(change).eq(b.iter().map(change))
}

impl Ahead {
    /// Whether this step did what the segment asks.
    pub(crate) fn answers(&self, segment: &Segment<'_, State>) -> bool {
        let Want::Sample(draw) = &segment.want else { return false };
        self.entries.iter().any(|entry| {
            entry.id == segment.state.id
                && entry.length == segment.state.length
                && segment.tokens.len() == 1
                && entry.token == Some(segment.tokens[0])
                && Drawing::of(draw) == Some(entry.draw)
                && alike(&entry.adjustments, draw.adjustments)
        })
    }

    /// The sequences in the step.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Submits the step after this one, whose sequences are just those of `segments`, before this one's tokens are known:
    /// all its records are on the device, but for adjustments that depend on the tokens before. `None` if it can't be.
    pub(crate) fn follow<D: Device>(
        &self,
        runner: &mut Runner<D>,
        states: &States,
        segments: &mut [Segment<'_, State>],
    ) -> Option<Self> {
        let (mut entries, mut picks) = (Vec::new(), Picks::default());
        for (row, entry) in self.entries.iter().enumerate() {
            let segment = segments.iter().find(|segment| segment.state.id == entry.id)?;
            let (Some(next), Want::Sample(Draw { adjustments, .. })) = (entry.draw.next(), segment.want) else {
                return None;
            };
            let (_, drawn) = picks.draw(row, segment.state.slot.index, &next.with(adjustments), true);
            if !drawn {
                return None;
            }
            let (id, length, adjustments) = (entry.id, entry.length + 1, adjustments.to_vec());
            entries.push(Entry { id, length, token: None, draw: next, adjustments });
        }
        let context = longest(segments, 2).filter(|&longest| longest <= runner.sizes.max_context)?;
        foreseen(reserve(runner, states, segments, 2))?;
        let rows = padded(entries.len());
        if entries.iter().any(|entry| entry.draw.penalty.is_some()) {
            foreseen(runner.redraw(picks, rows))?;
        }
        let ticket = foreseen(runner.few_again(rows, Head::Draw, context))?;
        Some(Self { ticket, entries })
    }

    /// Tells what the step before drew for a sequence.
    pub(crate) fn learn(&mut self, id: u64, output: &Output) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.id == id)
            && let Output::Sample(sample) = output
        {
            entry.token = Some(sample.token);
            entry.adjustments = entry.draw.with(&entry.adjustments).adjustments_once_drawn(sample.token);
        }
    }

    /// Submits a step after one whose outputs are known. `None` if not all of its sequences go on in a way that can be
    /// foreseen, or it can't be.
    pub(crate) fn start<D: Device>(
        runner: &mut Runner<D>,
        states: &States,
        segments: &mut [Segment<'_, State>],
        outputs: &[Output],
    ) -> Option<Self> {
        if segments.len() > MAX_DECODE_ROWS {
            return None;
        }
        let context = longest(segments, 1).filter(|&longest| longest <= runner.sizes.max_context)?;
        let mut entries = Vec::new();
        let (mut batch, mut picks) = (Batch::default(), Picks::default());
        for (segment, output) in segments.iter().zip(outputs) {
            let (Want::Sample(draw), Output::Sample(sample)) = (&segment.want, output) else { return None };
            let (next, adjustments) = (Drawing::of(draw)?.next()?, draw.adjustments_once_drawn(sample.token));
            let State { id, length, ref slot, .. } = *segment.state;
            // The token is the one that the sequence's record names, so that the same rows serve every further step.
            let row = batch.add(slot.index, &[NONE]);
            let (place, drawn) = picks.draw(row, slot.index, &next.with(&adjustments), false);
            if !drawn {
                return None;
            }
            batch.drawing(place);
            entries.push(Entry { id, length, token: Some(sample.token), draw: next, adjustments });
        }
        foreseen(reserve(runner, states, segments, 1))?;
        for (segment, entry) in segments.iter().zip(&entries) {
            foreseen(runner.place(segment.state, entry.draw.counter, entry.token.unwrap_or(NONE)))?;
        }
        let ticket = foreseen(runner.few(batch, picks, context))?;
        Some(Self { ticket, entries })
    }
}

/// What may fail because nobody has asked for it. Should the device be broken, the next step asked for says so.
fn foreseen<T>(result: Result<T, BackendError>) -> Option<T> {
    result.inspect_err(|error| debug!(%error, "no step runs ahead")).ok()
}

/// Makes room for `tokens` more in each.
fn reserve<D: Device>(
    runner: &mut Runner<D>,
    states: &States,
    segments: &mut [Segment<'_, State>],
    tokens: usize,
) -> Result<(), BackendError> {
    let Runner { device, memory, journal, .. } = runner;
    segments.iter_mut().try_for_each(|segment| states.reserve(device, memory, journal, segment.state, tokens))
}

/// Tokens of the longest sequence once each has `more`.
fn longest(segments: &[Segment<'_, State>], more: usize) -> Option<usize> {
    segments.iter().map(|segment| segment.state.length + more).max()
}

//! The backend: checks what it is asked, cuts it into steps, gives back what came of them.

use std::sync::Arc;

use lily_backend::{Archive, Backend, BackendError, Description, MemoryPlan, Output, Piece, Segment, Want, sample};
use lily_checkpoint::{Checkpoint, Config, LayerKind, Weights};
use tracing::warn;

use crate::ahead::Ahead;
use crate::archive::GpuArchive;
use crate::batch::{Batch, Picks, wanted_rows};
use crate::device::{Device, Ticket, Tiles};
use crate::error::Error;
use crate::ferry::Ferry;
use crate::memory::{Memory, Sizes, small_bytes, turns, workspace_bytes};
use crate::part::{Answer, GRAIN, Part, pack, part_rows};
use crate::runner::Runner;
use crate::shapes::{MAX_DECODE_ROWS, PAGE, Shapes};
use crate::snapshot::Snapshot;
use crate::state::{State, States, page_bytes};
use crate::weights::{ModelWeights, copied_bytes};

/// The part of a prefix cache, one in so many, that is set aside as pages.
const CACHED_PAGES: u64 = 4;

/// How to run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Tokens a sequence may hold.
    pub max_context: usize,
    /// Sequences that exist at once.
    pub sequences: usize,
    /// Rows of a prefill step at most, rounded up to a multiple of 64; the workspace grows with it.
    pub prefill_rows: usize,
    /// KV pages beyond those that full sequences take, for snapshots of sequences that ended.
    pub spare_pages: usize,
    /// Submit the likely next decode step before it is asked for.
    pub run_ahead: bool,
    /// What the device makes many-row products of: the workspace depends on it. A backend asks its device; who only plans
    /// has to say.
    pub tiles: Tiles,
}

impl Options {
    /// Prefill of 2048 rows a step, no spare pages, running ahead, tiles that every device has.
    #[must_use]
    pub const fn new(max_context: usize, sequences: usize) -> Self {
        Self { max_context, sequences, prefill_rows: 2048, spare_pages: 0, run_ahead: true, tiles: Tiles::Simdgroup }
    }

    /// With what a prefix cache of `bytes` needs, and the bytes that the cache may then hold by its own count: a quarter is
    /// set aside as pages, for that is about their part of a snapshot every 1,024 tokens, as chats have them; the rest is for what
    /// snapshots allocate. Both together are never more than `bytes`, and where pages run out before that, snapshots go as steps
    /// need room.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the kernels are not made for this model.
    pub fn with_cache(self, config: &Config, bytes: u64) -> Result<(Self, u64), Error> {
        let page = page_bytes(&Shapes::new(config)?);
        let spare = bytes / CACHED_PAGES / page;
        Ok((Self { spare_pages: self.spare_pages + spare as usize, ..self }, bytes - spare * page))
    }

    pub(crate) fn sizes(&self) -> Sizes {
        Sizes {
            max_context: self.max_context,
            slots: self.sequences,
            pages: self.sequences * self.max_context.div_ceil(PAGE) + self.spare_pages,
            prefill_rows: self.prefill_rows.max(1).next_multiple_of(GRAIN),
            tiles: self.tiles,
        }
    }
}

/// The model on a device.
pub struct GpuBackend<D: Device> {
    description: Description,
    runner: Runner<D>,
    states: States,
    ahead: Option<Ahead>,
    run_ahead: bool,
    ferry: Ferry,
}

impl<D: Device> GpuBackend<D> {
    /// A backend for a checkpoint, whose weights stay where they are mapped if the device can read them there.
    ///
    /// # Errors
    /// If the kernels are not made for this model, or the device refuses.
    pub fn new(device: D, checkpoint: &Checkpoint, options: Options) -> Result<Self, Error> {
        Self::from_weights(device, &checkpoint.config, &checkpoint.weights, options)
    }

    /// A backend for weights that come from elsewhere and fit `config`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn from_weights(mut device: D, config: &Config, weights: &Weights, options: Options) -> Result<Self, Error> {
        let shapes = Shapes::new(config)?;
        device.specialise(&shapes.constants())?;
        let sizes = Options { tiles: device.tiles(), ..options }.sizes();
        let weights = ModelWeights::load(&mut device, weights)?;
        let memory = Memory::new(&shapes, &sizes, |bytes, what| device.allocate(bytes, what))?;
        device.write(memory.turns.range, &turns(config.attention.rope_theta))?;
        let description = Description {
            name: format!("gpu ({})", device.name()),
            logits: shapes.vocabulary,
            max_context: options.max_context,
            grain: GRAIN,
        };
        let states = States::new(&shapes, &sizes);
        let runner = Runner::new(device, shapes, sizes, weights, memory);
        Ok(Self { description, runner, states, ahead: None, run_ahead: options.run_ahead, ferry: Ferry::default() })
    }

    /// The device, for whoever wants to know more of it.
    #[must_use]
    pub const fn device(&self) -> &D {
        &self.runner.device
    }

    /// What will be held for `weights` bytes of tensors. A sequence's recurrent states are held twice.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the kernels are not made for this model.
    pub fn plan(config: &Config, weights: u64, options: &Options) -> Result<MemoryPlan, Error> {
        let (shapes, sizes) = (Shapes::new(config)?, options.sizes());
        let recurrent = shapes.count(LayerKind::DeltaNet) * (shapes.window() + shapes.state()) * size_of::<f32>();
        let page = page_bytes(&shapes);
        // What the last page of each sequence may have beyond the context.
        let rounding = sizes.slots as u64 * page;
        Ok(MemoryPlan {
            context: options.max_context,
            parallel: options.sequences,
            weights,
            workspace: workspace_bytes(&shapes, &sizes)
                + small_bytes(&shapes, &sizes)
                + copied_bytes(config)?
                + rounding,
            state: 2 * recurrent as u64,
            kv_per_token: page / PAGE as u64,
            cache: options.spare_pages as u64 * page,
        })
    }

    /// Runs what nobody foresaw: each segment in parts that fit a step, parts of several segments together.
    fn run(
        &mut self,
        segments: &mut [Segment<'_, State>],
        todo: &[bool],
        outputs: &mut [Output],
    ) -> Result<(), BackendError> {
        let mut done = vec![0; segments.len()];
        let mut last = None;
        loop {
            let (mut few, mut many) = (Vec::new(), Vec::new());
            for (index, segment) in segments.iter().enumerate().filter(|(index, _)| todo[*index]) {
                let left = segment.tokens.len() - done[index];
                let rows = part_rows(segment.state.length, left, self.runner.sizes.prefill_rows);
                let part = Part { segment: index, tokens: done[index]..done[index] + rows };
                done[index] += rows;
                match rows {
                    0 => {}
                    1..=MAX_DECODE_ROWS => few.push(part),
                    _ => many.push(part),
                }
            }
            if few.is_empty() && many.is_empty() {
                break;
            }
            for parts in pack(few, MAX_DECODE_ROWS) {
                last = Some(self.few(segments, &parts, outputs)?);
            }
            for parts in pack(many, self.runner.sizes.prefill_rows) {
                last = Some(self.many(segments, &parts, outputs)?);
            }
        }
        last.map_or(Ok(()), |ticket| self.runner.wait(ticket))
    }

    /// One few-row step.
    fn few(
        &mut self,
        segments: &mut [Segment<'_, State>],
        parts: &[Part],
        outputs: &mut [Output],
    ) -> Result<Ticket, BackendError> {
        let (mut batch, mut picks, mut answers) = (Batch::default(), Picks::default(), Vec::new());
        let mut context = 0;
        for part in parts {
            let segment = &mut segments[part.segment];
            context = context.max(segment.state.length + part.tokens.len());
            let first = self.add(&mut batch, segment, part)?;
            for answer in part.answers(segment, first, &mut picks) {
                if answer.drawn {
                    batch.drawing(answer.place);
                }
                answers.push(answer);
            }
        }
        let ticket = self.runner.few(batch, picks, context)?;
        if !answers.is_empty() {
            self.runner.wait(ticket)?;
        }
        self.collect(segments, answers, outputs)?;
        Ok(ticket)
    }

    /// One many-row step and, 8 rows at a time, the head of those that want it.
    fn many(
        &mut self,
        segments: &mut [Segment<'_, State>],
        parts: &[Part],
        outputs: &mut [Output],
    ) -> Result<Ticket, BackendError> {
        let mut batch = Batch::default();
        let (mut context, mut wanted) = (0, Vec::new());
        for part in parts {
            let segment = &mut segments[part.segment];
            context = context.max(segment.state.length + part.tokens.len());
            let first = self.add(&mut batch, segment, part)?;
            let rows = part.tokens.len();
            let count = wanted_rows(&segment.want, rows, part.is_last(segment));
            wanted.extend((rows - count..rows).map(|row| (part, first, row)));
        }
        let mut ticket = self.runner.many(batch, context)?;
        for rows in wanted.chunks(MAX_DECODE_ROWS) {
            let mut picks = Picks::default();
            let answers = rows
                .iter()
                .map(|&(part, first, row)| part.answer(&segments[part.segment], first, row, &mut picks))
                .collect();
            ticket = self.runner.head(picks)?;
            self.runner.wait(ticket)?;
            self.collect(segments, answers, outputs)?;
        }
        Ok(ticket)
    }

    /// Adds a part to a step and counts it as done; gives its first row.
    fn add(&mut self, batch: &mut Batch, segment: &mut Segment<'_, State>, part: &Part) -> Result<usize, BackendError> {
        let Segment { state, tokens, want } = segment;
        let counter = if let Want::Sample(draw) = want { draw.counter } else { 0 };
        self.runner.place(state, counter, 0)?;
        let first = batch.add(state.slot.index, &tokens[part.tokens.clone()]);
        state.advance(part.tokens.len());
        Ok(first)
    }

    /// Reads what a step that has run gave.
    fn collect(
        &mut self,
        segments: &[Segment<'_, State>],
        answers: Vec<Answer>,
        outputs: &mut [Output],
    ) -> Result<(), BackendError> {
        for Answer { segment: index, place, drawn } in answers {
            let Segment { state, want, .. } = &segments[index];
            match (want, &mut outputs[index]) {
                (Want::Sample(draw), output) => {
                    let sample = if drawn {
                        self.runner.drawn(state.slot.index, draw)?
                    } else {
                        sample(&self.runner.logits(place)?, draw)
                    };
                    *output = sample.map_or(Output::NoFiniteLogit, Output::Sample);
                }
                (Want::Logits, Output::Logits(all)) => all.extend(self.runner.logits(place)?),
                _ => {}
            }
        }
        Ok(())
    }

    /// Takes what the step ahead did of the segments, and submits the one after it where that can be told already. True
    /// for the segments that are still to be run.
    fn take_ahead(
        &mut self,
        segments: &mut [Segment<'_, State>],
        outputs: &mut [Output],
    ) -> Result<Vec<bool>, BackendError> {
        let Some(ahead) = self.ahead.take() else { return Ok(vec![true; segments.len()]) };
        let answered: Vec<bool> = segments.iter().map(|segment| ahead.answers(segment)).collect();
        let count = answered.iter().filter(|answered| **answered).count();
        let mut next = None;
        if count > 0 && count == segments.len() && count == ahead.len() {
            next = ahead.follow(&mut self.runner, &self.states, segments);
        }
        if let Err(error) = self.runner.wait(ahead.ticket) {
            if next.is_some() {
                // Had it ended halfway, the step after it may have written where it should have read.
                return Err(error);
            }
            warn!(%error, "the step that ran ahead failed; it is run anew");
            return Ok(vec![true; segments.len()]);
        }
        for (index, _) in answered.iter().enumerate().filter(|(_, answered)| **answered) {
            let segment = &mut segments[index];
            segment.state.advance(1);
            let answer = Answer { segment: index, place: 0, drawn: true };
            let id = segment.state.id;
            self.collect(segments, vec![answer], outputs)?;
            if let Some(next) = &mut next {
                next.learn(id, &outputs[index]);
            }
        }
        self.ahead = next;
        Ok(answered.into_iter().map(|answered| !answered).collect())
    }
}

impl<D: Device> Backend for GpuBackend<D> {
    type State = State;
    type Snapshot = Snapshot;

    fn description(&self) -> &Description {
        &self.description
    }

    fn create(&mut self) -> Result<State, BackendError> {
        let Runner { device, memory, journal, .. } = &mut self.runner;
        self.states.create(device, memory, journal)
    }

    fn length(&self, state: &State) -> usize {
        state.length
    }

    fn forward(&mut self, segments: &mut [Segment<'_, State>]) -> Result<Vec<Output>, BackendError> {
        self.description.check(segments, |state| state.length)?;
        self.states.collect(&mut self.runner.device);
        let Runner { device, memory, journal, .. } = &mut self.runner;
        for Segment { state, tokens, .. } in &mut *segments {
            self.states.reserve(device, memory, journal, state, tokens.len())?;
        }
        let mut outputs: Vec<Output> = segments
            .iter()
            .map(|segment| match segment.want {
                Want::Logits => Output::Logits(Vec::with_capacity(segment.tokens.len() * self.description.logits)),
                Want::Nothing | Want::Sample(_) => Output::Nothing,
            })
            .collect();
        let todo = self.take_ahead(segments, &mut outputs)?;
        segments.iter().try_for_each(|segment| segment.state.check(&self.runner.journal))?;
        self.run(segments, &todo, &mut outputs)?;
        if self.ahead.is_none() {
            self.runner.trim_plans();
        }
        if self.ahead.is_none() && self.run_ahead {
            self.ahead = Ahead::start(&mut self.runner, &self.states, segments, &outputs);
        }
        Ok(outputs)
    }

    fn snapshot(&mut self, state: &State) -> Result<Snapshot, BackendError> {
        let Runner { device, memory, journal, .. } = &mut self.runner;
        self.states.collect(device);
        self.states.snapshot(device, memory, journal, state)
    }

    fn snapshot_bytes(&self) -> u64 {
        self.states.recurrent_bytes()
    }

    fn pieces(&self, snapshot: &Snapshot) -> Vec<Piece> {
        self.states.pieces(snapshot)
    }

    fn archive(&self) -> Option<Arc<dyn Archive<Snapshot>>> {
        let Runner { device, shapes, .. } = &self.runner;
        let (page, recurrent) = (self.states.page_bytes(), self.states.recurrent_bytes());
        Some(Arc::new(GpuArchive::new(&device.fingerprint(), device.tiles(), shapes, page, recurrent)))
    }

    fn fetch(&mut self, snapshot: &Snapshot, from: usize) -> Result<Option<Snapshot>, BackendError> {
        let fetched = self.ferry.fetch(&mut self.runner, &self.states, snapshot, from);
        if fetched.is_err() {
            // It may have gone with what was waited for.
            self.ahead = None;
        }
        fetched
    }

    fn adopt(&mut self, read: &Snapshot) -> Result<Option<Snapshot>, BackendError> {
        let adopted = self.ferry.adopt(&mut self.runner, &self.states, read);
        if matches!(adopted, Err(BackendError::Device(_))) {
            self.ahead = None;
        }
        adopted
    }

    fn gives_room(&self, snapshot: &Snapshot) -> bool {
        snapshot.holds_a_page_alone()
    }

    fn evictions_for(&self, read: &Snapshot, snapshots: &[&Snapshot]) -> Option<Vec<usize>> {
        self.states.evictions_for(read, snapshots)
    }

    fn restore(&mut self, snapshot: &Snapshot) -> Result<State, BackendError> {
        let Runner { device, memory, journal, .. } = &mut self.runner;
        self.states.restore(device, memory, journal, snapshot)
    }

    fn truncate(&mut self, state: &mut State, length: usize) -> Result<(), BackendError> {
        match length {
            length if length == state.length => Ok(()),
            0 => {
                let Runner { device, memory, journal, .. } = &mut self.runner;
                self.states.reset(device, memory, journal, state)
            }
            wanted => Err(BackendError::CannotTruncate { length: state.length, wanted }),
        }
    }
}

#[cfg(test)]
mod tests {
    use lily_checkpoint::Config;

    use super::Options;
    use crate::shapes::Shapes;
    use crate::state::page_bytes;

    /// Pages that are set aside and what snapshots may take beside them are never more than the cache was given, and the
    /// pages are there.
    #[test]
    fn a_cache_is_divided_into_pages_and_the_rest() {
        let config =
            Config::parse(include_bytes!("../../../models/qwen3.6-35b-a3b/config.json")).expect("a sound config");
        let page = page_bytes(&Shapes::new(&config).expect("supported"));
        assert_eq!(page, 64 * 20 * 1024);
        for bytes in [0, page, 100 << 20, 32 << 30] {
            let (options, held) = Options::new(32_768, 4).with_cache(&config, bytes).expect("supported");
            let set_aside = options.spare_pages as u64 * page;
            assert_eq!(set_aside + held, bytes);
            assert!(set_aside <= bytes / 4 && bytes / 4 < set_aside + page, "{set_aside} of {bytes}");
            assert_eq!(options.sizes().pages, 4 * 512 + options.spare_pages);
        }
    }
}

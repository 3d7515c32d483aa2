//! The model on a device: plans recorded and prepared when first needed, batches of records run through them.

use lily_backend::{BackendError, Draw, Sample};

use crate::batch::{Batch, Picks, record};
use crate::device::{Device, DeviceError, Range, Ticket};
use crate::journal::{Journal, Moment};
use crate::kernels::{DRAWN_RING, Drawn, NONE};
use crate::memory::{CONTEXT_BLOCK, Memory, Sizes};
use crate::plan::Plan;
use crate::recent::Recent;
use crate::shapes::Shapes;
use crate::state::State;
use crate::step::{Few, Head, Many, Model, record_head};
use crate::weights::ModelWeights;

/// Rows of a many-row plan are padded to a multiple of this.
const MANY_ROWS: usize = 32;
/// The shortest context that many-row plans tell apart.
const SHORT_CONTEXT: usize = 4096;

/// Plans that are kept: each is up to a megabyte of a device's own records, and prompts have many lengths.
const MOST_PLANS: usize = 64;

/// What a plan is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Few(Few),
    Many(Many),
    Head(Head, usize),
    /// Nothing, behind all that the device was given.
    Mark,
}

/// Everything that runs steps.
pub(crate) struct Runner<D: Device> {
    pub(crate) device: D,
    pub(crate) shapes: Shapes,
    pub(crate) sizes: Sizes,
    pub(crate) memory: Memory,
    pub(crate) journal: Journal,
    weights: ModelWeights,
    plans: Recent<Key, D::Executable>,
}

impl<D: Device> Runner<D> {
    pub(crate) fn new(device: D, shapes: Shapes, sizes: Sizes, weights: ModelWeights, memory: Memory) -> Self {
        Self { device, shapes, sizes, memory, journal: Journal::new(), weights, plans: Recent::new() }
    }

    /// Notes a failure of the device.
    fn noting<T>(&mut self, result: Result<T, DeviceError>) -> Result<T, BackendError> {
        result.map_err(|error| self.journal.failed(&error))
    }

    fn submit(&mut self, key: Key) -> Result<Ticket, BackendError> {
        let submitted = self.submit_prepared(key);
        let ticket = self.noting(submitted)?;
        self.journal.submitted(ticket);
        Ok(ticket)
    }

    fn submit_prepared(&mut self, key: Key) -> Result<Ticket, DeviceError> {
        let Self { device, shapes, sizes, memory, weights, plans, .. } = self;
        let executable = plans.get(key, || {
            let model = Model { shapes, sizes, weights, memory };
            let plan = match key {
                Key::Few(few) => few.record(&model),
                Key::Many(many) => many.record(&model),
                Key::Head(head, rows) => record_head(&model, head, rows),
                Key::Mark => Plan::default(),
            };
            device.prepare(&plan)
        })?;
        device.submit(executable)
    }

    /// Drops plans that have not been used for long. To be called when nothing is under way.
    pub(crate) fn trim_plans(&mut self) {
        self.plans.trim(MOST_PLANS);
    }

    /// Writes the record that a sequence has before a step.
    pub(crate) fn place(&mut self, state: &State, generated: u64, token: u32) -> Result<(), BackendError> {
        let at = record(self.memory.sequences, state.slot.index);
        let written = self.device.write(at, &state.record(generated, token).to_bytes());
        self.noting(written)
    }

    /// Starts a few-row step over contexts of up to `context` tokens.
    pub(crate) fn few(&mut self, batch: Batch, picks: Picks, context: usize) -> Result<Ticket, BackendError> {
        let head = match picks.len() {
            0 => Head::None,
            _ if picks.any_draw() => Head::Draw,
            _ => Head::Logits,
        };
        let rows = batch.rows().next_power_of_two();
        let written = batch.write(&mut self.device, &self.memory, rows, rows);
        self.noting(written)?;
        if head != Head::None {
            let written = picks.write(&mut self.device, &self.memory, rows);
            self.noting(written)?;
        }
        self.few_again(rows, head, context)
    }

    /// Writes the draws of a few-row step whose other records are there already.
    pub(crate) fn redraw(&mut self, picks: Picks, rows: usize) -> Result<(), BackendError> {
        let written = picks.rewrite(&mut self.device, &self.memory, rows);
        self.noting(written)
    }

    /// Starts a few-row step whose records are there already.
    pub(crate) fn few_again(&mut self, rows: usize, head: Head, context: usize) -> Result<Ticket, BackendError> {
        let blocks = context.div_ceil(CONTEXT_BLOCK).next_power_of_two().min(self.sizes.max_blocks());
        self.submit(Key::Few(Few { rows, live: rows, blocks, head }))
    }

    /// Starts a many-row step over contexts of up to `context` tokens.
    pub(crate) fn many(&mut self, batch: Batch, context: usize) -> Result<Ticket, BackendError> {
        let (rows, segments) = (batch.rows().next_multiple_of(MANY_ROWS), batch.segments().next_power_of_two());
        let written = batch.write(&mut self.device, &self.memory, rows, segments);
        self.noting(written)?;
        let context = context.next_power_of_two().max(SHORT_CONTEXT);
        self.submit(Key::Many(Many { rows, segments, context }))
    }

    /// Starts the head of the many-row step before it.
    pub(crate) fn head(&mut self, picks: Picks) -> Result<Ticket, BackendError> {
        let head = if picks.any_draw() { Head::Draw } else { Head::Logits };
        let rows = picks.len().next_power_of_two();
        let written = picks.write(&mut self.device, &self.memory, rows);
        self.noting(written)?;
        self.submit(Key::Head(head, rows))
    }

    /// Waits for a submission and all before it, one by one: of those that have run, a device may know only how each ended.
    pub(crate) fn wait(&mut self, ticket: Ticket) -> Result<(), BackendError> {
        while let Some((first, moment)) = self.journal.unsettled(ticket) {
            match self.device.wait(first) {
                // One that nobody asks for any more, gone with one before it.
                Err(_) if first < ticket && self.journal.is_lost(moment) => self.journal.settle(),
                Err(error) => return Err(self.journal.spoilt(&error)),
                Ok(()) => self.journal.settle(),
            }
        }
        Ok(())
    }

    /// Waits until what the device was given at a moment has run.
    pub(crate) fn settle(&mut self, moment: Moment) -> Result<(), BackendError> {
        if self.journal.is_settled(moment) {
            return Ok(());
        }
        let ticket = self.submit(Key::Mark)?;
        self.wait(ticket)
    }

    /// Reads what nothing is writing any more.
    pub(crate) fn fetch(&mut self, from: Range, bytes: &mut [u8]) -> Result<(), BackendError> {
        let read = self.device.read(from, bytes);
        self.noting(read)
    }

    /// Writes, after all that the device was given.
    pub(crate) fn store(&mut self, to: Range, bytes: &[u8]) -> Result<(), BackendError> {
        let written = self.device.write(to, bytes);
        self.noting(written)
    }

    /// What the device drew for a sequence; `None` if no logit was finite.
    pub(crate) fn drawn(&mut self, slot: u32, draw: &Draw<'_>) -> Result<Option<Sample>, BackendError> {
        let place = slot * DRAWN_RING + draw.counter as u32 % DRAWN_RING;
        let mut bytes = [0; size_of::<Drawn>()];
        let read = self.device.read(record(self.memory.drawn, place), &mut bytes);
        self.noting(read)?;
        let Drawn { token, logprob } = Drawn::from_bytes(&bytes);
        Ok((token != NONE).then(|| Sample { token, logprob: draw.top_logprobs.map(|_| logprob), top: Vec::new() }))
    }

    /// A row of raw logits.
    pub(crate) fn logits(&mut self, place: usize) -> Result<Vec<f32>, BackendError> {
        let vocabulary = self.shapes.vocabulary;
        let mut bytes = vec![0; vocabulary * size_of::<f32>()];
        let row = self.memory.logits.part((place * vocabulary) as u64, vocabulary as u64);
        let read = self.device.read(row.range, &mut bytes);
        self.noting(read)?;
        Ok(bytes.chunks_exact(4).map(|value| f32::from_ne_bytes([value[0], value[1], value[2], value[3]])).collect())
    }
}

//! The backend: checks what it is asked, cuts it into steps, draws tokens.

use std::ops::Range;
use std::sync::Arc;

use lily_backend::{
    Archive, Backend, BackendError, Description, MemoryPlan, Output, Pausable, Piece, Segment, Want, sample,
};
use lily_checkpoint::{Checkpoint, Config, Weights};
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

use crate::archive::CpuArchive;
use crate::model::{self, Chunk, Logits, MAX_ROWS, Model, Pass, Workspace};
use crate::simd::Simd;
use crate::state::{Layout, Snapshot, State};

/// How to run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Threads; 0 = one for each core this process may use.
    pub threads: usize,
    /// Tokens a sequence may hold.
    pub max_context: usize,
    /// The instruction set; `None` = the best this machine has.
    pub simd: Option<Simd>,
}

/// Why no backend could be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine lacks the instruction set asked for.
    #[error("this machine does not have {0}; it has: {available}", available = list(&Simd::available()))]
    UnavailableSimd(Simd),
    /// The system gives no threads.
    #[error("cannot start the threads of the CPU backend: {0}")]
    Threads(#[from] ThreadPoolBuildError),
}

fn list(all: &[Simd]) -> String {
    all.iter().map(Simd::to_string).collect::<Vec<_>>().join(", ")
}

/// The model on the CPU.
pub struct CpuBackend {
    description: Description,
    layout: Layout,
    model: Model,
    workspace: Workspace,
    /// Of calls that run to their end.
    pass: Pass,
    /// Of those that can be paused: others come in between.
    pausable_pass: Pass,
    paused: Option<Call>,
    pool: ThreadPool,
}

impl CpuBackend {
    /// A backend for a checkpoint, whose weights stay where they are mapped.
    ///
    /// # Errors
    /// If the instruction set or the threads are not to be had.
    pub fn new(checkpoint: Arc<Checkpoint>, options: Options) -> Result<Self, Error> {
        Self::from_weights(&checkpoint.config, checkpoint.weights.clone(), options)
    }

    /// A backend for weights that come from elsewhere. They fit `config`, which is one that the checkpoint crate
    /// accepts.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn from_weights(config: &Config, weights: Weights, options: Options) -> Result<Self, Error> {
        let simd = options.simd.unwrap_or_else(Simd::best);
        if !simd.is_available() {
            return Err(Error::UnavailableSimd(simd));
        }
        let pool = ThreadPoolBuilder::new()
            .num_threads(options.threads)
            .thread_name(|index| format!("lily-cpu-{index}"))
            .build()?;
        let threads = pool.current_num_threads();
        Ok(Self {
            description: Description {
                name: format!("cpu ({simd}, {threads} {})", if threads == 1 { "thread" } else { "threads" }),
                logits: config.vocab_size,
                max_context: options.max_context,
                grain: 1,
            },
            layout: Layout::new(config),
            model: Model::new(config, weights),
            workspace: Workspace::new(),
            pass: Pass::new(simd, config),
            pausable_pass: Pass::new(simd, config),
            paused: None,
            pool,
        })
    }

    /// Checks a call and makes room for it. Nothing has changed if that fails.
    fn begin(&self, segments: &mut [Segment<'_, State>]) -> Result<Call, BackendError> {
        self.description.check(segments, |state| state.length)?;
        for Segment { state, tokens, .. } in &mut *segments {
            state.reserve(&self.layout, tokens.len())?;
        }
        let vocab = self.description.logits;
        let output = |Segment { tokens, want, .. }: &Segment<'_, State>| match want {
            Want::Logits => Output::Logits(vec![0.0; tokens.len() * vocab]),
            Want::Nothing | Want::Sample(_) => Output::Nothing,
        };
        let progress = segments.iter().map(|segment| Progress { rows: 0..0, output: output(segment) }).collect();
        Ok(Call { progress, under_way: false })
    }

    /// What will be held for `weights` bytes of tensors, and `parallel` sequences of up to `context` tokens. The
    /// workspace is that of the largest step, 512 rows and one for each sequence; what a call with [`Want::Logits`]
    /// gives back is the caller's.
    #[must_use]
    pub fn plan(config: &Config, weights: u64, context: usize, parallel: usize) -> MemoryPlan {
        model::plan(config, weights, context, parallel)
    }
}

/// A call on its way.
struct Call {
    progress: Vec<Progress>,
    /// Whether a step has begun and not ended.
    under_way: bool,
}

/// How far a call has come with a segment.
struct Progress {
    /// The tokens in the step that is under way, or was last; those before them are done.
    rows: Range<usize>,
    output: Output,
}

impl Call {
    fn into_outputs(self) -> Vec<Output> {
        self.progress.into_iter().map(|progress| progress.output).collect()
    }

    /// Takes a call step by step to its end, or until `pause` says so; false if it is not at its end.
    fn run(
        &mut self,
        (model, workspace, pass): (&Model, &mut Workspace, &mut Pass),
        vocab: usize,
        segments: &mut [Segment<'_, State>],
        pause: &dyn Fn() -> bool,
    ) -> bool {
        loop {
            let begins = !self.under_way;
            if begins && !self.next_step(segments) {
                return true;
            }
            self.under_way = true;
            let (mut chunks, draws) = self.chunks(segments, vocab);
            if begins {
                model.begin(pass, &chunks);
            }
            if !model.advance(workspace, pass, &mut chunks, pause) {
                return false;
            }
            let logits = model.finish(workspace, pass, &mut chunks);
            let draw = |(logits, &index): (&[f32], &usize)| match &segments[index].want {
                Want::Sample(draw) => sample(logits, draw).map_or(Output::NoFiniteLogit, Output::Sample),
                Want::Nothing | Want::Logits => Output::Nothing,
            };
            let outputs: Vec<_> = logits.par_chunks_exact(vocab).zip(&draws).map(draw).collect();
            for (index, output) in draws.iter().zip(outputs) {
                self.progress[*index].output = output;
            }
            self.under_way = false;
        }
    }

    /// Chooses the tokens of the next step, as many as it holds, first segments first; false if there are none left.
    fn next_step(&mut self, segments: &[Segment<'_, State>]) -> bool {
        let mut room = MAX_ROWS + segments.len();
        for (Segment { tokens, .. }, Progress { rows, .. }) in segments.iter().zip(&mut self.progress) {
            let count = (tokens.len() - rows.end).min(MAX_ROWS).min(room);
            *rows = rows.end..rows.end + count;
            room -= count;
        }
        self.progress.iter().any(|progress| !progress.rows.is_empty())
    }

    /// The step that was chosen, and the segments that draw a token at its end.
    fn chunks<'a>(&'a mut self, segments: &'a mut [Segment<'_, State>], vocab: usize) -> (Vec<Chunk<'a>>, Vec<usize>) {
        let (mut chunks, mut draws) = (Vec::new(), Vec::new());
        let parts = segments.iter_mut().zip(&mut self.progress).enumerate();
        for (index, (Segment { state, tokens, want }, Progress { rows, output })) in parts {
            let rows = rows.clone();
            if rows.is_empty() {
                continue;
            }
            let logits = match (want, output) {
                (Want::Logits, Output::Logits(all)) => Logits::All(&mut all[rows.start * vocab..rows.end * vocab]),
                (Want::Sample(_), _) if rows.end == tokens.len() => {
                    draws.push(index);
                    Logits::Last
                }
                _ => Logits::None,
            };
            chunks.push(Chunk { state, tokens: &tokens[rows], logits });
        }
        (chunks, draws)
    }
}

impl Backend for CpuBackend {
    type State = State;
    type Snapshot = Snapshot;

    fn description(&self) -> &Description {
        &self.description
    }

    fn create(&mut self) -> Result<State, BackendError> {
        State::new(&self.layout)
    }

    fn length(&self, state: &State) -> usize {
        state.length
    }

    fn forward(&mut self, segments: &mut [Segment<'_, State>]) -> Result<Vec<Output>, BackendError> {
        let mut call = self.begin(segments)?;
        let Self { description, model, workspace, pass, pool, .. } = self;
        pool.install(|| call.run((model, workspace, pass), description.logits, segments, &|| false));
        Ok(call.into_outputs())
    }

    fn pausable(&mut self) -> Option<&mut dyn Pausable<State>> {
        Some(self)
    }

    fn snapshot(&mut self, state: &State) -> Result<Snapshot, BackendError> {
        Ok(Snapshot(Arc::new(self.pool.install(|| state.fork())?)))
    }

    fn freeze(&mut self, state: State) -> Result<Snapshot, BackendError> {
        Ok(Snapshot::of(state))
    }

    fn snapshot_bytes(&self) -> u64 {
        self.layout.recurrent_bytes()
    }

    fn pieces(&self, snapshot: &Snapshot) -> Vec<Piece> {
        snapshot.pieces(&self.layout)
    }

    fn archive(&self) -> Option<Arc<dyn Archive<Snapshot>>> {
        Some(Arc::new(CpuArchive::new(self.layout)))
    }

    fn restore(&mut self, snapshot: &Snapshot) -> Result<State, BackendError> {
        self.pool.install(|| snapshot.0.fork())
    }

    fn truncate(&mut self, state: &mut State, length: usize) -> Result<(), BackendError> {
        match length {
            length if length == state.length => Ok(()),
            0 => {
                state.clear();
                Ok(())
            }
            wanted => Err(BackendError::CannotTruncate { length: state.length, wanted }),
        }
    }
}

impl Pausable<State> for CpuBackend {
    /// Between two layers.
    fn advance(
        &mut self,
        segments: &mut [Segment<'_, State>],
        pause: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<Vec<Output>>, BackendError> {
        let mut call = match self.paused.take() {
            Some(call) => call,
            None => self.begin(segments)?,
        };
        let Self { description, model, workspace, pausable_pass, pool, .. } = self;
        let machinery = (&*model, workspace, pausable_pass);
        if pool.install(|| call.run(machinery, description.logits, segments, pause)) {
            return Ok(Some(call.into_outputs()));
        }
        self.paused = Some(call);
        Ok(None)
    }

    fn abandon(&mut self) {
        self.paused = None;
    }
}

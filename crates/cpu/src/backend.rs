//! The backend: checks what it is asked, cuts it into steps, draws tokens.

use std::sync::Arc;

use lily_backend::{Archive, Backend, BackendError, Description, MemoryPlan, Output, Piece, Segment, Want, sample};
use lily_checkpoint::{Checkpoint, Config, Weights};
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

use crate::archive::Bytes;
use crate::model::{self, Chunk, Logits, MAX_ROWS, Model, Workspace};
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
                chunk_invariant: true,
            },
            layout: Layout::new(config),
            model: Model::new(config, weights),
            workspace: Workspace::new(simd, config),
            pool,
        })
    }

    /// What will be held for `weights` bytes of tensors, and `parallel` sequences of up to `context` tokens. The
    /// workspace is that of the largest step, 512 rows and one for each sequence; what a call with [`Want::Logits`]
    /// gives back is the caller's.
    #[must_use]
    pub fn plan(config: &Config, weights: u64, context: usize, parallel: usize) -> MemoryPlan {
        model::plan(config, weights, context, parallel)
    }
}

/// How far a call has come with a segment.
struct Progress {
    done: usize,
    output: Output,
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
        self.description.check(segments, |state| state.length)?;
        for Segment { state, tokens, .. } in &mut *segments {
            state.reserve(&self.layout, tokens.len())?;
        }
        let vocab = self.description.logits;
        let mut progress: Vec<Progress> = segments
            .iter()
            .map(|Segment { tokens, want, .. }| Progress {
                done: 0,
                output: match want {
                    Want::Logits => Output::Logits(vec![0.0; tokens.len() * vocab]),
                    Want::Nothing | Want::Sample(_) => Output::Nothing,
                },
            })
            .collect();
        let Self { model, workspace, pool, .. } = self;
        pool.install(|| while step(model, workspace, vocab, segments, &mut progress) {});
        Ok(progress.into_iter().map(|progress| progress.output).collect())
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
        Some(Arc::new(Bytes::new(self.layout)))
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

/// Takes as many tokens as a step holds through the model, first segments first; false if there were none.
fn step(
    model: &Model,
    workspace: &mut Workspace,
    vocab: usize,
    segments: &mut [Segment<'_, State>],
    progress: &mut [Progress],
) -> bool {
    let mut room = MAX_ROWS + segments.len();
    let mut chunks = Vec::new();
    let mut draws = Vec::new();
    for (index, (Segment { state, tokens, want }, Progress { done, output })) in
        segments.iter_mut().zip(progress.iter_mut()).enumerate()
    {
        let rows = (tokens.len() - *done).min(MAX_ROWS).min(room);
        if rows == 0 {
            continue;
        }
        let range = *done..*done + rows;
        *done = range.end;
        room -= rows;
        let logits = match (want, output) {
            (Want::Logits, Output::Logits(all)) => Logits::All(&mut all[range.start * vocab..range.end * vocab]),
            (Want::Sample(draw), _) if range.end == tokens.len() => {
                draws.push((index, *draw));
                Logits::Last
            }
            _ => Logits::None,
        };
        chunks.push(Chunk { state, tokens: &tokens[range], logits });
    }
    if chunks.is_empty() {
        return false;
    }
    let logits = model.forward(workspace, &mut chunks);
    let samples: Vec<_> =
        logits.par_chunks_exact(vocab).zip(&draws).map(|(logits, (_, draw))| sample(logits, draw)).collect();
    for ((index, _), sample) in draws.iter().zip(samples) {
        progress[*index].output = sample.map_or(Output::NoFiniteLogit, Output::Sample);
    }
    true
}

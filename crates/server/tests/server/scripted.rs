//! A backend that does what the real one cannot be made to do: fail, take its time, or say what a test wants.

use lily_backend::{
    Adjustment, Backend, BackendError, Description, Draw, Output, Piece, Sample, Sampling, Segment, TokenLogprob, Want,
};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The token that ends what a script says.
const END: u32 = 6082;

/// Counts upwards from token 40, one a step, unless it has something to say.
pub(crate) struct Scripted {
    description: Description,
    /// How long a step takes.
    step: Duration,
    /// The step that fails, and all after it.
    fails_at: usize,
    steps: usize,
    /// What the first step waits for.
    gate: Option<Receiver<()>>,
    lines: Lines,
}

/// What a script says, and what it was asked: shared with the test.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Script>>);

#[derive(Default)]
struct Script {
    /// Replies to come, the next first.
    lines: VecDeque<Vec<u32>>,
    /// Prompts of those that came.
    prompts: Vec<Vec<u32>>,
    /// The last draw's.
    sampling: Option<(Sampling, Vec<Adjustment>)>,
}

impl Lines {
    /// The next reply that begins is of these tokens.
    pub(crate) fn say(&self, tokens: Vec<u32>) {
        self.script().lines.push_back(tokens);
    }

    /// The prompts of the replies so far, the oldest first.
    pub(crate) fn prompts(&self) -> Vec<Vec<u32>> {
        self.script().prompts.clone()
    }

    /// How the last token was to be drawn.
    pub(crate) fn sampling(&self) -> (Sampling, Vec<Adjustment>) {
        self.script().sampling.clone().expect("something was drawn")
    }

    fn drawing(&self, draw: &Draw<'_>) {
        self.script().sampling = Some((draw.sampling, draw.adjustments.to_vec()));
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, prompt: &[u32]) -> Option<VecDeque<u32>> {
        let mut script = self.script();
        let line = script.lines.pop_front()?;
        script.prompts.push(prompt.to_vec());
        Some(line.into_iter().chain([END]).collect())
    }
}

/// A sequence.
#[derive(Clone, Default)]
pub(crate) struct Run {
    tokens: Vec<u32>,
    /// What is left to say, once it has begun.
    line: Option<Option<VecDeque<u32>>>,
}

impl Scripted {
    pub(crate) fn new(max_context: usize) -> Self {
        let description = Description { name: "script".into(), logits: 6144, max_context, grain: 1 };
        let (step, lines) = (Duration::ZERO, Lines::default());
        Self { description, step, fails_at: usize::MAX, steps: 0, gate: None, lines }
    }

    pub(crate) fn taking(self, step: Duration) -> Self {
        Self { step, ..self }
    }

    /// The first step lasts until what is returned is dropped.
    pub(crate) fn held(self) -> (Self, Sender<()>) {
        let (hold, gate) = channel();
        (Self { gate: Some(gate), ..self }, hold)
    }

    pub(crate) fn failing_at(self, fails_at: usize) -> Self {
        Self { fails_at, ..self }
    }

    /// What it will say.
    pub(crate) fn lines(&self) -> Lines {
        self.lines.clone()
    }
}

impl Backend for Scripted {
    type State = Run;
    type Snapshot = Run;

    fn description(&self) -> &Description {
        &self.description
    }

    fn create(&mut self) -> Result<Run, BackendError> {
        Ok(Run::default())
    }

    fn length(&self, state: &Run) -> usize {
        state.tokens.len()
    }

    fn forward(&mut self, segments: &mut [Segment<'_, Run>]) -> Result<Vec<Output>, BackendError> {
        if let Some(gate) = self.gate.take() {
            let _opened = gate.recv();
        }
        std::thread::sleep(self.step);
        self.steps += 1;
        if self.steps >= self.fails_at {
            return Err(BackendError::Device("the script ends here".into()));
        }
        let outputs = segments.iter_mut().map(|segment| {
            let Run { tokens, line } = &mut *segment.state;
            tokens.extend_from_slice(segment.tokens);
            match segment.want {
                Want::Sample(ref draw) => {
                    self.lines.drawing(draw);
                    let line = line.get_or_insert_with(|| self.lines.begin(tokens));
                    let counted = 40 + (tokens.len() % 1000) as u32;
                    // No model draws what is biased as far as that.
                    let is_free = |token: &u32| !draw.adjustments.iter().any(|a| a.token == *token && a.add <= -100.0);
                    let next =
                        |line: &mut VecDeque<u32>| std::iter::from_fn(|| line.pop_front()).find(is_free).unwrap_or(END);
                    let token = line.as_mut().map_or(counted, next);
                    let top = vec![TokenLogprob { token, logprob: -0.5 }];
                    Output::Sample(Sample { token, logprob: Some(-0.5), top })
                }
                Want::Nothing | Want::Logits => Output::Nothing,
            }
        });
        Ok(outputs.collect())
    }

    fn snapshot(&mut self, state: &Run) -> Result<Run, BackendError> {
        Ok(Run { tokens: state.tokens.clone(), line: None })
    }

    fn snapshot_bytes(&self) -> u64 {
        0
    }

    fn pieces(&self, _snapshot: &Run) -> Vec<Piece> {
        Vec::new()
    }

    fn restore(&mut self, snapshot: &Run) -> Result<Run, BackendError> {
        Ok(snapshot.clone())
    }

    fn truncate(&mut self, state: &mut Run, length: usize) -> Result<(), BackendError> {
        state.tokens.truncate(length);
        Ok(())
    }
}

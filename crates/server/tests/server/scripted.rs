//! A backend that does what the real one cannot be made to do: fail, or take its time.

use lily_backend::{Backend, BackendError, Description, Output, Sample, Segment, TokenLogprob, Want};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// Counts upwards from token 40, one a step.
pub(crate) struct Scripted {
    description: Description,
    /// How long a step takes.
    step: Duration,
    /// The step that fails, and all after it.
    fails_at: usize,
    steps: usize,
    /// What the first step waits for.
    gate: Option<Receiver<()>>,
}

impl Scripted {
    pub(crate) fn new(max_context: usize) -> Self {
        let description = Description { name: "script".into(), logits: 6144, max_context, chunk_invariant: true };
        Self { description, step: Duration::ZERO, fails_at: usize::MAX, steps: 0, gate: None }
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
}

impl Backend for Scripted {
    /// Tokens held.
    type State = usize;
    type Snapshot = usize;

    fn description(&self) -> &Description {
        &self.description
    }

    fn create(&mut self) -> Result<usize, BackendError> {
        Ok(0)
    }

    fn length(&self, state: &usize) -> usize {
        *state
    }

    fn forward(&mut self, segments: &mut [Segment<'_, usize>]) -> Result<Vec<Output>, BackendError> {
        if let Some(gate) = self.gate.take() {
            let _opened = gate.recv();
        }
        std::thread::sleep(self.step);
        self.steps += 1;
        if self.steps >= self.fails_at {
            return Err(BackendError::Device("the script ends here".into()));
        }
        let outputs = segments.iter_mut().map(|segment| {
            *segment.state += segment.tokens.len();
            match segment.want {
                Want::Sample(_) => {
                    let token = 40 + (*segment.state % 1000) as u32;
                    let top = vec![TokenLogprob { token, logprob: -0.5 }];
                    Output::Sample(Sample { token, logprob: Some(-0.5), top })
                }
                Want::Nothing | Want::Logits => Output::Nothing,
            }
        });
        Ok(outputs.collect())
    }

    fn snapshot(&mut self, state: &usize) -> Result<usize, BackendError> {
        Ok(*state)
    }

    fn restore(&mut self, snapshot: &usize) -> Result<usize, BackendError> {
        Ok(*snapshot)
    }

    fn truncate(&mut self, state: &mut usize, length: usize) -> Result<(), BackendError> {
        *state = length;
        Ok(())
    }
}

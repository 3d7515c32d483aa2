//! What is measured, on any backend: the prompt by a formula, a warm-up of exactly the measured shape, a prefill in
//! chunks, greedy decode steps, and the same again. What the steps drew must be the same every time.

use std::time::Instant;

use anyhow::{Result, bail};
use lily_backend::{Backend, Draw, Output, Segment, Want};
use serde::{Deserialize, Serialize};

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contract {
    /// Tokens of the prompt, at least 1.
    pub(crate) length: usize,
    /// Decode steps after it.
    pub(crate) steps: usize,
    /// Times the whole is measured, after the warm-up.
    pub(crate) repeats: usize,
    /// Tokens of the prompt in one call: the most that the engine gives a sequence that is alone.
    pub(crate) chunk: usize,
    /// Addressable ids.
    pub(crate) vocabulary: usize,
}

/// What was measured.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Measured {
    /// Seconds of each repeat from the first chunk to the first token.
    pub(crate) prefill_seconds: Vec<f64>,
    /// Seconds of each repeat for all decode steps.
    pub(crate) decode_seconds: Vec<f64>,
    /// Of the tokens that the decode steps drew.
    pub(crate) digest: String,
}

/// Warms up and measures.
pub(crate) fn measure<B: Backend>(backend: &mut B, contract: &Contract) -> Result<Measured> {
    let prompt = prompt(contract.length, contract.vocabulary);
    let warm_up = pass(backend, contract, &prompt)?;
    let digest = digest(&warm_up.tokens);
    let (mut prefill_seconds, mut decode_seconds) = (Vec::new(), Vec::new());
    for repeat in 1..=contract.repeats {
        let pass = pass(backend, contract, &prompt)?;
        let again = self::digest(&pass.tokens);
        if again != digest {
            bail!(
                "{} tokens: repeat {repeat} drew other tokens than the warm-up (digests {again} and {digest}): \
                 {} does not repeat itself, which is a bug",
                contract.length,
                backend.description().name
            );
        }
        prefill_seconds.push(pass.prefill_seconds);
        decode_seconds.push(pass.decode_seconds);
    }
    Ok(Measured { prefill_seconds, decode_seconds, digest })
}

/// Token i is ((i · 2654435761) mod 2³²) mod `vocabulary`: spread over the vocabulary and the same everywhere.
pub(super) fn prompt(length: usize, vocabulary: usize) -> Vec<u32> {
    (0..length).map(|index| (index as u32).wrapping_mul(2_654_435_761) % vocabulary as u32).collect()
}

/// One prompt and its steps, from an empty state.
struct Pass {
    prefill_seconds: f64,
    decode_seconds: f64,
    tokens: Vec<u32>,
}

fn pass<B: Backend>(backend: &mut B, contract: &Contract, prompt: &[u32]) -> Result<Pass> {
    let mut state = backend.create()?;
    let draw = |counter| draw(contract.vocabulary, counter);
    let start = Instant::now();
    let mut token = read(backend, contract.chunk, &mut state, prompt, draw(0))?;
    let prefill_seconds = start.elapsed().as_secs_f64();

    let start = Instant::now();
    let mut tokens = Vec::with_capacity(contract.steps);
    for index in 1..=contract.steps {
        token = step(backend, &mut state, &[token], draw(index))?;
        tokens.push(token);
    }
    Ok(Pass { prefill_seconds, decode_seconds: start.elapsed().as_secs_f64(), tokens })
}

/// The largest logit, at a place of the sequence's random stream.
pub(super) fn draw(vocabulary: usize, counter: usize) -> Draw<'static> {
    Draw { counter: counter as u64, ..Draw::greedy(vocabulary) }
}

/// Appends a prompt in chunks and gives the token drawn after it.
pub(super) fn read<B: Backend>(
    backend: &mut B,
    chunk: usize,
    state: &mut B::State,
    prompt: &[u32],
    draw: Draw<'_>,
) -> Result<u32> {
    let (all_but_last, last) = prompt.split_at((prompt.len() - 1) / chunk * chunk);
    for tokens in all_but_last.chunks(chunk) {
        backend.forward(&mut [Segment { state: &mut *state, tokens, want: Want::Nothing }])?;
    }
    step(backend, state, last, draw)
}

/// Appends `tokens` and gives the token drawn after them.
pub(super) fn step<B: Backend>(backend: &mut B, state: &mut B::State, tokens: &[u32], draw: Draw<'_>) -> Result<u32> {
    match backend.forward(&mut [Segment { state, tokens, want: Want::Sample(draw) }])?.as_slice() {
        [Output::Sample(sample)] => Ok(sample.token),
        [Output::NoFiniteLogit] => bail!("the model gave no finite logit: are the weights sound?"),
        _ => bail!("the backend gave no token"),
    }
}

/// 64-bit FNV-1a of the tokens as little-endian bytes, in hexadecimal.
fn digest(tokens: &[u32]) -> String {
    let bytes = tokens.iter().flat_map(|token| token.to_le_bytes());
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use lily_backend::{BackendError, Description, Piece, Sample};
    use lily_checkpoint::Checkpoint;
    use lily_cpu::{CpuBackend, Options};

    use super::*;

    #[test]
    fn the_prompt_is_the_contract_s() {
        let prompt = prompt(131_072, 248_077);
        // 2 · 2654435761 − 2³² = 1013904226, 3 · 2654435761 − 2³² = 3668339987.
        assert_eq!(prompt[..4], [0, 11_861, 13_527, 25_388]);
        let formula = |index: usize| (index as u64 * 2_654_435_761 % (1 << 32) % 248_077) as u32;
        assert!(prompt.iter().enumerate().all(|(index, &token)| token == formula(index)));
    }

    #[test]
    fn the_digest_is_fnv() {
        // Of the published test vectors, those whose length is a multiple of four.
        assert_eq!(digest(&[]), "cbf29ce484222325");
        assert_eq!(digest(&[u32::from_le_bytes(*b"foob")]), "dd120e790c2512af");
        assert_ne!(digest(&[1, 2]), digest(&[2, 1]));
    }

    #[test]
    fn chunks_do_not_change_what_is_drawn() {
        let checkpoint = Arc::new(Checkpoint::embedded().unwrap());
        let options = Options { threads: 2, max_context: 64, simd: None };
        let mut backend = CpuBackend::new(checkpoint, options).unwrap();
        let mut measure = |chunk| {
            let contract = Contract { length: 40, steps: 5, repeats: 2, chunk, vocabulary: 4096 };
            measure(&mut backend, &contract).unwrap()
        };
        let whole = measure(512);
        assert_eq!((whole.prefill_seconds.len(), whole.decode_seconds.len()), (2, 2));
        for chunk in [1, 8, 39, 40] {
            assert_eq!(measure(chunk).digest, whole.digest, "in chunks of {chunk}");
        }
    }

    /// Records the segments it is given; draws the number of tokens held, and from call `odd_from` on one more.
    struct Recorder {
        description: Description,
        calls: Vec<(usize, bool)>,
        odd_from: usize,
        created: Cell<usize>,
    }

    impl Recorder {
        fn new(odd_from: usize) -> Self {
            let name = "recorder".to_owned();
            let description = Description { name, logits: 100, max_context: 100, grain: 1 };
            Self { description, calls: Vec::new(), odd_from, created: Cell::new(0) }
        }
    }

    impl Backend for Recorder {
        type State = usize;
        type Snapshot = usize;

        fn description(&self) -> &Description {
            &self.description
        }

        fn create(&mut self) -> Result<usize, BackendError> {
            self.created.set(self.created.get() + 1);
            Ok(0)
        }

        fn length(&self, state: &usize) -> usize {
            *state
        }

        fn forward(&mut self, segments: &mut [Segment<'_, usize>]) -> Result<Vec<Output>, BackendError> {
            let [Segment { state, tokens, want }] = segments else { panic!("one sequence") };
            self.calls.push((tokens.len(), matches!(want, Want::Sample(_))));
            **state += tokens.len();
            let token = **state as u32 + u32::from(self.calls.len() > self.odd_from);
            Ok(vec![match want {
                Want::Sample(_) => Output::Sample(Sample { token, logprob: None, top: Vec::new() }),
                _ => Output::Nothing,
            }])
        }

        fn snapshot(&mut self, state: &usize) -> Result<usize, BackendError> {
            Ok(*state)
        }

        fn snapshot_bytes(&self) -> u64 {
            0
        }

        fn pieces(&self, _: &usize) -> Vec<Piece> {
            Vec::new()
        }

        fn restore(&mut self, snapshot: &usize) -> Result<usize, BackendError> {
            Ok(*snapshot)
        }

        fn truncate(&mut self, _: &mut usize, _: usize) -> Result<(), BackendError> {
            Ok(())
        }
    }

    #[test]
    fn the_warm_up_has_the_measured_shape() {
        let mut backend = Recorder::new(usize::MAX);
        let contract = Contract { length: 9, steps: 2, repeats: 1, chunk: 4, vocabulary: 100 };
        measure(&mut backend, &contract).unwrap();
        let pass = [(4, false), (4, false), (1, true), (1, true), (1, true)];
        assert_eq!(backend.calls, [pass, pass].concat());
        assert_eq!(backend.created.get(), 2);
        backend.calls.clear();
        measure(&mut backend, &Contract { length: 8, repeats: 0, ..contract }).unwrap();
        assert_eq!(backend.calls[..3], [(4, false), (4, true), (1, true)]);
    }

    #[test]
    fn other_tokens_in_a_repeat_are_an_error() {
        // Four calls a pass: the third pass differs.
        let contract = Contract { length: 4, steps: 3, repeats: 3, chunk: 4, vocabulary: 100 };
        let error = measure(&mut Recorder::new(8), &contract).unwrap_err().to_string();
        assert!(error.contains("repeat 2 drew other tokens") && error.contains("recorder"), "{error}");
    }
}

//! The embedded checkpoint against transformers in fp32 over the same dequantised weights (`models/tiny/reference/README.md`):
//! the bars that the project sets a backend. Over any backend that has it: the tests of the host device, of Metal and of CUDA run it.
#![allow(dead_code, unreachable_pub)]

use std::env;

use lily_backend::{Backend, Output, Segment, Want};

use super::tensors::Tensors;

/// Tokens of a window of the text, each of which the reference began anew.
pub const WINDOW: usize = 2048;
/// Tokens of the text.
pub const TEXT: usize = 20_009;
/// The prompts, and room for the longest.
pub const PROMPTS: [&str; 8] = [
    "chat_think",
    "chat_nothink_json",
    "tool_call_think",
    "tool_answer_nothink",
    "multilingual_nothink",
    "raw_text",
    "needle_1000_think",
    "needle_3000_nothink",
];
pub const CONTEXT: usize = 4096;
/// As many rows at once as the few-row kernels are made for, and all numbers of rows below.
pub const FEW: [usize; 8] = [8, 1, 7, 2, 8, 4, 3, 5];

/// What must hold. Whatever the backend, 99.9 % of the positions agree where the reference's two largest are 0.1 apart.
#[derive(Clone, Copy)]
pub struct Bars {
    /// Share of the positions with the same largest logit.
    pub equal: f64,
    /// Relative change of the perplexity.
    pub perplexity: f64,
    /// |Δ| of the reference's two largest logits: the mean, and the largest.
    pub mean: f64,
    pub largest: f64,
}

impl Bars {
    /// The project's.
    pub const PROJECT: Self = Self { equal: 0.9635, perplexity: 4e-4, mean: f64::INFINITY, largest: f64::INFINITY };
}

/// How a backend's logits compare with the reference's, over any number of positions.
#[derive(Default)]
pub struct Agreement {
    positions: usize,
    /// Positions with the same largest logit.
    equal: usize,
    /// Positions where the reference's two largest differ by more than 0.1, and how many of them are equal.
    clear: usize,
    clear_equal: usize,
    /// |Δ| of the reference's two largest logits.
    total: f64,
    largest: f64,
    /// −log p of the tokens that follow, and of how many.
    scored: usize,
    ours: f64,
    theirs: f64,
}

/// The reference's answers at every position of a text.
struct Answers {
    tokens: Vec<u32>,
    top_ids: Vec<u32>,
    top_logits: Vec<f32>,
    logsumexp: Vec<f32>,
    /// Of the token that follows: of the text alone, and NaN at a window's end.
    next_logit: Option<Vec<f32>>,
}

impl Answers {
    fn load(name: &str) -> Self {
        let (texts, all) = (Tensors::load("reference.safetensors"), Tensors::load("positions.safetensors"));
        let tensor = |kind: &str| format!("{name}.{kind}");
        Self {
            tokens: texts.ids(&tensor("ids")),
            top_ids: all.ids(&tensor("top_ids")),
            top_logits: all.floats(&tensor("top_logits")),
            logsumexp: all.floats(&tensor("logsumexp")),
            next_logit: (name == "eval").then(|| all.floats("eval.next_logit")),
        }
    }
}

/// `LILY_POSITIONS`, or `usual`.
pub fn positions(usual: usize) -> usize {
    env::var("LILY_POSITIONS").map_or(usual, |number| number.parse().expect("LILY_POSITIONS is a number"))
}

/// So many positions of the text from a window's beginning on, in chunks of these sizes over and over.
pub fn text<B: Backend>(backend: &mut B, first: usize, count: usize, chunks: &[usize]) -> Agreement {
    assert!(first.is_multiple_of(WINDOW));
    let answers = Answers::load("eval");
    let end = answers.tokens.len().min(first + count);
    let mut agreement = Agreement::default();
    for first in (first..end).step_by(WINDOW) {
        agreement.add(backend, &answers, first, end.min(first + WINDOW), chunks);
    }
    agreement
}

/// The beginning of prompts, each from an empty state.
pub fn prompts<B: Backend>(backend: &mut B, names: &[&str], most: usize, chunks: &[usize]) -> Agreement {
    let mut agreement = Agreement::default();
    for name in names {
        let answers = Answers::load(name);
        agreement.add(backend, &answers, 0, answers.tokens.len().min(most), chunks);
    }
    agreement
}

impl Agreement {
    /// Feeds the tokens from `first` to `end` to an empty state and adds every position.
    fn add<B: Backend>(&mut self, backend: &mut B, answers: &Answers, first: usize, end: usize, chunks: &[usize]) {
        let vocabulary = backend.description().logits;
        let mut state = backend.create().expect("a slot");
        let (mut done, mut sizes) = (first, chunks.iter().cycle());
        while done < end {
            let size = (*sizes.next().expect("a cycle")).min(end - done);
            let segment = Segment { state: &mut state, tokens: &answers.tokens[done..done + size], want: Want::Logits };
            let output = backend.forward(&mut [segment]).expect("a sound segment").pop();
            let Some(Output::Logits(logits)) = output else { panic!("asked for logits, got {output:?}") };
            assert_eq!(logits.len(), size * vocabulary);
            for (position, row) in (done..).zip(logits.chunks(vocabulary)) {
                self.position(answers, position, row);
            }
            done += size;
        }
    }

    fn position(&mut self, answers: &Answers, position: usize, logits: &[f32]) {
        let two = 2 * position..2 * position + 2;
        let (ids, values) = (&answers.top_ids[two.clone()], &answers.top_logits[two]);
        let best = (0..logits.len()).fold(0, |best, id| if logits[id] > logits[best] { id } else { best });
        let equal = usize::from(best as u32 == ids[0]);
        self.positions += 1;
        self.equal += equal;
        if values[0] - values[1] > 0.1 {
            self.clear += 1;
            self.clear_equal += equal;
        }
        for (id, value) in ids.iter().zip(values) {
            let difference = f64::from(logits[*id as usize] - value).abs();
            self.total += difference;
            self.largest = self.largest.max(difference);
        }
        let theirs = answers.next_logit.as_ref().map(|logits| logits[position]).filter(|logit| logit.is_finite());
        if let Some((theirs, next)) = theirs.zip(answers.tokens.get(position + 1)) {
            self.scored += 1;
            self.ours += log_sum_exp(logits) - f64::from(logits[*next as usize]);
            self.theirs += f64::from(answers.logsumexp[position]) - f64::from(theirs);
        }
    }

    /// Prints the numbers and asserts the bars.
    pub fn check(&self, what: &str, bars: Bars) {
        let (share, clear_share) =
            (self.equal as f64 / self.positions as f64, self.clear_equal as f64 / self.clear as f64);
        let average = self.total / (2 * self.positions) as f64;
        println!(
            "{what}: top-1 equal at {}/{} positions ({:.3} %), {}/{} where clear ({:.3} %); |Δ logit| mean {average:.4}, \
             max {:.4}",
            self.equal,
            self.positions,
            100.0 * share,
            self.clear_equal,
            self.clear,
            100.0 * clear_share,
            self.largest,
        );
        assert!(share >= bars.equal, "{what}");
        assert!(clear_share >= 0.999, "{what}");
        assert!(average < bars.mean && self.largest < bars.largest, "{what}");
        if self.scored > 0 {
            let perplexity = |total: f64| (total / self.scored as f64).exp();
            let (ours, theirs) = (perplexity(self.ours), perplexity(self.theirs));
            let change = ours / theirs - 1.0;
            println!("{what}: perplexity {ours:.5} against {theirs:.5}: {:+.4} %", 100.0 * change);
            assert!(change.abs() < bars.perplexity, "{what}: perplexity");
        }
    }
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    f64::from(max) + logits.iter().map(|logit| f64::from(logit - max).exp()).sum::<f64>().ln()
}

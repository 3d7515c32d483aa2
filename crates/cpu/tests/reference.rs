//! The embedded checkpoint against transformers in fp32 over the same dequantised weights
//! (`models/tiny/reference/README.md`).
//!
//! What sets the two apart is the 8-bit inputs of the products: with 15 bits everywhere, 5809 of the prompts' 5810 positions
//! agree and the mean |Δ logit| is 0.0005. The largest differences stand where noise turns a router's eighth expert into
//! its ninth. Measured over everything: top-1 99.72 % of the prompts' positions and 99.51 % of the text's, 100 % and 99.99 %
//! where the reference's top two differ by more than 0.1; perplexity of the text +0.002 %. The bounds on |Δ| below are
//! about 1.5 times what was measured.

mod support;

use lily_backend::Backend;
use support::{Reference, backend, continuation, logits};

/// Tokens of a window of the evaluation text.
const WINDOW: usize = 2048;
/// Tokens handed over at once, to keep the logits small.
const CHUNK: usize = 256;

/// How the model's logits compare with the reference's, over any number of positions.
#[derive(Default)]
struct Agreement {
    positions: usize,
    /// Positions with the same largest logit.
    equal: usize,
    /// Positions where the reference's two largest differ by more than 0.1, and how many of them are equal.
    clear: usize,
    clear_equal: usize,
    /// |Δ| of the logits the reference gives.
    compared: usize,
    total: f64,
    largest: f64,
    /// |Δ| of the logsumexp.
    total_logsumexp: f64,
    largest_logsumexp: f64,
}

impl Agreement {
    /// Adds a position: the model's logits, the ids and values of the reference's largest, its logsumexp.
    fn add(&mut self, logits: &[f32], ids: &[u32], values: &[f32], logsumexp: f32) {
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
            self.compared += 1;
            self.total += difference;
            self.largest = self.largest.max(difference);
        }
        let difference = (log_sum_exp(logits) - f64::from(logsumexp)).abs();
        self.total_logsumexp += difference;
        self.largest_logsumexp = self.largest_logsumexp.max(difference);
    }

    fn share(&self) -> f64 {
        self.equal as f64 / self.positions as f64
    }

    fn clear_share(&self) -> f64 {
        self.clear_equal as f64 / self.clear as f64
    }

    fn mean(&self) -> f64 {
        self.total / self.compared as f64
    }

    /// The bars of the project, and the given bounds of the mean and the largest |Δ|.
    fn check(&self, what: &str, mean: f64, largest: f64) {
        self.report(what);
        assert!(self.share() >= 0.99, "{what}");
        assert!(self.clear_share() >= 0.999, "{what}");
        assert!(self.mean() < mean && self.largest < largest, "{what}");
        assert!(self.total_logsumexp / (self.positions as f64) < mean && self.largest_logsumexp < largest, "{what}");
    }

    fn report(&self, what: &str) {
        println!(
            "{what}: top-1 equal at {}/{} positions ({:.3} %), {}/{} where clear ({:.3} %); |Δ logit| mean {:.4}, max {:.4}; \
             |Δ logsumexp| mean {:.4}, max {:.4}",
            self.equal,
            self.positions,
            100.0 * self.share(),
            self.clear_equal,
            self.clear,
            100.0 * self.clear_share(),
            self.mean(),
            self.largest,
            self.total_logsumexp / self.positions as f64,
            self.largest_logsumexp,
        );
    }
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    f64::from(max) + logits.iter().map(|logit| f64::from(logit - max).exp()).sum::<f64>().ln()
}

/// Every position of the eight prompts, and the 20 largest logits of the last 64.
#[test]
fn prompts() {
    let reference = Reference::load();
    let mut backend = backend();
    let vocab = backend.description().logits;
    let (mut every, mut last) = (Agreement::default(), Agreement::default());
    for name in reference.prompts() {
        let tensor = |kind: &str| format!("{name}.{kind}");
        let ids = reference.ids(&tensor("ids"));
        let (top_ids, top_logits) = (reference.ids(&tensor("top_ids")), reference.floats(&tensor("top_logits")));
        let logsumexp = reference.floats(&tensor("logsumexp"));
        let tensor = |kind: &str| format!("all.{name}.{kind}");
        let all_ids = reference.ids(&tensor("top_ids"));
        let (all_logits, all_logsumexp) =
            (reference.floats(&tensor("top_logits")), reference.floats(&tensor("logsumexp")));
        let mut state = backend.create().expect("memory");
        for (chunk, tokens) in ids.chunks(CHUNK).enumerate() {
            let rows = logits(&mut backend, &mut state, tokens);
            for (position, row) in (chunk * CHUNK..).zip(rows.chunks(vocab)) {
                let two = 2 * position..2 * position + 2;
                every.add(row, &all_ids[two.clone()], &all_logits[two], all_logsumexp[position]);
                if let Some(index) = (position + logsumexp.len()).checked_sub(ids.len()) {
                    let twenty = 20 * index..20 * (index + 1);
                    last.add(row, &top_ids[twenty.clone()], &top_logits[twenty], logsumexp[index]);
                }
            }
        }
    }
    assert_eq!((every.positions, last.positions), (5810, 512));
    every.check("prompts, every position, top 2", 0.033, 0.9);
    last.check("prompts, last 64 positions, top 20", 0.033, 0.65);
}

/// The greedy continuations, up to where a reply ends. None of the steps is so near a tie that it would have to be excused.
#[test]
fn continuations() {
    let reference = Reference::load();
    let mut backend = backend();
    for (index, name) in reference.prompts().enumerate() {
        let expected = reference.ids(&format!("{name}.greedy"));
        let prompt = &reference.json["prompts"][index];
        let end = prompt["ends_at"].as_u64().map_or(expected.len(), |end| end as usize + 1);
        let mut state = backend.create().expect("memory");
        let found = continuation(&mut backend, &mut state, &reference.ids(&format!("{name}.ids")), end);
        assert_eq!(found, expected[..end], "{name}, of margins {}", prompt["greedy_margins"]);
    }
}

/// The first tokens after the shortest prompt: of [`continuations`] what an emulated processor does in seconds.
#[test]
fn first_tokens() {
    let reference = Reference::load();
    let prompts = reference.prompts().map(|name| (name, reference.ids(&format!("{name}.ids"))));
    let (name, ids) = prompts.min_by_key(|(_, ids)| ids.len()).expect("a prompt");
    let expected = &reference.ids(&format!("{name}.greedy"))[..8];
    let mut backend = backend();
    let mut state = backend.create().expect("memory");
    assert_eq!(continuation(&mut backend, &mut state, &ids, expected.len()), expected, "{name}");
}

/// Perplexity and agreement over the first windows of the evaluation text; `lily eval` takes all of it.
#[test]
fn text() {
    const WINDOWS: usize = 4;
    let reference = Reference::load();
    let mut backend = backend();
    let vocab = backend.description().logits;
    let ids = reference.ids("eval.ids");
    let (top_ids, top_logits) = (reference.ids("all.eval.top_ids"), reference.floats("all.eval.top_logits"));
    let (logsumexp, next_logit) = (reference.floats("all.eval.logsumexp"), reference.floats("all.eval.next_logit"));
    let mut agreement = Agreement::default();
    let (mut scored, mut ours, mut theirs) = (0, 0.0, 0.0);
    for (window, tokens) in ids.chunks(WINDOW).enumerate().take(WINDOWS) {
        let mut state = backend.create().expect("memory");
        for (chunk, part) in tokens.chunks(CHUNK).enumerate() {
            let rows = logits(&mut backend, &mut state, part);
            for (place, row) in (chunk * CHUNK..).zip(rows.chunks(vocab)) {
                let position = window * WINDOW + place;
                let two = 2 * position..2 * position + 2;
                agreement.add(row, &top_ids[two.clone()], &top_logits[two], logsumexp[position]);
                if let Some(&next) = tokens.get(place + 1) {
                    scored += 1;
                    ours += log_sum_exp(row) - f64::from(row[next as usize]);
                    theirs += f64::from(logsumexp[position]) - f64::from(next_logit[position]);
                }
            }
        }
    }
    agreement.check("text, top 2", 0.033, 1.9);
    let perplexity = |total: f64| (total / f64::from(scored)).exp();
    let change = perplexity(ours) / perplexity(theirs) - 1.0;
    println!("perplexity {:.5} against {:.5}: {:+.4} %", perplexity(ours), perplexity(theirs), 100.0 * change);
    assert!(change < 4e-4, "perplexity");
}

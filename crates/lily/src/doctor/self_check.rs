//! Has the model answer what is known of it, token by token along the known answer, so that one departure does not hide
//! what comes after it.

use anyhow::{Result, bail};
use lily_backend::{Backend, Output, Segment, Want};
use lily_checkpoint::Source;
use serde_json::{Value, json};

use crate::device::Device;
use crate::doctor::goldens::{self, Golden};
use crate::doctor::report::Finding;
use crate::load::Model;

/// Tokens of a prompt in one call.
const CHUNK: usize = 512;
/// Positions whose logits are held at once: a row of the 35B is a megabyte.
const ROWS: usize = 32;
/// In nats: where the two best tokens are this near each other, roundings that are sound may turn them round.
const NEAR_TIE: f64 = 0.25;
/// In nats: how far a log-probability may be off by such roundings.
const LOGPROB: f64 = 0.1;

/// Runs what is known of the model.
pub(super) fn run(model: &Model) -> Result<(Finding, ())> {
    let goldens = goldens::of(&model.checkpoint, model.source == Source::Embedded, &model.tokenizer)?;
    if goldens.is_empty() {
        let says =
            format!("nothing is known of {}: only the published 35B and the embedded model", model.checkpoint.name());
        return Ok((Finding::good(says).warn("not checked"), ()));
    }
    let answers = match model.device {
        Device::Cpu => answers(&mut model.cpu()?, &goldens, model)?,
        Device::Gpu { .. } => answers(&mut model.gpu()?, &goldens, model)?,
    };
    Ok((report(&answers, model), ()))
}

/// What the model made of a golden.
struct Answer<'g> {
    golden: &'g Golden,
    /// `None` if the context has no room for it.
    found: Option<Found>,
}

struct Found {
    departures: Vec<Departure>,
    first_logprob: f64,
}

/// A position where another token is the most probable.
struct Departure {
    position: usize,
    drawn: u32,
    /// How much more probable than the known one, in nats.
    margin: f64,
}

fn answers<'g, B: Backend>(backend: &mut B, goldens: &'g [Golden], model: &Model) -> Result<Vec<Answer<'g>>> {
    let vocabulary = model.tokenizer.vocabulary();
    let context = backend.description().max_context;
    let answer = |golden: &'g Golden| {
        let fits = golden.prompt.len() + golden.answer.len() <= context;
        let found = fits.then(|| follow(backend, golden, vocabulary)).transpose()?;
        Ok(Answer { golden, found })
    };
    goldens.iter().map(answer).collect()
}

/// Reads the prompt, then the known answer, and compares at each of its positions.
fn follow<B: Backend>(backend: &mut B, golden: &Golden, vocabulary: usize) -> Result<Found> {
    let Some((last, before)) = golden.prompt.split_last() else { bail!("{}: the prompt is empty", golden.name) };
    let mut state = backend.create()?;
    for tokens in before.chunks(CHUNK) {
        backend.forward(&mut [Segment { state: &mut state, tokens, want: Want::Nothing }])?;
    }
    // Position i of the answer follows these tokens up to i.
    let read: Vec<u32> = std::iter::once(last).chain(&golden.answer).take(golden.answer.len()).copied().collect();
    let mut found = Found { departures: Vec::new(), first_logprob: f64::NAN };
    for (chunk, tokens) in read.chunks(ROWS).enumerate() {
        let outputs = backend.forward(&mut [Segment { state: &mut state, tokens, want: Want::Logits }])?;
        let [Output::Logits(logits)] = outputs.as_slice() else { bail!("the backend gave no logits") };
        let width = logits.len() / tokens.len();
        for (row, logits) in logits.chunks(width).enumerate() {
            let position = chunk * ROWS + row;
            // What is padding is never drawn.
            let logits = &logits[..vocabulary.min(width)];
            let known = golden.answer[position];
            let drawn = best(logits);
            if position == 0 {
                found.first_logprob = logprob(logits, known);
            }
            if drawn != known {
                let margin = f64::from(logits[drawn as usize]) - f64::from(logits[known as usize]);
                found.departures.push(Departure { position, drawn, margin });
            }
        }
    }
    Ok(found)
}

fn best(logits: &[f32]) -> u32 {
    (0..logits.len()).fold(0, |best, id| if logits[id] > logits[best] { id } else { best }) as u32
}

fn logprob(logits: &[f32], id: u32) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - largest).exp()).sum();
    f64::from(logits[id as usize] - largest) - sum.ln()
}

fn report(answers: &[Answer<'_>], model: &Model) -> Finding {
    let equal: usize = answers.iter().map(Answer::equal).sum();
    let checked: usize = answers.iter().filter(|one| one.found.is_some()).map(|one| one.golden.answer.len()).sum();
    let says = format!("{equal} of {checked} tokens in {} answers are the known ones", answers.len());
    let figures: Vec<Value> = answers.iter().map(Answer::to_json).collect();
    let mut finding = Finding::good(says).with("answers", json!(figures));
    for answer in answers {
        let name = &answer.golden.name;
        let Some(found) = &answer.found else {
            let needed = answer.golden.prompt.len() + answer.golden.answer.len();
            finding = finding.warn(format!("{name}: not checked, it needs a context of {needed} tokens"));
            continue;
        };
        for departure in &found.departures {
            let line = departure.line(answer.golden, model);
            // A logit that is no number is never near another.
            let near = departure.margin.abs() <= NEAR_TIE;
            finding = if near { finding.note(line + ": a near-tie") } else { finding.fail(line) };
        }
        let known = answer.golden.first_logprob.map(|known| (known, (found.first_logprob - known).abs()));
        if let Some((known, difference)) = known
            && (difference > LOGPROB || difference.is_nan())
        {
            let line =
                format!("{name}: the first token's log-probability is {:.3}, not {known:.3}", found.first_logprob);
            finding = finding.fail(line);
        }
    }
    finding
}

impl Answer<'_> {
    /// Tokens that are the known ones.
    fn equal(&self) -> usize {
        self.found.as_ref().map_or(0, |found| self.golden.answer.len() - found.departures.len())
    }

    fn to_json(&self) -> Value {
        let departures = self.found.as_ref().map(|found| {
            let one = |departure: &Departure| {
                let expected = self.golden.answer[departure.position];
                json!({"position": departure.position, "expected": expected, "got": departure.drawn,
                       "margin": departure.margin})
            };
            found.departures.iter().map(one).collect::<Vec<Value>>()
        });
        json!({"name": self.golden.name, "tokens": self.golden.answer.len(), "equal": self.equal(), "departures": departures})
    }
}

impl Departure {
    fn line(&self, golden: &Golden, model: &Model) -> String {
        let text = |id: u32| model.tokenizer.decode(&[id]);
        let (position, margin) = (self.position, self.margin);
        let (drawn, known) = (text(self.drawn), text(golden.answer[position]));
        format!("{}: token {position} is {drawn:?} instead of {known:?}, {margin:.2} nats more probable", golden.name)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lily_checkpoint::Checkpoint;
    use lily_cpu::{CpuBackend, Options};

    use super::{best, follow, logprob};
    use crate::doctor::goldens;
    use crate::load::chat_side;

    #[test]
    fn logits_are_read_right() {
        let logits = [1.0, 3.0, 3.0, -2.0];
        assert_eq!(best(&logits), 1);
        let sum = 1f64.exp() + 2.0 * 3f64.exp() + (-2f64).exp();
        assert!((logprob(&logits, 0) - (1.0 - sum.ln())).abs() < 1e-6);
    }

    #[test]
    fn another_answer_is_a_departure() {
        let checkpoint = Arc::new(Checkpoint::embedded().expect("the embedded checkpoint"));
        let (tokenizer, _) = chat_side(&checkpoint).expect("its tokenizer");
        let options = Options { threads: 2, max_context: 1024, simd: None };
        let mut backend = CpuBackend::new(Arc::clone(&checkpoint), options).expect("a backend");
        let goldens = goldens::of(&checkpoint, true, &tokenizer).expect("the stored reference");
        let mut golden = goldens.into_iter().find(|golden| golden.name == "chat_think").expect("one of the prompts");
        assert_eq!((golden.prompt.len(), golden.answer.len()), (85, 51));
        let vocabulary = tokenizer.vocabulary();
        assert!(follow(&mut backend, &golden, vocabulary).expect("it runs").departures.is_empty());
        let right = std::mem::replace(&mut golden.answer[40], 7);
        let departures = follow(&mut backend, &golden, vocabulary).expect("it runs").departures;
        let first = departures.first().expect("a departure");
        assert_eq!((first.position, first.drawn), (40, right));
        assert!(first.margin > 0.25, "{}", first.margin);
    }
}

//! Perplexity of a text: the exponential of the mean negative log-probability of each token given those before it.

use std::io::{Write, stdout};
use std::path::Path;

use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use lily_backend::{Backend, Output, Segment, Want};

use crate::device::Device;
use crate::eval::bar;
use crate::load::Model;

/// Positions whose logits are held at once: a row of the 35B is a megabyte.
const ROWS: usize = 128;

/// Prints the perplexity of `file`, taken in windows of `window` tokens, each from an empty state.
pub(crate) fn report(model: &Model, file: &Path, window: usize) -> Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| format!("{}: cannot be read", file.display()))?;
    let ids = model.tokenizer.encode(&text)?;
    let window = window.min(model.plan.context);
    let bar = bar(ids.len(), "tokens");
    let sum = match model.device {
        Device::Cpu => over_windows(&mut model.cpu()?, &ids, window, &bar)?,
        Device::Gpu { .. } => over_windows(&mut model.gpu()?, &ids, window, &bar)?,
    };
    bar.finish_and_clear();
    let scored: usize = ids.chunks(window).map(|part| part.len() - 1).sum();
    if scored == 0 {
        bail!("{}: {} tokens, at least 2 are needed", file.display(), ids.len());
    }
    writeln!(stdout(), "perplexity {:.4} over {scored} tokens in windows of {window}", (sum / scored as f64).exp())?;
    Ok(())
}

/// The sum over all windows.
fn over_windows<B: Backend>(backend: &mut B, ids: &[u32], window: usize, bar: &ProgressBar) -> Result<f64> {
    ids.chunks(window).map(|part| negative_log_likelihood(backend, part, bar)).sum()
}

/// The sum over `ids`, the first not scored, of −ln p(token | those before it).
fn negative_log_likelihood<B: Backend>(backend: &mut B, ids: &[u32], bar: &ProgressBar) -> Result<f64> {
    let width = backend.description().logits;
    let mut state = backend.create()?;
    let mut sum = 0.0;
    for start in (0..ids.len()).step_by(ROWS) {
        let tokens = &ids[start..ids.len().min(start + ROWS)];
        let output = backend.forward(&mut [Segment { state: &mut state, tokens, want: Want::Logits }])?;
        let [Output::Logits(logits)] = output.as_slice() else { bail!("the backend gave no logits") };
        for (row, &next) in logits.chunks_exact(width).zip(ids[start + 1..].iter()) {
            let peak = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let total: f64 = row.iter().map(|&logit| f64::from(logit - peak).exp()).sum();
            sum += total.ln() - f64::from(row[next as usize] - peak);
        }
        bar.inc(tokens.len() as u64);
    }
    Ok(sum)
}

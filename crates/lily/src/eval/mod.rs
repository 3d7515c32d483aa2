//! `lily eval`: quality, so that a speed-up that costs it shows.

mod perplexity;
mod tasks;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::EvalArgs;
use crate::load::Model;

/// How far an evaluation is, on a terminal.
fn bar(count: usize, what: &str) -> ProgressBar {
    let bar = ProgressBar::new(count as u64);
    let style = ProgressStyle::with_template(&format!("{{bar:30}} {{pos}}/{{len}} {what}, {{eta}} left"));
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar
}

/// Runs the evaluations asked for and prints their figures.
pub(crate) fn eval(args: &EvalArgs) -> Result<()> {
    let model = Model::open(&args.model, args.parallel)?;
    if let Some(file) = &args.perplexity {
        perplexity::report(&model, file, args.window as usize)?;
    }
    if let Some(file) = &args.tasks {
        tasks::report(&model, file)?;
    }
    Ok(())
}

//! `lily eval`: quality, so that a speed-up that costs it shows.

mod perplexity;
mod tasks;

use anyhow::Result;

use crate::cli::EvalArgs;
use crate::load::Model;

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

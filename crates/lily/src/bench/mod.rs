//! `lily bench`: how fast the model runs here, by length of the prompt, and how near that is to what the machine can do.
//!
//! Each length is measured by a process of its own, which this program starts of itself ([`child`]), so that none
//! profits from what another left in memory; the weights stay in the system's page cache.

#[cfg(feature = "ablate")]
mod ablate;
mod child;
mod cost;
mod machine;
mod measure;
mod output;
mod plot;
mod report;
mod table;

use std::num::NonZero;

use anyhow::{Context, Result, bail};
use lily_backend::MemoryPlan;
use lily_chat::Tokenizer;
use lily_checkpoint::Checkpoint;
use lily_cpu::Simd;

#[cfg(feature = "ablate")]
pub(crate) use ablate::Idea;
pub(crate) use child::measure_length;
pub(crate) use cost::Cost;
pub(crate) use machine::Machine;

use crate::bench::measure::Contract;
use crate::bench::output::Outputs;
use crate::bench::report::{Report, Row, Settings};
use crate::cache::CacheSize;
use crate::cli::BenchArgs;
use crate::device::{self, Device};
use crate::load::{open_checkpoint, plan};
use crate::terminal::tell;

/// The shortest and the longest prompt measured unless others are asked for.
const DEFAULT_LENGTHS: (usize, usize) = (256, 131_072);

/// Measures every length and reports.
pub(crate) fn bench(args: &BenchArgs) -> Result<()> {
    #[cfg(feature = "ablate")]
    if let Some(ideas) = &args.ablate {
        return ablate::ablate(args, ideas);
    }
    let mut model = args.model.clone();
    if model.threads == 0 {
        model.threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    }
    let checkpoint = open_checkpoint(&model)?;
    let vocabulary = vocabulary(&checkpoint)?;
    let (steps, repeats) = (args.steps as usize, args.repeats as usize);
    let weights = checkpoint.weights.summary().bytes();
    let config = &checkpoint.config;
    let (device, plan) = model
        .device
        .choose_to_run(config, |device| plan(config, weights, model.max_context, 1, device, CacheSize::Off))?;
    let lengths = lengths(&args.lengths, steps, &plan)?;
    // As `lily serve` reads a prompt.
    let chunk = if device == Device::Cpu {
        lily_engine::Options::new(vocabulary).prefill_chunk
    } else {
        device::options(plan.context, plan.parallel).prefill_rows
    };
    let simd = args.simd.unwrap_or_else(Simd::best);
    let mut outputs = Outputs::open(args, lengths.clone())?;

    let machine = if device == Device::Cpu { Machine::measured(simd, model.threads)?.0 } else { Machine::new()? };
    let mut report = Report {
        lily: env!("CARGO_PKG_VERSION"),
        model: checkpoint.name().to_owned(),
        settings: Settings {
            backend: device.name(),
            simd: simd.to_string(),
            threads: model.threads,
            steps,
            repeats,
            chunk,
        },
        machine,
        cost: Cost::new(&checkpoint.config, &checkpoint.weights, &plan),
        lengths: Vec::new(),
    };
    outputs.begin(&report)?;
    for &length in &lengths {
        if let Some(last) = report.lengths.last() {
            announce(last, length, &report.settings);
        }
        let contract = Contract { length, steps, repeats, chunk, vocabulary };
        let measured = child::start(&model, device, simd, &contract)?;
        report.lengths.push(Row::new(&contract, measured, &report.cost, &report.machine));
        outputs.add(&report)?;
    }
    outputs.end(&report)
}

/// Ids that the model has rows for and the tokenizer texts.
fn vocabulary(checkpoint: &Checkpoint) -> Result<usize> {
    let files = &checkpoint.files;
    let tokenizer = Tokenizer::from_files(&files.tokenizer, files.tokenizer_config.as_deref())
        .with_context(|| format!("{}: the tokenizer cannot be used", checkpoint.name()))?;
    Ok(tokenizer.vocabulary().min(checkpoint.config.vocab_size))
}

/// The lengths asked for, or those that the plan has room for.
fn lengths(asked: &[u32], steps: usize, plan: &MemoryPlan) -> Result<Vec<usize>> {
    let room = plan.context.saturating_sub(steps);
    if let Some(&long) = asked.iter().find(|&&length| length as usize > room) {
        bail!(
            "--lengths {long} and {steps} steps are {} tokens, the context holds {}",
            long as usize + steps,
            plan.context
        );
    }
    if !asked.is_empty() {
        return Ok(asked.iter().map(|&length| length as usize).collect());
    }
    let (shortest, longest) = DEFAULT_LENGTHS;
    if room < shortest {
        bail!(
            "the context of {} tokens has no room for a prompt of {shortest} and {steps} steps; --lengths takes shorter ones",
            plan.context
        );
    }
    Ok(std::iter::successors(Some(shortest), |length| Some(length * 2))
        .take_while(|&l| l <= longest.min(room))
        .collect())
}

/// Says how long the next length will take if that is over a minute; from what the last one took.
fn announce(last: &Row, length: usize, settings: &Settings) {
    let pass = length as f64 / last.figures.prefill_tokens_per_second
        + settings.steps as f64 / last.figures.decode_tokens_per_second;
    let minutes = pass * (settings.repeats + 1) as f64 / 60.0;
    if minutes > 1.0 {
        tell(format_args!("{length} tokens: about {minutes:.0} min"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: MemoryPlan =
        MemoryPlan { context: 4096, parallel: 1, weights: 0, workspace: 0, state: 0, kv_per_token: 0, cache: 0 };

    #[test]
    fn lengths_are_those_that_fit() {
        let with = |context| MemoryPlan { context, ..PLAN };
        assert_eq!(lengths(&[], 64, &PLAN).unwrap(), [256, 512, 1024, 2048]);
        assert_eq!(lengths(&[], 64, &with(4096 + 64)).unwrap(), [256, 512, 1024, 2048, 4096]);
        assert_eq!(lengths(&[], 64, &with(1 << 18)).unwrap().last(), Some(&131_072));
        assert_eq!(lengths(&[4032, 1], 64, &PLAN).unwrap(), [4032, 1]);
        assert!(lengths(&[4033], 64, &PLAN).unwrap_err().to_string().contains("4097 tokens, the context holds 4096"));
        assert!(lengths(&[], 64, &with(319)).is_err());
        assert!(lengths(&[], 64, &with(10)).is_err());
    }
}

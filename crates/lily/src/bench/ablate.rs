//! `lily bench --ablate`: what each idea of the kernels and plans brings on this GPU. One is left out at a time, measured in turn
//! with the whole, in one process over one copy of the weights.
//!
//! The whole is what every GPU runs, SIMD-group tiles; what a Hopper GPU's own kernels bring beyond it is a row of its own.

use std::time::Instant;

use anyhow::{Result, bail};
use clap::ValueEnum;
use lily_backend::Backend;
use lily_checkpoint::Checkpoint;
use lily_gpu::ablate::Ablation;
use lily_gpu::device::{Device as _, Tiles};

use super::measure::{draw, prompt, read, step};
use super::report::median;
use super::vocabulary;
use crate::cli::BenchArgs;
use crate::device::{self, Device};
use crate::load::open_checkpoint;

/// The lengths that are measured unless others are asked for.
const LENGTHS: [usize; 3] = [512, 2048, 32_768];

/// Pages for what a restored sequence appends.
const SPARE_PAGES: usize = 64;

/// What can be left out, as `--ablate` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Idea {
    /// Weights become halves within a product's tiles; without, they are written to memory as halves first.
    Dequantisation,
    /// The GPU sorts rows by expert; without, the CPU does.
    Routing,
    /// Tiles of 32 and 64 rows; without, all have 16.
    Tiles,
    /// DeltaNet's scan keeps its state in registers; without, in memory.
    Scan,
    /// Decode attention reads keys and values once for all query heads; without, once for each.
    Packing,
    /// Decode attention takes the context in blocks of 256 tokens; without, its plan's room for one in at most 64 parts.
    Blocks,
    /// Dispatches run side by side where they may; without, one after another.
    Concurrency,
    /// Chains of operations of a decode step are one kernel; without, several.
    Fusion,
    /// The kernels of Hopper's warpgroups, which the whole here lacks.
    Warpgroups,
}

impl Idea {
    /// `None` for what is measured the other way round.
    const fn ablation(self) -> Option<Ablation> {
        Some(match self {
            Self::Dequantisation => Ablation::DequantisedFirst,
            Self::Routing => Ablation::RoutingByCpu,
            Self::Tiles => Ablation::SmallTiles,
            Self::Scan => Ablation::StateInMemory,
            Self::Packing => Ablation::HeadsApart,
            Self::Blocks => Ablation::FixedParts(64),
            Self::Concurrency => Ablation::Serial,
            Self::Fusion => Ablation::SingleKernels,
            Self::Warpgroups => return None,
        })
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Dequantisation => "dequantisation in the tile",
            Self::Routing => "routing on the GPU",
            Self::Tiles => "tiles of 32 and 64 rows",
            Self::Scan => "scan state in registers",
            Self::Packing => "query heads packed",
            Self::Blocks => "blocks of 256 tokens",
            Self::Concurrency => "concurrent plan",
            Self::Fusion => "fused chains",
            Self::Warpgroups => "warpgroup kernels",
        }
    }
}

/// How to measure.
struct Contract {
    lengths: Vec<usize>,
    steps: usize,
    repeats: usize,
    chunk: usize,
    vocabulary: usize,
}

/// Tokens a second at one length: of the whole, and of each that was measured beside it.
struct Rates {
    length: usize,
    prefill: Vec<Option<f64>>,
    decode: Vec<Option<f64>>,
}

/// Measures and prints.
pub(crate) fn ablate(args: &BenchArgs, ideas: &[Idea]) -> Result<()> {
    let checkpoint = open_checkpoint(&args.model)?;
    if args.model.device.resolve()? == Device::Cpu {
        bail!("--ablate leaves out ideas of the GPU's kernels and plans: it needs --device cuda or --device metal");
    }
    let vocabulary = vocabulary(&checkpoint)?;
    let lengths = args.lengths.iter().map(|&length| length as usize).collect::<Vec<_>>();
    let lengths = if lengths.is_empty() { LENGTHS.to_vec() } else { lengths };
    let (steps, repeats) = (args.steps as usize, args.repeats as usize);
    let longest = lengths.iter().max().copied().unwrap_or_default();
    let options = lily_gpu::Options { spare_pages: SPARE_PAGES, ..lily_gpu::Options::new(longest + steps + 1, 2) };
    let contract = Contract { lengths, steps, repeats, chunk: options.prefill_rows, vocabulary };
    let ideas = if ideas.is_empty() { Idea::value_variants() } else { ideas };

    let ablated: Vec<Idea> = ideas.iter().copied().filter(|idea| idea.ablation().is_some()).collect();
    let mut sides = vec![None];
    sides.extend(ablated.iter().map(|idea| idea.ablation()));
    let warpgroups = ideas.contains(&Idea::Warpgroups);
    let mut gpu = device::ablated(&checkpoint, &options)?;
    println!("{}, {}", checkpoint.name(), gpu.description().name);
    println!(
        "prompt in chunks of {}, {steps} steps, medians of {repeats} after a warm-up, tokens a second\n",
        contract.chunk
    );
    println!("| without | tokens | prefill | the idea brings | decode | the idea brings |");
    println!("| --- | --- | --- | --- | --- | --- |");
    let mut wholes = Vec::new();
    for &length in &contract.lengths {
        let rates = measure(&mut gpu, &contract, length, &sides, warpgroups, |gpu, side| gpu.device().leave_out(side))?;
        for (index, name) in std::iter::once("nothing").chain(ablated.iter().map(|idea| idea.name())).enumerate() {
            println!("{}", row(name, &rates, index));
        }
        wholes.push(rates);
    }
    let tiles = gpu.device().inner().tiles();
    drop(gpu);
    if warpgroups && tiles == Tiles::Warpgroup {
        with_warpgroups(&checkpoint, &options, &contract, &wholes)?;
    }
    Ok(())
}

/// The rows of the device's own kernels; what they bring is beyond the whole.
fn with_warpgroups(
    checkpoint: &Checkpoint,
    options: &lily_gpu::Options,
    contract: &Contract,
    wholes: &[Rates],
) -> Result<()> {
    let mut gpu = device::backend(checkpoint, options)?;
    for whole in wholes {
        let with = measure(&mut gpu, contract, whole.length, &[None], true, |_, _| ())?;
        let (of_whole, of_with) = (whole.prefill[0], with.prefill[0]);
        println!(
            "| nothing, {} added | {} | {} | {} | | |",
            Idea::Warpgroups.name(),
            whole.length,
            rate(of_with),
            brings(of_with, of_whole)
        );
    }
    Ok(())
}

fn row(name: &str, rates: &Rates, index: usize) -> String {
    let cells = |rates: &[Option<f64>]| match index {
        0 => format!("{} |", rate(rates[0])),
        _ => format!("{} | {}", rate(rates[index]), brings(rates[0], rates[index])),
    };
    format!("| {name} | {} | {} | {} |", rates.length, cells(&rates.prefill), cells(&rates.decode))
}

fn rate(rate: Option<f64>) -> String {
    rate.map_or_else(String::new, |rate| if rate < 1000.0 { format!("{rate:.1}") } else { format!("{rate:.0}") })
}

/// How much faster it is with than without, in percent.
fn brings(with: Option<f64>, without: Option<f64>) -> String {
    with.zip(without).map_or_else(String::new, |(with, without)| format!("{:+.1} %", 100.0 * (with / without - 1.0)))
}

/// Measures the sides in turn, each as often as the contract has it, after a warm-up. `prefill` says that prompts are to be
/// measured even if no side changes how they are read.
fn measure<B: Backend>(
    backend: &mut B,
    contract: &Contract,
    length: usize,
    sides: &[Option<Ablation>],
    prefill: bool,
    choose: impl Fn(&B, Option<Ablation>),
) -> Result<Rates> {
    let measured = |changes: fn(Ablation) -> bool, always: bool| {
        let any = always || sides.iter().flatten().any(|&side| changes(side));
        sides.iter().map(|side| side.map_or(any, changes)).collect::<Vec<_>>()
    };
    let in_prefill = measured(Ablation::changes_prefill, prefill);
    let in_decode = measured(Ablation::changes_decode, false);
    let tokens = prompt(length, contract.vocabulary);
    let draw = |counter| draw(contract.vocabulary, counter);
    let mut prefills = vec![Vec::new(); sides.len()];
    for repeat in 0..=contract.repeats {
        for (index, &side) in sides.iter().enumerate().filter(|(index, _)| in_prefill[*index]) {
            choose(backend, side);
            let mut state = backend.create()?;
            let start = Instant::now();
            read(backend, contract.chunk, &mut state, &tokens, draw(0))?;
            if repeat > 0 {
                prefills[index].push(length as f64 / start.elapsed().as_secs_f64());
            }
        }
    }
    choose(backend, None);
    let mut decodes = vec![Vec::new(); sides.len()];
    if in_decode.contains(&true) {
        let mut state = backend.create()?;
        read(backend, contract.chunk, &mut state, &tokens, draw(0))?;
        let snapshot = backend.snapshot(&state)?;
        drop(state);
        for repeat in 0..=contract.repeats {
            for (index, &side) in sides.iter().enumerate().filter(|(index, _)| in_decode[*index]) {
                choose(backend, side);
                let mut state = backend.restore(&snapshot)?;
                let mut token = step(backend, &mut state, &tokens[..1], draw(1))?;
                let start = Instant::now();
                for counter in 2..=contract.steps {
                    token = step(backend, &mut state, &[token], draw(counter))?;
                }
                if repeat > 0 {
                    decodes[index].push((contract.steps - 1) as f64 / start.elapsed().as_secs_f64());
                }
            }
        }
        choose(backend, None);
    }
    let medians = |all: &[Vec<f64>]| all.iter().map(|rates| (!rates.is_empty()).then(|| median(rates))).collect();
    Ok(Rates { length, prefill: medians(&prefills), decode: medians(&decodes) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_compares_with_the_whole() {
        let rates = Rates {
            length: 512,
            prefill: vec![Some(1500.0), Some(1000.0), None],
            decode: vec![Some(90.0), None, Some(100.0)],
        };
        assert_eq!(row("nothing", &rates, 0), "| nothing | 512 | 1500 | | 90.0 | |");
        assert_eq!(row("a", &rates, 1), "| a | 512 | 1000 | +50.0 % |  |  |");
        assert_eq!(row("b", &rates, 2), "| b | 512 |  |  | 100.0 | -10.0 % |");
    }
}

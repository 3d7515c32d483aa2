//! The arguments, as clap reads them.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};

use crate::device::DeviceChoice;
use crate::launch::LaunchArgs;
use crate::preset::Preset;
use crate::pull::PullArgs;
use crate::settings::AccessArgs;

/// Serve Qwen3.6-35B-A3B on your own machine.
#[derive(Debug, Parser)]
#[command(name = "lily", version, about)]
#[command(
    after_help = "Begin with `lily serve`, then open http://127.0.0.1:8080. `lily COMMAND --help` lists a command's flags."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve the model over an OpenAI-compatible API.
    Serve(ServeArgs),
    /// Talk to the model in the terminal.
    Chat(ChatArgs),
    /// Answer one prompt and end.
    Run(RunArgs),
    /// Say what a checkpoint is and what memory it needs.
    Inspect(InspectArgs),
    /// Measure the model's quality: perplexity of a text, accuracy on tasks.
    Eval(EvalArgs),
    /// Measure the speed: prefill and decode by length of the prompt.
    Bench(BenchArgs),
    /// One length of `bench`, in a process of its own.
    #[command(hide = true)]
    BenchLength(BenchLengthArgs),
    /// Write a checkpoint with random weights, to measure with.
    Synth(SynthArgs),
    /// Check the machine, the checkpoint and the settings: what would run, and how fast.
    Doctor(DoctorArgs),
    /// Download the 35B (20 GB) to where `serve` finds it; goes on from what is there.
    Pull(PullArgs),
    /// Start a coding agent on a running server, or print how.
    Launch(LaunchArgs),
}

/// Which model, and how much of the machine it may take.
#[derive(Args, Clone, Debug)]
pub(crate) struct ModelArgs {
    /// Checkpoint directory [default: $LILY_MODEL, else a downloaded 35B in the Hugging Face cache, else the small
    /// embedded one].
    #[arg(long, value_name = "DIR")]
    pub(crate) model: Option<PathBuf>,
    /// Tokens a sequence may hold, prompt and reply together [default: the model's, or what memory allows].
    #[arg(long, value_name = "TOKENS", value_parser = number(1, u32::MAX))]
    pub(crate) max_context: Option<u32>,
    /// Threads to compute with; 0 is all cores.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = threads)]
    pub(crate) threads: usize,
    /// What runs the model.
    #[arg(long, value_name = "NAME", value_enum, default_value_t)]
    pub(crate) device: DeviceChoice,
}

/// `lily serve`
#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Address or name to bind. Anything but loopback lets others in: give it an --api-key.
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port to bind; 0 takes a free one and prints it.
    #[arg(long, default_value_t = 8080, value_parser = number(0, u16::MAX))]
    pub(crate) port: u16,
    /// Requests answered at once; further ones wait.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = parallel)]
    pub(crate) parallel: usize,
    /// Memory for what has been read of prompts, so that it is not read again: 4G, 512M; 0 is none [default: a share of
    /// what memory is left].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) cache: Option<u64>,
    /// Keep it on disk too, so that it outlives the server; the directory is made if it is not there.
    #[arg(long, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,
    /// Bytes that --cache-dir may take.
    #[arg(long, value_name = "SIZE", default_value = "20G", value_parser = size, requires = "cache_dir")]
    pub(crate) cache_disk: u64,
    /// Tokens of a prompt between two places that later ones can go on from, besides where messages begin: fewer cost memory,
    /// more leave more to read again. No step reads past one [default: 1024; on a GPU the most that a step reads: 2048 with
    /// Metal, 4096 with CUDA].
    #[arg(long, value_name = "TOKENS", value_parser = number(256_u32, 1 << 20))]
    pub(crate) cache_interval: Option<u32>,
    /// What applies where a request is silent [default: the checkpoint's generation_config.json, and thinking].
    #[arg(long, value_name = "NAME", value_enum)]
    pub(crate) preset: Option<Preset>,
    /// The largest request body taken, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 32, value_parser = number(1_u32, 1024))]
    pub(crate) max_body: u32,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
}

/// How to draw tokens; what is not given comes from the checkpoint's generation_config.json.
#[derive(Args, Clone, Debug)]
pub(crate) struct SamplingArgs {
    /// From 0, which always takes the most probable token, to 2.
    #[arg(long, value_parser = temperature)]
    pub(crate) temperature: Option<f32>,
    /// Repeats the same draws.
    #[arg(long, value_parser = number(0, u64::MAX))]
    pub(crate) seed: Option<u64>,
    /// The longest reply, in tokens [default: what the context leaves].
    #[arg(long, value_name = "TOKENS", value_parser = number(1, u32::MAX))]
    pub(crate) max_tokens: Option<u32>,
    /// Answer without thinking first.
    #[arg(long)]
    pub(crate) no_think: bool,
    /// Text that stands before the conversation.
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
}

/// `lily chat`
#[derive(Args, Debug)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

/// `lily run`
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// What to answer, words joined by spaces; what is piped in follows it.
    pub(crate) prompt: Vec<String>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

/// `lily inspect`
#[derive(Args, Debug)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Sequences at once, for the memory plan.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = parallel)]
    pub(crate) parallel: usize,
    #[command(flatten)]
    pub(crate) plan: PlanArgs,
}

/// What `lily inspect --plan` tells about.
#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    /// Tell instead what a step takes on a GPU: dispatches, stages, bytes. Needs neither a GPU nor weights.
    #[arg(long)]
    pub(crate) plan: bool,
    /// The model's sizes, for which no weights are needed: qwen3.6-35b-a3b, or a config.json of that architecture [default:
    /// those of --model].
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Tokens that each sequence holds after the step.
    #[arg(long, value_name = "TOKENS", default_value_t = 4096, requires = "plan", value_parser = number(1_u32, 1 << 20))]
    pub(crate) context: u32,
    /// Sequences of a decode step, up to 8.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "plan", value_parser = number(1_u32, 8))]
    pub(crate) batch: u32,
    /// A prefill step of so many tokens of a prompt instead of a decode step.
    #[arg(long, value_name = "TOKENS", requires = "plan", conflicts_with = "batch", value_parser = number(1_u32, 1 << 14))]
    pub(crate) prefill: Option<u32>,
    /// What the GPU makes products of: simdgroup matrices as M1 to M4, tensor operations as M5, or warpgroups as NVIDIA's Hopper.
    #[arg(long, value_enum, default_value_t, requires = "plan")]
    pub(crate) tiles: TilesChoice,
    /// Draw the step in Graphviz' language: a rank a stage, an arrow for what must wait.
    #[arg(long, value_name = "FILE", requires = "plan")]
    pub(crate) dot: Option<PathBuf>,
}

/// As `--tiles` has it.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum TilesChoice {
    #[default]
    Simdgroup,
    Tensor,
    Warpgroup,
}

/// `lily eval`
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("what").args(["perplexity", "tasks"]).required(true).multiple(true)))]
pub(crate) struct EvalArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Perplexity of a text file, in windows from an empty state; the first token of each is not scored.
    #[arg(long, value_name = "FILE")]
    pub(crate) perplexity: Option<PathBuf>,
    /// Tokens a window.
    #[arg(long, value_name = "TOKENS", default_value_t = 2048, value_parser = number(2, u32::MAX))]
    pub(crate) window: u32,
    /// Accuracy on task cases, as models/tiny/eval/cases.jsonl has them.
    #[arg(long, value_name = "FILE")]
    pub(crate) tasks: Option<PathBuf>,
    /// Cases answered at once.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = parallel)]
    pub(crate) parallel: usize,
}

/// `lily doctor`
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
    /// Have the model answer what is known of it, and say where it departs.
    #[arg(long)]
    pub(crate) self_check: bool,
    /// Print JSON instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `lily bench`
#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Tokens of the prompts, as 128,512 [default: 256, 512, ... as far as context and memory allow, up to 131072].
    #[arg(long, value_name = "TOKENS,...", value_delimiter = ',', value_parser = number(1, u32::MAX))]
    pub(crate) lengths: Vec<u32>,
    /// Tokens decoded after each prompt.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = number(1, u32::MAX))]
    pub(crate) steps: u32,
    /// Times each length is measured, after a warm-up; the medians count.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = number(1, u32::MAX))]
    pub(crate) repeats: u32,
    /// Measure with these instructions instead of the fastest this machine has: scalar, avx2, neon, ...
    #[arg(long, value_name = "NAME")]
    pub(crate) simd: Option<lily_cpu::Simd>,
    /// Write everything as JSON; - is standard output, as for --csv.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the table as CSV.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Draw tokens a second against the length, as SVG.
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    /// Leave out the GPU's ideas one at a time, or only these, and print what each brings.
    #[cfg(feature = "ablate")]
    #[arg(long, value_name = "IDEA,...", value_enum, num_args = 0.., require_equals = true, value_delimiter = ',')]
    pub(crate) ablate: Option<Vec<crate::bench::Idea>>,
}

/// `lily bench-length`: what `lily bench` starts itself with.
#[derive(Args, Debug)]
pub(crate) struct BenchLengthArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) length: u64,
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) steps: u64,
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) repeats: u64,
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) chunk: u64,
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) vocabulary: u64,
    #[arg(long)]
    pub(crate) simd: lily_cpu::Simd,
}

/// No machine has more cores; far more threads than cores would only take its memory.
const MOST_THREADS: usize = 1024;

/// A whole number from `least` to `most`, both included. clap's own parsers tell of digits, not of what they want.
pub(crate) fn number<T>(least: T, most: T) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: Copy + Display + FromStr + PartialOrd + Send + Sync + 'static,
{
    move |text| match text.parse() {
        Ok(number) if least <= number && number <= most => Ok(number),
        _ => Err(format!("expected a whole number from {least} to {most}")),
    }
}

fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if count <= MOST_THREADS => Ok(count),
        _ => Err(format!("expected a number up to {MOST_THREADS}")),
    }
}

/// Bytes, or with a letter 1024 of the next smaller unit: 4G, 512M, 100K.
fn size(text: &str) -> Result<u64, String> {
    let (number, shift) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 20),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 30),
        Some(b'T' | b't') => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    let bytes = number.parse().ok().and_then(|number: u64| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| "expected bytes, or a number with K, M, G or T, as 4G".into())
}

/// As the API has it.
fn temperature(text: &str) -> Result<f32, String> {
    match text.parse() {
        Ok(temperature) if (0.0..=2.0).contains(&temperature) => Ok(temperature),
        _ => Err("expected a number from 0 to 2".into()),
    }
}

/// `lily synth`
#[derive(Args, Debug)]
pub(crate) struct SynthArgs {
    /// The directory to make.
    pub(crate) dir: PathBuf,
    /// The model's sizes: qwen3.6-35b-a3b (19.5 GB), or a config.json of that architecture.
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) config: PathBuf,
    /// Another seed gives other weights; the same seed gives the same bytes on every machine.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = number(0, u64::MAX))]
    pub(crate) seed: u64,
}

/// More sequences than this at once serve nobody on one machine, and their states would not fit.
const MOST_PARALLEL: usize = 64;

fn parallel(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if (1..=MOST_PARALLEL).contains(&count) => Ok(count),
        _ => Err(format!("expected a number from 1 to {MOST_PARALLEL}")),
    }
}

#[cfg(test)]
mod tests {
    use super::{Cli, size};
    use clap::CommandFactory;

    #[test]
    fn sizes_have_units() {
        let sizes = ["0", "77", "100K", "512m", "4G", "2T"].map(size);
        let bytes = [0, 77, 100 << 10, 512 << 20, 4 << 30, 2 << 40];
        assert_eq!(sizes, bytes.map(Ok));
        for bad in ["", "G", "4GB", "-1", "1.5G", "99999999999T", "é"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn arguments_are_consistent() {
        Cli::command().debug_assert();
    }
}

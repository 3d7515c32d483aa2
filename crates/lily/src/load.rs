//! From arguments to a running engine: find the checkpoint, check that it fits, start the backend.

use std::io::{IsTerminal, stderr};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use lily_backend::{MemoryPlan, Sampling};
use lily_chat::{ChatTemplate, Tokenizer};
use lily_checkpoint::{CHECKPOINT, Checkpoint, Config, Environment, Error, GenerationConfig, Located, Source, locate};
use lily_cpu::CpuBackend;
use lily_engine::{CacheOptions, Engine, Penalties};

use crate::cache::{self, CacheSize};
use crate::cli::ModelArgs;
use crate::device::{self, Device, Gpu};
use crate::terminal::tell;

mod room;

pub(crate) use room::sequences;

/// The share of the machine's memory that a plan may take; the rest is for the system and for what we misjudge.
const SHARE_OF_MEMORY: f64 = 0.95;

/// A checkpoint, ready to run.
pub(crate) struct Model {
    pub(crate) checkpoint: Arc<Checkpoint>,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) template: Arc<ChatTemplate>,
    pub(crate) plan: MemoryPlan,
    /// Where it is from.
    pub(crate) source: Source,
    pub(crate) device: Device,
    threads: usize,
}

impl Model {
    /// Opens the checkpoint that `args` mean and plans memory for `parallel` sequences.
    pub(crate) fn open(args: &ModelArgs, parallel: usize) -> Result<Self> {
        Self::open_with_cache(args, parallel, CacheSize::Off)
    }

    /// As [`Model::open`], with a prefix cache.
    pub(crate) fn open_with_cache(args: &ModelArgs, parallel: usize, cache: CacheSize) -> Result<Self> {
        let (checkpoint, source) = open(args)?;
        Self::new(checkpoint, source, args, parallel, cache)
    }

    /// As [`Model::open_with_cache`], of a checkpoint that is open.
    pub(crate) fn new(
        checkpoint: Checkpoint,
        source: Source,
        args: &ModelArgs,
        parallel: usize,
        cache: CacheSize,
    ) -> Result<Self> {
        let (tokenizer, template) = chat_side(&checkpoint)?;
        let weights = checkpoint.weights.summary().bytes();
        let config = &checkpoint.config;
        let (device, plan) = args
            .device
            .choose_to_run(config, |device| plan(config, weights, args.max_context, parallel, device, cache))?;
        Ok(Self {
            checkpoint: Arc::new(checkpoint),
            tokenizer: Arc::new(tokenizer),
            template: Arc::new(template),
            plan,
            source,
            device,
            threads: args.threads,
        })
    }

    /// The processor as a backend, for work that needs no scheduling.
    pub(crate) fn cpu(&self) -> Result<CpuBackend> {
        let options = lily_cpu::Options { threads: self.threads, max_context: self.plan.context, simd: None };
        Ok(CpuBackend::new(Arc::clone(&self.checkpoint), options)?)
    }

    /// The GPU as a backend.
    pub(crate) fn gpu(&self) -> Result<Gpu> {
        device::backend(&self.checkpoint, &self.gpu_options()?.0)
    }

    /// What the GPU is to hold, and how many bytes of it the prefix cache may count as its own.
    fn gpu_options(&self) -> Result<(lily_gpu::Options, u64)> {
        gpu_options(&self.checkpoint.config, &self.plan)
    }

    /// [`transit`] of it.
    pub(crate) fn transit(&self) -> Result<Option<u64>> {
        transit(&self.checkpoint.config, &self.plan, self.device)
    }

    /// An engine with a thread of its own.
    pub(crate) fn start(&self) -> Result<Engine> {
        self.start_with(None, None)
    }

    /// As [`Model::start`], with the prefix cache's snapshots so many tokens apart, and also on disk: in this directory, with at
    /// most so many bytes.
    pub(crate) fn start_with(&self, interval: Option<u32>, disk: Option<(PathBuf, u64)>) -> Result<Engine> {
        let cache = cache::options(&self.plan, &self.tokenizer, (&self.checkpoint, &self.source), disk)?;
        let interval = interval.map(|tokens| tokens as usize).or_else(|| self.device.cache_interval());
        let mut options = lily_engine::Options {
            parallel: self.plan.parallel,
            cache: CacheOptions { interval: interval.unwrap_or(cache.interval), ..cache },
            ..lily_engine::Options::new(self.tokenizer.vocabulary())
        };
        match self.device {
            Device::Cpu => Ok(Engine::start(self.cpu()?, options)),
            Device::Gpu { .. } => {
                let (gpu, cache_bytes) = self.gpu_options()?;
                let transit = cache::transit(cache_bytes, machine_memory()?);
                (options.cache.bytes, options.cache.transit) = (cache_bytes, transit);
                options.prefill_chunk = gpu.prefill_rows;
                Ok(Engine::start(self.gpu()?, options))
            }
        }
    }
}

fn gpu_options(config: &Config, plan: &MemoryPlan) -> Result<(lily_gpu::Options, u64)> {
    Ok(device::options(plan.context, plan.parallel).with_cache(config, plan.cache)?)
}

/// What of a planned prefix cache may be in this machine's memory on its way to the disk and back; `None` if all of it is there.
pub(crate) fn transit(config: &Config, plan: &MemoryPlan, device: Device) -> Result<Option<u64>> {
    match device {
        Device::Cpu => Ok(None),
        Device::Gpu { .. } => Ok(Some(cache::transit(gpu_options(config, plan)?.1, machine_memory()?))),
    }
}

/// What turns the checkpoint's chats into tokens.
pub(crate) fn chat_side(checkpoint: &Checkpoint) -> Result<(Tokenizer, ChatTemplate)> {
    let files = &checkpoint.files;
    let tokenizer = Tokenizer::from_files(&files.tokenizer, files.tokenizer_config.as_deref())
        .with_context(|| format!("{}: the tokenizer cannot be used", checkpoint.name()))?;
    let rows = checkpoint.config.vocab_size;
    if tokenizer.vocabulary() > rows {
        bail!(
            "{}: tokenizer.json has ids up to {}, the embedding only {rows} rows: do they belong together?",
            checkpoint.name(),
            tokenizer.vocabulary() - 1
        );
    }
    let Some(source) = &files.chat_template else {
        bail!(
            "{}: no chat template (neither chat_template.jinja nor one in tokenizer_config.json): is the download complete?",
            checkpoint.name()
        );
    };
    let template = files
        .tokenizer_config
        .iter()
        .try_fold(ChatTemplate::from_source(source)?, |template, config| template.with_special_tokens(config))
        .with_context(|| format!("{}: the chat template cannot be used", checkpoint.name()))?;
    Ok((tokenizer, template))
}

/// Opens the checkpoint that `args` mean, and says on a terminal if it is only the embedded one.
pub(crate) fn open_checkpoint(args: &ModelArgs) -> Result<Checkpoint> {
    Ok(open(args)?.0)
}

/// As [`open_checkpoint`]; says also where it is from.
fn open(args: &ModelArgs) -> Result<(Checkpoint, Source)> {
    let found = locate(args.model.as_deref(), &Environment::of_process());
    for note in &found.notes {
        tell(format_args!("note: {note}"));
    }
    if found.source == Source::Embedded && stderr().is_terminal() {
        tell_embedded();
    }
    if let Some(warning) = too_many_threads(args.threads) {
        tell(format_args!("warning: {warning}"));
    }
    Ok((open_located(&found)?, found.source))
}

/// Opens what was located.
pub(crate) fn open_located(found: &Located) -> Result<Checkpoint> {
    found.source.open().map_err(|error| match &found.source {
        Source::Directory(dir) if found.by_variable => {
            explain(error, dir).context("the checkpoint that LILY_MODEL names")
        }
        Source::Directory(dir) => explain(error, dir),
        Source::Embedded => error.into(),
    })
}

/// What to say if `--threads` is more than there are cores.
pub(crate) fn too_many_threads(threads: usize) -> Option<String> {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    (threads > cores)
        .then(|| format!("--threads {threads} is more than the {cores} cores there are: they will wait for each other"))
}

/// Says that the model is only the embedded one, and how to get the real one.
pub(crate) fn tell_embedded() {
    tell(format_args!(
        "This is the embedded Lily Tiny, a test model of 26 M parameters that knows simple chat, sums and tools.\n\
         For the real one: lily pull (20 GB), then start again; or --model DIR."
    ));
}

/// Adds to an error what only the caller knows: which directory it is about, and what was meant by a path that is none.
fn explain(error: Error, dir: &Path) -> anyhow::Error {
    match error {
        Error::NotFound { path } if is_repository_id(&path) => {
            let id = path.display();
            let how = if path == Path::new(CHECKPOINT) {
                "lily pull, then start without --model".to_owned()
            } else {
                format!("hf download {id}, then give --model the directory that it prints")
            };
            anyhow!("{id} is no directory here, but looks like a repository id: {how}")
        }
        // These name their file without the way to it; the others have the whole path.
        Error::Config(_) | Error::Layout(_) | Error::Corrupt { .. } | Error::Tensor(_) => {
            anyhow::Error::new(error).context(dir.display().to_string())
        }
        other => other.into(),
    }
}

/// `owner/name`, as Hugging Face spells it.
fn is_repository_id(path: &Path) -> bool {
    let is_name = |part: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        part.starts_with(|c: char| c.is_ascii_alphanumeric()) && part.chars().all(plain)
    };
    path.to_str().and_then(|text| text.split_once('/')).is_some_and(|(owner, name)| is_name(owner) && is_name(name))
}

/// The memory plan for a model with so many bytes of weights and the context asked for, or the longest that fits when none
/// is, with a prefix cache.
pub(crate) fn plan(
    config: &Config,
    weights: u64,
    max_context: Option<u32>,
    parallel: usize,
    device: Device,
    cache: CacheSize,
) -> Result<MemoryPlan> {
    let longest = config.max_position_embeddings;
    if let Some(asked) = max_context
        && asked as usize > longest
    {
        bail!("--max-context {asked} is more than the {longest} tokens the model was made for");
    }
    let asked = max_context.map_or(longest, |context| context as usize);
    let (plan, memory, available) = match device {
        Device::Cpu => {
            let memory = machine_memory()?;
            let available = (memory as f64 * SHARE_OF_MEMORY) as u64;
            (CpuBackend::plan(config, weights, asked, parallel), memory, available)
        }
        Device::Gpu { bytes, tiles } => {
            let options = lily_gpu::Options { tiles, ..device::options(asked, parallel) };
            (Gpu::plan(config, weights, &options)?, bytes, bytes)
        }
    };
    let plan = MemoryPlan { cache: cache.fixed(), ..plan };
    if plan.total() <= available
        && (max_context.is_some() || cache.largest(&plan, available).is_none_or(|largest| largest.context == asked))
    {
        return Ok(cache.beside(plan, available));
    }
    let largest = match max_context {
        None => cache.largest(&plan, available),
        Some(_) => plan.largest_context(asked, available),
    };
    match largest {
        Some(smaller) if max_context.is_none() => Ok(smaller),
        _ => Err(room::refusal(&plan, max_context.is_some(), device, (memory, available))),
    }
}

/// Bytes of memory that this process may have: the machine's, or its control group's if that is less.
pub(crate) fn machine_memory() -> Result<u64> {
    let mut system = sysinfo::System::new().context("this machine's memory cannot be told")?;
    system.refresh_memory();
    let limit = system.cgroup_limits().map_or(u64::MAX, |limits| limits.total_memory);
    Ok(system.total_memory().min(limit))
}

/// How the checkpoint wants its tokens drawn.
pub(crate) fn sampling(generation: &GenerationConfig) -> Sampling {
    if !generation.do_sample {
        return Sampling::GREEDY;
    }
    Sampling {
        temperature: generation.temperature.unwrap_or(1.0),
        top_k: generation.top_k.unwrap_or(0) as usize,
        top_p: generation.top_p.unwrap_or(1.0),
        min_p: generation.min_p.unwrap_or(0.0),
    }
}

/// What the checkpoint wants discouraged.
pub(crate) fn penalties(generation: &GenerationConfig) -> Penalties {
    Penalties { repetition: generation.repetition_penalty.unwrap_or(1.0), ..Penalties::default() }
}

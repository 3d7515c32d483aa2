//! `lily synth`: writes a checkpoint with random weights, for measurements where the real one is not.

use std::fs;
use std::io::{ErrorKind, Read, Write, stdout};
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use indicatif::{DecimalBytes, ProgressBar, ProgressStyle};
use lily_chat::tiktoken;
use lily_checkpoint::{Checkpoint, Error, Synthetic};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::cli::SynthArgs;

/// What `--config` calls the 35B.
const FULL_SIZE: &str = "qwen3.6-35b-a3b";

/// Writes beside the directory and renames at the end, so that it is there whole or not at all.
pub(crate) fn synth(args: &SynthArgs) -> Result<()> {
    let target = target(&args.dir)?;
    let synthetic = layout(&args.config, args.seed)?;
    let chat_files = chat_files(synthetic.config().vocab_size)?;
    let bytes = chat_files.iter().fold(synthetic.bytes(), |sum, (_, content)| sum.saturating_add(content.len() as u64));
    check_room(&target.parent, bytes)?;

    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let started = Instant::now();
    // Removed when it goes out of scope, whatever the reason.
    let partial = tempfile::Builder::new().prefix(&target.partial).rand_bytes(0).tempdir_in(&target.parent)?;
    let bar = ProgressBar::new(bytes).with_style(ProgressStyle::with_template(
        "{bar:30} {decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} left",
    )?);
    let progress = |bytes| {
        bar.inc(bytes);
        if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let written = synthetic.write(partial.path(), progress);
    bar.finish_and_clear();
    match written {
        Err(Error::Interrupted) => {
            let path = partial.path().to_owned();
            partial.close().with_context(|| format!("interrupted, and {} cannot be removed", path.display()))?;
            bail!("interrupted, and what was written is removed");
        }
        written => written?,
    }
    for (name, content) in chat_files {
        let path = partial.path().join(name);
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
    }
    fs::rename(partial.path(), &target.dir)
        .with_context(|| format!("cannot rename {} to {}", partial.path().display(), target.dir.display()))?;
    let _renamed = partial.keep();
    let seconds = started.elapsed().as_secs_f64();
    writeln!(stdout(), "{}: {} in {seconds:.1} s", target.dir.display(), DecimalBytes(bytes))?;
    Ok(())
}

/// Where the checkpoint goes.
struct Target {
    dir: PathBuf,
    parent: PathBuf,
    /// The name beside `dir` of what is not whole yet.
    partial: String,
}

/// Checks that the directory can be made: nothing is there yet, or an empty directory.
fn target(asked: &Path) -> Result<Target> {
    let shown = asked.display();
    let dir = match fs::read_dir(asked) {
        Ok(mut entries) => {
            if entries.next().is_some() {
                bail!("{shown} exists and is not empty: give the name of a new directory");
            }
            // Its own name, should it be `.` or a link.
            asked.canonicalize()?
        }
        Err(_) if asked.is_symlink() => bail!("{shown} is a link to nothing: give the name of a new directory"),
        Err(error) if error.kind() == ErrorKind::NotFound => asked.to_owned(),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            bail!("{shown} exists and is not a directory: give the name of a new one")
        }
        Err(error) => return Err(error).with_context(|| format!("cannot look into {shown}")),
    };
    let (Some(name), Some(parent)) = (dir.file_name(), dir.parent()) else {
        bail!("{shown} is not the name of a new directory");
    };
    let partial = format!("{}.partial", name.to_string_lossy());
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent }.to_owned();
    if !parent.is_dir() {
        bail!("{} is not a directory: make it first", parent.display());
    }
    if dir.is_dir() && dir.metadata()?.dev() != parent.metadata()?.dev() {
        bail!("{shown} is a file system of its own, which cannot be replaced: give the name of a new directory in it");
    }
    let left_over = parent.join(&partial);
    if left_over.exists() {
        bail!("{} exists: another run is at work, or was killed; in that case remove it", left_over.display());
    }
    Ok(Target { dir: parent.join(name), parent, partial })
}

fn layout(config: &Path, seed: u64) -> Result<Synthetic> {
    if config == Path::new(FULL_SIZE) {
        return Ok(Synthetic::new(include_bytes!("../../../models/qwen3.6-35b-a3b/config.json"), seed)?);
    }
    let json = fs::read(config)
        .with_context(|| format!("cannot read {}: give {FULL_SIZE} or the path of a config.json", config.display()))?;
    Synthetic::new(&json, seed).with_context(|| format!("{}", config.display()))
}

/// Tokenizer, template and sampling defaults: the 35B's if the model has rows for its vocabulary, else Lily Tiny's.
fn chat_files(vocab_size: usize) -> Result<Vec<(&'static str, Vec<u8>)>> {
    const FULL_SIZE_VOCABULARY: usize = 248_077;
    const TINY_VOCABULARY: usize = 6113;
    let (tokenizer, tokenizer_config, template, generation): (_, _, _, &[u8]) = if vocab_size >= FULL_SIZE_VOCABULARY {
        let compressed: &[u8] = include_bytes!("../../../models/qwen3.6-35b-a3b/ranks.tiktoken.zst");
        let mut ranks = String::new();
        ruzstd::decoding::StreamingDecoder::new(compressed)?.read_to_string(&mut ranks)?;
        let ranks = tiktoken::parse_ranks(&ranks)?;
        (
            tiktoken::tokenizer_json_from_ranks(&ranks)?.to_string().into_bytes(),
            format!("{:#}\n", tiktoken::tokenizer_config_json(ranks.len())).into_bytes(),
            include_bytes!("../../../models/qwen3.6-35b-a3b/chat_template.jinja").to_vec(),
            include_bytes!("../../../models/qwen3.6-35b-a3b/generation_config.json"),
        )
    } else if vocab_size >= TINY_VOCABULARY {
        let files = Checkpoint::embedded()?.files;
        (
            files.tokenizer,
            files.tokenizer_config.unwrap_or_default(),
            files.chat_template.unwrap_or_default().into_bytes(),
            include_bytes!("../../../models/tiny/generation_config.json"),
        )
    } else {
        bail!("text_config.vocab_size is {vocab_size}: Lily's smallest tokenizer needs {TINY_VOCABULARY}");
    };
    Ok(vec![
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", tokenizer_config),
        ("chat_template.jinja", template),
        ("generation_config.json", generation.to_vec()),
    ])
}

fn check_room(dir: &Path, bytes: u64) -> Result<()> {
    let disk = rustix::fs::statvfs(dir).with_context(|| format!("cannot tell the free space in {}", dir.display()))?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if free < bytes {
        bail!("{} has {} free, the checkpoint needs {}", dir.display(), DecimalBytes(free), DecimalBytes(bytes));
    }
    Ok(())
}

//! `lily pull`: downloads the 35B into the Hugging Face cache, where `lily serve` finds it.
//!
//! ```text
//! hub (requests, redirects) ─► listing (files, sizes, digests) ─► transfer (parts, side by side) ─► partial (file, journal)
//!                                                                     └─► digest ─► cache (blobs, links)
//! ```
//!
//! `--check` without a hub goes from the cache alone (`without_hub`).
//!
//! The client is our own, and small. `hf-hub` (1.1, August 2026, by its source) gets a plain file in one request, begins it
//! anew when it is cut, and compares no digest; large files it gets through `hf-xet`, which mirrors need not speak, and both
//! bring an asynchronous HTTP stack and hundreds of crates.

mod cache;
mod digest;
mod hub;
mod listing;
mod partial;
mod patience;
mod transfer;
mod without_hub;

use std::fs;
use std::io::{IsTerminal, Write, stderr, stdout};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use indicatif::{DecimalBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use lily_checkpoint::{CHECKPOINT, Checkpoint, Environment, REVISION, Source, locate};

use crate::terminal::tell;
use cache::Cache;
use hub::Hub;
use listing::RemoteFile;

/// `lily pull`
#[derive(Args, Debug)]
#[command(
    after_help = "HF_HOME or HF_HUB_CACHE name the cache, HF_ENDPOINT a mirror of the hub, HF_TOKEN a token for it."
)]
pub(crate) struct PullArgs {
    /// Read what is there already, too, and download anew what is damaged; without a network say what is.
    #[arg(long)]
    check: bool,
}

/// Downloads what is not there yet, checks it, and prints the checkpoint's directory.
pub(crate) fn pull(args: &PullArgs) -> Result<()> {
    let environment = Environment::of_process();
    let hub = Hub::from_environment()?;
    let cache = Cache::of(&environment)?;
    let files = match hub.listing() {
        Ok(json) => listing::read(&hub, &json)?,
        Err(failure) if args.check && failure.may_pass() => {
            without_hub::check(&cache, &failure.message)?;
            let directory = cache.snapshot();
            Checkpoint::open(&directory).with_context(|| {
                format!("{}: what is there is as it should be, but cannot be used yet", directory.display())
            })?;
            say_what_serve_finds(&environment, &directory, "checked, and all that is needed is there");
            writeln!(stdout(), "{}", directory.display())?;
            return Ok(());
        }
        Err(failure) => return Err(failure.into()),
    };
    let _lock = cache.take()?;
    let missing = missing(&cache, &files, args.check)?;
    // What is downloaded is read; what was there before, only with `check`.
    let all_read = args.check || files.iter().all(|file| has_content(&missing, file));
    if !missing.is_empty() {
        let bytes: u64 = missing.iter().map(|file| file.size).sum();
        let there: u64 = missing.iter().map(|file| partial::bytes_there(&cache.blob(file), file.size)).sum();
        check_room(&cache, bytes - there)?;
        tell(format_args!(
            "{CHECKPOINT} at revision {}: {} in {} files to {}{}",
            &REVISION[..12],
            DecimalBytes(bytes),
            missing.len(),
            cache.entry().display(),
            if there > 0 { format!(", {} of it there already", DecimalBytes(there)) } else { String::new() }
        ));
        let bar = bar(bytes, there)?;
        let done = transfer::download(&hub, &cache, missing, &bar);
        bar.finish_and_clear();
        done.map_err(|error| anyhow!("{error:#}; what is there is kept, and the same command goes on from it"))?;
        for file in &files {
            if !cache.link_if_there(file)? {
                bail!("the hub tells of {} as of a file of another size: is HF_ENDPOINT right?", file.name);
            }
        }
    }
    let directory = cache.snapshot();
    Checkpoint::open(&directory)
        .with_context(|| format!("{}: downloaded as the hub has it, but cannot be used", directory.display()))?;
    let complete =
        if all_read { "complete and checked" } else { "complete by the files' sizes (`lily pull --check` reads them)" };
    say_what_serve_finds(&environment, &directory, complete);
    writeln!(stdout(), "{}", directory.display())?;
    Ok(())
}

/// The files that are not there, or with `check` not as they should be, one of each content; links the others where they
/// belong.
fn missing(cache: &Cache, files: &[RemoteFile], check: bool) -> Result<Vec<RemoteFile>> {
    let mut missing: Vec<RemoteFile> = Vec::new();
    for file in files {
        if has_content(&missing, file) {
            continue;
        }
        if !cache.link_if_there(file)? {
            missing.push(file.clone());
        } else if check {
            let path = cache.linked(file);
            let intact = file.digest.matches(&path).with_context(|| format!("{} cannot be read", path.display()))?;
            tell(format_args!(
                "{}: {}",
                file.name,
                if intact { "as it should be" } else { "damaged, to be downloaded anew" }
            ));
            if !intact {
                cache.remove(file)?;
                missing.push(file.clone());
            }
        }
    }
    Ok(missing)
}

/// Whether one of these has the same bytes as `file`.
fn has_content(files: &[RemoteFile], file: &RemoteFile) -> bool {
    files.iter().any(|other| other.digest == file.digest)
}

fn check_room(cache: &Cache, bytes: u64) -> Result<()> {
    let place = cache.entry();
    let disk =
        rustix::fs::statvfs(place).with_context(|| format!("cannot tell the free space in {}", place.display()))?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if free < bytes {
        bail!(
            "{} has {} free, the download needs {}: make room, or set HF_HOME to a folder on another disk",
            place.display(),
            DecimalBytes(free),
            DecimalBytes(bytes)
        );
    }
    Ok(())
}

fn bar(bytes: u64, there: u64) -> Result<ProgressBar> {
    let style = ProgressStyle::with_template(
        "{bar:30} {decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} left{msg}",
    )?;
    let target = if stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(bytes), target).with_style(style).with_position(there);
    // What was there before says nothing about the speed.
    bar.reset_eta();
    Ok(bar)
}

/// Another revision in the cache may come before this one.
fn say_what_serve_finds(environment: &Environment, directory: &Path, complete: &str) {
    let same = |other: &Path| fs::canonicalize(other).ok() == fs::canonicalize(directory).ok();
    match locate(None, environment).source {
        Source::Directory(found) if same(&found) => {
            tell(format_args!("{complete}; `lily serve` finds it"));
        }
        Source::Directory(found) => {
            let other = found.display();
            tell(format_args!("{complete}; `lily serve` takes {other} unless told: --model with the path below"));
        }
        Source::Embedded => {
            tell(format_args!("{complete}; `lily serve --model` with the path below takes it"));
        }
    }
}

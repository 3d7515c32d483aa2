//! `lily doctor`: whether `lily serve` with the same flags would run, on what, and how fast; with `--self-check`, whether
//! the model computes what it should.

mod checkpoint;
mod goldens;
mod machine;
mod port;
mod report;
mod self_check;
mod speed;

use anyhow::{Result, bail};
use serde_json::json;

use crate::cache::CacheSize;
use crate::cli::{DoctorArgs, ServeArgs};
use crate::doctor::checkpoint::Opened;
use crate::doctor::report::{Finding, Report};
use crate::load::Model;
use crate::settings;

/// Checks everything, each thing as far as what it builds on is sound, and fails if something is not.
pub(crate) fn doctor(args: &DoctorArgs) -> Result<()> {
    let mut report = Report::new(args.json);
    examine(args, &mut report)?;
    report.end()?;
    match report.failures() {
        0 => Ok(()),
        1 => bail!("one check failed"),
        several => bail!("{several} checks failed"),
    }
}

fn examine(args: &DoctorArgs, report: &mut Report) -> Result<()> {
    let serve = &args.serve;
    let model = &serve.model;
    report.check("settings", || settings(serve))?;
    let running = report.check("port", || port::look(serve))?.flatten();
    let device = report.check("device", || machine::device(model))?;
    report.check("disk", || machine::disk(serve))?;
    let Some(opened) = report.check("checkpoint", || checkpoint::open(model))? else { return Ok(()) };
    let Opened { checkpoint, source } = opened;
    let chat = report.check("chat", || checkpoint::chat(&checkpoint))?;
    let Some(device) = device else { return Ok(()) };
    let cache = serve.cache.map_or(CacheSize::Share, CacheSize::Bytes);
    let Some(plan) = report.check("memory", || machine::memory(&checkpoint, serve, device, cache, running.as_ref()))?
    else {
        return Ok(());
    };
    report.check("speed", || speed::estimate(&checkpoint, &plan, device, model.threads))?;
    if args.self_check && chat.is_some() {
        report.check("self-check", || {
            let model = Model::new(checkpoint, source, model, serve.parallel, cache)?;
            self_check::run(&model)
        })?;
    }
    Ok(())
}

/// Where the settings come from, and whether the server is open to others.
fn settings(serve: &ServeArgs) -> Result<(Finding, ())> {
    let keys = serve.access.keys()?;
    let says = match &serve.access.config {
        Some(path) => format!("from {}", path.display()),
        None => match settings::default_path() {
            Some(path) => format!("no file, {} is not there", path.display()),
            None => "no file".into(),
        },
    };
    let mut finding =
        Finding::good(says).with("config", json!(serve.access.config)).with("api_keys", json!(!keys.is_empty()));
    if keys.is_empty() && !matches!(serve.host.as_str(), "localhost" | "127.0.0.1" | "::1" | "[::1]") {
        finding = finding.warn(format!("--host {} may let others in, and no --api-key is asked for", serve.host));
    }
    Ok((finding, ()))
}

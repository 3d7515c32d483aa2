//! Whether the checkpoint is whole: its files' sizes and headers, and what turns chats into tokens.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};
use lily_chat::Prompt;
use lily_checkpoint::{CHECKPOINT, Checkpoint, Environment, REVISION, Source, locate};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::cli::ModelArgs;
use crate::doctor::goldens::{self, CHAT};
use crate::doctor::report::Finding;
use crate::load::{chat_side, open_located};

/// A checkpoint that is whole.
pub(super) struct Opened {
    pub(super) checkpoint: Checkpoint,
    /// Where it is from.
    pub(super) source: Source,
}

/// Opens the checkpoint that would be served, which checks the header and size of every file and every tensor's place,
/// type and shape, and adds up what the index says.
pub(super) fn open(model: &ModelArgs) -> Result<(Finding, Opened)> {
    let found = locate(model.model.as_deref(), &Environment::of_process());
    let checkpoint = open_located(&found)?;
    let summary = checkpoint.weights.summary();
    let says = format!(
        "{}: {:.1} M parameters, {:.2} GB of weights",
        checkpoint.name(),
        summary.parameters() as f64 / 1e6,
        summary.bytes() as f64 / 1e9
    );
    let mut finding = Finding::good(says)
        .with("model", json!(checkpoint.name()))
        .with("parameters", json!(summary.parameters()))
        .with("weight_bytes", json!(summary.bytes()));
    for note in &found.notes {
        finding = finding.warn(note);
    }
    match &found.source {
        Source::Embedded => {
            finding = finding.warn(format!("only the embedded test model; the real one is {CHECKPOINT}"))
        }
        Source::Directory(directory) => {
            finding = weigh(finding.with("directory", json!(directory)), &checkpoint, directory)?
        }
    }
    Ok((finding, Opened { checkpoint, source: found.source }))
}

#[derive(Deserialize)]
struct Index {
    metadata: Option<Metadata>,
    weight_map: Map<String, Value>,
}

#[derive(Deserialize)]
struct Metadata {
    total_size: Option<u64>,
}

/// The files' sizes against the index, and the revision.
fn weigh(mut finding: Finding, checkpoint: &Checkpoint, directory: &Path) -> Result<Finding> {
    let revision = directory.file_name().and_then(|name| name.to_str());
    if let Some(revision) = revision.filter(|_| directory.parent().is_some_and(|parent| parent.ends_with("snapshots")))
    {
        finding = finding.note(format!("revision {revision}")).with("revision", json!(revision));
        if checkpoint.name() == CHECKPOINT && revision != REVISION {
            finding = finding.warn(format!("Lily is checked with revision {REVISION}"));
        }
    }
    let index = directory.join("model.safetensors.index.json");
    let Ok(text) = fs::read(&index) else { return Ok(finding) };
    let Index { metadata, weight_map } = serde_json::from_slice(&text).with_context(|| index.display().to_string())?;
    let names: BTreeSet<&str> = weight_map.values().filter_map(|name| name.as_str()).collect();
    let data = names.iter().map(|name| data_bytes(&directory.join(name))).sum::<Result<u64>>()?;
    finding = finding.with("files", json!(names.len())).with("data_bytes", json!(data));
    let Some(total) = metadata.and_then(|metadata| metadata.total_size) else { return Ok(finding) };
    if total != data {
        return Ok(finding.warn(format!(
            "the index says that the tensors have {total} bytes together, the {} files have {data}: are they of one download?",
            names.len()
        )));
    }
    Ok(finding.note(format!("{} files hold the {data} bytes that the index says", names.len())))
}

/// Bytes of a safetensors file after its header.
fn data_bytes(path: &Path) -> Result<u64> {
    let mut length = [0; 8];
    let mut file = File::open(path).with_context(|| path.display().to_string())?;
    file.read_exact(&mut length).with_context(|| path.display().to_string())?;
    let whole = file.metadata().with_context(|| path.display().to_string())?.len();
    Ok(whole.saturating_sub(8).saturating_sub(u64::from_le_bytes(length)))
}

/// Whether a chat becomes tokens, and the right ones where those are known.
pub(super) fn chat(checkpoint: &Checkpoint) -> Result<(Finding, ())> {
    let (tokenizer, template) = chat_side(checkpoint)?;
    let messages = vec![json!({"role": "user", "content": CHAT})];
    let prompt = Prompt { messages, tools: Vec::new(), add_generation_prompt: true, kwargs: Map::new() };
    let text = template.render(&prompt)?;
    let tokens = tokenizer.encode(&text)?;
    let back: Vec<u8> = tokens.iter().flat_map(|&id| tokenizer.bytes(id)).copied().collect();
    if back != text.as_bytes() {
        let back = String::from_utf8_lossy(&back);
        bail!("the tokenizer does not give a prompt back: {text:?} became {back:?}");
    }
    let mut finding = Finding::good("template and tokenizer work").with("vocabulary", json!(tokenizer.vocabulary()));
    if goldens::is_full_size(checkpoint) {
        finding = if goldens::chat_prompt() == tokens {
            finding.note("a prompt has the tokens that it should have")
        } else {
            finding.fail(format!("the prompt {CHAT:?} has other tokens than it should have: {tokens:?}"))
        };
    }
    Ok((finding, ()))
}

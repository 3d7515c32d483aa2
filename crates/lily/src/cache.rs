//! What the prefix cache may take, and what tells one checkpoint's computations from another's.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result, bail};
use lily_backend::MemoryPlan;
use lily_chat::Tokenizer;
use lily_checkpoint::{Checkpoint, Experts, Matrices, Mixer, Source};
use lily_engine::{CacheOptions, DiskOptions};

/// Of what the weights leave, what a cache gets at least (one part in so many) before the context is made longer.
const LEAST_SHARE: u64 = 8;
/// The most that a cache takes unasked.
const MOST: u64 = 32 << 30;
/// Of the machine's memory, what a GPU's snapshots may take on their way to the disk and back, one part in so many.
const TRANSIT_SHARE: u64 = 8;
/// Begins a message in ChatML.
const MESSAGE_BEGIN: &str = "<|im_start|>";
/// Bytes looked at of each part of a matrix, at its beginning and at its middle.
const SAMPLE: usize = 256;

/// How much of the memory the prefix cache may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheSize {
    /// None.
    Off,
    /// A share of what is left.
    Share,
    /// So many bytes.
    Bytes(u64),
}

impl CacheSize {
    /// What a plan must have room for whatever else is left.
    pub(crate) fn fixed(self) -> u64 {
        if let Self::Bytes(bytes) = self { bytes } else { 0 }
    }

    /// The longest context up to the plan's that fits in `available`, and the cache beside it: a context so long that
    /// nothing can be kept of it is of little use.
    pub(crate) fn largest(self, plan: &MemoryPlan, available: u64) -> Option<MemoryPlan> {
        let least = if self == Self::Share { least(plan, available) } else { 0 };
        let beside = plan.largest_context(plan.context, available.saturating_sub(least));
        beside.or_else(|| plan.largest_context(plan.context, available)).map(|plan| self.beside(plan, available))
    }

    /// A plan that fits, with the cache: half of what is left, as other programs want to run too, but not less than the
    /// least share if that is there.
    pub(crate) fn beside(self, plan: MemoryPlan, available: u64) -> MemoryPlan {
        if self != Self::Share {
            return plan;
        }
        let left = available.saturating_sub(plan.total());
        MemoryPlan { cache: (left / 2).max(least(&plan, available)).min(left).min(MOST), ..plan }
    }
}

fn least(plan: &MemoryPlan, available: u64) -> u64 {
    available.saturating_sub(plan.weights + plan.workspace) / LEAST_SHARE
}

/// What copies of a GPU's snapshots, on their way to the disk and back, may take of this `machine`'s memory. They count as the
/// cache's, which may hold `bytes`.
pub(crate) fn transit(bytes: u64, machine: u64) -> u64 {
    CacheOptions::new(bytes).transit.min(machine / TRANSIT_SHARE)
}

/// Refuses a directory for a cache that has no memory: what is on disk goes through it.
pub(crate) fn has_memory(plan: &MemoryPlan) -> Result<()> {
    if plan.cache == 0 {
        bail!("--cache-dir needs a prefix cache in memory, and there is none: give --cache a size");
    }
    Ok(())
}

/// Makes the directory of `--cache-dir`.
pub(crate) fn make_directory(directory: &Path) -> Result<()> {
    DiskOptions::make(directory)
        .with_context(|| format!("--cache-dir {}: the directory cannot be made", directory.display()))
}

/// The engine's side of it: in memory as planned, and on `disk` if given, a directory and the bytes it may take. The
/// checkpoint comes from `source`.
pub(crate) fn options(
    plan: &MemoryPlan,
    tokenizer: &Tokenizer,
    (checkpoint, source): (&Checkpoint, &Source),
    disk: Option<(PathBuf, u64)>,
) -> Result<CacheOptions> {
    let disk = match disk {
        None => None,
        Some((directory, bytes)) => Some(DiskOptions::new(directory, bytes, identity(checkpoint, source)?)),
    };
    let boundaries = tokenizer.id(MESSAGE_BEGIN).into_iter().collect();
    Ok(CacheOptions { boundaries, disk, ..CacheOptions::new(plan.cache) })
}

/// The sizes, all small vectors, samples of every matrix, and of the files the sizes and when they were last changed.
/// Training changes every matrix it touches nearly everywhere, and quantising anew changes the scales; the times tell what the
/// samples miss, an edit of some experts or the repair of a damaged download.
fn identity(checkpoint: &Checkpoint, source: &Source) -> Result<Vec<u8>> {
    let weights = &checkpoint.weights;
    let mut seen = Seen(blake3::Hasher::new());
    seen.0.update(format!("{:?}", checkpoint.config).as_bytes());
    if let Source::Directory(directory) = source {
        seen.files(directory).with_context(|| format!("{}: its files cannot be told apart", directory.display()))?;
    }
    seen.matrices(&[&weights.embed_tokens, &weights.lm_head]);
    seen.floats(&[&weights.norm]);
    for layer in &weights.layers {
        seen.floats(&[&layer.input_layernorm, &layer.post_attention_layernorm]);
        match &layer.mixer {
            Mixer::DeltaNet(mixer) => {
                seen.matrices(&[&mixer.in_proj_qkv, &mixer.in_proj_z, &mixer.in_proj_a, &mixer.in_proj_b]);
                seen.matrices(&[&mixer.out_proj]);
                seen.floats(&[&mixer.conv1d, &mixer.a_log, &mixer.dt_bias, &mixer.norm]);
            }
            Mixer::Attention(mixer) => {
                seen.matrices(&[&mixer.q_proj, &mixer.k_proj, &mixer.v_proj, &mixer.o_proj]);
                seen.floats(&[&mixer.q_norm, &mixer.k_norm]);
            }
        }
        let moe = &layer.moe;
        seen.matrices(&[&moe.gate, &moe.shared_expert_gate]);
        for Experts { gate_proj, up_proj, down_proj } in [&moe.experts, &moe.shared_expert] {
            seen.matrices(&[gate_proj, up_proj, down_proj]);
        }
    }
    Ok(seen.0.finalize().as_bytes().to_vec())
}

struct Seen(blake3::Hasher);

impl Seen {
    /// The weight files of a directory, through links: name, size, time of the last change.
    fn files(&mut self, directory: &Path) -> std::io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            if path.extension().is_some_and(|end| end == "safetensors") {
                let metadata = fs::metadata(&path)?;
                let changed = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
                files.push(format!("{:?} {} {}\n", path.file_name(), metadata.len(), changed.as_nanos()));
            }
        }
        files.sort();
        for file in files {
            self.0.update(file.as_bytes());
        }
        Ok(())
    }

    fn floats(&mut self, all: &[&Vec<f32>]) {
        for floats in all {
            let bytes: Vec<u8> = floats.iter().flat_map(|float| float.to_le_bytes()).collect();
            self.0.update(&bytes);
        }
    }

    fn matrices(&mut self, all: &[&Matrices]) {
        for matrices in all {
            for part in [&matrices.weight, &matrices.scales, &matrices.biases] {
                self.0.update(&(part.len() as u64).to_le_bytes());
                for start in [0, part.len() / 2] {
                    self.0.update(&part[start..(start + SAMPLE).min(part.len())]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lily_checkpoint::Bytes;

    use super::*;

    const PLAN: MemoryPlan =
        MemoryPlan { context: 8192, parallel: 1, weights: 1000, workspace: 0, state: 0, kv_per_token: 1, cache: 0 };

    #[test]
    fn the_cache_takes_its_share() {
        let beside = |size: CacheSize, available| size.beside(PLAN, available).cache;
        assert_eq!(beside(CacheSize::Share, PLAN.total() + 10_000), 5000);
        assert_eq!(beside(CacheSize::Share, PLAN.total() + 1000), 1000, "the least share, as far as it is there");
        assert_eq!(beside(CacheSize::Share, 1 << 50), MOST);
        assert_eq!(beside(CacheSize::Off, PLAN.total() + 10_000), 0);
        let largest = CacheSize::Share.largest(&PLAN, 5000).expect("it fits");
        assert_eq!((largest.context, largest.cache), (3072, 500));
        assert_eq!(CacheSize::Off.largest(&PLAN, 5100).expect("it fits").context, 4096);
        assert_eq!(CacheSize::Share.largest(&PLAN, 1000), None);
    }

    #[test]
    fn what_is_on_its_way_takes_its_share_of_the_machine() {
        assert_eq!(transit(24 << 30, 128 << 30), 12 << 30, "half of the cache");
        assert_eq!(transit(24 << 30, 16 << 30), 2 << 30, "an eighth of the machine");
    }

    #[test]
    fn other_weights_are_another_model() {
        let identity = |checkpoint: &Checkpoint| identity(checkpoint, &Source::Embedded).expect("no file is looked at");
        let checkpoint = Checkpoint::embedded().unwrap();
        assert_eq!(identity(&checkpoint), identity(&Checkpoint::embedded().unwrap()));
        let mut changed = Checkpoint::embedded().unwrap();
        changed.weights.norm[3] += 1.0;
        assert_ne!(identity(&checkpoint), identity(&changed));
        let mut changed = Checkpoint::embedded().unwrap();
        let mut bytes = changed.weights.layers[5].moe.experts.up_proj.weight.to_vec();
        bytes[7] ^= 1;
        changed.weights.layers[5].moe.experts.up_proj.weight = Bytes::from(bytes);
        assert_ne!(identity(&checkpoint), identity(&changed));
    }

    /// What no sample shows.
    #[test]
    fn a_changed_file_is_another_model() {
        let checkpoint = Checkpoint::embedded().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("model.safetensors");
        fs::write(&file, "weights").unwrap();
        let source = Source::Directory(directory.path().to_owned());
        let identity = || identity(&checkpoint, &source).expect("files");
        let before = identity();
        fs::write(directory.path().join("README.md"), "no weights").unwrap();
        assert_eq!(identity(), before);
        let later = fs::metadata(&file).unwrap().modified().unwrap() + std::time::Duration::from_millis(1);
        fs::File::options().append(true).open(&file).unwrap().set_modified(later).unwrap();
        assert_ne!(identity(), before);
    }
}

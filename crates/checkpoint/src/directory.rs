//! A checkpoint's directory as Hugging Face lays it out: which files there are, and what it is when they are not there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::{Bytes, Error};

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// The files that hold a checkpoint's weights.
pub(crate) struct WeightFiles {
    /// Plain names, sorted.
    pub(crate) names: Vec<String>,
    /// The file of each tensor, if the directory has an index.
    pub(crate) index: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Fails unless `path` is a directory.
pub(crate) fn check(path: &Path) -> Result<(), Error> {
    let other = |what: &str| Err(Error::OtherFormat { path: path.to_owned(), what: what.to_owned() });
    let metadata = fs::metadata(path).map_err(|source| match source.kind() {
        ErrorKind::NotFound => Error::NotFound { path: path.to_owned() },
        _ => Error::Read { path: path.to_owned(), source },
    })?;
    if metadata.is_dir() {
        return Ok(());
    }
    if path.extension().is_some_and(|extension| extension == "safetensors") {
        return other("a weight file: give the directory that it lies in, with its config.json");
    }
    let mut magic = [0; 4];
    // Only a regular file is looked into: opening a pipe could wait for ever.
    let mut read_magic = || File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok();
    if metadata.is_file() && read_magic() && &magic == b"GGUF" {
        return other("a GGUF file, which only llama.cpp and its kin read");
    }
    other("not a directory")
}

/// Reads a small file, or gives `None` if there is none.
pub(crate) fn read_optional(dir: &Path, name: &str) -> Result<Option<Vec<u8>>, Error> {
    let path = dir.join(name);
    match fs::read(&path) {
        Ok(bytes) if bytes.starts_with(b"version https://git-lfs") => Err(lfs_pointer(name)),
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Read { path, source }),
    }
}

/// What is wrong with a file that Git LFS left in place of the real one.
pub(crate) fn lfs_pointer(file: &str) -> Error {
    let problem = "a Git LFS pointer, not the file itself: fetch it with `git lfs pull`".into();
    Error::Corrupt { file: file.to_owned(), problem }
}

/// Reads a small file that must be there.
pub(crate) fn read(dir: &Path, name: &str) -> Result<Vec<u8>, Error> {
    read_optional(dir, name)?.ok_or_else(|| explain_missing(dir, name))
}

/// Maps a weight file.
pub(crate) fn map(dir: &Path, name: &str) -> Result<Bytes, Error> {
    let path = dir.join(name);
    File::open(&path).and_then(|file| Bytes::map(&file)).map_err(|source| Error::Read { path, source })
}

/// Lists the weight files; each of them is there.
pub(crate) fn weight_files(dir: &Path) -> Result<WeightFiles, Error> {
    let Some(json) = read_optional(dir, INDEX)? else {
        if dir.join(SINGLE).exists() {
            return Ok(WeightFiles { names: vec![SINGLE.into()], index: BTreeMap::new() });
        }
        return Err(explain_missing(dir, SINGLE));
    };
    let corrupt = |problem: String| Error::Corrupt { file: INDEX.into(), problem };
    let Index { weight_map } = serde_json::from_slice(&json)
        .map_err(|error| corrupt(format!("not a valid index: {error}: is the download complete?")))?;
    let names: BTreeSet<&String> = weight_map.values().collect();
    if names.is_empty() {
        return Err(corrupt("it names no weight file".into()));
    }
    for name in &names {
        if Path::new(name).file_name().is_none_or(|plain| plain != name.as_str()) {
            return Err(corrupt(format!("{name:?} is not the name of a file in the same directory")));
        }
    }
    let missing: Vec<_> = names.iter().filter(|name| !dir.join(name).exists()).collect();
    if let Some(first) = missing.first() {
        let what = format!("{} of {} weight files are missing, such as {first}", missing.len(), names.len());
        return Err(Error::Incomplete { path: dir.to_owned(), what });
    }
    let names = names.into_iter().cloned().collect();
    Ok(WeightFiles { names, index: weight_map })
}

/// Fails unless every file that a checkpoint needs is there. Looks into none but the index.
pub(crate) fn check_complete(dir: &Path) -> Result<(), Error> {
    for name in ["config.json", "tokenizer.json"] {
        if !dir.join(name).exists() {
            return Err(explain_missing(dir, name));
        }
    }
    weight_files(dir).map(drop)
}

/// Says what a directory is that lacks a file every checkpoint has.
fn explain_missing(dir: &Path, name: &str) -> Error {
    let path = dir.to_owned();
    let names = match file_names(dir) {
        Ok(names) => names,
        Err(source) => return Error::Read { path, source },
    };
    let any = |suffix: &str| names.iter().any(|name| name.ends_with(suffix));
    let partial = partial_downloads(dir);
    if partial > 0 {
        let files = if partial == 1 { "file" } else { "files" };
        let what = format!("there is no {name}, and a download of it may be under way ({partial} .incomplete {files})");
        return Error::Incomplete { path, what };
    }
    if any(".gguf") {
        return Error::OtherFormat { path, what: "it holds GGUF files, which only llama.cpp and its kin read".into() };
    }
    if names.iter().any(|name| name == "snapshots") {
        let what = "an entry of the Hugging Face cache: give the directory below its snapshots/".into();
        return Error::OtherFormat { path, what };
    }
    if name == "config.json" && !any(".safetensors") {
        return Error::OtherFormat { path, what: "not a checkpoint, it has no config.json".into() };
    }
    if name == SINGLE && any(".safetensors") {
        return Error::Incomplete { path, what: format!("there is neither {SINGLE} nor {INDEX}") };
    }
    Error::Incomplete { path, what: format!("there is no {name}") }
}

fn file_names(dir: &Path) -> std::io::Result<Vec<String>> {
    fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// Files that `hf download` has begun and not finished: beside the checkpoint, in the folder it keeps for that, or,
/// when the directory is a snapshot in the cache, among the entry's blobs.
fn partial_downloads(dir: &Path) -> usize {
    let mut places: Vec<PathBuf> = vec![dir.to_owned(), dir.join(".cache/huggingface/download")];
    if let Some(snapshots) = dir.parent().filter(|parent| parent.ends_with("snapshots")) {
        places.push(snapshots.with_file_name("blobs"));
    }
    let names = places.iter().flat_map(|place| file_names(place).unwrap_or_default());
    names.filter(|name| name.ends_with(".incomplete")).count()
}

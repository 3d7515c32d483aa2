//! Writes checkpoints, good and bad. Their data is left as holes in the file, so even the 35B takes no room.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use lily_checkpoint::Checkpoint;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Name, type and shape of a tensor.
pub(crate) type Tensor = (String, String, Vec<u64>);

/// The checkpoint that is part of the repository.
pub(crate) fn tiny_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny")
}

/// The config of the 35B.
pub(crate) fn full_size_config() -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/qwen3.6-35b-a3b/config.json")).unwrap()
}

/// The tensors of the 35B's text model, as its repository has them.
pub(crate) fn full_size_tensors() -> Vec<Tensor> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen3.6-35b-a3b/tensors.tsv.zst");
    let mut text = String::new();
    let mut decoder = ruzstd::decoding::StreamingDecoder::new(File::open(path).unwrap()).unwrap();
    decoder.read_to_string(&mut text).unwrap();
    text.lines()
        .map(|line| {
            let [name, shape, dtype] = line.split('\t').collect::<Vec<_>>().try_into().unwrap();
            (name.to_owned(), dtype.to_owned(), serde_json::from_str(shape).unwrap())
        })
        .collect()
}

/// The header of a safetensors file.
pub(crate) fn header(path: &Path) -> Value {
    let bytes = fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    serde_json::from_slice(&bytes[8..8 + length]).unwrap()
}

/// The tensors of the tiny model, as its header has them.
pub(crate) fn tiny_tensors() -> Vec<Tensor> {
    let header = header(&tiny_dir().join("model.safetensors"));
    let tensor = |(name, entry): (&String, &Value)| {
        let shape = entry["shape"].as_array().unwrap().iter().map(|size| size.as_u64().unwrap()).collect();
        (name.clone(), entry["dtype"].as_str().unwrap().to_owned(), shape)
    };
    header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__").map(tensor).collect()
}

/// A well-formed header for tensors one after another, and the length of their data.
pub(crate) fn header_for(tensors: &[Tensor]) -> (Value, u64) {
    let mut header = json!({"__metadata__": {"format": "mlx"}});
    let mut end = 0;
    for (name, dtype, shape) in tensors {
        let width = match dtype.as_str() {
            "U32" | "F32" => 4,
            _ => 2,
        };
        let begin = end;
        end += width * shape.iter().product::<u64>();
        header[name] = json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, end]});
    }
    (header, end)
}

/// Writes a safetensors file whose data is a hole.
pub(crate) fn write_safetensors(path: &Path, header: &str, data: u64) {
    let mut file = File::create(path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len(8 + header.len() as u64 + data).unwrap();
}

/// A directory with a tiny checkpoint to be spoilt.
pub(crate) struct Spoilt {
    pub(crate) dir: TempDir,
    pub(crate) config: Value,
    pub(crate) tensors: Vec<Tensor>,
}

impl Spoilt {
    pub(crate) fn new() -> Self {
        Self {
            dir: TempDir::new().unwrap(),
            config: serde_json::from_slice(&fs::read(tiny_dir().join("config.json")).unwrap()).unwrap(),
            tensors: tiny_tensors(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The tensor whose name ends so.
    pub(crate) fn tensor(&mut self, suffix: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|(name, ..)| name.ends_with(suffix)).unwrap()
    }

    /// Writes all files of a checkpoint without an index.
    pub(crate) fn write(&self) {
        fs::write(self.file("config.json"), self.config.to_string()).unwrap();
        fs::write(self.file("tokenizer.json"), "{}").unwrap();
        let (header, data) = header_for(&self.tensors);
        write_safetensors(&self.file("model.safetensors"), &header.to_string(), data);
    }

    /// Opens it and gives the error's text.
    pub(crate) fn error(&self) -> String {
        error(self.path())
    }
}

/// The text of the error that opening `path` gives.
pub(crate) fn error(path: &Path) -> String {
    Checkpoint::open(path).expect_err("it should not open").to_string()
}

/// Fails unless `text` holds `expected`.
#[track_caller]
pub(crate) fn assert_says(text: &str, expected: &str) {
    assert!(text.contains(expected), "{text:?} does not say {expected:?}");
}

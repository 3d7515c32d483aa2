//! What the tests of the whole model share: the embedded checkpoint, its reference outputs, and ways to run it.

// Each test binary is a crate of its own, and uses some of this.
#![allow(dead_code, unreachable_pub)]

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use lily_backend::{Backend, Draw, Output, Segment, Want};
use lily_checkpoint::Checkpoint;
use lily_cpu::{CpuBackend, Options, Simd, State};

/// Greedy, over the ids the tiny model can print.
pub const GREEDY: Draw<'static> = Draw::greedy(6113);

/// The embedded checkpoint on two threads.
pub fn backend() -> CpuBackend {
    backend_with(2, None)
}

pub fn backend_with(threads: usize, simd: Option<Simd>) -> CpuBackend {
    let checkpoint = Arc::new(Checkpoint::embedded().expect("the embedded checkpoint is whole"));
    CpuBackend::new(checkpoint, Options { threads, max_context: 4096, simd }).expect("threads")
}

/// Runs one segment.
pub fn run(backend: &mut CpuBackend, state: &mut State, tokens: &[u32], want: Want<'_>) -> Output {
    let mut outputs = backend.forward(&mut [Segment { state, tokens, want }]).expect("a valid segment");
    outputs.pop().expect("one output for one segment")
}

/// The logits of every position.
pub fn logits(backend: &mut CpuBackend, state: &mut State, tokens: &[u32]) -> Vec<f32> {
    match run(backend, state, tokens, Want::Logits) {
        Output::Logits(logits) => logits,
        other => panic!("asked for logits, got {other:?}"),
    }
}

/// Appends tokens and gives the greedy choice after the last.
pub fn next(backend: &mut CpuBackend, state: &mut State, tokens: &[u32]) -> u32 {
    match run(backend, state, tokens, Want::Sample(GREEDY)) {
        Output::Sample(sample) => sample.token,
        other => panic!("asked for a sample, got {other:?}"),
    }
}

/// A greedy continuation of `length` tokens after the last of `tokens`.
pub fn continuation(backend: &mut CpuBackend, state: &mut State, tokens: &[u32], length: usize) -> Vec<u32> {
    let mut found = vec![next(backend, state, tokens)];
    while found.len() < length {
        let last = [found[found.len() - 1]];
        found.push(next(backend, state, &last));
    }
    found
}

/// `models/tiny/reference`.
pub struct Reference {
    tensors: HashMap<String, Vec<[u8; 4]>>,
    pub json: serde_json::Value,
}

impl Reference {
    pub fn load() -> Self {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/reference");
        let read = |name: &str| std::fs::read(directory.join(name)).expect("a file of the reference");
        let mut tensors = HashMap::new();
        for (file, prefix) in [("reference.safetensors", ""), ("positions.safetensors", "all.")] {
            let bytes = read(file);
            let (length, rest) = bytes.split_first_chunk().expect("a length");
            let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
            let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(header).expect("JSON");
            for (name, entry) in header.iter().filter(|(name, _)| *name != "__metadata__") {
                let offset = |index: usize| entry["data_offsets"][index].as_u64().expect("an offset") as usize;
                let values = data[offset(0)..offset(1)].as_chunks().0.to_vec();
                tensors.insert(format!("{prefix}{name}"), values);
            }
        }
        Self { tensors, json: serde_json::from_slice(&read("reference.json")).expect("JSON") }
    }

    /// Names of the prompts.
    pub fn prompts(&self) -> impl Iterator<Item = &str> {
        self.json["prompts"].as_array().expect("a list").iter().map(|prompt| prompt["name"].as_str().expect("a name"))
    }

    /// Ids, or counts.
    pub fn ids(&self, tensor: &str) -> Vec<u32> {
        self.tensors[tensor].iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
    }

    pub fn floats(&self, tensor: &str) -> Vec<f32> {
        self.tensors[tensor].iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }
}

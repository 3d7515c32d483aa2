//! `models/tiny/reference`: what transformers answers, in fp32 over the same dequantised weights.
#![allow(dead_code, unreachable_pub)]

use std::collections::HashMap;
use std::path::PathBuf;
use std::{env, fs};

/// The tensors of one of its files.
pub struct Tensors(HashMap<String, Vec<[u8; 4]>>);

impl Tensors {
    pub fn load(file: &str) -> Self {
        // Wherever the checkout is when the test runs, from either crate that has these tests.
        let package =
            env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
        let folder = package.join("../../models/tiny/reference");
        let bytes = fs::read(folder.join(file)).expect("a file of the reference");
        let (length, rest) = bytes.split_first_chunk().expect("a length");
        let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
        let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(header).expect("JSON");
        let values = |entry: &serde_json::Value| {
            let offset = |index: usize| entry["data_offsets"][index].as_u64().expect("an offset") as usize;
            data[offset(0)..offset(1)].as_chunks().0.to_vec()
        };
        let tensors = header.iter().filter(|(name, _)| *name != "__metadata__");
        Self(tensors.map(|(name, entry)| (name.clone(), values(entry))).collect())
    }

    pub fn ids(&self, name: &str) -> Vec<u32> {
        self.0[name].iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
    }

    pub fn floats(&self, name: &str) -> Vec<f32> {
        self.0[name].iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }
}

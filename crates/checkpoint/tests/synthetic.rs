//! Synthetic checkpoints: the 35B's tensors, and small ones that open.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use common::{full_size_config, full_size_tensors, tiny_dir};
use lily_checkpoint::{Bits, Checkpoint, Config, Error, Matrices, Synthetic};
use serde_json::Value;
use tempfile::TempDir;

/// A checkpoint of Lily Tiny's sizes.
fn write(seed: u64) -> TempDir {
    let dir = TempDir::new().unwrap();
    let config = fs::read(tiny_dir().join("config.json")).unwrap();
    let synthetic = Synthetic::new(&config, seed).unwrap();
    let (mut heard, mut largest) = (0, 0);
    let written = synthetic.write(dir.path(), |bytes| {
        heard += bytes;
        largest = largest.max(bytes);
        ControlFlow::Continue(())
    });
    written.unwrap();
    let on_disk: u64 = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert_eq!(on_disk, synthetic.bytes());
    assert!(heard <= on_disk && heard > on_disk * 9 / 10 && largest <= 1 << 20, "{heard} of {on_disk}, {largest}");
    dir
}

fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let file = |entry: fs::DirEntry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap());
    fs::read_dir(dir).unwrap().map(|entry| file(entry.unwrap())).collect()
}

fn open(dir: &Path) -> Checkpoint {
    fs::write(dir.join("tokenizer.json"), "{}").unwrap();
    Checkpoint::open(dir).unwrap()
}

#[test]
fn the_35b_has_the_tensors_of_the_published_checkpoint() {
    let mut published = full_size_tensors();
    published.sort();
    let mut ours: Vec<common::Tensor> = Config::parse(&full_size_config())
        .unwrap()
        .tensors()
        .into_iter()
        .map(|tensor| (tensor.name, tensor.dtype.to_owned(), tensor.shape))
        .collect();
    ours.sort();
    assert_eq!(ours, published);
    let bytes = Synthetic::new(&full_size_config(), 0).unwrap().bytes();
    assert_eq!(bytes / 100_000_000, 195, "19.5 GB");
}

#[test]
fn it_opens_and_uses_every_tensor() {
    let dir = write(1);
    let checkpoint = open(dir.path());
    assert_eq!(checkpoint.skipped.tensors, 0);
    assert_eq!(checkpoint.config, Checkpoint::embedded().unwrap().config);
    let index: Value =
        serde_json::from_slice(&fs::read(dir.path().join("model.safetensors.index.json")).unwrap()).unwrap();
    assert_eq!(index["weight_map"].as_object().unwrap().len(), checkpoint.config.tensors().len());
}

#[test]
fn a_seed_gives_the_same_bytes_and_another_gives_others() {
    let (one, same, other) = (files(write(5).path()), files(write(5).path()), files(write(6).path()));
    assert_eq!(
        one.keys().collect::<Vec<_>>(),
        ["config.json", "model-00001-of-00001.safetensors", "model.safetensors.index.json"]
    );
    assert!(one == same);
    let weights = |files: &BTreeMap<String, Vec<u8>>| files["model-00001-of-00001.safetensors"].clone();
    let (one, other) = (weights(&one), weights(&other));
    // So do all machines and versions, or figures taken on a synthetic checkpoint could not be compared.
    let digest = one.iter().fold(0u64, |digest, &byte| (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    assert_eq!(digest, 0xfd9e_fc3b_474d_a929, "{digest:#x}");
    let equal = one.iter().zip(&other).filter(|(one, other)| one == other).count();
    assert!(equal < one.len() / 10, "{equal} bytes of {} are equal", one.len());
}

/// Mean and standard deviation of a stack's weights.
fn moments(matrices: &Matrices) -> (f64, f64) {
    let bf16 = |bytes: &[u8], group: usize| {
        f64::from(f32::from_bits(u32::from(u16::from_le_bytes([bytes[2 * group], bytes[2 * group + 1]])) << 16))
    };
    let (mut sum, mut squares, mut count) = (0.0, 0.0, 0);
    let mut add = |place: usize, q: u8| {
        let weight = f64::from(q) * bf16(&matrices.scales, place / 64) + bf16(&matrices.biases, place / 64);
        sum += weight;
        squares += weight * weight;
        count += 1;
    };
    for (index, &byte) in matrices.weight.iter().enumerate() {
        match matrices.bits {
            Bits::Four => {
                add(2 * index, byte & 15);
                add(2 * index + 1, byte >> 4);
            }
            Bits::Eight => add(index, byte),
        }
    }
    let mean = sum / f64::from(count);
    (mean, (squares / f64::from(count) - mean * mean).sqrt())
}

#[test]
fn weights_are_centred_and_of_the_size_that_keeps_activations() {
    let dir = write(2);
    let weights = open(dir.path()).weights;
    let layer = &weights.layers[0];
    for (matrices, deviation) in [
        (&weights.embed_tokens, 1.0),
        (&weights.lm_head, 1.0 / 16.0),
        (&layer.moe.gate, 1.0 / 16.0),
        (&layer.moe.experts.gate_proj, 1.0 / 16.0),
        (&layer.moe.experts.down_proj, 0.5 / 8.0),
    ] {
        let (mean, found) = moments(matrices);
        assert!(
            mean.abs() < 0.03 * deviation && (found / deviation - 1.0).abs() < 0.03,
            "{mean} ± {found}, {deviation}"
        );
    }
}

#[test]
fn a_config_without_quantization_gets_the_published_one() {
    let mut config: Value = serde_json::from_slice(&full_size_config()).unwrap();
    let published = config.clone();
    for key in ["quantization", "quantization_config"] {
        config.as_object_mut().unwrap().remove(key);
    }
    let synthetic = Synthetic::new(config.to_string().as_bytes(), 0).unwrap();
    assert_eq!(*synthetic.config(), Config::parse(published.to_string().as_bytes()).unwrap());
    let error = Synthetic::new(b"{\"text_config\": {}}", 0).map(drop).unwrap_err().to_string();
    common::assert_says(&error, "model_type is missing");
}

#[test]
fn it_stops_when_told() {
    let dir = TempDir::new().unwrap();
    let synthetic = Synthetic::new(&full_size_config(), 0).unwrap();
    let mut calls = 0;
    let stopped = synthetic.write(dir.path(), |_| {
        calls += 1;
        if calls == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(stopped, Err(Error::Interrupted)));
    assert_eq!(calls, 3);
}

#[test]
fn a_directory_that_is_not_there_is_named() {
    let synthetic = Synthetic::new(&full_size_config(), 0).unwrap();
    let error = synthetic.write(Path::new("/nowhere/at/all"), |_| ControlFlow::Continue(())).unwrap_err().to_string();
    common::assert_says(&error, "cannot write /nowhere/at/all/model-00001-of-00004.safetensors: ");
}

//! The 35B in its real shapes, its data a hole: proves that 19.5 GB open, fit, and are not read.

mod common;

use std::fs;

use common::{full_size_config, full_size_tensors, header_for, write_safetensors};
use lily_checkpoint::{Bits, Checkpoint, Config, LayerKind};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Bytes of this process in memory, pages of mapped files too, where the system tells.
fn resident() -> Option<u64> {
    let pages = fs::read_to_string("/proc/self/statm").ok()?;
    Some(pages.split(' ').nth(1)?.parse::<u64>().ok()? * 4096)
}

/// In four shards with an index; some tensors of the image encoder among them, as in the real repository.
fn write(dir: &TempDir) {
    let mut tensors = full_size_tensors();
    tensors.push(("vision_tower.patch_embed.proj.weight".into(), "BF16".into(), vec![1152, 2, 16, 16, 3]));
    tensors.push(("vision_tower.pos_embed.weight".into(), "BF16".into(), vec![2304, 1152]));
    let mut weight_map = json!({});
    for (shard, tensors) in tensors.chunks(tensors.len().div_ceil(4)).enumerate() {
        let name = format!("model-{:05}-of-00004.safetensors", shard + 1);
        for (tensor, ..) in tensors {
            weight_map[tensor] = json!(name);
        }
        let (header, data) = header_for(tensors);
        write_safetensors(&dir.path().join(name), &header.to_string(), data);
    }
    let index = json!({"metadata": {}, "weight_map": weight_map});
    fs::write(dir.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
    fs::write(dir.path().join("config.json"), full_size_config()).unwrap();
    fs::write(dir.path().join("tokenizer.json"), "{}").unwrap();
}

#[test]
fn the_35b_opens_and_every_tensor_has_its_place() {
    let dir = TempDir::new().unwrap();
    write(&dir);
    let before = resident();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    if let (Some(before), Some(after)) = (before, resident()) {
        assert!(after < before + (64 << 20), "{before} bytes resident before opening, {after} after");
    }
    assert_eq!(checkpoint.skipped.tensors, 2);
    assert_eq!(checkpoint.generation.eos_token_ids, [248044], "from config.json, there is no generation_config.json");
    let layer = &checkpoint.weights.layers[39];
    assert_eq!(layer.moe.gate.bits, Bits::Eight);
    let experts = &layer.moe.experts;
    let expert = [&experts.gate_proj, &experts.up_proj, &experts.down_proj].map(|stack| stack.get(255));
    let bytes: usize = expert.iter().map(|matrix| matrix.weight.len() + matrix.scales.len() * 2).sum();
    assert_eq!(bytes, 1_769_472, "one packed expert");

    let summary = checkpoint.weights.summary();
    assert_eq!(summary.bytes() / 10_000_000, 1951, "19.51 GB");
    assert_eq!(summary.parameters() / 100_000_000, 346, "34.66 billion");
    let sparse = summary.groups.iter().find(|group| group.name == "experts").unwrap();
    assert_eq!(sparse.bytes, 40 * 256 * 1_769_472);
}

#[test]
fn the_sizes_of_the_35b() {
    let config = Config::parse(&full_size_config()).unwrap();
    assert_eq!((config.vocab_size, config.hidden_size, config.max_position_embeddings), (248_320, 2048, 262_144));
    assert_eq!((config.count(LayerKind::DeltaNet), config.count(LayerKind::Attention)), (30, 10));
    assert_eq!((config.attention.query_size(), config.attention.kv_size()), (4096, 512));
    assert_eq!((config.attention.rotary_dims, config.attention.rope_theta), (64, 1e7));
    assert_eq!((config.delta_net.conv_channels(), config.delta_net.value_size()), (8192, 4096));
    assert_eq!((config.moe.experts, config.moe.experts_per_token, config.moe.expert_width), (256, 8, 512));
    assert_eq!(config.rms_norm_eps, 1e-6);
}

#[test]
fn layers_without_a_list_follow_the_interval() {
    let mut json: Value = serde_json::from_slice(&full_size_config()).unwrap();
    let listed = Config::parse(json.to_string().as_bytes()).unwrap();
    json["text_config"].as_object_mut().unwrap().remove("layer_types");
    assert_eq!(Config::parse(json.to_string().as_bytes()).unwrap(), listed);
}

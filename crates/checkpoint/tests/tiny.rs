//! The checkpoint in the repository, embedded and as a directory.

mod common;

use std::fs;

use common::{Spoilt, header, tiny_dir};
use lily_checkpoint::{Bits, Checkpoint, Config, LayerKind, Mixer};
use serde_json::{Value, json};

#[test]
fn the_embedded_checkpoint_is_the_one_in_the_repository() {
    let embedded = Checkpoint::embedded().unwrap();
    let opened = Checkpoint::open(&tiny_dir()).unwrap();
    assert_eq!(embedded.name(), "lily-tiny");
    assert_eq!(opened.name(), "tiny");
    assert_eq!(embedded.config, opened.config);
    assert_eq!(embedded.generation, opened.generation);
    assert_eq!(embedded.files.tokenizer, opened.files.tokenizer);
    assert_eq!(embedded.files.tokenizer_config, opened.files.tokenizer_config);
    assert_eq!(embedded.files.chat_template, opened.files.chat_template);
    assert_eq!(embedded.weights.norm, opened.weights.norm);
    for (one, other) in embedded.weights.layers.iter().zip(&opened.weights.layers) {
        assert_eq!(*one.moe.experts.down_proj.weight, *other.moe.experts.down_proj.weight);
        assert_eq!(one.input_layernorm, other.input_layernorm);
    }
}

#[test]
fn embedded_weights_are_not_copied() {
    let [one, other] = [(); 2].map(|()| Checkpoint::embedded().unwrap());
    let address = |checkpoint: &Checkpoint| checkpoint.weights.lm_head.weight.as_ptr();
    assert_eq!(address(&one), address(&other));
}

#[test]
fn sizes_bits_and_end_tokens_are_as_its_readme_says() {
    let checkpoint = Checkpoint::embedded().unwrap();
    let config = &checkpoint.config;
    assert_eq!((config.vocab_size, config.hidden_size, config.layers.len()), (6144, 256, 8));
    let attention: Vec<_> = (0..8).filter(|&layer| config.layers[layer] == LayerKind::Attention).collect();
    assert_eq!(attention, [3, 7]);
    assert_eq!((config.attention.heads, config.attention.kv_heads), (8, 2));
    assert_eq!((config.delta_net.key_heads, config.delta_net.value_heads), (4, 8));
    assert_eq!((config.moe.experts, config.moe.expert_width, config.moe.shared_expert_width), (32, 64, 64));
    assert_eq!(checkpoint.generation.eos_token_ids, [6082, 6080]);
    assert_eq!((checkpoint.generation.temperature, checkpoint.generation.top_k), (Some(0.6), Some(20)));
    for layer in &checkpoint.weights.layers {
        assert_eq!((layer.moe.gate.bits, layer.moe.shared_expert_gate.bits), (Bits::Eight, Bits::Eight));
        assert_eq!((layer.moe.experts.up_proj.bits, layer.moe.experts.up_proj.count), (Bits::Four, 32));
    }
    // The index's total_parameters leaves out A_log and dt_bias, as mlx-lm's count does: six layers of two times eight.
    assert_eq!(checkpoint.weights.summary().parameters(), 26_230_784 + 6 * 2 * 8);
}

#[test]
fn small_vectors_are_read_as_the_file_has_them() {
    let file = fs::read(tiny_dir().join("model.safetensors")).unwrap();
    let header = header(&tiny_dir().join("model.safetensors"));
    let start = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let bytes = |name: &str| {
        let offsets = &header[format!("language_model.model.layers.1.{name}")]["data_offsets"];
        let [begin, end] = [0, 1].map(|side| start + offsets[side].as_u64().unwrap() as usize);
        &file[begin..end]
    };
    // A bf16 is the upper half of an f32.
    let bf16 =
        |name| bytes(name).chunks(2).map(|half| f32::from_le_bytes([0, 0, half[0], half[1]])).collect::<Vec<_>>();
    let checkpoint = Checkpoint::embedded().unwrap();
    let layer = &checkpoint.weights.layers[1];
    let Mixer::DeltaNet(mixer) = &layer.mixer else { panic!("layer 1 is a DeltaNet layer") };
    assert_eq!(layer.input_layernorm, bf16("input_layernorm.weight"));
    assert_eq!(mixer.conv1d, bf16("linear_attn.conv1d.weight"));
    assert_eq!(mixer.conv1d.len(), 2048 * 4);
    assert_eq!(mixer.dt_bias, bf16("linear_attn.dt_bias"));
    let a_log = bytes("linear_attn.A_log").chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
    assert_eq!(mixer.a_log, a_log.collect::<Vec<_>>());
}

#[test]
fn one_matrix_of_a_stack_is_its_part_of_the_bytes() {
    let checkpoint = Checkpoint::embedded().unwrap();
    let stack = &checkpoint.weights.layers[0].moe.experts.down_proj;
    let (words, groups) = (256 * 64 / 2, 256 * 2);
    let last = stack.get(31);
    assert_eq!((last.rows, last.cols, last.weight.len(), last.scales.len()), (256, 64, words, groups));
    assert_eq!(last.weight, &stack.weight[31 * words..]);
    assert_eq!(last.biases, &stack.biases[31 * groups..]);
    assert_eq!(stack.bytes(), 32 * (words + 2 * groups) as u64);
}

#[test]
fn an_index_may_add_the_draft_head_which_is_counted_and_not_used() {
    let spoilt = Spoilt::new();
    let mut index: Value =
        serde_json::from_slice(&fs::read(tiny_dir().join("model.safetensors.index.json")).unwrap()).unwrap();
    let draft_head = header(&tiny_dir().join("mtp.safetensors"));
    for name in draft_head.as_object().unwrap().keys().filter(|name| *name != "__metadata__") {
        index["weight_map"][name] = json!("mtp.safetensors");
    }
    fs::write(spoilt.file("model.safetensors.index.json"), index.to_string()).unwrap();
    for name in ["config.json", "tokenizer.json", "model.safetensors", "mtp.safetensors"] {
        fs::copy(tiny_dir().join(name), spoilt.file(name)).unwrap();
    }
    let checkpoint = Checkpoint::open(spoilt.path()).unwrap();
    assert_eq!((checkpoint.skipped.tensors, checkpoint.skipped.bytes), (46, 2_030_864));
    assert_eq!(Checkpoint::embedded().unwrap().skipped.tensors, 0);
}

#[test]
fn floats_may_be_of_any_width() {
    let mut spoilt = Spoilt::new();
    spoilt.tensor("layers.0.linear_attn.A_log").1 = "BF16".into();
    spoilt.tensor("layers.1.linear_attn.A_log").1 = "F16".into();
    spoilt.tensor("layers.0.input_layernorm.weight").1 = "F32".into();
    spoilt.tensor("layers.1.input_layernorm.weight").1 = "F16".into();
    spoilt.write();
    let checkpoint = Checkpoint::open(spoilt.path()).unwrap();
    assert_eq!(checkpoint.weights.layers[0].input_layernorm, [0.0; 256]);
}

#[test]
fn any_module_may_have_eight_bits() {
    let mut spoilt = Spoilt::new();
    for suffix in ["layers.2.mlp.switch_mlp.up_proj.weight", "lm_head.weight"] {
        *spoilt.tensor(suffix).2.last_mut().unwrap() *= 2;
    }
    spoilt.config["quantization"]["model.layers.2.mlp.switch_mlp.up_proj"] = json!({"bits": 8, "group_size": 64});
    spoilt.config["quantization"]["language_model.lm_head"] = json!({"bits": 8, "group_size": 64});
    spoilt.write();
    let checkpoint = Checkpoint::open(spoilt.path()).unwrap();
    assert_eq!(checkpoint.weights.lm_head.bits, Bits::Eight);
    assert_eq!(checkpoint.weights.layers[2].moe.experts.up_proj.bits, Bits::Eight);
    assert_eq!(checkpoint.weights.layers[2].moe.experts.gate_proj.bits, Bits::Four);
}

#[test]
fn the_template_may_be_a_file_or_inside_the_tokenizer_config() {
    let spoilt = Spoilt::new();
    spoilt.write();
    let template = || Checkpoint::open(spoilt.path()).map(|checkpoint| checkpoint.files.chat_template);
    assert_eq!(template().unwrap(), None);
    let set =
        |value: Value| fs::write(spoilt.file("tokenizer_config.json"), json!({"chat_template": value}).to_string());
    set(json!(null)).unwrap();
    assert_eq!(template().unwrap(), None);
    set(json!("one")).unwrap();
    assert_eq!(template().unwrap().as_deref(), Some("one"));
    set(json!([{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}])).unwrap();
    assert_eq!(template().unwrap().as_deref(), Some("b"));
    for bad in [json!([{"name": "tool_use", "template": "a"}]), json!(3), json!([])] {
        set(bad).unwrap();
        common::assert_says(&template().unwrap_err().to_string(), "tokenizer_config.json: chat_template is neither");
    }
    fs::write(spoilt.file("chat_template.jinja"), "file").unwrap();
    assert_eq!(template().unwrap().as_deref(), Some("file"));
    fs::write(spoilt.file("chat_template.jinja"), b"ok \xff").unwrap();
    common::assert_says(&template().unwrap_err().to_string(), "chat_template.jinja: not UTF-8 at byte 3");
}

#[test]
fn the_config_in_the_repository_is_read_alone() {
    let json = fs::read(tiny_dir().join("config.json")).unwrap();
    assert_eq!(Config::parse(&json).unwrap(), Checkpoint::embedded().unwrap().config);
}

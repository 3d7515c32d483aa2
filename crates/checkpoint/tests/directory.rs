//! Directories that are something else, or not all there: each error says what it is and what to do.

mod common;

use std::fs;
use std::path::Path;

use common::{Spoilt, assert_says, error, header_for, write_safetensors};
use serde_json::json;

#[test]
fn paths_that_are_no_checkpoint() {
    let spoilt = Spoilt::new();
    assert_says(
        &error(Path::new("/no/such/place")),
        "/no/such/place does not exist: give the directory of a downloaded",
    );
    assert_says(&error(spoilt.path()), "not a checkpoint, it has no config.json");
    for (name, content, expected) in [
        ("model.gguf", &b"GGUF\x03\0\0\0"[..], "a GGUF file"),
        ("renamed.bin", b"GGUF\x03\0\0\0", "a GGUF file"),
        ("model.safetensors", b"", "give the directory that it lies in"),
        ("notes.txt", b"hi", "not a directory"),
    ] {
        fs::write(spoilt.file(name), content).unwrap();
        let error = error(&spoilt.file(name));
        assert_says(&error, expected);
        assert_says(&error, "Lily runs mlx-community/Qwen3.6-35B-A3B-4bit");
        fs::remove_file(spoilt.file(name)).unwrap();
    }
    fs::write(spoilt.file("Qwen3.6-35B-A3B-Q4_K_M.gguf"), b"GGUF").unwrap();
    assert_says(&spoilt.error(), "it holds GGUF files");
    fs::create_dir(spoilt.file("snapshots")).unwrap();
    fs::remove_file(spoilt.file("Qwen3.6-35B-A3B-Q4_K_M.gguf")).unwrap();
    assert_says(&spoilt.error(), "give the directory below its snapshots/");
}

#[test]
fn checkpoints_in_other_layouts() {
    let mut spoilt = Spoilt::new();
    spoilt.config.as_object_mut().unwrap().retain(|key, _| !key.starts_with("quantization"));
    spoilt.write();
    assert_says(&spoilt.error(), "unquantised weights (bf16)");
    for method in ["gptq", "awq", "fp8"] {
        spoilt.config["quantization_config"] = json!({"quant_method": method, "bits": 4});
        spoilt.write();
        assert_says(&spoilt.error(), &format!("quant_method is \"{method}\""));
    }

    let mut turned = Spoilt::new();
    turned.tensor("layers.0.linear_attn.conv1d.weight").2 = vec![2048, 1, 4];
    turned.write();
    assert_says(&turned.error(), "layer 0: linear_attn.conv1d.weight is [2048, 1, 4]: Hugging Face's layout");

    let mut renamed = Spoilt::new();
    for (name, ..) in &mut renamed.tensors {
        *name = format!("model.{name}");
    }
    renamed.write();
    assert_says(&renamed.error(), "Hugging Face's layout, Lily reads MLX's");
    for (name, ..) in &mut renamed.tensors {
        *name = format!("transformer.{name}");
    }
    renamed.write();
    assert_says(&renamed.error(), "no tensor is named language_model.");
}

#[test]
fn files_that_are_missing() {
    for (file, expected) in [
        ("config.json", "there is no config.json: is the download complete?"),
        ("tokenizer.json", "there is no tokenizer.json: is the download complete?"),
        ("model.safetensors", "there is no model.safetensors: is the download complete?"),
    ] {
        let spoilt = Spoilt::new();
        spoilt.write();
        fs::remove_file(spoilt.file(file)).unwrap();
        assert_says(&spoilt.error(), expected);
    }
    let spoilt = Spoilt::new();
    spoilt.write();
    fs::rename(spoilt.file("model.safetensors"), spoilt.file("model-00001-of-00002.safetensors")).unwrap();
    assert_says(&spoilt.error(), "there is neither model.safetensors nor model.safetensors.index.json");
}

#[test]
fn downloads_that_have_not_finished() {
    for place in ["", ".cache/huggingface/download/"] {
        let spoilt = Spoilt::new();
        spoilt.write();
        fs::remove_file(spoilt.file("model.safetensors")).unwrap();
        fs::create_dir_all(spoilt.file(place)).unwrap();
        fs::write(spoilt.file(place).join("7c3f.incomplete"), "").unwrap();
        assert_says(&spoilt.error(), "(1 .incomplete file): is the download complete?");
    }
    let spoilt = Spoilt::new();
    spoilt.write();
    for file in ["model.safetensors", "tokenizer.json", "generation_config.json"] {
        fs::write(spoilt.file(file), "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n").unwrap();
        assert_says(&spoilt.error(), &format!("{file}: a Git LFS pointer, not the file itself: fetch it with"));
        spoilt.write();
    }
}

#[test]
fn an_index_must_be_true() {
    let mut spoilt = Spoilt::new();
    spoilt.write();
    let index = |content: String| fs::write(spoilt.file("model.safetensors.index.json"), content).unwrap();
    let name = "language_model.lm_head.weight";
    index(
        json!({"weight_map": {name: "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}})
            .to_string(),
    );
    assert_says(&spoilt.error(), "2 of 2 weight files are missing, such as model-00001-of-00002.safetensors");
    index(json!({"weight_map": {name: "model.safetensors", "mtp.norm.weight": "model.safetensors"}}).to_string());
    assert_says(&spoilt.error(), "model.safetensors: the index puts tensor mtp.norm.weight there, but it is not");
    for place in ["../model.safetensors", "/etc/passwd", "a/b", "", "..", "."] {
        index(json!({"weight_map": {name: place}}).to_string());
        assert_says(&spoilt.error(), "is not the name of a file in the same directory");
    }
    index(json!({"weight_map": {}}).to_string());
    assert_says(&spoilt.error(), "it names no weight file");
    for broken in ["{\"weight_map\": {\"a", "{}", "[]", "{\"weight_map\": {\"a\": 1}}"] {
        index(broken.into());
        assert_says(&spoilt.error(), "model.safetensors.index.json: not a valid index");
    }

    // A tensor in two shards.
    let twice = spoilt.tensor("lm_head.weight").clone();
    let (header, data) = header_for(std::slice::from_ref(&twice));
    write_safetensors(&spoilt.file("extra.safetensors"), &header.to_string(), data);
    let weight_map = json!({"weight_map": {twice.0.as_str(): "extra.safetensors", "language_model.lm_head.scales": "model.safetensors"}});
    fs::write(spoilt.file("model.safetensors.index.json"), weight_map.to_string()).unwrap();
    assert_says(
        &spoilt.error(),
        "model.safetensors: it holds tensor language_model.lm_head.weight and so does extra.safetensors",
    );
}

#[test]
fn files_that_cannot_be_read() {
    let spoilt = Spoilt::new();
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        spoilt.write();
        fs::remove_file(spoilt.file(file)).unwrap();
        fs::create_dir(spoilt.file(file)).unwrap();
        let error = spoilt.error();
        assert_says(&error, &format!("cannot read {}", spoilt.file(file).display()));
        fs::remove_dir(spoilt.file(file)).unwrap();
    }
}

#[cfg(unix)]
#[test]
fn files_without_permission() {
    use std::os::unix::fs::PermissionsExt;

    let spoilt = Spoilt::new();
    spoilt.write();
    fs::set_permissions(spoilt.file("model.safetensors"), fs::Permissions::from_mode(0o000)).unwrap();
    // The superuser may read it all the same.
    if fs::File::open(spoilt.file("model.safetensors")).is_err() {
        assert_says(&spoilt.error(), "ermission denied");
    }
}

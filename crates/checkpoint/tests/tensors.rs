//! Weight files that contradict themselves or the config.

mod common;

use std::fs;
use std::sync::LazyLock;

use common::{Spoilt, assert_says, header_for, tiny_tensors, write_safetensors};
use lily_checkpoint::Checkpoint;
use proptest::prelude::*;
use serde_json::{Value, json};

/// The error of a checkpoint whose weight file is these bytes.
fn error_of(weights: &[u8]) -> String {
    let spoilt = Spoilt::new();
    spoilt.write();
    fs::write(spoilt.file("model.safetensors"), weights).unwrap();
    spoilt.error()
}

/// The error of a checkpoint whose weight file has this header, before `data` bytes.
fn error_of_header(header: &str, data: u64) -> String {
    let spoilt = Spoilt::new();
    spoilt.write();
    write_safetensors(&spoilt.file("model.safetensors"), header, data);
    spoilt.error()
}

#[test]
fn tensors_that_differ_from_the_config() {
    type Change = fn(&mut Spoilt);
    let cases: [(Change, &str); 10] = [
        (
            |spoilt| spoilt.tensor("layers.3.mlp.gate.scales").2 = vec![32, 3],
            "layer 3: mlp.gate.scales is [32, 3], expected [32, 4]: is the download complete?",
        ),
        (
            |spoilt| spoilt.tensor("layers.5.mlp.switch_mlp.down_proj.weight").2 = vec![31, 256, 8],
            "layer 5: mlp.switch_mlp.down_proj.weight is [31, 256, 8], expected [32, 256, 8]",
        ),
        (
            |spoilt| spoilt.tensor("layers.0.mlp.gate.weight").2 = vec![32, 32],
            "layer 0: mlp.gate has 4 bits, config.json says 8",
        ),
        (|spoilt| spoilt.tensor("lm_head.weight").2 = vec![6144, 64], "lm_head has 8 bits, config.json says 4"),
        (
            |spoilt| spoilt.tensors.retain(|(name, ..)| !name.ends_with("layers.7.self_attn.k_norm.weight")),
            "layer 7: self_attn.k_norm.weight is missing",
        ),
        (
            |spoilt| spoilt.tensor("embed_tokens.scales").1 = "F16".into(),
            "embed_tokens.scales is of type F16, expected BF16",
        ),
        (|spoilt| spoilt.tensor("lm_head.weight").1 = "F32".into(), "lm_head.weight is of type F32, expected U32"),
        (
            |spoilt| spoilt.tensor("layers.1.linear_attn.dt_bias").1 = "U32".into(),
            "layer 1: linear_attn.dt_bias is of type U32, expected BF16 or F32 or F16",
        ),
        (
            |spoilt| spoilt.tensors.push(("language_model.model.layers.8.extra".into(), "BF16".into(), vec![1])),
            "tensor language_model.model.layers.8.extra [1] has no place in this model",
        ),
        (
            |spoilt| spoilt.config["text_config"]["num_experts"] = json!(64),
            "layer 0: mlp.gate.weight is [32, 64], expected [64, 64]",
        ),
    ];
    for (change, expected) in cases {
        let mut spoilt = Spoilt::new();
        change(&mut spoilt);
        spoilt.write();
        assert_says(&spoilt.error(), expected);
    }
}

#[test]
fn fewer_layers_than_the_file_has() {
    let mut spoilt = Spoilt::new();
    spoilt.config["text_config"]["num_hidden_layers"] = json!(4);
    spoilt.config["text_config"]["layer_types"].as_array_mut().unwrap().truncate(4);
    spoilt.write();
    let error = spoilt.error();
    assert_says(&error, "tensor language_model.model.layers.4.input_layernorm.weight [256] has no place");
    assert_says(&error, "more");
}

#[test]
fn values_that_are_not_numbers() {
    let spoilt = Spoilt::new();
    spoilt.write();
    let path = spoilt.file("model.safetensors");
    let mut file = fs::read(&path).unwrap();
    let header = common::header(&path);
    let offset = header["language_model.model.norm.weight"]["data_offsets"][0].as_u64().unwrap() as usize;
    let place = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize + offset + 2 * 5;
    file[place..place + 2].copy_from_slice(&[0xc0, 0x7f]);
    fs::write(&path, file).unwrap();
    assert_says(&spoilt.error(), "norm.weight holds NaN at 5");
}

#[test]
fn files_that_end_too_early_or_too_late() {
    let spoilt = Spoilt::new();
    spoilt.write();
    let path = spoilt.file("model.safetensors");
    let whole = fs::metadata(&path).unwrap().len();
    for (length, expected) in [
        (0, "only 0 bytes long: is the download complete?"),
        (7, "only 7 bytes long"),
        (8, "the file has 0 after the first 8"),
        (1000, "or is the download incomplete?"),
        (whole - 1, "of the data, which has"),
        (whole + 1, "its tensors end at byte"),
    ] {
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(length).unwrap();
        let error = spoilt.error();
        assert_says(&error, expected);
        assert_says(&error, "model.safetensors: ");
        spoilt.write();
    }
    assert!(Checkpoint::open(spoilt.path()).is_ok());
}

#[test]
fn header_lengths_that_are_wrong() {
    for length in [u64::MAX, u64::MAX - 7, 1 << 63, 100_000_001, 17] {
        let mut file = length.to_le_bytes().to_vec();
        file.extend([b' '; 16]);
        assert_says(&error_of(&file), &format!("its header claims {length} bytes, the file has 16"));
    }
    // More than any header may have, in a file that is large enough.
    let spoilt = Spoilt::new();
    spoilt.write();
    let file = fs::File::create(spoilt.file("model.safetensors")).unwrap();
    std::io::Write::write_all(&mut &file, &200_000_000_u64.to_le_bytes()).unwrap();
    file.set_len(300_000_000).unwrap();
    assert_says(&spoilt.error(), "its header claims 200000000 bytes");
}

#[test]
fn headers_that_are_not_headers() {
    for (header, expected) in [
        ("", "is not valid"),
        ("[]", "is not valid"),
        ("{\"a\": {}}", "missing field"),
        ("{\"a\": 5}", "is not valid"),
        ("{\"a\": {\"dtype\": \"F32\", \"shape\": [-1], \"data_offsets\": [0, 4]}}", "is not valid"),
        ("{\"a\": {\"dtype\": \"F32\", \"shape\": [1.5], \"data_offsets\": [0, 4]}}", "is not valid"),
        ("{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0]}}", "is not valid"),
        ("{} {}", "is not valid"),
    ] {
        assert_says(&error_of_header(header, 4), expected);
    }
    let mut not_utf8 = 9_u64.to_le_bytes().to_vec();
    not_utf8.extend(b"{\"\xff\xfe\": 1}");
    assert_says(&error_of(&not_utf8), "is not valid");
    assert_says(&error_of_header(&"{\"a\":".repeat(100_000), 4), "is not valid");
}

#[test]
fn tensors_that_lie_wrongly_in_the_file() {
    let entry = |dtype: &str, shape: Value, begin: u64, end: u64| json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, end]});
    for (header, expected) in [
        (
            json!({"a": entry("F32", json!([2]), 0, 8), "b": entry("F32", json!([1]), 4, 8)}),
            "tensor b lies at bytes 4..8 of the data, which overlaps a that ends at 8",
        ),
        (json!({"a": entry("F32", json!([1]), 0, 4), "b": entry("F32", json!([1]), 0, 4)}), "overlaps"),
        (
            json!({"a": entry("F32", json!([1]), 4, 8)}),
            "tensor a lies at bytes 4..8 of the data, which leaves a gap after the header",
        ),
        (
            json!({"a": entry("F32", json!([4]), 0, 16)}),
            "tensor a lies at bytes 0..16 of the data, which has 8 bytes: is the download complete?",
        ),
        (json!({"a": entry("F32", json!([1]), 4, 0)}), "tensor a lies at bytes 4..0"),
        (json!({"a": entry("F32", json!([1]), u64::MAX - 1, u64::MAX)}), "which has 8 bytes"),
        (
            json!({"a": entry("F32", json!([3]), 0, 8)}),
            "tensor a lies at bytes 0..8 of the data, 8 bytes, but is F32 [3]",
        ),
        (json!({"a": entry("F32", json!([u64::MAX, u64::MAX]), 0, 8)}), "but is F32"),
        (json!({"a": entry("F32", json!([1_u64 << 62, 4]), 0, 8)}), "but is F32"),
        (json!({"a": entry("Q4_K", json!([8]), 0, 8)}), "tensor a has the unknown type \"Q4_K\""),
    ] {
        assert_says(&error_of_header(&header.to_string(), 8), expected);
    }
    let twice = r#"{"mtp.a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "mtp.a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}"#;
    assert_says(&error_of_header(twice, 8), "it holds tensor mtp.a twice");
}

/// A directory whose weight file is written over by each case.
static SCRATCH: LazyLock<Spoilt> = LazyLock::new(|| {
    let spoilt = Spoilt::new();
    spoilt.write();
    spoilt
});
static HEADER: LazyLock<(String, u64)> = LazyLock::new(|| {
    let (header, data) = header_for(&tiny_tensors());
    (header.to_string(), data)
});

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Random bytes, and good headers with some bytes changed, give an error or a checkpoint.
    #[test]
    fn no_header_panics(
        noise in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..200)),
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let path = SCRATCH.file("model.safetensors");
        // Replaced, not written over: another map of the old file must stay whole.
        fs::remove_file(&path).unwrap();
        if let Some(noise) = noise {
            fs::write(&path, noise).unwrap();
            prop_assert!(Checkpoint::open(SCRATCH.path()).is_err());
        } else {
            let (header, data) = &*HEADER;
            let mut header = header.clone().into_bytes();
            for (index, byte) in changes {
                let at = index.index(header.len());
                header[at] = byte % 128;
            }
            write_safetensors(&path, std::str::from_utf8(&header).unwrap(), *data);
            let _ = Checkpoint::open(SCRATCH.path());
        }
    }
}

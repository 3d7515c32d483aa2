//! Configs of other models, and configs that make no sense: each error names the field.

mod common;

use common::{assert_says, full_size_config};
use lily_checkpoint::Config;
use proptest::prelude::*;
use serde_json::{Value, json};

fn good() -> Value {
    serde_json::from_slice(&full_size_config()).unwrap()
}

fn error(config: &Value) -> String {
    Config::parse(config.to_string().as_bytes()).expect_err("it should not pass").to_string()
}

/// The error once a field of `text_config`, given by a JSON pointer, has another value.
fn error_with(pointer: &str, value: Value) -> String {
    let mut config = good();
    *config["text_config"].pointer_mut(pointer).expect("the field is there") = value;
    error(&config)
}

#[test]
fn what_the_kernels_assume_is_checked() {
    for (pointer, value, expected) in [
        ("/head_dim", json!(128), "text_config.head_dim is 128, expected 256"),
        ("/linear_key_head_dim", json!(64), "text_config.linear_key_head_dim is 64, expected 128"),
        ("/linear_value_head_dim", json!(256), "text_config.linear_value_head_dim is 256, expected 128"),
        ("/linear_conv_kernel_dim", json!(3), "text_config.linear_conv_kernel_dim is 3, expected 4"),
        ("/num_experts_per_tok", json!(10), "text_config.num_experts_per_tok is 10, expected 8"),
        ("/attn_output_gate", json!(false), "text_config.attn_output_gate is false, expected true"),
        ("/attention_bias", json!(true), "text_config.attention_bias is true, expected false"),
        ("/hidden_act", json!("gelu"), "text_config.hidden_act is \"gelu\", expected \"silu\""),
        ("/tie_word_embeddings", json!(true), "text_config.tie_word_embeddings is true, expected false"),
        ("/model_type", json!("qwen3_5_text"), "text_config.model_type is \"qwen3_5_text\""),
        ("/rope_parameters/type", json!("yarn"), "rope_parameters.type is \"yarn\", expected \"default\""),
        ("/rope_parameters/partial_rotary_factor", json!(0.5), "partial_rotary_factor is 0.5, expected 0.25"),
        ("/rope_parameters/rope_theta", json!(0), "rope_parameters.rope_theta is 0, expected a number above 0"),
        ("/rope_parameters", json!("yarn"), "text_config.rope_parameters is \"yarn\", expected an object"),
        ("/rms_norm_eps", json!(-1e-6), "text_config.rms_norm_eps is -1e-6, expected a number above 0"),
        ("/rms_norm_eps", json!(1e-300), "text_config.rms_norm_eps"),
        ("/hidden_size", json!(2050), "text_config.hidden_size is 2050, expected a multiple of 64"),
        ("/moe_intermediate_size", json!(100), "text_config.moe_intermediate_size is 100, expected a multiple of 64"),
        ("/shared_expert_intermediate_size", json!(1), "shared_expert_intermediate_size is 1, expected a multiple"),
        ("/num_key_value_heads", json!(3), "num_attention_heads is 16, expected a multiple of num_key_value_heads (3)"),
        ("/linear_num_value_heads", json!(24), "linear_num_value_heads is 24, expected a multiple of"),
        ("/num_experts", json!(4), "num_experts is 4, expected at least 8"),
        ("/num_hidden_layers", json!(39), "text_config.layer_types is"),
        ("/layer_types/3", json!("sliding_attention"), "layer_types[3] is \"sliding_attention\""),
        ("/layer_types", json!("full_attention"), "layer_types is \"full_attention\", expected a list of"),
    ] {
        assert_says(&error_with(pointer, value), expected);
    }
}

#[test]
fn sizes_that_make_no_sense_neither_overflow_nor_panic() {
    let sizes = [
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "num_experts",
        "moe_intermediate_size",
        "shared_expert_intermediate_size",
        "max_position_embeddings",
    ];
    for size in sizes {
        for value in [json!(0), json!(-1), json!(u64::MAX), json!(1e300), json!(2.5), json!("8"), json!([]), json!({})]
        {
            assert_says(&error_with(&format!("/{size}"), value), &format!("text_config.{size} is "));
        }
        let mut config = good();
        config["text_config"].as_object_mut().unwrap().remove(size);
        assert_says(&error(&config), &format!("text_config.{size} is missing"));
    }
    let mut config = good();
    config["text_config"].as_object_mut().unwrap().remove("layer_types");
    config["text_config"]["full_attention_interval"] = json!(0);
    assert_says(&error(&config), "text_config.full_attention_interval is 0");
}

#[test]
fn the_largest_sizes_that_pass_do_not_overflow() {
    let mut config = good();
    for (size, value) in [
        ("vocab_size", 1 << 21),
        ("hidden_size", 1 << 20),
        ("num_attention_heads", 1 << 12),
        ("num_key_value_heads", 1 << 12),
        ("linear_num_key_heads", 1 << 12),
        ("linear_num_value_heads", 1 << 12),
        ("num_experts", 1 << 12),
        ("moe_intermediate_size", 1 << 20),
        ("shared_expert_intermediate_size", 1 << 20),
    ] {
        config["text_config"][size] = json!(value);
    }
    let config = Config::parse(config.to_string().as_bytes()).unwrap();
    let stack = config.moe.experts.checked_mul(config.moe.expert_width).unwrap().checked_mul(config.hidden_size);
    assert!(stack.unwrap().checked_mul(8).is_some(), "in bits");
    assert_eq!(config.delta_net.conv_channels(), 3 << 19);
}

#[test]
fn other_spellings_of_the_same_config_pass() {
    let expected = Config::parse(good().to_string().as_bytes()).unwrap();
    let mut config = good();
    let text = config["text_config"].as_object_mut().unwrap();
    for absent in ["attn_output_gate", "attention_bias", "hidden_act", "tie_word_embeddings", "partial_rotary_factor"] {
        text.remove(absent);
    }
    text.insert("norm_topk_prob".into(), json!(true));
    let rope = text["rope_parameters"].as_object_mut().unwrap();
    rope.remove("type");
    rope.insert("rope_type".into(), json!("default"));
    assert_eq!(Config::parse(config.to_string().as_bytes()).unwrap(), expected);
    config["text_config"]["rope_parameters"] = json!({"rope_theta": 1e7});
    config["text_config"]["partial_rotary_factor"] = json!(0.25);
    assert_eq!(Config::parse(config.to_string().as_bytes()).unwrap(), expected);
}

#[test]
fn other_models_are_named() {
    for (model_type, expected) in [
        (json!("qwen3"), "model_type is \"qwen3\", a dense Qwen"),
        (json!("qwen3_5"), "model_type is \"qwen3_5\", a dense Qwen"),
        (json!("qwen3_next"), "another Qwen mixture of experts"),
        (json!("llama"), "model_type is \"llama\", another architecture"),
        (json!(null), "model_type is missing"),
    ] {
        let mut config = good();
        config["model_type"] = model_type;
        let error = error(&config);
        assert_says(&error, expected);
        assert_says(&error, "Lily runs mlx-community/Qwen3.6-35B-A3B-4bit");
    }
    let mut config = good();
    config.as_object_mut().unwrap().remove("text_config");
    assert_says(&error(&config), "text_config is missing");
}

#[test]
fn what_is_not_a_config_is_said() {
    for (bytes, expected) in [
        (&b""[..], "not JSON"),
        (b"{\"model_type\": \"qw", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "not a JSON object"),
    ] {
        assert_says(&Config::parse(bytes).unwrap_err().to_string(), expected);
    }
    let deep = "[".repeat(100_000);
    assert_says(&Config::parse(deep.as_bytes()).unwrap_err().to_string(), "not JSON");
}

proptest! {
    /// Whatever stands in a field, the answer is a config or an error.
    #[test]
    fn no_value_panics(field in 0..64_usize, value in prop_oneof![
        any::<f64>().prop_map(|number| json!(number)), any::<u64>().prop_map(|number| json!(number)),
        (0..300_u64).prop_map(|number| json!(number)), any::<String>().prop_map(|text| json!(text)),
    ]) {
        let mut config = good();
        let text = config["text_config"].as_object_mut().unwrap();
        let key = text.keys().nth(field % text.len()).unwrap().clone();
        text[&key] = value;
        let _ = Config::parse(config.to_string().as_bytes());
    }
}

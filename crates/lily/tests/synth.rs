//! `lily synth`: what it writes runs as a model should, and it writes a whole checkpoint or nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use lily_backend::{Backend, Output as Computed, Segment, Want};
use lily_checkpoint::{Bytes, Checkpoint, Config, Matrices, Weights};
use lily_cpu::{CpuBackend, Options};
use serde_json::{Value, json};
use tempfile::TempDir;

fn lily(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lily"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn output(args: &[&str]) -> Output {
    lily(args).output().expect("the program starts")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// The 35B's config with other sizes, in a file.
fn config(dir: &Path, sizes: &Value) -> PathBuf {
    let full_size = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/qwen3.6-35b-a3b/config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(full_size).expect("the config")).expect("JSON");
    config["text_config"]["layer_types"] = Value::Null;
    for (key, value) in sizes.as_object().expect("sizes") {
        config["text_config"][key] = value.clone();
    }
    let path = dir.join("config.json");
    fs::write(&path, config.to_string()).expect("writes");
    path
}

/// As deep as the 35B and with as many choices a token, and narrow.
fn deep_and_narrow(experts: usize) -> Value {
    json!({
        "num_hidden_layers": 40, "hidden_size": 256, "vocab_size": 6144, "num_attention_heads": 2,
        "num_key_value_heads": 1, "linear_num_key_heads": 1, "linear_num_value_heads": 2, "num_experts": experts,
        "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64,
    })
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("a directory");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
    names.sort();
    names
}

/// Fails with all of these words, and leaves nothing behind.
#[track_caller]
fn refuses(place: &Path, args: &[&str], expected: &[&str]) {
    let before = names(place);
    let output = output(args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {error}");
    for expected in expected {
        assert!(error.contains(expected), "{args:?}: {error}");
    }
    assert_eq!(names(place), before);
}

#[test]
fn what_it_writes_is_inspected_and_run() {
    let place = TempDir::new().expect("a directory");
    let config = config(place.path(), &deep_and_narrow(16));
    let dir = place.path().join("model");
    // An empty directory is as good as none.
    fs::create_dir(&dir).expect("a directory");
    let written = output(&["synth", text(&dir), "--config", text(&config), "--seed", "3"]);
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    assert!(String::from_utf8_lossy(&written.stdout).contains("MB in "));
    assert_eq!(names(place.path()), ["config.json", "model"]);
    assert_eq!(
        names(&dir),
        [
            "chat_template.jinja",
            "config.json",
            "generation_config.json",
            "model-00001-of-00001.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json",
            "tokenizer_config.json"
        ]
    );
    let inspected = output(&["inspect", "--model", text(&dir)]);
    assert!(String::from_utf8_lossy(&inspected.stdout).contains("layers      40 (30 Gated DeltaNet, 10 attention)"));
    let answer = output(&["run", "hello", "--model", text(&dir), "--max-tokens", "3"]);
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
}

#[test]
fn it_refuses_before_it_writes() {
    let place = TempDir::new().expect("a directory");
    let config_of = |name: &str, sizes: Value| {
        let dir = place.path().join(name);
        fs::create_dir(&dir).expect("a directory");
        config(&dir, &sizes)
    };
    let good = config_of("good", deep_and_narrow(8));
    let refuses = |dir: &str, config: &Path, expected: &[&str]| {
        refuses(place.path(), &["synth", text(&place.path().join(dir)), "--config", text(config)], expected);
    };
    refuses("good", &good, &["good exists and is not empty"]);
    refuses("good/config.json", &good, &["exists and is not a directory"]);
    refuses("none/model", &good, &["none is not a directory: make it first"]);
    refuses("model", &place.path().join("nowhere"), &["give qwen3.6-35b-a3b or the path of a config.json"]);
    let narrow = config_of("narrow", json!({ "vocab_size": 6112 }));
    refuses("model", &narrow, &["vocab_size is 6112", "6113"]);
    let wrong = config_of("wrong", json!({ "head_dim": 128 }));
    refuses("model", &wrong, &["head_dim is 128, expected 256"]);
    let sizes = json!({ "num_hidden_layers": 1024, "hidden_size": 1 << 19, "num_experts": 4096 });
    let huge = config_of("huge", sizes);
    refuses("model", &huge, &[" free, the checkpoint needs ", "PB"]);
    fs::create_dir(place.path().join("model.partial")).expect("a directory");
    refuses("model", &good, &["model.partial exists: another run is at work, or was killed"]);
}

#[test]
fn an_interruption_leaves_nothing() {
    let place = TempDir::new().expect("a directory");
    // 0.8 GB, which no disk takes before the signal comes.
    let sizes = json!({ "num_hidden_layers": 1, "vocab_size": 248_320, "num_experts": 64 });
    let config = config(place.path(), &sizes);
    let dir = place.path().join("model");
    for signal in ["-INT", "-TERM"] {
        let child = lily(&["synth", text(&dir), "--config", text(&config)]).spawn().expect("the program starts");
        let shard = place.path().join("model.partial/model-00001-of-00001.safetensors");
        while fs::metadata(&shard).map_or(0, |shard| shard.len()) == 0 {
            sleep(Duration::from_millis(2));
        }
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().expect("kill starts");
        assert!(sent.success());
        let output = child.wait_with_output().expect("the program ends");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && error.contains("interrupted"), "{error}");
        assert_eq!(names(place.path()), ["config.json"]);
    }
}

/// Runs `tokens` and gives the logits of each.
fn logits(config: &Config, weights: Weights, tokens: &[u32]) -> Vec<f32> {
    let options = Options { threads: 0, max_context: 4096, simd: None };
    let mut backend = CpuBackend::from_weights(config, weights, options).expect("threads");
    let mut state = backend.create().expect("memory");
    let outputs = backend.forward(&mut [Segment { state: &mut state, tokens, want: Want::Logits }]);
    match outputs.expect("a valid segment").pop() {
        Some(Computed::Logits(logits)) => logits,
        other => panic!("asked for logits, got {other:?}"),
    }
}

/// The stack with all weights 0.
fn zeroed(matrices: &Matrices) -> Matrices {
    let zeros = Bytes::from(vec![0; matrices.scales.len()]);
    Matrices { scales: zeros.clone(), biases: zeros, ..matrices.clone() }
}

/// How often each expert of a layer is chosen, from the logits of its router. The router is put in the place of the
/// head, behind its own norm, and the experts of its layer are silenced; so the head sees what the router sees.
fn chosen(checkpoint: &Checkpoint, layer: usize, tokens: &[u32]) -> Vec<usize> {
    let (mut config, mut weights) = (checkpoint.config.clone(), checkpoint.weights.clone());
    config.layers.truncate(layer + 1);
    weights.layers.truncate(layer + 1);
    let last = weights.layers.last_mut().expect("a layer");
    for experts in [&mut last.moe.experts, &mut last.moe.shared_expert] {
        experts.down_proj = zeroed(&experts.down_proj);
    }
    weights.norm.clone_from(&last.post_attention_layernorm);
    let gate = &last.moe.gate;
    // A token's id must be a row of the head, so there are as many copies of the router as that takes.
    let copies = tokens.iter().map(|&token| token as usize / gate.rows + 1).max().expect("tokens");
    let repeated = |bytes: &Bytes| Bytes::from(bytes.repeat(copies));
    let [weight, scales, biases] = [&gate.weight, &gate.scales, &gate.biases].map(repeated);
    config.vocab_size = copies * gate.rows;
    weights.lm_head = Matrices { rows: config.vocab_size, weight, scales, biases, ..gate.clone() };

    let mut counts = vec![0; gate.rows];
    let (experts, width) = (gate.rows, config.vocab_size);
    for row in logits(&config, weights, tokens).chunks(width) {
        let mut order: Vec<usize> = (0..experts).collect();
        order.sort_by(|&one, &other| row[other].total_cmp(&row[one]));
        order[..config.moe.experts_per_token].iter().for_each(|&expert| counts[expert] += 1);
    }
    counts
}

#[test]
fn forty_layers_stay_finite_and_spread_tokens_over_the_experts() {
    let place = TempDir::new().expect("a directory");
    let config = config(place.path(), &deep_and_narrow(64));
    let dir = place.path().join("model");
    let written = output(&["synth", text(&dir), "--config", text(&config)]);
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    let checkpoint = Arc::new(Checkpoint::open(&dir).expect("opens"));
    assert_eq!(checkpoint.skipped.tensors, 0);

    let tokens: Vec<u32> = (0..300u32).map(|index| index.wrapping_mul(2_654_435_761) % 1024).collect();
    let logits = logits(&checkpoint.config, checkpoint.weights.clone(), &tokens);
    let largest = logits.iter().fold(0f32, |largest, logit| largest.max(logit.abs()));
    assert!(logits.iter().all(|logit| logit.is_finite()) && (1.0..20.0).contains(&largest), "{largest}");

    for layer in [0, 3, 20, 39] {
        let counts = chosen(&checkpoint, layer, &tokens);
        let share = tokens.len() * 8 / counts.len();
        let (idle, most) = (counts.iter().filter(|&&count| count == 0).count(), counts.iter().max().expect("experts"));
        println!("layer {layer}: {idle} experts idle, the busiest chosen {most} times, an equal share is {share}");
        assert!(idle <= counts.len() / 20 && *most <= 5 * share, "layer {layer}: {counts:?}");
    }
}

//! A checkpoint of any size with random weights: what full-size tests and measurements run on where the real one is not.
//!
//! Every number is a function of the seed, the tensor's name and the number's place, so nothing is kept but a buffer.
//! The weights are such that a model of any depth computes as a trained one does: a product's outputs are about as large
//! as its inputs, what a layer adds to the residual stream is small beside it, and the tokens' rows of the embedding
//! stay the larger part of it, so that the router sends different tokens to different experts.

use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::Path;

use half::bf16;
use serde_json::{Map, Value, json};

use crate::assemble::parts;
use crate::layout::{Part, Quantised};
use crate::safetensors::{byte_count, header};
use crate::{Config, Error, TensorInfo};

/// The largest weight file, as mlx-lm cuts them.
const SHARD: u64 = 5 << 30;
/// More than a tensor's entry takes in a header, its name aside.
const HEADER_ENTRY: u64 = 160;
/// Bytes made and written at once; a multiple of every type's width.
const BUFFER: usize = 1 << 20;

/// A synthetic checkpoint that can be written.
pub struct Synthetic {
    config: Config,
    shards: Vec<Shard>,
    /// Names and contents.
    small_files: Vec<(&'static str, Vec<u8>)>,
}

struct Shard {
    name: String,
    header: Vec<u8>,
    tensors: Vec<Tensor>,
}

struct Tensor {
    info: TensorInfo,
    numbers: Numbers,
}

impl Synthetic {
    /// Lays out a checkpoint of this `config.json`. One without `quantization` gets that of the published 4-bit
    /// checkpoint: 8 bits for routers and shared experts' gates. The same seed gives the same bytes on every machine.
    ///
    /// # Errors
    /// Those of [`Config::parse`].
    pub fn new(config_json: &[u8], seed: u64) -> Result<Self, Error> {
        Self::with_shards_of(SHARD, config_json, seed)
    }

    fn with_shards_of(limit: u64, config_json: &[u8], seed: u64) -> Result<Self, Error> {
        let quantised = with_quantization(config_json);
        let config_json = quantised.as_deref().unwrap_or(config_json);
        let config = Config::parse(config_json)?;
        let tensors = parts(&config).into_iter().flat_map(|part| tensors(&part, seed));
        let groups = cut(tensors.collect(), limit);
        let count = groups.len();
        let shard = |(index, tensors): (usize, Vec<Tensor>)| Shard {
            name: format!("model-{:05}-of-{count:05}.safetensors", index + 1),
            header: header(&tensors.iter().map(|tensor| tensor.info.clone()).collect::<Vec<_>>()),
            tensors,
        };
        let shards: Vec<Shard> = groups.into_iter().enumerate().map(shard).collect();
        let index = index(&shards);
        let small_files =
            vec![("config.json", config_json.to_vec()), ("model.safetensors.index.json", index.into_bytes())];
        Ok(Self { config, shards, small_files })
    }

    /// What `config.json` says.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Bytes of all files that [`write`](Self::write) makes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let shards = self.shards.iter().map(|shard| (shard.header.len() as u64).saturating_add(shard.data()));
        let small = self.small_files.iter().map(|(_, content)| content.len() as u64);
        shards.chain(small).fold(0, u64::saturating_add)
    }

    /// Writes the weights, their index and `config.json` into a directory. `progress` hears of bytes written since it
    /// was last called, at most a MiB at once, and ends the work by breaking. What is then there is not removed.
    ///
    /// # Errors
    /// [`Error::Write`], or [`Error::Interrupted`] if `progress` broke.
    pub fn write(&self, dir: &Path, mut progress: impl FnMut(u64) -> ControlFlow<()>) -> Result<(), Error> {
        let mut buffer = vec![0; BUFFER];
        for shard in &self.shards {
            let path = dir.join(&shard.name);
            let failed = |source: io::Error| Error::Write { path: path.clone(), source };
            let mut file = File::create_new(&path).map_err(failed)?;
            file.write_all(&shard.header).map_err(failed)?;
            for tensor in &shard.tensors {
                let mut rest = byte_count(&tensor.info);
                let mut place = 0;
                while rest > 0 {
                    let piece = rest.min(BUFFER as u64) as usize;
                    place = tensor.numbers.fill(place, &mut buffer[..piece]);
                    file.write_all(&buffer[..piece]).map_err(failed)?;
                    rest -= piece as u64;
                    if progress(piece as u64).is_break() {
                        return Err(Error::Interrupted);
                    }
                }
            }
        }
        for (name, content) in &self.small_files {
            let path = dir.join(name);
            fs::write(&path, content).map_err(|source| Error::Write { path, source })?;
        }
        Ok(())
    }
}

impl Shard {
    fn data(&self) -> u64 {
        self.tensors.iter().map(|tensor| byte_count(&tensor.info)).fold(0, u64::saturating_add)
    }
}

/// Cuts the tensors into files of at most `limit` bytes; a tensor larger than that has a file to itself.
fn cut(tensors: Vec<Tensor>, limit: u64) -> Vec<Vec<Tensor>> {
    let mut shards = vec![Vec::new()];
    let mut filled = 0u64;
    for tensor in tensors {
        let size = byte_count(&tensor.info) + tensor.info.name.len() as u64 + HEADER_ENTRY;
        // The length, the metadata and the padding take less than one entry.
        if filled + size + HEADER_ENTRY > limit && filled > 0 {
            shards.push(Vec::new());
            filled = 0;
        }
        filled += size;
        shards.last_mut().expect("never empty").push(tensor);
    }
    shards
}

fn index(shards: &[Shard]) -> String {
    let total = shards.iter().map(Shard::data).fold(0, u64::saturating_add);
    let files = shards.iter().flat_map(|shard| shard.tensors.iter().map(|tensor| (&tensor.info.name, &shard.name)));
    let mut weight_map: Vec<_> = files.collect();
    weight_map.sort();
    let weight_map: Map<String, Value> =
        weight_map.into_iter().map(|(tensor, file)| (tensor.clone(), file.as_str().into())).collect();
    format!("{:#}\n", json!({ "metadata": { "total_size": total }, "weight_map": weight_map }))
}

/// Adds the published checkpoint's `quantization` where there is none.
fn with_quantization(config_json: &[u8]) -> Option<Vec<u8>> {
    let mut config: Map<String, Value> = serde_json::from_slice(config_json).ok()?;
    let keys = ["quantization", "quantization_config"];
    if keys.iter().any(|&key| config.get(key).is_some_and(|value| !value.is_null())) {
        return None;
    }
    let layers = config.get("text_config")?.get("num_hidden_layers")?.as_u64()?;
    let mut quantization = json!({ "group_size": 64, "bits": 4, "mode": "affine" });
    // As many as a config may ask for; what a wrong number means, the config's own check says.
    for layer in 0..layers.min(1 << 10) {
        for gate in ["gate", "shared_expert_gate"] {
            quantization[format!("language_model.model.layers.{layer}.mlp.{gate}")] =
                json!({ "group_size": 64, "bits": 8 });
        }
    }
    for key in keys {
        config.insert(key.to_owned(), quantization.clone());
    }
    Some(format!("{:#}\n", Value::Object(config)).into_bytes())
}

/// Numbers that look random, by their place.
struct Numbers {
    key: u64,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    /// Quantised weights, all values alike.
    Words,
    /// bf16 scales around `scale`, times `factor`: one with the same key and another factor fits these group by group.
    Groups { scale: f32, factor: f32 },
    /// bf16 from `low` to `high`.
    Halves { low: f32, high: f32 },
    /// fp32 from `low` to `high`.
    Floats { low: f32, high: f32 },
}

fn tensors(part: &Part, seed: u64) -> Vec<Tensor> {
    match part {
        Part::Quantised(quantised) => quantised_tensors(quantised, seed).into(),
        Part::Floats(info) => {
            let (low, high) = range(&info.name);
            let kind = if info.dtype == "F32" { Kind::Floats { low, high } } else { Kind::Halves { low, high } };
            vec![Tensor { numbers: Numbers { key: key(seed, &info.name), kind }, info: info.clone() }]
        }
    }
}

/// With q uniform in 0..=m, w = q·s + b is centred for b = −s·m/2, and its deviation is s·√((m + 1)² − 1)/√12.
fn quantised_tensors(part: &Quantised, seed: u64) -> [Tensor; 3] {
    let values = (1u32 << part.bits.count()) as f32;
    let scale = deviation(&part.module, part.cols) * (12.0 / (values * values - 1.0)).sqrt();
    let [weight, scales, biases] = part.tensors();
    let weight_key = key(seed, &weight.name);
    let group_key = key(seed, &scales.name);
    let groups = |info, factor| {
        let kind = Kind::Groups { scale, factor };
        Tensor { info, numbers: Numbers { key: group_key, kind } }
    };
    [
        Tensor { info: weight, numbers: Numbers { key: weight_key, kind: Kind::Words } },
        groups(scales, 1.0),
        groups(biases, -(values - 1.0) / 2.0),
    ]
}

/// The standard deviation of a module's weights. An embedding's row is as large as what a norm makes of it; a product
/// of a normalised input is as large as its input, or, where it is added to the residual stream, half as large.
fn deviation(module: &str, cols: usize) -> f32 {
    let name = module.rsplit('.').next().unwrap_or(module);
    match name {
        "embed_tokens" => 1.0,
        "o_proj" | "out_proj" | "down_proj" => 0.5 / (cols as f32).sqrt(),
        _ => 1.0 / (cols as f32).sqrt(),
    }
}

/// The range of a small vector: as models of this architecture are initialised, and norms around 1.
fn range(name: &str) -> (f32, f32) {
    if name.ends_with(".A_log") {
        (0.0, 2.75) // log of decay rates from 1 to 16
    } else if name.ends_with(".dt_bias") {
        (-6.9, -2.25) // softplus gives time steps of 0.001 to 0.1
    } else if name.ends_with(".conv1d.weight") {
        (-0.85, 0.85) // four taps with a deviation of 1/2 each
    } else {
        (0.75, 1.25)
    }
}

impl Numbers {
    /// Fills a buffer with the numbers from `place` on, and gives the place after them.
    fn fill(&self, place: u64, buffer: &mut [u8]) -> u64 {
        match self.kind {
            Kind::Words => {
                let (words, tail) = buffer.as_chunks_mut();
                let after = write_all(place, words, |place| mix(self.key, place).to_le_bytes());
                tail.copy_from_slice(&mix(self.key, after).to_le_bytes()[..tail.len()]);
                after + u64::from(!tail.is_empty())
            }
            Kind::Groups { scale, factor } => write_all(place, buffer.as_chunks_mut().0, |place| {
                let scale = bf16::from_f32(scale * uniform(self.key, place, 0.75, 1.25));
                bf16::from_f32(scale.to_f32() * factor).to_le_bytes()
            }),
            Kind::Halves { low, high } => write_all(place, buffer.as_chunks_mut().0, |place| {
                bf16::from_f32(uniform(self.key, place, low, high)).to_le_bytes()
            }),
            Kind::Floats { low, high } => {
                write_all(place, buffer.as_chunks_mut().0, |place| uniform(self.key, place, low, high).to_le_bytes())
            }
        }
    }
}

fn write_all<const N: usize>(first: u64, out: &mut [[u8; N]], number: impl Fn(u64) -> [u8; N]) -> u64 {
    for (place, out) in (first..).zip(out.iter_mut()) {
        *out = number(place);
    }
    first + out.len() as u64
}

/// In [low, high), in steps of 2^-24 of it.
fn uniform(key: u64, place: u64, low: f32, high: f32) -> f32 {
    low + (high - low) * ((mix(key, place) >> 40) as f32 / (1u32 << 24) as f32)
}

/// A seed for a name.
fn key(seed: u64, name: &str) -> u64 {
    name.bytes().fold(seed, |key, byte| mix(key, byte.into()))
}

/// The `place`-th number of a sequence that begins at `key` (SplitMix64, which passes the usual tests of randomness).
fn mix(key: u64, place: u64) -> u64 {
    let mut bits = key.wrapping_add(place.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Checkpoint;

    fn config(vocab_size: usize) -> String {
        let config: &[u8] = include_bytes!("../../../models/qwen3.6-35b-a3b/config.json");
        let mut config: Value = serde_json::from_slice(config).unwrap();
        for (key, value) in [
            ("num_hidden_layers", json!(2)),
            ("layer_types", json!(["linear_attention", "full_attention"])),
            ("hidden_size", json!(128)),
            ("num_attention_heads", json!(2)),
            ("num_key_value_heads", json!(1)),
            ("linear_num_key_heads", json!(1)),
            ("linear_num_value_heads", json!(2)),
            ("num_experts", json!(8)),
            ("moe_intermediate_size", json!(64)),
            ("shared_expert_intermediate_size", json!(64)),
            ("vocab_size", json!(vocab_size)),
        ] {
            config["text_config"][key] = value;
        }
        config["eos_token_id"] = json!(0);
        config.to_string()
    }

    #[test]
    fn shards_stay_below_the_limit_and_open_together() {
        const LIMIT: u64 = 100_000;
        let synthetic = Synthetic::with_shards_of(LIMIT, config(64).as_bytes(), 1).unwrap();
        let dir = tempfile::tempdir().unwrap();
        synthetic.write(dir.path(), |_| ControlFlow::Continue(())).unwrap();
        fs::write(dir.path().join("tokenizer.json"), "{}").unwrap();
        assert!(synthetic.shards.len() > 3);
        for shard in &synthetic.shards {
            let length = fs::metadata(dir.path().join(&shard.name)).unwrap().len();
            assert_eq!(length, shard.header.len() as u64 + shard.data());
            assert!(length <= LIMIT, "{length} bytes");
            assert!(shard.header.len().is_multiple_of(8));
        }
        assert_eq!(Checkpoint::open(dir.path()).unwrap().skipped.tensors, 0);
    }

    #[test]
    fn a_tensor_above_the_limit_has_a_shard_to_itself() {
        let synthetic = Synthetic::with_shards_of(1000, config(64).as_bytes(), 1).unwrap();
        assert_eq!(synthetic.shards[0].tensors[0].info.name, "language_model.model.embed_tokens.weight");
        for shard in &synthetic.shards {
            assert!(shard.tensors.len() == 1 || shard.header.len() as u64 + shard.data() <= 1000);
        }
    }

    /// Also where one tensor is written in several buffers, and in what pieces does not matter.
    #[test]
    fn numbers_are_a_function_of_their_place() {
        for kind in [Kind::Words, Kind::Groups { scale: 0.1, factor: -7.5 }, Kind::Floats { low: 0.0, high: 1.0 }] {
            let numbers = Numbers { key: 7, kind };
            let mut whole = vec![0; 96];
            let end = numbers.fill(0, &mut whole);
            let mut pieces = vec![0; 96];
            let middle = numbers.fill(0, &mut pieces[..32]);
            assert_eq!(numbers.fill(middle, &mut pieces[32..]), end);
            assert_eq!(whole, pieces);
        }
        let mut odd = [0; 12];
        Numbers { key: 7, kind: Kind::Words }.fill(0, &mut odd);
        assert_ne!(odd[8..], [0; 4], "half a word at the end is filled too");
    }

    #[test]
    fn what_no_machine_holds_is_counted_without_overflow() {
        let mut config: Value = serde_json::from_str(&config(1 << 21)).unwrap();
        for (key, value) in [
            ("num_hidden_layers", json!(1024)),
            ("layer_types", Value::Null),
            ("hidden_size", json!(1 << 20)),
            ("num_experts", json!(1 << 12)),
            ("moe_intermediate_size", json!(1 << 20)),
        ] {
            config["text_config"][key] = value;
        }
        let bytes = Synthetic::new(config.to_string().as_bytes(), 0).unwrap().bytes();
        assert!(bytes > 1 << 62, "{bytes}");
    }
}

//! `config.json`: the sizes of the model, within the one architecture, and what the kernels take for granted.

use serde_json::{Map, Value};

use crate::{Error, GROUP, Quantization};

/// The sizes of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Rows of the embedding and of the logits, padding rows included.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// The mixer of each layer, from first to last.
    pub layers: Vec<LayerKind>,
    /// Sizes of the attention layers.
    pub attention: AttentionConfig,
    /// Sizes of the DeltaNet layers.
    pub delta_net: DeltaNetConfig,
    /// Sizes of the mixture of experts.
    pub moe: MoeConfig,
    /// ε of every RMSNorm.
    pub rms_norm_eps: f32,
    /// Tokens of the longest sequence the model was trained for.
    pub max_position_embeddings: usize,
    /// Bits of each module.
    pub quantization: Quantization,
}

/// How a layer mixes positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerKind {
    /// `linear_attention` in the files.
    DeltaNet,
    /// `full_attention` in the files.
    Attention,
}

/// Sizes of gated full attention.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionConfig {
    /// Query heads, a multiple of `kv_heads`.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// 256.
    pub head_dim: usize,
    /// Leading dimensions of a head that RoPE turns: 64.
    pub rotary_dims: usize,
    /// RoPE's base.
    pub rope_theta: f64,
}

impl AttentionConfig {
    /// Width of all query heads together.
    #[must_use]
    pub const fn query_size(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all key heads together, and of all value heads.
    #[must_use]
    pub const fn kv_size(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}

/// Sizes of Gated DeltaNet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeltaNetConfig {
    /// Query and key heads.
    pub key_heads: usize,
    /// Value heads, a multiple of `key_heads`; value head j uses key head j / (value_heads / key_heads).
    pub value_heads: usize,
    /// 128, for keys and values alike.
    pub head_dim: usize,
    /// Taps of the causal convolution: 4.
    pub conv_width: usize,
}

impl DeltaNetConfig {
    /// Width of all query heads together, and of all key heads.
    #[must_use]
    pub const fn key_size(&self) -> usize {
        self.key_heads * self.head_dim
    }

    /// Width of all value heads together.
    #[must_use]
    pub const fn value_size(&self) -> usize {
        self.value_heads * self.head_dim
    }

    /// Channels of the convolution: q, k and v.
    #[must_use]
    pub const fn conv_channels(&self) -> usize {
        2 * self.key_size() + self.value_size()
    }
}

/// Sizes of the mixture of experts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoeConfig {
    /// Routed experts of a layer.
    pub experts: usize,
    /// Experts a token passes: 8.
    pub experts_per_token: usize,
    /// Inner width of a routed expert.
    pub expert_width: usize,
    /// Inner width of the shared expert.
    pub shared_expert_width: usize,
}

// Upper bounds of what a config may say. They are far above any model of this architecture and so low that no product
// of sizes can overflow: the largest matrix stack has 2^12 · 2^20 · 2^20 weights.
const MAX_LAYERS: usize = 1 << 10;
const MAX_HEADS: usize = 1 << 12;
const MAX_EXPERTS: usize = 1 << 12;
const MAX_WIDTH: usize = 1 << 20;
const MAX_VOCABULARY: usize = 1 << 21;
const MAX_POSITIONS: usize = 1 << 30;

impl Config {
    /// Layers of a kind.
    #[must_use]
    pub fn count(&self, kind: LayerKind) -> usize {
        self.layers.iter().filter(|&&layer| layer == kind).count()
    }

    /// Reads a `config.json` and checks that it describes a model Lily's kernels can run.
    ///
    /// # Errors
    /// [`Error::Config`] names the field, what it says and what was expected; [`Error::Corrupt`] if it is not JSON.
    pub fn parse(json: &[u8]) -> Result<Self, Error> {
        let root: Value = serde_json::from_slice(json).map_err(|error| Error::Corrupt {
            file: "config.json".into(),
            problem: format!("not JSON: {error}: is the download complete?"),
        })?;
        let Some(root) = root.as_object() else {
            return Err(Error::Config("not a JSON object".into()));
        };
        check_model_type(root)?;
        let quantization = Quantization::parse(root)?;
        let top = Section { path: "", fields: root };
        let text = top.section("text_config")?;

        text.expect("model_type", "qwen3_5_moe_text".into(), true)?;
        text.expect("hidden_act", "silu".into(), true)?;
        text.expect("attn_output_gate", true.into(), true)?;
        text.expect("attention_bias", false.into(), true)?;
        text.expect("norm_topk_prob", true.into(), true)?;
        text.expect("tie_word_embeddings", false.into(), true)?;
        top.expect("tie_word_embeddings", false.into(), true)?;
        text.expect("head_dim", 256.into(), false)?;
        text.expect("linear_key_head_dim", 128.into(), false)?;
        text.expect("linear_value_head_dim", 128.into(), false)?;
        text.expect("linear_conv_kernel_dim", 4.into(), false)?;
        text.expect("num_experts_per_tok", 8.into(), false)?;

        let config = Self {
            vocab_size: text.size("vocab_size", MAX_VOCABULARY)?,
            hidden_size: text.width("hidden_size")?,
            layers: layers(&text)?,
            attention: AttentionConfig {
                heads: text.size("num_attention_heads", MAX_HEADS)?,
                kv_heads: text.size("num_key_value_heads", MAX_HEADS)?,
                head_dim: 256,
                rotary_dims: 64,
                rope_theta: rope_theta(&text)?,
            },
            delta_net: DeltaNetConfig {
                key_heads: text.size("linear_num_key_heads", MAX_HEADS)?,
                value_heads: text.size("linear_num_value_heads", MAX_HEADS)?,
                head_dim: 128,
                conv_width: 4,
            },
            moe: MoeConfig {
                experts: text.size("num_experts", MAX_EXPERTS)?,
                experts_per_token: 8,
                expert_width: text.width("moe_intermediate_size")?,
                shared_expert_width: text.width("shared_expert_intermediate_size")?,
            },
            rms_norm_eps: text.positive("rms_norm_eps")? as f32,
            max_position_embeddings: text.size("max_position_embeddings", MAX_POSITIONS)?,
            quantization,
        };
        let multiple = |what: &str, value: usize, of_what: &str, of: usize| {
            if value.is_multiple_of(of) {
                return Ok(());
            }
            Err(Error::Config(format!("{what} is {value}, expected a multiple of {of_what} ({of})")))
        };
        let (attention, delta_net) = (&config.attention, &config.delta_net);
        multiple("num_attention_heads", attention.heads, "num_key_value_heads", attention.kv_heads)?;
        multiple("linear_num_value_heads", delta_net.value_heads, "linear_num_key_heads", delta_net.key_heads)?;
        if config.moe.experts < config.moe.experts_per_token {
            return Err(Error::Config(format!("num_experts is {}, expected at least 8", config.moe.experts)));
        }
        Ok(config)
    }
}

/// Says what the model is when it is not the one architecture.
fn check_model_type(root: &Map<String, Value>) -> Result<(), Error> {
    let model_type = root.get("model_type").and_then(Value::as_str);
    let what = match model_type {
        Some("qwen3_5_moe") => return Ok(()),
        None => return Err(Error::Config("model_type is missing, expected \"qwen3_5_moe\"".into())),
        Some("qwen2" | "qwen3" | "qwen3_5" | "qwen3_5_text") => "a dense Qwen",
        Some("qwen2_moe" | "qwen3_moe" | "qwen3_next") => "another Qwen mixture of experts",
        Some(_) => "another architecture",
    };
    Err(Error::Config(format!("model_type is \"{}\", {what}", model_type.unwrap_or_default())))
}

/// `layer_types`, or else every `full_attention_interval`-th layer is attention.
fn layers(text: &Section<'_>) -> Result<Vec<LayerKind>, Error> {
    let count = text.size("num_hidden_layers", MAX_LAYERS)?;
    let Some(types) = text.get("layer_types") else {
        let interval = text.size("full_attention_interval", MAX_LAYERS)?;
        let kind = |layer: usize| {
            if (layer + 1).is_multiple_of(interval) { LayerKind::Attention } else { LayerKind::DeltaNet }
        };
        return Ok((0..count).map(kind).collect());
    };
    let Some(types) = types.as_array().filter(|types| types.len() == count) else {
        return Err(text.wrong("layer_types", types, &format!("a list of num_hidden_layers ({count}) names")));
    };
    types
        .iter()
        .enumerate()
        .map(|(layer, name)| match name.as_str() {
            Some("linear_attention") => Ok(LayerKind::DeltaNet),
            Some("full_attention") => Ok(LayerKind::Attention),
            _ => Err(text.wrong(&format!("layer_types[{layer}]"), name, "\"linear_attention\" or \"full_attention\"")),
        })
        .collect()
}

/// Checks that positions are turned by plain RoPE over a quarter of each head and gives its base. The sections of
/// `mrope_section` only matter for images: for text all three positions are the same.
fn rope_theta(text: &Section<'_>) -> Result<f64, Error> {
    let rope = text.section("rope_parameters")?;
    rope.expect("rope_type", "default".into(), true)?;
    rope.expect("type", "default".into(), true)?;
    let holder = if rope.get("partial_rotary_factor").is_some() { &rope } else { text };
    let factor = holder.positive("partial_rotary_factor")?;
    if factor != 0.25 {
        return Err(Error::Config(format!("partial_rotary_factor is {factor}, expected 0.25 (64 of 256 dimensions)")));
    }
    rope.positive("rope_theta")
}

/// An object of the file, with the path to it for error messages.
struct Section<'a> {
    path: &'static str,
    fields: &'a Map<String, Value>,
}

impl<'a> Section<'a> {
    /// A field; null counts as absent, as it does for transformers.
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.fields.get(key).filter(|value| !value.is_null())
    }

    fn require(&self, key: &str) -> Result<&'a Value, Error> {
        self.get(key).ok_or_else(|| Error::Config(format!("{}{key} is missing", self.path)))
    }

    fn wrong(&self, key: &str, found: &Value, expected: &str) -> Error {
        let mut found = found.to_string();
        if found.chars().count() > 100 {
            found = found.chars().take(100).chain(['…']).collect();
        }
        Error::Config(format!("{}{key} is {found}, expected {expected}", self.path))
    }

    fn section(&self, key: &'static str) -> Result<Section<'a>, Error> {
        let value = self.require(key)?;
        let path = if key == "text_config" { "text_config." } else { "rope_parameters." };
        match value.as_object() {
            Some(fields) => Ok(Section { path, fields }),
            None => Err(self.wrong(key, value, "an object")),
        }
    }

    /// The field must have this value; if `optional` it may be absent.
    fn expect(&self, key: &str, expected: Value, optional: bool) -> Result<(), Error> {
        match self.get(key) {
            None if optional => Ok(()),
            None => Err(Error::Config(format!("{}{key} is missing, expected {expected}", self.path))),
            Some(found) if *found == expected => Ok(()),
            Some(found) => Err(self.wrong(key, found, &expected.to_string())),
        }
    }

    fn size(&self, key: &str, max: usize) -> Result<usize, Error> {
        let value = self.require(key)?;
        value
            .as_u64()
            .and_then(|size| usize::try_from(size).ok())
            .filter(|size| (1..=max).contains(size))
            .ok_or_else(|| self.wrong(key, value, &format!("a whole number from 1 to {max}")))
    }

    /// A size that is the width of quantised matrices.
    fn width(&self, key: &str) -> Result<usize, Error> {
        let width = self.size(key, MAX_WIDTH)?;
        if !width.is_multiple_of(GROUP) {
            return Err(Error::Config(format!("{}{key} is {width}, expected a multiple of {GROUP}", self.path)));
        }
        Ok(width)
    }

    /// A number above zero that an f32 can hold.
    fn positive(&self, key: &str) -> Result<f64, Error> {
        let value = self.require(key)?;
        value
            .as_f64()
            .filter(|number| (f64::from(f32::MIN_POSITIVE)..=f64::from(f32::MAX)).contains(number))
            .ok_or_else(|| self.wrong(key, value, "a number above 0"))
    }
}

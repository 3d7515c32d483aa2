//! The model's sizes as the kernels have them.

use lily_checkpoint::{Config, LayerKind};

use crate::device::Constant;
use crate::error::Error;
use crate::kernels;

pub(crate) const HEAD: usize = kernels::HEAD as usize;
pub(crate) const DELTA_HEAD: usize = kernels::DELTA_HEAD as usize;
pub(crate) const CHOSEN: usize = kernels::CHOSEN as usize;
/// Experts of a row with the shared one.
pub(crate) const RANKS: usize = kernels::RANKS as usize;
pub(crate) const PAGE: usize = kernels::PAGE as usize;
pub(crate) const MAX_DECODE_ROWS: usize = kernels::MAX_DECODE_ROWS as usize;

/// Columns that a SIMD-group of experts_down takes at most.
const MAX_EXPERT_WIDTH: usize = 512;

/// The sizes of a model that the kernels can run.
#[derive(Clone, Debug, PartialEq)]
pub struct Shapes {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rows of the embedding and of the logits.
    pub vocabulary: usize,
    /// Attention.
    pub query_heads: usize,
    /// Attention.
    pub kv_heads: usize,
    /// DeltaNet.
    pub key_heads: usize,
    /// DeltaNet.
    pub value_heads: usize,
    /// Routed ones.
    pub experts: usize,
    /// Of the shared expert too.
    pub expert_width: usize,
    /// The mixers, first to last.
    pub layers: Vec<LayerKind>,
    epsilon: f32,
    rope_theta: f32,
}

impl Shapes {
    /// The sizes of a config.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if a kernel is not made for them.
    pub fn new(config: &Config) -> Result<Self, Error> {
        let (attention, delta_net, moe) = (&config.attention, &config.delta_net, &config.moe);
        let refuse = |what: String| Err(Error::Unsupported(what));
        if moe.experts > kernels::MAX_EXPERTS as usize || !moe.experts.is_multiple_of(32) {
            return refuse(format!(
                "{} experts: a multiple of 32 up to {} is needed",
                moe.experts,
                kernels::MAX_EXPERTS
            ));
        }
        if moe.shared_expert_width != moe.expert_width {
            let (shared, routed) = (moe.shared_expert_width, moe.expert_width);
            return refuse(format!(
                "the shared expert is {shared} wide and the others {routed}: equal widths are needed"
            ));
        }
        if moe.expert_width > MAX_EXPERT_WIDTH {
            return refuse(format!("experts of width {}: {MAX_EXPERT_WIDTH} at most are supported", moe.expert_width));
        }
        let most = (kernels::SAMPLE_BLOCK * kernels::MAX_SAMPLE_BLOCKS) as usize;
        if config.vocab_size > most {
            return refuse(format!("a vocabulary of {} tokens: {most} at most are supported", config.vocab_size));
        }
        if !delta_net.value_heads.is_multiple_of(8) {
            return refuse(format!("{} value heads: a multiple of 8 is needed", delta_net.value_heads));
        }
        let heads = attention.heads / attention.kv_heads;
        if !matches!(heads, 1 | 2 | 4 | 8) {
            return refuse(format!("{heads} query heads a KV head: 1, 2, 4 or 8 are needed"));
        }
        Ok(Self {
            hidden: config.hidden_size,
            vocabulary: config.vocab_size,
            query_heads: attention.heads,
            kv_heads: attention.kv_heads,
            key_heads: delta_net.key_heads,
            value_heads: delta_net.value_heads,
            experts: moe.experts,
            expert_width: moe.expert_width,
            layers: config.layers.clone(),
            epsilon: config.rms_norm_eps,
            rope_theta: attention.rope_theta as f32,
        })
    }

    /// The function constants of `kernels/model.h`, by their index.
    #[must_use]
    pub fn constants(&self) -> Vec<Constant> {
        let sizes = [
            self.hidden,
            self.vocabulary,
            self.query_heads,
            self.kv_heads,
            self.key_heads,
            self.value_heads,
            self.experts,
            self.expert_width,
        ];
        let sizes = sizes.into_iter().map(|size| Constant::Uint(size as u32));
        sizes.chain([self.epsilon, self.rope_theta].map(Constant::Float)).collect()
    }

    /// Layers of a kind.
    #[must_use]
    pub fn count(&self, kind: LayerKind) -> usize {
        self.layers.iter().filter(|&&layer| layer == kind).count()
    }

    /// Of DeltaNet's convolution: q, k and v.
    pub(crate) fn channels(&self) -> usize {
        (2 * self.key_heads + self.value_heads) * DELTA_HEAD
    }

    /// Width of all DeltaNet value heads.
    pub(crate) fn value_size(&self) -> usize {
        self.value_heads * DELTA_HEAD
    }

    /// Width of all query heads.
    pub(crate) fn query_size(&self) -> usize {
        self.query_heads * HEAD
    }

    /// Width of all key heads of attention, and of all its value heads.
    pub(crate) fn kv_size(&self) -> usize {
        self.kv_heads * HEAD
    }

    /// fp32 values of one copy of a DeltaNet layer's conv window.
    pub(crate) fn window(&self) -> usize {
        (kernels::CONV_WIDTH as usize - 1) * self.channels()
    }

    /// fp32 values of one copy of a DeltaNet layer's recurrent state.
    pub(crate) fn state(&self) -> usize {
        self.value_heads * DELTA_HEAD * DELTA_HEAD
    }
}

#[cfg(test)]
mod tests {
    use lily_checkpoint::Config;

    use super::Shapes;

    type Change = fn(&mut Config);

    #[test]
    fn what_the_kernels_cannot_run_is_refused() {
        let full =
            Config::parse(include_bytes!("../../../models/qwen3.6-35b-a3b/config.json")).expect("a sound config");
        assert!(Shapes::new(&full).is_ok());
        let changes: [(Change, &str); 5] = [
            (|config| config.moe.experts = 100, "100 experts"),
            (|config| config.moe.shared_expert_width = 256, "256 wide"),
            (|config| (config.moe.expert_width, config.moe.shared_expert_width) = (768, 768), "width 768"),
            (|config| config.vocab_size = 262_145, "262145"),
            (|config| config.delta_net.value_heads = 36, "36 value heads"),
        ];
        for (change, message) in changes {
            let mut config = full.clone();
            change(&mut config);
            let error = Shapes::new(&config).expect_err(message).to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}

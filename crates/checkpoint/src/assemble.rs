//! The name map: which tensor is which weight, and the shape that the config gives it. One walk over the model serves
//! whoever reads its tensors and whoever writes them.

use std::convert::Infallible;

use crate::layout::{Part, Quantised};
use crate::tensors::Tensors;
use crate::weights::{Attention, DeltaNet, Experts, Layer, Mixer, Moe, Weights};
use crate::{Bytes, Config, Error, LayerKind, Matrices, TensorInfo};

/// Takes the whole text model out of the tensors.
pub(crate) fn assemble(config: &Config, tensors: &mut Tensors) -> Result<Weights, Error> {
    check_layout(config, tensors)?;
    walk(config, tensors)
}

/// The parts of the whole text model, in the order of the walk.
pub(crate) fn parts(config: &Config) -> Vec<Part> {
    let mut list = List(Vec::new());
    let Ok(_) = walk(config, &mut list);
    list.0
}

impl Config {
    /// The tensors of the text model in MLX's layout: those that [`crate::Checkpoint::open`] asks for.
    #[must_use]
    pub fn tensors(&self) -> Vec<TensorInfo> {
        parts(self).iter().flat_map(Part::tensors).collect()
    }

    /// Weights as a checkpoint of this config has them, every matrix without its bytes and every vector of zeros: for work
    /// that asks only for sizes.
    #[must_use]
    pub fn blank_weights(&self) -> Weights {
        let Ok(weights) = walk(self, &mut Blank);
        weights
    }
}

/// What a walk gets the weights from.
pub(crate) trait Source {
    type Error;

    fn matrices(&mut self, part: Quantised) -> Result<Matrices, Self::Error>;

    /// A small tensor, as floats of any type. `part` has the type that MLX writes.
    fn floats(&mut self, part: TensorInfo) -> Result<Vec<f32>, Self::Error>;
}

/// Gives out weights without data.
struct Blank;

impl Source for Blank {
    type Error = Infallible;

    fn matrices(&mut self, part: Quantised) -> Result<Matrices, Infallible> {
        let [weight, scales, biases] = [const { Bytes::from_static(&[]) }; 3];
        let Quantised { count, rows, cols, bits, .. } = part;
        Ok(Matrices { count: count.unwrap_or(1), rows, cols, bits, weight, scales, biases })
    }

    fn floats(&mut self, part: TensorInfo) -> Result<Vec<f32>, Infallible> {
        Ok(vec![0.0; part.shape.iter().product::<u64>() as usize])
    }
}

/// Takes down what is asked for.
struct List(Vec<Part>);

impl Source for List {
    type Error = Infallible;

    fn matrices(&mut self, part: Quantised) -> Result<Matrices, Infallible> {
        self.0.push(Part::Quantised(part.clone()));
        Blank.matrices(part)
    }

    fn floats(&mut self, part: TensorInfo) -> Result<Vec<f32>, Infallible> {
        self.0.push(Part::Floats(part));
        Ok(Vec::new())
    }
}

fn walk<S: Source>(config: &Config, source: &mut S) -> Result<Weights, S::Error> {
    let embedding = [config.vocab_size, config.hidden_size];
    let mut root = Module { config, source, path: "language_model.".into() };
    Ok(Weights {
        embed_tokens: root.linear("model.embed_tokens", embedding)?,
        norm: root.floats("model.norm.weight", &[config.hidden_size])?,
        lm_head: root.linear("lm_head", embedding)?,
        layers: (0..config.layers.len()).map(|layer| root.layer(layer)).collect::<Result<_, _>>()?,
    })
}

/// The same model comes in two layouts: as Hugging Face publishes it, and as MLX rewrites it, with other names, the 1
/// folded into its norms and the convolution turned. Norms can't be told apart by looking, so the convolution decides.
fn check_layout(config: &Config, tensors: &Tensors) -> Result<(), Error> {
    let hugging_face = |what: String| Err(Error::Layout(format!("{what}: Hugging Face's layout, Lily reads MLX's")));
    if !tensors.any_starts_with("language_model.") {
        if tensors.any_starts_with("model.language_model.") {
            return hugging_face("the tensors are named model.language_model.…".into());
        }
        return Err(Error::Layout("no tensor is named language_model.…, as in MLX's layout".into()));
    }
    for (layer, kind) in config.layers.iter().enumerate() {
        let name = format!("language_model.model.layers.{layer}.linear_attn.conv1d.weight");
        let width = config.delta_net.conv_width as u64;
        if *kind == LayerKind::DeltaNet
            && let Some(shape @ &[_, 1, last]) = tensors.shape(&name)
            && last == width
        {
            return hugging_face(format!("layer {layer}: linear_attn.conv1d.weight is {shape:?}"));
        }
    }
    Ok(())
}

/// A place in the tree of names.
struct Module<'a, S> {
    config: &'a Config,
    source: &'a mut S,
    /// Ends in a dot.
    path: String,
}

impl<S: Source> Module<'_, S> {
    fn within(&mut self, name: &str) -> Module<'_, S> {
        Module { config: self.config, path: format!("{}{name}.", self.path), source: self.source }
    }

    fn linear(&mut self, name: &str, shape: [usize; 2]) -> Result<Matrices, S::Error> {
        self.stack(name, None, shape)
    }

    fn stack(&mut self, name: &str, count: Option<usize>, [rows, cols]: [usize; 2]) -> Result<Matrices, S::Error> {
        let module = format!("{}{name}", self.path);
        let bits = self.config.quantization.bits(&module);
        self.source.matrices(Quantised { module, bits, count, rows, cols })
    }

    fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, S::Error> {
        self.typed_floats(name, "BF16", shape)
    }

    fn typed_floats(&mut self, name: &str, dtype: &'static str, shape: &[usize]) -> Result<Vec<f32>, S::Error> {
        let shape = shape.iter().map(|&size| size as u64).collect();
        self.source.floats(TensorInfo { name: format!("{}{name}", self.path), dtype, shape })
    }

    fn layer(&mut self, index: usize) -> Result<Layer, S::Error> {
        let config = self.config;
        let mut layer = self.within(&format!("model.layers.{index}"));
        Ok(Layer {
            input_layernorm: layer.floats("input_layernorm.weight", &[config.hidden_size])?,
            mixer: match config.layers[index] {
                LayerKind::DeltaNet => Mixer::DeltaNet(layer.within("linear_attn").delta_net()?),
                LayerKind::Attention => Mixer::Attention(layer.within("self_attn").attention()?),
            },
            post_attention_layernorm: layer.floats("post_attention_layernorm.weight", &[config.hidden_size])?,
            moe: layer.within("mlp").moe()?,
        })
    }

    fn delta_net(&mut self) -> Result<DeltaNet, S::Error> {
        let (hidden, sizes) = (self.config.hidden_size, &self.config.delta_net);
        Ok(DeltaNet {
            in_proj_qkv: self.linear("in_proj_qkv", [sizes.conv_channels(), hidden])?,
            in_proj_z: self.linear("in_proj_z", [sizes.value_size(), hidden])?,
            in_proj_a: self.linear("in_proj_a", [sizes.value_heads, hidden])?,
            in_proj_b: self.linear("in_proj_b", [sizes.value_heads, hidden])?,
            conv1d: self.floats("conv1d.weight", &[sizes.conv_channels(), sizes.conv_width, 1])?,
            a_log: self.typed_floats("A_log", "F32", &[sizes.value_heads])?,
            dt_bias: self.floats("dt_bias", &[sizes.value_heads])?,
            norm: self.floats("norm.weight", &[sizes.head_dim])?,
            out_proj: self.linear("out_proj", [hidden, sizes.value_size()])?,
        })
    }

    fn attention(&mut self) -> Result<Attention, S::Error> {
        let (hidden, sizes) = (self.config.hidden_size, &self.config.attention);
        Ok(Attention {
            q_proj: self.linear("q_proj", [2 * sizes.query_size(), hidden])?,
            k_proj: self.linear("k_proj", [sizes.kv_size(), hidden])?,
            v_proj: self.linear("v_proj", [sizes.kv_size(), hidden])?,
            o_proj: self.linear("o_proj", [hidden, sizes.query_size()])?,
            q_norm: self.floats("q_norm.weight", &[sizes.head_dim])?,
            k_norm: self.floats("k_norm.weight", &[sizes.head_dim])?,
        })
    }

    fn moe(&mut self) -> Result<Moe, S::Error> {
        let (hidden, sizes) = (self.config.hidden_size, &self.config.moe);
        Ok(Moe {
            gate: self.linear("gate", [sizes.experts, hidden])?,
            shared_expert_gate: self.linear("shared_expert_gate", [1, hidden])?,
            experts: self.within("switch_mlp").experts(Some(sizes.experts), sizes.expert_width)?,
            shared_expert: self.within("shared_expert").experts(None, sizes.shared_expert_width)?,
        })
    }

    fn experts(&mut self, count: Option<usize>, width: usize) -> Result<Experts, S::Error> {
        let hidden = self.config.hidden_size;
        Ok(Experts {
            gate_proj: self.stack("gate_proj", count, [width, hidden])?,
            up_proj: self.stack("up_proj", count, [width, hidden])?,
            down_proj: self.stack("down_proj", count, [hidden, width])?,
        })
    }
}

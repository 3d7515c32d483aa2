//! What the weights of a module look like in MLX's files. Reading and writing both go by this.

use crate::{Bits, GROUP};

/// Name, type and shape of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The whole name, `language_model.model.norm.weight`.
    pub name: String,
    /// As a safetensors header spells it: `BF16`, `F32`, `U32`.
    pub dtype: &'static str,
    /// Row-major, the slowest dimension first.
    pub shape: Vec<u64>,
}

/// One step of the walk over a model's weights.
pub(crate) enum Part {
    Quantised(Quantised),
    Floats(TensorInfo),
}

impl Part {
    /// Its tensors.
    pub(crate) fn tensors(&self) -> Vec<TensorInfo> {
        match self {
            Self::Quantised(quantised) => quantised.tensors().into(),
            Self::Floats(tensor) => vec![tensor.clone()],
        }
    }
}

/// A quantised module: one matrix, or a stack of them.
#[derive(Clone, Debug)]
pub(crate) struct Quantised {
    /// The whole path, `language_model.lm_head`.
    pub(crate) module: String,
    pub(crate) bits: Bits,
    /// Matrices in the stack; `None` for a plain linear layer, whose tensors have two dimensions.
    pub(crate) count: Option<usize>,
    pub(crate) rows: usize,
    /// A multiple of [`GROUP`].
    pub(crate) cols: usize,
}

impl Quantised {
    /// Weight, scales and biases.
    pub(crate) fn tensors(&self) -> [TensorInfo; 3] {
        let tensor = |kind: &str, dtype, width: usize| TensorInfo {
            name: format!("{}.{kind}", self.module),
            dtype,
            shape: self.count.into_iter().chain([self.rows, width]).map(|size| size as u64).collect(),
        };
        let groups = self.cols / GROUP;
        [
            tensor("weight", "U32", self.cols * self.bits.count() / 32),
            tensor("scales", "BF16", groups),
            tensor("biases", "BF16", groups),
        ]
    }
}

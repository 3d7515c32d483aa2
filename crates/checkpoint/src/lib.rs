//! Reads a checkpoint of Qwen3.6-35B-A3B's architecture: its configuration, its tokenizer and template files, and its
//! weights as typed views of memory-mapped safetensors.
//!
//! One layout is read: MLX affine quantisation in groups of [`GROUP`] columns, 4 or 8 bits a module, named as
//! mlx-lm names it. [`Checkpoint::open`] checks every name, type, shape and offset before it gives anything out, and
//! touches no page of a quantised weight, so it takes milliseconds whatever the size. [`Checkpoint::embedded`] is a
//! small trained checkpoint inside the program; [`locate()`] decides which one to run. [`Synthetic`] writes one of any
//! size with random weights.

mod assemble;
mod bytes;
mod checkpoint;
mod config;
mod directory;
mod error;
mod generation;
mod layout;
mod locate;
mod matrix;
mod quantization;
mod safetensors;
mod summary;
mod synthetic;
mod tensors;
mod weights;

pub use bytes::Bytes;
pub use checkpoint::{ChatFiles, Checkpoint};
pub use config::{AttentionConfig, Config, DeltaNetConfig, LayerKind, MoeConfig};
pub use error::{CHECKPOINT, Error, REVISION};
pub use generation::GenerationConfig;
pub use layout::TensorInfo;
pub use locate::{Environment, Located, Source, locate};
pub use matrix::{Bits, GROUP, Matrices, Matrix};
pub use quantization::Quantization;
pub use safetensors::{Tensor, header as safetensors_header, parse as safetensors_tensors};
pub use summary::{Group, Summary};
pub use synthetic::Synthetic;
pub use tensors::Skipped;
pub use weights::{Attention, DeltaNet, Experts, Layer, Mixer, Moe, Weights};

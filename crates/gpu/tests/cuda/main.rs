//! What only an NVIDIA GPU can show. Without one, each test says that it is skipped and passes.
//!
//! `LILY_CUDA_CHECKPOINT=DIR` adds the tests with a large checkpoint; where no DIR is, one with random weights is written there, of
//! the 35B's shapes and, with `LILY_CUDA_LAYERS=4`, of no more than four of its layers.
//! `LILY_CUDA_SERIAL=1` runs every dispatch by itself, so that a fault is reported with its kernel's name.
//! `LILY_CUDA_LENGTHS=512,4096` are the prompts whose speed is measured,
//! `LILY_CUDA_ROWS=2048` the most rows of a step. `LILY_CUDA_ACCURACY=17,512` are the prompts whose logits are compared with the
//! truth, `LILY_CUDA_REFERENCE=512` is the longest of them that the reference is asked about.

mod accuracy;
mod bars;
mod bits;
#[path = "../common/mod.rs"]
mod common;
mod device;
mod draws;
mod full;
mod kernels;
mod long;
mod model;
mod odd;
mod pieces;
mod reference;
mod rows;
mod support;
mod watched;

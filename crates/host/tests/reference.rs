//! The embedded checkpoint through `GpuBackend<HostDevice>` against transformers, nearer than the project's bars ask.
//! `LILY_POSITIONS` takes more of the text.

#[path = "../../gpu/tests/common/bars.rs"]
mod bars;
#[path = "../../gpu/tests/common/tensors.rs"]
mod tensors;

use std::sync::Arc;

use bars::{Bars, FEW, WINDOW};
use lily_checkpoint::Checkpoint;
use lily_gpu::{GpuBackend, Options};
use lily_host::HostDevice;

/// Rows of a step of the many-row way.
const MANY: usize = 128;
const NEAR: Bars = Bars { equal: 0.99, perplexity: 1e-4, mean: 0.005, largest: 0.3 };

fn backend() -> GpuBackend<HostDevice> {
    let checkpoint = Arc::new(Checkpoint::embedded().expect("the embedded checkpoint is whole"));
    let device = HostDevice::new(lily_host::Options::new(1));
    let options = Options { prefill_rows: MANY, run_ahead: false, ..Options::new(WINDOW, 1) };
    GpuBackend::new(device, &checkpoint, options).expect("a backend")
}

/// The text by the kernels for many rows, from the start of its windows.
#[test]
fn text_in_many_rows() {
    bars::text(&mut backend(), 0, bars::positions(256), &[MANY]).check("text, many rows", NEAR);
}

/// A conversation by the kernels for many rows, in uneven chunks.
#[test]
fn prompt_in_many_rows() {
    bars::prompts(&mut backend(), &["chat_think"], 160, &[33, 127]).check("prompt, many rows", NEAR);
}

/// The text by the kernels for few rows: each of their numbers.
#[test]
fn text_in_few_rows() {
    bars::text(&mut backend(), WINDOW, 80, &FEW).check("text, few rows", NEAR);
}

//! What the GPU draws, as `tests/common/draws.rs` has it for every device.

use lily_checkpoint::Checkpoint;
use lily_gpu::device::cuda::CudaDevice;
use lily_gpu::{GpuBackend, Options};

use crate::common::draws;
use crate::support::{device, text};

fn drawing(run_ahead: bool) -> Option<GpuBackend<CudaDevice>> {
    let checkpoint = Checkpoint::embedded().expect("the embedded checkpoint is whole");
    let options = Options { prefill_rows: 256, run_ahead, ..Options::new(1024, draws::SEQUENCES) };
    Some(GpuBackend::new(device()?, &checkpoint, options).unwrap_or_else(|error| panic!("{error}")))
}

#[test]
fn draws_are_the_references() {
    let Some(mut gpu) = drawing(false) else { return };
    draws::draws_are_the_references(&mut gpu, &text(0, 30));
}

#[test]
fn what_penalties_do_is_foreseen() {
    let (Some(ahead), Some(behind)) = (drawing(true), drawing(false)) else { return };
    draws::penalties_are_foreseen(ahead, behind, |_, _| {});
}

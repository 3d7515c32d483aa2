//! The project's bars against transformers, by the first GPU's own kernels and by those of all others. `LILY_POSITIONS` takes
//! another part of the text.

use lily_checkpoint::Checkpoint;
use lily_gpu::device::Tiles;
use lily_gpu::device::cuda::CudaDevice;
use lily_gpu::{GpuBackend, Options};

use crate::common::bars::{self, Bars, CONTEXT, FEW, PROMPTS, TEXT};
use crate::support::{device, tiles};
use crate::watched::{Seen, Watch, Watched};

fn backend(tiles: Tiles) -> GpuBackend<Watched<CudaDevice>> {
    let checkpoint = Checkpoint::embedded().expect("the embedded checkpoint is whole");
    let device = Watched::new(device().expect("there was one"), Watch::new(tiles), Seen::default());
    let options = Options { prefill_rows: 256, run_ahead: false, ..Options::new(CONTEXT, 1) };
    GpuBackend::new(device, &checkpoint, options).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn many_rows_meet_the_bars() {
    for tiles in tiles() {
        let mut gpu = backend(tiles);
        let text = bars::text(&mut gpu, 0, bars::positions(TEXT), &[256]);
        text.check(&format!("{tiles:?}, text"), Bars::PROJECT);
        let prompts = bars::prompts(&mut gpu, &PROMPTS, CONTEXT, &[33, 223]);
        prompts.check(&format!("{tiles:?}, prompts"), Bars::PROJECT);
    }
}

#[test]
fn few_rows_meet_the_bars() {
    for tiles in tiles() {
        let text = bars::text(&mut backend(tiles), 0, bars::positions(TEXT), &FEW);
        text.check(&format!("{tiles:?}, text in few rows"), Bars::PROJECT);
    }
}

//! The bits of a prompt depend neither on how it is cut after multiples of 64 tokens nor on what runs beside it, with the
//! kernels of many rows as with those of few.

use lily_backend::{Backend, Output, Segment, Want};
use lily_checkpoint::Checkpoint;
use lily_gpu::device::cuda::CudaDevice;
use lily_gpu::{GpuBackend, Options, State};

use crate::full;
use crate::support::{TINY_VOCABULARY, device, greedy, logits, next, same_bits, tiles, tokens};
use crate::watched::{Seen, Watch, Watched};

type Gpu = GpuBackend<Watched<CudaDevice>>;

/// Greedy steps after the prompt.
const STEPS: u64 = 8;
/// Tokens of a neighbour, and more for each call and each neighbour.
const BESIDE: usize = 77;
/// Lengths at which tiles, blocks and kinds of kernels end.
const EDGES: [usize; 13] = [9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 511, 512, 513];

/// How a prompt comes.
#[derive(Clone, Copy, Debug)]
struct Way {
    cuts: &'static [usize],
    /// Other prompts in the same calls, before it and after it.
    before: usize,
    after: usize,
    beside: usize,
}

impl Way {
    const fn new(cuts: &'static [usize], before: usize, after: usize) -> Self {
        Self { cuts, before, after, beside: BESIDE }
    }
}

const WAYS: [Way; 9] = [
    Way::new(&[], 0, 0),
    Way::new(&[64], 0, 0),
    Way::new(&[128], 0, 0),
    Way::new(&[192], 0, 0),
    Way::new(&[64, 128, 192], 0, 0),
    Way::new(&[], 0, 1),
    Way::new(&[], 1, 0),
    Way::new(&[], 1, 1),
    Way::new(&[64, 192], 2, 0),
];

/// Alone; in steps of more than 128 rows, for which some products have larger blocks; and of more than 512, whose kernels are others.
const BESIDE_OTHERS: [Way; 3] =
    [WAYS[0], Way { beside: 120, ..Way::new(&[], 0, 1) }, Way { beside: 520, ..Way::new(&[], 1, 0) }];

/// The logits of all of the prompt and of the last of the greedy steps after it, a row each, and the tokens of those.
fn bits(gpu: &mut Gpu, vocabulary: usize, prompt: &[u32], way: Way) -> Vec<f32> {
    let mut states: Vec<State> = (0..=way.before + way.after).map(|_| gpu.create().expect("a slot")).collect();
    let ends = way.cuts.iter().copied().filter(|&cut| cut < prompt.len()).chain([prompt.len()]);
    let (mut told, mut first) = (Vec::new(), 0);
    for (call, end) in ends.enumerate() {
        let mut parts: Vec<Vec<u32>> = (0..states.len())
            .map(|index| tokens(1 + call * 8 + index, vocabulary, way.beside + 40 * call + 10 * index))
            .collect();
        parts[way.before] = prompt[first..end].to_vec();
        first = end;
        let segments = states.iter_mut().zip(&parts).enumerate().map(|(index, (state, tokens))| {
            let want = if index == way.before { Want::Logits } else { Want::Nothing };
            Segment { state, tokens, want }
        });
        let outputs = gpu.forward(&mut segments.collect::<Vec<_>>()).unwrap_or_else(|error| panic!("{error}"));
        match &outputs[way.before] {
            Output::Logits(logits) => told.extend_from_slice(logits),
            other => panic!("asked for logits, got {other:?}"),
        }
    }
    let state = &mut states[way.before];
    let mut drawn = vec![prompt[0]];
    for counter in 0..STEPS {
        let last = [drawn[counter as usize]];
        drawn.push(next(gpu, state, &last, greedy(vocabulary, counter)).0);
    }
    told.extend(logits(gpu, state, &drawn[STEPS as usize..]));
    told.extend(drawn.into_iter().map(f32::from_bits));
    told
}

fn prompts_have_their_bits(checkpoint: &Checkpoint, vocabulary: usize, lengths: &[usize], ways: &[Way]) {
    for tiles in tiles() {
        let Some(device) = device() else { return };
        let device = Watched::new(device, Watch::new(tiles), Seen::default());
        let options = Options { prefill_rows: 1152, ..Options::new(1152, 3) };
        let mut gpu = GpuBackend::new(device, checkpoint, options).unwrap_or_else(|error| panic!("{error}"));
        for &length in lengths {
            let prompt = tokens(0, vocabulary, length);
            let whole = bits(&mut gpu, vocabulary, &prompt, ways[0]);
            for &way in &ways[1..] {
                let other = bits(&mut gpu, vocabulary, &prompt, way);
                let row = whole.chunks(gpu.description().logits).zip(other.chunks(gpu.description().logits));
                let differ = row.enumerate().find(|(_, (whole, other))| !same_bits(whole, other)).map(|(row, _)| row);
                assert_eq!(differ, None, "{tiles:?}, {length} tokens, {way:?}: the first row that is not the same");
            }
        }
        println!("{tiles:?}: {} prompts in {} ways have the same bits", lengths.len(), ways.len());
    }
}

#[test]
fn prompts_cut_and_together_have_the_bits_of_one() {
    let checkpoint = Checkpoint::embedded().expect("the embedded checkpoint is whole");
    prompts_have_their_bits(&checkpoint, TINY_VOCABULARY, &[600, 193, 201, 225, 255, 65, 319], &WAYS);
    prompts_have_their_bits(&checkpoint, TINY_VOCABULARY, &EDGES, &BESIDE_OTHERS);
}

#[test]
fn large_prompts_cut_and_together_have_the_bits_of_one() {
    let Some(checkpoint) = full::checkpoint() else { return };
    prompts_have_their_bits(&checkpoint, checkpoint.config.vocab_size, &[600, 193, 201, 225, 255], &WAYS);
    prompts_have_their_bits(&checkpoint, checkpoint.config.vocab_size, &EDGES, &BESIDE_OTHERS);
}

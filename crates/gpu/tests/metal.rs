//! What only a Mac can show: that Apple's compiler takes the kernels, and that the device keeps what its trait promises.
#![cfg(target_os = "macos")]

mod common;

use std::path::Path;
use std::sync::Arc;

use common::{bars, draws};
use lily_backend::{Backend, Draw, Output, Segment, Want};
use lily_checkpoint::{Bytes, Checkpoint, Config};
use lily_cpu::CpuBackend;
use lily_gpu::device::metal::MetalDevice;
use lily_gpu::device::{Buffer, Device, DeviceError, Range, Tiles};
use lily_gpu::plan::Plan;
use lily_gpu::{GpuBackend, Options, Shapes};

fn open() -> MetalDevice {
    MetalDevice::open().expect("these tests need a GPU that Lily runs on")
}

fn tiny() -> Config {
    Checkpoint::embedded().unwrap().config.clone()
}

fn large() -> Config {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/qwen3.6-35b-a3b/config.json");
    Config::parse(&std::fs::read(path).unwrap()).unwrap()
}

fn filled(device: &mut MetalDevice, bytes: &[u8]) -> Buffer {
    let buffer = device.allocate(bytes.len() as u64, "test").unwrap();
    device.write(buffer.all(), bytes).unwrap();
    buffer
}

fn read(device: &mut MetalDevice, range: Range) -> Vec<u8> {
    let mut bytes = vec![0; range.bytes as usize];
    device.read(range, &mut bytes).unwrap();
    bytes
}

/// Runs everything given to the device so far.
fn finish(device: &mut MetalDevice) {
    let nothing = device.prepare(&Plan::default()).unwrap();
    let ticket = device.submit(&nothing).unwrap();
    device.wait(ticket).unwrap();
}

/// Compiles each kernel for a model's shapes; the error lists all that are refused, those of tensor operations too where the
/// GPU has them.
fn compile_all(config: &Config) {
    let mut device = open();
    device.specialise(&Shapes::new(config).unwrap().constants()).unwrap_or_else(|error| panic!("{error}"));
    println!("{}: {:?}", device.name(), device.limits());
    if let Some(refusal) = device.tensor_refusal() {
        panic!("with tensor operations: {refusal}");
    }
    if device.tiles() != Tiles::Tensor {
        println!("NOT CHECKED: the kernels of tensor operations: this GPU, or this macOS, has none");
    }
}

#[test]
fn every_kernel_compiles_for_the_tiny_model() {
    compile_all(&tiny());
}

#[test]
fn every_kernel_compiles_for_the_35b() {
    compile_all(&large());
}

#[test]
fn copies_and_writes_happen_in_the_order_of_the_calls() {
    let mut device = open();
    let (old, new) = (vec![1u8; 1 << 20], vec![2u8; 4096]);
    let source = filled(&mut device, &old);
    let [first, second, third] = [(); 3].map(|()| filled(&mut device, &vec![9; 1 << 20]));
    device.copy(&[(source.all(), first.all())]).unwrap();
    // The copy is not complete, so this must not reach it.
    device.write(source.all().part(0, 4096), &new).unwrap();
    device.copy(&[(source.all(), second.all()), (first.all().part(0, 64), third.all().part(128, 64))]).unwrap();
    device.clear(&[source.all().part(0, 8), third.all().part(1 << 19, 1 << 19)]).unwrap();
    finish(&mut device);

    assert_eq!(read(&mut device, first.all()), old);
    let second = read(&mut device, second.all());
    assert_eq!((&second[..4096], &second[4096..]), (&new[..], &old[4096..]));
    assert_eq!(read(&mut device, source.all().part(0, 16)), [[0u8; 8], [2; 8]].concat());
    let third = read(&mut device, third.all());
    assert_eq!((third[127], &third[128..192], third[192]), (9, &[1u8; 64][..], 9));
    assert_eq!((third[(1 << 19) - 1], &third[1 << 19..]), (9, &vec![0u8; 1 << 19][..]));
}

#[test]
fn memory_that_is_not_there_is_refused_with_numbers() {
    let mut device = open();
    let limits = device.limits();
    let most = limits.buffer_bytes;
    let error = device.allocate(most + 1, "keys and values").unwrap_err();
    assert!(matches!(&error, DeviceError::Memory { bytes, .. } if *bytes == most + 1), "{error}");
    let text = error.to_string();
    assert!(text.contains(&most.to_string()) && text.contains("keys and values"), "{text}");

    let buffer = device.allocate(64, "test").unwrap();
    device.release(buffer);
    assert!(device.write(buffer.all(), &[0; 4]).is_err());
    assert!(device.copy(&[(buffer.all(), buffer.all())]).is_err());
}

#[test]
fn weights_keep_their_bytes_in_place_and_as_copies() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny");
    for checkpoint in [Checkpoint::open(&directory).unwrap(), Checkpoint::embedded().unwrap()] {
        let weights = &checkpoint.weights;
        let matrices = [&weights.embed_tokens, &weights.lm_head, &weights.layers[0].moe.experts.up_proj];
        let tensors: Vec<Bytes> =
            matrices.iter().flat_map(|m| [m.weight.clone(), m.scales.clone(), m.biases.clone()]).collect();
        let mut device = open();
        let ranges = device.map(&tensors).unwrap();
        for (tensor, range) in tensors.iter().zip(&ranges) {
            assert!(range.offset.is_multiple_of(4), "{range:?}");
            assert_eq!(read(&mut device, *range), **tensor);
        }
        // As kernels see them, through the GPU.
        let copy = device.allocate(ranges[0].bytes, "test").unwrap();
        device.copy(&[(ranges[0], copy.all())]).unwrap();
        finish(&mut device);
        assert_eq!(read(&mut device, copy.all()), *tensors[0]);
    }
}

/// Tokens of a sequence with its prompt, spread over the vocabulary.
fn prompt(length: u32, vocabulary: usize) -> Vec<u32> {
    (0..length).map(|index| index.wrapping_mul(2_654_435_761) % vocabulary as u32).collect()
}

/// Continues prompts greedily, all of them in each step.
fn continued<B: Backend>(backend: &mut B, prompts: &[Vec<u32>], steps: u64, vocabulary: usize) -> Vec<Vec<u32>> {
    let mut states: Vec<B::State> = prompts.iter().map(|_| backend.create().unwrap()).collect();
    let mut sequences = prompts.to_vec();
    let mut done = vec![0; prompts.len()];
    for counter in 0..steps {
        let draw = Draw { counter, ..Draw::greedy(vocabulary) };
        let mut segments: Vec<Segment<'_, B::State>> = states
            .iter_mut()
            .zip(&sequences)
            .zip(&done)
            .map(|((state, tokens), &done)| Segment { state, tokens: &tokens[done..], want: Want::Sample(draw) })
            .collect();
        let outputs = backend.forward(&mut segments).unwrap();
        for ((output, sequence), done) in outputs.into_iter().zip(&mut sequences).zip(&mut done) {
            let Output::Sample(sample) = output else { panic!("{output:?}") };
            *done = sequence.len();
            sequence.push(sample.token);
        }
    }
    sequences
}

/// The tiny model on the GPU draws what the CPU backend holds for the best, or all but: within `MARGIN`, and nearly always
/// the very same. A kernel that computes something else misses by far more.
#[test]
fn the_tiny_model_agrees_with_the_cpu() {
    const MARGIN: f32 = 0.25;
    const STEPS: u64 = 48;
    let checkpoint = Arc::new(Checkpoint::embedded().unwrap());
    let vocabulary = checkpoint.config.vocab_size;
    let mut gpu = GpuBackend::new(open(), &checkpoint, Options::new(2048, 4)).unwrap();
    println!("{}", gpu.description().name);
    let options = lily_cpu::Options { threads: 0, max_context: 2048, simd: None };
    let mut cpu = CpuBackend::new(checkpoint, options).unwrap();

    let (mut drawn, mut equal) = (0, 0);
    for lengths in [&[1][..], &[33], &[700], &[5, 31, 200]] {
        let prompts: Vec<Vec<u32>> = lengths.iter().map(|&length| prompt(length, vocabulary)).collect();
        let sequences = continued(&mut gpu, &prompts, STEPS, vocabulary);
        for (sequence, prompt) in sequences.iter().zip(&prompts) {
            let mut state = cpu.create().unwrap();
            let segment = Segment { state: &mut state, tokens: sequence, want: Want::Logits };
            let Output::Logits(logits) = cpu.forward(&mut [segment]).unwrap().remove(0) else { panic!("no logits") };
            for place in prompt.len()..sequence.len() {
                let row = &logits[(place - 1) * vocabulary..][..vocabulary];
                let best = row.iter().copied().fold(f32::MIN, f32::max);
                let chosen = row[sequence[place] as usize];
                assert!(best - chosen < MARGIN, "token {place} after {} has {chosen}, the best {best}", prompt.len());
                drawn += 1;
                equal += usize::from(best == chosen);
            }
        }
    }
    println!("{equal} of {drawn} tokens are the CPU's");
    assert!(equal * 100 >= drawn * 95, "{equal} of {drawn}");
}

/// The project's bars against transformers, by the kernels for many rows and by those for few. `LILY_POSITIONS` takes another part of
/// the text.
#[test]
fn the_tiny_model_meets_the_bars() {
    let options = Options { prefill_rows: 256, run_ahead: false, ..Options::new(bars::CONTEXT, 1) };
    let mut gpu = GpuBackend::new(open(), &Checkpoint::embedded().unwrap(), options).unwrap();
    let text = bars::text(&mut gpu, 0, bars::positions(bars::TEXT), &[256]);
    text.check("text, many rows", bars::Bars::PROJECT);
    bars::prompts(&mut gpu, &bars::PROMPTS, bars::CONTEXT, &[33, 223]).check("prompts", bars::Bars::PROJECT);
    let text = bars::text(&mut gpu, 0, bars::positions(bars::WINDOW), &bars::FEW);
    text.check("text, few rows", bars::Bars::PROJECT);
}

/// A backend for what is drawn; the tiny model's shapes.
fn drawing(run_ahead: bool) -> GpuBackend<MetalDevice> {
    let options = Options { run_ahead, ..Options::new(1024, draws::SEQUENCES) };
    GpuBackend::new(open(), &Checkpoint::embedded().unwrap(), options).unwrap()
}

#[test]
fn draws_are_the_references() {
    draws::draws_are_the_references(&mut drawing(false), &prompt(30, tiny().vocab_size));
}

#[test]
fn what_penalties_do_is_foreseen() {
    draws::penalties_are_foreseen(drawing(true), drawing(false), |_, _| {});
}

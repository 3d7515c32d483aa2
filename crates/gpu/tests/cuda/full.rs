//! A large checkpoint on the GPU, and how fast it is there. Its directory is `LILY_CUDA_CHECKPOINT`.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, fs};

use lily_backend::{Backend, Want, uniform};
use lily_checkpoint::{Checkpoint, Synthetic};
use lily_gpu::device::cuda::{self, CudaDevice};
use lily_gpu::{GpuBackend, Options, State};

use crate::support::{device_with, greedy, in_crate, next, run};

/// Tokens a sequence may hold, and more than any length measured.
pub(crate) const CONTEXT: usize = 8192;

/// Numbers that an environment variable has.
pub(crate) fn numbers(name: &str, default: &[usize]) -> Vec<usize> {
    let Ok(text) = env::var(name) else { return default.to_vec() };
    text.split(',').map(|part| part.parse().unwrap_or_else(|_| panic!("{name}={text}: no numbers"))).collect()
}

fn lengths() -> Vec<usize> {
    numbers("LILY_CUDA_LENGTHS", &[512, 4096])
}

/// What lies in `LILY_CUDA_CHECKPOINT`. Where nothing does, random weights of the 35B's shapes are written there first, in as
/// many layers as `LILY_CUDA_LAYERS` says.
pub(crate) fn checkpoint() -> Option<Arc<Checkpoint>> {
    let Some(folder) = env::var_os("LILY_CUDA_CHECKPOINT").map(PathBuf::from) else {
        println!("SKIPPED: LILY_CUDA_CHECKPOINT names no checkpoint");
        return None;
    };
    if !folder.exists() {
        write_random(&folder, numbers("LILY_CUDA_LAYERS", &[40])[0]);
    }
    Some(Arc::new(Checkpoint::open(&folder).unwrap_or_else(|error| panic!("{error}"))))
}

fn write_random(folder: &Path, layers: usize) {
    let config = fs::read(in_crate("../../models/qwen3.6-35b-a3b/config.json")).expect("the 35B's config");
    let mut config: serde_json::Value = serde_json::from_slice(&config).expect("JSON");
    let text = &mut config["text_config"];
    text["num_hidden_layers"] = layers.into();
    text["layer_types"].as_array_mut().expect("a list").truncate(layers);
    let synthetic = Synthetic::new(config.to_string().as_bytes(), 1).expect("a sound config");
    // Under another name first: whole or not at all.
    let partial = folder.with_extension("partial");
    fs::create_dir(&partial).expect("a new folder");
    synthetic.write(&partial, |_| ControlFlow::Continue(())).expect("room");
    // No test turns text into tokens.
    fs::write(partial.join("tokenizer.json"), "{}").expect("room");
    fs::rename(&partial, folder).expect("the folder");
}

/// It on the GPU, with so many sequences.
pub(crate) fn gpu(sequences: usize) -> Option<(GpuBackend<CudaDevice>, Arc<Checkpoint>)> {
    gpu_with(sequences, cuda::Options::default())
}

/// The same with such options.
pub(crate) fn gpu_with(sequences: usize, options: cuda::Options) -> Option<(GpuBackend<CudaDevice>, Arc<Checkpoint>)> {
    let checkpoint = checkpoint()?;
    let device = device_with(options)?;
    let start = Instant::now();
    let context = lengths().iter().fold(CONTEXT, |context, length| context.max(length + CONTEXT));
    let standard = Options::new(context, sequences);
    let options = Options { prefill_rows: numbers("LILY_CUDA_ROWS", &[standard.prefill_rows])[0], ..standard };
    let gpu = GpuBackend::new(device, &checkpoint, options).unwrap_or_else(|error| panic!("{error}"));
    println!("{}: loaded in {:.1?}", gpu.description().name, start.elapsed());
    Some((gpu, checkpoint))
}

pub(crate) fn prompt(vocabulary: usize, length: usize) -> Vec<u32> {
    (0..length).map(|place| (f64::from(uniform(3, place as u64)) * vocabulary as f64) as u32).collect()
}

/// The time of a prefill from an empty sequence.
fn prefill(gpu: &mut GpuBackend<CudaDevice>, state: &mut State, tokens: &[u32], vocabulary: usize) -> Duration {
    gpu.truncate(state, 0).expect("to the start");
    let start = Instant::now();
    next(gpu, state, tokens, greedy(vocabulary, 0));
    start.elapsed()
}

#[test]
fn large_speed() {
    let Some((mut gpu, checkpoint)) = gpu(1) else { return };
    let vocabulary = checkpoint.config.vocab_size;
    let mut state = gpu.create().expect("a slot");
    for length in lengths() {
        let tokens = prompt(vocabulary, length);
        let mut times: Vec<Duration> = (0..4).map(|_| prefill(&mut gpu, &mut state, &tokens, vocabulary)).collect();
        // Plans are made in the first.
        let first = times.remove(0);
        times.sort();
        let rate = length as f64 / times[1].as_secs_f64();
        println!("prefill of {length}: {rate:.0} tok/s ({times:.1?}, first {first:.1?})");

        let (mut token, mut steps) = (tokens[0], Vec::new());
        for counter in 1..=136 {
            let start = Instant::now();
            token = next(&mut gpu, &mut state, &[token], greedy(vocabulary, counter)).0;
            steps.push(start.elapsed());
        }
        let sum: Duration = steps[8..].iter().sum();
        steps[8..].sort();
        let rate = (steps.len() - 8) as f64 / sum.as_secs_f64();
        println!("decode at {length}: {rate:.1} tok/s (median step {:.3?})", steps[8 + 64]);
    }
}

/// The time of a step of few tokens more than a few-row step takes, after prompts of so many, multiples of 64: what is left of a
/// prompt whose beginning is cached.
#[test]
fn large_rest_speed() {
    let Some((mut gpu, checkpoint)) = gpu(1) else { return };
    let vocabulary = checkpoint.config.vocab_size;
    let mut state = gpu.create().expect("a slot");
    for length in lengths() {
        gpu.truncate(&mut state, 0).expect("to the start");
        if length > 0 {
            run(&mut gpu, &mut state, &prompt(vocabulary, length), Want::Nothing);
        }
        for rows in [9, 16, 64, 128, 256] {
            let tokens = prompt(vocabulary, rows);
            let mut timed = || {
                let start = Instant::now();
                next(&mut gpu, &mut state, &tokens, greedy(vocabulary, 0));
                let time = start.elapsed();
                // To where the next is not cut.
                let rest = prompt(vocabulary, rows.next_multiple_of(64) - rows);
                if !rest.is_empty() {
                    run(&mut gpu, &mut state, &rest, Want::Nothing);
                }
                time
            };
            // Plans are made in the first.
            let mut times: Vec<Duration> = (0..8).map(|_| timed()).skip(1).collect();
            times.sort();
            println!("{rows} tokens after {length}: {:.2?} ({:.2?} to {:.2?})", times[3], times[0], times[6]);
        }
    }
}

/// A prompt of the first length and a token, for a profiler.
#[test]
fn large_steps() {
    let Some((mut gpu, checkpoint)) = gpu(1) else { return };
    let vocabulary = checkpoint.config.vocab_size;
    let mut state = gpu.create().expect("a slot");
    run(&mut gpu, &mut state, &prompt(vocabulary, lengths()[0]), Want::Nothing);
    next(&mut gpu, &mut state, &[1], greedy(vocabulary, 0));
}

/// Short enough for a sanitizer.
#[test]
fn large_few_tokens() {
    let Some((mut gpu, checkpoint)) = gpu(1) else { return };
    let vocabulary = checkpoint.config.vocab_size;
    let mut state = gpu.create().expect("a slot");
    let mut tokens = prompt(vocabulary, 40);
    for counter in 0..3 {
        tokens = vec![next(&mut gpu, &mut state, &tokens, greedy(vocabulary, counter)).0];
    }
}

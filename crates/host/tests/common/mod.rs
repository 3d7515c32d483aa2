//! What the kernels' tests share: the model's shapes, random data, launching in several orders, and comparing.
#![allow(dead_code, unreachable_pub, unused_imports)]

mod compare;
mod quantised;

pub use compare::{BY_CPU, Bound, PRODUCT_BY_CPU, close, close_to_cpu};
pub use half::{bf16, f16};
pub use lily_host::{Argument, Error, Kernels, Launch};
pub use quantised::Quantised;

/// The function constants of `kernels/model.h`.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub hidden: usize,
    pub vocabulary: usize,
    pub query_heads: usize,
    pub kv_heads: usize,
    pub key_heads: usize,
    pub value_heads: usize,
    pub experts: usize,
    pub expert_width: usize,
}

pub const EPSILON: f32 = 1e-6;
pub const ROPE_THETA: f32 = 1e7;

/// Of `models/tiny`.
pub const TINY: Shape = Shape {
    hidden: 256,
    vocabulary: 6144,
    query_heads: 8,
    kv_heads: 2,
    key_heads: 4,
    value_heads: 8,
    experts: 32,
    expert_width: 64,
};

/// Of Qwen3.6-35B-A3B. Slow where sanitizers watch: see [`full_size`].
pub const QWEN: Shape = Shape {
    hidden: 2048,
    vocabulary: 248_320,
    query_heads: 16,
    kv_heads: 2,
    key_heads: 16,
    value_heads: 32,
    experts: 256,
    expert_width: 512,
};

/// Small, and unlike the others where the dialect leaves room: an odd number of groups, heads that are not powers of
/// two (value heads come in eights), few experts.
pub const ODD: Shape = Shape {
    hidden: 320,
    vocabulary: 1000,
    query_heads: 6,
    kv_heads: 1,
    key_heads: 3,
    value_heads: 24,
    experts: 24,
    expert_width: 192,
};

impl Shape {
    /// The constants' bits, by index.
    pub fn constants(&self) -> [u32; 10] {
        [
            self.hidden as u32,
            self.vocabulary as u32,
            self.query_heads as u32,
            self.kv_heads as u32,
            self.key_heads as u32,
            self.value_heads as u32,
            self.experts as u32,
            self.expert_width as u32,
            EPSILON.to_bits(),
            ROPE_THETA.to_bits(),
        ]
    }

    /// Channels of DeltaNet's convolution.
    pub fn channels(&self) -> usize {
        (2 * self.key_heads + self.value_heads) * 128
    }
}

/// Whether a test should run large shapes: not where a sanitizer or a mutant is at work.
pub fn full_size() -> bool {
    std::env::var_os(Kernels::VARIABLE).is_none()
}

/// The orders that [`launch`] tries: first to last, last to first, one at random.
fn seeds() -> Vec<u64> {
    match std::env::var("LILY_HOST_SEEDS") {
        Ok(seeds) => seeds.split(',').map(|seed| seed.parse().expect("LILY_HOST_SEEDS: numbers")).collect(),
        Err(_) => vec![0, 1, 7],
    }
}

/// Launches a kernel once in each order, each time from the same memory, and asserts that all give the same bits: Metal
/// promises no order. `buffers` are in order of the slots; what was written is in them afterwards.
///
/// # Panics
/// If the kernel fails, or an order gives other bits.
pub fn launch(
    kernel: &str,
    shape: &Shape,
    buffers: &mut [Argument<'_>],
    parameters: &[u32],
    grid: [u32; 3],
    threads: u32,
) {
    try_launch(kernel, shape, buffers, parameters, grid, threads).unwrap_or_else(|error| panic!("{error}"));
}

/// As [`launch`], with the kernel's error.
pub fn try_launch(
    kernel: &str,
    shape: &Shape,
    buffers: &mut [Argument<'_>],
    parameters: &[u32],
    grid: [u32; 3],
    threads: u32,
) -> Result<(), Error> {
    launch_in(&seeds(), kernel, shape, buffers, parameters, grid, threads)
}

/// As [`launch`], in one order at random: for what takes long.
pub fn launch_once(
    kernel: &str,
    shape: &Shape,
    buffers: &mut [Argument<'_>],
    parameters: &[u32],
    grid: [u32; 3],
    threads: u32,
) {
    launch_in(&[7], kernel, shape, buffers, parameters, grid, threads).unwrap_or_else(|error| panic!("{error}"));
}

fn launch_in(
    seeds: &[u64],
    kernel: &str,
    shape: &Shape,
    buffers: &mut [Argument<'_>],
    parameters: &[u32],
    grid: [u32; 3],
    threads: u32,
) -> Result<(), Error> {
    let before: Vec<Vec<u8>> = buffers.iter().map(|buffer| written(buffer).to_vec()).collect();
    let mut first: Option<Vec<Vec<u8>>> = None;
    for &seed in seeds {
        for (buffer, before) in buffers.iter_mut().zip(&before) {
            if let Argument::Write(bytes) = buffer {
                bytes.copy_from_slice(before);
            }
        }
        Kernels::for_tests().launch(Launch {
            kernel,
            constants: &shape.constants(),
            arguments: &mut *buffers,
            parameters: bytemuck::cast_slice(parameters),
            grid,
            threads,
            seed,
            workers: 1,
        })?;
        let after: Vec<Vec<u8>> = buffers.iter().map(|buffer| written(buffer).to_vec()).collect();
        let first = first.get_or_insert_with(|| after.clone());
        for (slot, (first, after)) in first.iter().zip(&after).enumerate() {
            assert!(first == after, "{kernel}: buffer {slot} depends on the order of threads (seed {seed})");
        }
    }
    Ok(())
}

/// The bytes that a launch may change.
fn written<'a>(buffer: &'a Argument<'_>) -> &'a [u8] {
    match buffer {
        Argument::Read(_) => &[],
        Argument::Write(bytes) => bytes,
    }
}

/// Numbers that look random and are the same in every run.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// SplitMix64 (Steele, Lea and Flood, 2014).
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    /// In −1..1.
    pub fn float(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// In −scale..scale.
    pub fn floats(&mut self, count: usize, scale: f32) -> Vec<f32> {
        (0..count).map(|_| self.float() * scale).collect()
    }

    /// As [`floats`](Self::floats), rounded to half.
    pub fn halves(&mut self, count: usize, scale: f32) -> Vec<f16> {
        (0..count).map(|_| f16::from_f32(self.float() * scale)).collect()
    }

    /// 0, 1, … in some order.
    pub fn permutation(&mut self, count: usize) -> Vec<u32> {
        let mut all: Vec<u32> = (0..count as u32).collect();
        for last in (1..count).rev() {
            all.swap(last, self.below(last + 1));
        }
        all
    }
}

/// What a kernel is to write everything into: so that what it leaves out shows.
pub fn unwritten(count: usize) -> Vec<f32> {
    vec![f32::NAN; count]
}

/// As [`unwritten`], in half.
pub fn unwritten_halves(count: usize) -> Vec<f16> {
    vec![f16::NAN; count]
}

//! What this machine does at best, so that figures of the model can be read as shares of it: bytes a second read from
//! memory, and multiply-accumulates a second with the very instruction that the 4-bit products are made of.

use std::collections::TryReserveError;
use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crate::simd::Simd;
use crate::vector::{self, Kernel, LANES, Lanes};

/// Measurements of which the best counts; what disturbs one seldom disturbs all.
const ROUNDS: usize = 8;

/// Bytes a second that `threads` threads together read from memory, each its share of `bytes` in four streams, which is
/// what most processors like best. `bytes` is to be well above all caches. `simd` must be available.
///
/// # Errors
/// If there is no memory for `bytes`.
pub fn read_bandwidth(simd: Simd, threads: usize, bytes: usize) -> Result<f64, TryReserveError> {
    let share = (bytes / threads / size_of::<f32>()).next_multiple_of(STREAMS * LANES);
    let mut buffers = Vec::new();
    for _ in 0..threads {
        let mut buffer: Vec<f32> = Vec::new();
        buffer.try_reserve_exact(share)?;
        buffers.push(buffer);
    }
    let best = best_time(buffers, |buffer| {
        if buffer.is_empty() {
            // Written here and not before, because memory belongs to the processor that touches it first, and untouched
            // memory is one page of zeros.
            buffer.resize(share, 1.0);
        }
        black_box(vector::run(simd, Read(buffer)));
    });
    Ok((threads * share * size_of::<f32>()) as f64 / best.as_secs_f64())
}

/// Multiply-accumulates a second of unsigned with signed bytes that `threads` threads reach together while all operands
/// stay in registers (on [`Simd::Scalar`]: in the nearest cache, with the compiler's instructions). `simd` must be
/// available.
#[must_use]
pub fn multiply_accumulate_peak(simd: Simd, threads: usize) -> f64 {
    assert!(simd.is_available(), "this machine has no {simd}");
    let mut repetitions = 1 << 12;
    // Long enough that starting together does not matter.
    while time_of(simd, repetitions) < Duration::from_millis(20) {
        repetitions *= 2;
    }
    let best = best_time(vec![(); threads], |()| {
        multiply(simd, repetitions);
    });
    threads as f64 * multiply(simd, repetitions) as f64 / best.as_secs_f64()
}

fn time_of(simd: Simd, repetitions: u64) -> Duration {
    let start = Instant::now();
    multiply(simd, repetitions);
    start.elapsed()
}

/// Has one thread for each of `data` do `work` on it, all at once; the shortest time from the first's start to the
/// last's end. A first turn is not counted.
fn best_time<T: Send>(data: Vec<T>, work: impl Fn(&mut T) + Sync) -> Duration {
    let together = Barrier::new(data.len());
    let rounds: Vec<Vec<(Instant, Instant)>> = thread::scope(|scope| {
        let (work, together) = (&work, &together);
        let run = |mut data: T| {
            move || {
                work(&mut data);
                let round = |_| {
                    together.wait();
                    let start = Instant::now();
                    work(&mut data);
                    (start, Instant::now())
                };
                (0..ROUNDS).map(round).collect()
            }
        };
        let running: Vec<_> = data.into_iter().map(|data| scope.spawn(run(data))).collect();
        running.into_iter().map(|thread| thread.join().expect("the measuring loops do not panic")).collect()
    });
    let wall = |round: usize| {
        let start = rounds.iter().map(|thread| thread[round].0).min();
        let end = rounds.iter().map(|thread| thread[round].1).max();
        start.zip(end).map_or(Duration::ZERO, |(start, end)| end - start)
    };
    (0..ROUNDS).map(wall).min().unwrap_or_default().max(Duration::from_nanos(1))
}

/// Places from which [`Read`] reads in turn.
const STREAMS: usize = 4;

/// The sum of all values, read from [`STREAMS`] places at once.
struct Read<'a>(&'a [f32]);

impl Kernel for Read<'_> {
    type Output = f32;
    #[inline(always)]
    fn run<V: Lanes>(self) -> f32 {
        /// Vectors of a stream at a time.
        const STEP: usize = 4;
        let length = self.0.len() / STREAMS;
        let streams: [&[[f32; LANES]]; STREAMS] =
            std::array::from_fn(|stream| self.0[stream * length..][..length].as_chunks().0);
        let mut sums = [[V::splat(0.0); STEP]; STREAMS];
        for first in (0..streams[0].len() / STEP * STEP).step_by(STEP) {
            for (sums, stream) in sums.iter_mut().zip(&streams) {
                for (sum, values) in sums.iter_mut().zip(&stream[first..first + STEP]) {
                    *sum = sum.add(V::load(values));
                }
            }
        }
        sums.as_flattened().iter().fold(V::splat(0.0), |total, &sum| total.add(sum)).sum()
    }
}

/// `repetitions` of a run of multiply-accumulates; gives back how many those were.
fn multiply(simd: Simd, repetitions: u64) -> u64 {
    let run = match simd {
        Simd::Scalar => multiply_scalar(repetitions),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has AVX2, asserted by `multiply_accumulate_peak`.
        Simd::Avx2 => unsafe { multiply_avx2(repetitions) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: and AVX-512 with VNNI.
        Simd::Avx512Vnni => unsafe { multiply_avx512(repetitions) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: every aarch64 processor has NEON.
        Simd::Neon => unsafe { multiply_neon(repetitions) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the machine has `dotprod`, asserted by `multiply_accumulate_peak`.
        Simd::NeonDotprod => unsafe { multiply_dotprod(repetitions) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the machine has `i8mm`, asserted by `multiply_accumulate_peak`.
        Simd::NeonI8mm => unsafe { multiply_i8mm(repetitions) },
        _ => unreachable!("{simd} is not available here"),
    };
    repetitions * run
}

/// The scalar kernel's products of two groups of 64, as the compiler makes them.
fn multiply_scalar(repetitions: u64) -> u64 {
    const GROUP: usize = lily_checkpoint::GROUP;
    let (weights, values) = ([7u8; GROUP], [-3i8; GROUP]);
    let mut total = 0i32;
    for _ in 0..repetitions {
        let (weights, values) = black_box((&weights, &values));
        let products = weights.iter().zip(values).map(|(&weight, &value)| i32::from(weight) * i32::from(value));
        total = total.wrapping_add(products.sum());
    }
    black_box(total);
    GROUP as u64
}

/// `maddubs` and the 16-bit addition that keeps its result. Each product takes in the sum it is added to, and the sums
/// start apart, so that the compiler can neither merge products nor move them out of the loop.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn multiply_avx2(repetitions: u64) -> u64 {
    use std::arch::x86_64::*;

    // Enough chains to hide the latency, few enough for sixteen registers.
    const CHAINS: usize = 12;
    let weights = _mm256_set1_epi8(black_box(7));
    let mut sums: [__m256i; CHAINS] = std::array::from_fn(|chain| _mm256_set1_epi16(black_box(chain as i16)));
    for _ in 0..repetitions {
        for sum in &mut sums {
            *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(weights, *sum));
        }
    }
    black_box(sums);
    (CHAINS * size_of::<__m256i>()) as u64
}

/// `dpbusd`, sums apart as in [`multiply_avx2`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vnni")]
fn multiply_avx512(repetitions: u64) -> u64 {
    use std::arch::x86_64::*;

    const CHAINS: usize = 16;
    let (weights, values) = (_mm512_set1_epi8(black_box(7)), _mm512_set1_epi8(black_box(-3)));
    let mut sums: [__m512i; CHAINS] = std::array::from_fn(|chain| _mm512_set1_epi32(black_box(chain as i32)));
    for _ in 0..repetitions {
        for sum in &mut sums {
            *sum = _mm512_dpbusd_epi32(*sum, weights, values);
        }
    }
    black_box(sums);
    (CHAINS * size_of::<__m512i>()) as u64
}

/// `smlal`. Each product takes in the sum it is added to, and the sums start apart, so that the compiler can neither merge
/// products nor move them out of the loop.
#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
fn multiply_neon(repetitions: u64) -> u64 {
    use std::arch::aarch64::*;

    const CHAINS: usize = 16;
    let weights = vdup_n_s8(black_box(7));
    let mut sums: [int16x8_t; CHAINS] = std::array::from_fn(|chain| vdupq_n_s16(black_box(chain as i16)));
    for _ in 0..repetitions {
        for sum in &mut sums {
            *sum = vmlal_s8(*sum, weights, vreinterpret_s8_s16(vget_low_s16(*sum)));
        }
    }
    black_box(sums);
    (CHAINS * 8) as u64
}

/// `sdot`, sums apart as in [`multiply_neon`].
#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon,dotprod")]
fn multiply_dotprod(repetitions: u64) -> u64 {
    use std::arch::aarch64::*;

    const CHAINS: usize = 16;
    let (weights, values) = (vdupq_n_s8(black_box(7)), vdupq_n_s8(black_box(-3)));
    let mut sums: [int32x4_t; CHAINS] = std::array::from_fn(|chain| vdupq_n_s32(black_box(chain as i32)));
    for _ in 0..repetitions {
        for sum in &mut sums {
            // SAFETY: `dotprod` is enabled.
            *sum = unsafe { crate::neon::sdot(*sum, weights, values) };
        }
    }
    black_box(sums);
    (CHAINS * 16) as u64
}

/// `smmla`, sums apart as in [`multiply_neon`].
#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon,i8mm")]
fn multiply_i8mm(repetitions: u64) -> u64 {
    use std::arch::aarch64::*;

    const CHAINS: usize = 16;
    let (weights, values) = (vdupq_n_s8(black_box(7)), vdupq_n_s8(black_box(-3)));
    let mut sums: [int32x4_t; CHAINS] = std::array::from_fn(|chain| vdupq_n_s32(black_box(chain as i32)));
    for _ in 0..repetitions {
        for sum in &mut sums {
            // SAFETY: `i8mm` is enabled.
            *sum = unsafe { crate::neon::smmla(*sum, weights, values) };
        }
    }
    black_box(sums);
    (CHAINS * 32) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vector::tests::noise;

    #[test]
    fn every_value_is_read_once() {
        let values = noise(1, STREAMS * LANES * 12);
        let exact: f64 = values.iter().copied().map(f64::from).sum();
        for simd in Simd::available() {
            let sum = vector::run(simd, Read(&values));
            assert!((f64::from(sum) - exact).abs() < 1e-4, "{simd}: {sum}, not {exact}");
        }
    }

    #[test]
    fn rates_are_positive_numbers_on_every_instruction_set() {
        for simd in Simd::available() {
            for threads in [1, 3] {
                let rate = read_bandwidth(simd, threads, 1 << 16).expect("memory");
                assert!(rate.is_finite() && rate > 0.0, "{simd}, {threads} threads: {rate} bytes a second");
            }
            let rate = multiply_accumulate_peak(simd, 2);
            assert!(rate.is_finite() && rate > 0.0, "{simd}: {rate} multiply-accumulates a second");
        }
    }

    #[test]
    fn work_is_done_once_a_round_by_every_thread() {
        let done = std::sync::atomic::AtomicUsize::new(0);
        best_time(vec![(); 3], |()| {
            done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 3 * (ROUNDS + 1));
    }
}

//! Every instruction set against the scalar twin, the twin against f64, and what results may not depend on.

use lily_checkpoint::{Bits, GROUP, Matrix};
use proptest::prelude::*;

use super::{Product, matmul};
use crate::activations::{Activations, Planes};
use crate::simd::Simd;

/// A random source that a seed decides.
struct Noise(u64);

impl Noise {
    fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    /// In −1..1.
    fn unit(&mut self) -> f32 {
        self.bits() as f32 / (1u32 << 31) as f32 - 1.0
    }
}

/// A matrix that owns its bytes.
struct Owned {
    rows: usize,
    cols: usize,
    bits: Bits,
    weight: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
}

impl Owned {
    /// Scales and biases between −1 and 1, times `magnitude`.
    fn random(noise: &mut Noise, rows: usize, cols: usize, bits: Bits, magnitude: f32) -> Self {
        let width = if bits == Bits::Four { 2 } else { 1 };
        // Now and then a group of the extreme weights, where 16-bit sums would overflow first.
        let weight = (0..rows * cols / width).map(|_| noise.bits() as u8);
        let mut weight: Vec<u8> = weight.collect();
        for group in weight.chunks_exact_mut(GROUP / width) {
            match noise.bits() % 8 {
                0 => group.fill(0),
                1 => group.fill(255),
                _ => {}
            }
        }
        let mut bf16 = || -> Vec<u8> {
            let bits = (0..rows * cols / GROUP).map(|_| ((noise.unit() * magnitude).to_bits() >> 16) as u16);
            bits.flat_map(u16::to_le_bytes).collect()
        };
        let (scales, biases) = (bf16(), bf16());
        Self { rows, cols, bits, weight, scales, biases }
    }

    fn view(&self) -> Matrix<'_> {
        Matrix {
            rows: self.rows,
            cols: self.cols,
            bits: self.bits,
            weight: &self.weight,
            scales: &self.scales,
            biases: &self.biases,
        }
    }

    fn value(&self, n: usize, k: usize) -> f64 {
        let index = n * self.cols + k;
        let q = match self.bits {
            Bits::Four => self.weight[index / 2] >> (index % 2 * 4) & 15,
            Bits::Eight => self.weight[index],
        };
        let bf16 = |bytes: &[u8]| {
            let at = 2 * (index / GROUP);
            f64::from(f32::from_bits(u32::from_le_bytes([0, 0, bytes[at], bytes[at + 1]])))
        };
        f64::from(q) * bf16(&self.scales) + bf16(&self.biases)
    }
}

/// Activations with groups of zeros, of one large value among small ones, of a common sign.
fn random_input(noise: &mut Noise, rows: usize, cols: usize, magnitude: f32) -> Vec<f32> {
    let mut x: Vec<f32> = (0..rows * cols).map(|_| noise.unit() * magnitude).collect();
    for group in x.chunks_exact_mut(GROUP) {
        match noise.bits() % 8 {
            0 => group.fill(0.0),
            1 => group[noise.bits() as usize % GROUP] *= 1000.0,
            2 => group.fill(magnitude),
            3 => group.fill(-magnitude),
            _ => {}
        }
    }
    x
}

fn activations(simd: Simd, x: &[f32], rows: usize, cols: usize, planes: Planes) -> Activations {
    let mut input = Activations::new();
    input.set(simd, x, rows, cols, planes);
    input
}

fn product(simd: Simd, weight: &Owned, input: &Activations, rows: Option<&[u32]>) -> Vec<f32> {
    let mut out = vec![f32::NAN; rows.map_or(input.rows(), <[u32]>::len) * weight.rows];
    matmul(simd, &mut [Product { weight: weight.view(), input, rows, out: &mut out }]);
    out
}

/// The bits, all NaNs being one.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() }).collect()
}

#[derive(Clone, Debug)]
struct Shape {
    seed: u64,
    rows: usize,
    weight_rows: usize,
    cols: usize,
    bits: Bits,
    planes: Planes,
    magnitude: f32,
}

fn shapes() -> impl Strategy<Value = Shape> {
    let weight_rows = prop_oneof![Just(1), Just(8), Just(9), Just(31), Just(33), 1..80usize];
    let groups = prop_oneof![4 => 1..20usize, 1 => Just(64)];
    let bits = prop_oneof![2 => Just(Bits::Four), 1 => Just(Bits::Eight)];
    let planes = prop_oneof![Just(Planes::One), Just(Planes::Two)];
    let magnitude = prop_oneof![4 => Just(1.0f32), 1 => Just(1e-38), 1 => Just(1e-12), 1 => Just(1e15)];
    (any::<u64>(), 1..=40usize, weight_rows, groups, bits, planes, magnitude).prop_map(
        |(seed, rows, weight_rows, groups, bits, planes, magnitude)| Shape {
            seed,
            rows,
            weight_rows,
            cols: groups * GROUP,
            bits,
            planes,
            magnitude,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_instruction_set_gives_the_bits_of_the_scalar_twin(shape in shapes(), spoilt in 0..4usize) {
        let Shape { rows, cols, planes, .. } = shape;
        let mut noise = Noise(shape.seed);
        let weight = Owned::random(&mut noise, shape.weight_rows, cols, shape.bits, shape.magnitude);
        let mut x = random_input(&mut noise, rows, cols, shape.magnitude);
        for _ in 0..spoilt.saturating_sub(1) {
            let at = noise.bits() as usize % x.len();
            x[at] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN][noise.bits() as usize % 4];
        }
        let gathered: Vec<u32> = (0..noise.bits() % 20).map(|_| noise.bits() % rows as u32).collect();
        let twin = activations(Simd::Scalar, &x, rows, cols, planes);
        for simd in Simd::available() {
            let input = activations(simd, &x, rows, cols, planes);
            for row in 0..rows {
                for plane in 0..planes as usize {
                    let (expected, got) = (twin.plane(row, plane), input.plane(row, plane));
                    prop_assert_eq!(expected.quantised, got.quantised, "{}", simd);
                    prop_assert_eq!(bits(expected.steps), bits(got.steps), "{}", simd);
                    prop_assert_eq!(bits(expected.sums), bits(got.sums), "{}", simd);
                }
            }
            for rows in [None, Some(gathered.as_slice())] {
                let expected = product(Simd::Scalar, &weight, &twin, rows);
                prop_assert_eq!(bits(&expected), bits(&product(simd, &weight, &input, rows)), "{}", simd);
            }
        }
    }

    #[test]
    fn a_row_gets_the_same_bits_alone_and_in_any_company(shape in shapes()) {
        let Shape { rows, cols, planes, .. } = shape;
        let mut noise = Noise(shape.seed);
        let weight = Owned::random(&mut noise, shape.weight_rows, cols, shape.bits, shape.magnitude);
        let x = random_input(&mut noise, rows, cols, shape.magnitude);
        let simd = Simd::best();
        let input = activations(simd, &x, rows, cols, planes);
        let together = product(simd, &weight, &input, None);
        for (row, expected) in together.chunks_exact(weight.rows).enumerate() {
            let alone = activations(simd, &x[row * cols..][..cols], 1, cols, planes);
            prop_assert_eq!(bits(expected), bits(&product(simd, &weight, &alone, None)));
            let gathered = product(simd, &weight, &input, Some(&[0, row as u32]));
            prop_assert_eq!(bits(expected), bits(&gathered[weight.rows..]));
        }
    }

    #[test]
    fn products_are_near_those_of_the_dequantised_weights(shape in shapes()) {
        let Shape { rows, cols, .. } = shape;
        let mut noise = Noise(shape.seed);
        let weight = Owned::random(&mut noise, shape.weight_rows, cols, shape.bits, 1.0);
        let x = random_input(&mut noise, rows, cols, 1.0);
        let out = product(Simd::best(), &weight, &activations(Simd::best(), &x, rows, cols, shape.planes), None);
        // Half a step of the largest value per group, and fp32 rounding in at most 64 groups.
        let relative = match (shape.bits, shape.planes) {
            (Bits::Eight, _) => 0.0,
            (Bits::Four, Planes::One) => 1.0 / 254.0,
            (Bits::Four, Planes::Two) => 1.0 / (254.0 * 254.0),
        };
        for (m, x) in x.chunks_exact(cols).enumerate() {
            for n in 0..weight.rows {
                let (mut exact, mut bound) = (0.0, 0.0);
                for (group, x) in x.chunks_exact(GROUP).enumerate() {
                    let largest = x.iter().fold(0.0, |largest: f64, x| largest.max(f64::from(x.abs())));
                    for (k, &x) in (group * GROUP..).zip(x) {
                        let w = weight.value(n, k);
                        exact += w * f64::from(x);
                        bound += w.abs() * largest * relative * 1.001;
                        // Scale and bias meet only after the sum, so they may cancel what is larger than w.
                        bound += (w.abs() + 256.0) * f64::from(x.abs()) * 2e-6;
                    }
                }
                let got = f64::from(out[m * weight.rows + n]);
                prop_assert!((got - exact).abs() <= bound + 1e-6, "{got} for {exact}, off by more than {bound}");
            }
        }
    }
}

#[test]
fn threads_and_company_of_products_change_nothing() {
    let mut noise = Noise(7);
    // Several tasks each, of unlike sizes.
    let weights: Vec<Owned> =
        [(300, 512, Bits::Four), (5, 2048, Bits::Eight), (130, 1024, Bits::Four), (1, 64, Bits::Eight)]
            .map(|(rows, cols, bits)| Owned::random(&mut noise, rows, cols, bits, 1.0))
            .into();
    let rows = 9;
    for simd in Simd::available() {
        let inputs: Vec<Activations> = weights
            .iter()
            .map(|weight| {
                let x = random_input(&mut noise, rows, weight.cols, 1.0);
                activations(simd, &x, rows, weight.cols, Planes::Two)
            })
            .collect();
        let alone: Vec<Vec<f32>> =
            weights.iter().zip(&inputs).map(|(weight, input)| product(simd, weight, input, None)).collect();
        for threads in [1, 2, 4] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let mut outs: Vec<Vec<f32>> = alone.iter().map(|out| vec![f32::NAN; out.len()]).collect();
            let mut products: Vec<Product<'_>> = weights
                .iter()
                .zip(&inputs)
                .zip(&mut outs)
                .map(|((weight, input), out)| Product { weight: weight.view(), input, rows: None, out })
                .collect();
            pool.install(|| matmul(simd, &mut products));
            for (alone, out) in alone.iter().zip(&outs) {
                assert_eq!(bits(alone), bits(out), "{simd}, {threads} threads");
            }
        }
    }
}

#[test]
fn a_product_by_hand() {
    // One row of weights: w = q/2 − 1 with q = k mod 16; x = k mod 3, whose largest value makes a step of 2/127, so
    // q is 0, 64 (63.5 to even) and 127.
    let weight = Owned {
        rows: 1,
        cols: 64,
        bits: Bits::Four,
        weight: (0..32).map(|byte| (byte * 2 % 16) | ((byte * 2 + 1) % 16) << 4).collect(),
        scales: 0x3f00u16.to_le_bytes().to_vec(),
        biases: 0xbf80u16.to_le_bytes().to_vec(),
    };
    let x: Vec<f32> = (0..64).map(|k| (k % 3) as f32).collect();
    let quantised = |k: i32| [0, 64, 127][k as usize % 3];
    let dot: i32 = (0..64).map(|k| (k % 16) * quantised(k)).sum();
    let sum: i32 = (0..64).map(quantised).sum();
    let step = 2.0f32 / 127.0;
    let expected = (-1.0f32).mul_add(step * sum as f32, 0.5 * (dot as f32 * step));
    for simd in Simd::available() {
        let out = product(simd, &weight, &activations(simd, &x, 1, 64, Planes::One), None);
        assert_eq!(out, [expected], "{simd}");
    }
}

#[test]
fn a_value_that_is_not_finite_makes_its_row_nan_and_no_other() {
    let mut noise = Noise(3);
    let weight = Owned::random(&mut noise, 40, 256, Bits::Four, 1.0);
    let mut x = random_input(&mut noise, 7, 256, 1.0);
    x[3 * 256 + 100] = f32::INFINITY;
    for simd in Simd::available() {
        let out = product(simd, &weight, &activations(simd, &x, 7, 256, Planes::Two), None);
        for (row, out) in out.chunks_exact(40).enumerate() {
            assert!(out.iter().all(|y| y.is_nan() == (row == 3)), "{simd}, row {row}");
        }
    }
}

#[test]
fn empty_products_are_nothing() {
    let weight = Owned::random(&mut Noise(1), 8, 64, Bits::Four, 1.0);
    for simd in Simd::available() {
        let input = activations(simd, &[], 0, 64, Planes::One);
        assert!(product(simd, &weight, &input, None).is_empty());
        let input = activations(simd, &[1.0; 64], 1, 64, Planes::One);
        assert!(product(simd, &weight, &input, Some(&[])).is_empty());
        matmul(simd, &mut []);
    }
}

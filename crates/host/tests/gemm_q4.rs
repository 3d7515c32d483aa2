//! `gemm_q4.metal` and `rms_norm.metal`: products of many rows, and what they multiply.

mod common;

use common::{Argument, Bound, EPSILON, ODD, QWEN, Quantised, Random, Shape, TINY, close, f16, full_size};
use common::{BY_CPU, close_to_cpu, launch, unwritten, unwritten_halves};
use lily_cpu::functions as cpu;

/// Tiles that every device has, and those of devices with matrix units.
const TILES: [(&str, usize); 5] = [("16", 16), ("32", 32), ("64", 64), ("32_tensor", 32), ("64_tensor", 64)];

/// `x[…][cols]` times the transpose of the matrix, whose weights the kernels round to half.
fn product(matrix: &Quantised, x: &[f16]) -> Vec<f64> {
    let halved = |weight: f64| f16::from_f64(weight).to_f64();
    let rows: Vec<Vec<f64>> =
        (0..matrix.rows).map(|row| matrix.row(0, row).into_iter().map(halved).collect()).collect();
    let of = |x: &[f16], row: &[f64]| x.iter().zip(row).map(|(x, w)| x.to_f64() * w).sum();
    x.chunks_exact(matrix.cols).flat_map(|x| rows.iter().map(move |row| of(x, row))).collect()
}

/// Of products whose weights are rounded to half in the kernel and not on the CPU, which in turn rounds x to about 15 bits;
/// results are of about 1.
const HALVED_WEIGHTS: Bound = Bound { relative: 1e-3, absolute: 2e-3 };

/// `[rows][outputs of all]`, by the CPU backend's function.
fn by_cpu(matrices: &[Quantised], x: &[f16]) -> Vec<f32> {
    let rows = x.chunks_exact(matrices[0].cols);
    rows.flat_map(|x| {
        let x: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
        matrices.iter().flat_map(|matrix| cpu::product(matrix.matrix(0), &x)).collect::<Vec<f32>>()
    })
    .collect()
}

/// `y[rows][outputs of all]`, of up to four matrices.
fn stacked(tile: (&str, usize), matrices: &[Quantised], x: &[f16]) -> Vec<f32> {
    let inner = matrices[0].cols;
    let rows = x.len() / inner;
    let outputs: Vec<usize> = (0..4).map(|index| matrices.get(index).map_or(0, |matrix| matrix.rows)).collect();
    let mut y = unwritten(rows * outputs.iter().sum::<usize>());
    let mut buffers = Vec::new();
    for index in 0..4 {
        let matrix = matrices.get(index).unwrap_or(&matrices[0]);
        buffers.extend([Argument::read(&matrix.words), Argument::read(&matrix.scales), Argument::read(&matrix.biases)]);
    }
    buffers.extend([Argument::read(x), Argument::write(&mut y)]);
    let mut parameters = vec![rows as u32, inner as u32];
    parameters.extend(outputs.iter().map(|&outputs| outputs as u32));
    let tiles: usize = outputs.iter().map(|outputs| outputs.div_ceil(64)).sum();
    let grid = [rows.div_ceil(tile.1) as u32, tiles as u32, 1];
    launch(&format!("gemm_q4_{}", tile.0), &TINY, &mut buffers, &parameters, grid, 128);
    y
}

fn check_stack(rows: usize, inner: usize, outputs: &[usize]) {
    let mut random = Random::new((rows + inner) as u64);
    let matrices: Vec<_> = outputs.iter().map(|&outputs| Quantised::new(&mut random, outputs, inner, 4)).collect();
    let x = random.halves(rows * inner, 1.5);
    let products: Vec<_> = matrices.iter().map(|matrix| product(matrix, &x)).collect();
    let mut expected = Vec::new();
    for row in 0..rows {
        for (product, outputs) in products.iter().zip(outputs) {
            expected.extend_from_slice(&product[row * outputs..(row + 1) * outputs]);
        }
    }
    let mut first: Option<Vec<f32>> = None;
    for tile in TILES {
        let y = stacked(tile, &matrices, &x);
        close(&format!("{rows} rows, tile {}", tile.0), &y, &expected, Bound::sum(inner, 2.0));
        close_to_cpu(&format!("{rows} rows, tile {}", tile.0), &y, || by_cpu(&matrices, &x), HALVED_WEIGHTS);
        if !tile.0.ends_with("tensor") {
            assert_eq!(&y, first.get_or_insert(y.clone()), "{rows} rows, tile {}: a row's bits", tile.0);
        }
    }
}

#[test]
fn stacks_of_matrices() {
    check_stack(1, 64, &[8]);
    check_stack(9, 64, &[8]);
    check_stack(31, 128, &[72, 64, 32, 32]);
    check_stack(32, 128, &[64, 8]);
    check_stack(33, 192, &[200, 64, 8]);
    check_stack(100, 64, &[64, 128, 8, 8]);
}

#[test]
fn a_row_has_the_same_bits_in_every_batch() {
    let mut random = Random::new(1);
    let matrices = [Quantised::new(&mut random, 64, 256, 4)];
    let x = random.halves(70 * 256, 1.5);
    let all = stacked(TILES[1], &matrices, &x);
    for rows in [9..10, 3..40, 63..70] {
        let some = stacked(TILES[1], &matrices, &x[rows.start * 256..rows.end * 256]);
        assert_eq!(some, all[rows.start * 64..rows.end * 64], "rows {rows:?}");
    }
}

#[test]
fn products_are_added() {
    for (rows, outputs) in [(1, 8), (9, 64), (31, 64), (33, 200)] {
        let mut random = Random::new(rows as u64);
        let matrix = Quantised::new(&mut random, outputs, 128, 4);
        let x = random.halves(rows * 128, 1.5);
        let before = random.floats(rows * outputs, 3.0);
        let expected: Vec<f64> =
            product(&matrix, &x).iter().zip(&before).map(|(product, before)| product + f64::from(*before)).collect();
        for tile in TILES {
            let mut y = before.clone();
            launch(
                &format!("gemm_q4_add_{}", tile.0),
                &TINY,
                &mut [
                    Argument::read(&matrix.words),
                    Argument::read(&matrix.scales),
                    Argument::read(&matrix.biases),
                    Argument::read(&x),
                    Argument::write(&mut y),
                ],
                &[rows as u32, 128, outputs as u32],
                [rows.div_ceil(tile.1) as u32, outputs.div_ceil(64) as u32, 1],
                128,
            );
            close(&format!("{rows} rows, tile {}", tile.0), &y, &expected, Bound::sum(128, 4.0));
            let by_cpu = || {
                let product = by_cpu(std::slice::from_ref(&matrix), &x);
                product.iter().zip(&before).map(|(product, before)| product + before).collect()
            };
            close_to_cpu(&format!("{rows} rows, tile {}", tile.0), &y, by_cpu, HALVED_WEIGHTS);
        }
    }
}

fn check_norm(shape: &Shape, rows: usize) {
    let mut random = Random::new(3);
    let mut x = random.floats(rows * shape.hidden, 4.0);
    let mut others = x.chunks_exact_mut(shape.hidden).skip(1);
    others.next().unwrap_or_default().fill(0.0);
    others.next().unwrap_or_default().iter_mut().for_each(|x| *x *= 1e-4);
    let mut gain = random.floats(shape.hidden, 2.0);
    gain[0] = 1e6; // leaves the range of half
    let mut y = unwritten_halves(rows * shape.hidden);
    launch(
        "rms_norm",
        shape,
        &mut [Argument::read(&x), Argument::read(&gain), Argument::write(&mut y)],
        &[rows as u32],
        [rows.div_ceil(4) as u32, 1, 1],
        128,
    );
    let mut expected = Vec::new();
    for x in x.chunks_exact(shape.hidden) {
        let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / shape.hidden as f64;
        let scale = 1.0 / (mean + f64::from(EPSILON)).sqrt();
        expected.extend(
            x.iter().zip(&gain).map(|(&x, &gain)| (f64::from(x) * scale * f64::from(gain)).clamp(-65504.0, 65504.0)),
        );
    }
    close(&format!("{rows} rows"), &y, &expected, Bound { relative: 2e-6, absolute: 0.0 }.in_half());
    let by_cpu = || cpu::rms_norm(&x, &gain, EPSILON).into_iter().map(|y| y.clamp(-65504.0, 65504.0)).collect();
    close_to_cpu(&format!("{rows} rows"), &y, by_cpu, BY_CPU.in_half());
}

#[test]
fn rms_norm() {
    check_norm(&TINY, 1);
    check_norm(&TINY, 9);
    check_norm(&TINY, 31);
    check_norm(&ODD, 33);
    if full_size() {
        check_norm(&QWEN, 5);
    }
}

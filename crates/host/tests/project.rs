//! `project_norm.metal`, `logits.metal`, `project_add.metal`, `router.metal`: products of a quantised matrix and a few rows.

mod common;

use common::{
    Argument, BY_CPU, Bound, EPSILON, ODD, PRODUCT_BY_CPU, QWEN, Quantised, Random, Shape, TINY, close, close_to_cpu,
    full_size, launch, unwritten,
};
use lily_cpu::functions as cpu;

const NONE: u32 = u32::MAX;
const FAMILY: [usize; 4] = [1, 2, 4, 8];
/// Results are of about 1 and so are the partial sums, of which a lane adds a few dozen.
const BOUND: Bound = Bound { relative: 1e-6, absolute: 4e-6 };

/// `rms_norm(x) · gain` of each row, in f64.
fn normalised(x: &[f32], gain: &[f32]) -> Vec<f64> {
    let row = |x: &[f32]| {
        let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / x.len() as f64;
        let factor = 1.0 / (mean + f64::from(EPSILON)).sqrt();
        x.iter().zip(gain).map(|(&x, &gain)| f64::from(x) * factor * f64::from(gain)).collect::<Vec<_>>()
    };
    x.chunks_exact(gain.len()).flat_map(row).collect()
}

/// Gains of about 1.
fn gains(random: &mut Random, count: usize) -> Vec<f32> {
    random.floats(count, 0.2).iter().map(|x| 1.0 + x).collect()
}

fn bind(matrix: &Quantised) -> [Argument<'_>; 3] {
    [Argument::read(&matrix.words), Argument::read(&matrix.scales), Argument::read(&matrix.biases)]
}

/// `project_norm_R` of the first R rows; each row's bits must not depend on R.
fn check_project_norm(shape: &Shape, outputs: [usize; 4], seed: u64) {
    let mut random = Random::new(seed);
    let (x, gain) = (random.floats(8 * shape.hidden, 2.0), gains(&mut random, shape.hidden));
    // An absent matrix is bound to something all the same.
    let matrices = outputs.map(|rows| Quantised::new(&mut random, rows.max(4), shape.hidden, 4));
    let total: usize = outputs.iter().sum();
    let input = normalised(&x, &gain);
    let mut expected = vec![0.0; 8 * total];
    let mut first = 0;
    for (matrix, &count) in matrices.iter().zip(&outputs).filter(|(_, count)| **count > 0) {
        for (row, part) in matrix.product(0, &input).chunks_exact(count).enumerate() {
            expected[row * total + first..][..count].copy_from_slice(part);
        }
        first += count;
    }
    let mut alone = Vec::new();
    for rows in FAMILY {
        let kernel = format!("project_norm_{rows}");
        // As many launches as it takes to have all rows; where time is short, those of the first.
        let all = if full_size() { 8 } else { rows };
        let mut every = Vec::new();
        for first in (0..all).step_by(rows) {
            let mut y = unwritten(8 * total);
            let mut arguments: Vec<_> = matrices.iter().flat_map(bind).collect();
            let x = &x[first * shape.hidden..][..rows * shape.hidden];
            arguments.extend([Argument::read(x), Argument::read(&gain), Argument::write(&mut y)]);
            let grid = [total.div_ceil(32) as u32, 1, 1];
            launch(&kernel, shape, &mut arguments, &outputs.map(|count| count as u32), grid, 256);
            assert!(y[rows * total..].iter().all(|y| y.is_nan()), "{kernel} writes beyond its rows");
            every.extend_from_slice(&y[..rows * total]);
        }
        close(&kernel, &every, &expected[..all * total], BOUND);
        let by_cpu = || {
            let input = cpu::rms_norm(&x[..all * shape.hidden], &gain, EPSILON);
            let present = matrices.iter().zip(&outputs).filter(|(_, count)| **count > 0);
            let products: Vec<Vec<f32>> = present.map(|(matrix, _)| cpu::product(matrix.matrix(0), &input)).collect();
            let of_row = |row: usize| {
                products.iter().flat_map(move |product| product.chunks_exact(product.len() / all).nth(row)).flatten()
            };
            (0..all).flat_map(of_row).copied().collect()
        };
        close_to_cpu(&kernel, &every, by_cpu, PRODUCT_BY_CPU);
        same_bits(&kernel, &every, &mut alone);
    }
}

/// Rows of one member of a family of kernels have the bits that they have by those before it. Keeps the longest.
fn same_bits(kernel: &str, rows: &[f32], known: &mut Vec<f32>) {
    let both = rows.len().min(known.len());
    let differ = rows.iter().zip(known.iter()).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    assert_eq!(differ, 0, "of {both} results, {kernel} and one for fewer rows");
    if rows.len() > known.len() {
        *known = rows.to_vec();
    }
}

#[test]
fn stacked_projections() {
    let tiny = |shape: &Shape| [shape.channels(), shape.value_heads * 128, shape.value_heads, shape.value_heads];
    check_project_norm(&TINY, tiny(&TINY), 1);
    check_project_norm(&ODD, [36, 4, 64, 0], 1);
    check_project_norm(&ODD, [4, 0, 0, 0], 1);
    if full_size() {
        check_project_norm(&QWEN, [100, 32, 4, 32], 1);
        // The sum of squares in another order gives other bits to one row in ten or so.
        for seed in 2..10 {
            check_project_norm(&QWEN, [4, 0, 0, 0], seed);
        }
    }
}

#[test]
fn a_lost_row_stays_alone() {
    let mut random = Random::new(2);
    let (mut x, gain) = (random.floats(2 * TINY.hidden, 1.0), gains(&mut random, TINY.hidden));
    x[TINY.hidden + 7] = f32::NAN;
    let matrix = Quantised::new(&mut random, 32, TINY.hidden, 4);
    let mut y = unwritten(2 * 32);
    let mut arguments: Vec<_> = [&matrix; 4].into_iter().flat_map(bind).collect();
    arguments.extend([Argument::read(&x), Argument::read(&gain), Argument::write(&mut y)]);
    launch("project_norm_2", &TINY, &mut arguments, &[32, 0, 0, 0], [1, 1, 1], 256);
    assert!(y[..32].iter().all(|y| y.is_finite()) && y[32..].iter().all(|y| y.is_nan()), "{y:?}");
}

fn check_logits(shape: &Shape) {
    let mut random = Random::new(3);
    let (x, gain) = (random.floats(9 * shape.hidden, 2.0), gains(&mut random, shape.hidden));
    let matrix = Quantised::new(&mut random, shape.vocabulary, shape.hidden, 4);
    let expected = matrix.product(0, &normalised(&x, &gain));
    let all_picked = [8, 0, NONE, 3, 3, 1, NONE, 7];
    let mut alone = Vec::new();
    for rows in FAMILY {
        let kernel = format!("logits_{rows}");
        let all = if full_size() { 8 } else { rows };
        let mut every = Vec::new();
        for picked in all_picked[..all].chunks(rows) {
            let mut y = unwritten(rows * shape.vocabulary);
            let mut arguments = Vec::from(bind(&matrix));
            let rest = [Argument::read(&x), Argument::read(&gain), Argument::read(picked), Argument::write(&mut y)];
            arguments.extend(rest);
            launch(&kernel, shape, &mut arguments, &[], [shape.vocabulary.div_ceil(64) as u32, 1, 1], 256);
            every.extend(y);
        }
        for (&row, y) in all_picked.iter().zip(every.chunks_exact(shape.vocabulary)) {
            if row == NONE {
                assert!(y.iter().all(|y| y.is_nan()), "{kernel} writes logits that nobody picked");
            } else {
                close(&kernel, y, &expected[row as usize * shape.vocabulary..][..shape.vocabulary], BOUND);
                let x = &x[row as usize * shape.hidden..][..shape.hidden];
                let by_cpu = || cpu::product(matrix.matrix(0), &cpu::rms_norm(x, &gain, EPSILON));
                close_to_cpu(&kernel, y, by_cpu, PRODUCT_BY_CPU);
            }
        }
        same_bits(&kernel, &every, &mut alone);
    }
}

#[test]
fn logits_of_picked_rows() {
    check_logits(&Shape { vocabulary: 200, ..TINY });
    check_logits(&ODD);
    if full_size() {
        check_logits(&Shape { vocabulary: 68, ..QWEN });
    }
}

fn check_project_add(shape: &Shape, inner: usize) {
    let mut random = Random::new(4);
    let (input, x) = (random.floats(8 * inner, 2.0), random.floats(8 * shape.hidden, 2.0));
    let matrix = Quantised::new(&mut random, shape.hidden, inner, 4);
    let product = matrix.product(0, &input.iter().map(|&x| x.into()).collect::<Vec<f64>>());
    let expected: Vec<f64> = x.iter().zip(product).map(|(&x, y)| f64::from(x) + y).collect();
    let mut alone = Vec::new();
    for rows in FAMILY {
        let kernel = format!("project_add_{rows}");
        let all = if full_size() { 8 } else { rows };
        let mut every = Vec::new();
        for first in (0..all).step_by(rows) {
            let mut y = x[first * shape.hidden..].to_vec();
            let before = y.clone();
            let mut arguments = Vec::from(bind(&matrix));
            let input = &input[first * inner..][..rows * inner];
            arguments.extend([Argument::read(input), Argument::write(&mut y)]);
            launch(&kernel, shape, &mut arguments, &[inner as u32], [shape.hidden as u32 / 16, 1, 1], 256);
            let end = rows * shape.hidden;
            assert_eq!(y[end..], before[end..], "{kernel} writes beyond its rows");
            every.extend_from_slice(&y[..end]);
        }
        close(&kernel, &every, &expected[..all * shape.hidden], BOUND);
        let by_cpu = || {
            let product = cpu::product(matrix.matrix(0), &input[..all * inner]);
            x.iter().zip(product).map(|(x, y)| x + y).collect()
        };
        close_to_cpu(&kernel, &every, by_cpu, PRODUCT_BY_CPU);
        same_bits(&kernel, &every, &mut alone);
    }
}

#[test]
fn projections_into_the_residual_stream() {
    check_project_add(&TINY, TINY.value_heads * 128);
    check_project_add(&TINY, TINY.query_heads * 256);
    check_project_add(&ODD, 64);
    check_project_add(&ODD, 1088);
    if full_size() {
        check_project_add(&Shape { hidden: 64, ..QWEN }, 4096);
    }
}

/// Logits of the rows by `kernel`, whose threadgroups make `tile` outputs of as many rows as it says.
fn check_router(shape: &Shape, kernel: &str, rows: usize, tile: [usize; 2]) -> Vec<f32> {
    let mut random = Random::new(5);
    let (x, gain) = (random.floats(rows * shape.hidden, 2.0), gains(&mut random, shape.hidden));
    let gate = Quantised::new(&mut random, shape.experts, shape.hidden, 8);
    let shared = Quantised::new(&mut random, 1, shape.hidden, 8);
    let input = normalised(&x, &gain);
    let (routed, alone) = (gate.product(0, &input), shared.product(0, &input));
    let expected: Vec<f64> = routed
        .chunks_exact(shape.experts)
        .zip(&alone)
        .flat_map(|(row, &alone)| row.iter().copied().chain([alone]))
        .collect();
    let mut logits = unwritten((rows + 1) * (shape.experts + 1));
    let mut arguments: Vec<_> = bind(&gate).into_iter().chain(bind(&shared)).collect();
    arguments.extend([Argument::read(&x), Argument::read(&gain), Argument::write(&mut logits)]);
    let grid = [(shape.experts + 1).div_ceil(tile[1]) as u32, rows.div_ceil(tile[0]) as u32, 1];
    launch(kernel, shape, &mut arguments, &[rows as u32], grid, 128);
    let (written, beyond) = logits.split_at(expected.len());
    close(&format!("{kernel}, {rows} rows"), written, &expected, BOUND);
    let by_cpu = || {
        let input = cpu::rms_norm(&x, &gain, EPSILON);
        let (routed, alone) = (cpu::product(gate.matrix(0), &input), cpu::product(shared.matrix(0), &input));
        let rows = routed.chunks_exact(shape.experts).zip(&alone);
        rows.flat_map(|(row, &alone)| row.iter().copied().chain([alone])).collect()
    };
    close_to_cpu(&format!("{kernel}, {rows} rows"), written, by_cpu, BY_CPU);
    assert!(beyond.iter().all(|logit| logit.is_nan()), "{kernel} writes beyond its rows");
    written.to_vec()
}

#[test]
fn router_logits() {
    let few = |shape: &Shape, rows: usize, together: usize| {
        check_router(shape, &format!("router_{together}"), rows, [together, 8])
    };
    for together in FAMILY {
        few(&TINY, together, together);
    }
    few(&ODD, 3, 4);
    few(&TINY, 11, 8);
    few(&TINY, 1, 8);
    for rows in [31, 33] {
        few(&Shape { hidden: 64, ..TINY }, rows, 8);
    }
    if full_size() {
        let mut alone = Vec::new();
        for together in FAMILY {
            same_bits(&format!("router_{together}"), &few(&QWEN, 8, together), &mut alone);
        }
    }
}

#[test]
fn router_logits_of_many_rows() {
    let many = |shape: &Shape, rows: usize| {
        let mut bits = Vec::new();
        let kernels = [("router_many_64", [64, 32]), ("router_many_16", [16, 8])];
        for (kernel, tile) in kernels.into_iter().take(if shape.hidden.is_multiple_of(128) { 2 } else { 1 }) {
            same_bits(kernel, &check_router(shape, kernel, rows, tile), &mut bits);
        }
    };
    for rows in [1, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 130] {
        many(&TINY, rows);
    }
    many(&ODD, 70);
    if full_size() {
        many(&QWEN, 66);
    }
}

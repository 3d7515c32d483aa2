//! `embed.metal`: tokens to rows of the residual stream.

mod common;

use common::{Argument, Bound, ODD, Quantised, Random, Shape, TINY, close, close_to_cpu, launch, unwritten};
use lily_cpu::functions as cpu;

const NONE: u32 = u32::MAX;

fn check(shape: &Shape) {
    let mut random = Random::new(1);
    let table = Quantised::new(&mut random, shape.vocabulary, shape.hidden, 4);
    // slot, offset, token, segment: a given token, the last of the vocabulary, one that the sequence drew, a padding row.
    let last = shape.vocabulary as u32 - 1;
    let rows = [[0, 0, 17, 0], [2, 0, last, 1], [1, 0, NONE, 2], [NONE, 0, 0, 0]];
    let sequences = [[0, 0, 0, 5], [9, 1, 3, 42], [0; 4]];
    let mut x = unwritten(rows.len() * shape.hidden);
    launch(
        "embed",
        shape,
        &mut [
            Argument::read(&table.words),
            Argument::read(&table.scales),
            Argument::read(&table.biases),
            Argument::read(&rows),
            Argument::read(&sequences),
            Argument::write(&mut x),
        ],
        &[],
        [rows.len() as u32, 1, 1],
        256,
    );
    let mut expected: Vec<f64> = [17, last, 42].iter().flat_map(|&token| table.row(0, token as usize)).collect();
    expected.resize(x.len(), 0.0);
    let bound = Bound { relative: 1e-6, absolute: 1e-8 };
    close("embed", &x, &expected, bound);
    close_to_cpu("embed", &x[..3 * shape.hidden], || cpu::embed(table.matrix(0), &[17, last, 42]), bound);
}

#[test]
fn rows_of_the_table() {
    check(&TINY);
    check(&ODD);
}

//! A call that is paused between layers, with others in between, gives the bits of one that is not.

mod support;

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use lily_backend::{Backend, Output, Pausable, Segment, Want};
use lily_cpu::{CpuBackend, State};
use support::{GREEDY, Reference, backend, continuation, logits, next, run};

fn text(start: usize, length: usize) -> Vec<u32> {
    Reference::load().ids("eval.ids")[start..start + length].to_vec()
}

fn pausable(backend: &mut CpuBackend) -> &mut dyn Pausable<State> {
    backend.pausable().expect("this backend can")
}

/// Runs a call in slices of `layers` layers, `between` them whatever is given; says also how many slices it took.
fn in_slices(
    backend: &mut CpuBackend,
    states: &mut [State],
    tokens: &[&[u32]],
    want: Want<'_>,
    layers: usize,
    mut between: impl FnMut(&mut CpuBackend),
) -> (Vec<Output>, usize) {
    for slices in 1.. {
        let mut segments: Vec<_> =
            states.iter_mut().zip(tokens).map(|(state, &tokens)| Segment { state, tokens, want }).collect();
        let asked = AtomicUsize::new(0);
        let pause = || asked.fetch_add(1, Ordering::Relaxed) + 1 == layers;
        if let Some(outputs) = pausable(backend).advance(&mut segments, &pause).expect("valid segments") {
            return (outputs, slices);
        }
        between(backend);
    }
    unreachable!("it ends")
}

#[test]
fn others_come_in_between() {
    let mut backend = backend();
    // Two steps, the second with a page of its own.
    let (long, short, other) = (text(0, 700), text(2000, 130), text(5000, 20));
    let whole = |backend: &mut CpuBackend, tokens: &[u32]| {
        let mut state = backend.create().expect("memory");
        logits(backend, &mut state, tokens)
    };
    let expected = [whole(&mut backend, &long), whole(&mut backend, &short)];
    let mut state = backend.create().expect("memory");
    let expected_other = continuation(&mut backend, &mut state, &other, 12);

    for layers in [1, 3] {
        let mut states = [backend.create().expect("memory"), backend.create().expect("memory")];
        let mut generating = backend.create().expect("memory");
        let mut generated = vec![next(&mut backend, &mut generating, &other)];
        let snapshot = backend.snapshot(&generating).expect("memory");
        let pauses = Cell::new(0);
        let (outputs, slices) =
            in_slices(&mut backend, &mut states, &[&long, &short], Want::Logits, layers, |backend| {
                pauses.set(pauses.get() + 1);
                if generated.len() < 12 {
                    let last = [generated[generated.len() - 1]];
                    generated.push(next(backend, &mut generating, &last));
                }
                // A prompt of its own, longer than the paused step; and a fork.
                if pauses.get() == 3 {
                    whole(backend, &text(9000, 600));
                    drop(backend.restore(&snapshot).expect("memory"));
                }
            });
        assert!(slices > 4, "{slices} slices");
        for (output, expected) in outputs.into_iter().zip(&expected) {
            assert!(matches!(output, Output::Logits(logits) if logits == *expected), "slices of {layers} layers");
        }
        assert_eq!([backend.length(&states[0]), backend.length(&states[1])], [700, 130]);
        assert!(expected_other.starts_with(&generated));
    }
}

#[test]
fn a_call_that_was_given_up_leaves_nothing() {
    let mut backend = backend();
    let prompt = text(0, 90);
    let mut state = backend.create().expect("memory");
    let expected = next(&mut backend, &mut state, &prompt);

    let mut given_up = backend.create().expect("memory");
    let mut segments = [Segment { state: &mut given_up, tokens: &prompt[..], want: Want::Nothing }];
    assert!(pausable(&mut backend).advance(&mut segments, &|| true).expect("valid segments").is_none());
    pausable(&mut backend).abandon();
    drop(given_up);

    let mut states = [backend.create().expect("memory")];
    let (outputs, _) = in_slices(&mut backend, &mut states, &[&prompt], Want::Sample(GREEDY), 1, |_| {});
    assert!(matches!(&outputs[..], [Output::Sample(sample)] if sample.token == expected));
    run(&mut backend, &mut states[0], &prompt[..1], Want::Nothing);
    assert_eq!(backend.length(&states[0]), 91);
}

/// What is wrong with a call shows at once, and nothing is paused then.
#[test]
fn bad_segments_are_refused() {
    let mut backend = backend();
    let mut state = backend.create().expect("memory");
    let mut segments = [Segment { state: &mut state, tokens: &[7, u32::MAX], want: Want::Nothing }];
    assert!(pausable(&mut backend).advance(&mut segments, &|| true).is_err());
    let (outputs, slices) = in_slices(&mut backend, &mut [state], &[&[7, 8]], Want::Nothing, usize::MAX, |_| {});
    assert_eq!((outputs, slices), (vec![Output::Nothing], 1));
}

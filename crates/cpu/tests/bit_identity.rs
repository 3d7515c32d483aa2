//! A sequence's results are the same bits however it is chunked, whatever it is batched with, on any number of threads,
//! on every instruction set, and after it is snapshotted and restored.

mod support;

use lily_backend::{Backend, BackendError, Output, Segment, Want};
use lily_cpu::{CpuBackend, Simd, State};
use proptest::prelude::*;
use support::{GREEDY, Reference, backend, backend_with, continuation, logits, next, run};

/// Tokens generated after a prompt.
const GENERATED: usize = 12;

/// What a sequence is judged by: its greedy continuation, and the bits of the logits after that.
#[derive(Debug, PartialEq)]
struct Outcome {
    tokens: Vec<u32>,
    logits: Vec<u32>,
}

/// Continues after `last`, the tokens that have not been seen yet.
fn outcome(backend: &mut CpuBackend, state: &mut State, last: &[u32]) -> Outcome {
    let tokens = continuation(backend, state, last, GENERATED);
    let logits = logits(backend, state, &tokens[GENERATED - 1..]);
    Outcome { tokens, logits: logits.into_iter().map(f32::to_bits).collect() }
}

/// The outcome of a prompt that arrives in pieces of the given sizes, the last of them repeated.
fn chunked(backend: &mut CpuBackend, prompt: &[u32], sizes: &[usize]) -> Outcome {
    let mut state = backend.create().expect("memory");
    let mut rest = prompt;
    let mut sizes = sizes.iter().chain(std::iter::repeat(&sizes[sizes.len() - 1]));
    loop {
        let size = *sizes.next().expect("endless");
        if size >= rest.len() {
            return outcome(backend, &mut state, rest);
        }
        let (chunk, tail) = rest.split_at(size);
        run(backend, &mut state, chunk, Want::Nothing);
        rest = tail;
    }
}

/// Some of the evaluation text.
fn text(start: usize, length: usize) -> Vec<u32> {
    Reference::load().ids("eval.ids")[start..start + length].to_vec()
}

#[test]
fn chunk_sizes() {
    let mut backend = backend();
    let prompt = text(0, 130);
    let whole = chunked(&mut backend, &prompt, &[prompt.len()]);
    for size in [1, 7, 64] {
        assert!(chunked(&mut backend, &prompt, &[size]) == whole, "chunks of {size}");
    }
    // A longer prompt, whose end is in a second span of attention and on a page of its own.
    let prompt = text(3000, 1089);
    let whole = chunked(&mut backend, &prompt, &[prompt.len()]);
    for sizes in [&[64][..], &[1001, 1], &[990, 7]] {
        assert!(chunked(&mut backend, &prompt, sizes) == whole, "chunks of {sizes:?}");
    }
}

#[test]
fn one_call_longer_than_a_step() {
    let mut backend = backend();
    let prompt = text(500, 1200);
    let mut whole = backend.create().expect("memory");
    let all = logits(&mut backend, &mut whole, &prompt);
    let mut pieces = backend.create().expect("memory");
    let mut chunks = Vec::new();
    for tokens in prompt.chunks(100) {
        chunks.extend(logits(&mut backend, &mut pieces, tokens));
    }
    assert!(all == chunks);
}

#[test]
fn threads() {
    let prompt = text(200, 150);
    let expected = chunked(&mut backend_with(1, None), &prompt, &[prompt.len()]);
    for threads in [2, 4] {
        let mut backend = backend_with(threads, None);
        assert!(chunked(&mut backend, &prompt, &[50]) == expected, "{threads} threads");
    }
}

#[test]
fn instruction_sets() {
    let prompt = text(200, 40);
    let expected = chunked(&mut backend_with(2, Some(Simd::Scalar)), &prompt, &[33]);
    for simd in Simd::available() {
        assert!(chunked(&mut backend_with(2, Some(simd)), &prompt, &[33]) == expected, "{simd}");
    }
}

/// Sequences of mixed lengths that start one after another, so that calls hold prompts and decoded tokens at once.
#[test]
fn batches() {
    let mut backend = backend();
    let lengths = [90, 1, 1040, 7, 64, 65, 200];
    let prompts: Vec<Vec<u32>> = lengths.iter().enumerate().map(|(i, &length)| text(1000 * i, length)).collect();
    let alone: Vec<Outcome> = prompts.iter().map(|prompt| chunked(&mut backend, prompt, &[prompt.len()])).collect();
    for size in [1, 2, 4, 7] {
        let mut states: Vec<State> = (0..size).map(|_| backend.create().expect("memory")).collect();
        // The tokens each sequence has waiting, and those it has generated.
        let mut waiting: Vec<Vec<u32>> = prompts[..size].to_vec();
        let mut generated: Vec<Vec<u32>> = vec![Vec::new(); size];
        for round in 0.. {
            // A new sequence joins in each round; prompts come in chunks of 150.
            let mut segments = Vec::new();
            let mut members = Vec::new();
            for (index, state) in states.iter_mut().enumerate().take(round + 1) {
                let tokens = &waiting[index][..waiting[index].len().min(150)];
                if generated[index].len() < GENERATED {
                    let last = tokens.len() == waiting[index].len();
                    members.push((index, tokens.len()));
                    segments.push(Segment {
                        state,
                        tokens,
                        want: if last { Want::Sample(GREEDY) } else { Want::Nothing },
                    });
                }
            }
            if segments.is_empty() {
                break;
            }
            let outputs = backend.forward(&mut segments).expect("valid segments");
            for ((index, taken), output) in members.into_iter().zip(outputs) {
                waiting[index].drain(..taken);
                if let Output::Sample(sample) = output {
                    generated[index].push(sample.token);
                    waiting[index].push(sample.token);
                }
            }
        }
        // The logits of all in one call, too.
        let mut segments = Vec::new();
        for (state, tokens) in states.iter_mut().zip(&waiting) {
            segments.push(Segment { state, tokens, want: Want::Logits });
        }
        let outputs = backend.forward(&mut segments).expect("valid segments");
        for (index, output) in outputs.into_iter().enumerate() {
            let Output::Logits(logits) = output else { panic!("asked for logits") };
            let logits = logits.into_iter().map(f32::to_bits).collect();
            let together = Outcome { tokens: generated[index].clone(), logits };
            assert!(together == alone[index], "sequence {index} in a batch of {size}");
        }
    }
}

#[test]
fn snapshots() {
    let mut backend = backend();
    for prompt in [text(0, 100), text(4000, 1060)] {
        let whole = chunked(&mut backend, &prompt, &[prompt.len()]);
        let (before, after) = prompt.split_at(prompt.len() - 30);
        let mut state = backend.create().expect("memory");
        run(&mut backend, &mut state, before, Want::Nothing);
        let snapshot = backend.snapshot(&state).expect("memory");
        // The original goes on, then two others from the snapshot, one of them elsewhere first: each page that they
        // share and write to must have become their own.
        assert!(outcome(&mut backend, &mut state, after) == whole, "the original");
        let mut elsewhere = backend.restore(&snapshot).expect("memory");
        run(&mut backend, &mut elsewhere, &text(9000, 50), Want::Nothing);
        let mut first = backend.restore(&snapshot).expect("memory");
        let mut second = backend.restore(&snapshot.clone()).expect("memory");
        drop(snapshot);
        assert_eq!(backend.length(&first), before.len());
        let (head, tail) = after.split_at(10);
        run(&mut backend, &mut first, head, Want::Nothing);
        assert!(outcome(&mut backend, &mut second, after) == whole, "the second copy");
        assert!(outcome(&mut backend, &mut first, tail) == whole, "the first copy, in between");
    }
}

#[test]
fn truncating_to_nothing_starts_afresh() {
    let mut backend = backend();
    let prompt = text(0, 70);
    let whole = chunked(&mut backend, &prompt, &[70]);
    let mut state = backend.create().expect("memory");
    run(&mut backend, &mut state, &text(5000, 200), Want::Nothing);
    backend.truncate(&mut state, 200).expect("its own length");
    assert_eq!(backend.length(&state), 200);
    let error = backend.truncate(&mut state, 100).expect_err("a recurrent state cannot go back");
    assert!(matches!(error, BackendError::CannotTruncate { length: 200, wanted: 100 }), "{error}");
    assert!(backend.truncate(&mut state, 201).is_err());
    backend.truncate(&mut state, 0).expect("to the start");
    assert_eq!(backend.length(&state), 0);
    assert!(outcome(&mut backend, &mut state, &prompt) == whole);
}

/// An invalid segment is an error and leaves every state of the call as it was.
#[test]
fn bad_segments() {
    let mut backend = backend();
    let prompt = text(0, 40);
    let whole = chunked(&mut backend, &prompt, &[40]);
    let mut state = backend.create().expect("memory");
    run(&mut backend, &mut state, &prompt[..20], Want::Nothing);
    let too_long = vec![1; 4097];
    for bad in [&[][..], &[5, 6144], &[u32::MAX], &too_long] {
        let mut other = backend.create().expect("memory");
        let mut segments = [
            Segment { state: &mut state, tokens: &prompt[20..], want: Want::Sample(GREEDY) },
            Segment { state: &mut other, tokens: bad, want: Want::Nothing },
        ];
        let error = backend.forward(&mut segments).expect_err("a bad segment");
        assert!(!matches!(error, BackendError::Device(_)), "{error}");
        assert_eq!((backend.length(&state), backend.length(&other)), (20, 0));
    }
    let mut full = backend.create().expect("memory");
    run(&mut backend, &mut full, &[1; 4096], Want::Nothing);
    let error = backend.forward(&mut [Segment { state: &mut full, tokens: &[1], want: Want::Nothing }]);
    assert!(matches!(error, Err(BackendError::ContextFull { wanted: 4097, limit: 4096 })));
    assert!(outcome(&mut backend, &mut state, &prompt[20..]) == whole);
    assert!(backend.forward(&mut []).expect("nothing to do").is_empty());
}

#[test]
fn asking_for_a_sample_changes_no_state() {
    let mut backend = backend();
    let prompt = text(100, 30);
    let (mut asked, mut unasked) = (backend.create().expect("memory"), backend.create().expect("memory"));
    next(&mut backend, &mut asked, &prompt);
    run(&mut backend, &mut unasked, &prompt, Want::Nothing);
    assert!(outcome(&mut backend, &mut asked, &[7]) == outcome(&mut backend, &mut unasked, &[7]));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    /// Any chunking of any piece of text, with a snapshot taken and restored somewhere on the way.
    #[test]
    fn any_chunking(
        start in 0usize..18_000,
        length in 1usize..200,
        sizes in prop::collection::vec(1usize..90, 1..8),
        cut in 0usize..300,
    ) {
        let mut backend = backend();
        let prompt = text(start, length);
        let whole = chunked(&mut backend, &prompt, &[length]);
        prop_assert!(chunked(&mut backend, &prompt, &sizes) == whole);
        let (before, after) = prompt.split_at(cut % length);
        let mut state = backend.create().expect("memory");
        if !before.is_empty() {
            run(&mut backend, &mut state, before, Want::Nothing);
        }
        let snapshot = backend.snapshot(&state).expect("memory");
        let mut restored = backend.restore(&snapshot).expect("memory");
        prop_assert!(outcome(&mut backend, &mut restored, after) == whole);
    }
}

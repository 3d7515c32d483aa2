//! The embedded checkpoint through `GpuBackend<HostDevice>`: the plans, the records and the kernels together, against the
//! CPU backend. Every submission runs its dispatches in another order that its edges allow.

#[path = "../../gpu/tests/common/draws.rs"]
mod draws;
#[path = "model/edges.rs"]
mod edges;
#[path = "model/greedy.rs"]
mod greedy;
#[path = "model/support.rs"]
mod support;
#[path = "../../gpu/tests/common/tensors.rs"]
mod tensors;

use lily_backend::{Adjustment, Backend, BackendError, Draw, Output, Sampling, Segment, Want};
use support::{GREEDY, Pair, gpu, logits, next, run, text, with_tensor_tiles};

/// Of logits, where the CPU's int8 activations and the GPU's fp16 part: about 1.5 times what was seen.
const NEAR: f32 = 1.0;
/// The CPU's two largest logits are apart: the distance between them is off by less than this, so noise doesn't turn them.
const APART: f32 = 0.25;

/// Those of Metal 4's tensor operations, in the steps that take them: tiles of 32 rows and of 64.
#[test]
fn tensor_tiles_are_near_too() {
    let mut pair = Pair::with_tensor_tiles();
    for part in [text(0, 20), text(20, 40)] {
        let agreement = pair.compare_logits(&part);
        println!("{agreement:?}");
        assert!(agreement.largest < NEAR && agreement.mean < 0.05 && agreement.clear > 0, "{agreement:?}");
        assert!(agreement.distance < APART, "{agreement:?}");
        assert_eq!(agreement.clear_equal, agreement.clear, "{agreement:?}");
    }
}

/// Teacher-forced over text, in chunks that take each way through the model and both together.
#[test]
fn logits_are_near_the_cpus() {
    let tokens = text(0, 105);
    for chunks in [&[1, 2, 3, 5, 8, 1, 1][..], &[9, 31, 32, 33], &[70]] {
        let mut pair = Pair::new();
        let mut done = 0;
        for &chunk in chunks {
            let part = &tokens[done..done + chunk];
            done += chunk;
            let agreement = pair.compare_logits(part);
            println!("{chunks:?} at {done}: {agreement:?}");
            assert!(agreement.largest < NEAR && agreement.mean < 0.05, "{chunks:?} at {done}: {agreement:?}");
            assert!(agreement.distance < APART, "{chunks:?} at {done}: {agreement:?}");
            assert_eq!(agreement.clear_equal, agreement.clear, "{chunks:?} at {done}: {agreement:?}");
        }
    }
}

/// Around the places where a prompt is cut: the rows of few-row steps, whole grains and what is left of them. `LILY_PROMPTS`
/// names other lengths, as `1,600` or `1-600` for all that there are, and `LILY_STEPS` how many tokens are drawn after each.
#[test]
fn greedy_tokens_are_the_cpus() {
    let asked = std::env::var("LILY_PROMPTS").unwrap_or("1,8-9,31,64-65,73,129".to_owned());
    let steps = std::env::var("LILY_STEPS").map_or(8, |text| text.parse().expect("LILY_STEPS: a number"));
    let number = |text: &str| text.parse::<usize>().expect("LILY_PROMPTS: lengths, as 1,63-65");
    let lengths = asked.split(',').flat_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        number(first)..=number(last)
    });
    let lengths: Vec<_> = lengths.collect();
    let greedy = greedy::compare(&lengths, steps);
    println!("{} prompts, {steps} steps: {} of {} equal", lengths.len(), greedy.equal, greedy.positions);
    assert_eq!(greedy.positions, lengths.len() * steps as usize);
}

/// Cut after whole grains, a prompt leaves the same bits, whichever way its last tokens go, whoever is in the step beside it, and
/// with tensor tiles too.
#[test]
fn how_a_prompt_is_cut_changes_nothing() {
    let told = Want::Sample(Draw { top_logprobs: Some(5), ..GREEDY });
    for (tensor, tail) in [(false, 5), (true, 30)] {
        let mut backend = if tensor { with_tensor_tiles(6) } else { gpu(6, false) };
        let grain = backend.description().grain;
        // The whole of it is more than a step of this backend holds.
        let prompt = text(11, 2 * grain + tail);
        let [whole, cut] = [&[prompt.len()][..], &[grain, prompt.len()]].map(|cuts| {
            let (mut state, mut beside) = (backend.create().expect("a slot"), backend.create().expect("a slot"));
            let mut answers = Vec::new();
            let mut done = 0;
            for &end in cuts {
                let tokens = &prompt[done..end];
                let mut segments = vec![Segment { state: &mut state, tokens, want: told }];
                let others = text(700, 20);
                if end == grain {
                    segments.insert(0, Segment { state: &mut beside, tokens: &others, want: Want::Nothing });
                }
                answers = backend.forward(&mut segments).expect("a sound call");
                done = end;
            }
            let next: Vec<u32> = logits(&mut backend, &mut state, &[77]).iter().map(|logit| logit.to_bits()).collect();
            (answers, next)
        });
        assert!(whole == cut, "a tail of {tail}, tensor tiles: {tensor}");
    }
}

/// Gone on with after a reply, drawn token by token, that ends anywhere: what follows, few rows or many, to the next grain and beyond,
/// has nearly the logits of a text read in one go. `LILY_HELD` names other lengths, as `600`.
#[test]
fn going_on_from_any_length_is_near() {
    let asked = std::env::var("LILY_HELD").unwrap_or("1,63,100".to_owned());
    for held in asked.split(',').map(|held| held.parse::<usize>().expect("LILY_HELD: lengths, as 63,100")) {
        let drawn = held.min(3);
        let follows = if held == 1 { 20 } else { 64 - held % 64 + 12 };
        let tokens = text(0, held + follows);
        let (read, rest) = tokens.split_at(held);
        let mut backend = gpu(held as u64, true);
        let mut state = backend.create().expect("a slot");
        if held > drawn {
            run(&mut backend, &mut state, &read[..held - drawn], Want::Nothing);
        }
        for token in &read[held - drawn..] {
            run(&mut backend, &mut state, &[*token], Want::Nothing);
        }
        // It stays, and shares its last page with what follows.
        let kept = backend.snapshot(&state).expect("memory");
        let mut resumed = backend.restore(&kept).expect("a slot");
        let found = logits(&mut backend, &mut resumed, rest);
        let mut whole = backend.create().expect("a slot");
        run(&mut backend, &mut whole, read, Want::Nothing);
        let expected = logits(&mut backend, &mut whole, rest);
        let agreement = support::Agreement::new(&found, &expected, backend.description().logits);
        println!("{held}: {agreement:?}");
        assert!(
            agreement.largest < 0.03 && agreement.mean < 0.001 && agreement.distance < 0.01,
            "{held}: {agreement:?}"
        );
        assert!(agreement.clear > 0 && agreement.clear_equal == agreement.clear, "{held}: {agreement:?}");
    }
}

#[test]
fn a_batch_is_each_alone() {
    let prompts = [text(0, 40), text(100, 3), text(200, 70), text(300, 1), text(400, 12)];
    let mut alone = Vec::new();
    for prompt in &prompts {
        let mut backend = gpu(1, false);
        let mut state = backend.create().expect("a slot");
        alone.push(support::continuation(&mut backend, &mut state, prompt, 5));
    }
    // Together, with steps that run ahead, and one that leaves before the others.
    let mut backend = gpu(2, true);
    let mut states: Vec<_> = prompts.iter().map(|_| backend.create().expect("a slot")).collect();
    let mut inputs: Vec<Vec<u32>> = prompts.to_vec();
    let by_step: Vec<Vec<u32>> = (0..5).map(|step| alone.iter().map(|tokens| tokens[step]).collect()).collect();
    for (step, expected) in by_step.iter().enumerate() {
        let mut places: Vec<usize> = (0..states.len()).filter(|&place| place != 2 || step < 3).collect();
        if step == 4 {
            places.reverse();
        }
        let mut chosen: Vec<(usize, &mut lily_gpu::State)> =
            states.iter_mut().enumerate().filter(|(place, _)| places.contains(place)).collect();
        chosen.sort_by_key(|(place, _)| places.iter().position(|other| other == place));
        let draw = Draw { counter: step as u64, ..GREEDY };
        let mut segments: Vec<_> = chosen
            .into_iter()
            .map(|(place, state)| Segment { state, tokens: &inputs[place], want: Want::Sample(draw) })
            .collect();
        let outputs = backend.forward(&mut segments).expect("a sound call");
        for (&place, output) in places.iter().zip(outputs) {
            let Output::Sample(sample) = output else { panic!("{output:?}") };
            assert_eq!(sample.token, expected[place], "prompt {place}, step {step}");
            inputs[place] = vec![sample.token];
        }
    }
}

/// A snapshot goes on as the original did, whatever became of that, and with a step ahead in flight.
#[test]
fn snapshots_go_on_alike() {
    for length in [70, 64, 5] {
        let mut backend = gpu(length as u64, true);
        let mut first = backend.create().expect("a slot");
        let tokens = support::continuation(&mut backend, &mut first, &text(50, length), 2);
        let snapshot = backend.snapshot(&first).expect("memory");
        let mut expected = Vec::new();
        for counter in 0..4 {
            let last = *expected.last().unwrap_or(&tokens[1]);
            expected.push(next(&mut backend, &mut first, &[last], counter));
        }
        let mut second = backend.restore(&snapshot).expect("a slot");
        drop(first);
        assert_eq!(backend.length(&second), length + 1);
        let mut third = backend.restore(&snapshot).expect("a slot");
        // The third takes another way in between, on pages that it shared.
        let _other = next(&mut backend, &mut third, &text(9, 20), 0);
        let mut found = Vec::new();
        for counter in 0..4 {
            let last = *found.last().unwrap_or(&tokens[1]);
            found.push(next(&mut backend, &mut second, &[last], counter));
        }
        assert_eq!(found, expected, "after {length} tokens");
        if length < 64 {
            backend.truncate(&mut third, 0).expect("to the start");
            let again = support::continuation(&mut backend, &mut third, &text(50, length), 2);
            assert_eq!(again, tokens, "after a truncation, {length} tokens");
        }
        assert!(matches!(backend.truncate(&mut third, 3), Err(BackendError::CannotTruncate { .. })));
    }
}

/// A sequence that turns away from what was foreseen, in its token, in its draw or in what is wanted, is none the worse.
#[test]
fn running_ahead_is_undone() {
    let prompt = text(20, 12);
    let results = [true, false].map(|ahead| {
        let mut backend = gpu(3, ahead);
        let mut state = backend.create().expect("a slot");
        let mut seen = vec![next(&mut backend, &mut state, &prompt, 0)];
        seen.push(next(&mut backend, &mut state, &[seen[0]], 1));
        // Another token than the one drawn.
        seen.push(next(&mut backend, &mut state, &[77], 2));
        let warm = Draw { sampling: Sampling { temperature: 0.8, ..Sampling::GREEDY }, seed: 5, counter: 3, ..GREEDY };
        let mut told = Vec::new();
        let warmer = Draw { seed: 6, top_logprobs: Some(0), ..warm };
        for draw in [warm, Draw { counter: 4, ..warm }, Draw { counter: 5, ..warmer }, Draw { counter: 6, ..warmer }] {
            let tokens = [*seen.last().expect("some")];
            let Output::Sample(sample) = run(&mut backend, &mut state, &tokens, Want::Sample(draw)) else { panic!() };
            seen.push(sample.token);
            told.push(sample.logprob);
        }
        assert_eq!(told.iter().map(Option::is_some).collect::<Vec<_>>(), [false, false, true, true]);
        // A change that nothing has announced.
        let change = [Adjustment { token: seen[1], repetition: 1.0, add: 3.0, add_once_drawn: 3.0 }];
        let draw = Draw { adjustments: &change, counter: 7, ..GREEDY };
        let Output::Sample(sample) = run(&mut backend, &mut state, &[seen[6]], Want::Sample(draw)) else { panic!() };
        seen.push(sample.token);
        let last = logits(&mut backend, &mut state, &[seen[7]]);
        (seen, last, told)
    });
    assert_eq!(results[0], results[1]);
}

/// Each step of sequences with penalties is given to the device before it has made the one before.
#[test]
fn what_penalties_do_is_foreseen() {
    let mut before = [0, 0];
    draws::penalties_are_foreseen(gpu(7, true), gpu(7, false), |backend, step| {
        let now = [backend.device().submissions(), backend.device().early()];
        if step > 0 {
            assert_eq!([now[0] - before[0], now[1] - before[1]], [1, 1], "step {step}: made once, and early");
        }
        before = now;
    });
}

/// The device's draws are the reference's from the very logits.
#[test]
fn draws_are_the_references() {
    draws::draws_are_the_references(&mut gpu(4, false), &text(0, 30));
}

#[test]
fn what_cannot_be_is_refused() {
    let mut backend = gpu(5, true);
    let vocabulary = backend.description().logits;
    let mut state = backend.create().expect("a slot");
    let mut refused = |tokens: &[u32]| {
        backend.forward(&mut [Segment { state: &mut state, tokens, want: Want::Nothing }]).expect_err("a refusal")
    };
    assert!(matches!(refused(&[]), BackendError::EmptySegment));
    assert!(matches!(refused(&[vocabulary as u32]), BackendError::UnknownToken { .. }));
    assert!(matches!(refused(&[1; support::CONTEXT + 1]), BackendError::ContextFull { .. }));
    let others: Vec<_> = (1..support::SEQUENCES).map(|_| backend.create().expect("a slot")).collect();
    assert!(matches!(backend.create(), Err(BackendError::Device(_))));
    drop(others);
    assert!(backend.create().is_ok(), "a dropped state gives its slot back");
}

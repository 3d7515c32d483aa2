//! What a device draws: against `lily_backend::sample` from the logits of the very step, and from token to token as penalties
//! change it. Over any backend that has the embedded checkpoint: the tests of the host device, of Metal and of CUDA run it.
#![allow(unreachable_pub)]

use lily_backend::{Adjustment, Backend, Draw, Output, Penalty, Sampling, Segment, TokenSet, Want, sample};

/// Sequences that a backend must have room for.
pub const SEQUENCES: usize = 6;
/// Ids that the tiny model can print.
const VOCABULARY: usize = 6113;
/// Log-probabilities are differences of fp32 numbers up to about 100.
const LOGPROB: f32 = 3e-5;

const WARM: Sampling = Sampling { temperature: 1.2, top_k: 0, top_p: 1.0, min_p: 0.0 };
const SAMPLINGS: [Sampling; SEQUENCES] = [
    Sampling::GREEDY,
    WARM,
    Sampling { top_k: 20, ..WARM },
    Sampling { top_p: 0.9, ..WARM },
    Sampling { min_p: 0.05, ..WARM },
    Sampling { top_k: 50, top_p: 0.8, min_p: 0.01, temperature: 0.7 },
];

/// A step of several sequences.
fn step<B: Backend>(backend: &mut B, states: &mut [B::State], tokens: &[Vec<u32>], wants: &[Want<'_>]) -> Vec<Output> {
    let of_each = states.iter_mut().zip(tokens).zip(wants);
    let mut segments: Vec<_> = of_each.map(|((state, tokens), &want)| Segment { state, tokens, want }).collect();
    backend.forward(&mut segments).unwrap_or_else(|error| panic!("{error}"))
}

/// A change of every so many tokens' logits.
fn every(distance: usize, repetition: f32, add: f32) -> Vec<Adjustment> {
    let tokens = (0..VOCABULARY as u32).step_by(distance);
    tokens.map(|token| Adjustment { token, repetition, add, add_once_drawn: add - 1.0 }).collect()
}

/// All samplings in each step, with adjustments and without, with a mask and without, each of them told no log-probability, its
/// token's, and those of others.
pub fn draws_are_the_references<B: Backend>(backend: &mut B, prompt: &[u32]) {
    let mut state = backend.create().expect("a slot");
    step(backend, std::slice::from_mut(&mut state), &[prompt.to_vec()], &[Want::Nothing]);
    let snapshot = backend.snapshot(&state).expect("memory");
    drop(state);
    let restored = |backend: &mut B| -> Vec<B::State> {
        (0..SEQUENCES).map(|_| backend.restore(&snapshot).expect("a slot")).collect()
    };
    let tokens: Vec<Vec<u32>> = (100..).take(SEQUENCES).map(|token| vec![token]).collect();
    let mut states = restored(backend);
    let raw = step(backend, &mut states, &tokens, &[Want::Logits; SEQUENCES]);
    drop(states);
    let allowed: TokenSet = (0..VOCABULARY as u32).filter(|token| token % 7 == 3).collect();
    let few =
        [(200, 4.0), (7, -2.0)].map(|(token, add)| Adjustment { token, repetition: 1.1, add, add_once_drawn: add });
    let many = every(2, 1.3, -0.7);
    for (round, (list, masked)) in [(&[][..], false), (&few, true), (&many, false)].into_iter().enumerate() {
        let draws: Vec<Draw<'_>> = (0..SEQUENCES)
            .map(|place| Draw {
                sampling: SAMPLINGS[place],
                seed: 0x1_0000_0007,
                counter: (SEQUENCES * round + place) as u64,
                adjustments: list,
                allowed: masked.then_some(&allowed),
                top_logprobs: [None, Some(0), Some(3)][(round + place) % 3],
                ..Draw::greedy(VOCABULARY)
            })
            .collect();
        let wants: Vec<Want<'_>> = draws.iter().map(|&draw| Want::Sample(draw)).collect();
        let mut states = restored(backend);
        let outputs = step(backend, &mut states, &tokens, &wants);
        for ((draw, raw), output) in draws.iter().zip(&raw).zip(outputs) {
            let what = format!("{:?}, {} adjustments, masked: {masked}", draw.sampling, list.len());
            let (Output::Logits(raw), Output::Sample(drawn)) = (raw, output) else { panic!("{what}: nothing drawn") };
            let expected = sample(raw, draw).expect("finite");
            assert_eq!((drawn.token, drawn.top), (expected.token, expected.top), "{what}");
            match (drawn.logprob, expected.logprob) {
                (None, None) => {}
                // The device sums in another order.
                (Some(ours), Some(theirs)) => assert!((ours - theirs).abs() < LOGPROB, "{what}: {ours}, not {theirs}"),
                (ours, theirs) => panic!("{what}: told {ours:?}, not {theirs:?}"),
            }
        }
    }
}

/// A prompt for each of two sequences, and then what is drawn of each, with these adjustments and what the tokens make of
/// them. `after` sees the backend after each step, whose number it is told.
fn drawn<B: Backend>(
    backend: &mut B,
    adjustments: &[Adjustment],
    draw: Draw<'_>,
    steps: u64,
    after: &mut impl FnMut(&B, u64),
) -> [Vec<u32>; 2] {
    let mut states = [backend.create().expect("a slot"), backend.create().expect("a slot")];
    let mut tokens = [vec![11, 250], vec![90, 4000]];
    let mut lists = [adjustments.to_vec(), adjustments.to_vec()];
    let mut seen = [Vec::new(), Vec::new()];
    for counter in 0..steps {
        let draws = lists.each_ref().map(|list| Draw { adjustments: list, counter, ..draw });
        let outputs = step(backend, &mut states, &tokens, &draws.map(Want::Sample));
        after(backend, counter);
        let mut next = lists.clone();
        for (place, output) in outputs.into_iter().enumerate() {
            let Output::Sample(sample) = output else { panic!("{output:?}") };
            next[place] = draws[place].adjustments_once_drawn(sample.token);
            tokens[place] = vec![sample.token];
            seen[place].push(sample.token);
        }
        lists = next;
    }
    seen
}

/// What a token does to the next draw is done whether or not that was submitted before the token was known. `ahead` runs
/// ahead, `behind` does not; `after` sees the first after each step of a sequence, whose number it is told.
pub fn penalties_are_foreseen<B: Backend>(mut ahead: B, mut behind: B, mut after: impl FnMut(&B, u64)) {
    let greedy = Draw::greedy(VOCABULARY);
    let harshly = Some(Penalty { repetition: 1.0, add: -1000.0 });
    let warm = Draw { sampling: Sampling { temperature: 0.3, ..Sampling::GREEDY }, ..greedy };
    let penalised = Draw { penalty: Some(Penalty { repetition: 1.3, add: -0.8 }), ..warm };

    // Tokens in the list, each so likely that it would come again if the one drawn last were forgotten.
    let turns = [(300, 400.0), (7, 300.0), (5000, 200.0)];
    let turns = turns.map(|(token, add)| Adjustment { token, repetition: 1.0, add, add_once_drawn: add - 1000.0 });
    let in_turn = drawn(&mut ahead, &turns, Draw { penalty: harshly, ..greedy }, 3, &mut after);
    assert_eq!(in_turn, [[300, 7, 5000], [300, 7, 5000]]);

    // Tokens that are not: what was drawn once is drawn for ever.
    let favoured = Draw { penalty: Some(Penalty { repetition: 1.0, add: 1000.0 }), ..greedy };
    let [again, freely] = [favoured, greedy].map(|draw| drawn(&mut ahead, &[], draw, 3, &mut after));
    assert_eq!(again, freely.each_ref().map(|tokens| vec![tokens[0]; 3]));
    assert_ne!(again, freely, "without the penalty other tokens follow");

    // By chance, with few adjustments and with thousands of each sequence.
    let bias = Adjustment { token: 300, repetition: 1.0, add: 2.0, add_once_drawn: 1.2 };
    for (list, draw) in [(vec![bias], warm), (vec![bias], penalised), (every(2, 1.1, -0.2), penalised)] {
        let found = drawn(&mut ahead, &list, draw, 3, &mut after);
        let expected = drawn(&mut behind, &list, draw, 3, &mut |_, _| {});
        assert_eq!(found, expected, "{} adjustments, {:?}", list.len(), draw.penalty);
    }
}

//! Sets of tokens that are allowed as a whole, so that a mask need not try each of them.
//!
//! llguidance has such sets for the strings of JSON. In a text that a tag ends, or in words of letters of all scripts, it
//! tries every token: 3 to 5 ms at 248,000 of them. The sets here are for those. Each is what an expression matches, and is
//! allowed where its automaton can only go where the grammar's lexer goes, too, within the word that it is in; the few
//! tokens outside of the set are tried.

use std::sync::Arc;

use llguidance::derivre::{Regex, StateID};
use llguidance::earley::{BiasComputer, ParserRecognizer, SlicedBiasComputer};
use llguidance::toktrie::{SimpleVob, TokTrie};

use super::{GrammarError, failed};

/// What the tokens of a set are made of, the largest first. What a tag needs to begin or to end is in no text; a bounded
/// one is for texts that have a longest. Words go together with the space before them, where there may be one.
const SETS: [&str; 5] = [r"[^<>=\n]+", r"[^<>=\n]{1,32}", r"[^<>=\n]{1,8}", r" ?\w+", r"\w+"];
/// States of the lexer for each of an automaton's that are looked at before its set is not taken.
const MOST_EACH: usize = 4;
/// Which of llguidance's sets tells that they will do: the one of short pieces of a string of JSON.
const SHORT: usize = 1;

/// Works out masks.
pub(super) struct Slices {
    sets: Vec<Slice>,
    /// What does it where no set is allowed.
    others: Arc<SlicedBiasComputer>,
}

struct Slice {
    automaton: Automaton,
    tokens: SimpleVob,
    /// The other tokens.
    rest: TokTrie,
}

/// The ways on from each state, the first of which is the beginning: bytes and where they lead.
struct Automaton(Vec<State>);

#[derive(Default)]
struct State {
    ways: Vec<(u8, usize)>,
    accepts: bool,
}

impl Slices {
    pub(super) fn new(others: Arc<SlicedBiasComputer>) -> Result<Self, GrammarError> {
        let sets = SETS.iter().map(|expression| Slice::new(expression, others.trie())).collect::<Result<_, _>>()?;
        Ok(Self { sets, others })
    }
}

impl BiasComputer for Slices {
    fn compute_bias(&self, parser: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
        let sets = if start.is_empty() && !has_set(parser) { self.sets.as_slice() } else { &[] };
        let Some(slice) = sets.iter().find(|slice| slice.automaton.stays(parser)) else {
            return self.others.compute_bias(parser, start);
        };
        let mut allowed = self.trie().alloc_token_set();
        allowed.or(&slice.tokens);
        slice.rest.add_bias(parser, &mut allowed, start);
        allowed
    }

    fn trie(&self) -> &TokTrie {
        self.others.trie()
    }
}

/// Whether llguidance has a set for where the parser is.
fn has_set(parser: &mut ParserRecognizer<'_>) -> bool {
    const BUDGET: u64 = 1000;
    let state = parser.lexer_state();
    let lexer = parser.lexer_mut();
    lexer.subsume_possible(state) && lexer.check_subsume(state, SHORT, BUDGET, None).unwrap_or(false)
}

impl Slice {
    fn new(expression: &str, trie: &TokTrie) -> Result<Self, GrammarError> {
        let automaton = Automaton::of(expression)?;
        let [mut tokens, mut rest] = [trie.alloc_token_set(), trie.alloc_token_set()];
        for id in 0..trie.vocab_size() as u32 {
            let set = if automaton.matches(trie.token(id)) { &mut tokens } else { &mut rest };
            set.allow_token(id);
        }
        tokens.trim_trailing_zeros();
        Ok(Self { automaton, tokens, rest: trie.filter(&rest) })
    }
}

impl Automaton {
    fn of(expression: &str) -> Result<Self, GrammarError> {
        let mut regex = Regex::new(expression).map_err(failed)?;
        let mut known = vec![regex.initial_state()];
        let mut states = Vec::new();
        while let Some(&from) = known.get(states.len()) {
            let mut state = State { ways: Vec::new(), accepts: regex.is_accepting(from) };
            for byte in 0..=u8::MAX {
                let to = regex.transition(from, byte);
                if to.is_dead() {
                    continue;
                }
                let index = known.iter().position(|&other| other == to).unwrap_or_else(|| {
                    known.push(to);
                    known.len() - 1
                });
                state.ways.push((byte, index));
            }
            states.push(state);
        }
        Ok(Self(states))
    }

    fn matches(&self, bytes: &[u8]) -> bool {
        let step = |state: usize, byte: &u8| {
            let ways = &self.0[state].ways;
            ways.binary_search_by_key(byte, |way| way.0).ok().map(|way| ways[way].1)
        };
        bytes.iter().try_fold(0, step).is_some_and(|state| self.0[state].accepts)
    }

    /// Whether all that it matches stays within the word that the parser is in. It may say no where that is so.
    fn stays(&self, parser: &mut ParserRecognizer<'_>) -> bool {
        let begin = parser.lexer_state();
        let lexer = parser.lexer_mut();
        // For each of its states those of the lexer.
        let mut seen: Vec<Vec<StateID>> = vec![Vec::new(); self.0.len()];
        seen[0].push(begin);
        let mut ahead = vec![(0, begin)];
        while let Some((own, theirs)) = ahead.pop() {
            for &(byte, own) in &self.0[own].ways {
                let theirs = lexer.transition_start_state(theirs, Some(byte), &None);
                // One of them ends a word there.
                if theirs.is_dead() || theirs.has_lowest_match() {
                    return false;
                }
                let known = &mut seen[own];
                if !known.contains(&theirs) {
                    if known.len() == MOST_EACH {
                        return false;
                    }
                    known.push(theirs);
                    ahead.push((own, theirs));
                }
            }
        }
        true
    }
}

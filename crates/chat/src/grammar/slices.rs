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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use llguidance::TokenParser;
    use llguidance::earley::{BiasComputer, ParserRecognizer};
    use llguidance::toktrie::{SimpleVob, TokTrie};

    use super::Slices;
    use crate::grammar::Grammars;
    use crate::grammar::walks::{draw, grammars, real, tiny};

    /// Tries every token.
    struct Plain(Arc<Slices>);

    impl BiasComputer for Plain {
        fn compute_bias(&self, parser: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
            let mut allowed = self.trie().alloc_token_set();
            self.trie().add_bias(parser, &mut allowed, start);
            allowed
        }

        fn trie(&self) -> &TokTrie {
            self.0.trie()
        }
    }

    /// Two parsers of the same text, one of which has the sets.
    struct Pair {
        sliced: TokenParser,
        plain: TokenParser,
        slices: Arc<Slices>,
        /// Masks that a set was part of.
        taken: usize,
    }

    impl Pair {
        /// What may come next, as both have it. `None` at the end.
        fn next(&mut self, context: &str) -> Option<Vec<u32>> {
            let taken = self.sliced.parser.with_recognizer(|parser| {
                !super::has_set(parser) && self.slices.sets.iter().any(|slice| slice.automaton.stays(parser))
            });
            self.taken += usize::from(taken);
            let [sliced, plain] = [&mut self.sliced, &mut self.plain].map(|parser| parser.compute_mask().ok());
            assert!(
                sliced == plain,
                "{context}: masks of {:?} and {:?} tokens, a set taken: {taken}",
                count(&sliced),
                count(&plain)
            );
            sliced.map(Vec::from)
        }

        fn consume(&mut self, token: u32) {
            for parser in [&mut self.sliced, &mut self.plain] {
                parser.consume_token(token).expect("an allowed token");
            }
        }
    }

    fn count(mask: &Option<SimpleVob>) -> Option<usize> {
        mask.as_ref().map(SimpleVob::num_set)
    }

    /// Follows the texts of each grammar, and goes on at random from where each has come to. Returns the masks that a set was
    /// part of.
    fn compare((made, stop): &(Grammars, u32), walks: usize, steps: usize) -> usize {
        let (mut random, mut taken) = (7u64, 0);
        for (index, (grammar, texts)) in grammars().into_iter().enumerate() {
            for text in texts.into_iter().chain(vec![""; walks]) {
                let parser = |bias: Arc<dyn BiasComputer>| {
                    let mut parser = made.factory.create_parser(grammar.clone()).expect("a grammar");
                    parser.bias_computer = bias;
                    parser.start_without_prompt();
                    parser
                };
                let slices = Arc::clone(&made.slices);
                let (sliced, plain) = (parser(slices.clone()), parser(Arc::new(Plain(slices.clone()))));
                let mut pair = Pair { sliced, plain, slices, taken: 0 };
                for token in made.tokenizer.encode_exactly(text).expect("tokens") {
                    pair.next(&format!("grammar {index}, {text:?}"));
                    pair.consume(token);
                }
                for step in 0..steps {
                    let Some(mask) = pair.next(&format!("grammar {index}, step {step} after {text:?}")) else { break };
                    let Some(token) = draw(&mask, *stop, &mut random) else { break };
                    pair.consume(token);
                }
                taken += pair.taken;
            }
        }
        taken
    }

    /// Whichever tokens come, a mask that sets are part of is the one that trying each token gives.
    #[test]
    fn sets_allow_what_trying_each_token_does() {
        let taken = [compare(&tiny(), 6, 60), compare(&real(), 1, 12)];
        assert!(taken[0] > 300 && taken[1] > 100, "{taken:?}");
    }
}

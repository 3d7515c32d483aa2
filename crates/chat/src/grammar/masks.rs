//! A grammar's parser, and the masks that it has made.
//!
//! Where a text may go on with most of the vocabulary, but not with all of it, a mask takes tenths of a millisecond at 248,000
//! tokens. llguidance keeps the last one for as long as neither its parser's row nor its lexer's state changes. But within a word
//! of the grammar, a text that a tag ends for example, the state changes all the time, and between few states. So all masks
//! of the row are kept here, by the same key.

use std::collections::VecDeque;
use std::fmt::Display;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use llguidance::api::StopReason;
use llguidance::derivre::StateID;
use llguidance::toktrie::SimpleVob;
use llguidance::{TokenParser, panic_utils};

use super::slices::Slices;

/// Masks of a reply that are kept, each of 31 KB at a vocabulary of 248,000.
const KEPT: usize = 32;

/// Tokens that may come next: bit `id % 32` of word `id / 32`.
pub(super) type Mask = Arc<[u32]>;

/// Where the parser is in its row.
#[derive(Clone, Copy, PartialEq, Eq)]
struct State {
    lexer: StateID,
    /// Whether a word of the grammar has begun.
    begun: bool,
}

/// A parser that is asked for a mask after each token. Clones go on independently.
#[derive(Clone)]
pub(super) struct Masks {
    parser: TokenParser,
    /// The masks of the parser's row, the newest last.
    kept: VecDeque<(State, Mask)>,
    /// The tokens of a text that the grammar leaves no choice but to write, as far as it has not come.
    forced: VecDeque<u32>,
}

impl Masks {
    /// At the beginning of a text.
    pub(super) fn new(mut parser: TokenParser, slices: Arc<Slices>) -> Self {
        parser.bias_computer = slices;
        parser.start_without_prompt();
        Self { parser, kept: VecDeque::new(), forced: VecDeque::new() }
    }

    /// Takes the next token.
    ///
    /// # Errors
    /// If it was not allowed, or the grammar has become too much.
    pub(super) fn consume(&mut self, token: u32) -> Result<(), String> {
        let Self { parser, kept, forced } = self;
        if forced.pop_front() != Some(token) {
            forced.clear();
        }
        let consumed = panic_utils::catch_unwind(AssertUnwindSafe(|| {
            // Consuming makes a row where a word of the grammar ends. Before, it looks at what would follow if one ended here,
            // which may make one, too, that does not stay; the same look tells how many. That is so in the one version that
            // Cargo.toml names.
            let before = parser.parser_stats().rows;
            parser.parser.is_accepting();
            let ahead = parser.parser_stats().rows - before;
            parser.consume_token(token)?;
            if parser.parser_stats().rows != before + 2 * ahead {
                kept.clear();
            }
            parser.check_stop().map(|_| ())
        }));
        consumed.map_err(|error| self.reason(&error))
    }

    /// What may come next; the tokens that end the reply, once nothing else may.
    ///
    /// # Errors
    /// If nothing may, or the grammar has become too much.
    pub(super) fn next(&mut self) -> Result<Mask, String> {
        let Self { parser, kept, forced } = self;
        let mask = panic_utils::catch_unwind(AssertUnwindSafe(|| {
            if parser.stop_reason() != StopReason::NotStopped {
                return Ok(words(parser.token_env.tok_trie().eos_token_set()));
            }
            let lexer = parser.parser.with_recognizer(|recognizer| recognizer.lexer_state());
            let state = State { lexer, begun: parser.parser.has_pending_lexeme_bytes() };
            if let Some((_, mask)) = kept.iter().find(|(known, _)| *known == state) {
                return Ok(Arc::clone(mask));
            }
            // Of a long text it takes milliseconds to find the tokens, so they are found once and not at each of them.
            if forced.is_empty() {
                forced.extend(parser.compute_ff_tokens());
            }
            if let Some(&token) = forced.front() {
                kept.clear();
                return Ok(words(parser.token_env.tok_trie().singleton_token_set(token)));
            }
            let mask = words(parser.compute_mask()?);
            if !parser.parser.currently_forced_bytes().is_empty() {
                // The parser has gone ahead, to another row perhaps, where the grammar leaves no choice. It also consumes such
                // bytes without looking at what would follow, so that its rows tell nothing then.
                kept.clear();
                return Ok(mask);
            }
            if kept.len() == KEPT {
                kept.pop_front();
            }
            kept.push_back((state, Arc::clone(&mask)));
            Ok(mask)
        }));
        mask.map_err(|error| self.reason(&error))
    }

    /// Why the parser goes no further, and what whoever sent the grammar can do.
    fn reason(&self, error: &impl Display) -> String {
        let error = error.to_string();
        let error = error.lines().next().unwrap_or_default();
        match self.parser.stop_reason() {
            StopReason::LexerTooComplex | StopReason::ParserTooComplex => {
                format!(
                    "it takes more than one reply may: {error}; make its expressions simpler, or shorter what they repeat"
                )
            }
            StopReason::NoExtensionBias => "there is no text that it allows".into(),
            _ => error.to_owned(),
        }
    }
}

fn words(set: SimpleVob) -> Mask {
    Vec::from(set).into()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::{KEPT, Mask, Masks};
    use crate::grammar::walks::{draw, grammars, tiny};
    use crate::grammar::{ForcedCalls, Format, grammar_of};

    fn next(masks: &mut Masks) -> Mask {
        masks.next().expect("something may come")
    }

    /// An expression of which each text makes more states ends with the limit and what can be done.
    #[test]
    fn a_grammar_that_grows_too_much_says_so() {
        let (made, stop) = tiny();
        let format = Format::Lark("start: /[a-z ]*e[a-z ]{40}/".into());
        let mut masks =
            made.masks(grammar_of(&format, &Default::default()).expect("a format"), true).expect("a grammar");
        let mut random = 1;
        let mut walk = || loop {
            let mask = masks.next()?;
            masks.consume(draw(&mask, stop, &mut random).expect("there is always more"))?;
        };
        let reason: Result<(), String> = walk();
        let reason = reason.expect_err("no walk is that long");
        assert!(reason.contains("250000") && reason.contains("make its expressions simpler"), "{reason}");
    }

    /// Of a text of which the grammar leaves no choice the tokens are found once, and not at each of them.
    #[test]
    fn a_text_that_is_forced_is_made_tokens_of_once() {
        let (made, _) = tiny();
        let text = "Terms and conditions apply, größtenteils. ".repeat(50);
        let format = Format::Choice(vec![text.clone()]);
        let grammar = grammar_of(&format, &Default::default()).expect("a format");
        let mut masks = made.masks(grammar, true).expect("a grammar");
        let times = |masks: &Masks| masks.parser.parser.perf_counters().tokenize_ff.get().2;
        let (before, tokens) = (times(&masks), made.tokenizer.encode_exactly(&text).expect("tokens"));
        for &token in &tokens {
            let mask = next(&mut masks);
            let allowed: u32 = mask.iter().map(|word| word.count_ones()).sum();
            assert!(allowed == 1 && mask[token as usize / 32] >> (token % 32) & 1 == 1, "the model's own tokens");
            masks.consume(token).expect("an allowed token");
        }
        assert!(tokens.len() > 500 && times(&masks) - before < 5);
    }

    /// Making a state takes longer than going to it, so those of a text are made before the reply begins.
    #[test]
    fn texts_of_forced_calls_find_their_states_made() {
        let (made, _) = tiny();
        let definitions = [json!({"type": "function", "function": {"name": "f", "parameters":
            {"required": ["text"], "properties": {"text": {"type": "string"}}}}})];
        let calls = ForcedCalls { definitions: &definitions, function: None, parallel: false };
        let mut masks = made.compiled(&calls, "<tool_call>\n<function=f>\n").expect("a grammar");
        let states = |masks: &mut Masks| masks.parser.parser.lexer_stats().num_states;
        let before = states(&mut masks);
        let text = "<parameter=text>\nOther words: <p q=\"r\">\n  some\n</p>\n\n</parameter>\n<";
        for token in made.tokenizer.encode_exactly(text).expect("tokens") {
            next(&mut masks);
            masks.consume(token).expect("an allowed token");
        }
        assert_eq!(states(&mut masks), before);
    }

    /// Whichever tokens come, a mask that was kept is the one that would be made.
    #[test]
    fn what_is_kept_is_what_holds() {
        let (made, stop) = tiny();
        let (mut random, mut reused) = (7u64, 0);
        for (grammar, _) in grammars() {
            let begin = made.masks(grammar, true).expect("a grammar");
            for _ in 0..6 {
                let (mut masks, mut anew) = (begin.clone(), begin.clone());
                // Held, so that no other gets the same place in memory.
                let mut seen: Vec<Mask> = Vec::new();
                for _ in 0..120 {
                    anew.kept.clear();
                    anew.forced.clear();
                    let mask = next(&mut masks);
                    assert_eq!(mask, next(&mut anew));
                    assert!(masks.kept.len() <= KEPT);
                    reused += usize::from(seen.iter().any(|known| Arc::ptr_eq(known, &mask)));
                    seen.push(Arc::clone(&mask));
                    let Some(token) = draw(&mask, stop, &mut random) else { break };
                    masks.consume(token).expect("an allowed token");
                    anew.consume(token).expect("an allowed token");
                }
            }
        }
        assert!(reused > 500, "{reused}");
    }
}

//! Cutting text into the words that byte-pair merges may not cross.

use regex::{Regex, RegexBuilder};

/// How the known patterns end: the only part that looks ahead.
const LOOKAHEAD_END: &str = r"|\s*[\r\n]+|\s+(?!\S)|\s+";
const AUTOMATON_BYTES: usize = 32 << 20;
const LINEAR_END: &str = r"|\s*[\r\n]+|\s+";

/// Qwen's pre-tokenizer pattern, or another that ends the same way, in linear time.
///
/// A backtracking engine gives up, or needs memory in proportion, on megabytes of spaces (`\s*[\r\n]+` is tried at
/// every length). Without its one lookahead the pattern runs on an automaton: `\s+(?!\S)|\s+` means that a run of
/// white space before a word leaves its last character to that word, unless it is the only one.
#[derive(Clone, Debug)]
pub(crate) struct Pretokenizer {
    pattern: Regex,
}

impl Pretokenizer {
    /// From the pattern in tokenizer.json; the error says why it can't be used.
    pub(crate) fn new(pattern: &str) -> Result<Self, String> {
        let head = pattern
            .strip_suffix(LOOKAHEAD_END)
            .ok_or_else(|| format!("the split pattern {pattern:?} does not end with {LOOKAHEAD_END:?}"))?;
        // The automaton is made as the text needs it. Text of all scripts needs more states than fit by default, and
        // throwing them away over and over is a hundred times slower.
        let pattern = RegexBuilder::new(&format!("{head}{LINEAR_END}"))
            .dfa_size_limit(AUTOMATON_BYTES)
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self { pattern })
    }

    /// The words of `text` in order; joined they are the text.
    pub(crate) fn words<'t>(&self, text: &'t str) -> impl Iterator<Item = &'t str> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let (start, end) = (at, at + self.first_word(text, at)?);
            at = end;
            Some(&text[start..end])
        })
    }

    /// Length of the word that begins at `at`; none at the end.
    fn first_word(&self, text: &str, at: usize) -> Option<usize> {
        if at == text.len() {
            return None;
        }
        let Some(found) = self.pattern.find_at(text, at) else {
            return Some(text.len() - at);
        };
        if found.start() > at {
            // A pattern that leaves characters out: they are a word of their own, as Hugging Face's `Isolated` has it.
            return Some(found.start() - at);
        }
        let word = found.as_str();
        let before_word = text[found.end()..].chars().next().is_some_and(|c| !c.is_whitespace());
        if before_word && !word.ends_with(['\n', '\r']) && word.chars().all(char::is_whitespace) {
            let last = word.char_indices().next_back().map_or(0, |(index, _)| index);
            if last > 0 {
                return Some(last);
            }
        }
        // An empty match would never end: the character there is a word of its own.
        let first = text[at..].chars().next().map_or(0, char::len_utf8);
        Some(if word.is_empty() { first } else { word.len() })
    }
}

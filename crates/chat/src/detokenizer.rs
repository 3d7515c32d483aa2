//! Ids to text, one at a time.

use std::sync::Arc;

use crate::Tokenizer;

/// Turns a stream of token ids into text of complete characters.
///
/// A token may end inside a UTF-8 character; its bytes are held back until the character is complete. Bytes that can
/// no longer become a character are given as U+FFFD, as [`String::from_utf8_lossy`] does, so that the pushes and
/// [`finish`](Self::finish) joined are the text of all ids. Control tokens give their text as well: where one does not
/// end the reply, as in a file about templates that the model writes, it is what the model wrote.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    /// The beginning of a character: at most three bytes between pushes.
    pending: Vec<u8>,
}

impl Detokenizer {
    /// A detokenizer at the beginning of a text.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self { tokenizer, pending: Vec::new() }
    }

    /// Takes the next token; gives the characters that it completes. An id outside the vocabulary gives nothing.
    pub fn push(&mut self, id: u32) -> String {
        self.pending.extend_from_slice(self.tokenizer.bytes(id));
        let mut text = String::new();
        let mut done = 0;
        for chunk in self.pending.utf8_chunks() {
            text.push_str(chunk.valid());
            done += chunk.valid().len();
            let invalid = chunk.invalid();
            let ends_here = done + invalid.len() == self.pending.len();
            if invalid.is_empty() || (ends_here && may_continue(invalid)) {
                break;
            }
            text.push(char::REPLACEMENT_CHARACTER);
            done += invalid.len();
        }
        self.pending.drain(..done);
        text
    }

    /// Whether a character has begun that is not complete.
    #[must_use]
    pub fn is_within_character(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Ends the text: an incomplete character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }
}

/// Whether the bytes are the beginning of a character, rather than never part of one.
fn may_continue(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

//! What may come while the model thinks.

use std::sync::Arc;

use super::GrammarError;
use crate::Tokenizer;

const CLOSE: &[u8] = b"</think>";
/// What follows the end of the reasoning in the template.
const GAP: &str = "\n\n";

/// Masks for a reply that begins in reasoning. The reasoning is free, but it must end, and with a token: what comes after
/// it is the grammar's, and no byte of that may have gone before.
pub(super) struct Thinking {
    tokenizer: Arc<Tokenizer>,
    /// What may come where so many bytes of the closing tag have come.
    masks: Vec<Vec<u32>>,
    /// The tokens between reasoning and content, each with its mask.
    pub(super) gap: Vec<(u32, Vec<u32>)>,
    /// The token that opens a call, if that is one.
    pub(super) call: Option<u32>,
}

/// Bytes of the closing tag that a text ends with, once `byte` has followed `matched` of them. The first of its bytes comes
/// nowhere else in it.
fn step(matched: usize, byte: u8) -> usize {
    if CLOSE.get(matched) == Some(&byte) { matched + 1 } else { usize::from(byte == CLOSE[0]) }
}

/// Where `bytes` lead; `None` if they go on past the tag.
fn read(matched: usize, bytes: &[u8]) -> Option<usize> {
    bytes.iter().try_fold(matched, |matched, &byte| (matched < CLOSE.len()).then(|| step(matched, byte)))
}

impl Thinking {
    pub(super) fn new(tokenizer: Arc<Tokenizer>, stop_tokens: &[u32]) -> Result<Self, GrammarError> {
        let count = tokenizer.vocabulary() as u32;
        let (call, close) = (tokenizer.id("<tool_call>"), tokenizer.id("</think>"));
        let free = |id: u32| {
            !tokenizer.bytes(id).is_empty()
                && !tokenizer.is_special(id)
                && !stop_tokens.contains(&id)
                && call != Some(id)
        };
        let fits = |matched: usize, id: u32| match read(matched, tokenizer.bytes(id)) {
            // Where the tag has a token of its own, that is how the model ends its reasoning.
            Some(matched) if matched == CLOSE.len() => close.is_none_or(|close| close == id),
            fits => fits.is_some(),
        };
        let mask = |matched: usize| bits(count, |id| free(id) && fits(matched, id));
        let gap = tokenizer.encode_exactly(GAP).map_err(super::failed)?;
        let masks = (0..CLOSE.len()).map(mask).collect();
        let gap = gap.into_iter().map(|id| (id, bits(count, |other| other == id))).collect();
        Ok(Self { tokenizer, masks, gap, call })
    }

    /// What may come where `matched` bytes of the closing tag have come.
    pub(super) fn allowed(&self, matched: usize) -> &[u32] {
        &self.masks[matched]
    }

    /// Where a token leads from there; `None` if it ends the reasoning.
    pub(super) fn accept(&self, matched: usize, token: u32) -> Option<usize> {
        read(matched, self.tokenizer.bytes(token)).filter(|&matched| matched < CLOSE.len())
    }
}

fn bits(count: u32, allowed: impl Fn(u32) -> bool) -> Vec<u32> {
    let mut words = vec![0; count.div_ceil(32) as usize];
    for id in (0..count).filter(|&id| allowed(id)) {
        words[id as usize / 32] |= 1 << (id % 32);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::{CLOSE, read};

    #[test]
    fn the_tag_ends_with_a_token() {
        assert_eq!(read(0, b"</think>"), Some(CLOSE.len()));
        assert_eq!(read(0, b"<</th"), Some(4));
        assert_eq!(read(4, b"ink>"), Some(CLOSE.len()));
        assert_eq!(read(4, b"ink>\n"), None);
        assert_eq!(read(0, b"</think>x"), None);
        assert_eq!(read(7, b"> "), None);
        assert_eq!(read(4, b"in <k>\n"), Some(0));
        assert_eq!(read(2, b"<"), Some(1));
    }
}

//! The vocabulary as llguidance sees it.

use std::sync::Arc;

use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use super::GrammarError;
use crate::Tokenizer;

/// Tokens by their bytes. Control tokens are apart: no text is made of them.
pub(super) struct Vocabulary {
    tokenizer: Arc<Tokenizer>,
    trie: TokTrie,
}

/// Sets of tokens that are allowed as a whole where a text may go on with any of them.
pub(super) fn slices() -> Vec<String> {
    SlicedBiasComputer::general_slices()
}

impl Vocabulary {
    pub(super) fn new(tokenizer: Arc<Tokenizer>, stop_tokens: &[u32]) -> Result<Self, GrammarError> {
        let count = tokenizer.vocabulary() as u32;
        let failed = |reason: &str| GrammarError::Failed(reason.into());
        let (&first, _) = stop_tokens.split_first().ok_or_else(|| failed("the model has no stop token"))?;
        if stop_tokens.iter().any(|&token| token >= count) {
            return Err(failed("a stop token is not in the vocabulary"));
        }
        let bytes = |id: u32| {
            let control = tokenizer.is_special(id).then_some(TokTrie::SPECIAL_TOKEN_MARKER);
            control.into_iter().chain(tokenizer.bytes(id).iter().copied()).collect()
        };
        let words: Vec<Vec<u8>> = (0..count).map(bytes).collect();
        let trie = TokTrie::from(&TokRxInfo::new(count, first), &words).with_eos_tokens(stop_tokens);
        Ok(Self { tokenizer, trie })
    }
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    /// As the model has seen this text in training, so that where a grammar leaves no choice it reads what it knows.
    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        let exactly = |text: &str| self.tokenizer.encode_exactly(text).unwrap_or_default();
        let ids = self.trie.tokenize_with_greedy_fallback(bytes, exactly);
        let made: Vec<u8> = ids.iter().flat_map(|&id| self.tokenizer.bytes(id)).copied().collect();
        if made == bytes { ids } else { self.trie.greedy_tokenize(bytes) }
    }
}

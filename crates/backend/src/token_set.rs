//! Sets of token ids.

/// Token ids, a bit each: bit `id % 32` of word `id / 32`, as grammars and kernels have it. Ids beyond the words are not in
/// the set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenSet {
    words: Vec<u32>,
}

impl TokenSet {
    /// The set whose bits are these.
    #[must_use]
    pub const fn from_words(words: Vec<u32>) -> Self {
        Self { words }
    }

    /// Its bits.
    #[must_use]
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Whether a token is in the set.
    #[must_use]
    pub fn contains(&self, token: u32) -> bool {
        self.words.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    /// Adds a token.
    pub fn insert(&mut self, token: u32) {
        let place = token as usize / 32;
        if place >= self.words.len() {
            self.words.resize(place + 1, 0);
        }
        self.words[place] |= 1 << (token % 32);
    }
}

impl FromIterator<u32> for TokenSet {
    fn from_iter<I: IntoIterator<Item = u32>>(tokens: I) -> Self {
        let mut set = Self::default();
        tokens.into_iter().for_each(|token| set.insert(token));
        set
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::TokenSet;

    proptest! {
        #[test]
        fn it_holds_what_was_put_in(tokens in prop::collection::hash_set(0u32..500, 0..40)) {
            let set: TokenSet = tokens.iter().copied().collect();
            let held: HashSet<u32> = (0..1000).filter(|&token| set.contains(token)).collect();
            prop_assert_eq!(held, tokens);
            prop_assert_eq!(TokenSet::from_words(set.words().to_vec()), set);
        }
    }
}

//! Completion of a gap: `suffix`, the text after it, written the way the model was trained to fill gaps.

use crate::error::ApiError;
use crate::params::Limits;
use crate::submit::{check_length, encode};
use lily_chat::Tokenizer;

/// What goes around a prompt to make it a gap's beginning.
pub(crate) struct Infill {
    before: u32,
    /// The gap, what follows it, and where to write.
    after: Vec<u32>,
}

impl Infill {
    /// For the gap before `suffix`. 400 if the vocabulary has no tokens for it.
    pub(crate) fn new(tokenizer: &Tokenizer, limits: &Limits, suffix: &str) -> Result<Self, ApiError> {
        let token = |name: &str| {
            tokenizer.id(name).ok_or_else(|| {
                let message = format!("'suffix' is not supported: the model was not trained for it, it has no {name}.");
                ApiError::parameter("suffix", message)
            })
        };
        let before = token("<|fim_prefix|>")?;
        let mut after = vec![token("<|fim_suffix|>")?];
        let middle = token("<|fim_middle|>")?;
        after.extend(encode(tokenizer, limits, suffix, "suffix")?);
        after.push(middle);
        Ok(Self { before, after })
    }

    /// The prompt that fills the gap between `prompt` and the suffix.
    pub(crate) fn around(&self, prompt: &[u32], limits: &Limits) -> Result<Vec<u32>, ApiError> {
        let whole = [&[self.before][..], prompt, self.after.as_slice()].concat();
        check_length(whole.len(), limits, "prompt")?;
        Ok(whole)
    }
}

#[cfg(test)]
mod tests {
    use super::Infill;
    use crate::Defaults;
    use crate::params::Limits;
    use lily_chat::Tokenizer;

    const JSON: &str = include_str!("../../../models/tiny/tokenizer.json");

    fn limits() -> Limits {
        Limits {
            max_context: 8,
            context_can_grow: false,
            vocabulary: 6113,
            longest_token: 16,
            defaults: Defaults::default(),
        }
    }

    #[test]
    fn the_tokens_for_gaps_go_around_the_prompt() {
        let tokenizer = Tokenizer::from_files(JSON.as_bytes(), None).expect("the embedded tokenizer");
        let infill = Infill::new(&tokenizer, &limits(), " b").expect("it has them");
        let expected = tokenizer.encode("<|fim_prefix|>a<|fim_suffix|> b<|fim_middle|>").expect("tokens");
        let prompt = tokenizer.encode("a").expect("a token");
        assert_eq!(infill.around(&prompt, &limits()).expect("it fits"), expected);
        assert!(infill.around(&[7; 5], &limits()).is_err(), "too long");
    }

    #[test]
    fn a_model_without_them_is_told() {
        let without = JSON.replace("<|fim_middle|>", "<|other|>");
        let tokenizer = Tokenizer::from_files(without.as_bytes(), None).expect("a tokenizer");
        let error = Infill::new(&tokenizer, &limits(), "b").err().expect("refused");
        assert_eq!(error.body()["error"]["param"], "suffix");
        assert!(error.message().contains("<|fim_middle|>"), "{}", error.message());
    }
}

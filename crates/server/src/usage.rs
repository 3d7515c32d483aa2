//! What a request took, as OpenAI writes it.

use serde_json::{Value, json};
use std::ops::AddAssign;

/// Tokens of one choice or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: usize,
    /// Those of the prompt that did not have to be read again.
    pub(crate) cached_tokens: usize,
    pub(crate) completion_tokens: usize,
    /// Those of the completion before the first of the content.
    pub(crate) reasoning_tokens: usize,
}

impl Usage {
    pub(crate) fn to_json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        })
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.prompt_tokens += other.prompt_tokens;
        self.cached_tokens += other.cached_tokens;
        self.completion_tokens += other.completion_tokens;
        self.reasoning_tokens += other.reasoning_tokens;
    }
}

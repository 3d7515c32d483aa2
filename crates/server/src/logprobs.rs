//! Log-probabilities in the shapes of the two endpoints.

use lily_backend::Sample;
use lily_chat::Tokenizer;
use serde_json::{Map, Value, json};

/// The chat endpoint's `logprobs` of a run of tokens.
pub(crate) fn chat(tokenizer: &Tokenizer, tokens: &[Sample]) -> Value {
    let content: Vec<Value> = tokens
        .iter()
        .map(|sample| {
            let mut entry = token(tokenizer, sample.token, sample.logprob.unwrap_or(0.0));
            let top = sample.top.iter().map(|other| token(tokenizer, other.token, other.logprob));
            entry["top_logprobs"] = top.collect();
            entry
        })
        .collect();
    json!({"content": content, "refusal": null})
}

fn token(tokenizer: &Tokenizer, id: u32, logprob: f32) -> Value {
    let bytes = tokenizer.bytes(id);
    json!({"token": String::from_utf8_lossy(bytes), "logprob": logprob, "bytes": bytes})
}

/// The completions endpoint's `logprobs` of a run of tokens that gave `text`, which begins `offset` characters into the
/// choice's whole text.
pub(crate) fn completion(tokenizer: &Tokenizer, tokens: &[Sample], offset: usize, text: &str) -> Value {
    let end = offset + text.chars().count();
    let mut at = offset;
    let offsets = tokens.iter().map(|sample| {
        // A token that a stop string cut, or that is part of a character, has more text of its own than it gave.
        let begins = at.min(end);
        at += String::from_utf8_lossy(tokenizer.bytes(sample.token)).chars().count();
        begins
    });
    let offsets: Vec<usize> = offsets.collect();
    // The chosen token is always there, also where it is not among the most probable.
    let top = tokens.iter().map(|sample| {
        let mut map = Map::new();
        for other in &sample.top {
            map.insert(name(tokenizer, other.token), json!(other.logprob));
        }
        map.insert(name(tokenizer, sample.token), json!(sample.logprob));
        map
    });
    json!({
        "tokens": tokens.iter().map(|sample| name(tokenizer, sample.token)).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|sample| sample.logprob).collect::<Vec<_>>(),
        "top_logprobs": top.collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}

/// A token's text or, where it is no text, its bytes as OpenAI spells them, so that two such tokens differ.
fn name(tokenizer: &Tokenizer, id: u32) -> String {
    match std::str::from_utf8(tokenizer.bytes(id)) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            let bytes: String = tokenizer.bytes(id).iter().map(|byte| format!("\\x{byte:02x}")).collect();
            format!("bytes:{bytes}")
        }
    }
}

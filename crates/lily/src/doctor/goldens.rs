//! What a sound model answers, greedily: of the 35B as published with [`lily_checkpoint::REVISION`], of the
//! embedded one as transformers answers in fp32 (models/tiny/reference).

use anyhow::{Context, Result};
use lily_chat::Tokenizer;
use lily_checkpoint::{CHECKPOINT, Checkpoint};
use serde_json::Value;

/// The chat whose prompt and answer are known.
pub(super) const CHAT: &str = "Name the two colors of a chessboard.";

/// A prompt and what follows it.
pub(super) struct Golden {
    pub(super) name: String,
    pub(super) prompt: Vec<u32>,
    /// Greedy.
    pub(super) answer: Vec<u32>,
    /// Log-probability of the answer's first token, if known.
    pub(super) first_logprob: Option<f64>,
}

/// Whether it has the 35B's sizes; its weights may be any.
pub(super) fn is_full_size(checkpoint: &Checkpoint) -> bool {
    let config = &checkpoint.config;
    (config.vocab_size, config.hidden_size, config.layers.len(), config.moe.experts) == (248_320, 2048, 40, 256)
}

/// The tokens of [`CHAT`] with thinking on, with the 35B's tokenizer.
pub(super) fn chat_prompt() -> Vec<u32> {
    vec![
        248045, 846, 198, 657, 279, 1330, 7736, 314, 264, 31634, 2402, 13, 248046, 198, 248045, 74455, 198, 248068, 198,
    ]
}

/// What is known of a checkpoint; empty if nothing is.
pub(super) fn of(checkpoint: &Checkpoint, embedded: bool, tokenizer: &Tokenizer) -> Result<Vec<Golden>> {
    if embedded {
        return embedded_answers(tokenizer);
    }
    if !is_full_size(checkpoint) {
        return Ok(Vec::new());
    }
    let counting: Vec<String> = (1..700).map(|number| number.to_string()).collect();
    let golden = |name: &str, prompt: Vec<u32>, answer: &[u32], first_logprob| Golden {
        name: format!("{CHECKPOINT}, {name}"),
        prompt,
        answer: answer.to_vec(),
        first_logprob,
    };
    Ok(vec![
        golden("a chat", chat_prompt(), &CHAT_ANSWER, Some(-0.11305)),
        golden("a fact", vec![760, 6511, 314, 9338, 369], &FACT_ANSWER, Some(-0.50282)),
        golden("counting", tokenizer.encode(&counting.join(" "))?, &COUNTING_ANSWER, None),
    ])
}

/// Prompts whose tokens are those of their text.
fn embedded_answers(tokenizer: &Tokenizer) -> Result<Vec<Golden>> {
    let json = include_str!("../../../../models/tiny/reference/reference.json");
    let reference: Value = serde_json::from_str(json).context("the stored reference is not JSON")?;
    let end = tokenizer.id("<|im_end|>").context("the tokenizer has no <|im_end|>")?;
    let cases = reference["prompts"].as_array().context("the stored reference has no prompts")?;
    let texts = cases.iter().filter_map(|case| {
        Some((case, case["name"].as_str()?, case["prompt"].as_str()?, case["greedy_text"].as_str()?))
    });
    texts
        .map(|(case, name, prompt, answer)| {
            let mut answer = tokenizer.encode(answer)?;
            if case["ends_at"].is_u64() {
                answer.push(end);
            }
            Ok(Golden { name: name.to_owned(), prompt: tokenizer.encode(prompt)?, answer, first_logprob: None })
        })
        .collect()
}

const CHAT_ANSWER: [u32; 64] = [
    8160, 579, 264, 7047, 1817, 25, 271, 16, 13, 220, 2972, 2014, 53983, 2570, 5396, 64700, 198, 256, 471, 15380, 25,
    328, 657, 279, 1330, 7736, 314, 264, 31634, 2402, 1149, 198, 256, 471, 5141, 5255, 25, 328, 19186, 7736, 487, 328,
    329, 425, 2402, 1, 271, 17, 13, 220, 2972, 27382, 1386, 9237, 30876, 64700, 198, 256, 471, 357, 5129, 31634, 2402,
    682,
];
/// An exact tie follows.
const FACT_ANSWER: [u32; 63] = [
    11751, 11, 264, 3177, 34756, 364, 1141, 25438, 57902, 1680, 430, 279, 242476, 300, 21262, 11, 279, 9440, 46890,
    15849, 11, 321, 42027, 9141, 368, 54832, 13, 11751, 369, 1048, 10919, 364, 1141, 31883, 7431, 11, 10829, 11, 321,
    33847, 13, 198, 760, 6511, 314, 9564, 369, 19241, 11, 264, 3177, 3750, 364, 1141, 8807, 3712, 11, 31883, 18001,
    5918, 11, 321, 16315,
];
const COUNTING_ANSWER: [u32; 12] = [220, 22, 15, 15, 220, 22, 15, 16, 220, 22, 15, 17];

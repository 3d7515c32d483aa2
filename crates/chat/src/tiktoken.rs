//! Qwen3.6's tokenizer without its tokenizer.json: the byte-level alphabet, and the file made of byte-pair ranks as
//! tiktoken files hold them.

use std::collections::HashMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};

/// The character that stands for a byte in a byte-level vocabulary: printable Latin-1 characters stand for
/// themselves, the other 68 bytes for the characters from U+0100 on, in order.
pub(crate) fn char_of_byte(byte: u8) -> char {
    CHAR_OF_BYTE[byte as usize]
}

/// The byte that a character of a byte-level vocabulary stands for.
pub(crate) fn byte_of_char(c: char) -> Option<u8> {
    BYTE_OF_CHAR.get(c as usize).copied().flatten()
}

const fn is_printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
}

const CHAR_OF_BYTE: [char; 256] = {
    let mut table = ['\0'; 256];
    let (mut byte, mut next) = (0, 0x100);
    while byte < 256 {
        table[byte] = if is_printable(byte as u8) {
            byte as u8 as char
        } else {
            next += 1;
            match char::from_u32(next - 1) {
                Some(c) => c,
                None => panic!("U+0100 to U+0143 are characters"),
            }
        };
        byte += 1;
    }
    table
};

const BYTE_OF_CHAR: [Option<u8>; 0x144] = {
    let mut table = [None; 0x144];
    let mut byte = 0;
    while byte < 256 {
        table[CHAR_OF_BYTE[byte] as usize] = Some(byte as u8);
        byte += 1;
    }
    table
};

/// Qwen3.6's pre-tokenizer pattern.
const PATTERN: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// An added token of Qwen3.6, in the order of their ids: those of the base vocabulary go on without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddedToken {
    /// The token's text.
    pub content: &'static str,
    /// Whether it is for control and no text of a reply.
    pub special: bool,
    /// False for the last seven, which the real checkpoint declares in tokenizer_config.json only.
    pub in_tokenizer_json: bool,
}

/// Qwen3.6's added tokens, `<|endoftext|>` (248044) to `<|audio_pad|>` (248076).
pub const ADDED_TOKENS: [AddedToken; 33] = {
    const fn special(content: &'static str) -> AddedToken {
        AddedToken { content, special: true, in_tokenizer_json: true }
    }
    const fn text(content: &'static str) -> AddedToken {
        AddedToken { content, special: false, in_tokenizer_json: true }
    }
    const fn late(content: &'static str) -> AddedToken {
        AddedToken { content, special: true, in_tokenizer_json: false }
    }
    [
        special("<|endoftext|>"),
        special("<|im_start|>"),
        special("<|im_end|>"),
        special("<|object_ref_start|>"),
        special("<|object_ref_end|>"),
        special("<|box_start|>"),
        special("<|box_end|>"),
        special("<|quad_start|>"),
        special("<|quad_end|>"),
        special("<|vision_start|>"),
        special("<|vision_end|>"),
        special("<|vision_pad|>"),
        special("<|image_pad|>"),
        special("<|video_pad|>"),
        text("<tool_call>"),
        text("</tool_call>"),
        text("<|fim_prefix|>"),
        text("<|fim_middle|>"),
        text("<|fim_suffix|>"),
        text("<|fim_pad|>"),
        text("<|repo_name|>"),
        text("<|file_sep|>"),
        text("<tool_response>"),
        text("</tool_response>"),
        text("<think>"),
        text("</think>"),
        late("<|audio_start|>"),
        late("<|audio_end|>"),
        late("<tts_pad>"),
        late("<tts_text_bos>"),
        late("<tts_text_eod>"),
        late("<tts_text_bos_single>"),
        late("<|audio_pad|>"),
    ]
};

/// Why byte-pair ranks could not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RanksError {
    /// A line is not a token in Base64, a space and the token's rank.
    #[error("line {line} of the ranks is not a Base64 token, a space and the rank {expected}")]
    Line {
        /// Counted from one.
        line: usize,
        /// Ranks count up from 0.
        expected: usize,
    },
    /// Two ranks have the same token.
    #[error("token {rank} occurs before")]
    Duplicate {
        /// The rank of the second.
        rank: usize,
    },
}

/// Reads the lines of a tiktoken file: tokens' bytes, in the order of their ranks, which are their ids.
///
/// # Errors
/// [`RanksError::Line`].
pub fn parse_ranks(text: &str) -> Result<Vec<Vec<u8>>, RanksError> {
    let parse = |(index, line): (usize, &str)| {
        let (token, rank) = line.split_once(' ')?;
        (rank.trim_end().parse() == Ok(index)).then_some(())?;
        BASE64_STANDARD.decode(token).ok().filter(|token| !token.is_empty())
    };
    text.lines()
        .enumerate()
        .map(|line| parse(line).ok_or(RanksError::Line { line: line.0 + 1, expected: line.0 }))
        .collect()
}

/// The tokenizer.json of a Qwen3.6 tokenizer with these byte-pair ranks: the merges are derived from the ranks, the
/// pattern and NFC are Qwen3.6's, and [`ADDED_TOKENS`] follow the base vocabulary, except the last seven, which belong to
/// [`tokenizer_config_json`]. Qwen3.6 has 247,587 merges this way.
///
/// # Errors
/// [`RanksError::Duplicate`].
pub fn tokenizer_json_from_ranks(ranks: &[Vec<u8>]) -> Result<Value, RanksError> {
    let spelled = |bytes: &[u8]| bytes.iter().map(|&byte| char_of_byte(byte)).collect::<String>();
    let mut rank_of = HashMap::with_capacity(ranks.len());
    for (rank, token) in ranks.iter().enumerate() {
        if rank_of.insert(token.as_slice(), rank).is_some() {
            return Err(RanksError::Duplicate { rank });
        }
    }
    let mut merges = Vec::with_capacity(ranks.len());
    for token in ranks.iter().filter(|token| token.len() > 1) {
        if let Some(at) = last_merge(token, &rank_of) {
            merges.push(json!([spelled(&token[..at]), spelled(&token[at..])]));
        }
    }
    let vocabulary: Map<String, Value> =
        ranks.iter().enumerate().map(|(rank, token)| (spelled(token), rank.into())).collect();
    let byte_level = |trim_offsets: bool, use_regex: bool| json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": trim_offsets, "use_regex": use_regex });
    let added = added_tokens(ranks.len()).filter(|(_, token)| token.in_tokenizer_json);
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added.map(|(id, token)| declaration(Some(id), token)).collect::<Vec<_>>(),
        "normalizer": { "type": "NFC" },
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                { "type": "Split", "pattern": { "Regex": PATTERN }, "behavior": "Isolated", "invert": false },
                byte_level(false, false),
            ],
        },
        "post_processor": byte_level(false, false),
        "decoder": byte_level(false, false),
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": false,
            "vocab": vocabulary,
            "merges": merges,
        },
    }))
}

/// The tokenizer_config.json that goes with [`tokenizer_json_from_ranks`] of `ranks` base tokens: all
/// [`ADDED_TOKENS`] and the names of the chat's tokens.
pub fn tokenizer_config_json(ranks: usize) -> Value {
    let added: Map<String, Value> =
        added_tokens(ranks).map(|(id, token)| (id.to_string(), declaration(None, token))).collect();
    json!({
        "add_bos_token": false,
        "add_prefix_space": false,
        "added_tokens_decoder": added,
        "bos_token": null,
        "clean_up_tokenization_spaces": false,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 262_144,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": false,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": null,
        "pretokenize_regex": PATTERN,
    })
}

fn added_tokens(first: usize) -> impl Iterator<Item = (usize, AddedToken)> {
    (first..).zip(ADDED_TOKENS)
}

fn declaration(id: Option<usize>, token: AddedToken) -> Value {
    let mut declaration = Map::new();
    if let Some(id) = id {
        declaration.insert("id".into(), id.into());
    }
    declaration.insert("content".into(), token.content.into());
    for flag in ["single_word", "lstrip", "rstrip", "normalized"] {
        declaration.insert(flag.into(), false.into());
    }
    declaration.insert("special".into(), token.special.into());
    declaration.into()
}

/// Where the two parts meet whose merge makes `token`: merges are applied to it, lowest rank first, until two parts are
/// left. None if no merge makes it: 201 of Qwen3.6's 248,044 tokens, which no text then becomes.
fn last_merge(token: &[u8], rank_of: &HashMap<&[u8], usize>) -> Option<usize> {
    let mut ends: Vec<usize> = (0..=token.len()).collect();
    while ends.len() > 3 {
        let merged = |&index: &usize| rank_of.get(&token[ends[index]..ends[index + 2]]);
        let lowest = (0..ends.len() - 2).filter(|index| merged(index).is_some()).min_by_key(merged)?;
        ends.remove(lowest + 1);
    }
    Some(ends[1])
}

//! Texts in the pieces that a stream of tokens gives.

use std::sync::{Arc, LazyLock};

use lily_chat::Detokenizer;

use crate::tiny::TOKENIZER;

/// Comes in no UTF-8: here it says where a piece ends.
const CUT: u8 = 0xff;

/// The token of each byte.
static BYTES: LazyLock<[u32; 256]> = LazyLock::new(|| {
    let mut ids = [0; 256];
    for id in 0..TOKENIZER.vocabulary() as u32 {
        if let [byte] = TOKENIZER.bytes(id) {
            ids[usize::from(*byte)] = id;
        }
    }
    ids
});

/// The pieces of a text that comes byte by byte as tokens, cut at [`CUT`]; joined they are the text of the bytes.
pub(crate) fn pieces(data: &[u8]) -> Vec<String> {
    let mut detokenizer = Detokenizer::new(Arc::clone(&TOKENIZER));
    let mut pieces: Vec<String> = data
        .split(|&byte| byte == CUT)
        .map(|run| run.iter().map(|&byte| detokenizer.push(BYTES[usize::from(byte)])).collect())
        .collect();
    pieces.push(detokenizer.finish());
    let bytes: Vec<u8> = data.iter().copied().filter(|&byte| byte != CUT).collect();
    assert_eq!(pieces.concat(), String::from_utf8_lossy(&bytes), "tokens give the text of their bytes");
    pieces
}

/// A text in single characters.
pub(crate) fn characters(text: &str) -> Vec<String> {
    text.chars().map(String::from).collect()
}

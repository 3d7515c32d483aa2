//! The two tokenizers that the tests use; no test uses all of this.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use lily_chat::{Tokenizer, tiktoken};

/// The folder of the small checkpoint.
pub(crate) fn tiny_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny")
}

/// The folder of the 35B's files.
pub(crate) fn real_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/qwen3.6-35b-a3b")
}

/// The chat template that goes with the real vocabulary.
pub(crate) fn real_template() -> String {
    std::fs::read_to_string(real_folder().join("chat_template.jinja")).expect("the template")
}

/// A file of this crate's fixtures.
pub(crate) fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)).expect(name)
}

/// The small checkpoint's tokenizer.
pub(crate) fn tiny() -> Arc<Tokenizer> {
    static TINY: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    let load = || {
        let read = |name: &str| std::fs::read(tiny_folder().join(name)).expect(name);
        Tokenizer::from_files(&read("tokenizer.json"), Some(&read("tokenizer_config.json"))).expect("loads")
    };
    TINY.get_or_init(|| Arc::new(load())).clone()
}

/// The real vocabulary's tokenizer.json and tokenizer_config.json, made of its byte-pair ranks.
pub(crate) fn real_files() -> &'static (Vec<u8>, Vec<u8>) {
    static FILES: OnceLock<(Vec<u8>, Vec<u8>)> = OnceLock::new();
    FILES.get_or_init(|| {
        let compressed = std::fs::read(real_folder().join("ranks.tiktoken.zst")).expect("the ranks");
        let mut text = String::new();
        ruzstd::decoding::StreamingDecoder::new(compressed.as_slice())
            .expect("a zstd frame")
            .read_to_string(&mut text)
            .expect("decompresses");
        let ranks = tiktoken::parse_ranks(&text).expect("ranks");
        let tokenizer = tiktoken::tokenizer_json_from_ranks(&ranks).expect("merges");
        let config = tiktoken::tokenizer_config_json(ranks.len());
        (tokenizer.to_string().into_bytes(), config.to_string().into_bytes())
    })
}

/// The real vocabulary's tokenizer.
pub(crate) fn real() -> Arc<Tokenizer> {
    static REAL: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    let load = || {
        let (tokenizer, config) = real_files();
        Tokenizer::from_files(tokenizer, Some(config)).expect("loads")
    };
    REAL.get_or_init(|| Arc::new(load())).clone()
}

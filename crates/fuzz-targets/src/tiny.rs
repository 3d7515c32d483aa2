//! The embedded checkpoint and what is made of it once.

use std::sync::{Arc, LazyLock};

use lily_chat::{ChatTemplate, Tokenizer};
use lily_checkpoint::Checkpoint;

/// The checkpoint.
pub(crate) static CHECKPOINT: LazyLock<Arc<Checkpoint>> =
    LazyLock::new(|| Arc::new(Checkpoint::embedded().expect("the embedded checkpoint")));

/// Its tokenizer.
pub(crate) static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
    let files = &CHECKPOINT.files;
    Arc::new(Tokenizer::from_files(&files.tokenizer, files.tokenizer_config.as_deref()).expect("a tokenizer"))
});

/// The template of the 35B, with the special tokens of the embedded checkpoint, which are the same.
pub(crate) static TEMPLATE: LazyLock<Arc<ChatTemplate>> = LazyLock::new(|| {
    let source = include_str!("../../../models/qwen3.6-35b-a3b/chat_template.jinja");
    let config = CHECKPOINT.files.tokenizer_config.as_deref().expect("a configuration");
    let template = ChatTemplate::from_source(source).expect("a template");
    Arc::new(template.with_special_tokens(config).expect("special tokens"))
});

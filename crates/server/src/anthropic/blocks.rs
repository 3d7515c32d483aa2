//! The reply as content blocks: as a list, or as the events of a stream that amount to the same list.

use lily_chat::ReplyEvent;
use serde_json::{Value, json};

/// Stands where Anthropic proves that the reasoning is its own; clients return it, and drop reasoning without one.
const SIGNATURE: &str = "bGlseQ==";

/// How a message ended; not at all yet by default.
#[derive(Debug, Default)]
pub(super) struct Ending {
    pub(super) reason: Option<&'static str>,
    /// The stop sequence that did it.
    pub(super) stop_sequence: Option<String>,
}

/// The blocks of a whole reply.
pub(super) struct Content {
    blocks: Vec<Block>,
    thinking_shown: bool,
}

enum Block {
    Thinking(String),
    Text(String),
    ToolUse {
        id: String,
        name: String,
        /// JSON text.
        input: String,
        /// Whether it was not cut.
        is_whole: bool,
    },
}

impl Content {
    /// `thinking_shown`: whether the text of the reasoning goes out.
    pub(super) fn new(thinking_shown: bool) -> Self {
        Self { blocks: Vec::new(), thinking_shown }
    }

    pub(super) fn take(&mut self, event: ReplyEvent) {
        match (self.blocks.last_mut(), event) {
            (Some(Block::Thinking(text)), ReplyEvent::Reasoning(more)) => text.push_str(&more),
            (Some(Block::Text(text)), ReplyEvent::Content(more)) => text.push_str(&more),
            (Some(Block::ToolUse { input, .. }), ReplyEvent::CallArguments { json, .. }) => input.push_str(&json),
            (_, ReplyEvent::Reasoning(text)) => self.blocks.push(Block::Thinking(text)),
            (_, ReplyEvent::Content(text)) => self.blocks.push(Block::Text(text)),
            (_, ReplyEvent::CallBegin { id, name, .. }) => {
                self.blocks.push(Block::ToolUse { id, name, input: String::new(), is_whole: false });
            }
            (Some(Block::ToolUse { is_whole, .. }), ReplyEvent::CallEnd { .. }) => *is_whole = true,
            (_, ReplyEvent::CallArguments { .. } | ReplyEvent::CallEnd { .. }) => {}
        }
    }

    /// A call that was cut is left out: there is no object that says so, and the beginning of one must not be run.
    pub(super) fn into_blocks(self) -> Vec<Value> {
        let shown = self.thinking_shown;
        let block = |block| match block {
            Block::Thinking(text) => Some(
                json!({"type": "thinking", "thinking": if shown { text } else { String::new() }, "signature": SIGNATURE}),
            ),
            Block::Text(text) => Some(json!({"type": "text", "text": text})),
            Block::ToolUse { is_whole: false, .. } => None,
            Block::ToolUse { id, name, input, .. } => {
                let input: Value = serde_json::from_str(&input).ok()?;
                Some(json!({"type": "tool_use", "id": id, "name": name, "input": input}))
            }
        };
        self.blocks.into_iter().filter_map(block).collect()
    }
}

/// The events of a stream that make up the blocks. Blocks follow each other; none is left open.
pub(super) struct BlockEvents {
    /// The number of the block that is open or comes next.
    index: usize,
    open: Option<Kind>,
    thinking_shown: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Thinking,
    Text,
    ToolUse,
}

impl BlockEvents {
    /// `thinking_shown`: whether the text of the reasoning goes out.
    pub(super) fn new(thinking_shown: bool) -> Self {
        Self { index: 0, open: None, thinking_shown }
    }

    /// What tells of `event`.
    pub(super) fn take(&mut self, event: ReplyEvent) -> Vec<Value> {
        let mut events = Vec::new();
        match event {
            ReplyEvent::Reasoning(text) => {
                let start = || json!({"type": "thinking", "thinking": "", "signature": ""});
                self.begin(Kind::Thinking, start, &mut events);
                if self.thinking_shown {
                    events.push(self.delta(json!({"type": "thinking_delta", "thinking": text})));
                }
            }
            ReplyEvent::Content(text) => {
                self.begin(Kind::Text, || json!({"type": "text", "text": ""}), &mut events);
                events.push(self.delta(json!({"type": "text_delta", "text": text})));
            }
            ReplyEvent::CallBegin { id, name, .. } => {
                self.close(&mut events);
                let start = || json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                self.begin(Kind::ToolUse, start, &mut events);
            }
            ReplyEvent::CallArguments { json, .. } => {
                events.push(self.delta(json!({"type": "input_json_delta", "partial_json": json})));
            }
            ReplyEvent::CallEnd { .. } => self.close(&mut events),
        }
        events
    }

    /// Closes the block that is open, if one is.
    pub(super) fn close(&mut self, events: &mut Vec<Value>) {
        let Some(kind) = self.open.take() else { return };
        if kind == Kind::Thinking {
            events.push(self.delta(json!({"type": "signature_delta", "signature": SIGNATURE})));
        }
        events.push(json!({"type": "content_block_stop", "index": self.index}));
        self.index += 1;
    }

    /// Opens a block, unless one of its kind is open.
    fn begin(&mut self, kind: Kind, start: impl FnOnce() -> Value, events: &mut Vec<Value>) {
        if self.open == Some(kind) {
            return;
        }
        self.close(events);
        self.open = Some(kind);
        events.push(json!({"type": "content_block_start", "index": self.index, "content_block": start()}));
    }

    fn delta(&self, delta: Value) -> Value {
        json!({"type": "content_block_delta", "index": self.index, "delta": delta})
    }
}

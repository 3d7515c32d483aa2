//! Replies of tokens drawn at random from those that a grammar allows.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::sync::Arc;

use lily_chat::{CallOptions, ReplyEvent, ReplyGrammar, ReplyParser, Tokenizer, ToolSet};
use serde_json::Value;

/// Tokens after which a walk only closes what is open.
const WILD: usize = 60;
/// Tokens after which a walk that has not ended never will.
const MOST: usize = 2000;

/// Whether a token may come next.
pub(crate) fn allows(grammar: &ReplyGrammar, token: u32) -> bool {
    grammar
        .allowed()
        .is_none_or(|words| words.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1))
}

pub(crate) struct Walk<'t> {
    random: u64,
    tokenizer: &'t Tokenizer,
    stops: &'t [u32],
    /// Single marks, some of which lead towards an end.
    closers: Vec<u32>,
    /// Tokens that are allowed together only where a text may go on in a call.
    text: Vec<u32>,
    /// What ends such a text, up to what nothing else begins with: without that the next would be taken for a text again.
    tag: Vec<u32>,
}

impl<'t> Walk<'t> {
    pub(crate) fn new(seed: u64, tokenizer: &'t Tokenizer, stops: &'t [u32]) -> Self {
        let tokens = |text: &str| tokenizer.encode(text).expect("tokens");
        let closers = ["\"", "}", "]", ",", ":", "\n"].iter().flat_map(|mark| tokens(mark)).collect();
        let text = ["<", "\n"].iter().flat_map(|mark| tokens(mark)).collect();
        Self { random: seed | 1, tokenizer, stops, closers, text, tag: tokens("\n</parameter>\n<") }
    }

    /// Xorshift.
    fn below(&mut self, bound: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as usize % bound
    }

    /// The text of a reply.
    pub(crate) fn reply(&mut self, mut grammar: ReplyGrammar) -> String {
        let mut bytes = Vec::new();
        for count in 0..MOST {
            if self.stops.iter().any(|&stop| allows(&grammar, stop)) && (count > WILD || self.below(2) == 0) {
                return String::from_utf8(bytes).expect("whole characters");
            }
            // In JSON a text has no line breaks.
            let in_call = self.text.iter().all(|&mark| allows(&grammar, mark));
            if in_call && (count > WILD || self.below(4) == 0) {
                for &token in &self.tag {
                    if !allows(&grammar, token) {
                        break;
                    }
                    grammar.accept(token).expect("an allowed token");
                    bytes.extend_from_slice(self.tokenizer.bytes(token));
                }
                continue;
            }
            let token = self.choose(&grammar, count > WILD);
            if self.stops.contains(&token) {
                return String::from_utf8(bytes).expect("whole characters");
            }
            grammar.accept(token).expect("an allowed token");
            bytes.extend_from_slice(self.tokenizer.bytes(token));
        }
        panic!("no end: {}", String::from_utf8_lossy(&bytes));
    }

    fn choose(&mut self, grammar: &ReplyGrammar, closing: bool) -> u32 {
        let closers: Vec<u32> = self.closers.iter().copied().filter(|&id| allows(grammar, id)).collect();
        // Not always, since the only mark may be one that leads nowhere: a line break before a number.
        if !closers.is_empty() && self.below(5) < if closing { 4 } else { 2 } {
            return closers[self.below(closers.len())];
        }
        let all: Vec<u32> = (0..self.tokenizer.vocabulary() as u32).filter(|&id| allows(grammar, id)).collect();
        assert!(!all.is_empty(), "nothing may come");
        all[self.below(all.len())]
    }
}

/// The arguments of the calls that a reply is, which must be nothing else.
pub(crate) fn arguments(text: &str, definitions: &[Value]) -> Vec<String> {
    read(text, definitions)
        .filter(|calls| !calls.is_empty())
        .unwrap_or_else(|| panic!("calls and nothing else: {text:?}"))
}

/// The arguments of the calls that a reply is; `None` if it is anything else besides.
pub(crate) fn read(text: &str, definitions: &[Value]) -> Option<Vec<String>> {
    let tools = Arc::new(ToolSet::new(definitions));
    let mut parser = ReplyParser::new(Some(false), Some(CallOptions { tools, id_prefix: "c".into(), single: false }));
    let mut events = parser.push(text);
    events.extend(parser.finish());
    let mut calls = Vec::new();
    for event in events {
        match event {
            ReplyEvent::CallBegin { .. } => calls.push(String::new()),
            ReplyEvent::CallArguments { index, json } => calls[index] += &json,
            ReplyEvent::CallEnd { .. } => {}
            _ => return None,
        }
    }
    Some(calls)
}

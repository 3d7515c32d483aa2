//! Grammars of every kind, vocabularies and pseudo-random replies, for tests of what makes masks.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use serde_json::json;

use super::calls::Looser;
use super::states::Counter;
use super::{ForcedCalls, Format, Grammars, grammar_of};
use crate::{Tokenizer, tiktoken};

fn model(file: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models").join(file)).expect(file)
}

/// Over the small checkpoint's vocabulary, and the token that ends a reply.
pub(super) fn tiny() -> (Grammars, u32) {
    over(Tokenizer::from_files(&model("tiny/tokenizer.json"), None).expect("a tokenizer"))
}

/// Over the 35B's.
pub(super) fn real() -> (Grammars, u32) {
    let compressed = model("qwen3.6-35b-a3b/ranks.tiktoken.zst");
    let mut text = String::new();
    let mut frame = ruzstd::decoding::StreamingDecoder::new(compressed.as_slice()).expect("a zstd frame");
    frame.read_to_string(&mut text).expect("decompresses");
    let ranks = tiktoken::parse_ranks(&text).expect("ranks");
    let tokenizer = tiktoken::tokenizer_json_from_ranks(&ranks).expect("merges").to_string();
    let config = tiktoken::tokenizer_config_json(ranks.len()).to_string();
    over(Tokenizer::from_files(tokenizer.as_bytes(), Some(config.as_bytes())).expect("a tokenizer"))
}

fn over(tokenizer: Tokenizer) -> (Grammars, u32) {
    let stop = tokenizer.id("<|im_end|>").expect("a stop token");
    (Grammars::new(Arc::new(tokenizer), &[stop]).expect("grammars"), stop)
}

/// Each with texts that are of it, or begin one.
pub(super) fn grammars() -> Vec<(TopLevelGrammar, Vec<&'static str>)> {
    let schema = json!({"type": "object", "required": ["a", "b"], "properties": {"a": {"type": "string", "maxLength": 9},
        "b": {"type": "array", "items": {"enum": ["x", 1, {"c": null}]}}, "d": {"type": "string", "pattern": "^[a-z]+(-[a-z]+)*$"}}});
    let formats = [
        (Format::JsonObject, vec!["{\"a é🦔\": [1, -2.5e3, \"\\n</b>\", {\"b\": null}],\n  \"c\": true"]),
        (
            Format::JsonSchema(schema.clone()),
            vec!["{\"a\": \"12345678", "{\"a\": \"\", \"b\": [\"x\", 1], \"d\": \"ab-c\"}"],
        ),
        (Format::Regex(r"(\w+[ ,.;<>\n]*)+".into()), vec!["Some words, größe; <b>more"]),
        (Format::Regex("(ab?c|[x-z]{2,5})+".into()), vec!["abcacxyzzy"]),
        (Format::Regex("[^<>]{0,40}(<[a-z]+>)?".into()), vec!["Words that go on for 40 characters", "é🦔 <b>"]),
        (Format::Regex("([a-z]+ ){3}[0-9]{4}".into()), vec!["one two three 2026"]),
        (Format::Choice(vec!["yes".into(), "not at all".into(), "not yet".into()]), vec!["not y"]),
        (Format::Lark("start: (LINE \"\\n\")+\nLINE: /[^\\n]+/".into()), vec!["A line\nAnother = <one>\n"]),
        (
            Format::Lark("start: (a \"=\" | b)+\na[lazy]: /[^<>]*x/\nb[lazy]: \"<\" /(?s:.*)/ \">\"".into()),
            vec!["a word, x=then x=<tag><more"],
        ),
        (
            Format::Lark("start: (a | b)+\na: /[a-c]+/ \"-\" b?\nb: \"[\" /[^\\]]*/ \"]\"".into()),
            vec!["ab-[any thing]c-"],
        ),
    ];
    let definitions = [json!({"type": "function", "function": {"name": "f", "parameters":
        {"type": "object", "properties": {"text": {"type": "string"}, "value": schema, "short": {"type": "string", "maxLength": 60},
        "code": {"type": "string", "pattern": "^[A-Z]{2}-\\w+$"}, "either": {"anyOf": [{"type": "string", "maxLength": 50}, {"type": "null"}]}},
        "required": ["text"], "additionalProperties": {"type": "string"}}}})];
    let calls = ForcedCalls { definitions: &definitions, function: None, parallel: true };
    let calls = TopLevelGrammar::from_lark(calls.write(&Looser::new(), &Counter::default()).expect("calls").grammar);
    let replies = vec![
        "<tool_call>\n<function=f>\n<parameter=text>\n<div class=\"x\">\n  <p>a = b</p> </parameter> c\n</div>\n</parameter>\n<parameter=short>\nSome text, é🦔 <b>\n</parameter>\n<parameter=more>\nx",
        "<tool_call>\n<function=f>\n<parameter=text>\n\n<tool_call>\n<function=g>\n<parameter=z>\n1\n</parameter>\n</function>\n</tool_call>\n\n</parameter>\n<parameter=value>\n{\"a\": \"b c\", \"b\": []}\n</parameter>\n<parameter=code>\nAB-word\n</parameter>\n<parameter=either>\nnull and more",
    ];
    let of = |(format, texts): &(Format, Vec<&'static str>)| {
        (grammar_of(format, &Default::default()).expect("a format"), texts.clone())
    };
    formats.iter().map(of).chain([(calls, replies)]).collect()
}

/// A token of those allowed, and no stop token, drawn by a seed that goes on.
pub(super) fn draw(mask: &[u32], stop: u32, random: &mut u64) -> Option<u32> {
    let allowed: Vec<u32> =
        (0..mask.len() as u32 * 32).filter(|&id| id != stop && mask[id as usize / 32] >> (id % 32) & 1 == 1).collect();
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    allowed.get((*random >> 33) as usize % allowed.len().max(1)).copied()
}

//! The readers of requests, from the bytes of a body to the prompt's tokens.

use std::sync::{Arc, LazyLock};

use arbitrary::{Result, Unstructured};
use lily_cpu::CpuBackend;
use lily_engine::Engine;
use lily_server::{App, Config, Endpoint, RequestReader};
use serde_json::{Map, Value, json};

use crate::conversation::{any, messages, tools};
use crate::grammars::schema;
use crate::tiny::{CHECKPOINT, TEMPLATE, TOKENIZER};

/// Tokens that the server takes.
const CONTEXT: usize = 2048;

static READER: LazyLock<RequestReader> = LazyLock::new(|| {
    let options = lily_cpu::Options { threads: 1, max_context: CONTEXT, simd: None };
    let backend = CpuBackend::new(Arc::clone(&CHECKPOINT), options).expect("a backend");
    RequestReader::new(App {
        engine: Engine::start(backend, lily_engine::Options::new(TOKENIZER.vocabulary())),
        tokenizer: Arc::clone(&TOKENIZER),
        template: Arc::clone(&TEMPLATE),
        stop_tokens: CHECKPOINT.generation.eos_token_ids.clone(),
        config: Config::new("fuzzed"),
    })
});

/// The first byte says which endpoint's the request is, and whether its body follows as it is or as what one is made of.
///
/// It comes to prompts that the model can take, or to a 4xx that says what is wrong; to the same each time, so that nothing in it is
/// of the secrets that guard a prompt.
pub fn request_bodies(data: &[u8]) {
    let Some((&flags, rest)) = data.split_first() else { return };
    let endpoint = Endpoint::ALL[usize::from(flags) % Endpoint::ALL.len()];
    let body = match flags & 4 {
        0 => rest.to_vec(),
        _ => match body(&mut Unstructured::new(rest)) {
            Ok(body) => body.to_string().into_bytes(),
            Err(_) => return,
        },
    };
    let read = READER.prompts(endpoint, &body);
    match &read {
        Ok(prompts) => {
            assert!(!prompts.is_empty());
            for prompt in prompts {
                assert!((1..CONTEXT).contains(&prompt.len()), "{} tokens", prompt.len());
                assert!(prompt.iter().all(|&token| (token as usize) < TOKENIZER.vocabulary()));
            }
        }
        Err(refused) => {
            let error = &refused.body["error"];
            assert!((400..500).contains(&refused.status), "{refused:?} for {:?}", String::from_utf8_lossy(&body));
            assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()));
            assert!(error["param"].is_null() || error["param"].is_string());
        }
    }
    assert_eq!(READER.prompts(endpoint, &body), read, "the second time");
}

const CHOICES: [&str; 6] = ["auto", "none", "required", "any", "low", "all_turns"];
const FLAGS: [&str; 12] = [
    "stream",
    "logprobs",
    "echo",
    "parallel_tool_calls",
    "store",
    "background",
    "return_progress",
    "enable_thinking",
    "preserve_thinking",
    "include_usage",
    "parse_special",
    "strict",
];
const NUMBERS: [&str; 20] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "n",
    "best_of",
    "top_logprobs",
    "thinking_budget",
    "budget_tokens",
    "logprobs",
    "max_tool_calls",
    "top_logprobs",
    "id",
];
const TEXTS: [&str; 12] = [
    "model",
    "suffix",
    "instructions",
    "previous_response_id",
    "user",
    "truncation",
    "reasoning_effort",
    "grammar",
    "guided_regex",
    "guided_grammar",
    "system",
    "service_tier",
];
const OBJECTS: [&str; 12] = [
    "chat_template_kwargs",
    "stream_options",
    "logit_bias",
    "metadata",
    "reasoning",
    "thinking",
    "output_config",
    "tool_choice",
    "text",
    "structured_outputs",
    "stop",
    "include",
];
/// What values are, beside the words of messages.
const WORDS: [&str; 34] = [
    "type",
    "function",
    "name",
    "text",
    "input_text",
    "output_text",
    "message",
    "function_call",
    "function_call_output",
    "reasoning",
    "item_reference",
    "custom",
    "custom_tool_call",
    "tool_use",
    "tool_result",
    "thinking",
    "redacted_thinking",
    "image",
    "input_image",
    "document",
    "enabled",
    "adaptive",
    "disabled",
    "call_1",
    "call_id",
    "output",
    "content",
    "id",
    "input",
    "arguments",
    "tool_use_id",
    "summary",
    "encrypted_content",
    "json_schema",
];

/// An object with some of the fields that the endpoints know.
fn body(source: &mut Unstructured<'_>) -> Result<Value> {
    let mut body = Map::new();
    let main = match source.int_in_range(0..=4)? {
        0 => items(source)?,
        1 => any(source, 2)?,
        _ => Value::Array(messages(source)?),
    };
    body.insert((*source.choose(&["messages", "input", "prompt"])?).into(), main);
    for _ in 0..source.int_in_range(0..=5)? {
        let (name, value) = field(source)?;
        body.insert(name.into(), value);
    }
    Ok(Value::Object(body))
}

fn field(source: &mut Unstructured<'_>) -> Result<(&'static str, Value)> {
    Ok(match source.int_in_range(0..=9)? {
        0 => (source.choose(&FLAGS)?, json!(source.arbitrary::<bool>()?)),
        1 => (source.choose(&NUMBERS)?, json!(source.int_in_range(-2..=10)?)),
        2 => (source.choose(&NUMBERS)?, any(source, 0)?),
        3 => (source.choose(&TEXTS)?, any(source, 0)?),
        4 => (source.choose(&OBJECTS)?, crate::values::value(source, &WORDS, 3)?),
        5 => ("tool_choice", choice(source)?),
        6 => (
            "response_format",
            json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema(source, 2)?}}),
        ),
        7 => ("text", json!({"format": {"type": "json_schema", "name": "x", "schema": schema(source, 2)?}})),
        8 => ("tools", Value::Array(tools(source, |source| schema(source, 2))?)),
        _ => ("tools", flat_tools(source)?),
    })
}

fn choice(source: &mut Unstructured<'_>) -> Result<Value> {
    let word = *source.choose(&CHOICES)?;
    Ok(match source.int_in_range(0..=3)? {
        0 => json!(word),
        1 => json!({"type": word}),
        2 => json!({"type": "function", "function": {"name": "f"}, "name": "f"}),
        _ => json!({"type": "tool", "name": "f", "disable_parallel_tool_use": source.arbitrary::<bool>()?}),
    })
}

/// Tools as responses and messages have them.
fn flat_tools(source: &mut Unstructured<'_>) -> Result<Value> {
    let kinds = ["function", "custom", "web_search_20250305", "namespace", "mcp"];
    (0..source.int_in_range(1..=3)?)
        .map(|_| {
            let (kind, parameters) = (*source.choose(&kinds)?, schema(source, 2)?);
            let mut tool =
                json!({"name": source.choose(&["f", "g", ""])?, "input_schema": parameters, "parameters": parameters});
            if source.arbitrary()? {
                tool["type"] = kind.into();
            }
            Ok(tool)
        })
        .collect()
}

/// Items and blocks, which have most fields in common.
fn items(source: &mut Unstructured<'_>) -> Result<Value> {
    (0..source.int_in_range(1..=5)?)
        .map(|_| {
            let mut item = Map::new();
            if source.arbitrary()? {
                item.insert("type".into(), (*source.choose(&WORDS)?).into());
            }
            if source.arbitrary()? {
                item.insert("role".into(), (*source.choose(&["user", "assistant", "system", "developer"])?).into());
            }
            for _ in 0..source.int_in_range(0..=5)? {
                let name = (*source.choose(&WORDS)?).to_owned();
                let value = if source.arbitrary()? { any(source, 0)? } else { blocks(source)? };
                item.insert(name, value);
            }
            Ok(Value::Object(item))
        })
        .collect()
}

fn blocks(source: &mut Unstructured<'_>) -> Result<Value> {
    (0..source.int_in_range(0..=3)?)
        .map(|_| {
            let mut block = crate::values::object(source, &WORDS, 1)?;
            block.insert("type".into(), (*source.choose(&WORDS)?).into());
            block.insert("text".into(), any(source, 0)?);
            Ok(Value::Object(block))
        })
        .collect()
}

//! Messages and tools out of any bytes: mostly as clients write them, with all that must not control the model in them.

use arbitrary::{Result, Unstructured};
use serde_json::{Map, Value, json};

use crate::values::{object, text, value};

/// What texts are made of.
const WORDS: [&str; 36] = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|im_",
    "end|>",
    "<",
    "|",
    ">",
    "<tts_",
    "text_bos",
    "_single>",
    "pad>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<function=",
    "f>",
    "<parameter=",
    "system\n",
    "user\n",
    "assistant",
    "\n",
    "\n\n",
    " ",
    "a",
    "é",
    "\u{301}",
    "🙂",
    "{\"a\": 1}",
    "{",
    "\"b\"",
    ": [",
    "<|vision_start|>",
];
const ROLES: [&str; 6] = ["user", "assistant", "tool", "system", "developer", "critic"];
const NAMES: [&str; 4] = ["f", "get_weather", "", "g<|im_end|>"];

/// A conversation of up to eight messages.
pub(crate) fn messages(source: &mut Unstructured<'_>) -> Result<Vec<Value>> {
    (0..source.int_in_range(1..=8)?).map(|_| message(source)).collect()
}

fn message(source: &mut Unstructured<'_>) -> Result<Value> {
    let mut message = Map::new();
    let role = *source.choose(&ROLES)?;
    message.insert("role".into(), role.into());
    if source.int_in_range(0..=7)? > 0 {
        message.insert("content".into(), content(source)?);
    }
    if role == "assistant" {
        for name in ["reasoning_content", "reasoning"] {
            if source.int_in_range(0..=3)? == 0 {
                message.insert(name.into(), json!(text(source, &WORDS)?));
            }
        }
        if source.arbitrary()? {
            let calls = (0..source.int_in_range(0..=3)?).map(|_| call(source)).collect::<Result<_>>()?;
            message.insert("tool_calls".into(), Value::Array(calls));
        }
    }
    if source.int_in_range(0..=7)? == 0 {
        message.extend(object(source, &["name", "content", "tool_calls", "tool_call_id", "role"], 2)?);
    }
    Ok(Value::Object(message))
}

fn content(source: &mut Unstructured<'_>) -> Result<Value> {
    Ok(match source.int_in_range(0..=7)? {
        0 => value(source, &WORDS, 2)?,
        1 | 2 => (0..source.int_in_range(0..=4)?).map(|_| part(source)).collect::<Result<_>>()?,
        _ => json!(text(source, &WORDS)?),
    })
}

fn part(source: &mut Unstructured<'_>) -> Result<Value> {
    Ok(match source.int_in_range(0..=7)? {
        0 => value(source, &["type", "text", "image", "image_url", "video"], 2)?,
        1 => {
            json!({"type": source.choose(&["image_url", "video", "image", "refusal"])?, "image_url": {"url": "data:"}})
        }
        _ => json!({"type": "text", "text": text(source, &WORDS)?}),
    })
}

fn call(source: &mut Unstructured<'_>) -> Result<Value> {
    let name = *source.choose(&NAMES)?;
    let arguments = object(source, &WORDS, 2)?;
    let arguments = match source.int_in_range(0..=5)? {
        0 => value(source, &WORDS, 1)?,
        1 => Value::Object(arguments),
        2 => json!(text(source, &WORDS)?),
        // Cut, as a client has it that stopped the call.
        3 => {
            let mut whole = Value::Object(arguments).to_string();
            whole.truncate(whole.floor_char_boundary(source.int_in_range(0..=whole.len())?));
            json!(whole)
        }
        _ => json!(Value::Object(arguments).to_string()),
    };
    let function = json!({"name": name, "arguments": arguments});
    Ok(if source.int_in_range(0..=7)? == 0 { function } else { json!({"type": "function", "function": function}) })
}

/// Up to three tools with any parameters that `schema` gives.
pub(crate) fn tools(
    source: &mut Unstructured<'_>,
    mut schema: impl FnMut(&mut Unstructured<'_>) -> Result<Value>,
) -> Result<Vec<Value>> {
    (0..source.int_in_range(0..=3)?)
        .map(|_| {
            if source.int_in_range(0..=15)? == 0 {
                return value(source, &["function", "name", "parameters", "type"], 3);
            }
            let (name, description) = (*source.choose(&NAMES)?, text(source, &WORDS)?);
            let function = json!({"name": name, "description": description, "parameters": schema(source)?});
            Ok(json!({"type": "function", "function": function}))
        })
        .collect()
}

/// A value made of the same words.
pub(crate) fn any(source: &mut Unstructured<'_>, depth: usize) -> Result<Value> {
    value(source, &WORDS, depth)
}

//! `POST /tokenize`, `/detokenize` and `/apply-template`, in the shapes that users of llama.cpp and vLLM know.
//!
//! | path | takes | gives |
//! |---|---|---|
//! | `/tokenize` | `content` or `prompt`, a text, or what a chat completion takes | `tokens`, `count`, `max_model_len`; with `with_pieces` `tokens` are `{"id", "piece"}`, with `return_token_strs` there are `token_strs` |
//! | `/detokenize` | `tokens` | the text as `content` and as `prompt` |
//! | `/apply-template` | what a chat completion takes | the text of its `prompt` |
//!
//! No token is added to a text, whatever `add_special` says: the model has none that begins one. Special tokens in it are
//! read as such, and written out as text.

use crate::body;
use crate::chat::conversation;
use crate::error::ApiError;
use crate::fields::{self, Fields};
use crate::shared::Shared;
use axum::Json;
use axum::extract::{Request, State};
use lily_chat::Tokenizer;
use serde_json::{Value, json};
use std::sync::Arc;

pub(crate) async fn tokenize(State(shared): State<Arc<Shared>>, request: Request) -> Result<Json<Value>, ApiError> {
    run(&shared, request, |request, shared| {
        let tokens = if request.get("messages").is_some_and(|messages| !messages.is_null()) {
            prompt(request, shared)?
        } else {
            text(&Fields::of(request, "")?, shared)?
        };
        let fields = Fields::of(request, "")?;
        let with_pieces = fields.boolean("with_pieces")?.unwrap_or(false);
        let with_strings = fields.boolean("return_token_strs")?.unwrap_or(false);
        let bytes = |token: u32| shared.tokenizer.bytes(token);
        let strings = || tokens.iter().map(|&token| String::from_utf8_lossy(bytes(token)).into_owned()).collect();
        let pieces = || tokens.iter().map(|&token| json!({"id": token, "piece": piece(bytes(token))})).collect();
        let strings: Option<Vec<String>> = with_strings.then(strings);
        Ok(json!({
            "tokens": if with_pieces { pieces() } else { json!(tokens) },
            "count": tokens.len(),
            "max_model_len": shared.limits.max_context,
            "token_strs": strings,
        }))
    })
    .await
}

pub(crate) async fn detokenize(State(shared): State<Arc<Shared>>, request: Request) -> Result<Json<Value>, ApiError> {
    run(&shared, request, |request, shared| {
        let fields = Fields::of(request, "")?;
        fields.required("tokens")?;
        let highest = shared.limits.vocabulary as i64 - 1;
        let items = fields.array("tokens")?.unwrap_or_default().iter().enumerate();
        let id =
            |(index, item)| fields::integer(item, format_args!("tokens[{index}]"), 0..=highest).map(|id| id as u32);
        let tokens: Vec<u32> = items.map(id).collect::<Result<_, _>>()?;
        let text = written(&shared.tokenizer, &tokens);
        Ok(json!({"content": text, "prompt": text}))
    })
    .await
}

pub(crate) async fn apply_template(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    run(&shared, request, |request, shared| {
        let tokens = prompt(request, shared)?;
        Ok(json!({"prompt": written(&shared.tokenizer, &tokens)}))
    })
    .await
}

/// Reads the body and answers with what `answer` makes of it.
async fn run(
    shared: &Arc<Shared>,
    request: Request,
    answer: impl FnOnce(&mut Value, &Shared) -> Result<Value, ApiError> + Send + 'static,
) -> Result<Json<Value>, ApiError> {
    body::read_with(shared, request, |mut request, shared| answer(&mut request, shared)).await.map(Json)
}

/// The tokens of a chat completion's prompt, whose messages are taken out of the request.
fn prompt(request: &mut Value, shared: &Shared) -> Result<Vec<u32>, ApiError> {
    let messages = request.as_object_mut().and_then(|request| request.insert("messages".into(), Value::Null));
    let fields = Fields::of(request, "")?;
    for (name, only) in [("add_generation_prompt", true), ("continue_final_message", false)] {
        if fields.boolean(name)?.is_some_and(|asked| asked != only) {
            let message = format!("'{name}' may only be {only}: the prompt is that of a chat completion.");
            return Err(ApiError::parameter(name, message));
        }
    }
    conversation(&fields, messages)?.into_tokens(shared)
}

/// The tokens of a text.
fn text(request: &Fields<'_>, shared: &Shared) -> Result<Vec<u32>, ApiError> {
    if request.boolean("parse_special")? == Some(false) {
        let message = "'parse_special' may only be true: what is a special token in a prompt is one here.";
        return Err(ApiError::parameter("parse_special", message));
    }
    let text = match request.string("content")? {
        Some(text) => text,
        None => request.string("prompt")?.ok_or_else(|| {
            ApiError::parameter("content", "'content' or 'prompt', a text, or 'messages' must be there.")
        })?,
    };
    shared.tokenizer.encode(text).map_err(|error| ApiError::internal(error.to_string()))
}

/// A token's text or, where it is no text, its bytes.
fn piece(bytes: &[u8]) -> Value {
    std::str::from_utf8(bytes).map_or_else(|_| json!(bytes), Value::from)
}

/// The text of tokens, special ones too.
fn written(tokenizer: &Tokenizer, tokens: &[u32]) -> String {
    let bytes: Vec<u8> = tokens.iter().flat_map(|&token| tokenizer.bytes(token)).copied().collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

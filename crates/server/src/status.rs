//! `GET /health` and `/ready`, and the request that finds out whether the model answers.

use crate::error::ApiError;
use crate::shared::Shared;
use axum::Json;
use axum::extract::State;
use lily_engine::{Event, Request};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// 200 as long as anything answers at all.
pub(crate) async fn health(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let stats = shared.engine.stats();
    Json(json!({
        "status": "ok",
        "engine": {
            "backend": shared.engine.description().name,
            "accepting": stats.accepting,
            "running": stats.running,
            "queued": stats.queued,
            "steps": stats.steps,
            "prefilled_tokens": stats.prefilled_tokens,
            "generated_tokens": stats.generated_tokens,
        },
    }))
}

pub(crate) async fn ready(State(shared): State<Arc<Shared>>) -> Result<Json<Value>, ApiError> {
    if !shared.engine.stats().accepting {
        return Err(ApiError::unavailable("The server is shutting down, or its engine has failed."));
    }
    if !shared.ready.load(Ordering::Acquire) {
        return Err(ApiError::unavailable("The model has not answered yet."));
    }
    Ok(Json(json!({"status": "ready"})))
}

/// Has the model write one token, which also brings its weights into memory. Readiness follows.
pub(crate) async fn warm_up(shared: Arc<Shared>) {
    let prompt = match shared.tokenizer.encode("Hello") {
        Ok(tokens) if !tokens.is_empty() => tokens,
        _ => vec![0],
    };
    let mut reply = match shared.engine.submit(Request::new(prompt, 1)) {
        Ok(reply) => reply,
        Err(error) => return tracing::error!(%error, "the model could not be tried"),
    };
    while let Some(event) = reply.recv().await {
        match event {
            Event::Started { .. } | Event::Prefill { .. } | Event::Token(_) => {}
            Event::Finished { .. } => shared.ready.store(true, Ordering::Release),
            Event::Failed(error) => tracing::error!(error, "the model does not answer"),
        }
    }
}

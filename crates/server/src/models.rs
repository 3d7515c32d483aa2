//! `GET /v1/models` and `/v1/models/{id}`: in OpenAI's words, or in Anthropic's for requests of its clients.

use crate::anthropic;
use crate::error::ApiError;
use crate::shared::Shared;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use serde_json::{Value, json};
use std::sync::Arc;

pub(crate) async fn list(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Json<Value> {
    let (entry, id) = (entry(&shared, &headers), &shared.config.model_name);
    Json(if anthropic::asks(&headers) {
        json!({"data": [entry], "first_id": id, "last_id": id, "has_more": false})
    } else {
        json!({"object": "list", "data": [entry]})
    })
}

/// The id may hold slashes, as names of repositories do.
pub(crate) async fn one(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    if id == shared.config.model_name {
        Ok(Json(entry(&shared, &headers)))
    } else {
        Err(ApiError::unknown_model(&id, &shared.config.model_name))
    }
}

fn entry(shared: &Shared, headers: &HeaderMap) -> Value {
    if anthropic::asks(headers) {
        return json!({
            "type": "model",
            "id": shared.config.model_name,
            "display_name": shared.config.model_name,
            // What Anthropic gives for a release that it does not know.
            "created_at": "1970-01-01T00:00:00Z",
            "lifecycle": "active",
            "max_input_tokens": shared.limits.max_context,
            "max_tokens": shared.limits.max_context,
        });
    }
    json!({
        "id": shared.config.model_name,
        "object": "model",
        "created": shared.started,
        "owned_by": "lily",
        "max_model_len": shared.limits.max_context,
    })
}

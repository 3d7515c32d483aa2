//! `GET /v1/models` and `/v1/models/{id}`.

use crate::error::ApiError;
use crate::shared::Shared;
use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};
use std::sync::Arc;

pub(crate) async fn list(State(shared): State<Arc<Shared>>) -> Json<Value> {
    Json(json!({"object": "list", "data": [entry(&shared)]}))
}

/// The id may hold slashes, as names of repositories do.
pub(crate) async fn one(State(shared): State<Arc<Shared>>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    if id == shared.config.model_name {
        Ok(Json(entry(&shared)))
    } else {
        Err(ApiError::unknown_model(&id, &shared.config.model_name))
    }
}

fn entry(shared: &Shared) -> Value {
    json!({
        "id": shared.config.model_name,
        "object": "model",
        "created": shared.started,
        "owned_by": "lily",
        "max_model_len": shared.limits.max_context,
    })
}

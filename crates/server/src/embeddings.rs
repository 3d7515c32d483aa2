//! `POST /v1/embeddings`, which there is not.

use crate::error::ApiError;
use crate::shared::Shared;
use axum::extract::State;
use std::sync::Arc;

/// 404 that says why. Vectors could be made of the model's hidden states, but they would be no good.
pub(crate) async fn refuse(State(shared): State<Arc<Shared>>) -> ApiError {
    ApiError::not_supported(format!(
        "This server has no embeddings: its one model, {}, writes text and was never trained to compare texts. Ask a \
         server with an embedding model for them.",
        shared.config.model_name
    ))
}

//! Errors in Anthropic's shape: `{"type": "error", "error": {"type", "message"}, "request_id"}`.

use crate::error::ApiError;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use serde_json::{Value, json};
use std::hash::{BuildHasher, Hasher, RandomState};

/// What Anthropic sends while it has more requests than it can take; no RFC has it.
const OVERLOADED: u16 = 529;

const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// Whether a request comes of one of Anthropic's clients, at a path that OpenAI's have too.
pub(crate) fn asks(headers: &HeaderMap) -> bool {
    headers.contains_key("anthropic-version")
}

/// Around all paths: gives every answer of this API its `request-id` and its errors, wherever they were made, their shape.
pub(crate) async fn shape(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_below = |root: &str| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let is_of_this_api = is_below("/v1/messages") || is_below("/v1/models") && asks(request.headers());
    if !is_of_this_api {
        return next.run(request).await;
    }
    let mut response = next.run(request).await;
    // Each RandomState has keys of its own.
    let id = format!("req_{:016x}", RandomState::new().build_hasher().finish());
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        let mut body = body(&error);
        body["request_id"] = id.as_str().into();
        *response.status_mut() = status(&error);
        *response.body_mut() = Body::from(body.to_string());
    }
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

/// The JSON of an error, also as an event in a stream.
pub(super) fn body(error: &ApiError) -> Value {
    let kind = match status(error).as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        OVERLOADED => "overloaded_error",
        400..500 => "invalid_request_error",
        _ => "api_error",
    };
    let message = if error.is_context_length() {
        // By these words agents know that it is time to shorten the conversation.
        format!("prompt is too long: {}", error.message())
    } else {
        error.message().to_owned()
    };
    json!({"type": "error", "error": {"type": kind, "message": message}})
}

fn status(error: &ApiError) -> StatusCode {
    match error.code() {
        Some("queue_full") => StatusCode::from_u16(OVERLOADED).unwrap_or(StatusCode::SERVICE_UNAVAILABLE),
        _ => error.status(),
    }
}

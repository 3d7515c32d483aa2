//! What went wrong, in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`.

use crate::fields::quoted;
use crate::params::Limits;
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::time::Duration;

/// An error as a client sees it: as a response of its own or, once a stream has begun, as an event in it.
/// The response carries it along, for those who write it in another shape.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiError {
    status: StatusCode,
    message: String,
    /// The way to the offending parameter: `messages[1].content[0].type`.
    param: Option<String>,
    code: Option<&'static str>,
    retry_after: Option<Duration>,
    /// The message may hold words of the prompt, or a response's id, which the log must not.
    unlogged: bool,
}

const CONTEXT_LENGTH: &str = "context_length_exceeded";

/// What of a refusal may be logged; travels with its response.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) message: Option<String>,
    pub(crate) param: Option<String>,
}

impl ApiError {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: None, retry_after: None, unlogged: false }
    }

    /// 400 for a parameter, named by the way to it.
    pub(crate) fn parameter(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::new(StatusCode::BAD_REQUEST, message) }
    }

    /// 400 for a request that is wrong as a whole.
    pub(crate) fn request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// 400 for a prompt that the context cannot hold; `counted` says how many tokens it has, as far as that is known.
    pub(crate) fn context_length(param: &str, counted: &str, limits: &Limits) -> Self {
        let limit = limits.max_context;
        let advice = if limits.context_can_grow { " or start the server with a larger --max-context" } else { "" };
        let message = format!(
            "The prompt holds {counted}; the context of this server holds {limit} tokens, and a reply needs at least one of \
             them. Shorten the prompt{advice}."
        );
        Self { code: Some(CONTEXT_LENGTH), ..Self::parameter(param, message) }
    }

    /// Whether the prompt is too long.
    pub(crate) fn is_context_length(&self) -> bool {
        self.code == Some(CONTEXT_LENGTH)
    }

    /// 404 for a path; `paths` are those there are.
    pub(crate) fn not_found(path: &str, paths: &[&str]) -> Self {
        // Most who miss a path have left out the /v1 of the base URL, or have it twice.
        let end = path.trim_end_matches('/');
        let meant = paths.iter().find(|known| end.ends_with(known.trim_start_matches("/v1")));
        let hint = meant.map_or(String::new(), |known| format!(" Did you mean {known}?"));
        let message = format!("There is nothing at {path}.{hint} This server has {}.", paths.join(", "));
        Self { code: Some("not_found"), unlogged: true, ..Self::new(StatusCode::NOT_FOUND, message) }
    }

    /// 404 for a model.
    pub(crate) fn unknown_model(asked: &str, served: &str) -> Self {
        let message = format!("The model {asked:?} is not here; this server has {served:?}.");
        Self { code: Some("model_not_found"), param: Some("model".into()), ..Self::new(StatusCode::NOT_FOUND, message) }
    }

    /// 404 for an endpoint of OpenAI's that makes no sense here; the message says why.
    pub(crate) fn not_supported(message: impl Into<String>) -> Self {
        Self { code: Some("not_supported"), ..Self::new(StatusCode::NOT_FOUND, message) }
    }

    /// 404 for a response that is not kept.
    pub(crate) fn unknown_response(id: &str) -> Self {
        let message = format!("There is no response {}: it was not stored, or had to make room.", quoted(id));
        Self { code: Some("response_not_found"), unlogged: true, ..Self::new(StatusCode::NOT_FOUND, message) }
    }

    /// 400 for a conversation that cannot be gone on with.
    pub(crate) fn unknown_previous_response(id: &str) -> Self {
        let message = format!(
            "The response {} in 'previous_response_id', or one before it, is not here: it was not stored, was deleted, or \
             had to make room. Send the conversation's items in 'input' instead.",
            quoted(id)
        );
        Self { code: Some("previous_response_not_found"), ..Self::parameter("previous_response_id", message) }
    }

    /// 405; `allowed` are the methods that the path takes, as the header has them.
    pub(crate) fn method_not_allowed(method: &str, path: &str, allowed: &str) -> Self {
        let message = format!("{path} does not take {method}, only {}.", allowed.replace(',', ", "));
        let error = Self::new(StatusCode::METHOD_NOT_ALLOWED, message);
        Self { code: Some("method_not_allowed"), unlogged: true, ..error }
    }

    /// 408.
    pub(crate) fn body_timeout() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "The request body did not arrive in time.")
    }

    /// 401 for a request without a key, or with one that is none of this server's.
    pub(crate) fn unauthorized(message: impl Into<String>) -> Self {
        Self { code: Some("invalid_api_key"), ..Self::new(StatusCode::UNAUTHORIZED, message) }
    }

    /// 403 for a request that came by way of another site.
    pub(crate) fn forbidden(code: &'static str, message: impl Into<String>) -> Self {
        Self { code: Some(code), ..Self::new(StatusCode::FORBIDDEN, message) }
    }

    /// 413.
    pub(crate) fn body_too_large(limit: usize) -> Self {
        let limit = match limit {
            bytes if bytes >= 1 << 20 && bytes % (1 << 20) == 0 => format!("{} MiB", bytes >> 20),
            bytes => format!("{bytes} bytes"),
        };
        let message = format!("The request body is over this server's limit of {limit}.");
        Self { code: Some("body_too_large"), ..Self::new(StatusCode::PAYLOAD_TOO_LARGE, message) }
    }

    /// 503 for a full queue.
    pub(crate) fn queue_full(retry_after: Duration) -> Self {
        Self {
            retry_after: Some(retry_after),
            code: Some("queue_full"),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "The queue is full; try again later.")
        }
    }

    /// 503 while the server ends, or before the model answers.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self { code: Some("unavailable"), ..Self::new(StatusCode::SERVICE_UNAVAILABLE, message) }
    }

    /// 504 for a reply that took too long.
    pub(crate) fn timed_out(message: impl Into<String>) -> Self {
        Self { code: Some("timeout"), ..Self::new(StatusCode::GATEWAY_TIMEOUT, message) }
    }

    /// 500: a fault of ours, never of the request.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// Keeps the message out of the log: it quotes text of the client, which may be words of the prompt in the wrong place.
    pub(crate) fn unlogged(self) -> Self {
        Self { unlogged: true, ..self }
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// The error's name for programs, if it has one.
    pub(crate) fn code(&self) -> Option<&'static str> {
        self.code
    }

    /// Names the parameter `to` where it names `from` or a part of it: what a request is read into may have other names than
    /// the request.
    pub(crate) fn renaming(mut self, from: &str, to: &str) -> Self {
        let is_part = |rest: &str| rest.is_empty() || rest.starts_with(['[', '.']);
        if self.param.as_deref().and_then(|param| param.strip_prefix(from)).is_some_and(is_part) {
            self.param = Some(to.into());
        }
        self
    }

    /// The JSON that goes out.
    pub(crate) fn body(&self) -> Value {
        let kind = if self.status.is_client_error() { "invalid_request_error" } else { "server_error" };
        json!({"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        let message = (!self.unlogged).then(|| self.message.clone());
        response.extensions_mut().insert(Refusal { message, param: self.param.clone() });
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(after) = self.retry_after {
            // The header counts whole seconds; 0 would invite a client to hammer.
            let seconds = (after.as_secs() + u64::from(after.subsec_nanos() > 0)).max(1);
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.extensions_mut().insert(self);
        response
    }
}

//! Which path leads where, and what surrounds every handler.

use crate::error::ApiError;
use crate::gate::{self, Gate};
use crate::log::Watch;
use crate::shared::Shared;
use crate::{anthropic, chat, completions, embeddings, log, metrics, models, responses, status, tokens, web};
use axum::Router;
use axum::extract::Request;
use axum::http::header;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use std::any::Any;
use std::sync::Arc;
use tower::ServiceExt;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::CorsLayer;

pub(crate) fn router(shared: Arc<Shared>) -> Router {
    let paths = Router::new()
        .route("/v1/chat/completions", post(chat::handle))
        .route("/v1/completions", post(completions::handle))
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/{id}", get(responses::get).delete(responses::delete))
        .route("/v1/responses/{id}/input_items", get(responses::input_items))
        .route("/v1/messages", post(anthropic::create))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
        .route("/v1/embeddings", any(embeddings::refuse))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/apply-template", post(tokens::apply_template))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::one))
        .route("/health", get(status::health))
        .route("/ready", get(status::ready))
        .route("/status", get(status::status))
        .route("/metrics", get(metrics::metrics))
        .with_state(Arc::clone(&shared))
        .merge(web::pages());
    let watch = Watch { metrics: Arc::clone(&shared.metrics), limit: shared.config.request_timeout };
    surround(paths, Gate::new(&shared.config), shared.config.cross_origin.layer(), watch)
}

fn surround(paths: Router, gate: Gate, cors: Option<CorsLayer>, watch: Watch) -> Router {
    let routes = paths.clone();
    let guarded = paths
        .fallback(not_found)
        .method_not_allowed_fallback(move |request| method_not_allowed(routes.clone(), request))
        .layer(from_fn_with_state(Arc::new(gate), gate::admit));
    let shared_with_others = match cors {
        // Outside of the gate: a browser that asks whether it may ask sends no key.
        Some(cors) => guarded.layer(cors),
        None => guarded,
    };
    shared_with_others
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn(anthropic::shape))
        .layer(from_fn_with_state(watch, log::requests))
}

/// What a client that is lost is told there is; the more particular of two that end alike first.
const PATHS: [&str; 13] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages/count_tokens",
    "/v1/messages",
    "/v1/models",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/health",
    "/ready",
    "/status",
    "/metrics",
];

async fn not_found(request: Request) -> ApiError {
    ApiError::not_found(request.uri().path(), &PATHS)
}

/// The routes alone know which methods a path takes, and say so in the header of a 405.
async fn method_not_allowed(routes: Router, request: Request) -> ApiError {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let Ok(response) = routes.oneshot(request).await;
    let allowed = response.headers().get(header::ALLOW).and_then(|allowed| allowed.to_str().ok()).unwrap_or_default();
    ApiError::method_not_allowed(method.as_str(), &path, allowed)
}

/// The panic hook has written what happened; a client can do nothing with it.
fn panicked(_panic: Box<dyn Any + Send + 'static>) -> Response {
    ApiError::internal("The server failed on this request.").into_response()
}

#[cfg(test)]
mod tests {
    use super::surround;
    use crate::gate::Gate;
    use crate::log::Watch;
    use crate::metrics::Metrics;
    use axum::Router;
    use axum::body::{Body, to_bytes};
    use axum::extract::Request;
    use axum::http::StatusCode;
    use axum::routing::get;
    use serde_json::Value;
    use std::sync::Arc;
    use tower::ServiceExt;

    async fn broken() -> &'static str {
        panic!("as the test wants it")
    }

    #[tokio::test]
    async fn a_panic_is_an_answer_and_no_end() {
        let paths = Router::new().route("/broken", get(broken)).route("/fine", get(|| async { "fine" }));
        let watch = Watch { metrics: Arc::new(Metrics::new(None)), limit: None };
        let router = surround(paths, Gate::default(), None, watch);
        let ask = |path: &str| router.clone().oneshot(Request::get(path).body(Body::empty()).expect("a request"));
        let answer = ask("/broken").await.expect("an answer");
        assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let body = to_bytes(answer.into_body(), 10_000).await.expect("a body");
        let error: Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(error["error"]["type"], "server_error");
        assert_eq!(ask("/fine").await.expect("an answer").status(), StatusCode::OK);
    }
}

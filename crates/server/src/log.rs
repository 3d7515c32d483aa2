//! One line a request, written when its answer has been sent or its client has gone, and one more at the beginning of a
//! request whose prompt is long. Never a word of a prompt.

use crate::error::Refusal;
use crate::generate::Counts;
use crate::metrics::Metrics;
use crate::shared::SECRET_DIGITS;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use http_body::{Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

/// Prompts over this many tokens take long enough for somebody to ask what the server does.
const LONG_PROMPT: usize = 2000;
/// Characters of a path that are logged.
const LONGEST_PATH: usize = 255;
/// What ids of responses begin with.
const RESPONSE_ID: &str = "resp_";
/// The endpoint of paths that there are not.
const NO_ENDPOINT: &str = "none";

/// Tells that a request has been taken whose prompts hold this many tokens, if that is many.
pub(crate) fn started(prompt_tokens: usize) {
    if prompt_tokens > LONG_PROMPT {
        tracing::info!(prompt_tokens, "started");
    }
}

/// What is needed to watch a request.
#[derive(Clone)]
pub(crate) struct Watch {
    pub(crate) metrics: Arc<Metrics>,
    /// The longest that a request may take.
    pub(crate) limit: Option<Duration>,
}

/// Logs and counts the request, and gives its handler the [`Counts`] to fill.
pub(crate) async fn requests(State(watch): State<Watch>, mut request: Request, next: Next) -> Response {
    let endpoint = request.extensions().get::<MatchedPath>().map_or(NO_ENDPOINT, MatchedPath::as_str).to_owned();
    let counts = watch.metrics.counts(endpoint, watch.limit);
    let mut line = Line {
        number: watch.metrics.begin(&counts),
        metrics: watch.metrics,
        method: request.method().clone(),
        path: shown(request.uri().path(), &counts.endpoint),
        status: None,
        refusal: None,
        counts: Arc::clone(&counts),
    };
    request.extensions_mut().insert(counts);
    let mut response = next.run(request).await;
    line.status = Some(response.status());
    line.refusal = response.extensions_mut().remove::<Refusal>();
    response.map(|body| Body::new(Logged { body, _line: line }))
}

/// A path as the log has it, without what may be the id of a response, or of one of its items, which holds the same number:
/// who knows one can read its conversation. In a path that was mistyped that may stand anywhere, and encoded.
fn shown(path: &str, endpoint: &str) -> String {
    if endpoint.starts_with("/v1/responses/") {
        return endpoint.to_owned();
    }
    let has_number = |part: &str| part.split(|c: char| !c.is_ascii_hexdigit()).any(|run| run.len() >= SECRET_DIGITS);
    let is_secret =
        |part: &str| part.contains('%') || part.to_ascii_lowercase().contains(RESPONSE_ID) || has_number(part);
    let parts = path.split('/').map(|part| if is_secret(part) { "…" } else { part });
    parts.collect::<Vec<_>>().join("/").chars().take(LONGEST_PATH).collect()
}

/// Writes itself when it is dropped: only then is it known how a stream ended.
struct Line {
    number: u64,
    metrics: Arc<Metrics>,
    method: Method,
    path: String,
    /// `None` if the client went before there was an answer.
    status: Option<StatusCode>,
    /// If the answer is an error.
    refusal: Option<Refusal>,
    counts: Arc<Counts>,
}

impl Line {
    /// How the reply ended; `None` if there was none.
    fn end(&self) -> Option<&'static str> {
        match self.counts.end.get() {
            Some(end) => Some(end.name()),
            None if self.refusal.is_some() || self.counts.prompt_tokens.load(Ordering::Relaxed) == 0 => None,
            None => Some("cancelled"),
        }
    }

    /// Watched by programs that ask every few seconds, or part of the web page.
    fn is_routine(&self) -> bool {
        let path = self.path.as_str();
        let routine =
            matches!(path, "/" | "/health" | "/ready" | "/metrics" | "/status") || path.starts_with("/v1/models");
        matches!(self.method, Method::GET | Method::HEAD) && (routine || path.starts_with("/web/"))
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // 499 is what proxies write for a client that went away.
        let status = self.status.map_or(499, |status| status.as_u16());
        // A method may be any word; those that are none of HTTP's must not become labels.
        let known =
            [Method::GET, Method::POST, Method::HEAD, Method::OPTIONS, Method::PUT, Method::PATCH, Method::DELETE];
        let method = if known.contains(&self.method) { self.method.as_str() } else { "other" };
        self.metrics.end(self.number, method, status, self.end());
        let counts = &self.counts;
        let milliseconds = |time: Duration| time.as_millis() as u64;
        let ms = milliseconds(counts.begun.elapsed());
        if self.is_routine() {
            tracing::debug!(method = %self.method, path = self.path, status, ms, "request");
            return;
        }
        let refusal = self.refusal.as_ref();
        tracing::info!(
            method = %self.method,
            path = self.path,
            status,
            prompt_tokens = counts.prompt_tokens.load(Ordering::Relaxed),
            completion_tokens = counts.completion_tokens.load(Ordering::Relaxed),
            end = self.end(),
            param = refusal.and_then(|refusal| refusal.param.as_deref()),
            error = refusal.and_then(|refusal| refusal.message.as_deref()),
            cached_tokens = counts.queued().map(|_| counts.cached_tokens()),
            queue_ms = counts.queued().map(milliseconds),
            first_token_ms = counts.first_token().map(milliseconds),
            tokens_per_second = counts.tokens_per_second().map(|rate| (rate * 10.0).round() / 10.0),
            ms,
            "request"
        );
    }
}

/// A body that holds its request's line until it has been sent.
struct Logged {
    body: Body,
    _line: Line,
}

impl HttpBody for Logged {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

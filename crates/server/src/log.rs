//! One line a request, written when its answer has been sent or its client has gone, and one more at the beginning of a
//! request whose prompt is long. Never a word of a prompt.

use crate::error::Refusal;
use crate::generate::Counts;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use http_body::{Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Instant;

/// Prompts over this many tokens take long enough for somebody to ask what the server does.
const LONG_PROMPT: usize = 2000;

/// Tells that a request has been taken whose prompts hold this many tokens, if that is many.
pub(crate) fn started(prompt_tokens: usize) {
    if prompt_tokens > LONG_PROMPT {
        tracing::info!(prompt_tokens, "started");
    }
}

/// Logs the request and gives its handler the [`Counts`] to fill.
pub(crate) async fn requests(mut request: Request, next: Next) -> Response {
    let counts = Arc::new(Counts::default());
    let mut line = Line {
        method: request.method().clone(),
        path: request.uri().path().to_owned(),
        status: None,
        refusal: None,
        counts: Arc::clone(&counts),
        begun: Instant::now(),
    };
    request.extensions_mut().insert(counts);
    let mut response = next.run(request).await;
    line.status = Some(response.status());
    line.refusal = response.extensions_mut().remove::<Refusal>();
    response.map(|body| Body::new(Logged { body, _line: line }))
}

/// Writes itself when it is dropped: only then is it known how a stream ended.
struct Line {
    method: Method,
    path: String,
    /// `None` if the client went before there was an answer.
    status: Option<StatusCode>,
    /// If the answer is an error.
    refusal: Option<Refusal>,
    counts: Arc<Counts>,
    begun: Instant,
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

    /// Watched by programs that ask every few seconds.
    fn is_routine(&self) -> bool {
        let path = self.path.as_str();
        self.method == Method::GET && (matches!(path, "/health" | "/ready") || path.starts_with("/v1/models"))
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // 499 is what proxies write for a client that went away.
        let status = self.status.map_or(499, |status| status.as_u16());
        let ms = self.begun.elapsed().as_millis() as u64;
        if self.is_routine() {
            tracing::debug!(method = %self.method, path = self.path, status, ms, "request");
            return;
        }
        let refusal = self.refusal.as_ref();
        tracing::info!(
            method = %self.method,
            path = self.path,
            status,
            prompt_tokens = self.counts.prompt_tokens.load(Ordering::Relaxed),
            completion_tokens = self.counts.completion_tokens.load(Ordering::Relaxed),
            end = self.end(),
            param = refusal.and_then(|refusal| refusal.param.as_deref()),
            error = refusal.and_then(|refusal| refusal.message.as_deref()),
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

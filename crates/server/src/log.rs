//! One line a request, written when its answer has been sent or its client has gone. Never a word of a prompt.

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

/// Logs the request and gives its handler the [`Counts`] to fill.
pub(crate) async fn requests(mut request: Request, next: Next) -> Response {
    let counts = Arc::new(Counts::default());
    let mut line = Line {
        method: request.method().clone(),
        path: request.uri().path().to_owned(),
        status: None,
        counts: Arc::clone(&counts),
        begun: Instant::now(),
    };
    request.extensions_mut().insert(counts);
    let response = next.run(request).await;
    line.status = Some(response.status());
    response.map(|body| Body::new(Logged { body, _line: line }))
}

/// Writes itself when it is dropped: only then is it known how a stream ended.
struct Line {
    method: Method,
    path: String,
    /// `None` if the client went before there was an answer.
    status: Option<StatusCode>,
    counts: Arc<Counts>,
    begun: Instant,
}

impl Drop for Line {
    fn drop(&mut self) {
        tracing::info!(
            method = %self.method,
            path = self.path,
            // 499 is what proxies write for a client that went away.
            status = self.status.map_or(499, |status| status.as_u16()),
            prompt_tokens = self.counts.prompt_tokens.load(Ordering::Relaxed),
            completion_tokens = self.counts.completion_tokens.load(Ordering::Relaxed),
            ms = self.begun.elapsed().as_millis() as u64,
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

//! Server-sent events: the updates of a request's choices, written as they come.

use crate::answer::{Answer, Shape};
use crate::generate::{End, Generation, Update};
use crate::usage::Usage;
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::stream::{self, BoxStream, SelectAll, StreamExt};
use serde_json::Value;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// The longest silence in a stream: proxies and clients take a longer one for a dead connection.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(3);

/// The response that streams `choices`. The body owns them: when the client goes, they are dropped and end.
pub(crate) fn respond(choices: Vec<Generation>, shape: impl Shape, answer: Answer, include_usage: bool) -> Response {
    let events = Events::new(choices, shape, answer, include_usage);
    let body = Body::from_stream(stream::unfold(events, |mut events| async {
        let bytes = events.next().await?;
        Some((Ok::<_, Infallible>(bytes), events))
    }));
    response(body)
}

/// The response whose body is a stream of events.
pub(crate) fn response(body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Asks nginx, the usual proxy, to pass on each event at once.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

struct Events<S> {
    merged: SelectAll<BoxStream<'static, (usize, Update)>>,
    shape: S,
    answer: Answer,
    include_usage: bool,
    usage: Usage,
    /// Of the choices that have ended.
    end: End,
    ready: VecDeque<Bytes>,
    /// How far the prompt is, as far as it was told.
    prefill: Option<(usize, usize)>,
    /// When something must be written, if only a comment.
    silent_until: Instant,
    ended: bool,
}

impl<S: Shape> Events<S> {
    fn new(choices: Vec<Generation>, shape: S, answer: Answer, include_usage: bool) -> Self {
        let count = choices.len();
        let merged = choices
            .into_iter()
            .enumerate()
            .map(|(index, choice)| choice.updates().map(move |update| (index, update)).boxed());
        let mut events = Self {
            merged: stream::select_all(merged),
            shape,
            answer,
            include_usage,
            usage: Usage::default(),
            end: End::Stop,
            ready: VecDeque::new(),
            prefill: None,
            silent_until: Instant::now() + KEEP_ALIVE,
            ended: false,
        };
        for index in 0..count {
            if let Some(choice) = events.shape.opening(index) {
                events.write(choice);
            }
        }
        events
    }

    /// The next bytes to write; whole events only.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                self.silent_until = Instant::now() + KEEP_ALIVE;
                return Some(bytes);
            }
            if self.ended {
                return None;
            }
            match timeout_at(self.silent_until, self.merged.next()).await {
                Err(_elapsed) => self.ready.push_back(self.comment()),
                Ok(Some((index, update))) => self.take(index, update),
                Ok(None) => self.end(),
            }
        }
    }

    fn take(&mut self, index: usize, update: Update) {
        match update {
            Update::Started { .. } => {}
            // The timer, not each chunk of a prompt, decides when to tell: it goes off at once if it is due.
            Update::Prefill { done, total } => {
                self.prefill = Some((done, total));
                if Instant::now() >= self.silent_until {
                    self.ready.push_back(self.comment());
                }
            }
            Update::Delta(delta) => {
                self.prefill = None;
                for choice in self.shape.more(index, delta) {
                    self.write(choice);
                }
            }
            Update::Finished { reason, usage, .. } => {
                self.usage += usage;
                self.end = self.end.and(reason);
                let choice = self.shape.end(index, reason);
                self.write(choice);
            }
            Update::Failed(message) => {
                let error = self.answer.failure(message).body();
                self.ready.push_back(event(&error));
                // The other choices end with the stream.
                self.merged = SelectAll::new();
                self.ended = true;
            }
        }
    }

    fn write(&mut self, choice: Value) {
        let mut chunk = self.answer.with(vec![choice]);
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        self.ready.push_back(event(&chunk));
    }

    fn end(&mut self) {
        self.answer.ended(self.end);
        if self.include_usage {
            let mut chunk = self.answer.with(Vec::new());
            chunk["usage"] = self.usage.to_json();
            self.ready.push_back(event(&chunk));
        }
        self.ready.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
        self.ended = true;
    }

    /// A line that every client skips.
    fn comment(&self) -> Bytes {
        match self.prefill {
            Some((done, total)) => format!(": prefill {done}/{total}\n\n").into(),
            None => Bytes::from_static(b": waiting\n\n"),
        }
    }
}

fn event(data: &Value) -> Bytes {
    format!("data: {data}\n\n").into()
}

//! Server-sent events: the updates of a request's choices, written as they come in the form of an endpoint.

use crate::generate::{Generation, Reason, Update};
use crate::text::Delta;
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
const KEEP_ALIVE: Duration = Duration::from_secs(3);

/// How an endpoint writes its stream. Each piece is a whole event, or several.
pub(crate) trait Writer: Send + 'static {
    /// What comes before anything is known of the replies.
    fn open(&mut self, choices: usize) -> Vec<Bytes>;
    /// A choice has a place, and so much of its prompt need not be read.
    fn started(&mut self, _cached_tokens: usize) -> Vec<Bytes> {
        Vec::new()
    }
    /// More of a choice's prompt has been read.
    fn progress(&mut self, _done: usize, _total: usize) -> Vec<Bytes> {
        Vec::new()
    }
    /// More of a choice.
    fn delta(&mut self, index: usize, delta: Delta) -> Vec<Bytes>;
    /// A choice has ended. `stop_string`: the one that ended it, by its place in the list.
    fn finished(&mut self, index: usize, reason: Reason, usage: Usage, stop_string: Option<usize>) -> Vec<Bytes>;
    /// The engine gave up on a choice; the others end with it.
    fn failed(&mut self, message: String) -> Vec<Bytes>;
    /// Every choice has ended.
    fn close(&mut self) -> Vec<Bytes>;
    /// Silences in a row that a comment alone breaks; in the next, [`Self::sign_of_life`] comes with it.
    fn comments_in_a_row(&self) -> usize {
        // Some clients count events only, and give up after some minutes.
        20
    }
    /// An event that changes nothing, for clients that comments do not keep waiting; `None` if there is none now.
    fn sign_of_life(&mut self) -> Option<Bytes> {
        None
    }
}

/// The response that streams `choices`. The body owns them: when the client goes, they are dropped and end.
pub(crate) fn respond(choices: Vec<Generation>, writer: impl Writer) -> Response {
    let events = Events::new(choices, writer);
    let body = Body::from_stream(stream::unfold(events, |mut events| async {
        let bytes = events.next().await?;
        Some((Ok::<_, Infallible>(bytes), events))
    }));
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Asks nginx, the usual proxy, to pass on each event at once.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

struct Events<W> {
    merged: SelectAll<BoxStream<'static, (usize, Update)>>,
    writer: W,
    ready: VecDeque<Bytes>,
    /// How far the prompt is, as far as it was told.
    prefill: Option<(usize, usize)>,
    /// When something must be written, if only a comment.
    silent_until: Instant,
    /// Comments since the last event.
    comments: usize,
    ended: bool,
}

impl<W: Writer> Events<W> {
    fn new(choices: Vec<Generation>, mut writer: W) -> Self {
        let ready = writer.open(choices.len()).into();
        let merged = choices
            .into_iter()
            .enumerate()
            .map(|(index, choice)| choice.updates().map(move |update| (index, update)).boxed());
        Self {
            merged: stream::select_all(merged),
            writer,
            ready,
            prefill: None,
            silent_until: Instant::now() + KEEP_ALIVE,
            comments: 0,
            ended: false,
        }
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
                Err(_elapsed) => self.break_silence(),
                Ok(Some((index, update))) => self.take(index, update),
                Ok(None) => {
                    self.ready.extend(self.writer.close());
                    self.ended = true;
                }
            }
        }
    }

    fn take(&mut self, index: usize, update: Update) {
        let written = match update {
            Update::Started { cached_tokens } => self.writer.started(cached_tokens),
            // The timer, not each chunk of a prompt, decides when to tell: it goes off at once if it is due.
            Update::Prefill { done, total } => {
                self.prefill = Some((done, total));
                let told = self.writer.progress(done, total);
                if told.is_empty() && Instant::now() >= self.silent_until {
                    self.break_silence();
                }
                told
            }
            Update::Delta(delta) => {
                self.prefill = None;
                self.writer.delta(index, delta)
            }
            Update::Finished { reason, usage, stop_string } => self.writer.finished(index, reason, usage, stop_string),
            Update::Failed(message) => {
                // The other choices end with the stream.
                self.merged = SelectAll::new();
                self.ended = true;
                self.writer.failed(message)
            }
        };
        if !written.is_empty() {
            self.comments = 0;
        }
        self.ready.extend(written);
    }

    /// A line that every client skips and, when it is due, an event that changes nothing.
    fn break_silence(&mut self) {
        let mut written = match self.prefill {
            Some((done, total)) => format!(": prefill {done}/{total}\n\n"),
            None => ": waiting\n\n".into(),
        }
        .into_bytes();
        self.comments += 1;
        if self.comments > self.writer.comments_in_a_row()
            && let Some(event) = self.writer.sign_of_life()
        {
            self.comments = 0;
            written.extend(event);
        }
        self.ready.push_back(written.into());
    }
}

/// An event without a name.
pub(crate) fn event(data: &Value) -> Bytes {
    format!("data: {data}\n\n").into()
}

/// An event with a name.
pub(crate) fn named_event(name: &str, data: &Value) -> Bytes {
    format!("event: {name}\ndata: {data}\n\n").into()
}

#[cfg(test)]
mod tests {
    use super::{Events, Writer};
    use crate::generate::Reason;
    use crate::text::Delta;
    use crate::usage::Usage;
    use axum::body::Bytes;

    struct Silent;

    impl Writer for Silent {
        fn open(&mut self, _choices: usize) -> Vec<Bytes> {
            Vec::new()
        }

        fn delta(&mut self, _index: usize, _delta: Delta) -> Vec<Bytes> {
            Vec::new()
        }

        fn finished(&mut self, _index: usize, _: Reason, _: Usage, _: Option<usize>) -> Vec<Bytes> {
            Vec::new()
        }

        fn failed(&mut self, _message: String) -> Vec<Bytes> {
            Vec::new()
        }

        fn close(&mut self) -> Vec<Bytes> {
            Vec::new()
        }

        fn comments_in_a_row(&self) -> usize {
            3
        }

        fn sign_of_life(&mut self) -> Option<Bytes> {
            Some(Bytes::from_static(b"alive"))
        }
    }

    #[test]
    fn an_event_comes_after_many_comments() {
        let mut events = Events::new(Vec::new(), Silent);
        for _ in 0..8 {
            events.break_silence();
        }
        let written: Vec<&[u8]> = events.ready.iter().map(|bytes| &bytes[..]).collect();
        let (comment, with_event): (&[u8], &[u8]) = (b": waiting\n\n", b": waiting\n\nalive");
        assert_eq!(written, [comment, comment, comment, with_event].repeat(2));
    }
}

//! The way back: events of one request.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use lily_backend::Sample;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::request::SubmitError;

/// What happens to a request, in order: `Started`, any number of `Prefill`, any number of `Token`, and at the end one `Finished` or
/// `Failed`. A request that cannot start has only its `Failed`.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The request has a place, and what was cached of its prompt is there.
    Started {
        /// As [`Usage::cached_tokens`].
        cached_tokens: usize,
    },
    /// A chunk of a prompt that takes more than one step has been read.
    Prefill {
        /// Tokens read so far, the cached ones among them.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// A token of the reply.
    Token(Sample),
    /// The reply is complete.
    Finished {
        /// Why it ended.
        reason: FinishReason,
        /// What it took.
        usage: Usage,
    },
    /// The reply cannot be completed; says why.
    Failed(String),
}

/// Why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// One of the stop tokens was drawn; it is not given out.
    Stop,
    /// `max_tokens` or the end of the context was reached.
    Length,
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that did not have to be read because the prefix cache had them; always fewer than all.
    pub cached_tokens: usize,
    /// Tokens drawn; a stop token counts, though it is not given out.
    pub completion_tokens: usize,
}

/// The events of one request. Dropping it ends the request before the engine's next step.
#[derive(Debug)]
pub struct Reply {
    events: UnboundedReceiver<Event>,
    cancelled: Arc<AtomicBool>,
    ended: bool,
}

impl Reply {
    /// The next event; `None` after the last, or after a cancel.
    ///
    /// If the engine's thread dies, the last event is a [`Event::Failed`]; nobody waits for ever.
    pub async fn recv(&mut self) -> Option<Event> {
        poll_fn(|context| self.poll_recv(context)).await
    }

    /// As [`Reply::recv`], in the form that a `Stream` needs.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.events.poll_recv(context).map(|event| self.note(event))
    }

    /// As [`Reply::recv`], for threads.
    ///
    /// # Panics
    /// Within an asynchronous runtime: it would block it.
    pub fn blocking_recv(&mut self) -> Option<Event> {
        let event = self.events.blocking_recv();
        self.note(event)
    }

    /// Ends the request before the engine's next step, as dropping the reply does. Events sent until then still come.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// For a cancel from elsewhere while this thread waits in [`Reply::blocking_recv`].
    #[must_use]
    pub fn canceller(&self) -> Canceller {
        Canceller(Arc::clone(&self.cancelled))
    }

    /// Makes the end of the channel without a last event, which only a dead engine leaves, an event.
    fn note(&mut self, event: Option<Event>) -> Option<Event> {
        match &event {
            Some(Event::Finished { .. } | Event::Failed(_)) => self.ended = true,
            None if !self.ended && !self.cancelled.load(Ordering::Relaxed) => {
                self.ended = true;
                return Some(Event::Failed(SubmitError::EngineGone.to_string()));
            }
            _ => {}
        }
        event
    }
}

/// Cancels a request; see [`Reply::canceller`].
#[derive(Clone, Debug)]
pub struct Canceller(Arc<AtomicBool>);

impl Canceller {
    /// As [`Reply::cancel`].
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The engine's end of a [`Reply`].
#[derive(Clone, Debug)]
pub(crate) struct Events {
    sender: UnboundedSender<Event>,
    cancelled: Arc<AtomicBool>,
}

impl Events {
    /// A client that has gone is noticed by [`Events::cancelled`], not here.
    pub(crate) fn send(&self, event: Event) {
        let _gone = self.sender.send(event);
    }

    pub(crate) fn cancelled(&self) -> bool {
        self.sender.is_closed() || self.cancelled.load(Ordering::Relaxed)
    }
}

pub(crate) fn channel() -> (Reply, Events) {
    let (sender, events) = unbounded_channel();
    let cancelled = Arc::new(AtomicBool::new(false));
    (Reply { events, cancelled: Arc::clone(&cancelled), ended: false }, Events { sender, cancelled })
}

//! Sequences and their scheduling.
//!
//! One thread owns the [`Backend`]. Requests reach it through a bounded queue, [`Event`]s come back over a channel per
//! request. Each of its steps is one [`Backend::forward`] that holds the next token of every generating sequence and as
//! many prompt tokens as the step's time allows, so that prompts are read while replies are written; where that is few
//! and the backend can pause, a long chunk is read in slices between steps (`slices`). The engine knows
//! no text and no wire format. What sequences have read is kept in a prefix cache (`cache` says when and how), and a request
//! goes on from the longest part of its prompt that is there.
//!
//! ```text
//! Engine::submit ─► queue (bounded, clients take turns) ─► up to `parallel` sequences ─► Backend::forward
//!       Reply    ◄──────────────────────────── events ◄──────────────────────┘
//! ```

mod admission;
mod budget;
mod cache;
mod constraint;
mod fairness;
mod inbox;
mod penalties;
mod reply;
mod request;
mod run;
mod scheduler;
mod sequence;
mod slices;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use lily_backend::{Backend, Description};

pub use budget::{Budget, Place, Section};
pub use cache::{CacheOptions, CacheStats, DiskOptions};
pub use constraint::Constraint;
use inbox::Inbox;
pub use reply::{Canceller, Event, FinishReason, Reply, Usage};
pub use request::{Penalties, Request, SubmitError};

/// How an [`Engine`] shares its backend among requests.
#[derive(Clone, Debug)]
pub struct Options {
    /// Sequences that run at once; at least 1.
    pub parallel: usize,
    /// Requests that may wait for one of those places; beyond it [`SubmitError::QueueFull`]. A client that has none waiting
    /// is let in beyond that too, up to twice as many, so that another cannot shut it out.
    pub queue: usize,
    /// The most prompt tokens in one step, all sequences together; at least 1.
    pub prefill_chunk: usize,
    /// Addressable token ids, which is less than the backend's rows of logits where the embedding is padded: ids from
    /// here on are refused in prompts and never sampled.
    pub vocabulary: usize,
    /// The prefix cache.
    pub cache: CacheOptions,
}

impl Options {
    /// Four sequences, 64 waiting, chunks of 512 prompt tokens, no prefix cache.
    #[must_use]
    pub fn new(vocabulary: usize) -> Self {
        Self { parallel: 4, queue: 64, prefill_chunk: 512, vocabulary, cache: CacheOptions::off() }
    }
}

/// What the engine does now and has done since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// True until a shutdown begins or the engine's thread dies.
    pub accepting: bool,
    /// Sequences that run.
    pub running: usize,
    /// Requests that wait, in the queue or for what another one reads or the disk.
    pub queued: usize,
    /// Calls of the backend that came to their end.
    pub steps: u64,
    /// Prompt tokens read.
    pub prefilled_tokens: u64,
    /// Tokens drawn, stop tokens among them.
    pub generated_tokens: u64,
    /// The prefix cache.
    pub cache: CacheStats,
}

/// A handle to the engine's thread. The thread ends after [`Engine::shutdown`], or when the last handle is dropped, once
/// the replies under way have ended.
#[derive(Clone)]
pub struct Engine {
    handle: Arc<Handle>,
}

struct Handle {
    inbox: Arc<Inbox>,
    description: Description,
    vocabulary: usize,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inbox.drain();
    }
}

impl Engine {
    /// Starts the thread that owns `backend`. If the system gives no thread, every [`Engine::submit`] answers
    /// [`SubmitError::EngineGone`].
    #[must_use]
    pub fn start<B: Backend>(backend: B, options: Options) -> Self {
        let description = backend.description().clone();
        let options = Options {
            parallel: options.parallel.max(1),
            prefill_chunk: options.prefill_chunk.max(1),
            vocabulary: options.vocabulary.min(description.logits),
            cache: CacheOptions {
                interval: options.cache.interval.max(1),
                spacing: options.cache.spacing.max(1),
                ..options.cache
            },
            ..options
        };
        let vocabulary = options.vocabulary;
        let inbox = Arc::new(Inbox::new(options.parallel, options.queue));
        // The inbox learns that the thread is gone when this guard is dropped: at its end, in a panic, or right here if
        // the thread never comes to be.
        let alive = inbox::Alive::new(Arc::clone(&inbox));
        let started =
            thread::Builder::new().name("lily-engine".into()).spawn(move || run::run(backend, &options, alive));
        if let Err(error) = started {
            tracing::error!(%error, "the engine's thread could not be started");
        }
        Self { handle: Arc::new(Handle { inbox, description, vocabulary }) }
    }

    /// Puts a request in the queue.
    ///
    /// # Errors
    /// [`SubmitError`] says which parameter is wrong, or why nothing can be taken now.
    pub fn submit(&self, request: Request) -> Result<Reply, SubmitError> {
        request.validate(self.handle.vocabulary, self.max_context())?;
        let (reply, events) = reply::channel();
        self.handle.inbox.push(request.into_job(events))?;
        Ok(reply)
    }

    /// What the backend is.
    #[must_use]
    pub fn description(&self) -> &Description {
        &self.handle.description
    }

    /// Tokens of a prompt and its reply together, at most.
    #[must_use]
    pub fn max_context(&self) -> usize {
        self.handle.description.max_context
    }

    /// A snapshot; takes no time worth mentioning.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.handle.inbox.stats()
    }

    /// Refuses new requests from now on; those that run or wait end as they would have, then the thread ends.
    pub fn shutdown(&self) {
        self.handle.inbox.drain();
    }

    /// Refuses new requests and ends those that run or wait with [`Event::Failed`], within one step.
    pub fn shutdown_now(&self) {
        self.handle.inbox.abort();
    }

    /// Waits until the thread has ended and the backend is dropped. Only a shutdown makes it end while this handle lives.
    pub fn join(&self) {
        self.handle.inbox.wait_until_gone(None);
    }

    /// As [`Engine::join`], for at most `limit`; false if the thread was still there. A shutdown with a deadline is
    /// [`shutdown`](Engine::shutdown), this, and on false [`shutdown_now`](Engine::shutdown_now).
    #[must_use]
    pub fn join_timeout(&self, limit: Duration) -> bool {
        self.handle.inbox.wait_until_gone(Some(limit))
    }
}

//! What has happened to a request: right at any moment, also when its client has gone.

use crate::generate::End;
use crate::metrics::Latencies;
use serde_json::{Value, json};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// One request, all choices together.
#[derive(Debug)]
pub(crate) struct Counts {
    /// The path as the router has it.
    pub(crate) endpoint: String,
    pub(crate) begun: Instant,
    /// When it is broken off, if it has a limit.
    pub(crate) deadline: Option<tokio::time::Instant>,
    /// Whose it is; tells clients apart.
    pub(crate) client: OnceLock<u64>,
    pub(crate) prompt_tokens: AtomicUsize,
    pub(crate) completion_tokens: AtomicUsize,
    /// How the whole answer ended; unset while it is being written, and for ever if its client goes.
    pub(crate) end: OnceLock<End>,
    /// Tokens of the first choice's prompt that did not have to be read.
    cached_tokens: AtomicUsize,
    /// Tokens of a prompt that are in, the cached ones among them.
    prefilled_tokens: AtomicUsize,
    /// When the first choice had a place.
    started: OnceLock<Instant>,
    first_token: OnceLock<Instant>,
    /// Nanoseconds from the first token to the last one so far.
    generating: AtomicU64,
    latencies: Latencies,
}

impl Counts {
    pub(crate) fn new(endpoint: String, limit: Option<Duration>, latencies: Latencies) -> Self {
        Self {
            endpoint,
            begun: Instant::now(),
            deadline: limit.map(|limit| tokio::time::Instant::now() + limit),
            client: OnceLock::new(),
            prompt_tokens: AtomicUsize::new(0),
            completion_tokens: AtomicUsize::new(0),
            end: OnceLock::new(),
            cached_tokens: AtomicUsize::new(0),
            prefilled_tokens: AtomicUsize::new(0),
            started: OnceLock::new(),
            first_token: OnceLock::new(),
            generating: AtomicU64::new(0),
            latencies,
        }
    }

    /// A choice has a place, and so many tokens of its prompt were cached.
    pub(crate) fn started(&self, cached_tokens: usize) {
        let now = Instant::now();
        if self.started.set(now).is_ok() {
            self.cached_tokens.store(cached_tokens, Ordering::Relaxed);
            self.prefilled_tokens.fetch_max(cached_tokens, Ordering::Relaxed);
            self.latencies.queue.observe((now - self.begun).as_secs_f64());
        }
    }

    /// So many tokens of a prompt are in.
    pub(crate) fn prefilled(&self, tokens: usize) {
        self.prefilled_tokens.fetch_max(tokens, Ordering::Relaxed);
    }

    /// A choice has one more token; `last` is when it had the one before.
    pub(crate) fn token(&self, last: &mut Option<Instant>) {
        let now = Instant::now();
        self.completion_tokens.fetch_add(1, Ordering::Relaxed);
        let first = *self.first_token.get_or_init(|| {
            self.latencies.first_token.observe((now - self.begun).as_secs_f64());
            now
        });
        let generating = now.saturating_duration_since(first).as_nanos();
        self.generating.fetch_max(u64::try_from(generating).unwrap_or(u64::MAX), Ordering::Relaxed);
        if let Some(last) = last.replace(now) {
            self.latencies.between_tokens.observe((now - last).as_secs_f64());
        }
    }

    pub(crate) fn cached_tokens(&self) -> usize {
        self.cached_tokens.load(Ordering::Relaxed)
    }

    /// From the request to its first place; `None` before.
    pub(crate) fn queued(&self) -> Option<Duration> {
        self.started.get().map(|&started| started - self.begun)
    }

    /// From the request to its first token; `None` before.
    pub(crate) fn first_token(&self) -> Option<Duration> {
        self.first_token.get().map(|&first| first - self.begun)
    }

    /// Of the tokens after the first, all choices together; `None` before there are two.
    pub(crate) fn tokens_per_second(&self) -> Option<f64> {
        let tokens = self.completion_tokens.load(Ordering::Relaxed).checked_sub(1)?;
        let seconds = self.generating.load(Ordering::Relaxed) as f64 / 1e9;
        (tokens > 0 && seconds > 0.0).then(|| tokens as f64 / seconds)
    }

    /// What the request does now; `None` if it is none that generates, or none yet.
    pub(crate) fn now(&self) -> Option<Value> {
        let prompt_tokens = self.prompt_tokens.load(Ordering::Relaxed);
        if prompt_tokens == 0 {
            return None;
        }
        let stage = match (self.started.get(), self.first_token.get()) {
            (_, Some(_)) => "generating",
            (Some(_), None) => "prefilling",
            (None, None) => "queued",
        };
        Some(json!({
            "endpoint": self.endpoint,
            "stage": stage,
            "prompt_tokens": prompt_tokens,
            "cached_tokens": self.cached_tokens(),
            "prefilled_tokens": self.prefilled_tokens.load(Ordering::Relaxed),
            "completion_tokens": self.completion_tokens.load(Ordering::Relaxed),
            "seconds": self.begun.elapsed().as_secs_f64(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::Counts;
    use crate::metrics::Latencies;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_request_goes_through_its_stages() {
        let counts = Counts::new("/v1/completions".into(), None, Latencies::new());
        assert_eq!(counts.now(), None);
        let stage = || counts.now().expect("it generates")["stage"].clone();
        counts.prompt_tokens.store(90, Ordering::Relaxed);
        assert_eq!(stage(), "queued");
        counts.started(40);
        // Another choice: the first one tells.
        counts.started(90);
        assert_eq!((stage(), counts.cached_tokens()), ("prefilling".into(), 40));
        counts.prefilled(64);
        assert_eq!(counts.now().expect("it generates")["prefilled_tokens"], 64);
        assert_eq!((counts.first_token(), counts.tokens_per_second()), (None, None));
        let mut last = None;
        for _ in 0..3 {
            counts.token(&mut last);
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        assert_eq!((stage(), counts.completion_tokens.load(Ordering::Relaxed)), ("generating".into(), 3));
        let rate = counts.tokens_per_second().expect("three tokens");
        assert!(rate > 0.0 && rate <= 500.0, "{rate}");
        assert!(counts.queued().is_some() && counts.first_token() >= counts.queued());
    }
}

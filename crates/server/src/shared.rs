//! What every handler shares, and the threads for work that would hold up others.

use crate::engine_metrics::EngineMetrics;
use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::params::Limits;
use crate::replay::ReplayStore;
use crate::responses::ResponseStore;
use crate::{App, Config};
use lily_chat::{ChatTemplate, Grammars, Tokenizer, secret};
use lily_engine::Engine;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// Hexadecimal digits of an id that nobody can guess.
pub(crate) const SECRET_DIGITS: usize = 24;
/// Bodies from here on count as large: reading one can take seconds.
const LARGE_BODY: usize = 256 << 10;
/// Large bodies read at once. Small ones never wait for them.
const LARGE_AT_ONCE: usize = 2;
/// Small bodies read at once.
const SMALL_AT_ONCE: usize = 16;

pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) template: Arc<ChatTemplate>,
    pub(crate) stop_tokens: Vec<u32>,
    pub(crate) config: Config,
    pub(crate) limits: Limits,
    pub(crate) replay: Arc<ReplayStore>,
    pub(crate) responses: Arc<ResponseStore>,
    /// There once a request has needed it, or why it cannot be.
    grammars: OnceLock<Result<Grammars, String>>,
    pub(crate) metrics: Arc<Metrics>,
    /// Set once the model has answered.
    pub(crate) ready: AtomicBool,
    /// Seconds since 1970 at the start.
    pub(crate) started: u64,
    /// The start, for durations.
    pub(crate) since: Instant,
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    /// Tells the ids of this process from those of another.
    process: u64,
    requests: AtomicU64,
}

impl Shared {
    pub(crate) fn new(app: App) -> Self {
        let App { engine, tokenizer, template, stop_tokens, config } = app;
        let vocabulary = tokenizer.vocabulary();
        let lengths = (0..vocabulary as u32).map(|id| tokenizer.bytes(id).len());
        let limits = Limits {
            max_context: engine.max_context(),
            context_can_grow: config.longest_context.is_some_and(|longest| engine.max_context() < longest),
            vocabulary,
            longest_token: lengths.max().unwrap_or(1),
            defaults: config.defaults,
        };
        Self {
            replay: Arc::new(ReplayStore::new(config.replay_bytes)),
            responses: Arc::new(ResponseStore::new(config.response_bytes)),
            grammars: OnceLock::new(),
            metrics: Arc::new(Metrics::new(Some(EngineMetrics { engine: engine.clone(), plan: config.plan }))),
            engine,
            tokenizer,
            template,
            stop_tokens,
            config,
            limits,
            ready: AtomicBool::new(false),
            started: now(),
            since: Instant::now(),
            small: Arc::new(Semaphore::new(SMALL_AT_ONCE)),
            large: Arc::new(Semaphore::new(LARGE_AT_ONCE)),
            process: RandomState::new().build_hasher().finish(),
            requests: AtomicU64::new(0),
        }
    }

    /// Runs `work` on a body of `bytes` on a thread of its own. A caller that goes away no longer waits, but the work's
    /// place is free only once the work has ended.
    pub(crate) async fn work<T: Send + 'static>(
        self: &Arc<Self>,
        bytes: usize,
        work: impl FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let lane = if bytes < LARGE_BODY { &self.small } else { &self.large };
        let place = Arc::clone(lane).acquire_owned().await.map_err(|_| ApiError::internal("The server is closing."))?;
        let shared = Arc::clone(self);
        let result = spawn_blocking(move || {
            let _place = place;
            work(&shared)
        });
        // What went wrong is in the log by way of the panic hook; a client can do nothing with it.
        result.await.unwrap_or_else(|_| Err(ApiError::internal("The server failed to read the request.")))
    }

    /// What makes grammars. The first call takes the time, about a second, and the memory to build it.
    pub(crate) fn grammars(&self) -> Result<&Grammars, ApiError> {
        let make = || Grammars::new(Arc::clone(&self.tokenizer), &self.stop_tokens).map_err(|error| error.to_string());
        self.grammars.get_or_init(make).as_ref().map_err(ApiError::internal)
    }

    /// A request's id: unique here and, as far as chance allows, everywhere.
    pub(crate) fn id(&self, prefix: &str) -> String {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        format!("{prefix}{:016x}{number:08x}", self.process)
    }

    /// As [`Self::id`], and one that nobody can guess who was not told.
    pub(crate) fn secret_id(&self, prefix: &str) -> String {
        format!("{prefix}{}", &secret()[..SECRET_DIGITS])
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

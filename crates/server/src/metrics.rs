//! What is counted and timed, in the form that Prometheus reads: `GET /metrics`.

use crate::counts::Counts;
use crate::engine_metrics::EngineMetrics;
use crate::error::ApiError;
use crate::shared::Shared;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Upper bounds in seconds for what takes from milliseconds to an hour.
const LONG: [f64; 17] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 150.0, 300.0, 900.0, 3600.0];
/// And for the time from one token to the next.
const SHORT: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 2.5];

/// Names of labels with their values.
type Labels<const N: usize> = [(&'static str, String); N];

/// Times within requests.
#[derive(Clone, Debug)]
pub(crate) struct Latencies {
    /// From the request to its place.
    pub(crate) queue: Histogram,
    /// From the request to its first token.
    pub(crate) first_token: Histogram,
    /// From each token to the next.
    pub(crate) between_tokens: Histogram,
}

impl Latencies {
    pub(crate) fn new() -> Self {
        Self { queue: Histogram::new(LONG), first_token: Histogram::new(LONG), between_tokens: Histogram::new(SHORT) }
    }
}

/// The counters, and the requests under way.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<Labels<3>, Counter>,
    ends: Family<Labels<2>, Counter>,
    durations: Family<Labels<1>, Histogram>,
    pub(crate) latencies: Latencies,
    under_way: Mutex<BTreeMap<u64, Arc<Counts>>>,
    begun: AtomicU64,
}

impl Metrics {
    /// `engine` adds what the engine counts.
    pub(crate) fn new(engine: Option<EngineMetrics>) -> Self {
        let mut registry = Registry::default();
        let requests = Family::<Labels<3>, Counter>::default();
        let ends = Family::<Labels<2>, Counter>::default();
        let durations = Family::<Labels<1>, Histogram>::new_with_constructor(|| Histogram::new(LONG));
        let latencies = Latencies::new();
        let Latencies { queue, first_token, between_tokens } = &latencies;
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("lily_build", "This program", version);
        registry.register("lily_requests", "Requests answered, by endpoint, method and status", requests.clone());
        registry.register("lily_request_ends", "Requests that generated, by endpoint and end", ends.clone());
        registry.register("lily_request_seconds", "From a request to the end of its answer", durations.clone());
        registry.register("lily_queue_seconds", "From a request to its place in the engine", queue.clone());
        let help = "From a request to its first token";
        registry.register("lily_time_to_first_token_seconds", help, first_token.clone());
        registry.register("lily_inter_token_seconds", "From each token to the next", between_tokens.clone());
        if let Some(engine) = engine {
            registry.register_collector(Box::new(engine));
        }
        let (under_way, begun) = (Mutex::default(), AtomicU64::new(0));
        Self { registry, requests, ends, durations, latencies, under_way, begun }
    }

    /// A request has come; gives the number to end it with.
    pub(crate) fn begin(&self, counts: &Arc<Counts>) -> u64 {
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        self.under_way().insert(number, Arc::clone(counts));
        number
    }

    /// A request is over: its answer is sent, or its client has gone. `end`: how its reply ended, if there was one.
    pub(crate) fn end(&self, number: u64, method: &str, status: u16, end: Option<&str>) {
        let Some(counts) = self.under_way().remove(&number) else { return };
        let endpoint = || ("endpoint", counts.endpoint.clone());
        let labels = [endpoint(), ("method", method.to_owned()), ("status", status.to_string())];
        self.requests.get_or_create(&labels).inc();
        if let Some(end) = end {
            self.ends.get_or_create(&[endpoint(), ("end", end.to_owned())]).inc();
        }
        self.durations.get_or_create(&[endpoint()]).observe(counts.begun.elapsed().as_secs_f64());
    }

    /// The requests that generate or will, the oldest first.
    pub(crate) fn now(&self) -> Vec<Value> {
        self.under_way().values().filter_map(|counts| counts.now()).collect()
    }

    fn under_way(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Counts>>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request's counters.
    pub(crate) fn counts(&self, endpoint: String, limit: Option<Duration>) -> Arc<Counts> {
        Arc::new(Counts::new(endpoint, limit, self.latencies.clone()))
    }
}

pub(crate) async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let mut text = String::new();
    match encode(&mut text, &shared.metrics.registry) {
        Ok(()) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            (StatusCode::OK, [(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(_) => ApiError::internal("The metrics could not be written.").into_response(),
    }
}

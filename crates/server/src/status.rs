//! `GET /health`, `/ready` and `/status`, and the request that finds out whether the model answers.

use crate::engine_metrics::{parts, resident_bytes};
use crate::error::ApiError;
use crate::shared::Shared;
use axum::Json;
use axum::extract::State;
use lily_engine::{Event, Request};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// 200 as long as anything answers at all.
pub(crate) async fn health(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let stats = shared.engine.stats();
    Json(json!({
        "status": "ok",
        "engine": {
            "backend": shared.engine.description().name,
            "accepting": stats.accepting,
            "running": stats.running,
            "queued": stats.queued,
            "steps": stats.steps,
            "prefilled_tokens": stats.prefilled_tokens,
            "generated_tokens": stats.generated_tokens,
        },
    }))
}

pub(crate) async fn ready(State(shared): State<Arc<Shared>>) -> Result<Json<Value>, ApiError> {
    if !shared.engine.stats().accepting {
        return Err(ApiError::unavailable("The server is shutting down, or its engine has failed."));
    }
    if !shared.ready.load(Ordering::Acquire) {
        return Err(ApiError::unavailable("The model has not answered yet."));
    }
    Ok(Json(json!({"status": "ready"})))
}

/// What runs, on what, and what it does now: for people and for pages. Programs that watch it read `/metrics`.
pub(crate) async fn status(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let (engine, config) = (&shared.engine, &shared.config);
    let stats = engine.stats();
    let ready = shared.ready.load(Ordering::Acquire);
    let state = match (stats.accepting, ready) {
        (false, _) => "stopping",
        (true, false) => "starting",
        (true, true) => "ready",
    };
    let cache = stats.cache;
    let planned = config.plan.map(|plan| {
        let mut planned: Map<String, Value> =
            parts(&plan).iter().map(|&(part, bytes)| (part.into(), bytes.into())).collect();
        planned.insert("total".into(), plan.total().into());
        planned
    });
    Json(json!({
        "status": state,
        "version": env!("CARGO_PKG_VERSION"),
        "process": std::process::id(),
        "uptime_seconds": shared.since.elapsed().as_secs(),
        "model": {
            "id": config.model_name,
            "context": engine.max_context(),
            "longest_context": config.longest_context,
        },
        "device": engine.description().name,
        "parallel": config.plan.map(|plan| plan.parallel),
        "requests": {
            "running": stats.running,
            "queued": stats.queued,
            "under_way": shared.metrics.now(),
        },
        "tokens": {
            "prefilled": stats.prefilled_tokens,
            "cached": cache.cached_tokens,
            "generated": stats.generated_tokens,
        },
        "cache": {
            "limit_bytes": config.plan.map(|plan| plan.cache),
            "bytes": cache.bytes,
            "snapshots": cache.snapshots,
            "hits": cache.hits,
            "misses": cache.misses,
            "evictions": cache.evictions,
            "disk": {
                "bytes": cache.disk_bytes,
                "snapshots": cache.disk_snapshots,
                "waiting": cache.disk_waiting,
                "writes": cache.disk_writes,
                "reads": cache.disk_reads,
                "evictions": cache.disk_evictions,
                "errors": cache.disk_errors,
            },
        },
        "memory": {"planned_bytes": planned, "resident_bytes": resident_bytes()},
    }))
}

/// Has the model write one token, which also brings its weights into memory. Readiness follows.
pub(crate) async fn warm_up(shared: Arc<Shared>) {
    let prompt = match shared.tokenizer.encode("Hello") {
        Ok(tokens) if !tokens.is_empty() => tokens,
        _ => vec![0],
    };
    let mut reply = match shared.engine.submit(Request::new(prompt, 1)) {
        Ok(reply) => reply,
        Err(error) => return tracing::error!(%error, "the model could not be tried"),
    };
    while let Some(event) = reply.recv().await {
        match event {
            Event::Started { .. } | Event::Prefill { .. } | Event::Token(_) => {}
            Event::Finished { .. } => shared.ready.store(true, Ordering::Release),
            Event::Failed(error) => tracing::error!(error, "the model does not answer"),
        }
    }
}

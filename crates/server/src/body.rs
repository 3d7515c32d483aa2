//! Reading a request's body: within the size limit and within time, whoever sends it.

use crate::counts::Counts;
use crate::error::ApiError;
use crate::generate::{End, TOO_LONG};
use crate::shared::Shared;
use crate::{Config, Timeouts};
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use futures_util::StreamExt;
use serde_json::Value;
use std::sync::Arc;
use tokio::time::{Instant, timeout_at};

/// Reads a request's body as JSON; on a thread of its own makes of it what `work` does. Both within the request's time: work
/// that has begun goes on to its end, but nobody waits for it any more.
pub(crate) async fn read_with<T: Send + 'static>(
    shared: &Arc<Shared>,
    request: Request,
    work: impl FnOnce(Value, &Shared) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let (head, body) = request.into_parts();
    let all = async {
        let bytes = read(&head.headers, body, &shared.config).await?;
        shared.work(bytes.len(), move |shared| work(parse(&bytes)?, shared)).await
    };
    match head.extensions.get::<Arc<Counts>>().and_then(|counts| counts.deadline.map(|deadline| (counts, deadline))) {
        None => all.await,
        Some((counts, deadline)) => timeout_at(deadline, all).await.unwrap_or_else(|_elapsed| {
            counts.end.get_or_init(|| End::TimedOut);
            Err(ApiError::timed_out(TOO_LONG))
        }),
    }
}

/// Reads the whole body.
///
/// A body over the limit is read on, and thrown away, up to twice the limit, since most clients look at the answer only
/// once they have sent everything; beyond that the connection is cut after the answer.
async fn read(headers: &HeaderMap, body: Body, config: &Config) -> Result<Bytes, ApiError> {
    let limit = config.body_limit;
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    // A client that asks first ("Expect: 100-continue") gets its answer before it sends anything.
    if announced.is_some_and(|bytes: u64| {
        bytes > 2 * limit as u64 || (bytes > limit as u64 && headers.contains_key(header::EXPECT))
    }) {
        return Err(ApiError::body_too_large(limit));
    }
    let Timeouts { body_progress, body_total, .. } = config.timeouts;
    let end = Instant::now() + body_total;
    let mut chunks = body.into_data_stream();
    let mut received = Vec::with_capacity(announced.map_or(0, |bytes| bytes as usize).min(limit));
    let mut count = 0;
    loop {
        let deadline = end.min(Instant::now() + body_progress);
        let chunk = match timeout_at(deadline, chunks.next()).await {
            Err(_elapsed) => return Err(ApiError::body_timeout()),
            Ok(None) if count > limit => return Err(ApiError::body_too_large(limit)),
            Ok(None) => return Ok(received.into()),
            Ok(Some(Err(error))) => {
                return Err(ApiError::request(format!("The request body could not be read: {error}.")));
            }
            Ok(Some(Ok(chunk))) => chunk,
        };
        count += chunk.len();
        if count > 2 * limit {
            return Err(ApiError::body_too_large(limit));
        }
        if count > limit {
            received = Vec::new();
        } else {
            received.extend_from_slice(&chunk);
        }
    }
}

/// Reads the body as JSON, whatever its Content-Type says.
pub(crate) fn parse(body: &[u8]) -> Result<Value, ApiError> {
    if values_at_most(body) > MOST_VALUES {
        let message = format!("The request body is not taken: its JSON holds more than {MOST_VALUES} values.");
        return Err(ApiError::request(message));
    }
    if body.is_empty() {
        return Err(ApiError::request("The request body is empty; it must be a JSON object."));
    }
    from_json(body).map_err(|fault| ApiError::request(format!("The request body is {fault}.")))
}

/// Reads a text as JSON, or says what the text is instead.
pub(crate) fn from_json(text: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(text).map_err(|error| match error.to_string() {
        // The parser has no other word for it.
        reason if reason.starts_with("recursion limit exceeded") => {
            format!("JSON nested over {MOST_LEVELS} levels deep, which is not taken")
        }
        reason => format!("not valid JSON: {reason}"),
    })
}

/// Levels of arrays and objects within each other that the parser takes.
const MOST_LEVELS: usize = 127;

/// JSON values one body may hold. A parsed value can take a hundred times the two bytes that it has in the body, so that
/// without a bound 32 MiB of brackets would take gigabytes of memory.
const MOST_VALUES: usize = 2_000_000;

/// How many values a JSON text can hold: each but the first of an array or object follows a comma, that one a bracket.
fn values_at_most(json: &[u8]) -> usize {
    let (mut values, mut in_string, mut escaped) = (1, false, false);
    for &byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            b',' | b'[' | b'{' if !in_string => values += 1,
            _ => {}
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::{MOST_LEVELS, MOST_VALUES, parse, values_at_most};

    #[test]
    fn values_are_counted_outside_of_strings() {
        for (json, count) in
            [("1", 1), ("[1]", 2), (r#"{"a,[": [1, 2, {"b\\": ",{\"["}]}"#, 6), (r#"{"a": "\",,,", "b": "\\"}"#, 3)]
        {
            assert_eq!(values_at_most(json.as_bytes()), count, "{json}");
        }
    }

    #[test]
    fn a_body_that_is_nested_too_deep_is_told_so() {
        let body = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        assert!(parse(body(MOST_LEVELS).as_bytes()).is_ok());
        let error = parse(body(MOST_LEVELS + 1).as_bytes()).expect_err("too deep");
        assert_eq!(error.message(), "The request body is JSON nested over 127 levels deep, which is not taken.");
    }

    #[test]
    fn a_body_of_brackets_is_refused_before_it_takes_memory() {
        let body = |count: usize| format!("[{}0]", "0,".repeat(count));
        assert!(parse(body(MOST_VALUES).as_bytes()).is_err());
        assert!(parse(body(1000).as_bytes()).is_ok());
    }
}

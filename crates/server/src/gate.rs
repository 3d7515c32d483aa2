//! What stands before every handler: is the request from where it may come, and by whom.

use crate::Config;
use crate::auth::{ApiKeys, Clients, Peer};
use crate::counts::Counts;
use crate::cross_origin::CrossOrigin;
use crate::error::ApiError;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

/// Whether a path needs no key: that the server lives is no secret, nor is the page that asks for the key.
fn is_open(path: &str) -> bool {
    matches!(path, "/" | "/health" | "/ready") || path.starts_with("/web/")
}

/// Who is let in.
#[derive(Clone, Default)]
pub(crate) struct Gate {
    keys: ApiKeys,
    cross_origin: CrossOrigin,
    clients: Clients,
}

impl Gate {
    pub(crate) fn new(config: &Config) -> Self {
        Self { keys: config.keys.clone(), cross_origin: config.cross_origin.clone(), clients: Clients::default() }
    }

    /// Whose request it is, if it may come in.
    fn admit(&self, request: &Request) -> Result<u64, ApiError> {
        let headers = request.headers();
        self.cross_origin.check(request.method(), request.uri(), headers)?;
        let key = if is_open(request.uri().path()) { None } else { self.keys.check(headers)? };
        Ok(self.clients.number(key, request.extensions().get::<Peer>().copied()))
    }
}

pub(crate) async fn admit(State(gate): State<Arc<Gate>>, request: Request, next: Next) -> Response {
    match gate.admit(&request) {
        Ok(client) => {
            if let Some(counts) = request.extensions().get::<Arc<Counts>>() {
                counts.client.get_or_init(|| client);
            }
            next.run(request).await
        }
        Err(error) => error.into_response(),
    }
}

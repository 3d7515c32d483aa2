//! What a request's body comes to, without a server around it and without running it.

use crate::App;
use crate::body::parse;
use crate::counts::Counts;
use crate::error::ApiError;
use crate::metrics::Latencies;
use crate::shared::Shared;
use crate::{anthropic, chat, completions, responses};
use serde_json::Value;
use std::sync::Arc;

/// Reads bodies as the endpoints that generate do, without running them. It is there for the fuzzers.
pub struct RequestReader {
    shared: Shared,
}

/// An endpoint that generates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
    /// `/v1/responses`
    Responses,
    /// `/v1/messages`
    Messages,
}

impl Endpoint {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Chat, Self::Completions, Self::Responses, Self::Messages];
}

/// What a client is told instead of a reply.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused {
    /// The HTTP status: 4xx, or 500 where the fault is the server's.
    pub status: u16,
    /// The JSON, in OpenAI's shape.
    pub body: Value,
}

impl RequestReader {
    /// Reads for `app`, which is not served by it.
    #[must_use]
    pub fn new(app: App) -> Self {
        Self { shared: Shared::new(app) }
    }

    /// The tokens of each prompt in a body, all its parameters, tools and formats read and found right.
    ///
    /// # Errors
    /// What the client would be told.
    pub fn prompts(&self, endpoint: Endpoint, body: &[u8]) -> Result<Vec<Vec<u32>>, Refused> {
        self.read(endpoint, body).map_err(|error| Refused { status: error.status().as_u16(), body: error.body() })
    }

    fn read(&self, endpoint: Endpoint, body: &[u8]) -> Result<Vec<Vec<u32>>, ApiError> {
        let (request, shared) = (parse(body)?, &self.shared);
        let job = match endpoint {
            Endpoint::Chat => chat::read(request, shared)?,
            Endpoint::Completions => completions::read(&request, shared)?.0,
            Endpoint::Responses => {
                let counts = Arc::new(Counts::new("/v1/responses".into(), None, Latencies::new()));
                responses::read(request, shared, counts)?.0
            }
            Endpoint::Messages => anthropic::read(request, shared)?.job,
        };
        Ok(job.prompts)
    }
}

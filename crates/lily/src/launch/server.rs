//! The server that an agent is to use.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use ureq::Agent;
use ureq::http::StatusCode;
use ureq::http::header::AUTHORIZATION;

const PATIENCE: Duration = Duration::from_secs(10);

/// A running `lily serve`.
pub(super) struct Server {
    /// Without a slash at its end.
    pub(super) url: String,
    /// Its model's name.
    pub(super) model: String,
    /// Tokens that a conversation may hold.
    pub(super) context: u64,
}

#[derive(Deserialize)]
struct Models {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    id: String,
    max_model_len: u64,
}

impl Server {
    /// Asks a server what it serves.
    pub(super) fn ask(url: &str, key: Option<&str>) -> Result<Self> {
        // Many write the address as other clients want it.
        let url = url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
        let agent: Agent = Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .timeout_global(Some(PATIENCE))
            .build()
            .into();
        let mut request = agent.get(format!("{url}/v1/models"));
        if let Some(key) = key {
            request = request.header(AUTHORIZATION, format!("Bearer {key}"));
        }
        let mut response = request.call().with_context(|| {
            format!("nothing answers at {url}: start `lily serve` first, or give its address with --url")
        })?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED if key.is_none() => {
                bail!("{url} wants an API key: give it with --api-key or LILY_API_KEY")
            }
            StatusCode::UNAUTHORIZED => bail!("{url} does not take this API key"),
            status => bail!("{url} answers {}: is it a Lily server?", status.as_u16()),
        }
        let body = response.body_mut().read_to_vec().with_context(|| format!("{url} breaks off"))?;
        let models: Models = serde_json::from_slice(&body).with_context(|| format!("{url} is no Lily server"))?;
        match models.data.into_iter().next() {
            Some(Model { id, max_model_len }) => Ok(Self { url, model: id, context: max_model_len }),
            None => bail!("{url} serves no model"),
        }
    }
}

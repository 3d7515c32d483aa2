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
    pub(super) room: Room,
}

/// What the context could be otherwise, as far as the server tells.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// The longest context that the model was made for.
    pub(super) longest: Option<u64>,
    /// Requests at once.
    pub(super) parallel: Option<u64>,
}

#[derive(Deserialize)]
struct Status {
    model: StatusModel,
    parallel: Option<u64>,
}

#[derive(Deserialize)]
struct StatusModel {
    longest_context: Option<u64>,
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

impl Room {
    fn of(status: &[u8]) -> Option<Self> {
        let Status { model, parallel } = serde_json::from_slice(status).ok()?;
        Some(Self { longest: model.longest_context, parallel })
    }
}

impl Server {
    /// Asks a server what it serves.
    pub(super) fn ask(url: &str, key: Option<&str>) -> Result<Self> {
        // Many write the address as other clients want it.
        let url = url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
        if !is_printable(&url) {
            bail!("--url {url:?} is no address: it has to be one as http://127.0.0.1:8080");
        }
        let agent: Agent = Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .timeout_global(Some(PATIENCE))
            .build()
            .into();
        let get = |path: &str| {
            let request = agent.get(format!("{url}{path}"));
            match key {
                Some(key) => request.header(AUTHORIZATION, format!("Bearer {key}")),
                None => request,
            }
            .call()
        };
        let mut response = get("/v1/models").with_context(|| {
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
        let status = get("/status").ok().and_then(|mut response| response.body_mut().read_to_vec().ok());
        let room = status.and_then(|body| Room::of(&body)).unwrap_or_default();
        Ok(Self { room, ..Self::of(url.clone(), &body)? })
    }

    /// What the list of models of the server at `url` says.
    fn of(url: String, models: &[u8]) -> Result<Self> {
        let models: Models = serde_json::from_slice(models).with_context(|| format!("{url} is no Lily server"))?;
        match models.data.into_iter().next() {
            // It is printed as part of a command: a line's end in it would begin another.
            Some(Model { id, .. }) if !is_printable(&id) => {
                bail!("{url} serves a model named {id:?}: is it a Lily server?")
            }
            Some(Model { id, max_model_len }) => {
                Ok(Self { url, model: id, context: max_model_len, room: Room::default() })
            }
            None => bail!("{url} serves no model"),
        }
    }
}

fn is_printable(text: &str) -> bool {
    !text.is_empty() && !text.contains(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::Server;
    use serde_json::json;

    #[test]
    fn a_models_name_is_one_that_can_be_printed() {
        let of = |id: &str| {
            let models = json!({"data": [{"id": id, "max_model_len": 9}]}).to_string();
            Server::of("http://a.example".into(), models.as_bytes())
                .map(|server| server.model)
                .map_err(|error| error.to_string())
        };
        assert_eq!(of("Qwen 3.6"), Ok("Qwen 3.6".into()));
        for id in ["", "x\ntouch /tmp/x\n#", "x\u{1b}[2J", "x\u{85}"] {
            assert!(of(id).is_err_and(|error| error.contains(&format!("{id:?}"))), "{id:?}");
        }
    }

    #[test]
    fn an_address_is_one_that_can_be_printed() {
        let error = Server::ask("http://127.0.0.1:1\ntouch /tmp/x", None).err().expect("no address").to_string();
        assert!(error.contains("--url"), "{error}");
    }
}

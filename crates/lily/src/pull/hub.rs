//! Requests to the hub, and to where it sends us for large files.

use std::env;
use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lily_checkpoint::{CHECKPOINT, REVISION};
use ureq::http::header::{AUTHORIZATION, LOCATION, RANGE, RETRY_AFTER};
use ureq::http::{HeaderName, Response, StatusCode, Uri};
use ureq::{Agent, Body, Error};

use super::patience::Failure;

const ENDPOINT: &str = "https://huggingface.co";
/// From an address to the next, before it counts as a circle.
const REDIRECTS: usize = 5;
const CONNECT: Duration = Duration::from_secs(20);
/// Without a byte for so long a connection counts as dead.
const SILENCE: Duration = Duration::from_secs(30);

/// The hub, or a mirror of it.
pub(super) struct Hub {
    agent: Agent,
    /// Without a slash at its end.
    endpoint: String,
    token: Option<String>,
}

/// A good answer, and the address that gave it in the end.
pub(super) struct Opened {
    pub(super) response: Response<Body>,
    pub(super) url: String,
}

impl Hub {
    /// `HF_ENDPOINT` and `HF_TOKEN`; empty ones count as unset. A proxy is taken from the usual variables.
    pub(super) fn from_environment() -> Result<Self> {
        let variable =
            |name| env::var(name).ok().map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.into()).trim_end_matches('/').to_owned();
        if origin(&endpoint).is_none() {
            bail!("HF_ENDPOINT is {endpoint:?}, which is no address: it has to be one as {ENDPOINT}");
        }
        let token = variable("HF_TOKEN");
        if token.as_ref().is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            bail!("HF_TOKEN holds characters that no token has: copy it anew from the hub's settings");
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // Followed here: the token must not go elsewhere, and where the hub leads is worth to know.
            .max_redirects(0)
            .user_agent(concat!("lily/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT))
            .timeout_per_read(Some(SILENCE))
            .timeout_per_write(Some(SILENCE))
            .max_idle_connections_per_host(super::transfer::CONNECTIONS)
            .build();
        Ok(Self { agent: config.into(), endpoint, token })
    }

    /// Where the revision's files are told.
    pub(super) fn listing_url(&self) -> String {
        format!("{}/api/models/{CHECKPOINT}/revision/{REVISION}?blobs=true", self.endpoint)
    }

    /// Where a file is, or the way to it is told.
    pub(super) fn file_url(&self, name: &str) -> String {
        let mut url = format!("{}/{CHECKPOINT}/resolve/{REVISION}/", self.endpoint);
        for byte in name.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => url.push(byte.into()),
                other => url += &format!("%{other:02X}"),
            }
        }
        url
    }

    /// Asks for all or a range of what is at an address.
    pub(super) fn open(&self, url: &str, range: Option<&Range<u64>>) -> Result<Opened, Failure> {
        let mut url = url.to_owned();
        for _ in 0..=REDIRECTS {
            let mut request = self.agent.get(&url);
            if let Some(token) = self.token.as_ref().filter(|_| self.is_own(&url)) {
                request = request.header(AUTHORIZATION, format!("Bearer {token}"));
            }
            if let Some(range) = range {
                request = request.header(RANGE, format!("bytes={}-{}", range.start, range.end - 1));
            }
            let response = request.call().map_err(|error| connection_failure(&url, &error))?;
            if response.status().is_success() {
                return Ok(Opened { response, url });
            }
            match header(&response, LOCATION).filter(|_| response.status().is_redirection()) {
                Some(location) => url = join(&url, location)?,
                None => return Err(self.refusal(&url, &response)),
            }
        }
        Err(Failure::lasting(format!("{} sends us in a circle: is HF_ENDPOINT right?", shown(&url))))
    }

    /// Whether an address is the hub's own, and not where it keeps large files.
    fn is_own(&self, url: &str) -> bool {
        origin(url).is_some() && origin(url) == origin(&self.endpoint)
    }

    fn refusal(&self, url: &str, response: &Response<Body>) -> Failure {
        let status = response.status();
        let said = format!("{} answers {}", shown(url), status.as_u16());
        if !self.is_own(url) && matches!(status.as_u16(), 401 | 403 | 404 | 410) {
            // Addresses of large files are signed and hold for some time only: the hub gives another.
            return Failure { expired: true, ..Failure::server(said) };
        }
        match status {
            StatusCode::UNAUTHORIZED if self.token.is_some() => {
                Failure::lasting(format!("{said}: it does not take the token in HF_TOKEN; set another, or none"))
            }
            StatusCode::UNAUTHORIZED => {
                Failure::lasting(format!("{said}: it wants a token; set HF_TOKEN to one that may read {CHECKPOINT}"))
            }
            StatusCode::FORBIDDEN => Failure::lasting(format!(
                "{said}: it does not let you read {CHECKPOINT}; look at its page on the hub, or set HF_TOKEN to another token"
            )),
            StatusCode::NOT_FOUND => Failure::lasting(format!(
                "{said}: it does not have revision {REVISION} of {CHECKPOINT}, or not this file; is HF_ENDPOINT a whole mirror?"
            )),
            StatusCode::RANGE_NOT_SATISFIABLE => Failure::lasting(format!(
                "{said}: the file there is shorter than the hub says; is HF_ENDPOINT a whole mirror?"
            )),
            StatusCode::TOO_MANY_REQUESTS => Failure {
                after: retry_after(response),
                ..Failure::server(format!(
                    "{said}, too many requests: try again later; a token in HF_TOKEN is allowed more"
                ))
            },
            status if status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT => Failure {
                after: retry_after(response),
                ..Failure::server(format!("{said}: it is in trouble; try again later, or set HF_ENDPOINT to a mirror"))
            },
            _ => Failure::lasting(format!("{said}: is HF_ENDPOINT right?")),
        }
    }
}

/// A header's value, if it is text.
pub(super) fn header(response: &Response<Body>, name: HeaderName) -> Option<&str> {
    response.headers().get(name)?.to_str().ok()
}

fn retry_after(response: &Response<Body>) -> Option<Duration> {
    header(response, RETRY_AFTER)?.trim().parse().ok().map(Duration::from_secs)
}

/// Scheme, host and port.
fn origin(url: &str) -> Option<String> {
    let uri: Uri = url.parse().ok()?;
    let scheme = uri.scheme_str().filter(|scheme| matches!(*scheme, "http" | "https"))?;
    Some(format!("{scheme}://{}", uri.authority()?))
}

/// An address without its query, which may hold a signature.
pub(super) fn shown(url: &str) -> &str {
    url.split('?').next().unwrap_or(url)
}

/// Where a redirect leads.
fn join(url: &str, location: &str) -> Result<String, Failure> {
    let next = match (origin(url), location) {
        (_, absolute) if absolute.starts_with("http://") || absolute.starts_with("https://") => {
            Some(absolute.to_owned())
        }
        (Some(origin), path) if path.starts_with('/') && !path.starts_with("//") => Some(origin + path),
        _ => None,
    };
    let sends = || format!("{} sends us to {:?}, which is no address", shown(url), shown(location));
    next.filter(|next| origin(next).is_some()).ok_or_else(|| Failure::server(sends()))
}

/// What a failure of the connection means.
fn connection_failure(url: &str, error: &Error) -> Failure {
    let place = origin(url).unwrap_or_else(|| shown(url).to_owned());
    match error {
        Error::Rustls(_) | Error::Tls(_) | Error::Pem(_) => {
            let meaning = "something between may replace certificates; HF_ENDPOINT can name a mirror";
            Failure::lasting(format!("no safe connection to {place}: {error}; {meaning}"))
        }
        Error::BadUri(_) | Error::Http(_) => Failure::lasting(format!("{}: {error}", shown(url))),
        Error::InvalidProxyUrl => {
            Failure::lasting("the proxy in HTTPS_PROXY, HTTP_PROXY or ALL_PROXY is no address".to_owned())
        }
        _ => Failure::network(format!(
            "{place} cannot be reached: {error}; is the network there? HTTPS_PROXY sets a proxy, HF_ENDPOINT a mirror"
        )),
    }
}

/// Reads a small answer whole.
pub(super) fn read_all(opened: Opened, most: u64) -> Result<Vec<u8>, Failure> {
    let mut body = opened.response.into_body();
    let read = body.with_config().limit(most).read_to_vec();
    read.map_err(|error| Failure::network(format!("{}: {error}", shown(&opened.url))))
}

impl From<Failure> for anyhow::Error {
    fn from(failure: Failure) -> Self {
        Self::msg(failure.message)
    }
}

/// What an answer's JSON must hold.
pub(super) fn parse<T: serde::de::DeserializeOwned>(url: &str, json: &[u8]) -> Result<T> {
    serde_json::from_slice(json)
        .with_context(|| format!("{} does not answer as the hub does: is HF_ENDPOINT right?", shown(url)))
}

#[cfg(test)]
mod tests {
    use super::{join, origin};

    #[test]
    fn redirects_lead_to_addresses_only() {
        let join = |location| join("https://a.example:8/x/y?z", location).map_err(|failure| failure.message);
        assert_eq!(join("https://b.example/c?d=e").unwrap(), "https://b.example/c?d=e");
        assert_eq!(join("/c?d").unwrap(), "https://a.example:8/c?d");
        for location in ["", "c", "//b.example/c", "ftp://b.example/c", "https://"] {
            join(location).unwrap_err();
        }
    }

    #[test]
    fn origins_are_scheme_host_and_port() {
        assert_eq!(origin("http://a.example:80/b").unwrap(), "http://a.example:80");
        assert_ne!(origin("http://a.example/b"), origin("https://a.example/b"));
        for none in ["", "a.example", "file:///a", "https://"] {
            assert_eq!(origin(none), None, "{none}");
        }
    }
}

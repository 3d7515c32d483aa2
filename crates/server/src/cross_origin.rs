//! What other sites' pages may do in a browser that can reach this server: nothing, unless they are named.
//!
//! Two ways lead from a foreign page to a server on somebody's own machine. The page can send requests there, of which
//! the browser tells the origin. Or its domain's name can be pointed at 127.0.0.1 once the page is loaded (DNS
//! rebinding), so that the browser takes the server for the page's own; then only the Host header shows it.

use crate::error::ApiError;
use axum::http::header::InvalidHeaderValue;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, Uri, header};
use std::net::IpAddr;
use std::time::Duration;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

/// Stands for every origin.
const EVERY: &str = "*";

/// Which sites are let in.
#[derive(Clone, Debug, Default)]
pub struct CrossOrigin {
    /// Origins besides the server's own whose pages may ask and read the answers: `https://example.com`, or `*` for all.
    pub origins: Vec<HeaderValue>,
    /// Names that the Host header may have besides `localhost` and addresses; `None` for any name.
    pub hosts: Option<Vec<String>>,
}

impl CrossOrigin {
    /// These origins' pages, and these names.
    ///
    /// # Errors
    /// If an origin could not stand in a header.
    pub fn new(origins: &[String], hosts: Option<Vec<String>>) -> Result<Self, InvalidHeaderValue> {
        let origins = origins.iter().map(|origin| HeaderValue::from_str(origin)).collect::<Result<_, _>>()?;
        Ok(Self { origins, hosts })
    }

    /// Refuses what comes by way of a foreign page.
    pub(crate) fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        let host = uri.authority().map(Authority::as_str);
        // One that is no text is no name of ours.
        let host = host.or_else(|| headers.get(header::HOST).map(|value| value.to_str().unwrap_or_default()));
        if let (Some(hosts), Some(host)) = (&self.hosts, host)
            && !is_allowed(host, hosts)
        {
            let name = short(name_of(host));
            let message = format!(
                "The Host header names {name:?}, which this server does not go by. If it is right, start the server with \
                 --allowed-host {name}."
            );
            return Err(ApiError::forbidden("forbidden_host", message));
        }
        if self.is_foreign(method, host, headers) {
            let origin = headers.get(header::ORIGIN).and_then(|origin| origin.to_str().ok());
            let origin = origin.map_or("another site", short);
            let message = format!(
                "Pages of {origin} may not use this server. If they are to, start the server with --cors-origin {origin}."
            );
            return Err(ApiError::forbidden("forbidden_origin", message));
        }
        Ok(())
    }

    /// Whether a page of another site has sent a request that does something. What only reads is let through: the
    /// browser does not show the page what comes back.
    fn is_foreign(&self, method: &Method, host: Option<&str>, headers: &HeaderMap) -> bool {
        let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
        // Browsers let no page write this header.
        if [Method::GET, Method::HEAD, Method::OPTIONS].contains(method)
            || matches!(site, Some(b"same-origin" | b"none"))
        {
            return false;
        }
        let Some(origin) = headers.get(header::ORIGIN) else { return site.is_some() };
        let own = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, authority)| authority);
        !self.every() && !self.origins.contains(origin) && (own.is_none() || own != host)
    }

    fn every(&self) -> bool {
        self.origins.iter().any(|origin| origin == EVERY)
    }

    /// What lets browsers show the named origins' pages what comes back, if any are named.
    pub(crate) fn layer(&self) -> Option<CorsLayer> {
        if self.origins.is_empty() {
            return None;
        }
        let origins = if self.every() { AllowOrigin::any() } else { AllowOrigin::list(self.origins.iter().cloned()) };
        let layer = CorsLayer::new()
            .allow_origin(origins)
            .allow_methods([Method::GET, Method::POST, Method::DELETE])
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers([header::RETRY_AFTER])
            // A page of the internet that uses a server at home.
            .allow_private_network(true)
            .max_age(Duration::from_secs(600));
        Some(layer)
    }
}

/// Whether a Host header is one of ours. An address cannot be rebound: nobody had to look it up.
fn is_allowed(host: &str, hosts: &[String]) -> bool {
    let name = name_of(host);
    let is_address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
    let is_local = name.eq_ignore_ascii_case("localhost") || name.to_ascii_lowercase().ends_with(".localhost");
    is_address || is_local || hosts.iter().any(|host| host.eq_ignore_ascii_case(name))
}

/// What of a client's text goes into an error's message.
fn short(text: &str) -> &str {
    text.get(..255).unwrap_or(text)
}

/// The host without its port, nor the dot that a full name may end with.
fn name_of(host: &str) -> &str {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    name.strip_suffix('.').unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::CrossOrigin;
    use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header};

    fn rules(origins: &[&'static str], hosts: Option<&[&str]>) -> CrossOrigin {
        CrossOrigin {
            origins: origins.iter().map(|origin| origin.parse().expect("a value")).collect(),
            hosts: hosts.map(|hosts| hosts.iter().map(|&host| host.to_owned()).collect()),
        }
    }

    fn passes(rules: &CrossOrigin, method: Method, headers: &[(&str, &str)]) -> bool {
        let pairs = headers
            .iter()
            .map(|(name, value)| (name.parse::<HeaderName>().expect("a name"), value.parse().expect("a value")));
        rules.check(&method, &Uri::from_static("/v1/models"), &pairs.collect::<HeaderMap>()).is_ok()
    }

    #[test]
    fn a_rebound_name_is_refused() {
        let ours = rules(&[], Some(&["lily.home"]));
        let host = |host| passes(&ours, Method::GET, &[("host", host)]);
        for good in
            ["localhost", "LOCALHOST:8080", "api.localhost:1", "127.0.0.1:8080", "[::1]:8080", "[::1]", "192.168.0.7"]
        {
            assert!(host(good), "{good}");
        }
        for good in ["lily.home", "Lily.Home:8080", "lily.home."] {
            assert!(host(good), "{good}");
        }
        for bad in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "notlocalhost",
            "127.0.0.1.evil.example",
            "",
        ] {
            assert!(!host(bad), "{bad}");
        }
        let unreadable = HeaderValue::from_bytes(b"evil\xff").expect("a value");
        let unreadable = HeaderMap::from_iter([(header::HOST, unreadable)]);
        assert!(ours.check(&Method::GET, &Uri::from_static("/v1/models"), &unreadable).is_err());
        assert!(passes(&ours, Method::GET, &[]), "no browser leaves the header out");
        assert!(passes(&rules(&[], None), Method::GET, &[("host", "any.example")]));
        let absolute = Uri::from_static("http://evil.example/v1/models");
        let own = HeaderMap::from_iter([(axum::http::header::HOST, "localhost".parse().expect("a value"))]);
        assert!(ours.check(&Method::GET, &absolute, &own).is_err(), "the request line goes before the header");
    }

    #[test]
    fn a_foreign_page_cannot_have_anything_done() {
        let none = rules(&[], None);
        let named = rules(&["https://chat.example", "app://notes"], None);
        let post = |rules: &CrossOrigin, headers: &[(&str, &str)]| passes(rules, Method::POST, headers);
        let host = ("host", "localhost:8080");
        assert!(post(&none, &[host]), "no browser");
        assert!(post(&none, &[host, ("origin", "http://localhost:8080"), ("sec-fetch-site", "same-origin")]));
        assert!(post(&none, &[host, ("origin", "http://localhost:8080")]), "an old browser");
        assert!(post(&none, &[host, ("origin", "https://proxy.example"), ("sec-fetch-site", "same-origin")]));
        for foreign in ["https://chat.example", "http://localhost:3000", "app://notes", "null"] {
            assert!(!post(&none, &[host, ("origin", foreign)]), "{foreign}");
            assert!(!post(&none, &[host, ("origin", foreign), ("sec-fetch-site", "cross-site")]), "{foreign}");
            assert!(passes(&none, Method::GET, &[host, ("origin", foreign)]), "{foreign}");
            assert!(post(&rules(&["*"], None), &[host, ("origin", foreign)]), "{foreign}");
        }
        assert!(!post(&none, &[host, ("sec-fetch-site", "cross-site")]));
        assert!(!post(&none, &[host, ("origin", "http://localhost:3000"), ("sec-fetch-site", "same-site")]));
        for origin in ["https://chat.example", "app://notes"] {
            assert!(post(&named, &[host, ("origin", origin), ("sec-fetch-site", "cross-site")]), "{origin}");
        }
        assert!(!post(&named, &[host, ("origin", "https://chat.example.evil")]));
    }

    #[test]
    fn browsers_are_told_only_of_named_origins() {
        assert!(rules(&[], None).layer().is_none());
        assert!(rules(&["https://chat.example"], None).layer().is_some());
        assert!(rules(&["*"], None).layer().is_some());
    }
}

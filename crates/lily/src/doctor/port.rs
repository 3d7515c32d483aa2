//! Whether the address can be had, and if not, who has it: a `lily serve` that already runs is no fault.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use ureq::Agent;
use ureq::http::StatusCode;
use ureq::http::header::AUTHORIZATION;

use crate::cli::ServeArgs;
use crate::doctor::report::Finding;
use crate::serve::{CannotListen, bytes, listen};

const PATIENCE: Duration = Duration::from_secs(5);

/// A server that has the address.
pub(super) struct Running {
    /// Its number, if it is told.
    pub(super) process: Option<u64>,
    /// Memory that it has and that would be free without it; mapped weights are not among that.
    pub(super) bytes: u64,
}

/// Tries the address; gives the server of ours that has it.
pub(super) fn look(serve: &ServeArgs) -> Result<(Finding, Option<Running>)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match runtime.block_on(listen(&serve.host, serve.port)) {
        Ok(listener) => {
            let address = listener.local_addr().context("the address that was bound cannot be told")?;
            let port = if serve.port == 0 { "any free port".into() } else { format!("{address} is free") };
            let says = if serve.port == 0 { format!("{}, {port}", address.ip()) } else { port };
            Ok((Finding::good(says).with("address", json!(address)), None))
        }
        Err(error) => {
            let (finding, running) = taken(&error).and_then(|address| ask(address, serve)).ok_or(error)?;
            Ok((finding.note("another beside it would need another --port"), Some(running)))
        }
    }
}

/// The address, if somebody has it. Of no other is it sure that it is this machine's own, and a key may be sent to it.
fn taken(error: &anyhow::Error) -> Option<SocketAddr> {
    let CannotListen { address, error } = error.downcast_ref()?;
    (error.kind() == ErrorKind::AddrInUse).then_some(*address)
}

/// What has the address, if it is a server of ours.
fn ask(mut address: SocketAddr, serve: &ServeArgs) -> Option<(Finding, Running)> {
    if address.ip().is_unspecified() {
        address.set_ip(if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
    }
    let url = format!("http://{address}");
    let agent: Agent = Agent::config_builder()
        .http_status_as_error(false)
        .proxy(None)
        .max_redirects(0)
        .timeout_global(Some(PATIENCE))
        .build()
        .into();
    let get = |path: &str, key: Option<&str>| {
        let request = agent.get(format!("{url}{path}"));
        let request = match key {
            Some(key) => request.header(AUTHORIZATION, format!("Bearer {key}")),
            None => request,
        };
        let mut answer = request.call().ok()?;
        let body = answer.body_mut().read_to_vec().ok()?;
        Some((answer.status(), serde_json::from_slice::<Value>(&body).unwrap_or_default()))
    };
    // This one is open to all.
    let (_, health) = get("/health", None)?;
    let backend = health["engine"]["backend"].as_str()?;
    let (status, running) = get("/status", serve.access.first_key().as_deref())?;
    if status != StatusCode::OK {
        let says = format!("a `lily serve` on {backend} runs at {url}, which wants another API key to tell more");
        return Some((Finding::good(says).with("url", json!(url)), Running { process: None, bytes: 0 }));
    }
    let process = running["process"].as_u64();
    let memory = &running["memory"];
    let resident = memory["resident_bytes"].as_u64().unwrap_or(0);
    let held = resident.saturating_sub(memory["planned_bytes"]["weights"].as_u64().unwrap_or(0));
    let says = format!(
        "`lily serve`{} runs at {url}: {} on {}, {} resident",
        process.map_or_else(String::new, |process| format!(", process {process},")),
        running["model"]["id"].as_str().unwrap_or("a model"),
        running["device"].as_str().unwrap_or(backend),
        bytes(resident)
    );
    let finding = Finding::good(says).with("url", json!(url)).with("process", json!(process));
    Some((finding.with("resident_bytes", json!(resident)), Running { process, bytes: held }))
}

#[cfg(test)]
mod tests {
    use super::{CannotListen, ErrorKind, SocketAddr, taken};

    #[test]
    fn who_has_an_address_of_another_machine_is_not_asked() {
        let address = SocketAddr::from(([10, 0, 0, 5], 8080));
        let error = |kind: ErrorKind| CannotListen { address, error: kind.into() }.into();
        assert_eq!(taken(&error(ErrorKind::AddrInUse)), Some(address));
        for kind in [ErrorKind::AddrNotAvailable, ErrorKind::PermissionDenied, ErrorKind::Other] {
            assert_eq!(taken(&error(kind)), None, "{kind:?}");
        }
        assert_eq!(taken(&anyhow::anyhow!("no such address or name")), None);
    }
}

//! `lily serve`: the HTTP server, until it is told to stop.

use std::fmt;
use std::io::{self, ErrorKind, IsTerminal, stderr};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lily_checkpoint::Source;
use lily_engine::Engine;
use lily_server::{App, Config, Defaults};
use tokio::net::{TcpListener, lookup_host};
use tracing_subscriber::EnvFilter;

use crate::cache::{self, CacheSize};
use crate::cli::ServeArgs;
use crate::load::{self, Model};
use crate::preset::Preset;
use crate::terminal::tell;

/// Few clients get by with a context of fewer tokens.
const SHORT_CONTEXT: usize = 1024;

/// An engine that has nothing to write ends within this.
const AT_ONCE: Duration = Duration::from_millis(300);
/// How long the disk may take for what waits to be written when the server stops: up to four snapshots.
const WRITING: Duration = Duration::from_secs(60);

/// Log what happens, unless RUST_LOG says otherwise.
const LOG: &str = "info";

/// Serves until SIGINT or SIGTERM, then lets running replies end.
pub(crate) fn serve(args: &ServeArgs) -> Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOG));
    let colours = stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr)
        // A line that cannot be written is lost; the subscriber would complain with `eprintln!`, which panics then.
        .log_internal_errors(false)
        .with_ansi(colours)
        .with_target(false)
        .init();

    let started = Instant::now();
    let runtime = tokio::runtime::Runtime::new().context("the HTTP server's threads could not be started")?;
    // The model takes its time, and a port that cannot be had needs none.
    drop(runtime.block_on(listen(&args.host, args.port))?);
    let keys = args.access.keys()?;
    let cache = args.cache.map_or(CacheSize::Share, CacheSize::Bytes);
    let model = Model::open_with_cache(&args.model, args.parallel, cache)?;
    // On a terminal it has been said. A log has to have it too: its readers would wonder about the answers.
    if model.source == Source::Embedded && !colours {
        load::tell_embedded();
    }
    let disk = args.cache_dir.clone().map(|directory| (directory, args.cache_disk));
    if let Some((directory, _)) = &disk {
        cache::has_memory(&model.plan)?;
        cache::make_directory(directory)?;
    }
    let on_disk = disk.is_some();
    let transit = if on_disk { model.transit()? } else { None };
    let engine = model.start_with(args.cache_interval, disk)?;
    let mut app = App {
        engine,
        tokenizer: Arc::clone(&model.tokenizer),
        template: Arc::clone(&model.template),
        stop_tokens: model.checkpoint.generation.eos_token_ids.clone(),
        config: Config {
            longest_context: Some(model.checkpoint.config.max_position_embeddings),
            body_limit: (args.max_body as usize) << 20,
            request_timeout: args.access.timeout(),
            keys,
            plan: Some(model.plan),
            defaults: args.preset.map_or_else(|| checkpoint_defaults(&model), Preset::defaults),
            ..Config::new(model.checkpoint.name())
        },
    };
    runtime.block_on(async {
        let listener = listen(&args.host, args.port).await?;
        let address = listener.local_addr()?;
        app.config.cross_origin = args.access.cross_origin(&args.host, address.ip())?;
        // Whoever reads that it listens may send a signal at once.
        let shutdown = shutdown_signal(app.config.shutdown_grace)?;
        let context = model.plan.context;
        let requests = match model.plan.parallel {
            1 => format!("1 request at once of up to {context} tokens"),
            several => format!("up to {several} requests at once, of up to {context} tokens each"),
        };
        tell(format_args!(
            "{} on {}, {requests}, {} planned, {} of them for a prefix cache, ready after {:.2} s",
            model.checkpoint.name(),
            app.engine.description().name,
            bytes(model.plan.total()),
            bytes(model.plan.cache),
            started.elapsed().as_secs_f64()
        ));
        if let Some(transit) = transit {
            let transit = bytes(transit);
            tell(format_args!(
                "of the prefix cache at most {transit} are in this machine's memory, to the disk and back"
            ));
        }
        if context < SHORT_CONTEXT {
            tell(format_args!(
                "warning: {context} tokens, a prompt and its reply together, are too few for most clients"
            ));
        }
        if let Some(path) = &args.access.config {
            tell(format_args!("settings from {}", path.display()));
        }
        match app.config.keys.len() {
            0 if address.ip().is_loopback() => tell("no API key is asked for"),
            0 => tell(format_args!(
                "warning: {address} can be reached from other machines, and no --api-key is asked for"
            )),
            1 => tell("requests must bear the API key"),
            several => tell(format_args!("requests must bear one of {several} API keys")),
        }
        tell(format_args!("listening on http://{address}"));
        let engine = app.engine.clone();
        lily_server::serve(listener, app, shutdown).await;
        if on_disk {
            // On a thread of its own: signals are still heard.
            tokio::task::spawn_blocking(move || write_the_rest(&engine)).await?;
        }
        Ok(())
    })
}

/// Waits until the engine, which is shut down, has written what waits for the disk.
fn write_the_rest(engine: &Engine) {
    if engine.join_timeout(AT_ONCE) {
        return;
    }
    let waiting = engine.stats().cache.disk_waiting;
    if waiting > 0 {
        let (snapshots, limit) = (if waiting == 1 { "snapshot" } else { "snapshots" }, WRITING.as_secs());
        tell(format_args!("writing {waiting} {snapshots} of the prefix cache to disk, for at most {limit} s"));
    }
    if !engine.join_timeout(WRITING) {
        tell("not all of the prefix cache was written; what is not there is read anew");
    }
}

/// What the checkpoint's makers say of it.
fn checkpoint_defaults(model: &Model) -> Defaults {
    Defaults {
        sampling: load::sampling(&model.checkpoint.generation),
        repetition_penalty: load::penalties(&model.checkpoint.generation).repetition,
        ..Defaults::default()
    }
}

/// Bytes for people.
pub(crate) fn bytes(count: u64) -> String {
    let mebibytes = count as f64 / f64::from(1 << 20);
    if mebibytes < 1024.0 { format!("{mebibytes:.0} MiB") } else { format!("{:.1} GiB", mebibytes / 1024.0) }
}

/// Listens on the address that `host` is or means.
pub(crate) async fn listen(host: &str, port: u16) -> Result<TcpListener> {
    // As URLs have them.
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let found = lookup_host((host, port)).await.with_context(|| format!("--host {host}: no such address or name"))?;
    // Of several that a name means: clients that are told 127.0.0.1 instead of the name must find it too.
    let address = found.min_by_key(SocketAddr::is_ipv6).with_context(|| format!("--host {host}: it has no address"))?;
    TcpListener::bind(address).await.map_err(|error| CannotListen { address, error }.into())
}

/// Why nobody can listen on an address.
#[derive(Debug)]
pub(crate) struct CannotListen {
    pub(crate) address: SocketAddr,
    /// What the system said.
    pub(crate) error: io::Error,
}

impl fmt::Display for CannotListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, error } = self;
        let advice = match error.kind() {
            ErrorKind::AddrInUse => "is another server there? --port takes another, 0 any free one",
            ErrorKind::AddrNotAvailable => {
                "this machine has no such address; --host takes one of its own, or 0.0.0.0 for all"
            }
            ErrorKind::PermissionDenied => "the system does not let everybody have that port; --port takes another",
            _ => return write!(f, "cannot listen on {address}: {error}"),
        };
        write!(f, "cannot listen on {address}: {advice}")
    }
}

impl std::error::Error for CannotListen {}

/// Completes at the first SIGINT or SIGTERM; a second one ends the process at once.
fn shutdown_signal(grace: Duration) -> Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        let grace = grace.as_secs();
        tell(format_args!("stopping: running replies have {grace} s to end; once more to stop at once"));
        tokio::spawn(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            tell("stopped at once");
            std::process::exit(1);
        });
    })
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn small_sizes_are_not_rounded_away() {
        assert_eq!(bytes(40 << 20), "40 MiB");
        assert_eq!(bytes(21 << 30), "21.0 GiB");
    }
}

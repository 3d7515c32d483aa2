//! `lily serve`: the HTTP server, until it is told to stop.

use std::io::{IsTerminal, stderr};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use lily_server::{App, Config, Defaults};
use tokio::net::TcpListener;
use tracing_subscriber::EnvFilter;

use crate::cli::ServeArgs;
use crate::load::{self, Model};

/// Log what happens, unless RUST_LOG says otherwise.
const LOG: &str = "info";

/// Serves until SIGINT or SIGTERM, then lets running replies end.
pub(crate) fn serve(args: &ServeArgs) -> Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOG));
    let colours = stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr).with_ansi(colours).with_target(false).init();

    let started = Instant::now();
    let model = Model::open(&args.model, args.parallel)?;
    let engine = model.start()?;
    let app = App {
        engine,
        tokenizer: Arc::clone(&model.tokenizer),
        template: Arc::clone(&model.template),
        stop_tokens: model.checkpoint.generation.eos_token_ids.clone(),
        config: Config {
            body_limit: (args.max_body as usize) << 20,
            defaults: Defaults {
                sampling: load::sampling(&model.checkpoint.generation),
                repetition_penalty: model.checkpoint.generation.repetition_penalty.unwrap_or(1.0),
                ..Defaults::default()
            },
            ..Config::new(model.checkpoint.name())
        },
    };
    let runtime = tokio::runtime::Runtime::new().context("the HTTP server's threads could not be started")?;
    runtime.block_on(async {
        let address = SocketAddr::new(args.host, args.port);
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!("cannot listen on {address}: is another server there? --port takes another, 0 any free one")
        })?;
        let address = listener.local_addr()?;
        eprintln!(
            "{} on {}, {} requests at once of {} tokens each, {:.1} GiB planned, ready after {:.2} s",
            model.checkpoint.name(),
            app.engine.description().name,
            model.plan.parallel,
            model.plan.context,
            model.plan.total() as f64 / f64::from(1 << 30),
            started.elapsed().as_secs_f64()
        );
        if !address.ip().is_loopback() {
            eprintln!("warning: {address} can be reached from other machines, and there is no authentication");
        }
        eprintln!("listening on http://{address}");
        let shutdown = shutdown_signal()?;
        lily_server::serve(listener, app, shutdown).await;
        Ok(())
    })
}

/// Completes at the first SIGINT or SIGTERM; a second one ends the process at once.
fn shutdown_signal() -> Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        eprintln!("stopping: running replies may end; once more to stop at once");
        tokio::spawn(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            std::process::exit(1);
        });
    })
}

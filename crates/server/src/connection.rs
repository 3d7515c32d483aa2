//! Connections: accepting them, bounding the slow ones, ending them in an orderly way.

use crate::App;
use crate::auth::Peer;
use crate::router::router;
use crate::shared::Shared;
use crate::status::warm_up;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::io::{Error, ErrorKind};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tower_http::add_extension::AddExtension;

/// Connections at once; more wait in the listener's backlog.
const MAX_CONNECTIONS: usize = 1024;
/// After an error of the listener, most often for want of file descriptors, which others will free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// What the replies that the shutdown broke off have to say so.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Serves `app` on `listener` until `shutdown` completes, then ends within `shutdown_grace` and two seconds: it takes no
/// more connections and requests, lets replies under way end, and breaks off those that last longer, with an error.
///
/// A client that fails ends its own connection and nothing else.
pub async fn serve(listener: TcpListener, app: App, shutdown: impl Future<Output = ()>) {
    let shared = Arc::new(Shared::new(app));
    let router = router(Arc::clone(&shared));
    tokio::spawn(warm_up(Arc::clone(&shared)));

    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(shared.config.timeouts.header);
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let address = peer.ip();
                let here = stream.local_addr().map_or(address, |here| here.ip());
                let service = AddExtension::new(router.clone(), Peer { address, here });
                let service = TowerToHyperService::new(service);
                let connection = http.serve_connection(TokioIo::new(at_once(stream)), service);
                let connection = graceful.watch(connection);
                connections.spawn(async move {
                    if let Err(error) = connection.await {
                        tracing::debug!(%error, "a connection ended early");
                    }
                });
            }
            Err(error) if is_the_clients(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "no connection could be accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);

    let stats = shared.engine.stats();
    tracing::info!(running = stats.running, queued = stats.queued, "shutting down");
    shared.engine.shutdown();
    if timeout(shared.config.shutdown_grace, graceful.shutdown()).await.is_err() {
        tracing::warn!("replies under way are broken off");
        shared.engine.shutdown_now();
        let all = async { while connections.join_next().await.is_some() {} };
        // Whoever does not even read that is cut off, as the set is dropped.
        let _cut_off = timeout(LAST_WORDS, all).await;
    }
}

/// Every event of a stream is worth a packet.
fn at_once(stream: TcpStream) -> TcpStream {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY");
    }
    stream
}

/// Errors of the connection that was to be accepted, not of the listener.
fn is_the_clients(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset)
}

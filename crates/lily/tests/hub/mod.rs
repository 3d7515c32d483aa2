//! A hub on this machine: a repository's listing and files as the real one gives them, large files by way of a signed
//! address on another host, and whatever misbehaviour a test asks for.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use serde_json::{Value, json};
use tokio::net::TcpListener;

pub(crate) const REPOSITORY: &str = "mlx-community/Qwen3.6-35B-A3B-4bit";
pub(crate) const REVISION: &str = "38740b847e4cb78f352aba30aa41c76e08e6eb46";
/// As `lily pull` cuts files.
pub(crate) const PART: usize = 8 << 20;

/// A file of the repository.
#[derive(Clone)]
pub(crate) struct Served {
    pub(crate) name: &'static str,
    pub(crate) bytes: Bytes,
    pub(crate) large: bool,
}

impl Served {
    /// Its name in the cache.
    pub(crate) fn digest(&self) -> String {
        let mut context = Context::new(if self.large { &SHA256 } else { &SHA1_FOR_LEGACY_USE_ONLY });
        if !self.large {
            context.update(format!("blob {}\0", self.bytes.len()).as_bytes());
        }
        context.update(&self.bytes);
        context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn listed(&self) -> Value {
        let mut listed = json!({"rfilename": self.name, "size": self.bytes.len(), "blobId": "0".repeat(40)});
        if self.large {
            listed["lfs"] = json!({"sha256": self.digest(), "size": self.bytes.len(), "pointerSize": 135});
        } else {
            listed["blobId"] = self.digest().into();
        }
        listed
    }
}

/// A request as the hub saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// The listing, the way to a file, or a large file's bytes.
    pub(crate) kind: Kind,
    /// The file's name; empty for the listing.
    pub(crate) name: String,
    /// First byte and the one after the last, if a range was asked for.
    pub(crate) range: Option<(usize, usize)>,
    /// How often the same was asked before.
    pub(crate) before: usize,
    pub(crate) token: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Listing,
    Resolve,
    Storage,
}

/// What the hub does about a request.
#[derive(Clone, Debug)]
pub(crate) enum Reaction {
    Proper,
    /// A status with `Retry-After: 0`.
    Status(u16),
    /// So many bytes, then the connection breaks.
    Drop(usize),
    /// Other bytes than were asked for, and says so.
    WrongRange,
    /// The whole file, whatever was asked for.
    Whole,
    /// A byte is another.
    Corrupt,
    /// Never anything.
    Silence,
    /// A body of its own.
    Says(Value),
}

type Plan = Box<dyn FnMut(&Asked) -> Reaction + Send>;

/// A running hub.
pub(crate) struct Hub {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    _runtime: tokio::runtime::Runtime,
}

struct Shared {
    files: Vec<Served>,
    plan: Mutex<Plan>,
    asked: Mutex<Vec<Asked>>,
    /// How often each was asked.
    counts: Mutex<HashMap<String, usize>>,
    port: u16,
}

impl Hub {
    pub(crate) fn start(files: Vec<Served>, plan: impl FnMut(&Asked) -> Reaction + Send + 'static) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            files,
            plan: Mutex::new(Box::new(plan)),
            asked: Mutex::default(),
            counts: Mutex::default(),
            port: address.port(),
        });
        let router = Router::new().fallback(answer).with_state(Arc::clone(&shared));
        runtime.spawn(async move { axum::serve(listener, router).await });
        Self { address, shared, _runtime: runtime }
    }

    /// Behaves from now on.
    pub(crate) fn behave(&self) {
        *self.shared.plan.lock().expect("no panic") = Box::new(|_| Reaction::Proper);
    }

    /// What was asked for until now, which is forgotten.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.shared.asked.lock().expect("no panic"))
    }
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let headers = request.headers();
    let path = request.uri().path().to_owned();
    let resolve = format!("/{REPOSITORY}/resolve/{REVISION}/");
    let (kind, name) = if path == format!("/api/models/{REPOSITORY}/revision/{REVISION}") {
        assert_eq!(request.uri().query(), Some("blobs=true"));
        (Kind::Listing, "")
    } else if let Some(name) = path.strip_prefix(&resolve) {
        (Kind::Resolve, name)
    } else if let Some(name) = path.strip_prefix("/storage/") {
        (Kind::Storage, name)
    } else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let name = name.replace("%20", " ");
    let asked = shared.note(kind, &name, headers);
    let reaction = shared.react(&asked);
    match reaction {
        Reaction::Status(status) => {
            let status = StatusCode::from_u16(status).expect("a status");
            return (status, [(header::RETRY_AFTER, "0")]).into_response();
        }
        Reaction::Silence => return std::future::pending::<Response>().await,
        Reaction::Says(body) => return body.to_string().into_response(),
        _ => {}
    }
    if kind == Kind::Listing {
        let siblings: Vec<Value> = shared.files.iter().map(Served::listed).collect();
        return json!({"id": REPOSITORY, "sha": REVISION, "siblings": siblings}).to_string().into_response();
    }
    let file = shared.files.iter().find(|file| file.name == name).expect("only what is listed is asked for");
    if kind == Kind::Resolve && file.large {
        // By another name, as the real one's storage is another host.
        let location = format!("http://localhost:{}/storage/{name}?signature=secret", shared.port);
        return (StatusCode::FOUND, [(header::LOCATION, location)]).into_response();
    }
    give(&file.bytes, asked.range, &reaction)
}

impl Shared {
    fn react(&self, asked: &Asked) -> Reaction {
        let mut plan = self.plan.lock().expect("no panic");
        plan(asked)
    }

    fn note(&self, kind: Kind, name: &str, headers: &HeaderMap) -> Asked {
        let text = |name| headers.get(name).map(|value| value.to_str().expect("text").to_owned());
        let range = text(header::RANGE).map(|range| {
            let (first, last) = range.strip_prefix("bytes=").and_then(|range| range.split_once('-')).expect("a range");
            (first.parse().expect("a number"), last.parse::<usize>().expect("a number") + 1)
        });
        let token = text(header::AUTHORIZATION);
        let mut counts = self.counts.lock().expect("no panic");
        let count = counts.entry(format!("{kind:?} {name} {range:?}")).or_default();
        let asked = Asked { kind, name: name.to_owned(), range, before: *count, token };
        *count += 1;
        self.asked.lock().expect("no panic").push(asked.clone());
        asked
    }
}

fn give(bytes: &Bytes, range: Option<(usize, usize)>, reaction: &Reaction) -> Response {
    let range = range.filter(|_| !matches!(reaction, Reaction::Whole));
    let (first, end) = range.unwrap_or((0, bytes.len()));
    let mut given = bytes.slice(first..end);
    if matches!(reaction, Reaction::Corrupt) {
        let mut changed = given.to_vec();
        changed[0] ^= 1;
        given = changed.into();
    }
    let shift = usize::from(matches!(reaction, Reaction::WrongRange));
    let status = if range.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    let mut response = status.into_response();
    let headers = response.headers_mut();
    let mut set = |name, value: String| headers.insert(name, value.parse().expect("a value"));
    set(header::CONTENT_LENGTH, given.len().to_string());
    if range.is_some() {
        set(header::CONTENT_RANGE, format!("bytes {}-{}/{}", first + shift, end - 1 + shift, bytes.len()));
    }
    *response.body_mut() = match reaction {
        Reaction::Drop(most) => {
            let part = given.slice(..given.len().min(*most));
            Body::from_stream(stream::iter([Ok(part), Err(io::Error::other("as the test wants it"))]))
        }
        _ => Body::from(given),
    };
    response
}

//! Servers to test: the embedded model, shared by all tests that only ask it things, and scripted ones.

use crate::scripted::{Lines, Scripted};
use lily_chat::{ChatTemplate, Tokenizer};
use lily_checkpoint::Checkpoint;
use lily_cpu::CpuBackend;
use lily_engine::{CacheOptions, Engine, Options};
use lily_server::{App, Config};
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// Tokens that the embedded model's server here takes.
pub(crate) const CONTEXT: usize = 2048;
pub(crate) const NAME: &str = "lily/tiny";

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) engine: Engine,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(engine: Engine, template: &str, change: impl FnOnce(&mut Config)) -> Self {
        let checkpoint = checkpoint();
        let files = &checkpoint.files;
        let tokenizer = Tokenizer::from_files(&files.tokenizer, files.tokenizer_config.as_deref());
        let template = ChatTemplate::from_source(template);
        let mut config = Config::new(NAME);
        change(&mut config);
        let app = App {
            engine: engine.clone(),
            tokenizer: Arc::new(tokenizer.expect("a tokenizer")),
            template: Arc::new(template.expect("a template")),
            stop_tokens: checkpoint.generation.eos_token_ids.clone(),
            config,
        };
        let (tell, address) = std::sync::mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
                tell.send(listener.local_addr().expect("an address")).expect("the test waits");
                let shutdown = async { stopped.await.unwrap_or(()) };
                lily_server::serve(listener, app, shutdown).await;
            });
        });
        let address = address.recv().expect("the server starts");
        Self { address, engine, stop: Some(stop), thread: Some(thread) }
    }

    /// Begins the shutdown.
    pub(crate) fn stop(&mut self) {
        drop(self.stop.take());
    }

    /// Waits for the end of the shutdown.
    pub(crate) fn join(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the server ends in peace");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end();
        }
    }
}

/// The embedded checkpoint.
pub(crate) fn checkpoint() -> &'static Arc<Checkpoint> {
    static CHECKPOINT: OnceLock<Arc<Checkpoint>> = OnceLock::new();
    CHECKPOINT.get_or_init(|| Arc::new(Checkpoint::embedded().expect("the embedded checkpoint")))
}

/// The embedded model, served once for all tests that leave it as it was.
pub(crate) fn model() -> SocketAddr {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| served(options_for_engine())).address
}

/// The embedded model with a prefix cache.
pub(crate) fn model_with_cache() -> Server {
    let boundaries = tokenizer().id("<|im_start|>").into_iter().collect();
    let cache = CacheOptions { boundaries, ..CacheOptions::new(256 << 20) };
    served(Options { cache, ..options_for_engine() })
}

fn served(options: Options) -> Server {
    let own = lily_cpu::Options { threads: 2, max_context: CONTEXT, simd: None };
    let backend = CpuBackend::new(Arc::clone(checkpoint()), own).expect("the backend");
    Server::start(Engine::start(backend, options), template(), |config| {
        config.body_limit = 16 << 20;
        config.defaults.sampling = lily_backend::Sampling::GREEDY;
    })
}

/// The embedded model's tokenizer.
pub(crate) fn tokenizer() -> &'static Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    let files = &checkpoint().files;
    let load = || Tokenizer::from_files(&files.tokenizer, files.tokenizer_config.as_deref()).expect("a tokenizer");
    TOKENIZER.get_or_init(load)
}

/// A server that says what a test tells it to.
pub(crate) struct Speaker {
    pub(crate) server: Server,
    pub(crate) lines: Lines,
}

impl Speaker {
    /// With a template of the models, the official one or the embedded, and room for `context` tokens.
    pub(crate) fn new(official: bool, context: usize) -> Self {
        Self::with(official, context, |_| {})
    }

    /// The same with another configuration.
    pub(crate) fn with(official: bool, context: usize, change: impl FnOnce(&mut Config)) -> Self {
        let script = Scripted::new(context);
        let lines = script.lines();
        let engine = Engine::start(script, options_for_engine());
        let own = include_str!("../../../../models/qwen3.6-35b-a3b/chat_template.jinja");
        let server = Server::start(engine, if official { own } else { template() }, change);
        // Its first reply is to nobody.
        wait_until("ready", || crate::client::get(server.address, "/ready").status == 200);
        Self { server, lines }
    }

    /// Asks for a reply that will be `text`.
    pub(crate) fn reply(&self, text: &str, request: &Value) -> Value {
        self.lines.say(tokenizer().encode(text).expect("tokens"));
        crate::client::chat(self.server.address, request).ok()
    }

    /// The text of the prompt that came last.
    pub(crate) fn prompt(&self) -> String {
        let tokens = self.lines.prompts().pop().expect("a prompt");
        tokens.into_iter().map(|token| String::from_utf8_lossy(tokenizer().bytes(token)).into_owned()).collect()
    }
}

/// A server whose backend follows a script.
pub(crate) fn scripted(script: Scripted, change: impl FnOnce(&mut Config)) -> Server {
    Server::start(engine(script), template(), change)
}

/// A scripted server with another chat template.
pub(crate) fn with_template(script: Scripted, template: &str) -> Server {
    Server::start(engine(script), template, |_| {})
}

fn engine(script: Scripted) -> Engine {
    Engine::start(script, Options { parallel: 1, queue: 1, ..options_for_engine() })
}

fn template() -> &'static str {
    checkpoint().files.chat_template.as_deref().expect("a template")
}

fn options_for_engine() -> Options {
    Options { queue: 100, ..Options::new(tokenizer().vocabulary()) }
}

/// Waits until `holds`; a server that never gets there fails the test.
pub(crate) fn wait_until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..3000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("never came: {what}");
}

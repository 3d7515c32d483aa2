//! What the log says of requests, and what it never says.

use crate::client::{Connection, chat, get, post, request};
use crate::scripted::Scripted;
use crate::serving::{Server, scripted, wait_until, with_template};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// What every server of this process has logged.
#[derive(Clone, Copy)]
struct Log;

static WRITTEN: Mutex<Vec<u8>> = Mutex::new(Vec::new());

fn written() -> MutexGuard<'static, Vec<u8>> {
    WRITTEN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        written().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn kept() -> Self {
        static STARTED: OnceLock<()> = OnceLock::new();
        STARTED.get_or_init(|| {
            let log = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_ansi(false);
            log.with_writer(|| Self).init();
        });
        Self
    }

    fn text(self) -> String {
        String::from_utf8_lossy(&written()).into_owned()
    }

    /// The first line that holds all `parts`, which other tests' requests must not.
    fn line(self, parts: &[&str]) -> String {
        let find = || self.text().lines().find(|line| parts.iter().all(|part| line.contains(part))).map(str::to_owned);
        wait_until(&format!("{parts:?}"), || find().is_some());
        find().expect("it came")
    }
}

/// A streamed request whose lines are told by the number of its prompt's tokens.
fn stream(prompt_tokens: usize, max_tokens: usize) -> Value {
    json!({"prompt": vec![7; prompt_tokens], "max_tokens": max_tokens, "stream": true})
}

/// From here on nothing runs but what a test begins.
fn ready(server: &Server) {
    wait_until("readiness", || get(server.address, "/ready").status == 200);
    wait_until("nothing runs", || server.engine.stats().running == 0);
}

fn begin(address: std::net::SocketAddr, body: &Value) -> Connection {
    let mut connection = Connection::open(address);
    connection.send("POST", "/v1/completions", &[], body.to_string().as_bytes());
    connection
}

#[test]
fn a_line_says_how_the_reply_ended() {
    let log = Log::kept();
    let server = scripted(Scripted::new(1_000_000), |_| {});
    assert_eq!(post(server.address, "/v1/completions", &stream(2101, 5)).status, 200);
    let line = log.line(&["prompt_tokens=2101", "completion_tokens=5", "end=\"length\""]);
    assert!(line.contains("INFO") && line.contains("status=200") && !line.contains("error="), "{line}");
    for field in ["cached_tokens=0", "queue_ms=", "first_token_ms=", "tokens_per_second=", " ms="] {
        assert!(line.contains(field), "{field}: {line}");
    }

    let mut stopped = stream(2102, 900_000);
    stopped["stop"] = json!(["e"]);
    assert_eq!(post(server.address, "/v1/completions", &stopped).status, 200);
    log.line(&["prompt_tokens=2102", "end=\"stop\""]);

    let server = scripted(Scripted::new(1_000_000).taking(Duration::from_millis(10)), |_| {});
    ready(&server);
    for (count, status, streamed) in [(2103, "200", true), (2104, "499", false)] {
        let mut body = stream(count, 900_000);
        body["stream"] = json!(streamed);
        let mut connection = begin(server.address, &body);
        if streamed {
            connection.head();
        }
        wait_until("it runs", || server.engine.stats().running == 1);
        drop(connection);
        log.line(&[&format!("prompt_tokens={count}"), "end=\"cancelled\"", &format!("status={status}")]);
        wait_until("it has ended", || server.engine.stats().running == 0);
    }

    let server = scripted(Scripted::new(1_000_000).failing_at(30), |_| {});
    assert_eq!(post(server.address, "/v1/completions", &stream(2105, 900_000)).status, 200);
    log.line(&["prompt_tokens=2105", "end=\"failed\""]);

    let mut server = scripted(Scripted::new(1_000_000).taking(Duration::from_millis(10)), |config| {
        config.shutdown_grace = Duration::from_millis(100);
    });
    let mut connection = begin(server.address, &stream(2106, 900_000));
    log.line(&["started", "prompt_tokens=2106"]);
    server.stop();
    connection.answer();
    server.join();
    log.line(&["prompt_tokens=2106", "end=\"shutdown\""]);
}

#[test]
fn a_long_prompt_is_told_at_once() {
    let log = Log::kept();
    let server = scripted(Scripted::new(1_000_000).taking(Duration::from_millis(10)), |_| {});
    let mut connection = begin(server.address, &stream(2201, 900_000));
    connection.head();
    log.line(&["started", "prompt_tokens=2201"]);
    assert!(!log.text().contains("prompt_tokens=2201 completion_tokens"));
    drop(connection);
    log.line(&["prompt_tokens=2201", "end=\"cancelled\""]);
    assert_eq!(post(server.address, "/v1/completions", &stream(1999, 1)).status, 200);
    log.line(&["prompt_tokens=1999", "end="]);
    assert!(!log.text().lines().any(|line| line.contains("started") && line.contains("=1999")));
}

#[test]
fn a_refusal_gives_its_reason_and_no_word_of_the_prompt() {
    let log = Log::kept();
    let template = "{{ raise_exception('No: ' ~ messages[0].content) }}";
    let server = with_template(Scripted::new(1000), template);
    let body = json!({"messages": [{"role": "user", "content": "open sesame"}], "temperature": 2.25});
    chat(server.address, &body).error(400);
    let line = log.line(&["'temperature' must be between 0 and 2, not 2.25."]);
    assert!(line.contains("INFO") && line.contains("status=400") && line.contains("param=\"temperature\""), "{line}");
    assert!(!line.contains("end="), "{line}");

    let body = json!({"messages": [{"role": "user", "content": "open sesame"}]});
    let (_, _, message) = chat(server.address, &body).error(400);
    assert_eq!(message, "No: open sesame");
    log.line(&["/v1/chat/completions", "status=400", "param=\"messages\" ms="]);

    // Words in the wrong place.
    for (message, param) in [
        (json!({"role": "open sesame", "content": "user"}), "messages[0].role"),
        (json!({"role": "user", "content": [{"type": "open sesame"}]}), "messages[0].content[0].type"),
    ] {
        let (_, _, message) = chat(server.address, &json!({"messages": [message]})).error(400);
        assert!(message.contains("open sesame"), "{message}");
        log.line(&["status=400", &format!("param=\"{param}\"")]);
    }
    let body = json!({"input": "Hi", "metadata": {"open sesame": 1}});
    let (param, _, message) = post(server.address, "/v1/responses", &body).error(400);
    assert!(param == "metadata" && message.contains("open sesame"), "{message}");
    let body = json!({"prompt": "Hi", "logit_bias": {"open sesame": 1}});
    assert_eq!(post(server.address, "/v1/completions", &body).error(400).0, "logit_bias");
    log.line(&["/v1/completions", "status=400", "param=\"logit_bias\""]);
    assert!(!log.text().contains("sesame"));
}

/// Who knows a response's id can read its conversation.
#[test]
fn no_id_of_a_response_is_logged() {
    let log = Log::kept();
    let server = scripted(Scripted::new(1000), |_| {});
    for (method, path) in [
        ("GET", "/v1/responses/resp_sesame"),
        ("DELETE", "/v1/responses/resp_sesame"),
        ("GET", "/v1/responses/resp_sesame/input_items"),
        ("POST", "/v1/responses/resp_sesame/cancel"),
        ("PUT", "/v1/responses/resp_sesame"),
    ] {
        assert!(request(server.address, method, path, &[], b"").text().contains("resp_sesame"));
        log.line(&[&format!("method={method} path=\"/v1/responses/"), "status=40"]);
    }
    for (mistyped, shown) in [
        ("/v1/%72esponses/resp_sesame", "/v1/…/…"),
        ("/v1/Responses/resp_sesame", "/v1/Responses/…"),
        ("/response/resp%5Fsesame", "/response/…"),
        ("/v1/models/RESP_SESAME", "/v1/models/…"),
        ("/v1/items/msg_0123456789abcdef01234567_0", "/v1/items/…"),
    ] {
        assert_eq!(get(server.address, mistyped).status, 404);
        log.line(&[&format!("path=\"{shown}\""), "status=404"]);
    }
    assert!(!log.text().to_ascii_lowercase().contains("sesame") && !log.text().contains("0123456789abcdef"));
}

#[test]
fn what_programs_ask_all_the_time_is_for_debugging() {
    let log = Log::kept();
    let server = scripted(Scripted::new(1000), |_| {});
    for path in ["/health", "/ready", "/v1/models", "/v1/models/nobody"] {
        get(server.address, path);
        let line = log.line(&[&format!("path=\"{path}\"")]);
        assert!(line.contains("DEBUG") && !line.contains("tokens"), "{line}");
    }
    get(server.address, "/v1/nothing");
    assert!(log.line(&["path=\"/v1/nothing\""]).contains("INFO"));
}

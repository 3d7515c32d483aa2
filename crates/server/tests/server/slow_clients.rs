//! Clients that take their time: those that send slowly are cut off, those that read slowly keep nobody waiting.

use crate::client::{Connection, get};
use crate::scripted::Scripted;
use crate::serving::{Server, scripted, tokenizer, wait_until};
use lily_server::Config;
use serde_json::json;
use std::time::Duration;

const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(600);

#[test]
fn a_header_that_does_not_end_closes_the_connection() {
    let server = scripted(Scripted::new(1000), |config| config.timeouts.header = SHORT);
    let mut slow = Connection::open(server.address);
    slow.raw(b"POST /v1/chat/completions HTTP/1.1\r\nhost: te");
    get(server.address, "/health").ok();
    assert!(slow.is_closed());
}

#[test]
fn a_body_that_stops_is_408() {
    let server = scripted(Scripted::new(1000), |config| config.timeouts.body_progress = SHORT);
    let mut slow = Connection::open(server.address);
    slow.raw(b"POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\ncontent-length: 1000\r\n\r\n{\"mess");
    get(server.address, "/health").ok();
    slow.answer().error(408);
}

#[test]
fn a_body_that_trickles_is_408() {
    let server = scripted(Scripted::new(1000), |config| {
        config.timeouts.body_progress = LONG;
        config.timeouts.body_total = SHORT;
    });
    let mut slow = Connection::open(server.address);
    slow.raw(b"POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\ncontent-length: 1000\r\n\r\n");
    for _ in 0..20 {
        slow.raw(b" ");
        std::thread::sleep(SHORT / 10);
    }
    slow.answer().error(408);
}

/// Long enough for every token's event to fill the connection to a client that does not read within some hundred tokens.
const LONG_NAME: usize = 32 << 10;

/// A reply to a client that reads nothing of it. It ends by itself after four thousand tokens, long after what ends it before.
fn unread(stop: Option<&str>, change: impl FnOnce(&mut Config)) -> (Server, Connection) {
    let script = Scripted::new(1_000_000).taking(Duration::from_millis(1));
    let lines = script.lines();
    let server = scripted(script, |config| {
        config.model_name = "x".repeat(LONG_NAME);
        change(config);
    });
    wait_until("ready", || get(server.address, "/ready").status == 200);
    let word = |text: &str| tokenizer().encode(text).expect("tokens");
    lines.say([word(" a").repeat(1000), word("!"), word(" a").repeat(3000)].concat());
    let mut connection = Connection::open(server.address);
    let body = json!({"prompt": [7], "max_tokens": 900_000, "stream": true, "stop": stop});
    connection.send("POST", "/v1/completions", &[], body.to_string().as_bytes());
    wait_until("it runs", || server.engine.stats().running == 1);
    wait_until("it has ended", || server.engine.stats().running == 0);
    (server, connection)
}

#[test]
fn a_stop_string_ends_what_nobody_reads() {
    let (server, mut connection) = unread(Some("!"), |_| {});
    let generated = server.engine.stats().generated_tokens;
    assert!((1000..3000).contains(&generated), "{generated}");
    let answer = connection.answer().text();
    assert!(answer.contains("\"finish_reason\":\"stop\"") && answer.ends_with("data: [DONE]\n\n"));
    assert_eq!(answer.matches(" a\"").count(), 1000);
}

#[test]
fn a_deadline_ends_what_nobody_reads() {
    let (server, _connection) = unread(None, |config| config.request_timeout = Some(SHORT));
    let generated = server.engine.stats().generated_tokens;
    assert!(generated < 4000, "{generated}");
}

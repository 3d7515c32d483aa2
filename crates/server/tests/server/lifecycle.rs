//! Readiness, a full queue, failure, clients that go, and the end.

use crate::client::{Connection, chat, events, get};
use crate::scripted::Scripted;
use crate::serving::{Server, model, scripted, wait_until};
use serde_json::{Value, json};
use std::time::Duration;

const STEP: Duration = Duration::from_millis(10);

fn slow(step: Duration) -> Scripted {
    Scripted::new(1_000_000).taking(step)
}

/// A request whose reply goes on for ever, as tests count.
fn endless(stream: bool) -> Value {
    json!({"messages": [{"role": "user", "content": "Hello"}], "stream": stream})
}

/// A request whose prompt alone takes for ever: the engine reads at least a token a step, at most 512.
fn endless_prompt(stream: bool) -> Value {
    let content = "word ".repeat(60_000);
    json!({"messages": [{"role": "user", "content": content}], "stream": stream})
}

fn begin(server: &Server, body: &Value) -> Connection {
    let mut connection = Connection::open(server.address);
    connection.send("POST", "/v1/chat/completions", &[], body.to_string().as_bytes());
    connection
}

fn ready(server: &Server) {
    wait_until("readiness", || get(server.address, "/ready").status == 200);
}

#[test]
fn ready_follows_the_models_first_answer() {
    let (backend, hold) = Scripted::new(1000).held();
    let server = scripted(backend, |_| {});
    let (_, code, _) = get(server.address, "/ready").error(503);
    assert_eq!(code, "unavailable");
    assert_eq!(get(server.address, "/health").ok()["status"], "ok");
    drop(hold);
    ready(&server);
    let health = get(server.address, "/health").ok();
    assert_eq!(health["engine"]["backend"], "script");
    assert!(health["engine"]["generated_tokens"].as_u64().expect("a count") >= 1);
}

#[test]
fn a_server_that_takes_no_more_is_not_ready() {
    let server = scripted(Scripted::new(1000), |_| {});
    ready(&server);
    server.engine.shutdown();
    get(server.address, "/ready").error(503);
    let (_, code, _) = chat(server.address, &endless(false)).error(503);
    assert_eq!(code, "unavailable");
    get(server.address, "/health").ok();
}

#[test]
fn a_model_that_fails_is_never_ready() {
    let server = scripted(Scripted::new(1000).failing_at(1), |_| {});
    let (_, _, message) = chat(server.address, &endless(false)).error(500);
    assert!(message.contains("the script ends here"), "{message}");
    get(server.address, "/ready").error(503);
    get(server.address, "/health").ok();
}

#[test]
fn a_failure_within_a_stream_is_an_event() {
    let server = scripted(Scripted::new(1000).failing_at(30), |_| {});
    ready(&server);
    let (events, done) = events(&chat(server.address, &endless(true)));
    assert!(!done);
    let (last, before) = events.split_last().expect("events");
    assert!(before.len() > 5 && before.iter().all(|event| event.get("error").is_none()));
    assert_eq!(last["error"]["type"], "server_error");
    assert!(last["error"]["message"].as_str().expect("a message").contains("the script ends here"));
}

#[test]
fn a_full_queue_is_503_with_advice() {
    let server = scripted(slow(STEP), |_| {});
    ready(&server);
    let running = begin(&server, &endless(true));
    wait_until("the first runs", || server.engine.stats().running == 1);
    let waiting = begin(&server, &endless(true));
    wait_until("the second waits", || server.engine.stats().queued == 1);
    let refused = chat(server.address, &endless(false));
    let (_, code, _) = refused.error(503);
    assert_eq!(code, "queue_full");
    let seconds: u64 = refused.header("retry-after").expect("advice").parse().expect("seconds");
    assert!(seconds >= 1);
    // More choices than fit: all or none.
    drop(waiting);
    wait_until("the second is gone", || {
        chat(
            server.address,
            &json!({"messages": [{"role": "user", "content": "Hi"}],
        "n": 8}),
        )
        .status
            == 503
            && server.engine.stats().queued == 0
    });
    drop(running);
    wait_until("nothing runs", || server.engine.stats().running == 0);
}

#[test]
fn a_client_that_goes_ends_its_reply() {
    let server = scripted(slow(STEP), |_| {});
    ready(&server);
    for stream in [true, false] {
        for body in [endless(stream), endless_prompt(stream)] {
            let connection = begin(&server, &body);
            wait_until("it runs", || server.engine.stats().running == 1);
            drop(connection);
            wait_until("it has ended", || server.engine.stats().running == 0);
        }
    }
    chat(server.address, &json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3})).ok();
}

#[test]
fn a_stop_string_ends_the_engines_work() {
    let server = scripted(slow(STEP), |_| {});
    ready(&server);
    let mut body = endless(false);
    body["stop"] = json!(["e"]);
    body["enable_thinking"] = json!(false);
    let answer = chat(server.address, &body).ok();
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    wait_until("it has ended", || server.engine.stats().running == 0);
}

/// Field case 39.
#[test]
fn a_long_prompt_keeps_its_stream_alive() {
    // One step of a long prompt takes longer than clients wait in silence.
    let server = scripted(slow(Duration::from_millis(700)), |_| {});
    ready(&server);
    let mut connection = begin(&server, &endless_prompt(true));
    let (status, _) = connection.head();
    assert_eq!(status, 200);
    let first = String::from_utf8(connection.chunk().expect("a chunk")).expect("UTF-8");
    assert!(first.starts_with("data: ") && first.contains("\"role\":\"assistant\""), "{first}");
    let second = String::from_utf8(connection.chunk().expect("a chunk")).expect("UTF-8");
    assert!(second.starts_with(": prefill ") && second.ends_with("\n\n"), "{second}");
}

#[test]
fn a_shutdown_lets_replies_end() {
    let mut server = scripted(slow(STEP), |_| {});
    ready(&server);
    let mut body = endless(true);
    body["max_tokens"] = json!(50);
    let mut streamed = begin(&server, &body);
    wait_until("it runs", || server.engine.stats().running == 1);
    body["stream"] = json!(false);
    let mut whole = begin(&server, &body);
    wait_until("the other waits", || server.engine.stats().queued == 1);
    server.stop();
    let (events, done) = events(&streamed.answer());
    assert!(done && events.last().expect("events")["choices"][0]["finish_reason"] == "length");
    assert_eq!(whole.answer().ok()["usage"]["completion_tokens"], 50);
    let address = server.address;
    server.join();
    assert!(std::net::TcpStream::connect(address).is_err());
}

#[test]
fn a_shutdown_breaks_off_what_lasts() {
    let mut server = scripted(slow(STEP), |config| config.shutdown_grace = Duration::from_millis(300));
    ready(&server);
    let mut streamed = begin(&server, &endless(true));
    wait_until("it runs", || server.engine.stats().running == 1);
    let mut waiting = begin(&server, &endless(false));
    wait_until("the other waits", || server.engine.stats().queued == 1);
    // Nor does a client that never says anything hold it up.
    let _silent = Connection::open(server.address);
    server.stop();
    let (events, done) = events(&streamed.answer());
    assert!(!done);
    assert_eq!(events.last().expect("events")["error"]["type"], "server_error");
    waiting.answer().error(503);
    server.join();
}

#[test]
fn health_counts_the_engines_work() {
    let before = get(model(), "/health").ok()["engine"]["generated_tokens"].as_u64();
    chat(model(), &json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3})).ok();
    assert!(get(model(), "/health").ok()["engine"]["generated_tokens"].as_u64() > before);
}

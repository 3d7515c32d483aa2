//! What whoever runs a server needs: keys, rules for other sites' pages, limits, figures.

use crate::client::{Answer, Connection, events, get, post, request};
use crate::scripted::Scripted;
use crate::serving::{Server, scripted, wait_until};
use lily_server::{ApiKeys, CrossOrigin};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

const STEP: Duration = Duration::from_millis(10);

fn ready(server: &Server) {
    wait_until("readiness", || get(server.address, "/ready").status == 200);
    wait_until("nothing runs", || server.engine.stats().running == 0);
}

fn with_keys(script: Scripted, keys: &[&str]) -> Server {
    let keys = ApiKeys::new(keys.iter().map(|&key| key.to_owned())).expect("sound keys");
    scripted(script, |config| config.keys = keys)
}

fn ask(server: &Server, headers: &[(&str, &str)]) -> Answer {
    let body = json!({"prompt": [7, 8], "max_tokens": 2}).to_string();
    request(server.address, "POST", "/v1/completions", headers, body.as_bytes())
}

#[test]
fn a_key_is_needed_where_there_is_one() {
    let server = with_keys(Scripted::new(1000), &["secret-1", "secret-2"]);
    ready(&server);
    for path in ["/health", "/", "/web/main.js"] {
        assert_eq!(get(server.address, path).status, 200, "{path}");
    }
    for path in ["/v1/models", "/metrics", "/status", "/v1/nothing"] {
        let refused = get(server.address, path);
        let (_, code, message) = refused.error(401);
        assert_eq!(code, "invalid_api_key");
        assert!(message.contains("Authorization: Bearer"), "{message}");
        assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
    }
    // Anthropic's clients are told in their own words.
    let message = json!({"max_tokens": 2, "messages": [{"role": "user", "content": "Go"}]});
    let refused = post(server.address, "/v1/messages", &message);
    assert_eq!((refused.status, &refused.json()["error"]["type"]), (401, &json!("authentication_error")));
    assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
    let (_, _, message) = ask(&server, &[("authorization", "Bearer secret-3")]).error(401);
    assert!(!message.contains("secret"), "{message}");
    ask(&server, &[("authorization", "Bearer secret-1")]).ok();
    ask(&server, &[("x-api-key", "secret-2")]).ok();
    let models = request(server.address, "GET", "/v1/models", &[("x-api-key", "secret-1")], b"");
    assert_eq!(models.ok()["object"], "list");
    assert_eq!(server.engine.stats().generated_tokens, 1 + 2 * 2, "nothing ran for the others");
}

/// One client's many requests do not keep another's out.
#[test]
fn a_full_queue_lets_another_key_in() {
    let (script, hold) = Scripted::new(1_000_000).taking(Duration::from_millis(2)).held();
    let server = with_keys(script, &["much", "little"]);
    // The server's own first request holds the one place; the queue has one more, and a last one for another client.
    wait_until("the first step", || server.engine.stats().running == 1);
    let begin = |key: &str| {
        let mut connection = Connection::open(server.address);
        let body = json!({"prompt": [7], "max_tokens": 3}).to_string();
        connection.send("POST", "/v1/completions", &[("x-api-key", key)], body.as_bytes());
        connection
    };
    let mut much = begin("much");
    wait_until("it waits", || server.engine.stats().queued == 1);
    let (_, code, _) = begin("much").answer().error(503);
    assert_eq!(code, "queue_full");
    let mut little = begin("little");
    wait_until("it waits too", || server.engine.stats().queued == 2);
    drop(hold);
    much.answer().ok();
    little.answer().ok();
}

#[test]
fn other_sites_pages_have_nothing_done() {
    let server = scripted(Scripted::new(1000), |_| {});
    ready(&server);
    let foreign =
        [("origin", "https://evil.example"), ("sec-fetch-site", "cross-site"), ("content-type", "text/plain")];
    let refused = ask(&server, &foreign);
    let (_, code, message) = refused.error(403);
    assert_eq!(code, "forbidden_origin");
    assert!(message.contains("--cors-origin https://evil.example"), "{message}");
    assert_eq!(refused.header("access-control-allow-origin"), None);
    assert_eq!(server.engine.stats().generated_tokens, 1);
    ask(&server, &[("origin", "http://test"), ("sec-fetch-site", "same-origin")]).ok();
}

#[test]
fn named_origins_pages_may_ask() {
    let keys = ApiKeys::new(["secret".to_owned()]).expect("a sound key");
    let origin = "https://chat.example";
    let server = scripted(Scripted::new(1000), |config| {
        config.keys = keys;
        config.cross_origin = CrossOrigin { origins: vec![origin.parse().expect("a value")], hosts: None };
    });
    let preflight = [
        ("origin", origin),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization,content-type"),
        ("access-control-request-private-network", "true"),
    ];
    let allowed = request(server.address, "OPTIONS", "/v1/completions", &preflight, b"");
    assert_eq!(allowed.status, 200);
    assert_eq!(allowed.header("access-control-allow-origin"), Some(origin));
    assert_eq!(allowed.header("access-control-allow-headers"), Some("authorization,content-type"));
    assert_eq!(allowed.header("access-control-allow-private-network"), Some("true"));
    assert!(allowed.header("access-control-allow-methods").is_some_and(|methods| methods.contains("DELETE")));
    let page = [("origin", origin), ("sec-fetch-site", "cross-site")];
    let refused = ask(&server, &page);
    refused.error(401);
    assert_eq!(refused.header("access-control-allow-origin"), Some(origin), "the page has to see why");
    let answered = ask(&server, &[page[0], page[1], ("authorization", "Bearer secret")]);
    answered.ok();
    assert_eq!(answered.header("access-control-allow-origin"), Some(origin));
    let other = request(server.address, "OPTIONS", "/v1/completions", &[("origin", "https://evil.example")], b"");
    assert_eq!(other.header("access-control-allow-origin"), None);
}

#[test]
fn a_rebound_name_gets_nothing() {
    let server = scripted(Scripted::new(1000), |config| {
        config.cross_origin.hosts = Some(vec!["lily.home".to_owned()]);
    });
    let at = |host: &str| {
        let mut connection = Connection::open(server.address);
        connection.raw(format!("GET /v1/models HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").as_bytes());
        connection.answer()
    };
    for host in ["localhost:8080", "127.0.0.1", "lily.home:8080"] {
        at(host).ok();
    }
    let (_, code, message) = at("evil.example:8080").error(403);
    assert_eq!(code, "forbidden_host");
    assert!(message.contains("--allowed-host evil.example."), "{message}");
}

#[test]
fn a_request_that_takes_too_long_is_ended() {
    let server = scripted(Scripted::new(1_000_000).taking(STEP), |config| {
        config.request_timeout = Some(Duration::from_millis(500));
    });
    ready(&server);
    let mut body = json!({"prompt": [7], "max_tokens": 900_000});
    let (_, code, message) = post(server.address, "/v1/completions", &body).error(504);
    assert_eq!(code, "timeout");
    assert!(message.contains("--request-timeout"), "{message}");
    wait_until("it has ended", || server.engine.stats().running == 0);
    body["stream"] = json!(true);
    let (streamed, done) = events(&post(server.address, "/v1/completions", &body));
    let (last, before) = streamed.split_last().expect("events");
    assert!(!done && before.iter().all(|event| event.get("error").is_none()));
    assert_eq!(last["error"]["code"], "timeout");
    wait_until("it has ended", || server.engine.stats().running == 0);
    // The status of a stream does not tell.
    wait_until("both are counted", || metrics(&server).get(&ended("timeout")) == Some(&2.0));
}

/// Reading a request is part of its time.
#[test]
fn a_request_that_comes_too_slowly_is_ended() {
    let server = scripted(Scripted::new(1000), |config| config.request_timeout = Some(Duration::from_millis(300)));
    let mut slow = Connection::open(server.address);
    slow.raw(b"POST /v1/completions HTTP/1.1\r\nhost: test\r\ncontent-length: 1000\r\n\r\n{\"prompt");
    assert_eq!(slow.answer().error(504).1, "timeout");
}

/// The counter of completions with this end.
fn ended(end: &str) -> String {
    format!("lily_request_ends_total{{endpoint=\"/v1/completions\",end=\"{end}\"}}")
}

/// What a server says at `/metrics`, by name and labels.
fn metrics(server: &Server) -> BTreeMap<String, f64> {
    let answer = get(server.address, "/metrics");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("application/openmetrics-text; version=1.0.0; charset=utf-8"));
    let text = answer.text();
    assert!(text.ends_with("# EOF\n"), "{text}");
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').expect("a sample");
            (name.to_owned(), value.parse().expect("a number"))
        })
        .collect()
}

#[test]
fn metrics_count_what_happens() {
    let server = scripted(Scripted::new(1_000_000), |_| {});
    ready(&server);
    let before = metrics(&server);
    let body = json!({"prompt": vec![7; 100], "max_tokens": 5});
    for _ in 0..3 {
        post(server.address, "/v1/completions", &body).ok();
    }
    post(server.address, "/v1/completions", &json!({"prompt": 1})).error(400);
    get(server.address, "/v1/nothing").error(404);
    let mut strange = Connection::open(server.address);
    strange.raw(b"BREW /v1/completions HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
    strange.answer().error(405);
    // A request counts once its answer is sent.
    let request = |method: &str, endpoint: &str, status: u16| {
        format!("lily_requests_total{{endpoint=\"{endpoint}\",method=\"{method}\",status=\"{status}\"}}")
    };
    let counted = [
        (request("POST", "/v1/completions", 200), 3.0),
        (request("POST", "/v1/completions", 400), 1.0),
        (ended("length"), 3.0),
        (request("GET", "none", 404), 1.0),
        (request("other", "/v1/completions", 405), 1.0),
    ];
    wait_until("all are counted", || {
        let samples = metrics(&server);
        counted.iter().all(|(name, count)| samples.get(name) == Some(count))
    });
    let after = metrics(&server);
    let more = |name: &str| {
        let of = |samples: &BTreeMap<String, f64>| samples.get(name).copied().unwrap_or(0.0);
        assert!(after.contains_key(name), "{name}");
        of(&after) - of(&before)
    };
    assert_eq!(more("lily_generated_tokens_total"), 15.0);
    assert_eq!(more("lily_prefilled_tokens_total"), 300.0);
    assert_eq!(more("lily_queue_seconds_count"), 3.0);
    assert_eq!(more("lily_time_to_first_token_seconds_count"), 3.0);
    assert_eq!(more("lily_inter_token_seconds_count"), 12.0);
    assert_eq!(more("lily_time_to_first_token_seconds_bucket{le=\"+Inf\"}"), 3.0);
    for name in ["lily_cache_hits_total", "lily_cache_bytes", "lily_cache_disk_errors_total", "lily_requests_running"] {
        assert_eq!(after.get(name), Some(&0.0), "{name}");
    }
    assert!(after["process_resident_memory_bytes"] > 1e6);
    assert_eq!(after[concat!("lily_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"}")], 1.0);
    let mut left = Connection::open(server.address);
    let body = json!({"prompt": [9], "max_tokens": 900_000}).to_string();
    left.send("POST", "/v1/completions", &[], body.as_bytes());
    wait_until("it runs", || server.engine.stats().running == 1);
    drop(left);
    wait_until("it is counted", || metrics(&server).get(&ended("cancelled")) == Some(&1.0));
}

#[test]
fn status_shows_what_runs() {
    let plan = lily_backend::MemoryPlan {
        context: 1_000_000,
        parallel: 1,
        weights: 5,
        workspace: 6,
        state: 7,
        kv_per_token: 0,
        cache: 8,
    };
    let server = scripted(Scripted::new(1_000_000).taking(STEP), |config| {
        config.plan = Some(plan);
        config.longest_context = Some(2_000_000);
    });
    ready(&server);
    let idle = get(server.address, "/status").ok();
    assert_eq!((&idle["status"], &idle["device"], &idle["parallel"]), (&json!("ready"), &json!("script"), &json!(1)));
    assert_eq!(idle["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(idle["model"]["context"], 1_000_000);
    assert_eq!(idle["requests"], json!({"running": 0, "queued": 0, "under_way": []}));
    let planned = json!({"weights": 5, "workspace": 6, "states": 7, "kv_cache": 0, "prefix_cache": 8, "total": 26});
    assert_eq!(idle["memory"]["planned_bytes"], planned);
    assert_eq!(idle["cache"]["limit_bytes"], 8);
    assert!(idle["memory"]["resident_bytes"].as_u64() > Some(1 << 20));

    let begin = || {
        let mut connection = Connection::open(server.address);
        let body = json!({"prompt": [7, 8, 9], "max_tokens": 900_000, "stream": true}).to_string();
        connection.send("POST", "/v1/completions", &[], body.as_bytes());
        connection
    };
    let running = begin();
    wait_until("it runs", || server.engine.stats().running == 1);
    let waiting = begin();
    let under_way = || get(server.address, "/status").ok()["requests"]["under_way"].clone();
    wait_until("both are shown", || {
        let stages: Vec<Value> =
            under_way().as_array().expect("a list").iter().map(|one| one["stage"].clone()).collect();
        stages == ["generating", "queued"]
    });
    let shown = under_way();
    assert_eq!((&shown[0]["endpoint"], &shown[0]["prompt_tokens"]), (&json!("/v1/completions"), &json!(3)));
    assert!(shown[0]["completion_tokens"].as_u64() >= Some(1));
    drop((running, waiting));
    wait_until("none is left", || under_way() == json!([]));
    server.engine.shutdown();
    assert_eq!(get(server.address, "/status").ok()["status"], "stopping");
}

#[test]
fn progress_is_told_to_who_asks() {
    let server = scripted(Scripted::new(1_000_000), |_| {});
    ready(&server);
    let mut body = json!({"prompt": vec![7; 2000], "max_tokens": 1, "stream": true, "return_progress": true});
    let (told, done) = events(&post(server.address, "/v1/completions", &body));
    let progress: Vec<&Value> = told.iter().filter_map(|event| event.get("prompt_progress")).collect();
    assert!(done && progress.len() >= 2, "{told:?}");
    assert!(progress.iter().all(|one| one["total"] == 2000 && one["cache"] == 0 && one["time_ms"].is_u64()));
    assert!(progress.iter().map(|one| one["processed"].as_u64()).is_sorted());
    let bearer = told.iter().find(|event| event.get("prompt_progress").is_some()).expect("one");
    assert_eq!(bearer["choices"], json!([]));
    body["return_progress"] = json!(false);
    let (told, _) = events(&post(server.address, "/v1/completions", &body));
    assert!(told.iter().all(|event| event.get("prompt_progress").is_none()));
    body["return_progress"] = json!("yes");
    let (param, ..) = post(server.address, "/v1/completions", &body).error(400);
    assert_eq!(param, "return_progress");
}

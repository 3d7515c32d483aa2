//! The prefix cache on disk across the lives of a server: one that ends in order, and ones that are killed.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long anything may take before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes that the directory may take, of which files are about a twentieth each.
const DISK: &str = "150M";

/// A server with the embedded checkpoint; killed when it goes out of scope.
struct Server {
    process: Child,
    address: String,
    log: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Server {
    fn start(directory: &Path) -> Self {
        Self::start_with(directory, &[])
    }

    fn start_with(directory: &Path, flags: &[&str]) -> Self {
        let nowhere = tempfile::tempdir().expect("a temporary directory");
        let mut process = Command::new(env!("CARGO_BIN_EXE_lily"))
            .args(["serve", "--port", "0", "--cache", "200M", "--cache-disk", DISK, "--cache-dir"])
            .arg(directory)
            .args(flags)
            .env_remove("LILY_MODEL")
            .env_remove("HF_HUB_CACHE")
            .env("HF_HOME", nowhere.path())
            .env("RUST_LOG", "info,lily_engine=debug")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut lines = BufReader::new(process.stderr.take().expect("a pipe")).lines();
        let log = Arc::new(Mutex::new(String::new()));
        let address = loop {
            let line = lines.next().expect("the server ended").expect("a log");
            log.lock().expect("no panic").push_str(&(line.clone() + "\n"));
            if let Some(address) = line.strip_prefix("listening on http://") {
                break address.to_owned();
            }
        };
        let rest = Arc::clone(&log);
        let reader = thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                rest.lock().expect("no panic").push_str(&(line + "\n"));
            }
        });
        Self { process, address, log, reader: Some(reader) }
    }

    /// Sends SIGTERM; a shell always has `kill`.
    fn stop(mut self) -> (ExitStatus, String) {
        let told = Command::new("sh").arg("-c").arg(format!("kill {}", self.process.id())).status().expect("a shell");
        assert!(told.success());
        let status = self.process.wait().expect("it ends");
        (status, self.said())
    }

    /// SIGKILL.
    fn kill(mut self) -> String {
        self.process.kill().expect("it runs");
        self.process.wait().expect("it ends");
        self.said()
    }

    /// The log of one that has ended.
    fn said(&mut self) -> String {
        self.reader.take().into_iter().for_each(|reader| reader.join().expect("no panic"));
        self.log.lock().expect("no panic").clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _status = self.process.wait();
    }
}

/// Tokens of a prompt whose first one names it.
fn prompt(name: usize, length: usize) -> Vec<usize> {
    (0..length).map(|index| 100 + (name * 131 + index * (name % 7 + 3)) % 5000).collect()
}

/// The reply's text, and the tokens of the prompt that did not have to be read; `None` if the server is gone.
fn ask(address: &str, prompt: &[usize]) -> Option<(String, u64)> {
    let body = json!({"prompt": prompt, "max_tokens": 4, "temperature": 0}).to_string();
    let mut connection = TcpStream::connect(address).ok()?;
    let length = body.len();
    write!(
        connection,
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .ok()?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
    let body: Value = serde_json::from_str(body).ok()?;
    let cached = body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a count");
    Some((body["choices"][0]["text"].as_str().expect("a text").to_owned(), cached))
}

/// Names in a directory that end so.
fn files(directory: &Path, end: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("a directory").filter_map(Result::ok).map(|entry| entry.path());
    entries.filter(|path| path.to_str().is_some_and(|name| name.ends_with(end))).collect()
}

fn wait_until(what: &str, there: impl Fn() -> bool) {
    let began = Instant::now();
    while !there() {
        assert!(began.elapsed() < PATIENCE, "{what} does not come");
        thread::sleep(Duration::from_micros(200));
    }
}

/// What waits to be written when the server is told to stop is there afterwards.
#[test]
fn a_stop_writes_what_waits() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let server = Server::start(directory.path());
    let (first, cached) = ask(&server.address, &prompt(1, 3000)).expect("an answer");
    assert_eq!(cached, 0);
    let (status, said) = server.stop();
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(files(directory.path(), ".tmp").is_empty());
    assert!(files(directory.path(), ".lilysnap").len() >= 2, "{said}");
    let server = Server::start(directory.path());
    let (again, cached) = ask(&server.address, &prompt(1, 3000)).expect("an answer");
    assert_eq!(again, first);
    assert!(cached >= 2048, "{cached}");
    assert_eq!(server.stop().0.code(), Some(0));
}

/// A prompt that parts from an earlier one goes on from the last of the places that `--cache-interval` sets.
#[test]
fn the_interval_says_where_later_prompts_go_on() {
    let parted = [prompt(1, 700), prompt(2, 100)].concat();
    for (flags, expected) in [(&["--cache-interval", "256"][..], 512), (&["--cache-interval", "512"], 512), (&[], 0)] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let server = Server::start_with(directory.path(), flags);
        ask(&server.address, &prompt(1, 1000)).expect("an answer");
        let (_, cached) = ask(&server.address, &parted).expect("an answer");
        assert_eq!(cached, expected, "{flags:?}");
        // Such a place is not the end of the prompt before.
        let (_, cached) = ask(&server.address, &prompt(1, 300)).expect("an answer");
        assert_eq!(cached, if flags.contains(&"256") { 256 } else { 0 }, "{flags:?}");
    }
}

/// Kills a server while it writes, again and again. Each next one takes nothing that is damaged, answers as the
/// first one did from nothing, and finds again what had been written.
fn kills(rounds: usize) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let probe = prompt(0, 1500);
    let (mut expected, mut found, mut unfinished) = (None, 0, 0);
    for round in 0..rounds {
        let server = Server::start(directory.path());
        let (text, cached) = ask(&server.address, &probe).expect("an answer");
        assert_eq!(*expected.get_or_insert_with(|| text.clone()), text, "round {round}, {cached} cached");
        found += usize::from(cached > 0);
        wait_until("a first file", || !files(directory.path(), ".lilysnap").is_empty());
        // Another prompt each time, so that there is always something to write.
        let address = server.address.clone();
        let asking =
            thread::spawn(move || (1..).find(|number| ask(&address, &prompt(round * 50 + number, 1100)).is_none()));
        wait_until("a write", || !files(directory.path(), ".tmp").is_empty());
        thread::sleep(Duration::from_micros((round as u64 * 7919) % 12_000));
        let said = server.kill();
        unfinished += usize::from(!files(directory.path(), ".tmp").is_empty());
        asking.join().expect("no panic");
        for bad in ["removed from the prefix cache", "cannot be used", "cannot be read", "panicked"] {
            assert!(!said.contains(bad), "round {round}: {said}");
        }
    }
    println!("{rounds} kills, {unfinished} of them within a file; found again in {found} of {} rounds", rounds - 1);
    let server = Server::start(directory.path());
    assert_eq!(ask(&server.address, &probe).map(|(text, _)| text), expected);
    assert!(files(directory.path(), ".tmp").is_empty(), "what was unfinished is gone");
    assert_eq!(server.stop().0.code(), Some(0));
    assert_eq!(found, rounds - 1);
}

#[test]
fn a_kill_within_a_write_leaves_a_usable_cache() {
    kills(4);
}

#[test]
#[ignore = "takes minutes; cargo test -p lily --test prefix_cache -- --ignored --nocapture"]
fn a_hundred_kills_leave_a_usable_cache() {
    kills(100);
}

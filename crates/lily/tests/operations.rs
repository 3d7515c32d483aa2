//! `lily doctor`, and what `lily serve` is told by a file and the environment, as a user runs them.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// A user who has nothing but the program.
struct Home(TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes the settings file where it is looked for.
    fn settings(&self, text: &str) -> PathBuf {
        let path = self.path("lily/config.toml");
        fs::create_dir_all(self.path("lily")).expect("a directory");
        fs::write(&path, text).expect("a file");
        path
    }

    fn lily(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lily"));
        command.args(args).env_remove("LILY_MODEL").env_remove("LILY_API_KEY").env_remove("HF_HUB_CACHE");
        command.env("HF_HOME", self.path("hf")).env("XDG_CONFIG_HOME", self.0.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn output(&self, args: &[&str]) -> Output {
        self.lily(args).output().expect("the program starts")
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

fn name(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Who may do what with a file or a directory.
#[cfg(unix)]
fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).expect("it is there").mode() & 0o777
}

/// The checks of `lily doctor --json`, and whether it was content.
fn checks(output: &Output) -> (Vec<Value>, bool) {
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let ok = report["ok"].as_bool().expect("a verdict");
    assert_eq!(output.status.code(), Some(i32::from(!ok)), "{}", text(&output.stderr));
    (report["checks"].as_array().expect("checks").clone(), ok)
}

fn check<'c>(checks: &'c [Value], name: &str) -> &'c Value {
    checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no {name}: {checks:?}"))
}

#[test]
fn a_sound_machine_is_told_so() {
    let home = Home::new();
    let output = home.output(&["doctor", "--port", "0"]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said} {}", text(&output.stderr));
    let names: Vec<&str> = said.lines().filter(|line| !line.starts_with(' ')).map(|line| line[9..20].trim()).collect();
    assert_eq!(names, ["settings", "port", "device", "disk", "checkpoint", "chat", "memory", "speed"], "{said}");
    assert!(said.contains("warning  checkpoint  lily-tiny") && !said.contains("FAILED"), "{said}");
}

#[test]
fn the_model_is_checked_against_its_reference() {
    let home = Home::new();
    let output = home.output(&["doctor", "--port", "0", "--self-check", "--json"]);
    let (checks, ok) = checks(&output);
    let found = check(&checks, "self-check");
    assert!(ok && found["verdict"] != "failure", "{found:#}");
    let answers = found["answers"].as_array().expect("answers");
    assert_eq!(answers.len(), 6);
    for answer in answers {
        // Its text is one near-tie after another.
        let near_ties = if answer["name"] == "raw_text" { 12 } else { 0 };
        let (tokens, equal) = (answer["tokens"].as_u64().expect("a count"), answer["equal"].as_u64().expect("a count"));
        assert!(tokens >= 8 && equal + near_ties >= tokens, "{answer:#}");
    }
    assert!(check(&checks, "device")["simd"].is_string());
    assert!(check(&checks, "memory")["planned_bytes"].as_u64() > Some(1 << 20));
}

#[test]
fn what_is_wrong_fails() {
    let home = Home::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let output = home.output(&["doctor", "--port", &port, "--max-context", "600", "--cache", "64M"]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("FAILED   port        cannot listen on 127.0.0.1"), "{said}");
    // The rest is checked all the same.
    assert!(said.contains("ok       memory"), "{said}");

    let model = home.path("model");
    fs::create_dir(&model).expect("a directory");
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny");
    for entry in fs::read_dir(tiny).expect("the embedded model's files") {
        let path = entry.expect("an entry").path();
        if path.is_file() {
            fs::copy(&path, model.join(path.file_name().expect("a name"))).expect("a copy");
        }
    }
    let doctor = || home.output(&["doctor", "--port", "0", "--json", "--model", name(&model)]);
    let found = checks(&doctor());
    assert!(found.1 && check(&found.0, "checkpoint")["data_bytes"] == 14_868_384, "{found:?}");
    let index = model.join("model.safetensors.index.json");
    let sound = fs::read_to_string(&index).expect("the index");
    fs::write(&index, sound.replace("14868384", "14868385")).expect("writes");
    let found = checks(&doctor());
    assert_eq!(check(&found.0, "checkpoint")["verdict"], "warning");
    let weights = fs::OpenOptions::new().write(true).open(model.join("model.safetensors")).expect("the weights");
    weights.set_len(10_000_000).expect("cuts");
    let found = checks(&doctor());
    let checkpoint = check(&found.0, "checkpoint");
    let message = checkpoint["message"].as_str().expect("a message");
    assert!(!found.1 && message.contains("is the download complete?"), "{checkpoint:#}");
    assert!(found.0.iter().all(|check| check["name"] != "memory"), "nothing is said of what cannot be known");
}

#[test]
fn a_cache_directory_is_tried() {
    let home = Home::new();
    let directory = home.path("cache");
    let output =
        home.output(&["doctor", "--port", "0", "--json", "--cache-dir", name(&directory), "--cache-disk", "9000T"]);
    let (found, ok) = checks(&output);
    assert!(ok && check(&found, "disk")["verdict"] == "warning", "{found:?}");
    #[cfg(unix)]
    assert_eq!(mode(&directory), 0o700);
    let file = home.path("file");
    fs::write(&file, "").expect("a file");
    let (found, ok) = checks(&home.output(&["doctor", "--port", "0", "--json", "--cache-dir", name(&file)]));
    assert!(!ok && check(&found, "disk")["verdict"] == "failure", "{found:?}");
    let output = home.output(&["serve", "--port", "0", "--cache-dir", name(&file.join("x"))]);
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("x: the directory cannot be made: "), "{said}");
    // What is on disk goes through memory: both commands say so.
    let flags = ["--port", "0", "--cache", "0", "--cache-dir", name(&directory)];
    let (found, ok) = checks(&home.output(&[&["doctor", "--json"], &flags[..]].concat()));
    let said = check(&found, "memory").to_string();
    assert!(!ok && said.contains("give --cache a size"), "{said}");
    let output = home.output(&[&["serve"], &flags[..]].concat());
    assert!(!output.status.success() && text(&output.stderr).contains("give --cache a size"));
}

#[test]
fn settings_that_are_none_are_named() {
    let home = Home::new();
    let path = home.settings("prot = 1\n");
    for command in ["serve", "doctor"] {
        let output = home.output(&[command]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(name(&path)) && said.contains("\"prot\"") && said.contains("port"), "{said}");
    }
    // What does not read it does not mind.
    assert_eq!(home.output(&["inspect"]).status.code(), Some(0));
    let missing = home.output(&["serve", "--config", "/nowhere/config.toml"]);
    assert!(text(&missing.stderr).contains("--config /nowhere/config.toml: cannot be read"));
    home.settings("api-key = \"two words\"\n");
    let output = home.output(&["serve", "--port", "0"]);
    assert!(!output.status.success() && text(&output.stderr).contains("--api-key"), "{}", text(&output.stderr));
}

/// A server under test; killed if the test fails.
struct Server {
    process: Child,
    address: String,
    said: String,
    /// Open as long as the server writes.
    log: BufReader<ChildStderr>,
}

impl Server {
    fn start(command: &mut Command) -> Self {
        let mut process = command.spawn().expect("the program starts");
        let log = BufReader::new(process.stderr.take().expect("a pipe"));
        let mut server = Self { process, address: String::new(), said: String::new(), log };
        while server.address.is_empty() {
            let mut line = String::new();
            assert!(server.log.read_line(&mut line).expect("a log") > 0, "the server ended: {}", server.said);
            match line.trim_end().strip_prefix("listening on http://") {
                Some(address) => server.address = address.to_owned(),
                None => server.said += &line,
            }
        }
        server
    }

    /// The status of the answer to a request for the models.
    fn models(&self, headers: &str) -> u16 {
        let mut connection = TcpStream::connect(&self.address).expect("the server listens");
        let request = format!("GET /v1/models HTTP/1.1\r\nconnection: close\r\n{headers}\r\n");
        connection.write_all(request.as_bytes()).expect("the server reads");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).expect("the server answers");
        answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{answer:?}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _status = self.process.wait();
    }
}

#[test]
fn a_server_that_runs_already_is_no_fault() {
    let home = Home::new();
    let mut command =
        home.lily(&["serve", "--port", "0", "--max-context", "600", "--cache", "64M", "--api-key", "mine"]);
    let server = Server::start(&mut command);
    let port = server.address.rsplit_once(':').expect("an address").1;
    let doctor = |more: &[&str]| {
        let flags = ["doctor", "--json", "--port", port, "--max-context", "600", "--cache", "64M"];
        checks(&home.output(&[&flags[..], more].concat()))
    };
    let (found, ok) = doctor(&["--api-key", "mine"]);
    let running = check(&found, "port");
    assert!(ok && running["verdict"] == "ok", "{found:?}");
    assert_eq!(running["process"], server.process.id());
    let says = running["message"].as_str().expect("a message");
    assert!(says.contains(&format!("process {}", server.process.id())) && says.contains("lily-tiny on cpu"), "{says}");
    assert!(running["resident_bytes"].as_u64() > Some(1 << 20), "{running}");
    // Without its key less is known of it.
    let (found, ok) = doctor(&["--api-key", "other"]);
    let running = check(&found, "port");
    assert!(ok && running["message"].as_str().is_some_and(|says| says.contains("wants another API key")), "{running}");
}

/// It would be another server's, and this one would keep nothing there.
#[test]
fn a_cache_directory_that_is_in_use_is_told_of() {
    let home = Home::new();
    let directory = home.path("cache");
    let flags = [
        "--port",
        "0",
        "--max-context",
        "600",
        "--cache",
        "64M",
        "--cache-disk",
        "1M",
        "--cache-dir",
        name(&directory),
    ];
    let disk = || {
        let (found, ok) = checks(&home.output(&[&["doctor", "--json"], &flags[..]].concat()));
        assert!(ok, "{found:?}");
        check(&found, "disk").clone()
    };
    let server = Server::start(&mut home.lily(&[&["serve"], &flags[..]].concat()));
    // Who looks in before the first file must not be able to, either.
    #[cfg(unix)]
    assert_eq!(mode(&directory), 0o700);
    let used = disk();
    assert!(used["verdict"] == "warning" && used.to_string().contains("another process uses it"), "{used}");
    drop(server);
    assert_eq!(disk()["verdict"], "ok");
}

#[test]
fn the_variable_that_names_no_checkpoint_is_named() {
    let home = Home::new();
    for command in [&["serve", "--port", "0"][..], &["doctor", "--port", "0"], &["run", "Hi"]] {
        let output = home.lily(command).env("LILY_MODEL", "/nowhere").output().expect("the program starts");
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(!output.status.success() && said.contains("LILY_MODEL") && said.contains("/nowhere"), "{said}");
        let output = home.output(&[command, &["--model", "/nowhere"]].concat());
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(!output.status.success() && !said.contains("LILY_MODEL") && said.contains("/nowhere"), "{said}");
    }
}

/// A port that another has is told of before the model is opened, and far too many threads at the start.
#[test]
fn what_cannot_go_well_is_said_at_the_start() {
    let home = Home::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let output = home.output(&["serve", "--port", &port, "--model", "/nowhere"]);
    let said = text(&output.stderr);
    assert!(said.contains(&port) && said.contains("is another server there? --port takes another"), "{said}");
    let server = Server::start(&mut home.lily(&["serve", "--port", "0", "--max-context", "600", "--threads", "999"]));
    assert!(server.said.contains("--threads 999 is more than the"), "{}", server.said);
    let output = home.output(&["serve", "--port", "0", "--cache", "99T"]);
    let said = text(&output.stderr);
    assert!(said.contains("with a prefix cache of") && said.contains("--cache "), "{said}");
    assert!(said.lines().last().is_some_and(|last| last.ends_with("would fit")), "{said}");
}

const KEY_OF_FILE: &str = "host: localhost\r\nauthorization: Bearer of-file\r\n";

#[test]
fn a_server_reads_its_settings() {
    let home = Home::new();
    // A port that is taken: the flag goes before it.
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port();
    let text = "max-context = 600\ncache = \"64M\"\napi-key = [\"of-file\", \"other\"]\nallowed-host = \"lily.home\"\n";
    let settings = home.settings(&format!("port = {port}\n{text}"));
    let server = Server::start(&mut home.lily(&["serve", "--port", "0"]));
    assert!(server.said.contains("up to 4 requests at once, of up to 600 tokens each"), "{}", server.said);
    let access = format!("settings from {}\nrequests must bear one of 2 API keys\n", settings.display());
    assert!(server.said.contains(&access), "{}", server.said);
    assert_eq!(server.models("host: localhost\r\n"), 401);
    assert_eq!(server.models(KEY_OF_FILE), 200);
    assert_eq!(server.models("host: lily.home\r\nx-api-key: other\r\n"), 200);
    assert_eq!(server.models("host: evil.example\r\nx-api-key: other\r\n"), 403);
}

#[test]
fn flags_go_before_the_environment_and_that_before_the_file() {
    let home = Home::new();
    home.settings("port = 0\nmax-context = 600\ncache = \"0\"\napi-key = \"of-file\"\n");
    let of_environment = "host: localhost\r\nx-api-key: of-environment\r\n";
    let server = Server::start(home.lily(&["serve"]).env("LILY_API_KEY", "of-environment, another"));
    assert_eq!((server.models(of_environment), server.models(KEY_OF_FILE)), (200, 401));
    assert_eq!(server.models("host: localhost\r\nx-api-key: another\r\n"), 200);
    drop(server);
    // Keys of a file come beside the variable's.
    let file = home.path("keys");
    fs::write(&file, "of-file\n").expect("a file");
    let mut command = home.lily(&["serve", "--api-key-file", name(&file)]);
    let server = Server::start(command.env("LILY_API_KEY", "of-environment"));
    assert_eq!((server.models(of_environment), server.models(KEY_OF_FILE)), (200, 200));
    drop(server);
    let of_flag = "host: localhost\r\nx-api-key: of-flag\r\n";
    let mut command = home.lily(&["serve", "--api-key", "of-flag"]);
    let server = Server::start(command.env("LILY_API_KEY", "of-environment"));
    assert_eq!((server.models(of_flag), server.models(of_environment), server.models(KEY_OF_FILE)), (200, 401, 401));
}

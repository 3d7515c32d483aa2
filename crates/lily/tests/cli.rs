//! The program as a user runs it, with the embedded checkpoint.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};

/// `lily` with arguments, where no checkpoint is found but the embedded one.
fn lily(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lily"));
    let nowhere = tempfile::tempdir().expect("a temporary directory");
    command.args(args).env_remove("LILY_MODEL").env_remove("HF_HUB_CACHE").env("HF_HOME", nowhere.path());
    command.env_remove("LILY_API_KEY").env("XDG_CONFIG_HOME", nowhere.path());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn output(args: &[&str]) -> Output {
    lily(args).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

/// Writes `input` to the program and gives what came of it.
fn with_input(args: &[&str], input: &[u8]) -> Output {
    let mut child = lily(args).stdin(Stdio::piped()).spawn().expect("the program starts");
    child.stdin.take().expect("a pipe").write_all(input).expect("the program reads");
    child.wait_with_output().expect("the program ends")
}

/// Ends with a message on stderr, and with no panic.
fn fails(args: &[&str], wanted: &[&str]) {
    let output = output(args);
    let message = text(&output.stderr);
    assert!(matches!(output.status.code(), Some(1 | 2)), "{args:?}: {message}");
    for wanted in wanted {
        assert!(message.contains(wanted), "{args:?}: {message}");
    }
}

#[test]
fn run_answers_on_stdout_alone() {
    let answer = output(&["run", "--no-think", "--temperature", "0", "What is 2 + 3?"]);
    assert_eq!((answer.status.code(), text(&answer.stdout)), (Some(0), "2 + 3 = 5\n"));
    let said = text(&answer.stderr);
    // Nor does stderr have more than errors, where it is no terminal.
    assert_eq!(said, "");
    // Reasoning is for terminals.
    let thought = output(&["run", "--temperature", "0", "What is 38 + 57?"]);
    assert_eq!(text(&thought.stdout), "38 + 57 = 95\n");
}

#[test]
fn run_takes_what_is_piped_in() {
    let answer = with_input(&["run", "--no-think", "--temperature", "0"], b"What is 2 + 3?\n");
    assert_eq!(text(&answer.stdout), "2 + 3 = 5\n");
    let broken = with_input(&["run"], b"caf\xe9");
    assert_eq!(broken.status.code(), Some(1));
    assert!(text(&broken.stderr).contains("what is piped in"), "{}", text(&broken.stderr));
    fails(&["run"], &["no prompt"]);
}

#[test]
fn run_joins_words_and_refuses_none() {
    let answer = output(&["run", "What", "is 2 +", "3?", "--no-think", "--temperature", "0"]);
    assert_eq!(text(&answer.stdout), "2 + 3 = 5\n");
    fails(&["run", "  "], &["the prompt is empty", "lily run \""]);
}

#[test]
fn run_ends_quietly_with_its_reader() {
    let mut child =
        lily(&["run", "--no-think", "--temperature", "0", "Count from 1 to 20."]).spawn().expect("it starts");
    let mut first = [0; 5];
    let mut answer = child.stdout.take().expect("a pipe");
    answer.read_exact(&mut first).expect("an answer");
    drop(answer);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
}

#[test]
fn chat_with_piped_questions_prints_answers_alone() {
    let questions = b"/nothink\nWhat is 2 + 3?\n/think\nWhat is 38 + 57?";
    let output = with_input(&["chat", "--temperature", "0"], questions);
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("2 + 3 = 5\n38 + 57 = 95\n", ""));
}

#[test]
fn chat_says_what_cut_a_reply_and_what_to_do() {
    let arguments = ["chat", "--no-think", "--temperature", "0", "--max-context", "200"];
    let output = with_input(&arguments, "Count from 1 to 20.\n".repeat(9).as_bytes());
    let said = text(&output.stderr);
    assert!(said.contains("the conversation fills the context of 200 tokens; /reset starts anew"), "{said}");
    assert!(said.contains("no room for this message"), "{said}");
    let limited = with_input(&["chat", "--max-tokens", "3"], b"Count from 1 to 20.\n");
    assert!(text(&limited.stderr).contains("--max-tokens"), "{}", text(&limited.stderr));
}

#[test]
fn chat_keeps_history_and_obeys() {
    let session = "/stats\nMy name is Anna.\nWhat is my name?\n/stats\n/what\n/help\n/quit\nnever read\n";
    let output = with_input(&["chat", "--no-think", "--temperature", "0"], session.as_bytes());
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}");
    for wanted in ["no reply yet", "Your name is Anna.", "/what: unknown", "/nothink"] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    let stats = said.lines().find(|line| line.starts_with("prompt ")).expect("statistics");
    assert!(!stats.starts_with("prompt 0 "), "{stats}");
}

#[test]
fn inspect_tells_shapes_and_memory() {
    let output = output(&["inspect", "--max-context", "4096", "--parallel", "2"]);
    let said = text(&output.stdout);
    for wanted in ["8 (6 Gated DeltaNet, 2 attention)", "32 of width 64, 8 a token", "2 x 4096 tokens x 4.0 KiB"] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
}

/// The plan for a model whose weights are not there is the one for its checkpoint.
#[test]
fn inspect_plans_without_weights() {
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny/config.json");
    let sizes = ["--max-context", "4096", "--parallel", "2"];
    let plan = |args: &[&str]| {
        let told = output(&[args, &sizes[..]].concat());
        let said = text(&told.stdout);
        said.split_once("Memory for ").unwrap_or_else(|| panic!("{said}")).1.to_owned()
    };
    assert_eq!(plan(&["inspect", "--config", config]), plan(&["inspect"]));
    // A machine that is too small is told the same figures.
    let full = output(&["inspect", "--config", "qwen3.6-35b-a3b", "--max-context", "4096", "--parallel", "1"]);
    let said = [text(&full.stdout), text(&full.stderr)].concat();
    assert!(said.contains("40 (30 Gated DeltaNet, 10 attention)") && said.contains("weights         18"), "{said}");
    fails(&["inspect", "--config", "nowhere.json"], &["nowhere.json", "qwen3.6-35b-a3b"]);
}

#[test]
fn inspect_draws_the_step_of_a_gpu() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let picture = directory.path().join("plan.dot");
    let picture = picture.to_str().expect("UTF-8");
    let args = ["inspect", "--plan", "--config", "qwen3.6-35b-a3b", "--context", "1000", "--dot", picture];
    let told = output(&args);
    let said = text(&told.stdout);
    let counts: Vec<usize> = said.lines().nth(1).expect("a second line").split(' ').flat_map(str::parse).collect();
    assert!(matches!(counts[..], [1..=320, 1..=270]), "{said}");
    assert!(std::fs::read_to_string(picture).expect("a picture").starts_with("digraph"));
    let prefill = output(&["inspect", "--plan", "--prefill", "100"]);
    assert!(text(&prefill.stdout).contains("prefill step, 100 rows"));
    for (tiles, kernel) in
        [("simdgroup", "gemm_q4_64 "), ("tensor", "gemm_q4_64_tensor"), ("warpgroup", "gemm_q4_warpgroup")]
    {
        let prefill = output(&["inspect", "--plan", "--prefill", "100", "--tiles", tiles]);
        assert!(text(&prefill.stdout).contains(kernel), "{}", text(&prefill.stdout));
    }
    fails(&["inspect", "--context", "1000"], &["--plan"]);
    fails(&["inspect", "--plan", "--prefill", "100", "--context", "10"], &["100 rows", "10 tokens"]);
}

#[test]
fn what_cannot_be_is_said() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("UTF-8").to_owned();
    std::fs::write(path("model.gguf"), b"GGUF\x03\0\0\0").expect("a file");
    for command in ["inspect", "serve", "chat"] {
        fails(&[command, "--model", &path("nothing")], &["nothing does not exist", "download"]);
        fails(&[command, "--model", &path("model.gguf")], &["GGUF"]);
        fails(&[command, "--max-context", "40000"], &["40000", "32768"]);
        for wrong in ["0", "abc", "64K", ""] {
            fails(&[command, "--max-context", wrong], &["--max-context", "expected a whole number from 1"]);
        }
        // So many would not be refused by the system before they have taken its memory.
        fails(&[command, "--threads", "60000"], &["--threads", "1024"]);
    }
    #[cfg(not(target_os = "macos"))]
    fails(&["run", "--device", "metal", "hi"], &["--device metal", "macOS", "--device cpu"]);
    fails(&["serve", "--parallel", "0"], &["--parallel"]);
    for temperature in ["-1", "nan", "2.5", "inf"] {
        fails(&["run", &format!("--temperature={temperature}"), "hi"], &["--temperature", "from 0 to 2"]);
    }
    fails(&["run", "--max-tokens", "0", "hi"], &["--max-tokens"]);
    fails(&["eval"], &["--perplexity", "--tasks"]);
    fails(&["run", "--model", "some/repo-id", "hi"], &["repository id", "hf download some/repo-id", "--model"]);
    let checkpoint = "mlx-community/Qwen3.6-35B-A3B-4bit";
    fails(&["run", "--model", checkpoint, "hi"], &["lily pull", "start without --model"]);
    std::fs::write(path("config.json"), r#"{"model_type": "llama"}"#).expect("a file");
    fails(&["inspect", "--model", &path("")], &[directory.path().to_str().expect("UTF-8"), "config.json: model_type"]);
    fails(&["run", "--max-context", "4", "hi"], &["tokens long", "holds 4"]);
}

/// A reader of the output that has seen enough, as `head` has, is no fault.
#[test]
fn a_closed_pipe_ends_in_peace() {
    for args in [&["inspect"][..], &["run", "--no-think", "Count from 1 to 20."]] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = lily(args).stdout(writer).output().expect("the program starts");
        let said = text(&output.stderr);
        assert!(output.status.success() && !said.contains("panicked") && !said.contains("Broken pipe"), "{said}");
    }
}

#[test]
fn addresses_that_cannot_be_had_are_explained() {
    fails(&["serve", "--host", "nowhere.invalid", "--port", "0"], &["--host nowhere.invalid"]);
    // A documentation address, which no machine has.
    fails(&["serve", "--host", "192.0.2.1", "--port", "0"], &["192.0.2.1:0", "this machine has no such address"]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    fails(&["serve", "--port", &port], &["another server", "--port"]);
}

/// A server under test; killed if the test fails.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

/// The log's reader can go, a `tee` that is killed say: requests are answered all the same.
#[test]
fn a_server_outlives_the_reader_of_its_log() {
    let mut server = Server(
        lily(&["serve", "--host", "localhost", "--port", "0", "--max-context", "600", "--cache", "64M"])
            .spawn()
            .expect("the program starts"),
    );
    let mut log = BufReader::new(server.0.stderr.take().expect("a pipe"));
    let mut line = String::new();
    let mut said = String::new();
    let address = loop {
        said += &line;
        line.clear();
        assert!(log.read_line(&mut line).expect("a log") > 0, "the server ended");
        if let Some(address) = line.trim_end().strip_prefix("listening on http://") {
            break address.to_owned();
        }
    };
    drop(log);
    assert_eq!(said.matches("Lily Tiny").count(), 1, "{said}");
    assert!(
        said.contains("up to 4 requests at once, of up to 600 tokens each")
            && said.contains(" MiB planned, 64 MiB of them"),
        "{said}"
    );
    assert!(said.contains("warning: 600 tokens"), "{said}");
    for _ in 0..3 {
        let mut connection = TcpStream::connect(&address).expect("the server listens");
        let request = "GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        connection.write_all(request.as_bytes()).expect("the server reads");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).expect("the server answers");
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("lily-tiny"), "{answer:?}");
    }
    stop(&server.0);
    assert_eq!(server.0.wait().expect("it ends").code(), Some(0));
}

#[test]
fn presets_are_listed_and_others_refused() {
    let help = output(&["serve", "--help"]);
    for wanted in ["--preset", "thinking", "coding", "instruct", "temperature 0.6, top_p 0.95, top_k 20"] {
        assert!(text(&help.stdout).contains(wanted), "{wanted}");
    }
    fails(&["serve", "--preset", "poetry"], &["--preset", "instruct"]);
}

/// Sends SIGTERM; a shell always has `kill`.
fn stop(child: &Child) {
    let sent = Command::new("sh").arg("-c").arg(format!("kill {}", child.id())).status().expect("a shell");
    assert!(sent.success());
}

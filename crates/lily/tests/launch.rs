//! `lily launch` with a real server, and with a script in the place of an agent.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

const CLIENTS: [(&str, &str); 5] = [
    ("opencode", "opencode-ai"),
    ("claude", "@anthropic-ai/claude-code"),
    ("codex", "@openai/codex"),
    ("qwen", "@qwen-code/qwen-code"),
    ("pi", "@mariozechner/pi-coding-agent"),
];

/// A server with the embedded model, and a home for the agents.
struct Place {
    home: TempDir,
    server: Child,
    url: String,
}

impl Place {
    fn new() -> Self {
        let home = tempfile::tempdir().expect("a folder");
        let mut server = lily(home.path(), &["serve", "--port", "0"]).spawn().expect("the program starts");
        let said = BufReader::new(server.stderr.take().expect("a pipe"));
        let mut lines = said.lines().map(|line| line.expect("UTF-8"));
        let url = lines.find_map(|line| line.strip_prefix("listening on ").map(str::to_owned)).expect("it listens");
        // Whoever writes to a closed pipe fails.
        std::thread::spawn(move || lines.for_each(drop));
        Self { home, server, url }
    }

    fn launch(&self, args: &[&str]) -> Command {
        let mut command = lily(self.home.path(), &["launch", "--url", &self.url]);
        command.args(args);
        command
    }

    /// A script that tells how it was called is the agent.
    fn install(&self, agent: &str) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agent.sh");
        symlink(script, self.home.path().join(agent)).expect("a link");
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.server.kill().expect("it runs");
        self.server.wait().expect("it ends");
    }
}

fn lily(home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lily"));
    for name in ["LILY_MODEL", "LILY_API_KEY", "HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "RUST_LOG"] {
        command.env_remove(name);
    }
    command.args(args).env("HOME", home).env("PATH", format!("{}:/usr/bin:/bin", home.display()));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

fn good(output: &Output) -> &str {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn every_agent_is_told_of_the_server() {
    let place = Place::new();
    for (client, package) in CLIENTS {
        let printed = place.launch(&[client]).output().expect("the program starts");
        let printed = good(&printed);
        for wanted in [place.url.as_str(), "lily-tiny", package, client] {
            assert!(printed.contains(wanted), "{client}: {wanted}: {printed}");
        }
        // What is printed is a command.
        place.install(client);
        let mut shell = Command::new("sh");
        shell.args(["-c", printed]).env("PATH", format!("{}:/usr/bin:/bin", place.home.path().display()));
        let by_hand = shell.output().expect("a shell");
        let run = place.launch(&[client, "--run", "--", "-p", "say hello"]).output().expect("the program starts");
        for told in [good(&by_hand), good(&run)] {
            assert!(told.contains(&place.url), "{client}: {told}");
            assert!(told.contains("LILY_API_KEY=none"), "{client}: {told}");
        }
        assert!(good(&run).contains("-p\nsay hello\n"), "{}", good(&run));
    }
    // Nothing is written but what is ours.
    let names: Vec<_> =
        fs::read_dir(place.home.path()).expect("the home").map(|entry| entry.expect("an entry").file_name()).collect();
    let ours = |name: &str| name == ".cache" || CLIENTS.iter().any(|(client, _)| *client == name);
    assert!(names.iter().all(|name| ours(name.to_str().expect("UTF-8"))), "{names:?}");
}

/// An agent that supposes more than there is never compacts a conversation in time.
#[test]
fn every_agent_is_told_of_the_context() {
    let place = Place::new();
    for (client, _) in CLIENTS {
        place.install(client);
        let run = place.launch(&[client, "--run"]).output().expect("the program starts");
        let told = good(&run);
        let file = told.lines().find_map(|line| line.strip_prefix("QWEN_CODE_SYSTEM_DEFAULTS_PATH="));
        let file = file.map(|path| fs::read_to_string(path).expect("the file is there"));
        let wanted = match client {
            "opencode" => r#""limit":{"context":32768,"output":8192}"#,
            "claude" => "CLAUDE_CODE_MAX_CONTEXT_TOKENS=32768\n",
            "codex" => "\nmodel_context_window=32768\n",
            "qwen" => r#""contextWindowSize":32768,"#,
            _ => "LILY_CONTEXT=32768\n",
        };
        let told = file.as_deref().unwrap_or(told);
        assert!(told.contains(wanted), "{client}: {told}");
        let keeps = told.contains(r#"{"chat_template_kwargs":{"preserve_thinking":true}}"#);
        assert_eq!(keeps, ["opencode", "qwen"].contains(&client), "{client}: {told}");
    }
}

#[test]
fn a_key_is_passed_on_and_not_printed() {
    let place = Place::new();
    for (client, variable) in [("claude", "ANTHROPIC_AUTH_TOKEN"), ("qwen", "OPENAI_API_KEY")] {
        place.install(client);
        let with_key =
            |args: &[&str]| place.launch(args).env("LILY_API_KEY", "sk-secret").output().expect("the program starts");
        let printed = with_key(&[client]);
        let printed = good(&printed);
        assert!(!printed.contains("sk-secret") && printed.contains("export it first"), "{printed}");
        assert!(good(&with_key(&[client, "--run"])).contains(&format!("{variable}=sk-secret\n")));
    }
}

#[test]
fn what_is_missing_is_said() {
    let place = Place::new();
    let missing =
        place.launch(&["codex", "--run"]).env("PATH", place.home.path()).output().expect("the program starts");
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).contains("npm install --global @openai/codex"), "{}", text(&missing.stderr));
    let nowhere =
        lily(place.home.path(), &["launch", "codex", "--url", "http://127.0.0.1:1"]).output().expect("it starts");
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(text(&nowhere.stderr).contains("start `lily serve` first"), "{}", text(&nowhere.stderr));
}

//! `lily launch`: starts a coding agent on a running server, or prints how.
//!
//! What an agent is told goes by environment variables and arguments of this one run: no file of the user's is written.

mod clients;
mod server;

use std::ffi::OsString;
use std::io::{self, Write, stdout};
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Result, anyhow, bail};
use clap::{Args, ValueEnum};

use server::Server;

/// `lily launch`
#[derive(Args, Debug)]
pub(crate) struct LaunchArgs {
    /// The agent.
    #[arg(value_enum)]
    client: Client,
    /// Where `lily serve` listens.
    #[arg(long, default_value = "http://127.0.0.1:8080")]
    url: String,
    /// The server's API key, if it wants one; of several separated by commas, as the server itself takes them, the first.
    #[arg(long, value_name = "KEY", env = KEY_VARIABLE, hide_env_values = true)]
    api_key: Option<String>,
    /// Start the agent instead of printing how.
    #[arg(long)]
    run: bool,
    /// What else the agent is given, after `--`.
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// The agents that are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Client {
    /// OpenCode.
    Opencode,
    /// Claude Code.
    Claude,
    /// Codex.
    Codex,
    /// Qwen Code.
    Qwen,
    /// Pi.
    Pi,
}

/// Where agents that can be told a variable's name find the key.
const KEY_VARIABLE: &str = "LILY_API_KEY";
/// The same as [`first_key`], for a shell.
const FIRST_KEY: &str = "\"${LILY_API_KEY%%,*}\"";
/// A server without keys takes any, and many agents want to send one.
const NO_KEY: &str = "none";
/// Tokens of a context in which an agent's prompt leaves room for a conversation.
const ENOUGH: u64 = 65_536;

/// How an agent is started.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Launch {
    program: &'static str,
    /// The npm package that brings it.
    package: &'static str,
    environment: Vec<(&'static str, Value)>,
    arguments: Vec<String>,
}

/// A variable's value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Text(String),
    /// The server's key, which is not printed.
    Key,
}

/// Prints the command, or becomes the agent.
pub(crate) fn launch(args: &LaunchArgs) -> Result<()> {
    let key = args.api_key.as_deref().and_then(first_key);
    let server = Server::ask(&args.url, key)?;
    let mut launch = clients::launch(args.client, &server)?;
    launch.arguments.extend(args.arguments.iter().cloned());
    if !args.run {
        return Ok(print(&launch, &server, key.is_some(), &mut stdout().lock())?);
    }
    let error = launch.command(key).exec();
    match error.kind() {
        io::ErrorKind::NotFound => {
            bail!("{} is not on the path: npm install --global {}", launch.program, launch.package)
        }
        _ => Err(anyhow!("{} cannot be started: {error}", launch.program)),
    }
}

/// The variable may be the one that `lily serve` takes its keys from; an empty one counts as unset there, too.
fn first_key(keys: &str) -> Option<&str> {
    keys.split(',').next().map(str::trim).filter(|key| !key.is_empty())
}

impl Launch {
    fn command(&self, key: Option<&str>) -> Command {
        let key = key.unwrap_or(NO_KEY);
        let mut command = Command::new(self.program);
        command.args(&self.arguments).env(KEY_VARIABLE, key);
        for (name, value) in &self.environment {
            let value: OsString = match value {
                Value::Text(text) => text.into(),
                Value::Key => key.into(),
            };
            command.env(name, value);
        }
        command
    }
}

/// A command for a shell.
fn print(launch: &Launch, server: &Server, has_key: bool, out: &mut impl Write) -> io::Result<()> {
    let Launch { program, package, environment, arguments } = launch;
    writeln!(out, "# {program} with {} at {}, a context of {} tokens.", server.model, server.url, server.context)?;
    writeln!(out, "# Not installed? npm install --global {package}. `--run` starts it at once.")?;
    if server.context < ENOUGH {
        writeln!(
            out,
            "# That context is small: an agent's own prompt takes up to 25,000 tokens, its conversation the rest. {}",
            longer(server)
        )?;
    }
    if has_key {
        writeln!(out, "# The server's key is taken from {KEY_VARIABLE}: export it first.")?;
        writeln!(out, "{KEY_VARIABLE}={FIRST_KEY} \\")?;
    } else {
        writeln!(out, "{KEY_VARIABLE}={NO_KEY} \\")?;
    }
    for (name, value) in environment {
        let value = match value {
            Value::Text(text) => quoted(text),
            Value::Key if has_key => FIRST_KEY.into(),
            Value::Key => NO_KEY.into(),
        };
        writeln!(out, "{name}={value} \\")?;
    }
    let words: Vec<String> =
        std::iter::once(*program).chain(arguments.iter().map(String::as_str)).map(quoted).collect();
    writeln!(out, "{}", words.join(" "))
}

/// How to come to a longer context.
fn longer(server: &Server) -> String {
    let whole = "Without --max-context `lily serve` takes the longest that memory allows";
    match (&server.room.longest, &server.room.parallel) {
        (Some(longest), _) if *longest <= server.context => {
            "The model was made for no longer one; `lily pull` gets the 35B, which was.".into()
        }
        (_, Some(parallel @ 2..)) => {
            format!("{whole}, and with --parallel {} a request has more of it.", parallel / 2)
        }
        _ => format!("{whole}."),
    }
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.into();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::{Launch, Value, first_key, longer, print, quoted};
    use crate::launch::server::{Room, Server};
    use std::process::Command;

    fn launch() -> Launch {
        Launch {
            program: "sh",
            package: "x",
            environment: vec![("A_TEXT", Value::Text("it's {\"a\": \"b $c\"}".into())), ("A_KEY", Value::Key)],
            arguments: vec!["-c".into(), r#"printf '%s\n' "$A_TEXT" "$A_KEY" "$LILY_API_KEY""#.into()],
        }
    }

    fn printed(has_key: bool) -> String {
        let server = Server { url: "http://a.example".into(), model: "m".into(), context: 5, room: Room::default() };
        let mut out = Vec::new();
        print(&launch(), &server, has_key, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn output(command: &mut Command) -> String {
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    }

    /// A shell makes of the printed words what `--run` does.
    #[test]
    fn what_is_printed_is_what_is_run() {
        let run = output(&mut launch().command(Some("secret")));
        assert_eq!(run, "it's {\"a\": \"b $c\"}\nsecret\nsecret\n");
        let text = printed(true);
        assert!(!text.contains("secret") && text.starts_with("# sh with m at http://a.example, a context of 5"));
        for variable in ["secret", "secret,another"] {
            assert_eq!(output(Command::new("sh").args(["-c", &text]).env("LILY_API_KEY", variable)), run);
        }

        let keyless = output(&mut launch().command(None));
        assert_eq!(output(Command::new("sh").args(["-c", &printed(false)]).env_remove("LILY_API_KEY")), keyless);
        assert!(keyless.ends_with("none\nnone\n"));
    }

    #[test]
    fn the_variable_may_hold_what_the_server_takes() {
        assert_eq!(
            ["one", "one, two", " one ,two", "", " "].map(first_key),
            [Some("one"), Some("one"), Some("one"), None, None]
        );
    }

    /// A context that the model was not made for, or that memory has no room for, is no advice.
    #[test]
    fn the_way_to_a_longer_context_is_one_that_works() {
        let said = |longest, parallel| {
            longer(&Server { url: String::new(), model: "m".into(), context: 32_768, room: Room { longest, parallel } })
        };
        assert!(said(Some(32_768), Some(4)).contains("lily pull"));
        assert!(said(Some(262_144), Some(4)).ends_with("with --parallel 2 a request has more of it."));
        for room in [(Some(262_144), Some(1)), (None, None)] {
            assert!(said(room.0, room.1).ends_with("that memory allows."));
        }
    }

    #[test]
    fn words_are_quoted_only_if_they_must() {
        assert_eq!(["a-b/c=d", "", "a b", "it's"].map(quoted), ["a-b/c=d", "''", "'a b'", r"'it'\''s'"]);
    }
}

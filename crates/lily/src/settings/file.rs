//! The settings file: read, checked key by key against the flags, and turned into flags.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Command};
use toml::{Table, Value};

/// Flags of `serve` that are none of the file's.
const NOT_SETTINGS: [&str; 3] = ["config", "help", "version"];

/// The flags that the file at `path` stands for, but for those that are given already.
pub(super) fn flags(path: &Path, serve: &Command, is_given: impl Fn(&Arg) -> bool) -> Result<Vec<String>> {
    let text = fs::read_to_string(path).with_context(|| format!("--config {}: cannot be read", path.display()))?;
    read(&text, serve, is_given).with_context(|| path.display().to_string())
}

fn read(text: &str, serve: &Command, is_given: impl Fn(&Arg) -> bool) -> Result<Vec<String>> {
    // Its error says line and column, and shows them.
    let table: Table =
        text.parse().map_err(|error: toml::de::Error| anyhow!("not TOML: {}", error.to_string().trim()))?;
    let mut flags = Vec::new();
    for (key, value) in &table {
        let argument = setting(serve, key)?;
        let values = values(argument, value).with_context(|| key.clone())?;
        for flag in &values {
            check(serve, flag).with_context(|| key.clone())?;
        }
        if !is_given(argument) {
            flags.extend(values);
        }
    }
    Ok(flags)
}

/// The flag of this name.
fn setting<'c>(serve: &'c Command, key: &str) -> Result<&'c Arg> {
    let settings = || {
        let arguments = serve.get_arguments().filter_map(|argument| Some((argument.get_long()?, argument)));
        arguments.filter(|(long, _)| !NOT_SETTINGS.contains(long))
    };
    let found = settings().find(|(long, _)| *long == key);
    found.map(|(_, argument)| argument).with_context(|| {
        let names: Vec<&str> = settings().map(|(long, _)| long).collect();
        format!("there is no setting {key:?}; there are {}", names.join(", "))
    })
}

/// The value as flags: a list gives one each, if the flag may be repeated.
fn values(argument: &Arg, value: &Value) -> Result<Vec<String>> {
    let name = argument.get_long().unwrap_or_default();
    match (argument.get_action(), value) {
        (ArgAction::SetTrue, Value::Boolean(on)) => Ok(on.then(|| format!("--{name}")).into_iter().collect()),
        (ArgAction::SetTrue, _) => bail!("it must be true or false"),
        (ArgAction::Append, Value::Array(items)) => {
            items.iter().map(|item| Ok(format!("--{name}={}", text(argument, item)?))).collect()
        }
        (_, value) => Ok(vec![format!("--{name}={}", text(argument, value)?)]),
    }
}

fn text(argument: &Arg, value: &Value) -> Result<String> {
    match value {
        // No shell reads the file.
        Value::String(text) if is_path(argument) && text.starts_with("~/") => {
            let home = std::env::home_dir().context("there is no home directory for ~")?;
            let path = home.join(&text[2..]);
            Ok(path.to_str().context("the home directory's name is not UTF-8")?.to_owned())
        }
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        Value::Array(_) if matches!(argument.get_action(), ArgAction::Append) => bail!("a list in a list is no value"),
        Value::Array(_) => bail!("it takes one value, not a list"),
        Value::Boolean(_) | Value::Datetime(_) | Value::Table(_) => {
            bail!("it must be a string or a number, not {}", value.type_str())
        }
    }
}

fn is_path(argument: &Arg) -> bool {
    argument.get_value_names().unwrap_or_default().iter().any(|name| *name == "DIR" || *name == "FILE")
}

/// Fails as the flag would; what else it would need may be given elsewhere.
fn check(serve: &Command, flag: &str) -> Result<()> {
    let checked = serve.clone().no_binary_name(true).try_get_matches_from([flag]);
    match checked {
        Err(error) if error.kind() != ErrorKind::MissingRequiredArgument => {
            let message = error.to_string();
            let first = message.lines().next().unwrap_or_default();
            bail!("{}", first.strip_prefix("error: ").unwrap_or(first))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::read;
    use crate::cli::Cli;

    fn flags(text: &str, given: &[&str]) -> Result<Vec<String>, String> {
        let command = Cli::command();
        let serve = command.find_subcommand("serve").expect("it is there");
        read(text, serve, |argument| given.iter().any(|&name| argument.get_long() == Some(name)))
            .map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn settings_become_flags() {
        let text = "port = 9000\nhost = \"0.0.0.0\"\nmodel = \"~/lily\"\ncache = \"4G\"\napi-key = [\"a\", \"b\"]\nrequest-timeout = 60\n";
        let flags = flags(text, &["host"]).expect("sound settings");
        let home = std::env::home_dir().expect("a home");
        let model = format!("--model={}", home.join("lily").display());
        let mut wanted = ["--port=9000", &model, "--cache=4G", "--api-key=a", "--api-key=b", "--request-timeout=60"]
            .map(str::to_owned);
        wanted.sort();
        let mut sorted = flags;
        sorted.sort();
        assert_eq!(sorted, wanted);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, wanted) in [
            ("prot = 1", &["\"prot\"", "port, "][..]),
            ("config = \"x\"", &["\"config\""]),
            ("port = \"many\"", &["port: ", "'many'", "--port"]),
            ("port = 70000", &["port: ", "70000"]),
            ("port = true", &["port: ", "a string or a number, not boolean"]),
            ("port = [1, 2]", &["port: ", "not a list"]),
            ("cache = \"4GB\"", &["cache: ", "4GB"]),
            ("[serve]\nport = 1", &["\"serve\""]),
            ("port = ", &["not TOML", "line 1"]),
            ("port = 1\nport = 2", &["not TOML", "duplicate key"]),
            ("max-context = 0", &["max-context: "]),
        ] {
            let error = flags(text, &[]).expect_err(text);
            assert!(wanted.iter().all(|wanted| error.contains(wanted)), "{text}: {error}");
        }
    }

    #[test]
    fn a_setting_may_need_one_that_is_given_elsewhere() {
        assert_eq!(flags("cache-disk = \"1G\"", &[]), Ok(vec!["--cache-disk=1G".into()]));
        assert_eq!(flags("", &[]), Ok(Vec::new()));
        // It is checked all the same.
        assert!(flags("port = \"many\"", &["port"]).is_err());
    }
}

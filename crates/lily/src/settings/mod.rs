//! What `lily serve` is told besides flags: the environment, and a TOML file whose keys are the flags' names.
//!
//! A flag goes before the environment, the environment before the file. The file's settings become flags where none was
//! given, so that each is read, checked and explained as the flag is.

mod access;
mod file;

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;
use clap::parser::ValueSource;
use clap::{Command, CommandFactory};

pub(crate) use access::AccessArgs;

use crate::cli::Cli;

/// The commands that read the file.
const READERS: [&str; 2] = ["serve", "doctor"];
/// Settings that have an environment variable.
const ENVIRONMENT: [(&str, &str); 2] = [("model", "LILY_MODEL"), ("api-key", API_KEY)];
/// API keys, separated by commas.
pub(crate) const API_KEY: &str = "LILY_API_KEY";

/// An environment variable; an empty one counts as unset.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// The program's arguments with what the settings file adds to them.
///
/// # Errors
/// If there is a file that cannot be used.
pub(crate) fn with_file(mut arguments: Vec<OsString>) -> Result<Vec<OsString>> {
    let command = Cli::command();
    // What is wrong with the arguments themselves is told when they are read for good.
    let Ok(matches) = command.clone().ignore_errors(true).try_get_matches_from(&arguments) else {
        return Ok(arguments);
    };
    let Some((_, given)) = matches.subcommand().filter(|(name, _)| READERS.contains(name)) else {
        return Ok(arguments);
    };
    let asked = given.try_get_one::<PathBuf>("config").ok().flatten().cloned();
    let Some(path) = asked.clone().or_else(|| default_path().filter(|path| path.exists())) else {
        return Ok(arguments);
    };
    let is_given = |argument: &clap::Arg| {
        let flag = given.value_source(argument.get_id().as_str()) == Some(ValueSource::CommandLine);
        let named = ENVIRONMENT.iter().find(|(long, _)| argument.get_long() == Some(*long));
        flag || named.is_some_and(|(_, variable_name)| variable(variable_name).is_some())
    };
    let flags = file::flags(&path, serve(&command), is_given)?;
    if asked.is_none() {
        arguments.extend(["--config".into(), path.into_os_string()]);
    }
    arguments.extend(flags.into_iter().map(OsString::from));
    Ok(arguments)
}

/// The command whose flags the settings are.
fn serve(command: &Command) -> &Command {
    command.find_subcommand(READERS[0]).unwrap_or(command)
}

/// `lily/config.toml` in the user's configuration directory.
pub(crate) fn default_path() -> Option<PathBuf> {
    let directory = variable("XDG_CONFIG_HOME").map(PathBuf::from).filter(|directory| directory.is_absolute());
    let directory = directory.or_else(|| env::home_dir().map(|home| home.join(".config")))?;
    Some(directory.join("lily/config.toml"))
}

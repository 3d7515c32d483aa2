//! `lily`: the command line.

mod chat;
mod cli;
mod conversation;
mod eval;
mod inspect;
mod load;
mod run;
mod serve;
mod terminal;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match &cli.command {
        Command::Serve(args) => serve::serve(args),
        Command::Chat(args) => chat::chat(args),
        Command::Run(args) => run::run(args),
        Command::Inspect(args) => inspect::inspect(args),
        Command::Eval(args) => eval::eval(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lily: {error:#}");
            ExitCode::FAILURE
        }
    }
}

//! `lily`: the command line.

mod allocator;
mod bench;
mod cache;
mod chat;
mod cli;
mod conversation;
mod device;
mod doctor;
mod eval;
mod inspect;
mod launch;
mod load;
mod preset;
mod pull;
mod run;
mod serve;
mod settings;
mod synth;
mod terminal;

use std::io::{self, ErrorKind};
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use crate::cli::{Cli, Command};

fn main() -> ExitCode {
    allocator::map_large_blocks();
    let done = settings::with_file(std::env::args_os().collect())
        .and_then(|arguments| run_command(&Cli::parse_from(arguments)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output, `head` say, has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::tell(format_args!("lily: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run_command(cli: &Cli) -> Result<()> {
    match &cli.command {
        Command::Serve(args) => serve::serve(args),
        Command::Chat(args) => chat::chat(args),
        Command::Run(args) => run::run(args),
        Command::Inspect(args) => inspect::inspect(args),
        Command::Eval(args) => eval::eval(args),
        Command::Bench(args) => bench::bench(args),
        Command::BenchLength(args) => bench::measure_length(args),
        Command::Synth(args) => synth::synth(args),
        Command::Doctor(args) => doctor::doctor(args),
        Command::Pull(args) => pull::pull(args),
        Command::Launch(args) => launch::launch(args),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kinds = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>()).map(io::Error::kind);
    kinds.into_iter().any(|kind| kind == ErrorKind::BrokenPipe)
}

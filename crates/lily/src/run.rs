//! `lily run`: one prompt, one answer.

use std::io::{IsTerminal, Read, stderr, stdin, stdout};

use anyhow::{Result, bail};
use lily_chat::Piece;

use crate::cli::RunArgs;
use crate::conversation::{Conversation, Ending};
use crate::load::Model;
use crate::terminal::Painter;

/// Answers the prompt: content on stdout, reasoning dimmed on stderr if that is a terminal.
pub(crate) fn run(args: &RunArgs) -> Result<()> {
    let question = question(args.prompt.as_deref())?;
    let model = Model::open(&args.model, 1)?;
    let engine = model.start()?;
    let mut conversation = Conversation::new(&model, &engine, &args.sampling);
    let mut answer = Painter::new(stdout());
    let mut thoughts = Painter::new(stderr());
    let shows_thoughts = stderr().is_terminal();
    let mut thinking = false;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(conversation.ask(
        &question,
        |piece| match piece {
            Piece::Reasoning(text) if shows_thoughts => {
                thinking = true;
                thoughts.write(text, true)
            }
            Piece::Reasoning(_) => Ok(()),
            Piece::Content(text) => {
                if std::mem::take(&mut thinking) {
                    thoughts.write("\n\n", false)?;
                }
                answer.write(text, false)
            }
        },
        std::future::pending(),
    ))?;
    answer.end()?;
    if conversation.last.is_some_and(|cost| cost.ending == Ending::Length) {
        eprintln!("note: the reply was cut at its token limit");
    }
    Ok(())
}

/// The prompt, followed by what is piped in.
fn question(prompt: Option<&str>) -> Result<String> {
    let mut piped = String::new();
    if !stdin().is_terminal() {
        stdin().read_to_string(&mut piped)?;
    }
    match (prompt, piped.trim()) {
        (None, "") => bail!("no prompt: give one as an argument or pipe it in"),
        (Some(prompt), "") => Ok(prompt.to_string()),
        (None, piped) => Ok(piped.to_string()),
        (Some(prompt), piped) => Ok(format!("{prompt}\n\n{piped}")),
    }
}

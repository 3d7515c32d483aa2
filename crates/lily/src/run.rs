//! `lily run`: one prompt, one answer.

use std::io::{IsTerminal, Read, stderr, stdin, stdout};

use anyhow::{Context, Result, bail};
use lily_chat::Piece;

use crate::cli::RunArgs;
use crate::conversation::{Conversation, Ending};
use crate::load::Model;
use crate::terminal::{Painter, interrupt, tell};

/// Answers the prompt: content on stdout, reasoning dimmed on stderr if that is a terminal.
pub(crate) fn run(args: &RunArgs) -> Result<()> {
    let question = question(&args.prompt)?;
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
        interrupt(),
    ))?;
    answer.end()?;
    drop(thoughts);
    match conversation.last.map(|cost| cost.ending) {
        Some(Ending::Interrupted | Ending::TakenBack) => bail!("stopped"),
        Some(Ending::TokenLimit) => tell("note: the reply was cut at its limit, --max-tokens"),
        Some(Ending::ContextFull) => {
            let context = conversation.max_context();
            tell(format_args!("note: the reply was cut: with its prompt it fills the context of {context} tokens"));
        }
        Some(Ending::Complete) | None => {}
    }
    Ok(())
}

/// The prompt's words, followed by what is piped in.
fn question(words: &[String]) -> Result<String> {
    let mut piped = String::new();
    if !stdin().is_terminal() {
        stdin().read_to_string(&mut piped).context("what is piped in cannot be read")?;
    }
    let prompt = words.join(" ");
    match (prompt.trim(), piped.trim()) {
        ("", "") if words.is_empty() => bail!("no prompt: give one as an argument or pipe it in"),
        ("", "") => bail!("the prompt is empty: give one as an argument, lily run \"What is 2 + 3?\", or pipe it in"),
        (_, "") => Ok(prompt),
        ("", piped) => Ok(piped.to_owned()),
        (_, piped) => Ok(format!("{prompt}\n\n{piped}")),
    }
}

//! `lily chat`: a conversation in the terminal.

use std::io::{self, IsTerminal, Stdin, Write, stderr, stdin, stdout};

use anyhow::{Context, Result};
use lily_chat::Piece;
use lily_engine::SubmitError;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use crate::cache::CacheSize;
use crate::cli::ChatArgs;
use crate::conversation::{Conversation, Ending};
use crate::load::Model;
use crate::terminal::{Painter, interrupt, tell};

const HELP: &str = "/help     this\n/reset    forget the conversation\n/think    think before answering\n/nothink  answer at once\n\
                    /stats    what the last reply cost\n/quit     leave (also Ctrl-D)\nCtrl-C stops a reply.";

/// Reads questions and streams answers until /quit or the end of input.
pub(crate) fn chat(args: &ChatArgs) -> Result<()> {
    let model = Model::open_with_cache(&args.model, 1, CacheSize::Share)?;
    let engine = model.start()?;
    let mut conversation = Conversation::new(&model, &engine, &args.sampling);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut input = Input::open()?;
    let interactive = matches!(input, Input::Terminal(_));
    if interactive {
        writeln!(stdout(), "{} on {}. /help lists commands.", model.checkpoint.name(), engine.description().name)?;
    }
    while let Some(line) = input.line()? {
        match line.trim() {
            "" => {}
            "/quit" | "/exit" => return Ok(()),
            "/help" => writeln!(stdout(), "{HELP}")?,
            "/reset" => conversation.reset(),
            "/think" => conversation.thinking = true,
            "/nothink" => conversation.thinking = false,
            "/stats" => print_stats(&conversation)?,
            command if command.starts_with('/') => writeln!(stdout(), "{command}: unknown. /help lists commands.")?,
            question => {
                // A reply that fails, say because the conversation has outgrown the context, must not end the program.
                match runtime.block_on(reply(&mut conversation, question, interactive)) {
                    Ok(()) => {}
                    Err(error) if crate::is_broken_pipe(&error) => return Err(error),
                    Err(error) => tell_failure(&error, &conversation),
                }
            }
        }
    }
    Ok(())
}

/// Where the questions come from.
enum Input {
    /// Somebody types them.
    Terminal(Box<DefaultEditor>),
    /// A file or another program.
    Piped(Stdin),
}

impl Input {
    fn open() -> Result<Self> {
        if !stdin().is_terminal() {
            return Ok(Self::Piped(stdin()));
        }
        Ok(Self::Terminal(Box::new(DefaultEditor::new()?)))
    }

    /// The next line; `None` at the end.
    fn line(&mut self) -> Result<Option<String>> {
        let editor = match self {
            Self::Terminal(editor) => editor,
            Self::Piped(stdin) => {
                let mut line = String::new();
                let bytes = stdin.read_line(&mut line).context("what is piped in cannot be read")?;
                return Ok((bytes > 0).then_some(line));
            }
        };
        loop {
            match editor.readline("> ") {
                Ok(line) => {
                    if !line.trim().is_empty() {
                        editor.add_history_entry(line.trim())?;
                    }
                    return Ok(Some(line));
                }
                Err(ReadlineError::Interrupted) => writeln!(stdout(), "/quit or Ctrl-D leaves.")?,
                Err(ReadlineError::Eof) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Streams the answer to stdout. What the model thinks goes there only if somebody sits there: else it goes to stderr, if
/// that is a terminal.
async fn reply(conversation: &mut Conversation<'_>, question: &str, interactive: bool) -> Result<()> {
    let mut answer = Painter::new(stdout());
    let mut aside = Painter::new(stderr());
    let shows_aside = stderr().is_terminal();
    let mut thinking = false;
    let show = |piece: &Piece| -> io::Result<()> {
        match piece {
            Piece::Reasoning(text) if interactive => {
                thinking = true;
                answer.write(text, true)
            }
            Piece::Reasoning(text) if shows_aside => {
                thinking = true;
                aside.write(text, true)
            }
            Piece::Reasoning(_) => Ok(()),
            Piece::Content(text) => {
                if std::mem::take(&mut thinking) {
                    if interactive { answer.write("\n\n", false)? } else { aside.write("\n\n", false)? }
                }
                answer.write(text, false)
            }
        }
    };
    let done = conversation.ask(question, show, interrupt()).await;
    answer.end()?;
    drop(aside);
    done?;
    match conversation.last.map(|cost| cost.ending) {
        Some(Ending::Interrupted) => tell("(stopped)"),
        Some(Ending::TakenBack) => tell("(stopped; your message is taken back)"),
        Some(Ending::TokenLimit) => tell("(cut at the limit of a reply, --max-tokens)"),
        Some(Ending::ContextFull) => tell(format_args!("(cut: {})", context_full(conversation.max_context()))),
        Some(Ending::Complete) | None => {}
    }
    Ok(())
}

fn context_full(limit: usize) -> String {
    format!("the conversation fills the context of {limit} tokens; /reset starts anew")
}

fn tell_failure(error: &anyhow::Error, conversation: &Conversation<'_>) {
    match error.downcast_ref() {
        Some(SubmitError::TooLong { limit, .. }) if conversation.has_history() => {
            tell(format_args!("no room for this message: {}", context_full(*limit)));
        }
        _ => tell(format_args!("{error:#}")),
    }
}

fn print_stats(conversation: &Conversation<'_>) -> std::io::Result<()> {
    let Some(cost) = conversation.last else {
        return writeln!(stdout(), "no reply yet");
    };
    let rate = |tokens: usize, seconds: f64| tokens as f64 / seconds.max(1e-9);
    let prompt = if cost.read_tokens < cost.prompt_tokens {
        format!("{} of {}", cost.read_tokens, cost.prompt_tokens)
    } else {
        cost.prompt_tokens.to_string()
    };
    writeln!(
        stdout(),
        "prompt {prompt} tokens in {:.2} s ({:.1}/s), reply {} tokens in {:.2} s ({:.1}/s)",
        cost.prefill.as_secs_f64(),
        rate(cost.read_tokens, cost.prefill.as_secs_f64()),
        cost.reply_tokens,
        cost.decode.as_secs_f64(),
        rate(cost.reply_tokens.saturating_sub(1), cost.decode.as_secs_f64())
    )
}

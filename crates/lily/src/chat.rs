//! `lily chat`: a conversation in the terminal.

use std::io::stdout;

use anyhow::Result;
use lily_chat::Piece;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use crate::cli::ChatArgs;
use crate::conversation::{Conversation, Ending};
use crate::load::Model;
use crate::terminal::Painter;

const HELP: &str = "/help     this\n/reset    forget the conversation\n/think    think before answering\n/nothink  answer at once\n\
                    /stats    what the last reply cost\n/quit     leave (also Ctrl-D)\nCtrl-C stops a reply.";

/// Reads questions and streams answers until /quit or the end of input.
pub(crate) fn chat(args: &ChatArgs) -> Result<()> {
    let model = Model::open(&args.model, 1)?;
    let engine = model.start()?;
    let mut conversation = Conversation::new(&model, &engine, &args.sampling);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut editor = DefaultEditor::new()?;
    println!("{} on {}. /help lists commands.", model.checkpoint.name(), engine.description().name);
    loop {
        let line = match editor.readline("> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => {
                println!("/quit or Ctrl-D leaves.");
                continue;
            }
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        editor.add_history_entry(line)?;
        match line {
            "/quit" | "/exit" => return Ok(()),
            "/help" => println!("{HELP}"),
            "/reset" => conversation.reset(),
            "/think" => conversation.thinking = true,
            "/nothink" => conversation.thinking = false,
            "/stats" => print_stats(&conversation),
            command if command.starts_with('/') => println!("{command}: unknown. /help lists commands."),
            question => {
                // A reply that fails, say because the conversation has outgrown the context, must not end the program.
                if let Err(error) = runtime.block_on(reply(&mut conversation, question)) {
                    eprintln!("{error:#}");
                }
            }
        }
    }
}

async fn reply(conversation: &mut Conversation<'_>, question: &str) -> Result<()> {
    let mut painter = Painter::new(stdout());
    let mut thinking = false;
    let show = |piece: &Piece| match piece {
        Piece::Reasoning(text) => {
            thinking = true;
            painter.write(text, true)
        }
        Piece::Content(text) => {
            if std::mem::take(&mut thinking) {
                painter.write("\n\n", false)?;
            }
            painter.write(text, false)
        }
    };
    let interrupt = async {
        // Without a handler Ctrl-C just ends the program, which is no worse.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let done = conversation.ask(question, show, interrupt).await;
    painter.end()?;
    done?;
    match conversation.last.map(|cost| cost.ending) {
        Some(Ending::Interrupted) => println!("(stopped)"),
        Some(Ending::Length) => println!("(cut: the token limit or the context is reached)"),
        _ => {}
    }
    Ok(())
}

fn print_stats(conversation: &Conversation<'_>) {
    let Some(cost) = conversation.last else {
        println!("no reply yet");
        return;
    };
    let rate = |tokens: usize, seconds: f64| tokens as f64 / seconds.max(1e-9);
    println!(
        "prompt {} tokens in {:.2} s ({:.1}/s), reply {} tokens in {:.2} s ({:.1}/s)",
        cost.prompt_tokens,
        cost.prefill.as_secs_f64(),
        rate(cost.prompt_tokens, cost.prefill.as_secs_f64()),
        cost.reply_tokens,
        cost.decode.as_secs_f64(),
        rate(cost.reply_tokens.saturating_sub(1), cost.decode.as_secs_f64())
    );
}

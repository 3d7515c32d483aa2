//! A conversation in this process: history, settings, and the way from a question to a streamed answer.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use lily_backend::Sampling;
use lily_chat::{Detokenizer, Guard, Piece, Prompt, ReasoningSplitter, begins_in_reasoning};
use lily_engine::{Engine, Event, FinishReason, Reply, Request};
use serde_json::{Value, json};

use crate::cli::SamplingArgs;
use crate::load::{self, Model};
use crate::terminal::PrefillProgress;

/// How a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The model ended it.
    Complete,
    /// It reached `--max-tokens`.
    TokenLimit,
    /// It reached the end of the context.
    ContextFull,
    /// The user stopped it.
    Interrupted,
    /// The user stopped it before its first token; the question is not part of the history.
    TakenBack,
}

/// What the last reply cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) ending: Ending,
    pub(crate) prompt_tokens: usize,
    /// Those of them that had been read at the end.
    pub(crate) read_tokens: usize,
    pub(crate) reply_tokens: usize,
    pub(crate) prefill: Duration,
    pub(crate) decode: Duration,
}

/// The messages so far and how to answer the next.
pub(crate) struct Conversation<'m> {
    model: &'m Model,
    engine: &'m Engine,
    args: &'m SamplingArgs,
    messages: Vec<Value>,
    pub(crate) thinking: bool,
    pub(crate) last: Option<Cost>,
}

impl<'m> Conversation<'m> {
    pub(crate) fn new(model: &'m Model, engine: &'m Engine, args: &'m SamplingArgs) -> Self {
        let mut conversation = Self { model, engine, args, messages: Vec::new(), thinking: !args.no_think, last: None };
        conversation.reset();
        conversation
    }

    /// Forgets everything but the system text.
    pub(crate) fn reset(&mut self) {
        self.messages.clear();
        self.messages.extend(self.args.system.iter().map(|text| json!({"role": "system", "content": text})));
    }

    /// Asks `question` and gives the answer's pieces to `show` as they come, until it ends or `interrupt` does. Question
    /// and answer join the history; on an error, or if it is interrupted before the answer begins, they do not.
    pub(crate) async fn ask(
        &mut self,
        question: &str,
        mut show: impl FnMut(&Piece) -> std::io::Result<()>,
        interrupt: impl Future<Output = ()>,
    ) -> Result<()> {
        let before = self.messages.len();
        self.messages.push(json!({"role": "user", "content": question}));
        let answered = self.answer(&mut show, interrupt).await;
        if answered.is_err() || self.last.is_some_and(|cost| cost.ending == Ending::TakenBack) {
            self.messages.truncate(before);
        }
        answered
    }

    /// Tokens of the context that every prompt and its reply share.
    pub(crate) fn max_context(&self) -> usize {
        self.engine.max_context()
    }

    /// Whether anything has been said, which [`Conversation::reset`] would forget.
    pub(crate) fn has_history(&self) -> bool {
        self.messages.iter().any(|message| message["role"] != "system")
    }

    async fn answer(
        &mut self,
        show: &mut impl FnMut(&Piece) -> std::io::Result<()>,
        interrupt: impl Future<Output = ()>,
    ) -> Result<()> {
        let (mut reply, prompt_tokens, mut splitter) = self.submit()?;
        let mut detokenizer = Detokenizer::new(Arc::clone(&self.model.tokenizer));
        let mut progress = PrefillProgress::new();
        let (mut reasoning, mut content) = (String::new(), String::new());
        let mut take = |pieces: Vec<Piece>| -> Result<()> {
            for piece in &pieces {
                match piece {
                    Piece::Reasoning(text) => reasoning.push_str(text),
                    Piece::Content(text) => content.push_str(text),
                }
                show(piece)?;
            }
            Ok(())
        };
        let started = Instant::now();
        let mut first_token = None;
        let mut read = 0;
        let mut tokens = 0;
        let mut interrupt = std::pin::pin!(interrupt);
        let ending = loop {
            let event = tokio::select! {
                biased;
                () = &mut interrupt => break if tokens == 0 { Ending::TakenBack } else { Ending::Interrupted },
                event = reply.recv() => event,
            };
            match event {
                Some(Event::Started { cached_tokens }) => read = cached_tokens,
                Some(Event::Prefill { done, total }) => {
                    read = done;
                    progress.update(done, total);
                }
                Some(Event::Token(sample)) => {
                    progress.finish();
                    read = prompt_tokens;
                    first_token.get_or_insert_with(Instant::now);
                    tokens += 1;
                    take(splitter.push(&detokenizer.push(sample.token)))?;
                }
                Some(Event::Finished { reason, usage }) => {
                    // The token that ended it was not given out.
                    tokens = usage.completion_tokens;
                    read = prompt_tokens;
                    break match reason {
                        FinishReason::Stop => Ending::Complete,
                        FinishReason::Length if prompt_tokens + tokens >= self.max_context() => Ending::ContextFull,
                        FinishReason::Length => Ending::TokenLimit,
                    };
                }
                Some(Event::Failed(why)) => bail!("{why}"),
                None => bail!("the engine ended the reply without a reason"),
            }
        };
        progress.finish();
        take(splitter.push(&detokenizer.finish()))?;
        take(splitter.finish())?;
        self.messages.push(json!({"role": "assistant", "content": content, "reasoning_content": reasoning}));
        let first_token = first_token.unwrap_or_else(Instant::now);
        self.last = Some(Cost {
            ending,
            prompt_tokens,
            read_tokens: read,
            reply_tokens: tokens,
            prefill: first_token - started,
            decode: first_token.elapsed(),
        });
        Ok(())
    }

    /// The reply under way, the tokens of its prompt, and what tells its reasoning from its content.
    fn submit(&self) -> Result<(Reply, usize, ReasoningSplitter)> {
        let kwargs = [("enable_thinking".to_string(), Value::Bool(self.thinking))].into_iter().collect();
        let prompt = Prompt { messages: self.messages.clone(), tools: Vec::new(), add_generation_prompt: true, kwargs };
        let guard = Guard::new(&self.model.tokenizer);
        let prompt = self.model.template.render_guarded(&prompt, &guard)?;
        let splitter = ReasoningSplitter::new(begins_in_reasoning(&prompt));
        let ids = guard.encode(&prompt)?;
        let prompt_tokens = ids.len();
        let room = self.max_context().saturating_sub(ids.len()).max(1);
        let max_tokens = self.args.max_tokens.map_or(room, |limit| room.min(limit as usize));
        let request = Request {
            sampling: self.sampling(),
            penalties: load::penalties(&self.model.checkpoint.generation),
            seed: self.args.seed,
            stop_tokens: self.model.checkpoint.generation.eos_token_ids.clone(),
            ..Request::new(ids, max_tokens)
        };
        Ok((self.engine.submit(request)?, prompt_tokens, splitter))
    }

    fn sampling(&self) -> Sampling {
        let defaults = load::sampling(&self.model.checkpoint.generation);
        Sampling { temperature: self.args.temperature.unwrap_or(defaults.temperature), ..defaults }
    }
}

#[cfg(test)]
mod tests {
    use super::{Conversation, Ending};
    use crate::cli::{Cli, Command, RunArgs};
    use crate::load::Model;
    use clap::Parser;
    use lily_engine::SubmitError;
    use std::future::{pending, ready};
    use tokio::sync::oneshot;

    fn arguments(more: &[&str]) -> RunArgs {
        let arguments = ["lily", "run", "--no-think", "--temperature", "0", "--max-context", "600"];
        let cli = Cli::try_parse_from(arguments.iter().chain(more)).expect("good arguments");
        let Command::Run(arguments) = cli.command else { unreachable!("it is run") };
        arguments
    }

    /// A conversation of the embedded model.
    fn with_conversation(more: &[&str], test: impl AsyncFnOnce(Conversation<'_>)) {
        let arguments = arguments(more);
        let model = Model::open(&arguments.model, 1).expect("the embedded model");
        let engine = model.start().expect("an engine");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(test(Conversation::new(&model, &engine, &arguments.sampling)));
    }

    #[test]
    fn a_question_stopped_before_its_answer_is_taken_back() {
        with_conversation(&["--system", "Be brief."], async |mut conversation| {
            conversation.ask("My name is Anna.", |_| Ok(()), ready(())).await.expect("no error");
            let cost = conversation.last.expect("a cost");
            assert_eq!((cost.ending, cost.read_tokens, cost.reply_tokens), (Ending::TakenBack, 0, 0));
            assert!(cost.prompt_tokens > 0 && !conversation.has_history());
            assert_eq!(conversation.messages.len(), 1);
        });
    }

    #[test]
    fn a_reply_that_is_stopped_stays() {
        with_conversation(&[], async |mut conversation| {
            let (stop, stopped) = oneshot::channel();
            let mut stop = Some(stop);
            let show = |_: &_| {
                stop.take().map(|stop| stop.send(()));
                Ok(())
            };
            let interrupt = async { stopped.await.expect("it is sent") };
            conversation.ask("Count from 1 to 20.", show, interrupt).await.expect("no error");
            let cost = conversation.last.expect("a cost");
            assert_eq!((cost.ending, cost.read_tokens), (Ending::Interrupted, cost.prompt_tokens));
            assert!(cost.reply_tokens > 0);
            assert_eq!(conversation.messages.len(), 2);
            assert_ne!(conversation.messages[1]["content"], "");
        });
    }

    #[test]
    fn the_two_limits_are_told_apart() {
        with_conversation(&["--max-tokens", "3"], async |mut conversation| {
            conversation.ask("Count from 1 to 20.", |_| Ok(()), pending()).await.expect("no error");
            assert_eq!(conversation.last.expect("a cost").ending, Ending::TokenLimit);
        });
        with_conversation(&[], async |mut conversation| {
            let mut asked = 0;
            let full = loop {
                asked += 1;
                assert!(asked < 200, "the context never fills");
                if let Err(error) = conversation.ask("Count from 1 to 20.", |_| Ok(()), pending()).await {
                    break error;
                }
            };
            assert!(matches!(full.downcast_ref(), Some(SubmitError::TooLong { limit: 600, .. })), "{full}");
            assert!(conversation.has_history());
            assert_eq!(conversation.messages.len() % 2, 0);
        });
    }
}

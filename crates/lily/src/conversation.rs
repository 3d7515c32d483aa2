//! A conversation in this process: history, settings, and the way from a question to a streamed answer.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use lily_backend::Sampling;
use lily_chat::{Detokenizer, Piece, Prompt, ReasoningSplitter, begins_in_reasoning};
use lily_engine::{Engine, Event, FinishReason, Reply, Request, Usage};
use serde_json::{Value, json};

use crate::cli::SamplingArgs;
use crate::load::{self, Model};
use crate::terminal::PrefillProgress;

/// How a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The model ended it.
    Complete,
    /// The token limit or the context ended it.
    Length,
    /// The user stopped it.
    Interrupted,
}

/// What the last reply cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) ending: Ending,
    pub(crate) prompt_tokens: usize,
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
    /// and answer join the history; on an error they do not.
    pub(crate) async fn ask(
        &mut self,
        question: &str,
        mut show: impl FnMut(&Piece) -> std::io::Result<()>,
        interrupt: impl Future<Output = ()>,
    ) -> Result<()> {
        let before = self.messages.len();
        self.messages.push(json!({"role": "user", "content": question}));
        let answered = self.answer(&mut show, interrupt).await;
        if answered.is_err() {
            self.messages.truncate(before);
        }
        answered
    }

    async fn answer(
        &mut self,
        show: &mut impl FnMut(&Piece) -> std::io::Result<()>,
        interrupt: impl Future<Output = ()>,
    ) -> Result<()> {
        let (mut reply, mut splitter) = self.submit()?;
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
        let mut tokens = 0;
        let mut interrupt = std::pin::pin!(interrupt);
        let (ending, usage) = loop {
            let event = tokio::select! {
                () = &mut interrupt => break (Ending::Interrupted, None),
                event = reply.recv() => event,
            };
            match event {
                Some(Event::Prefill { done, total }) => progress.update(done, total),
                Some(Event::Token(sample)) => {
                    progress.finish();
                    first_token.get_or_insert_with(Instant::now);
                    tokens += 1;
                    take(splitter.push(&detokenizer.push(sample.token)))?;
                }
                Some(Event::Finished { reason: FinishReason::Stop, usage }) => break (Ending::Complete, Some(usage)),
                Some(Event::Finished { reason: FinishReason::Length, usage }) => break (Ending::Length, Some(usage)),
                Some(Event::Failed(why)) => bail!("{why}"),
                None => bail!("the engine ended the reply without a reason"),
            }
        };
        progress.finish();
        take(splitter.push(&detokenizer.finish()))?;
        take(splitter.finish())?;
        self.messages.push(json!({"role": "assistant", "content": content, "reasoning_content": reasoning}));
        let first_token = first_token.unwrap_or_else(Instant::now);
        let Usage { prompt_tokens, completion_tokens, .. } =
            usage.unwrap_or(Usage { prompt_tokens: 0, cached_tokens: 0, completion_tokens: tokens });
        self.last = Some(Cost {
            ending,
            prompt_tokens,
            reply_tokens: completion_tokens,
            prefill: first_token - started,
            decode: first_token.elapsed(),
        });
        Ok(())
    }

    fn submit(&self) -> Result<(Reply, ReasoningSplitter)> {
        let kwargs = [("enable_thinking".to_string(), Value::Bool(self.thinking))].into_iter().collect();
        let prompt = Prompt { messages: self.messages.clone(), tools: Vec::new(), add_generation_prompt: true, kwargs };
        let prompt = self.model.template.render(&prompt)?;
        let splitter = ReasoningSplitter::new(begins_in_reasoning(&prompt));
        let ids = self.model.tokenizer.encode(&prompt)?;
        let room = self.engine.max_context().saturating_sub(ids.len()).max(1);
        let request = Request {
            sampling: self.sampling(),
            seed: self.args.seed,
            stop_tokens: self.model.checkpoint.generation.eos_token_ids.clone(),
            ..Request::new(ids, self.args.max_tokens.unwrap_or(room).min(room))
        };
        Ok((self.engine.submit(request)?, splitter))
    }

    fn sampling(&self) -> Sampling {
        let defaults = load::sampling(&self.model.checkpoint.generation);
        Sampling { temperature: self.args.temperature.unwrap_or(defaults.temperature), ..defaults }
    }
}

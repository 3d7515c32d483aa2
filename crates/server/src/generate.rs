//! One choice: the engine's reply turned into text and counts. Shared by all endpoints; knows no HTTP.

pub(crate) use crate::counts::Counts;
use crate::recorder::Recorder;
use crate::reply::Reply;
use crate::text::{Delta, ReplyText};
use crate::usage::Usage;
use futures_util::stream::{self, Stream};
use lily_engine::{Event, FinishReason};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::timeout_at;

/// What a client is told whose request has no time left.
pub(crate) const TOO_LONG: &str = "The request took longer than this server lets one take, --request-timeout.";

/// What a client is told whose reply breaks off: the engine or the reply's driver has panicked.
pub(crate) const NO_REASON: &str = "the reply ended without a reason";

/// How an answer ended, if its client did not go before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Every choice was ended by the model or by a stop string.
    Stop,
    /// A choice was cut.
    Length,
    /// The engine gave up.
    Failed,
    /// It took longer than a request may.
    TimedOut,
    /// The server's end came first.
    Shutdown,
}

impl End {
    /// Of the answer whose choices so far had this end, with one more.
    pub(crate) fn and(self, reason: Reason) -> Self {
        match reason {
            Reason::Stop | Reason::ToolCalls => self,
            Reason::Length => Self::Length,
        }
    }

    /// Its name in the log.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Failed => "failed",
            Self::TimedOut => "timeout",
            Self::Shutdown => "shutdown",
        }
    }
}

/// Why a choice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The model was done, or a stop string came.
    Stop,
    /// It was cut; or the model ended it in the middle of a call, which is cut then.
    Length,
    /// It was done and wants tools to be called.
    ToolCalls,
}

/// What happens to a choice, in order; `Finished` or `Failed` is the last.
#[derive(Debug)]
pub(crate) enum Update {
    /// It has a place, and so much of its prompt need not be read.
    Started {
        cached_tokens: usize,
    },
    /// Part of a long prompt has been read.
    Prefill {
        done: usize,
        total: usize,
    },
    Delta(Delta),
    Finished {
        reason: Reason,
        usage: Usage,
        /// The stop string that ended it, by its place in the list.
        stop_string: Option<usize>,
    },
    /// The engine could not go on.
    Failed(String),
}

/// A reply under way. Dropping it ends it.
pub(crate) struct Generation {
    reply: lily_engine::Reply,
    text: ReplyText,
    /// There as long as the reply may have to be kept.
    recorder: Option<Recorder>,
    usage: Usage,
    counts: Arc<Counts>,
    /// When the last token came.
    last_token: Option<Instant>,
    stage: Stage,
}

enum Stage {
    Running,
    /// The end of the text has been given out; this is left to tell.
    Ending(Reason),
    Ended,
}

impl Generation {
    /// `prompt_tokens`: what this choice adds to the request's usage; 0 for all but the first choice of a prompt.
    pub(crate) fn new(
        reply: lily_engine::Reply,
        text: ReplyText,
        recorder: Option<Recorder>,
        prompt_tokens: usize,
        counts: Arc<Counts>,
    ) -> Self {
        let usage = Usage { prompt_tokens, ..Usage::default() };
        Self { reply, text, recorder, usage, counts, last_token: None, stage: Stage::Running }
    }

    /// What happens, as it happens. A stop string or the deadline ends the engine's work also while nobody takes the updates:
    /// a client may not read for a long time. Dropping the stream ends the reply.
    pub(crate) fn updates(self) -> impl Stream<Item = Update> + Send + 'static {
        driven(|sender| self.send_updates(sender))
    }

    async fn send_updates(mut self, updates: UnboundedSender<Update>) {
        while let Some(update) = self.next().await {
            if updates.send(update).is_err() {
                return;
            }
        }
    }

    /// The whole reply, or why it failed.
    pub(crate) async fn complete(mut self) -> Result<(Reply, Reason, Usage), String> {
        let mut whole = Reply::default();
        while let Some(update) = self.next().await {
            match update {
                Update::Started { .. } | Update::Prefill { .. } => {}
                Update::Delta(delta) => {
                    whole.extend(delta.events);
                    whole.tokens.extend(delta.tokens);
                }
                Update::Finished { reason, usage, .. } => return Ok((whole, reason, usage)),
                Update::Failed(message) => return Err(message),
            }
        }
        Err(NO_REASON.into())
    }

    async fn next(&mut self) -> Option<Update> {
        match self.stage {
            Stage::Running => {}
            Stage::Ending(reason) => return Some(self.finished(reason)),
            Stage::Ended => return None,
        }
        loop {
            let event = match self.counts.deadline {
                None => self.reply.recv().await,
                // Tokens that are always there already would never let the timer go off.
                Some(deadline) if deadline <= tokio::time::Instant::now() => return Some(self.timed_out()),
                Some(deadline) => match timeout_at(deadline, self.reply.recv()).await {
                    Ok(event) => event,
                    Err(_elapsed) => return Some(self.timed_out()),
                },
            };
            match event? {
                Event::Started { cached_tokens } => {
                    self.counts.started(cached_tokens);
                    self.cached(cached_tokens);
                    return Some(Update::Started { cached_tokens });
                }
                Event::Prefill { done, total } => {
                    self.counts.prefilled(done);
                    return Some(Update::Prefill { done, total });
                }
                Event::Token(sample) => {
                    self.usage.completion_tokens += 1;
                    self.counts.token(&mut self.last_token);
                    if let Some(recorder) = &mut self.recorder {
                        recorder.token(sample.token);
                    }
                    let delta = self.text.push(sample);
                    if self.text.stopped() {
                        self.reply.cancel();
                        return Some(self.last_delta(FinishReason::Stop));
                    }
                    if let Some(delta) = delta {
                        self.record(&delta);
                        return Some(Update::Delta(delta));
                    }
                }
                Event::Finished { reason, usage } => {
                    let stop_token = usage.completion_tokens.saturating_sub(self.usage.completion_tokens);
                    self.counts.completion_tokens.fetch_add(stop_token, Ordering::Relaxed);
                    self.usage.completion_tokens = usage.completion_tokens;
                    self.cached(usage.cached_tokens);
                    return Some(self.last_delta(reason));
                }
                Event::Failed(message) => {
                    self.stage = Stage::Ended;
                    return Some(Update::Failed(message));
                }
            }
        }
    }

    fn timed_out(&mut self) -> Update {
        self.reply.cancel();
        self.stage = Stage::Ended;
        self.counts.end.get_or_init(|| End::TimedOut);
        Update::Failed(TOO_LONG.into())
    }

    /// Of the choices of one prompt the first tells for all.
    fn cached(&mut self, tokens: usize) {
        if self.usage.prompt_tokens > 0 {
            self.usage.cached_tokens = tokens;
        }
    }

    fn record(&mut self, delta: &Delta) {
        if let Some(recorder) = &mut self.recorder {
            recorder.events(&delta.events);
        }
    }

    /// The rest of the text, if there is any, and then the end.
    fn last_delta(&mut self, reason: FinishReason) -> Update {
        let by_model = reason == FinishReason::Stop && !self.text.stopped();
        let delta = self.text.finish(by_model);
        // A stop string may have come to its end only now.
        let by_model = by_model && !self.text.stopped();
        self.record(&delta);
        self.usage.reasoning_tokens = self.text.reasoning_tokens();
        let reason = match reason {
            FinishReason::Stop if by_model && self.text.cut_a_call() => Reason::Length,
            FinishReason::Stop if self.text.calls_tools() => Reason::ToolCalls,
            FinishReason::Stop => Reason::Stop,
            FinishReason::Length => Reason::Length,
        };
        if let Some(recorder) = self.recorder.take()
            && reason == Reason::ToolCalls
            && (by_model || recorder.ends_with_a_call())
        {
            recorder.keep(self.text.content_start());
        }
        if !delta.events.is_empty() || !delta.tokens.is_empty() {
            self.stage = Stage::Ending(reason);
            return Update::Delta(delta);
        }
        self.finished(reason)
    }

    fn finished(&mut self, reason: Reason) -> Update {
        self.stage = Stage::Ended;
        Update::Finished { reason, usage: self.usage, stop_string: self.text.stop_string() }
    }
}

/// What a task of its own sends, which ends with the stream. If it ends without `Finished` or `Failed`, that is a failure.
fn driven<F>(drive: impl FnOnce(UnboundedSender<Update>) -> F) -> impl Stream<Item = Update> + Send + 'static
where
    F: Future<Output = ()> + Send + 'static,
{
    let (sender, receiver) = unbounded_channel();
    let mut driver = JoinSet::new();
    driver.spawn(drive(sender));
    stream::unfold(Some((receiver, driver)), |running| async {
        let (mut receiver, driver) = running?;
        let update = receiver.recv().await.unwrap_or_else(|| Update::Failed(NO_REASON.into()));
        let is_last = matches!(update, Update::Finished { .. } | Update::Failed(_));
        Some((update, (!is_last).then_some((receiver, driver))))
    })
}

#[cfg(test)]
mod tests {
    use super::{NO_REASON, Reason, Update, driven};
    use crate::usage::Usage;
    use futures_util::stream::StreamExt;

    #[tokio::test]
    async fn a_driver_that_panics_is_a_failure() {
        let updates: Vec<Update> = driven(|sender| async move {
            sender.send(Update::Prefill { done: 1, total: 2 }).expect("somebody takes it");
            panic!("as the test wants it");
        })
        .collect()
        .await;
        assert!(
            matches!(&updates[..], [Update::Prefill { .. }, Update::Failed(why)] if why == NO_REASON),
            "{updates:?}"
        );
    }

    #[tokio::test]
    async fn one_that_has_said_how_it_ends_is_none() {
        let end = || Update::Finished { reason: Reason::Stop, usage: Usage::default(), stop_string: None };
        let updates: Vec<Update> =
            driven(|sender| async move { sender.send(end()).expect("somebody takes it") }).collect().await;
        assert!(matches!(&updates[..], [Update::Finished { .. }]), "{updates:?}");
    }
}

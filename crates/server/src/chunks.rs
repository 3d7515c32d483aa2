//! A stream of chunks, as the endpoints with choices write it.

use crate::answer::{Answer, Shape};
use crate::generate::{End, Reason};
use crate::params::Parameters;
use crate::stream::{Writer, event};
use crate::text::Delta;
use crate::usage::Usage;
use axum::body::Bytes;
use serde_json::{Value, json};

/// Each piece of a choice in a chunk of its own.
pub(crate) struct Chunks<S> {
    shape: S,
    answer: Answer,
    include_usage: bool,
    /// Whether the client wants to be told of its prompt.
    return_progress: bool,
    usage: Usage,
    /// Of the choices that have ended.
    end: End,
}

impl<S: Shape> Chunks<S> {
    pub(crate) fn new(shape: S, answer: Answer, parameters: &Parameters) -> Self {
        let &Parameters { include_usage, return_progress, .. } = parameters;
        Self { shape, answer, include_usage, return_progress, usage: Usage::default(), end: End::Stop }
    }

    fn chunk(&self, choice: Value) -> Bytes {
        let mut chunk = self.answer.with(vec![choice]);
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        event(&chunk)
    }
}

impl<S: Shape> Writer for Chunks<S> {
    fn open(&mut self, choices: usize) -> Vec<Bytes> {
        let openings: Vec<Value> = (0..choices).filter_map(|index| self.shape.opening(index)).collect();
        openings.into_iter().map(|choice| self.chunk(choice)).collect()
    }

    /// As llama.cpp's server has it.
    fn progress(&mut self, done: usize, total: usize) -> Vec<Bytes> {
        if !self.return_progress {
            return Vec::new();
        }
        let (cached, elapsed) = self.answer.cached_and_elapsed();
        let mut chunk = self.answer.with(Vec::new());
        chunk["prompt_progress"] =
            json!({"total": total, "cache": cached, "processed": done, "time_ms": elapsed.as_millis() as u64});
        vec![event(&chunk)]
    }

    fn delta(&mut self, index: usize, delta: Delta) -> Vec<Bytes> {
        let choices = self.shape.more(index, delta);
        choices.into_iter().map(|choice| self.chunk(choice)).collect()
    }

    fn finished(&mut self, index: usize, reason: Reason, usage: Usage, _stop_string: Option<usize>) -> Vec<Bytes> {
        self.usage += usage;
        self.end = self.end.and(reason);
        let choice = self.shape.end(index, reason);
        vec![self.chunk(choice)]
    }

    fn failed(&mut self, message: String) -> Vec<Bytes> {
        vec![event(&self.answer.failure(message).body())]
    }

    fn close(&mut self) -> Vec<Bytes> {
        self.answer.ended(self.end);
        let mut last = Vec::new();
        if self.include_usage {
            let mut chunk = self.answer.with(Vec::new());
            chunk["usage"] = self.usage.to_json();
            last.push(event(&chunk));
        }
        last.push(Bytes::from_static(b"data: [DONE]\n\n"));
        last
    }
}

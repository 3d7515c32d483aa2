//! A stream of chunks, as the endpoints with choices write it.

use crate::answer::{Answer, Shape};
use crate::generate::{End, Reason};
use crate::stream::{Writer, event};
use crate::text::Delta;
use crate::usage::Usage;
use axum::body::Bytes;
use serde_json::Value;

/// Each piece of a choice in a chunk of its own.
pub(crate) struct Chunks<S> {
    shape: S,
    answer: Answer,
    include_usage: bool,
    usage: Usage,
    /// Of the choices that have ended.
    end: End,
}

impl<S: Shape> Chunks<S> {
    pub(crate) fn new(shape: S, answer: Answer, include_usage: bool) -> Self {
        Self { shape, answer, include_usage, usage: Usage::default(), end: End::Stop }
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

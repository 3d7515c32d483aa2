//! Text to tokens and back: everything between a chat request's messages and the model's token ids, and between the
//! ids the model gives and the text a client sees. Knows no wire format and no model.
//!
//! Towards the model: [`ChatTemplate`] renders messages with the checkpoint's own Jinja template, [`Tokenizer`] turns
//! the prompt into ids, and [`Guard`] keeps what stands in messages from being taken for control tokens. Back from it: [`Detokenizer`] gives complete characters, [`StopStrings`] ends the text at the
//! caller's stop strings, [`ReplyParser`] tells reasoning, content and tool calls apart. The last three work on a
//! stream, and the way a text is cut into pushes never changes what comes out. [`Grammars`] says which tokens a reply may go on
//! with where it must be JSON of a schema, or a call.

mod detokenizer;
mod grammar;
mod guard;
mod json;
mod late_system;
mod messages;
mod pretokenizer;
mod python;
mod reasoning;
mod reply;
mod secret;
mod stop;
mod template;
pub mod tiktoken;
mod tokenizer;
mod tools;

pub use detokenizer::Detokenizer;
pub use grammar::{ForcedCalls, Format, GrammarError, Grammars, ReplyGrammar};
pub use guard::Guard;
pub use json::spelled;
pub use reasoning::{Piece, ReasoningSplitter, begins_in_reasoning};
pub use reply::ReplyParser;
pub use secret::secret;
pub use stop::{EmptyStopString, StopStrings, Stopped};
pub use template::{ChatTemplate, Prompt, TemplateError};
pub use tokenizer::{Tokenizer, TokenizerError};
pub use tools::{CallOptions, CallParser, ReplyEvent, ToolSet};

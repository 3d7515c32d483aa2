//! Tool calls in a reply: found while the text streams, their arguments given as JSON while they are written.
//!
//! The model writes
//! ```text
//! <tool_call>
//! <function=NAME>
//! <parameter=KEY>
//! VALUE
//! </parameter>
//! </function>
//! </tool_call>
//! ```
//! where a value is a string as it is or anything else as JSON, so what a value is can be told only by the declared
//! schema: [`ToolSet`] has it.

mod coerce;
mod events;
mod json_call;
mod literal;
mod markup;
mod parser;
mod schema;
mod value;

pub(crate) use coerce::{coerce, quoted};
pub use events::ReplyEvent;
pub(crate) use json_call::salvage;
pub(crate) use markup::{Found, call_in_reasoning};
pub use parser::{CallOptions, CallParser};
pub use schema::ToolSet;
pub(crate) use schema::{Expected, Kinds, target, unescaped};

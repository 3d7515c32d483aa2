//! Replies that follow a grammar: JSON of a schema, a text of a regular expression, a call of a tool.
//!
//! [`Grammars`] has the vocabulary as a tree of bytes, so that a token counts by the bytes it is made of: one that ends a
//! word and begins the next is as good as two. Of what a client asks for it makes a [`ReplyGrammar`], which says token by
//! token what may come next. The grammars themselves are llguidance's.

mod branches;
mod calls;
mod definitions;
mod document;
mod followable;
mod formats;
mod json_text;
mod latitude;
mod masks;
mod nesting;
mod numbers;
mod one_of;
mod parameter;
mod pattern;
mod place;
mod properties;
mod reason;
mod reply;
mod schema;
mod slices;
mod states;
mod text;
mod thinking;
mod vocabulary;
#[cfg(test)]
mod walks;

use std::sync::Arc;
use std::thread;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{InferenceCapabilities, TokEnv};
use llguidance::{ParserFactory, regex_to_lark};
use serde_json::{Value, json};

pub use calls::ForcedCalls;
pub use reply::ReplyGrammar;

use crate::Tokenizer;
use calls::{Calls, Looser, Part};
use document::Budget;
use latitude::States;
use masks::Masks;
use reason::refused;
use slices::Slices;
use states::Counter;
use thinking::Thinking;
use vocabulary::Vocabulary;

/// Parameters of forced calls that are compiled each by itself to find the one that is refused; some 2 ms each.
const MOST_TRIED: usize = 1_000;

/// Lexer states that one grammar may make, each of one or two kilobytes: up to 100 MB of memory that no plan holds, mostly
/// some hundreds of kilobytes.
const MOST_LEXER_STATES: usize = 250_000;
/// What one step of a lexer may cost, in units of some 100 ns.
const STEP_FUEL: u64 = 1_000_000;
/// Items of a parser where it is, and those that it may look at in a step: of the properties of an object up to four each.
const MOST_ITEMS: (usize, usize) = (10_000, 250_000);
/// The stack of a thread that compiles a grammar, of which mostly very little is touched. The compilers recurse, as deep as
/// [`nesting`] lets a grammar be.
const STACK: usize = 256 << 20;

/// What the content of a reply is to be.
#[derive(Clone, Debug, PartialEq)]
pub enum Format {
    /// Any JSON object.
    JsonObject,
    /// JSON that this schema allows; see [`Grammars::answer`].
    JsonSchema(Value),
    /// A text that this regular expression matches as a whole, in the syntax of Rust's `regex` crate without look-around.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A text of this grammar, in llguidance's dialect of Lark, from the rule `start`.
    Lark(String),
}

/// Why there is no grammar, or no way on in one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// What was asked for cannot be had; this is why.
    #[error("{0}")]
    Refused(String),
    /// A part of a format's schema has what cannot be had.
    #[error("'{path}' of the schema: {reason}")]
    Schema {
        /// Where in the schema, as `properties.city`.
        path: String,
        /// Why.
        reason: String,
    },
    /// A function that must be called has a parameter that no call can be held to.
    #[error("{}: {reason}", place_in(function, path))]
    Parameter {
        /// The function's name.
        function: String,
        /// Where in its parameters' schema, as `properties.city`; empty for the schema as a whole.
        path: String,
        /// Why.
        reason: String,
    },
    /// A fault of ours.
    #[error("the grammar failed: {0}")]
    Failed(String),
}

/// Makes grammars over one vocabulary.
pub struct Grammars {
    factory: ParserFactory,
    slices: Arc<Slices>,
    tokenizer: Arc<Tokenizer>,
    thinking: Arc<Thinking>,
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammars").finish_non_exhaustive()
    }
}

impl Grammars {
    /// Over a tokenizer's vocabulary; `stop_tokens` end replies. It takes about a second for a vocabulary of 248,000.
    ///
    /// # Errors
    /// [`GrammarError::Failed`] if there is no stop token, or the vocabulary is not as it should be.
    pub fn new(tokenizer: Arc<Tokenizer>, stop_tokens: &[u32]) -> Result<Self, GrammarError> {
        let thinking = Arc::new(Thinking::new(Arc::clone(&tokenizer), stop_tokens)?);
        let vocabulary: TokEnv = Arc::new(Vocabulary::new(Arc::clone(&tokenizer), stop_tokens)?);
        let slices = vocabulary::slices();
        let mut factory = ParserFactory::new(&vocabulary, InferenceCapabilities::default(), &slices).map_err(failed)?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.max_lexer_states = MOST_LEXER_STATES;
        limits.step_lexer_fuel = STEP_FUEL;
        (limits.max_items_in_row, limits.step_max_items) = MOST_ITEMS;
        limits.verbose_errors = false;
        let slices = Arc::new(Slices::new(factory.slicer())?);
        Ok(Self { factory, slices, tokenizer, thinking })
    }

    /// The grammar of a reply whose content is of a format. It binds once the reasoning has ended, if the reply
    /// `begins_in_reasoning`; until then only the end of the reply is not allowed. If the reply `may_call` tools, it may
    /// begin with a call instead, which is free.
    ///
    /// Schemas are read as JSON Schema has them, with properties in their declared order and formats checked where they
    /// are known. Keywords that cannot be followed are refused; so is `oneOf` where a value may be of two of its schemas.
    ///
    /// # Errors
    /// [`GrammarError::Refused`] if there is no such reply, or the format cannot be understood; [`GrammarError::Schema`] if that is so
    /// of a part of its schema.
    pub fn answer(
        &self,
        format: &Format,
        begins_in_reasoning: bool,
        may_call: bool,
    ) -> Result<ReplyGrammar, GrammarError> {
        // Of a Lark grammar the client can be told a place; of the others it has not seen the grammar.
        let ours = !matches!(format, Format::Lark(_));
        let masks = on_deep_stack(|| {
            let bounds = (Counter::default(), Budget::default());
            let compiled = |format: &Format| self.masks(grammar_of(format, &bounds)?, ours);
            match (compiled(format), format) {
                (Err(GrammarError::Refused(reason)), Format::JsonSchema(schema)) if !bounds.1.is_spent() => {
                    let why = |part: &Value| match compiled(&Format::JsonSchema(part.clone())) {
                        Err(GrammarError::Refused(reason)) => Some(reason),
                        _ => None,
                    };
                    let (path, reason) = place::of_fault(schema, reason, why);
                    let whole = path.is_empty();
                    Err(if whole { GrammarError::Refused(reason) } else { GrammarError::Schema { path, reason } })
                }
                (compiled, _) => compiled,
            }
        })?;
        ReplyGrammar::new(masks, &self.thinking, begins_in_reasoning, may_call)
    }

    /// The grammar of a reply that calls tools. Its beginning, `primed`, is in the prompt already.
    ///
    /// Each parameter is held to all of its schema that a grammar can say. What it cannot is an error where the function is
    /// `strict`, and left out where it is not.
    ///
    /// # Errors
    /// [`GrammarError::Parameter`] if a parameter's schema has no value, or has to be followed and cannot;
    /// [`GrammarError::Refused`] if there are too many tools, parameters or values.
    pub fn calls(&self, calls: &ForcedCalls<'_>, primed: &str) -> Result<ReplyGrammar, GrammarError> {
        let masks = on_deep_stack(|| self.compiled(calls, primed))?;
        ReplyGrammar::new(masks, &self.thinking, false, false)
    }

    fn compiled(&self, forced: &ForcedCalls<'_>, primed: &str) -> Result<Masks, GrammarError> {
        let (mut looser, counter) = (Looser::new(), Counter::default());
        let calls = forced.write(&looser, &counter)?;
        let mut refusal = match self.whole(&calls, primed) {
            Ok(masks) => return Ok(masks),
            Err(refusal) => refusal,
        };
        // One of the parameters has it, if not all of them together.
        for (index, part) in calls.parts.iter().enumerate().take(MOST_TRIED) {
            if let Err(refusal) = self.part(part) {
                looser.insert(index, part.loosen(refusal)?);
            }
        }
        if !looser.is_empty() {
            match self.whole(&forced.write(&looser, &counter)?, primed) {
                Ok(masks) => return Ok(masks),
                Err(looser) => refusal = looser,
            }
        }
        // Those that take the most go first, until the others take a half of what all do, an eighth, or nothing is left.
        let mut ahead: Vec<(usize, &Part)> = calls.parts.iter().enumerate().filter(|(_, part)| !part.strict).collect();
        ahead.sort_by_key(|(_, part)| part.grammar.len());
        let all: usize = ahead.iter().map(|(_, part)| part.grammar.len()).sum();
        let mut left = all;
        for most in [all / 2, all / 8, 0] {
            while left > most
                && let Some((index, part)) = ahead.pop()
            {
                looser.insert(index, part.free(&refusal.to_string())?);
                left -= part.grammar.len();
            }
            if all > 0
                && let Ok(masks) = self.whole(&forced.write(&looser, &counter)?, primed)
            {
                return Ok(masks);
            }
        }
        Err(refusal)
    }

    /// The grammar of all calls, once `primed` has come.
    fn whole(&self, calls: &Calls, primed: &str) -> Result<Masks, GrammarError> {
        let mut masks = self.masks(TopLevelGrammar::from_lark(calls.grammar.clone()), true)?;
        self.go_ahead(masks.clone(), calls.sample.as_deref().unwrap_or_default())?;
        for token in self.tokenizer.encode_exactly(primed).map_err(failed)? {
            masks.consume(token).map_err(refused)?;
        }
        masks.next().map_err(refused)?;
        Ok(masks)
    }

    /// Has the lexer, which clones share, make the states that a text comes to, so that no step of a reply has to.
    fn go_ahead(&self, mut masks: Masks, text: &str) -> Result<(), GrammarError> {
        for token in self.tokenizer.encode_exactly(text).map_err(failed)? {
            // What goes wrong here does so again where it counts.
            if masks.next().is_err() || masks.consume(token).is_err() {
                break;
            }
        }
        Ok(())
    }

    fn part(&self, part: &Part) -> Result<(), GrammarError> {
        let masks = self.masks(TopLevelGrammar::from_lark(part.grammar.clone()), true);
        masks.map(drop).map_err(|error| match error {
            GrammarError::Refused(reason) => part.refused(reason),
            other => other,
        })
    }

    /// `ours`: whether the grammar's text is not the client's.
    fn masks(&self, grammar: TopLevelGrammar, ours: bool) -> Result<Masks, GrammarError> {
        let parser = self.factory.create_parser(grammar);
        let parser = parser.map_err(|error| reason::of_compiler(&format!("{error:#}"), ours))?;
        Ok(Masks::new(parser, Arc::clone(&self.slices)))
    }
}

/// What a schema's lengths, patterns and lists come to is counted within the bounds.
fn grammar_of(format: &Format, (counter, budget): &(Counter, Budget)) -> Result<TopLevelGrammar, GrammarError> {
    let of_schema = |schema: &Value| {
        let ready = schema::of_format(schema, budget, &States::of_format(counter))?;
        Ok(TopLevelGrammar::from_json_schema(ready))
    };
    Ok(match format {
        Format::JsonObject => of_schema(&json!({"type": "object"}))?,
        Format::JsonSchema(schema) => of_schema(schema)?,
        Format::Regex(regex) if regex.is_empty() => return Err(refused("the expression is empty")),
        // A digit is one of ten, as in JSON Schema; letters are those of all scripts.
        Format::Regex(regex) => {
            let expression = regex_to_lark(regex, "d");
            pattern::check_expression(&expression)?;
            TopLevelGrammar::from_lark(format!("start: /{expression}/"))
        }
        Format::Choice(choices) if choices.is_empty() => return Err(refused("there is nothing to choose from")),
        Format::Choice(choices) => {
            nesting::check_length("list of choices", choices.iter().map(String::len).sum())?;
            let choices: Vec<String> = choices.iter().map(|choice| lark_string(choice)).collect();
            TopLevelGrammar::from_lark(format!("start: {}", choices.join(" | ")))
        }
        Format::Lark(grammar) => {
            nesting::check_lark(grammar)?;
            TopLevelGrammar::from_lark(grammar.clone())
        }
    })
}

/// A text as a string of a Lark grammar.
fn lark_string(text: &str) -> String {
    // JSON's, but for one character that JSON does not escape.
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// Runs `work` on a thread with room for deep recursion.
fn on_deep_stack<T: Send>(work: impl FnOnce() -> Result<T, GrammarError> + Send) -> Result<T, GrammarError> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("lily-grammar".into()).stack_size(STACK).spawn_scoped(scope, work);
        thread.map_err(failed)?.join().unwrap_or_else(|_| Err(GrammarError::Failed("a compiler panicked".into())))
    })
}

/// What a path of a function's parameters is called.
fn place_in(function: &str, path: &str) -> String {
    let place = if path.is_empty() { "the parameters".into() } else { format!("'{path}'") };
    format!("{place} of the function '{function}'")
}

fn failed(error: impl std::fmt::Display) -> GrammarError {
    let reason = error.to_string();
    GrammarError::Failed(reason.split("\n<").next().unwrap_or_default().to_owned())
}

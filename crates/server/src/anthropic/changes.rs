//! Tools that come and go amid a conversation: blocks of system messages that offer a tool, define one or withdraw it.
//!
//! The prompt's head stays as it is, so that all behind it is found in the cache: where a change stands, the model is told
//! of it.

use super::tools::{definition, name_of};
use crate::error::ApiError;
use crate::fields::{self, Fields};
use lily_chat::spelled;
use serde_json::Value;
use std::collections::HashSet;
use std::collections::hash_map::{Entry, HashMap};

use crate::tools::Tools;

/// What a block changes.
enum Change {
    /// The tool of this name can be called.
    Offered(String),
    /// This one can be called, and none of its name that was there before.
    Defined(Defined),
    /// The tool of this name cannot be called.
    Withdrawn(String),
    /// Something about a tool that Anthropic's servers would run.
    Nothing,
}

/// A tool that a block defines.
struct Defined {
    /// In OpenAI's form.
    definition: Value,
    bounds: Bounds,
}

/// What calls of a tool are held to, besides what the model is shown.
#[derive(Debug)]
pub(super) struct Bounds {
    /// Where the request has its parameters.
    pub(super) path: String,
    pub(super) strict: bool,
}

impl Change {
    /// Of a block of type "tool_addition" or "tool_removal"; `None` of any other.
    fn read(block: &Fields<'_>) -> Result<Option<Self>, ApiError> {
        let adds = match fields::string(block.required("type")?, &block.path("type"))? {
            "tool_addition" => true,
            "tool_removal" => false,
            _ => return Ok(None),
        };
        let path = block.path("tool");
        let tool = Fields::of(block.required("tool")?, &path)?;
        let name = || fields::string(tool.required("name")?, &tool.path("name")).map(str::to_owned);
        Ok(Some(match (tool.string("type")?, adds) {
            (Some("tool_reference"), true) => Self::Offered(name()?),
            (Some("tool_reference"), false) => Self::Withdrawn(name()?),
            (Some("tool_definition"), true) => {
                let given = Fields::of(tool.required("definition")?, &tool.path("definition"))?;
                let strict = given.boolean("strict")?.unwrap_or(false);
                let bounds = Bounds { path: given.path("input_schema"), strict };
                definition(&given)?.map_or(Self::Nothing, |definition| Self::Defined(Defined { definition, bounds }))
            }
            (other, _) => {
                let path = tool.path("type");
                let known = if adds { "\"tool_reference\" or \"tool_definition\"" } else { "\"tool_reference\"" };
                let not = other.map_or_else(String::new, |other| format!(", not {}", fields::quoted(other)));
                return Err(ApiError::parameter(&path, format!("'{path}' must be {known}{not}.")).unlogged());
            }
        }))
    }
}

/// What all changes of a conversation come to at its end.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// The definitions that hold, in the order in which their names came up first.
    pub(super) defined: Vec<Value>,
    /// The first definition of all, as it was.
    pub(super) first: Option<Value>,
    /// The place of each name among those.
    places: HashMap<String, usize>,
    /// What each of those is held to, by its name.
    pub(super) bounds: HashMap<String, Bounds>,
    /// The names that are offered or withdrawn without a definition, and where.
    pub(super) referred: Vec<(String, String)>,
    /// The names of tools that cannot be called.
    pub(super) withdrawn: HashSet<String>,
}

impl Changes {
    /// Of a request's `messages`. What else is wrong with those is said when they are read.
    pub(super) fn read(messages: Option<&Value>) -> Result<Self, ApiError> {
        let mut changes = Self::default();
        let messages = messages.and_then(Value::as_array).into_iter().flatten().enumerate();
        for (index, message) in messages.filter(|(_, message)| message["role"] == "system") {
            for (place, block) in message["content"].as_array().into_iter().flatten().enumerate() {
                let block = Fields::of(block, &format!("messages[{index}].content[{place}]"))?;
                if let Some(change) = Change::read(&block)? {
                    changes.take(change, &block);
                }
            }
        }
        Ok(changes)
    }

    fn take(&mut self, change: Change, block: &Fields<'_>) {
        if let Change::Offered(name) | Change::Withdrawn(name) = &change {
            self.referred.push((name.clone(), format!("{}.name", block.path("tool"))));
        }
        match change {
            Change::Offered(name) => {
                self.withdrawn.remove(&name);
            }
            Change::Defined(Defined { definition, bounds }) => {
                self.withdrawn.remove(name_of(&definition));
                self.bounds.insert(name_of(&definition).to_owned(), bounds);
                self.first.get_or_insert_with(|| definition.clone());
                match self.places.entry(name_of(&definition).to_owned()) {
                    Entry::Occupied(place) => self.defined[*place.get()] = definition,
                    Entry::Vacant(place) => {
                        place.insert(self.defined.len());
                        self.defined.push(definition);
                    }
                }
            }
            Change::Withdrawn(name) => {
                self.withdrawn.insert(name);
            }
            Change::Nothing => {}
        }
    }
}

/// The tools that the model has been shown, as a conversation goes on.
///
/// A tool that loads later is shown where it is found or offered and not before: agents send more of them as they are
/// found, and at the head of the prompt each would leave nothing of it to be found in the cache.
pub(super) struct Shown<'t> {
    /// Those that are not shown yet, by name.
    hidden: HashMap<&'t str, &'t Value>,
    /// Those that the head shows, by name, but for what was defined otherwise since.
    head: HashMap<&'t str, &'t Value>,
    /// The names of all.
    known: HashSet<&'t str>,
}

impl<'t> Shown<'t> {
    pub(super) fn new(tools: &'t Tools) -> Self {
        let head = tools.in_head().map(|tool| (name_of(tool), tool)).collect();
        let known = tools.definitions.iter().chain(&tools.later).map(name_of).collect();
        Self { hidden: tools.hidden().collect(), head, known }
    }

    /// What a search's result says of a tool: its definition if the model has not seen it yet.
    pub(super) fn refer(&mut self, name: &str) -> String {
        self.hidden.remove(name).map_or_else(|| name.to_owned(), can_be_called)
    }

    /// What a system message says in the place of such a block; `None` if it is none. Empty if there is nothing to say.
    pub(super) fn tell(&mut self, block: &Fields<'_>) -> Result<Option<String>, ApiError> {
        let offer = |name: &str| format!("The function {name} can be called now.");
        Ok(Change::read(block)?.map(|change| match change {
            Change::Offered(name) => match self.hidden.remove(name.as_str()) {
                Some(definition) => can_be_called(definition),
                None if self.known.contains(name.as_str()) => offer(&name),
                // Anthropic would run it.
                None => String::new(),
            },
            Change::Defined(Defined { definition, .. }) => {
                let name = name_of(&definition);
                self.hidden.remove(name);
                if self.head.get(name) == Some(&&definition) {
                    offer(name)
                } else {
                    // The last word of it is no more the head's.
                    self.head.remove(name);
                    can_be_called(&definition)
                }
            }
            Change::Withdrawn(name) => format!("The function {name} cannot be called any more."),
            Change::Nothing => String::new(),
        }))
    }
}

fn can_be_called(definition: &Value) -> String {
    format!("This function can be called now:\n{}", spelled(definition))
}

#[cfg(test)]
mod tests {
    use super::Changes;
    use serde_json::{Value, json};

    fn changes(blocks: Value) -> Result<Changes, Value> {
        let messages = json!([{"role": "user", "content": "Hi"}, {"role": "system", "content": blocks}]);
        Changes::read(Some(&messages)).map_err(|error| error.body()["error"]["param"].clone())
    }

    fn define(name: &str, description: &str) -> Value {
        let definition = json!({"name": name, "description": description, "input_schema": {"type": "object"}});
        json!({"type": "tool_addition", "tool": {"type": "tool_definition", "definition": definition}})
    }

    fn refer(kind: &str, name: &str) -> Value {
        json!({"type": kind, "tool": {"type": "tool_reference", "name": name}})
    }

    #[test]
    fn the_last_word_holds() {
        let text = json!({"type": "text", "text": "It is Monday."});
        let elsewhere = json!({"type": "tool_addition", "tool": {"type": "tool_definition",
            "definition": {"type": "web_search_20250305", "name": "web_search"}}});
        let blocks = json!([
            define("f", "old"),
            define("g", ""),
            refer("tool_removal", "g"),
            refer("tool_removal", "h"),
            text,
            define("f", "new"),
            refer("tool_removal", "k"),
            refer("tool_addition", "k"),
            elsewhere
        ]);
        let Changes { defined, first, withdrawn, referred, .. } = changes(blocks).expect("fine");
        let names: Vec<&str> = defined.iter().map(super::name_of).collect();
        assert_eq!((names, &defined[0]["function"]["description"]), (vec!["f", "g"], &json!("new")));
        assert_eq!(first.expect("there is one")["function"]["description"], "old");
        assert_eq!(withdrawn, ["g", "h"].map(str::to_owned).into());
        let places = [("g", 2), ("h", 3), ("k", 6), ("k", 7)];
        assert_eq!(
            referred,
            places.map(|(name, place)| (name.into(), format!("messages[1].content[{place}].tool.name")))
        );
        assert!(Changes::read(None).expect("none").defined.is_empty());
    }

    #[test]
    fn an_error_names_the_way_to_it() {
        let tool = |tool: Value| json!([{"type": "tool_addition", "tool": tool}]);
        for (blocks, end) in [
            (json!([{"type": "tool_removal"}]), "tool"),
            (tool(json!({})), "tool.type"),
            (tool(json!({"type": "tool_reference"})), "tool.name"),
            (tool(json!({"type": "mcp_tool_reference", "name": "x"})), "tool.type"),
            (tool(json!({"type": "tool_definition", "definition": {"name": "f"}})), "tool.definition.input_schema"),
            (
                tool(json!({"type": "tool_definition", "definition":
                    {"name": "f", "input_schema": {}, "strict": "yes"}})),
                "tool.definition.strict",
            ),
            (
                tool(json!({"type": "tool_definition", "definition": {"type": "functoin", "name": "f"}})),
                "tool.definition.type",
            ),
            (json!([{"type": "tool_removal", "tool": {"type": "tool_definition"}}]), "tool.type"),
        ] {
            let path = changes(blocks.clone()).expect_err("wrong");
            assert_eq!(path, format!("messages[1].content[0].{end}"), "{blocks}");
        }
    }
}

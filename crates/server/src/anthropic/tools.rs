//! Anthropic's `tools` and `tool_choice`.

use super::changes::{Bounds, Changes};
use crate::error::ApiError;
use crate::fields::{self, Fields};
use crate::tools::{Choice, Tools, check_name, name};
use serde_json::{Map, Value, json};
use std::collections::{HashMap, HashSet};

/// What the types of those tools begin with that the client runs itself and whose parameters Anthropic has not published
/// as a schema in the request: a model that was not trained on them cannot know them.
const UNDECLARED: [&str; 4] = ["bash_", "computer_", "memory_", "text_editor_"];

/// What the types of Anthropic's searches for deferred tools begin with.
const SEARCH: &str = "tool_search_tool_";

/// The name of a definition in OpenAI's form.
pub(super) fn name_of(definition: &Value) -> &str {
    name(definition).unwrap_or_default()
}

/// Reads the tools that the model may call, after what a conversation has changed about them, and whether it must.
pub(super) fn read(request: &Fields<'_>, changes: Changes) -> Result<Tools, ApiError> {
    let mut definitions = Vec::new();
    let mut deferred = HashSet::new();
    // Tools go by their names: one of two that is shown shows both.
    let mut shown = HashSet::new();
    let mut elsewhere = Vec::new();
    let mut searched_elsewhere = false;
    let (mut paths, mut strict) = (HashMap::new(), HashSet::new());
    for (index, tool) in request.array("tools")?.unwrap_or_default().iter().enumerate() {
        let tool = Fields::of(tool, &format!("tools[{index}]"))?;
        match definition(&tool)? {
            Some(definition) => {
                let later = tool.boolean("defer_loading")?.unwrap_or(false);
                let names = if later { &mut deferred } else { &mut shown };
                names.insert(name_of(&definition).to_owned());
                if tool.boolean("strict")? == Some(true) && !paths.contains_key(name_of(&definition)) {
                    strict.insert(name_of(&definition).to_owned());
                }
                paths.entry(name_of(&definition).to_owned()).or_insert(tool.path("input_schema"));
                definitions.push(definition);
            }
            None => {
                searched_elsewhere |= tool.string("type")?.is_some_and(|kind| kind.starts_with(SEARCH));
                elsewhere.push(tool.string("name")?.unwrap_or_default());
            }
        }
    }
    for name in shown {
        deferred.remove(&name);
    }
    let Changes { defined, first, withdrawn, referred, bounds, .. } = changes;
    for (name, Bounds { path, strict: is_strict }) in bounds {
        if is_strict {
            strict.insert(name.clone());
        } else {
            strict.remove(&name);
        }
        paths.insert(name, path);
    }
    let mut tools = Tools { definitions, deferred, later: defined, withdrawn, paths, strict, ..Tools::default() };
    check_referred(&referred, &tools, &elsewhere)?;
    let (choice, parallel) = read_choice(request, &tools, &elsewhere)?;
    if tools.callable().next().is_none() && !elsewhere.is_empty() && choice != Choice::None {
        // Without them the model would make up what they find.
        let message = format!("'tools' has only {}, {RUN_ELSEWHERE}", named(&elsewhere));
        return Err(ApiError::parameter("tools", message).unlogged());
    }
    match &choice {
        // What must be called is shown.
        Choice::Named(name) => {
            tools.deferred.remove(name);
        }
        Choice::Required => tools.deferred.clear(),
        // Anthropic's own search is not here to find any.
        _ if searched_elsewhere => tools.deferred.clear(),
        _ => {}
    }
    if tools.in_head().next().is_none() {
        // Without a tool the template says nothing of calls.
        tools.deferred.clear();
        if tools.definitions.is_empty()
            && let Some(first) = first
        {
            // As it was, and no other: the head stays the same when the conversation defines more, or this one anew.
            if tools.later.first() == Some(&first) {
                tools.later.remove(0);
            }
            tools.definitions.push(first);
        }
    }
    Ok(Tools { choice, parallel, ..tools })
}

const RUN_ELSEWHERE: &str = "which Anthropic's servers run; this server runs no tools itself.";

fn named(tools: &[&str]) -> String {
    tools.iter().map(|name| fields::quoted(name)).collect::<Vec<_>>().join(", ")
}

/// The tool in OpenAI's form; `None` if Anthropic would run it.
pub(super) fn definition(tool: &Fields<'_>) -> Result<Option<Value>, ApiError> {
    match tool.string("type")? {
        None | Some("custom") => {}
        Some(kind) if !is_anthropics(kind) => {
            let path = tool.path("type");
            let message = format!(
                "'{path}' must be \"custom\", or left out, or a tool of Anthropic's with its date, not {}.",
                fields::quoted(kind)
            );
            return Err(ApiError::parameter(path, message).unlogged());
        }
        Some(_) if tool.value("input_schema").is_some() => {}
        Some(kind) if UNDECLARED.iter().any(|known| kind.starts_with(known)) => {
            let path = tool.path("type");
            let message = format!(
                "'{path}' is {}; declare the tool with \"input_schema\" instead: its parameters are not in the request.",
                fields::quoted(kind)
            );
            return Err(ApiError::parameter(path, message).unlogged());
        }
        Some(_) => return Ok(None),
    }
    let mut function = Map::new();
    function.insert("name".into(), check_name(tool)?.into());
    if let Some(description) = tool.string("description")? {
        function.insert("description".into(), description.into());
    }
    match tool.required("input_schema")? {
        schema @ Value::Object(_) => function.insert("parameters".into(), schema.clone()),
        other => return Err(fields::wrong_type(&tool.path("input_schema"), "an object", other)),
    };
    Ok(Some(json!({"type": "function", "function": function})))
}

/// Whether a type is a tool's that Anthropic defines: such a name ends in a date, as "web_search_20250305", or may, but for one.
fn is_anthropics(kind: &str) -> bool {
    let is_date = |end: &str| end.len() == 8 && end.bytes().all(|byte| byte.is_ascii_digit());
    kind == "mcp_toolset" || kind.starts_with(SEARCH) || kind.rsplit_once('_').is_some_and(|(_, end)| is_date(end))
}

/// 400 for a tool that is offered or withdrawn and that none is: the model would be told of a function that there never was.
fn check_referred(referred: &[(String, String)], tools: &Tools, elsewhere: &[&str]) -> Result<(), ApiError> {
    let known: HashSet<&str> = tools.definitions.iter().chain(&tools.later).map(name_of).collect();
    match referred.iter().find(|(name, _)| !known.contains(name.as_str()) && !elsewhere.contains(&name.as_str())) {
        None => Ok(()),
        Some((name, path)) => {
            let message = format!("'{path}' is {}, which no tool is called.", fields::quoted(name));
            Err(ApiError::parameter(path, message).unlogged())
        }
    }
}

/// The choice, and whether several calls may be made at once.
fn read_choice(request: &Fields<'_>, tools: &Tools, elsewhere: &[&str]) -> Result<(Choice, bool), ApiError> {
    let Some(choice) = request.object("tool_choice")? else { return Ok((Choice::Auto, true)) };
    let parallel = !choice.boolean("disable_parallel_tool_use")?.unwrap_or(false);
    let path = choice.path("type");
    let wanted = match fields::string(choice.required("type")?, &path)? {
        "auto" => Choice::Auto,
        "none" => Choice::None,
        "any" if tools.callable().next().is_none() && elsewhere.is_empty() => {
            let why = if tools.withdrawn.is_empty() {
                "'tools' is missing or empty."
            } else {
                "the conversation has withdrawn every one (\"tool_removal\")."
            };
            let message = format!("'tool_choice' makes the model call a tool, but {why}");
            return Err(ApiError::parameter("tool_choice", message));
        }
        "any" => Choice::Required,
        "tool" => {
            let path = choice.path("name");
            let name = fields::string(choice.required("name")?, &path)?;
            let problem = if tools.callable().any(|tool| name_of(tool) == name) {
                return Ok((Choice::Named(name.to_owned()), parallel));
            } else if elsewhere.contains(&name) {
                RUN_ELSEWHERE
            } else if tools.withdrawn.contains(name) {
                "which the conversation has withdrawn (\"tool_removal\")."
            } else {
                "which is not among 'tools'."
            };
            let message = format!("'{path}' is {}, {problem}", fields::quoted(name));
            return Err(ApiError::parameter(path, message).unlogged());
        }
        other => {
            let other = fields::quoted(other);
            let message = format!("'{path}' must be \"auto\", \"any\", \"tool\" or \"none\", not {other}.");
            return Err(ApiError::parameter(path, message).unlogged());
        }
    };
    Ok((wanted, parallel))
}

#[cfg(test)]
mod tests {
    use super::{Changes, read};
    use crate::anthropic::messages::Messages;
    use crate::fields::Fields;
    use crate::tools::{Choice, NAMES_READ, Tools};
    use serde_json::{Value, json};

    fn tools(request: Value) -> Result<Tools, Value> {
        let request = Fields::of(&request, "").expect("an object");
        read(&request, Changes::default()).map_err(|e| e.body()["error"]["param"].clone())
    }

    fn tool(name: &str) -> Value {
        json!({"name": name, "description": "d", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}})
    }

    fn search() -> Value {
        json!({"type": "web_search_20250305", "name": "web_search", "max_uses": 8})
    }

    #[test]
    fn definitions_and_choices() {
        for (choice, expected, parallel) in [
            (Value::Null, Choice::Auto, true),
            (json!({"type": "auto", "disable_parallel_tool_use": true}), Choice::Auto, false),
            (json!({"type": "any"}), Choice::Required, true),
            (json!({"type": "tool", "name": "g"}), Choice::Named("g".into()), true),
            (json!({"type": "none"}), Choice::None, true),
        ] {
            let read = tools(json!({"tools": [tool("f"), search(), tool("g")], "tool_choice": choice})).expect("fine");
            assert_eq!((read.choice, read.parallel), (expected, parallel));
            let function = json!({"name": "f", "description": "d", "parameters": {"type": "object"}});
            assert_eq!(read.definitions[0], json!({"type": "function", "function": function}));
            assert_eq!(read.definitions.len(), 2, "the search is left out");
        }
        let custom = json!({"type": "custom", "name": "f", "input_schema": {}});
        assert_eq!(tools(json!({"tools": [custom]})).expect("fine").definitions.len(), 1);
        for kind in ["tool_search_tool_bm25", "tool_search_tool_regex", "mcp_toolset", "web_search_20250305"] {
            let anthropics = json!({"type": kind, "name": "f"});
            let read = tools(json!({"tools": [anthropics, tool("g")]})).expect(kind);
            assert_eq!(read.definitions.len(), 1, "{kind}");
        }
        assert!(tools(json!({})).expect("fine").definitions.is_empty());
        let none = json!({"tools": [search()], "tool_choice": {"type": "none"}});
        assert!(tools(none).expect("fine").set().is_none());
    }

    /// Reads a request with so many tools at its head and as many defined, offered and withdrawn amid the conversation;
    /// gives how many names were looked at.
    fn read_many(count: usize) -> usize {
        let block = |kind: &str, tool: Value| json!({"type": kind, "tool": tool});
        let refer = |number: usize| json!({"type": "tool_reference", "name": format!("f{number}")});
        let define = |number: usize| json!({"type": "tool_definition", "definition": tool(&format!("g{number}"))});
        let blocks: Vec<Value> = (0..count)
            .flat_map(|number| {
                [
                    block("tool_addition", define(number)),
                    block("tool_addition", refer(number)),
                    block("tool_removal", refer(number)),
                ]
            })
            .collect();
        let mut definitions: Vec<Value> = (0..count).map(|number| tool(&format!("f{number}"))).collect();
        for definition in definitions.iter_mut().step_by(2) {
            definition["defer_loading"] = json!(true);
        }
        let messages = json!([{"role": "user", "content": "Hi"}, {"role": "system", "content": blocks}]);
        let request = json!({"tools": definitions});
        let begun = NAMES_READ.get();
        let changes = Changes::read(Some(&messages)).expect("fine");
        let tools = read(&Fields::of(&request, "").expect("an object"), changes).expect("fine");
        let read = Messages::read(Some(messages), &tools).expect("fine");
        assert_eq!((read.messages.len(), tools.callable().count(), tools.set().is_some()), (2, count, true));
        NAMES_READ.get() - begun
    }

    /// One body can bring thousands of tools: were the definitions gone through for each name, as they once were, eight times
    /// as many would be 64 times the work.
    #[test]
    fn many_tools_are_read_by_work_that_grows_as_they_do() {
        let (few, many) = (read_many(50), read_many(400));
        assert!(many <= 8 * few, "{few} names are looked at, and of eight times as many tools {many}");
    }

    #[test]
    fn an_error_names_the_way_to_it() {
        let choose = |choice: Value| json!({"tools": [tool("f"), search()], "tool_choice": choice});
        for (request, path) in [
            (json!({"tools": {}}), "tools"),
            (json!({"tools": [search()]}), "tools"),
            (json!({"tools": [search()], "tool_choice": {"type": "any"}}), "tools"),
            (json!({"tools": [tool("f"), {"name": "g"}]}), "tools[1].input_schema"),
            (json!({"tools": [{"name": "g", "input_schema": "x"}]}), "tools[0].input_schema"),
            (json!({"tools": [{"input_schema": {}}]}), "tools[0].name"),
            (json!({"tools": [tool("a<b")]}), "tools[0].name"),
            (json!({"tools": [tool("f"), {"type": "web_serch", "name": "g"}]}), "tools[1].type"),
            (json!({"tools": [{"type": "function", "name": "g", "input_schema": {}}]}), "tools[0].type"),
            (json!({"tools": [{"type": "bash_20250124", "name": "bash"}]}), "tools[0].type"),
            (json!({"tool_choice": {"type": "any"}}), "tool_choice"),
            (choose(json!("any")), "tool_choice"),
            (choose(json!({})), "tool_choice.type"),
            (choose(json!({"type": "required"})), "tool_choice.type"),
            (choose(json!({"type": "tool"})), "tool_choice.name"),
            (choose(json!({"type": "tool", "name": "g"})), "tool_choice.name"),
            (choose(json!({"type": "tool", "name": "web_search"})), "tool_choice.name"),
            (choose(json!({"type": "auto", "disable_parallel_tool_use": 1})), "tool_choice.disable_parallel_tool_use"),
        ] {
            assert_eq!(tools(request.clone()).expect_err("wrong"), path, "{request}");
        }
    }
}

//! What a request says about tools: which there are, whether one must be called, and how many at once. The same for
//! every endpoint once it has been read.

use crate::error::ApiError;
use crate::fields::{self, Fields};
use lily_chat::ToolSet;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The tools of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tools {
    /// In the form that templates take, which is OpenAI's.
    pub(crate) definitions: Vec<Value>,
    /// The names of those that the prompt's head does not show, as they come up later in the conversation.
    pub(crate) deferred: HashSet<String>,
    /// Those that the conversation defines, and shows where it does; one takes the place of one of its name above.
    pub(crate) later: Vec<Value>,
    /// The names of those that cannot be called any more.
    pub(crate) withdrawn: HashSet<String>,
    /// Where the request has the parameters of each, by its name, as far as that is known.
    pub(crate) paths: HashMap<String, String>,
    /// The names of those that are `strict` and whose definitions do not say so, as the model is not shown it.
    pub(crate) strict: HashSet<String>,
    pub(crate) choice: Choice,
    /// Whether a reply may hold more than one call.
    pub(crate) parallel: bool,
}

/// Whether the model calls a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Choice {
    #[default]
    Auto,
    /// It may not. It sees the tools all the same, so that the prompt begins as it did when it might.
    None,
    /// Any of them.
    Required,
    /// This one.
    Named(String),
}

/// A function's name.
pub(crate) fn name(tool: &Value) -> Option<&str> {
    #[cfg(test)]
    NAMES_READ.set(NAMES_READ.get() + 1);
    tool["function"]["name"].as_str()
}

#[cfg(test)]
thread_local! {
    /// How many names of functions this thread has looked at: what tests count work by.
    pub(crate) static NAMES_READ: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl Tools {
    /// Reads `tools`, `tool_choice` and `parallel_tool_calls` in the form of the chat endpoint.
    pub(crate) fn read(request: &Fields<'_>) -> Result<Self, ApiError> {
        for (old, new) in [("functions", "tools"), ("function_call", "tool_choice")] {
            if request.value(old).is_some() {
                let path = request.path(old);
                let message = format!("'{path}' is OpenAI's older form of '{new}'; give that instead.");
                return Err(ApiError::parameter(path, message));
            }
        }
        let definitions = request.array("tools")?.unwrap_or_default();
        let mut paths = HashMap::new();
        for (index, tool) in definitions.iter().enumerate() {
            let name = check(&Fields::of(tool, &format!("tools[{index}]"))?)?;
            paths.entry(name.to_owned()).or_insert(format!("tools[{index}].function.parameters"));
        }
        let mut definitions = definitions.to_vec();
        let choice = read_choice(request, &mut definitions)?;
        let tools = Self {
            definitions,
            choice,
            parallel: request.boolean("parallel_tool_calls")?.unwrap_or(true),
            paths,
            ..Self::default()
        };
        tools.check_choice()?;
        Ok(tools)
    }

    fn check_choice(&self) -> Result<(), ApiError> {
        let is_there = |name: &str| self.names().any(|known| known == name);
        match &self.choice {
            Choice::Required | Choice::Named(_) if self.definitions.is_empty() => {
                let message = "'tool_choice' makes the model call a tool, but there is none that it could call.";
                Err(ApiError::parameter("tool_choice", message))
            }
            Choice::Named(name) if !is_there(name) => Err(not_there(name, "tool_choice.function.name")),
            _ => Ok(()),
        }
    }

    /// Those that a reply may call.
    pub(crate) fn callable(&self) -> impl Iterator<Item = &Value> {
        let replaced: HashSet<&str> = self.later.iter().filter_map(name).collect();
        let is_replaced = move |tool: &Value| name(tool).is_some_and(|name| replaced.contains(name));
        let is_withdrawn = |tool: &Value| name(tool).is_some_and(|name| self.withdrawn.contains(name));
        let earlier = self.definitions.iter().filter(move |tool| !is_replaced(tool));
        earlier.chain(&self.later).filter(move |tool| !is_withdrawn(tool))
    }

    /// Those that a reply may call, and whether each is `strict`.
    pub(crate) fn bound(&self) -> Vec<Value> {
        let mut definitions: Vec<Value> = self.callable().cloned().collect();
        for tool in &mut definitions {
            if name(tool).is_some_and(|name| self.strict.contains(name)) {
                tool["function"]["strict"] = true.into();
            }
        }
        definitions
    }

    /// Where the request has a part of a function's parameters.
    pub(crate) fn path(&self, function: &str, part: &str) -> String {
        let parameters = self.paths.get(function).map_or("tools", String::as_str);
        if part.is_empty() { parameters.to_owned() } else { format!("{parameters}.{part}") }
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.callable().filter_map(name)
    }

    /// What the prompt's head shows.
    pub(crate) fn in_head(&self) -> impl Iterator<Item = &Value> {
        self.definitions.iter().filter(|tool| name(tool).is_none_or(|name| !self.deferred.contains(name)))
    }

    /// The deferred ones by name.
    pub(crate) fn hidden(&self) -> impl Iterator<Item = (&str, &Value)> {
        let named = self.definitions.iter().filter_map(|tool| Some((name(tool)?, tool)));
        named.filter(|(name, _)| self.deferred.contains(*name))
    }

    /// What calls in the reply are read by; `None` if nothing in it is a call.
    pub(crate) fn set(&self) -> Option<Arc<ToolSet>> {
        let callable: Vec<Value> = self.callable().cloned().collect();
        let may_call = !callable.is_empty() && self.choice != Choice::None;
        may_call.then(|| Arc::new(ToolSet::new(&callable)))
    }

    /// Whether the model sees tools and may not call them.
    pub(crate) fn are_forbidden(&self) -> bool {
        !self.definitions.is_empty() && (self.choice == Choice::None || self.callable().next().is_none())
    }

    /// Whether the reply ends with its first call.
    pub(crate) fn single(&self) -> bool {
        // Another call would be to a function of the model's choice.
        !self.parallel || matches!(self.choice, Choice::Named(_))
    }

    /// What a reply that must be a call begins with; empty if it need not be one. The reply's own text follows.
    ///
    /// Where any function may be called, its name is the model's to choose. The text ends where tokens end in what the
    /// model was trained on: `=` and the name after it share one.
    pub(crate) fn primer(&self) -> String {
        let only = || self.names().next().filter(|_| self.names().count() == 1);
        let name = match &self.choice {
            Choice::Auto | Choice::None => return String::new(),
            Choice::Required => only(),
            Choice::Named(name) => Some(name.as_str()),
        };
        match name {
            Some(name) => format!("<tool_call>\n<function={name}>\n"),
            None => "<tool_call>\n<function".into(),
        }
    }
}

/// The tool's name, if it is a function's.
fn check<'v>(tool: &Fields<'v>) -> Result<&'v str, ApiError> {
    let kind = fields::string(tool.required("type")?, &tool.path("type"))?;
    if kind != "function" {
        let path = tool.path("type");
        let message = format!("'{path}' must be \"function\", not {}.", fields::quoted(kind));
        return Err(ApiError::parameter(path, message).unlogged());
    }
    let function = Fields::of(tool.required("function")?, &tool.path("function"))?;
    let name = check_name(&function)?;
    function.string("description")?;
    function.object("parameters")?;
    function.boolean("strict")?;
    Ok(name)
}

/// The name of a function, which must be one that the markup of calls can hold. OpenAI takes letters, digits, `_` and `-`
/// alone; nothing here needs that, and a name with a dot or a slash in it works.
pub(crate) fn check_name<'v>(function: &Fields<'v>) -> Result<&'v str, ApiError> {
    let name = fields::string(function.required("name")?, &function.path("name"))?;
    if name.trim().is_empty() || name.trim() != name || name.contains(['<', '>', '"', '\'', '\n']) || name.len() > 256 {
        let path = function.path("name");
        let message = format!(
            "'{path}' must be a name of 1 to 256 characters without white space around it, quotes, '<' and '>', not {}.",
            fields::quoted(name)
        );
        return Err(ApiError::parameter(path, message).unlogged());
    }
    Ok(name)
}

/// The choice; definitions that it excludes are taken out.
fn read_choice(request: &Fields<'_>, definitions: &mut Vec<Value>) -> Result<Choice, ApiError> {
    let unknown = |what: &str| {
        let message = format!(
            "'tool_choice' must be \"none\", \"auto\", \"required\" or \
             {{\"type\": \"function\", \"function\": {{\"name\": …}}}}, not {what}."
        );
        ApiError::parameter("tool_choice", message).unlogged()
    };
    let choice = match request.value("tool_choice") {
        None => return Ok(Choice::Auto),
        Some(Value::String(word)) => {
            return match word.as_str() {
                "auto" => Ok(Choice::Auto),
                "none" => Ok(Choice::None),
                "required" => Ok(Choice::Required),
                other => Err(unknown(&fields::quoted(other))),
            };
        }
        Some(object @ Value::Object(_)) => Fields::of(object, "tool_choice")?,
        Some(other) => return Err(fields::wrong_type("tool_choice", "a string or an object", other)),
    };
    match choice.string("type")? {
        Some("function") | None => {}
        Some("allowed_tools") => return allowed(&choice, definitions),
        Some(other) => return Err(unknown(&format!("of type {}", fields::quoted(other)))),
    }
    Ok(Choice::Named(named(&choice)?.0.to_owned()))
}

/// The name of the function that is meant, and where it stands.
fn named<'v>(choice: &Fields<'v>) -> Result<(&'v str, String), ApiError> {
    let function = Fields::of(choice.required("function")?, &choice.path("function"))?;
    let path = function.path("name");
    Ok((fields::string(function.required("name")?, &path)?, path))
}

fn not_there(name: &str, path: &str) -> ApiError {
    ApiError::parameter(path, format!("'{path}' is {}, which is not among 'tools'.", fields::quoted(name))).unlogged()
}

/// The choice among some of the tools; the others are taken out.
fn allowed(choice: &Fields<'_>, definitions: &mut Vec<Value>) -> Result<Choice, ApiError> {
    let allowed = Fields::of(choice.required("allowed_tools")?, &choice.path("allowed_tools"))?;
    let mode = match allowed.string("mode")? {
        Some("auto") | None => Choice::Auto,
        Some("required") => Choice::Required,
        Some(other) => {
            let path = allowed.path("mode");
            let message = format!("'{path}' must be \"auto\" or \"required\", not {}.", fields::quoted(other));
            return Err(ApiError::parameter(path, message).unlogged());
        }
    };
    let path = allowed.path("tools");
    allowed.required("tools")?;
    let mut names = HashSet::new();
    for (index, tool) in allowed.array("tools")?.unwrap_or_default().iter().enumerate() {
        let (function, path) = named(&Fields::of(tool, &format!("{path}[{index}]"))?)?;
        if !definitions.iter().any(|known| name(known) == Some(function)) {
            return Err(not_there(function, &path));
        }
        names.insert(function);
    }
    definitions.retain(|tool| name(tool).is_some_and(|name| names.contains(name)));
    Ok(mode)
}

#[cfg(test)]
mod tests {
    use super::{Choice, Tools};
    use crate::fields::Fields;
    use serde_json::{Value, json};

    fn read(request: Value) -> Result<Tools, Value> {
        Tools::read(&Fields::of(&request, "").expect("an object")).map_err(|e| e.body()["error"]["param"].clone())
    }

    fn tool(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name, "parameters": {}}})
    }

    #[test]
    fn choices_are_read() {
        let named = json!({"type": "function", "function": {"name": "f"}});
        for (choice, expected, primer) in [
            (Value::Null, Choice::Auto, ""),
            (json!("auto"), Choice::Auto, ""),
            (json!("none"), Choice::None, ""),
            (json!("required"), Choice::Required, "<tool_call>\n<function"),
            (named, Choice::Named("f".into()), "<tool_call>\n<function=f>\n"),
        ] {
            let tools = read(json!({"tools": [tool("f"), tool("g")], "tool_choice": choice})).expect("fine");
            assert_eq!((&tools.choice, tools.primer().as_str()), (&expected, primer));
            assert_eq!(tools.set().is_none(), expected == Choice::None);
            assert_eq!(tools.are_forbidden(), expected == Choice::None);
            assert_eq!(tools.single(), matches!(expected, Choice::Named(_)));
        }
        let allowed = |mode: &str, names: &[&str]| {
            let named: Vec<Value> =
                names.iter().map(|name| json!({"type": "function", "function": {"name": name}})).collect();
            let choice = json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}});
            read(json!({"tools": [tool("f"), tool("g"), tool("h")], "tool_choice": choice})).expect("fine")
        };
        let two = allowed("auto", &["h", "f"]);
        assert_eq!((two.choice.clone(), two.names().collect::<Vec<_>>()), (Choice::Auto, vec!["f", "h"]));
        assert_eq!(allowed("required", &["g"]).primer(), "<tool_call>\n<function=g>\n");
        assert!(allowed("auto", &[]).set().is_none());
        let only = read(json!({"tools": [tool("f")], "tool_choice": "required", "parallel_tool_calls": false}));
        let only = only.expect("fine");
        assert_eq!((only.primer().as_str(), only.single()), ("<tool_call>\n<function=f>\n", true));
        let none = read(json!({"tool_choice": "none"})).expect("fine");
        assert!(none.set().is_none() && !none.are_forbidden());
    }

    #[test]
    fn an_error_names_the_way_to_it() {
        let choose = |choice: Value| json!({"tools": [tool("f")], "tool_choice": choice});
        let among = |allowed: Value| json!({"type": "allowed_tools", "allowed_tools": allowed});
        for (request, path) in [
            (json!({"tools": {}}), "tools"),
            (json!({"tools": [tool("f"), {"type": "x"}]}), "tools[1].type"),
            (json!({"tools": [{"type": "function", "function": {}}]}), "tools[0].function.name"),
            (json!({"tools": [tool("a>b")]}), "tools[0].function.name"),
            (
                json!({"tools": [{"type": "function", "function": {"name": "f", "strict": "true"}}]}),
                "tools[0].function.strict",
            ),
            (json!({"tools": [tool("")]}), "tools[0].function.name"),
            (json!({"tools": [tool("f")], "parallel_tool_calls": "no"}), "parallel_tool_calls"),
            (json!({"functions": [{"name": "f"}]}), "functions"),
            (json!({"function_call": "auto"}), "function_call"),
            (json!({"tool_choice": "required"}), "tool_choice"),
            (json!({"tools": [], "tool_choice": {"type": "function", "function": {"name": "f"}}}), "tool_choice"),
            (choose(json!("maybe")), "tool_choice"),
            (choose(json!(1)), "tool_choice"),
            (choose(json!({"type": "custom"})), "tool_choice"),
            (choose(json!({"type": "allowed_tools"})), "tool_choice.allowed_tools"),
            (choose(among(json!({"mode": "none", "tools": []}))), "tool_choice.allowed_tools.mode"),
            (choose(among(json!({"mode": "auto"}))), "tool_choice.allowed_tools.tools"),
            (choose(among(json!({"tools": "f"}))), "tool_choice.allowed_tools.tools"),
            (choose(among(json!({"tools": ["f"]}))), "tool_choice.allowed_tools.tools[0]"),
            (
                choose(among(json!({"tools": [{"type": "function", "function": {"name": "g"}}]}))),
                "tool_choice.allowed_tools.tools[0].function.name",
            ),
            (choose(among(json!({"mode": "required", "tools": []}))), "tool_choice"),
            (choose(json!({"type": "function"})), "tool_choice.function"),
            (choose(json!({"type": "function", "function": {}})), "tool_choice.function.name"),
            (choose(json!({"type": "function", "function": {"name": "g"}})), "tool_choice.function.name"),
        ] {
            assert_eq!(read(request.clone()).expect_err("wrong"), path, "{request}");
        }
    }
}

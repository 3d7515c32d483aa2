//! The tools of a request, from the flat form that this endpoint has to the one that templates take, and the way back
//! from a call's name to what the client knows it by.
//!
//! - A function is a function.
//! - A custom tool is shown as a function with one string; see [`custom`](super::custom).
//! - What is in a namespace is shown by both names, joined.
//! - Tools that OpenAI's own servers run (web search and its kind) are not shown: nothing here could run them, and
//!   agents send them along with their own. A request that has no others is refused: the model would make up what they
//!   find. Nor is there a tool search; what it would find is shown at once.

use crate::error::ApiError;
use crate::fields::{self, Fields};
use crate::responses::custom::PARAMETER;
use crate::tools::{Choice, Tools, check_name};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};

/// Tools that the server of OpenAI's API runs itself, or that are of no use without one that does.
const HOSTED: [&str; 14] = [
    "apply_patch",
    "code_interpreter",
    "computer",
    "computer_use",
    "computer_use_preview",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "programmatic_tool_calling",
    "shell",
    "tool_search",
    "web_search",
    "web_search_preview",
];

/// What a client knows a function by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    pub(crate) custom: bool,
}

/// The functions of a request by the names that the model knows them by.
#[derive(Debug, Default)]
pub(crate) struct Functions(HashMap<String, Function>);

impl Functions {
    /// What the client knows the function by that the model has called.
    pub(crate) fn of(&self, shown: &str) -> Function {
        let unknown = || Function { namespace: None, name: shown.to_owned(), custom: false };
        self.0.get(shown).cloned().unwrap_or_else(unknown)
    }
}

/// The name that the model knows a function by.
pub(crate) fn shown_name(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        None | Some("") => name.to_owned(),
        Some(namespace) if namespace.ends_with("__") => format!("{namespace}{name}"),
        Some(namespace) => format!("{namespace}__{name}"),
    }
}

/// Reads `tools`, `tool_choice` and `parallel_tool_calls`. `more`: tools that the input brings, each with its path.
pub(crate) fn read(request: &Fields<'_>, more: &[(&Value, String)]) -> Result<(Tools, Functions), ApiError> {
    let mut reader = Reader::default();
    for (index, tool) in request.array("tools")?.unwrap_or_default().iter().enumerate() {
        reader.tool(&Fields::of(tool, &format!("tools[{index}]"))?, None)?;
    }
    for (tool, path) in more {
        reader.tool(&Fields::of(tool, path)?, None)?;
    }
    let only_hosted = reader.definitions.is_empty() && !reader.hosted.is_empty();
    let choice = reader.choice(request)?;
    if only_hosted && choice != Choice::None {
        let names = reader.hosted.iter().map(|kind| fields::quoted(kind)).collect::<Vec<_>>().join(", ");
        let message =
            format!("'tools' has only {names}, which OpenAI's servers run; this server runs no tools itself.");
        return Err(ApiError::parameter("tools", message).unlogged());
    }
    let parallel = request.boolean("parallel_tool_calls")?.unwrap_or(true);
    let Reader { definitions, functions, paths, strict, hosted: _ } = reader;
    Ok((Tools { definitions, choice, parallel, paths, strict, ..Tools::default() }, Functions(functions)))
}

#[derive(Default)]
struct Reader {
    definitions: Vec<Value>,
    functions: HashMap<String, Function>,
    /// Where each has its parameters.
    paths: HashMap<String, String>,
    /// Those that are to be followed to the letter.
    strict: HashSet<String>,
    /// The types of those that are not shown.
    hosted: Vec<String>,
}

impl Reader {
    fn tool(&mut self, tool: &Fields<'_>, namespace: Option<&str>) -> Result<(), ApiError> {
        let kind = fields::string(tool.required("type")?, &tool.path("type"))?;
        match kind {
            "function" => {
                let parameters = tool.object("parameters")?.and(tool.value("parameters"));
                self.function(tool, namespace, tool.string("description")?, parameters)
            }
            "custom" => {
                let parameters = custom_parameters(tool)?;
                self.function(tool, namespace, tool.string("description")?, Some(&parameters))
            }
            "namespace" if namespace.is_none() => {
                let name = check_name(tool)?;
                for (index, inner) in tool.array("tools")?.unwrap_or_default().iter().enumerate() {
                    let path = format!("{}[{index}]", tool.path("tools"));
                    self.tool(&Fields::of(inner, &path)?, Some(name))?;
                }
                Ok(())
            }
            _ if is_hosted(kind) => {
                self.hosted.push(kind.to_owned());
                Ok(())
            }
            _ => {
                let path = tool.path("type");
                let message = format!(
                    "'{path}' must be \"function\", \"custom\", \"namespace\" or a tool that OpenAI's API knows, not {}.",
                    fields::quoted(kind)
                );
                Err(ApiError::parameter(path, message).unlogged())
            }
        }
    }

    fn function(
        &mut self,
        tool: &Fields<'_>,
        namespace: Option<&str>,
        description: Option<&str>,
        parameters: Option<&Value>,
    ) -> Result<(), ApiError> {
        let name = check_name(tool)?;
        let shown = shown_name(namespace, name);
        if tool.boolean("strict")? == Some(true) && !self.paths.contains_key(&shown) {
            self.strict.insert(shown.clone());
        }
        self.paths.entry(shown.clone()).or_insert(tool.path("parameters"));
        let mut function = json!({"name": shown});
        if let Some(description) = description {
            function["description"] = description.into();
        }
        if let Some(parameters) = parameters {
            function["parameters"] = parameters.clone();
        }
        self.definitions.push(json!({"type": "function", "function": function}));
        let custom = tool.value("type").is_some_and(|kind| kind == "custom");
        let known = Function { namespace: namespace.map(str::to_owned), name: name.to_owned(), custom };
        self.functions.insert(shown, known);
        Ok(())
    }

    /// Reads `tool_choice`; tools that it excludes are taken out.
    fn choice(&mut self, request: &Fields<'_>) -> Result<Choice, ApiError> {
        let choice = match request.value("tool_choice") {
            None => Choice::Auto,
            Some(Value::String(word)) => self.word(word, "tool_choice")?,
            Some(object) => {
                let object = Fields::of(object, "tool_choice")?;
                let kind = fields::string(object.required("type")?, "tool_choice.type")?;
                match kind {
                    "function" | "custom" => Choice::Named(self.named(&object)?),
                    "allowed_tools" => self.allowed(&object)?,
                    _ => {
                        let message = format!(
                            "'tool_choice.type' is {}; this server can have the model call functions and custom tools \
                             only.",
                            fields::quoted(kind)
                        );
                        return Err(ApiError::parameter("tool_choice.type", message).unlogged());
                    }
                }
            }
        };
        if choice == Choice::Required && self.definitions.is_empty() {
            let message = "'tool_choice' makes the model call a tool, but 'tools' has none that it could call.";
            return Err(ApiError::parameter("tool_choice", message));
        }
        Ok(choice)
    }

    fn word(&self, word: &str, path: &str) -> Result<Choice, ApiError> {
        match word {
            "auto" => Ok(Choice::Auto),
            "none" => Ok(Choice::None),
            "required" => Ok(Choice::Required),
            other => {
                let message = format!(
                    "'{path}' must be \"none\", \"auto\", \"required\" or {{\"type\": \"function\", \"name\": …}}, not {}.",
                    fields::quoted(other)
                );
                Err(ApiError::parameter(path, message).unlogged())
            }
        }
    }

    /// The name, as the model knows it, of the function that is meant.
    fn named(&self, object: &Fields<'_>) -> Result<String, ApiError> {
        let path = object.path("name");
        let name = fields::string(object.required("name")?, &path)?;
        let shown = shown_name(object.string("namespace")?, name);
        if self.functions.contains_key(&shown) {
            return Ok(shown);
        }
        let message = format!("'{path}' is {}, which is not among 'tools'.", fields::quoted(name));
        Err(ApiError::parameter(path, message).unlogged())
    }

    fn allowed(&mut self, object: &Fields<'_>) -> Result<Choice, ApiError> {
        let mode = object.string("mode")?.unwrap_or("auto");
        let choice = self.word(mode, &object.path("mode"))?;
        let path = object.path("tools");
        let Value::Array(tools) = object.required("tools")? else {
            return Err(fields::wrong_type(&path, "an array", object.required("tools")?));
        };
        let mut allowed = Vec::with_capacity(tools.len());
        for (index, tool) in tools.iter().enumerate() {
            let tool = Fields::of(tool, &format!("{path}[{index}]"))?;
            if !tool.string("type")?.is_some_and(is_hosted) {
                allowed.push(self.named(&tool)?);
            }
        }
        self.definitions.retain(|tool| allowed.iter().any(|name| tool["function"]["name"] == name.as_str()));
        Ok(choice)
    }
}

/// Also by a name with a date, as OpenAI's API has them.
fn is_hosted(kind: &str) -> bool {
    HOSTED.iter().any(|hosted| {
        kind.strip_prefix(hosted)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with("_20") || rest.starts_with("_preview_"))
    })
}

/// The parameters that a custom tool is shown with.
fn custom_parameters(tool: &Fields<'_>) -> Result<Value, ApiError> {
    let mut description = "The whole input, as it is.".to_owned();
    if let Some(format) = tool.object("format")?
        && let Some(definition) = format.string("definition")?
    {
        let syntax = format.string("syntax")?.unwrap_or("given");
        description = format!("The whole input, as it is. It must fit this {syntax} grammar:\n{definition}");
    }
    Ok(json!({
        "type": "object",
        "properties": {PARAMETER: {"type": "string", "description": description}},
        "required": [PARAMETER],
    }))
}

#[cfg(test)]
mod tests {
    use super::{Function, read, shown_name};
    use crate::fields::Fields;
    use crate::responses::functions::Functions;
    use crate::tools::{Choice, Tools};
    use serde_json::{Value, json};

    fn try_read(request: &Value) -> Result<(Tools, Functions), Value> {
        let fields = Fields::of(request, "").expect("an object");
        read(&fields, &[]).map_err(|error| error.body()["error"]["param"].clone())
    }

    fn function(name: &str) -> Value {
        json!({"type": "function", "name": name, "strict": true, "parameters": {"b": 1, "a": 2}, "description": "d"})
    }

    /// As the coding agents send them.
    fn tools() -> Value {
        json!([
            function("f"),
            {"type": "custom", "name": "patch", "description": "p",
                "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}},
            {"type": "namespace", "name": "mcp__files", "description": "n", "tools": [function("read")]},
            {"type": "web_search", "external_web_access": false},
            {"type": "web_search_preview_2025_03_11"},
            {"type": "local_shell"},
            {"type": "tool_search", "execution": "client", "parameters": {}},
            {"type": "image_generation", "output_format": "png"},
        ])
    }

    #[test]
    fn tools_are_shown_as_templates_take_them() {
        let (tools, functions) = try_read(&json!({"tools": tools()})).expect("fine");
        let names: Vec<&str> = tools.definitions.iter().filter_map(|tool| tool["function"]["name"].as_str()).collect();
        assert_eq!(names, ["f", "patch", "mcp__files__read"]);
        assert_eq!(
            tools.definitions[0].to_string(),
            r#"{"type":"function","function":{"name":"f","description":"d","parameters":{"b":1,"a":2}}}"#
        );
        let input = &tools.definitions[1]["function"]["parameters"]["properties"]["input"];
        assert!(input["description"].as_str().expect("text").contains("start: /x/"), "{input}");
        let known = |namespace: Option<&str>, name: &str, custom| Function {
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
            custom,
        };
        assert_eq!(functions.of("patch"), known(None, "patch", true));
        assert_eq!(functions.of("mcp__files__read"), known(Some("mcp__files"), "read", false));
        assert_eq!(functions.of("unheard_of"), known(None, "unheard_of", false));
        assert_eq!([shown_name(Some("a__"), "b"), shown_name(Some(""), "b")], ["a__b", "b"]);
    }

    #[test]
    fn hosted_tools_alone_may_only_not_be_called() {
        let only = |choice: &str| try_read(&json!({"tools": [{"type": "web_search"}], "tool_choice": choice}));
        assert_eq!(only("auto").err(), Some(json!("tools")));
        assert_eq!(only("required").err(), Some(json!("tool_choice")));
        assert!(only("none").expect("fine").0.definitions.is_empty());
    }

    #[test]
    fn choices_are_read() {
        let choose = |choice: Value| try_read(&json!({"tools": tools(), "tool_choice": choice})).expect("fine").0;
        for (choice, expected) in [
            (json!(null), Choice::Auto),
            (json!("required"), Choice::Required),
            (json!("none"), Choice::None),
            (json!({"type": "function", "name": "f"}), Choice::Named("f".into())),
            (json!({"type": "custom", "name": "patch"}), Choice::Named("patch".into())),
            (
                json!({"type": "function", "namespace": "mcp__files", "name": "read"}),
                Choice::Named("mcp__files__read".into()),
            ),
        ] {
            assert_eq!(choose(choice.clone()).choice, expected, "{choice}");
        }
        let allowed = json!([{"type": "function", "name": "f"}, {"type": "web_search"}]);
        let only = choose(json!({"type": "allowed_tools", "mode": "required", "tools": allowed}));
        assert_eq!((only.definitions.len(), only.choice), (1, Choice::Required));
    }

    #[test]
    fn an_error_names_the_way_to_it() {
        let choose = |choice: Value| json!({"tools": [function("f")], "tool_choice": choice});
        for (request, path) in [
            (json!({"tools": {}}), "tools"),
            (json!({"tools": [{}]}), "tools[0].type"),
            (json!({"tools": [{"type": "functoin"}]}), "tools[0].type"),
            (json!({"tools": [{"type": "web_searching"}]}), "tools[0].type"),
            (json!({"tools": [function("f"), {"type": "function"}]}), "tools[1].name"),
            (json!({"tools": [function("a>b")]}), "tools[0].name"),
            (json!({"tools": [{"type": "function", "name": "f", "parameters": "x"}]}), "tools[0].parameters"),
            (json!({"tools": [{"type": "custom", "name": "f", "format": 1}]}), "tools[0].format"),
            (
                json!({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "x"}]}]}),
                "tools[0].tools[0].type",
            ),
            (json!({"tools": [{"type": "web_search"}]}), "tools"),
            (choose(json!("maybe")), "tool_choice"),
            (choose(json!(1)), "tool_choice"),
            (choose(json!({"type": "web_search"})), "tool_choice.type"),
            (choose(json!({"type": "function"})), "tool_choice.name"),
            (choose(json!({"type": "function", "name": "g"})), "tool_choice.name"),
            (choose(json!({"type": "allowed_tools"})), "tool_choice.tools"),
            (choose(json!({"type": "allowed_tools", "mode": "x", "tools": []})), "tool_choice.mode"),
            (
                choose(json!({"type": "allowed_tools", "tools": [{"type": "function", "name": "g"}]})),
                "tool_choice.tools[0].name",
            ),
            (json!({"tools": [{"type": "web_search"}], "tool_choice": "required"}), "tool_choice"),
            (json!({"tools": [function("f")], "parallel_tool_calls": "no"}), "parallel_tool_calls"),
        ] {
            assert_eq!(try_read(&request).err(), Some(json!(path)), "{request}");
        }
    }
}

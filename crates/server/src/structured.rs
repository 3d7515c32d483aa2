//! Structured output: what binds the replies of a request to a grammar, in the words of each client. The same for every
//! endpoint once it has been read.

use crate::body::from_json;
use crate::error::ApiError;
use crate::fields::{self, Fields, wrong_type};
use crate::shared::Shared;
use crate::tools::{Choice, Tools};
use lily_chat::{ForcedCalls, Format, GrammarError, ReplyGrammar};
use serde_json::Value;

/// What vLLM's `structured_outputs` may hold and this server reads.
const OUTPUTS: [&str; 5] = ["json", "json_object", "regex", "choice", "grammar"];
/// What it may hold besides: how vLLM compiles, and what white space may stand between the parts of JSON, which changes no
/// value.
const OUTPUTS_ASIDE: [&str; 3] = ["disable_fallback", "disable_any_whitespace", "whitespace_pattern"];
/// This changes the schema, if it is true.
const OUTPUTS_CLOSED: &str = "disable_additional_properties";

/// A format that a client asks for, and where it says so.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Structured {
    format: Format,
    path: String,
}

impl Structured {
    /// Of the chat and completions endpoints: OpenAI's `response_format`, or what [`Self::beside`] reads.
    pub(crate) fn read(request: &Fields<'_>) -> Result<Option<Self>, ApiError> {
        let format = request.object("response_format")?;
        let own = format.map(|format| Self::response_format(&format, "json_schema")).transpose()?.flatten();
        Self::beside(own, request)
    }

    /// `own`, which is in the words of the endpoint's API, or what the request says in those of other servers, which every
    /// endpoint takes: vLLM's `structured_outputs` and the `guided_…` fields that it had before, llama.cpp's `json_schema`
    /// and `grammar`. Only one of them all may be there.
    pub(crate) fn beside(own: Option<Self>, request: &Fields<'_>) -> Result<Option<Self>, ApiError> {
        let mut found: Vec<Self> = own.into_iter().collect();
        if let Some(outputs) = request.object("structured_outputs")? {
            refuse_unknown(&outputs, "structured_outputs")?;
            if OUTPUTS.iter().all(|name| outputs.value(name).is_none()) {
                let message = format!("'structured_outputs' must hold one of {}.", OUTPUTS.join(", "));
                return Err(ApiError::parameter("structured_outputs", message));
            }
            if outputs.boolean(OUTPUTS_CLOSED)? == Some(true) {
                let path = outputs.path(OUTPUTS_CLOSED);
                let message =
                    format!("'{path}' cannot be followed: write \"additionalProperties\": false in the schema.");
                return Err(ApiError::parameter(path, message));
            }
            for name in OUTPUTS {
                found.extend(Self::field(&outputs, name, name)?);
            }
        }
        for kind in ["json", "regex", "choice", "grammar"] {
            found.extend(Self::field(request, &format!("guided_{kind}"), kind)?);
        }
        found.extend(Self::field(request, "json_schema", "json")?);
        found.extend(Self::field(request, "grammar", "grammar")?);
        if let [first, second, ..] = found.as_slice() {
            let message = format!("'{}' and '{}' cannot both bind a reply; give one.", first.path, second.path);
            return Err(ApiError::parameter(&second.path, message));
        }
        Ok(found.pop())
    }

    /// Where the client says so.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Of a format with a `type`: "text", which is none, "json_object" or "json_schema". The schema is in `schema` or, as
    /// chat completions has it, in `json_schema.schema`; `holder` is the one of these two fields that the endpoint's API has.
    pub(crate) fn response_format(format: &Fields<'_>, holder: &str) -> Result<Option<Self>, ApiError> {
        match fields::string(format.required("type")?, &format.path("type"))? {
            "text" => Ok(None),
            // Some clients give it a schema all the same.
            "json_object" => match Self::field(format, "schema", "json")? {
                Some(schema) => Ok(Some(schema)),
                None => Ok(Some(Self { format: Format::JsonObject, path: format.path("type") })),
            },
            "json_schema" => {
                let inner = format.object("json_schema")?;
                if inner.is_none() && format.value("schema").is_none() {
                    format.required(holder)?;
                }
                let inner = inner.as_ref().unwrap_or(format);
                inner.string("name")?;
                inner.boolean("strict")?;
                inner.required("schema")?;
                Self::field(inner, "schema", "json")
            }
            kind => {
                let path = format.path("type");
                let message = format!(
                    "'{path}' must be \"text\", \"json_object\" or \"json_schema\", not {}.",
                    fields::quoted(kind)
                );
                Err(ApiError::parameter(path, message).unlogged())
            }
        }
    }

    /// The field `name` if it is there, read as a format of some kind.
    fn field(from: &Fields<'_>, name: &str, kind: &str) -> Result<Option<Self>, ApiError> {
        let Some(value) = from.value(name) else { return Ok(None) };
        let path = from.path(name);
        let text = || fields::string(value, &path).map(str::to_owned);
        let format = match kind {
            "json" => Format::JsonSchema(schema(value, &path)?),
            "json_object" if value == &Value::Bool(false) => return Ok(None),
            "json_object" if value == &Value::Bool(true) => Format::JsonObject,
            "json_object" => return Err(wrong_type(&path, "a boolean", value)),
            "regex" => Format::Regex(text()?),
            "choice" => Format::Choice(choices(value, &path)?),
            // Some clients write it where they mean none.
            _ if value == "" => return Ok(None),
            _ => Format::Lark(text()?),
        };
        Ok(Some(Self { format, path }))
    }

    /// What the reply must follow. `begins_in_reasoning` and `may_call` as in [`lily_chat::Grammars::answer`].
    pub(crate) fn grammar(
        &self,
        shared: &Shared,
        begins_in_reasoning: bool,
        may_call: bool,
    ) -> Result<ReplyGrammar, ApiError> {
        let grammar = shared.grammars()?.answer(&self.format, begins_in_reasoning, may_call);
        grammar.map_err(|error| refusal(&error, &self.path, "be used"))
    }
}

/// 400 for a field that would bind a reply if it were known: without it the reply would be free, and its client not know.
fn refuse_unknown(outputs: &Fields<'_>, path: &str) -> Result<(), ApiError> {
    let is_known =
        |name: &str| OUTPUTS.iter().chain(&OUTPUTS_ASIDE).chain([&OUTPUTS_CLOSED]).any(|known| *known == name);
    match outputs.entries().find(|(name, value)| !value.is_null() && !is_known(name)) {
        None => Ok(()),
        Some((name, _)) => {
            let message = format!("'{path}' may hold {}, not {}.", OUTPUTS.join(", "), fields::quoted(name));
            Err(ApiError::parameter(path, message).unlogged())
        }
    }
}

/// What binds the replies to a conversation: the call that they begin with, if `primed` is the beginning of one, or else
/// the format, once the reasoning that they begin in is over. A format beside such a call binds nothing, as there is no
/// content; that it could be followed is checked all the same.
pub(crate) fn binding(
    format: Option<&Structured>,
    tools: &Tools,
    shared: &Shared,
    primed: &str,
    begins_in_reasoning: bool,
) -> Result<Option<ReplyGrammar>, ApiError> {
    let may_call = tools.set().is_some();
    let format = format.map(|format| format.grammar(shared, begins_in_reasoning, may_call)).transpose()?;
    if primed.is_empty() {
        return Ok(format);
    }
    let function = if let Choice::Named(name) = &tools.choice { Some(name.as_str()) } else { None };
    let definitions = tools.bound();
    let calls = ForcedCalls { definitions: &definitions, function, parallel: !tools.single() };
    shared.grammars()?.calls(&calls, primed).map(Some).map_err(|error| match &error {
        GrammarError::Parameter { function, path, reason } => {
            let path = tools.path(function, path);
            let message = format!("'{path}' cannot bind a call: {}.", reason.trim_end_matches('.'));
            ApiError::parameter(path, message).unlogged()
        }
        error => refusal(error, "tools", "bind a call"),
    })
}

/// Why there is no grammar: what `path` has cannot do what it was sent for.
fn refusal(error: &GrammarError, path: &str, purpose: &str) -> ApiError {
    match error {
        GrammarError::Refused(reason) => {
            let message = format!("'{path}' cannot {purpose}: {}.", reason.trim_end_matches('.'));
            ApiError::parameter(path, message).unlogged()
        }
        GrammarError::Schema { path: part, reason } => {
            refusal(&GrammarError::Refused(reason.clone()), &format!("{path}.{part}"), purpose)
        }
        _ => ApiError::internal(error.to_string()),
    }
}

/// A schema, or its JSON text.
fn schema(value: &Value, path: &str) -> Result<Value, ApiError> {
    match value {
        Value::Object(_) | Value::Bool(_) => Ok(value.clone()),
        Value::String(text) => from_json(text.as_bytes())
            .map_err(|fault| ApiError::parameter(path, format!("'{path}' is a string that is {fault}."))),
        other => Err(wrong_type(path, "an object", other)),
    }
}

fn choices(value: &Value, path: &str) -> Result<Vec<String>, ApiError> {
    let Value::Array(items) = value else { return Err(wrong_type(path, "an array of strings", value)) };
    let text = |(index, item)| fields::string(item, &format!("{path}[{index}]")).map(str::to_owned);
    items.iter().enumerate().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::{Format, Structured};
    use crate::fields::Fields;
    use serde_json::{Value, json};

    fn read(request: Value) -> Result<Option<(Format, String)>, Value> {
        let read = Structured::read(&Fields::of(&request, "").expect("an object"));
        let read = read.map_err(|error| error.body()["error"]["param"].clone())?;
        Ok(read.map(|Structured { format, path }| (format, path)))
    }

    #[test]
    fn every_clients_words_are_understood() {
        let schema = json!({"type": "object"});
        let of_schema = || Format::JsonSchema(schema.clone());
        let strict = json!({"name": "x", "strict": true, "schema": schema});
        let choice = || Format::Choice(vec!["a".into(), "b".into()]);
        for (request, format, path) in [
            (json!({"response_format": {"type": "json_object"}}), Format::JsonObject, "response_format.type"),
            (
                json!({"response_format": {"type": "json_object", "schema": schema}}),
                of_schema(),
                "response_format.schema",
            ),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": strict}}),
                of_schema(),
                "response_format.json_schema.schema",
            ),
            (
                json!({"response_format": {"type": "json_schema", "name": "x", "schema": schema}}),
                of_schema(),
                "response_format.schema",
            ),
            (json!({"structured_outputs": {"json": schema}}), of_schema(), "structured_outputs.json"),
            (json!({"structured_outputs": {"json": schema.to_string()}}), of_schema(), "structured_outputs.json"),
            (
                json!({"structured_outputs": {"json_object": true}}),
                Format::JsonObject,
                "structured_outputs.json_object",
            ),
            (
                json!({"structured_outputs": {"regex": "a+", "choice": null, "whitespace_pattern": " "}}),
                Format::Regex("a+".into()),
                "structured_outputs.regex",
            ),
            (json!({"guided_regex": "a+"}), Format::Regex("a+".into()), "guided_regex"),
            (json!({"guided_choice": ["a", "b"]}), choice(), "guided_choice"),
            (json!({"guided_json": true}), Format::JsonSchema(json!(true)), "guided_json"),
            (json!({"guided_grammar": "start: A"}), Format::Lark("start: A".into()), "guided_grammar"),
            (json!({"grammar": "start: A"}), Format::Lark("start: A".into()), "grammar"),
            (json!({"json_schema": schema}), of_schema(), "json_schema"),
        ] {
            assert_eq!(read(request.clone()), Ok(Some((format, path.to_owned()))), "{request}");
        }
        for none in [
            json!({}),
            json!({"response_format": null, "grammar": null}),
            json!({"grammar": ""}),
            json!({"response_format": {"type": "text"}}),
            json!({"structured_outputs": null}),
            json!({"structured_outputs": {"json_object": false, "structural_tag": null}}),
            json!({"structured_outputs": {"json_object": false, "disable_additional_properties": false}}),
        ] {
            assert_eq!(read(none.clone()), Ok(None), "{none}");
        }
    }

    #[test]
    fn an_error_names_the_way_to_it() {
        for (request, path) in [
            (json!({"response_format": "json"}), "response_format"),
            (json!({"response_format": {}}), "response_format.type"),
            (json!({"response_format": {"type": "yaml"}}), "response_format.type"),
            (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema"),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {}}}),
                "response_format.json_schema.schema",
            ),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"schema": 1}}}),
                "response_format.json_schema.schema",
            ),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}}}),
                "response_format.json_schema.strict",
            ),
            (json!({"guided_json": "{"}), "guided_json"),
            (json!({"guided_regex": 1}), "guided_regex"),
            (json!({"guided_choice": ["a", 1]}), "guided_choice[1]"),
            (json!({"structured_outputs": {"choice": "a"}}), "structured_outputs.choice"),
            (json!({"structured_outputs": {}}), "structured_outputs"),
            (json!({"structured_outputs": {"json": null, "whitespace_pattern": " "}}), "structured_outputs"),
            (json!({"structured_outputs": {"structural_tag": "{}"}}), "structured_outputs"),
            (json!({"structured_outputs": {"schema": {"type": "object"}, "regex": null}}), "structured_outputs"),
            (json!({"structured_outputs": {"json_object": 1}}), "structured_outputs.json_object"),
            (
                json!({"structured_outputs": {"json": {}, "disable_additional_properties": true}}),
                "structured_outputs.disable_additional_properties",
            ),
            (json!({"structured_outputs": {"regex": "a", "grammar": "b"}}), "structured_outputs.grammar"),
            (json!({"response_format": {"type": "json_object"}, "guided_regex": "a"}), "guided_regex"),
        ] {
            assert_eq!(read(request.clone()).expect_err("wrong"), path, "{request}");
        }
    }
}

//! Whether the model thinks, and what else a request tells the template; the same for every endpoint.

use crate::error::ApiError;
use crate::fields::{self, Fields};
use serde_json::{Map, Value};

/// The words that OpenAI's and other clients say. The model knows thinking and not thinking only.
const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// What the template gets beyond messages and tools. The most particular way to say a thing wins: `reasoning_effort`,
/// then `enable_thinking` and `preserve_thinking`, then `chat_template_kwargs`.
pub(crate) fn template_kwargs(request: &Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    const SWITCHES: [&str; 2] = ["enable_thinking", "preserve_thinking"];
    let mut kwargs = Map::new();
    if let Some(effort) = request.string("reasoning_effort")? {
        check_effort(effort, &request.path("reasoning_effort"))?;
        if effort == "none" {
            kwargs.insert("enable_thinking".into(), false.into());
        }
    }
    for name in SWITCHES {
        if let Some(on) = request.boolean(name)? {
            kwargs.insert(name.into(), on.into());
        }
    }
    if let Some(given) = request.object("chat_template_kwargs")? {
        for name in SWITCHES {
            given.boolean(name)?;
        }
        let given = given.entries().filter(|(_, value)| !value.is_null());
        kwargs.extend(given.map(|(name, value)| (name.clone(), value.clone())));
    }
    Ok(kwargs)
}

fn check_effort(effort: &str, path: &str) -> Result<(), ApiError> {
    if EFFORTS.contains(&effort) {
        return Ok(());
    }
    let message = format!("'{path}' must be one of {}, not {}.", EFFORTS.join(", "), fields::quoted(effort));
    Err(ApiError::parameter(path, message).quoting_prompt())
}

#[cfg(test)]
mod tests {
    use super::template_kwargs;
    use crate::fields::Fields;
    use serde_json::{Value, json};

    fn read(request: Value) -> Result<Value, Value> {
        let kwargs = template_kwargs(&Fields::of(&request, "").expect("an object"));
        kwargs.map(Value::Object).map_err(|error| error.body()["error"]["param"].clone())
    }

    #[test]
    fn the_most_particular_wins() {
        for (request, kwargs) in [
            (json!({}), json!({})),
            (json!({"reasoning_effort": "none"}), json!({"enable_thinking": false})),
            (json!({"reasoning_effort": "minimal"}), json!({})),
            (json!({"reasoning_effort": "high"}), json!({})),
            (json!({"reasoning_effort": "none", "enable_thinking": true}), json!({"enable_thinking": true})),
            (
                json!({"enable_thinking": true, "preserve_thinking": true, "chat_template_kwargs":
                    {"enable_thinking": false, "x": 1, "y": null}}),
                json!({"enable_thinking": false, "preserve_thinking": true, "x": 1}),
            ),
        ] {
            assert_eq!(read(request.clone()), Ok(kwargs), "{request}");
        }
        for (request, path) in [
            (json!({"reasoning_effort": "much"}), "reasoning_effort"),
            (json!({"reasoning_effort": 3}), "reasoning_effort"),
            (json!({"preserve_thinking": "yes"}), "preserve_thinking"),
            (json!({"chat_template_kwargs": {"preserve_thinking": 1}}), "chat_template_kwargs.preserve_thinking"),
        ] {
            assert_eq!(read(request.clone()), Err(json!(path)), "{request}");
        }
    }
}

//! Whether the model thinks, and what else a request tells the template; the same for every endpoint.

use crate::error::ApiError;
use crate::fields::{self, Fields};
use serde_json::{Map, Value};

/// A word of clients' for how much the model is to think.
enum Effort {
    Off,
    /// At most so many tokens.
    Budget(u64),
    /// Nothing: many clients say so where their users have said nothing. What the server was told then holds.
    Unsaid,
    /// As long as it takes.
    On,
}

const EFFORTS: [(&str, Effort); 7] = [
    ("none", Effort::Off),
    ("minimal", Effort::Budget(1024)),
    ("low", Effort::Budget(4096)),
    ("medium", Effort::Unsaid),
    ("high", Effort::On),
    ("xhigh", Effort::On),
    ("max", Effort::On),
];

/// Tokens that thinking may take, in a request and in [`template_kwargs`].
pub(crate) const THINKING_BUDGET: &str = "thinking_budget";
const ENABLE: &str = "enable_thinking";

/// What the template gets beyond messages and tools, and [`THINKING_BUDGET`] if there is one. The most particular way to
/// say a thing wins: `reasoning_effort`, then the fields of the same names, then `chat_template_kwargs`. A budget of 0
/// turns thinking off; any other turns it on where nothing is said about that.
pub(crate) fn template_kwargs(request: &Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    const SWITCHES: [&str; 2] = [ENABLE, "preserve_thinking"];
    let mut kwargs = effort_kwargs(request, "reasoning_effort")?;
    for name in SWITCHES {
        if let Some(on) = request.boolean(name)? {
            kwargs.insert(name.into(), on.into());
        }
    }
    if let Some(tokens) = request.integer(THINKING_BUDGET, 0..=i64::MAX)? {
        kwargs.insert(THINKING_BUDGET.into(), tokens.into());
    }
    if let Some(given) = request.object("chat_template_kwargs")? {
        for name in SWITCHES {
            given.boolean(name)?;
        }
        given.integer(THINKING_BUDGET, 0..=i64::MAX)?;
        let given = given.entries().filter(|(_, value)| !value.is_null());
        kwargs.extend(given.map(|(name, value)| (name.clone(), value.clone())));
    }
    match kwargs.get(THINKING_BUDGET).and_then(Value::as_u64) {
        Some(0) => {
            kwargs.remove(THINKING_BUDGET);
            kwargs.insert(ENABLE.into(), false.into());
        }
        Some(_) => {
            kwargs.entry(ENABLE).or_insert(true.into());
        }
        None => {}
    }
    Ok(kwargs)
}

/// What of [`template_kwargs`] the effort is that the field `name` asks for.
pub(crate) fn effort_kwargs(request: &Fields<'_>, name: &str) -> Result<Map<String, Value>, ApiError> {
    let mut kwargs = Map::new();
    if let Some(effort) = request.string(name)? {
        match read_effort(effort, &request.path(name))? {
            Effort::Off => _ = kwargs.insert(ENABLE.into(), false.into()),
            Effort::Budget(tokens) => {
                kwargs.insert(ENABLE.into(), true.into());
                kwargs.insert(THINKING_BUDGET.into(), (*tokens).into());
            }
            Effort::Unsaid => {}
            Effort::On => _ = kwargs.insert(ENABLE.into(), true.into()),
        }
    }
    Ok(kwargs)
}

fn read_effort(effort: &str, path: &str) -> Result<&'static Effort, ApiError> {
    EFFORTS.iter().find(|(name, _)| *name == effort).map(|(_, effort)| effort).ok_or_else(|| {
        let names = EFFORTS.each_ref().map(|(name, _)| *name).join(", ");
        let message = format!("'{path}' must be one of {names}, not {}.", fields::quoted(effort));
        ApiError::parameter(path, message).unlogged()
    })
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
            (json!({"reasoning_effort": "minimal"}), json!({"enable_thinking": true, "thinking_budget": 1024})),
            (json!({"reasoning_effort": "low"}), json!({"enable_thinking": true, "thinking_budget": 4096})),
            (json!({"reasoning_effort": "medium"}), json!({})),
            (json!({"reasoning_effort": "high"}), json!({"enable_thinking": true})),
            (json!({"thinking_budget": 7}), json!({"enable_thinking": true, "thinking_budget": 7})),
            (json!({"thinking_budget": 0}), json!({"enable_thinking": false})),
            (json!({"thinking_budget": 0, "enable_thinking": true}), json!({"enable_thinking": false})),
            (
                json!({"thinking_budget": 7, "enable_thinking": false}),
                json!({"enable_thinking": false, "thinking_budget": 7}),
            ),
            (
                json!({"reasoning_effort": "low", "thinking_budget": 8, "chat_template_kwargs": {"thinking_budget": 9}}),
                json!({"enable_thinking": true, "thinking_budget": 9}),
            ),
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
            (json!({"thinking_budget": -1}), "thinking_budget"),
            (json!({"thinking_budget": "many"}), "thinking_budget"),
            (json!({"chat_template_kwargs": {"thinking_budget": 1.5}}), "chat_template_kwargs.thinking_budget"),
            (json!({"chat_template_kwargs": {"preserve_thinking": 1}}), "chat_template_kwargs.preserve_thinking"),
        ] {
            assert_eq!(read(request.clone()), Err(json!(path)), "{request}");
        }
    }
}

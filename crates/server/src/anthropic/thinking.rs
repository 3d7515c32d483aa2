//! Whether the model thinks, in Anthropic's words.

use crate::error::ApiError;
use crate::fields::{self, Fields};
use crate::thinking::{THINKING_BUDGET, effort_kwargs, template_kwargs};
use serde_json::{Map, Value};

/// What a request says about thinking.
pub(super) struct Thinking {
    /// What the template gets beyond messages and tools.
    pub(super) kwargs: Map<String, Value>,
    /// Whether the text of the reasoning goes out.
    pub(super) shown: bool,
}

impl Thinking {
    /// Reads `thinking` and, since they are more particular, what the other endpoints know thinking by. System messages may
    /// change the effort; the last one's holds.
    pub(super) fn read(request: &Fields<'_>, messages: Option<&Value>) -> Result<Self, ApiError> {
        let thinking = request.object("thinking")?;
        let mut budget = None;
        let on = match &thinking {
            None => false,
            Some(thinking) => {
                budget = thinking.integer("budget_tokens", 1..=i64::MAX)?;
                match fields::string(thinking.required("type")?, &thinking.path("type"))? {
                    "enabled" | "adaptive" => true,
                    "disabled" => false,
                    other => {
                        let path = thinking.path("type");
                        let other = fields::quoted(other);
                        let message =
                            format!("'{path}' must be \"enabled\", \"adaptive\" or \"disabled\", not {other}.");
                        return Err(ApiError::parameter(path, message).unlogged());
                    }
                }
            }
        };
        let display = thinking.map(|thinking| thinking.string("display")).transpose()?.flatten();
        let mut kwargs = Map::new();
        kwargs.insert("enable_thinking".into(), on.into());
        kwargs.insert("preserve_thinking".into(), true.into());
        let effort = |said: &Fields<'_>| {
            let output = said.object("output_config")?.filter(|output| output.value("effort").is_some());
            output.map(|output| effort_kwargs(&output, "effort")).transpose()
        };
        let mut last_effort = effort(request)?;
        let messages = messages.and_then(Value::as_array).into_iter().flatten().enumerate();
        for (index, message) in messages.filter(|(_, message)| message["role"] == "system") {
            last_effort = effort(&Fields::of(message, &format!("messages[{index}]"))?)?.or(last_effort);
        }
        if on {
            // The effort says how long, not whether.
            let effort = last_effort.as_ref().and_then(|effort| effort.get(THINKING_BUDGET));
            if let Some(budget) = budget.map(Value::from).as_ref().or(effort) {
                kwargs.insert(THINKING_BUDGET.into(), budget.clone());
            }
        }
        kwargs.extend(template_kwargs(request)?);
        Ok(Self { kwargs, shown: display != Some("omitted") })
    }
}

#[cfg(test)]
mod tests {
    use super::Thinking;
    use crate::fields::Fields;
    use serde_json::{Value, json};

    fn read(request: Value) -> Result<(Value, bool), Value> {
        let thinking = Thinking::read(&Fields::of(&request, "").expect("an object"), request.get("messages"));
        let thinking = thinking.map_err(|error| error.body()["error"]["param"].clone())?;
        Ok((Value::Object(thinking.kwargs), thinking.shown))
    }

    #[test]
    fn it_thinks_if_it_is_asked_to() {
        for (request, on, shown) in [
            (json!({}), false, true),
            (json!({"thinking": null}), false, true),
            (json!({"thinking": {"type": "disabled"}}), false, true),
            (json!({"thinking": {"type": "disabled", "budget_tokens": 2000}}), false, true),
            (json!({"thinking": {"type": "adaptive", "display": "summarized"}}), true, true),
            (json!({"thinking": {"type": "adaptive", "display": "omitted"}}), true, false),
            (json!({"enable_thinking": true}), true, true),
            (json!({"thinking": {"type": "enabled"}, "chat_template_kwargs": {"enable_thinking": false}}), false, true),
        ] {
            let kwargs = json!({"enable_thinking": on, "preserve_thinking": true});
            assert_eq!(read(request.clone()), Ok((kwargs, shown)), "{request}");
        }
        let bounded = json!({"thinking": {"type": "enabled", "budget_tokens": 2000}});
        let kwargs = json!({"enable_thinking": true, "preserve_thinking": true, "thinking_budget": 2000});
        assert_eq!(read(bounded), Ok((kwargs, true)));
        let low = read(json!({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}})).expect("fine").0;
        assert!(low["thinking_budget"].as_u64().is_some_and(|budget| budget > 0), "{low}");
        let effort = |effort: &str| json!({"role": "system", "output_config": {"effort": effort}});
        let mut said = json!({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"},
            "messages": [effort("minimal"), effort("low"), {"role": "system", "output_config": {}}]});
        assert_eq!(read(said.clone()).expect("fine").0["thinking_budget"], low["thinking_budget"]);
        said["messages"][2] = effort("medium");
        assert_eq!(read(said).expect("fine").0["thinking_budget"], Value::Null);
        let forgetful = json!({"preserve_thinking": false});
        assert_eq!(read(forgetful), Ok((json!({"enable_thinking": false, "preserve_thinking": false}), true)));
        for (request, path) in [
            (json!({"thinking": "enabled"}), "thinking"),
            (json!({"thinking": {}}), "thinking.type"),
            (json!({"thinking": {"type": "deep"}}), "thinking.type"),
            (json!({"thinking": {"type": "enabled", "budget_tokens": 0}}), "thinking.budget_tokens"),
            (json!({"thinking": {"type": "adaptive", "display": 1}}), "thinking.display"),
            (json!({"thinking": {"type": "adaptive"}, "output_config": {"effort": 1}}), "output_config.effort"),
            (json!({"output_config": {"effort": "x"}}), "output_config.effort"),
            (json!({"messages": [effort("low"), effort("x")]}), "messages[1].output_config.effort"),
        ] {
            assert_eq!(read(request.clone()), Err(json!(path)), "{request}");
        }
    }
}

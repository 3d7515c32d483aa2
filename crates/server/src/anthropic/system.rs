//! The system prompt.

use crate::error::ApiError;
use crate::fields::{self, Fields};
use serde_json::{Value, json};

/// What begins a block that is meant for Anthropic's accounts. Agents write one in front of their system prompt, with a
/// value that changes with every request: in the prompt it would leave nothing of it to be found in the cache.
const BILLING: &str = "x-anthropic-billing-header:";

/// The system message, in OpenAI's chat form, if there is one.
pub(super) fn read(request: &Fields<'_>) -> Result<Option<Value>, ApiError> {
    let text = match request.value("system") {
        None => return Ok(None),
        Some(Value::String(text)) => without_billing(text).to_owned(),
        Some(Value::Array(blocks)) => {
            let texts: Vec<&str> = blocks
                .iter()
                .enumerate()
                .map(|(index, block)| text_of(&Fields::of(block, &format!("system[{index}]"))?).map(without_billing))
                .collect::<Result<_, _>>()?;
            join(texts)
        }
        Some(other) => return Err(fields::wrong_type("system", "a string or an array of text blocks", other)),
    };
    Ok((!text.is_empty()).then(|| json!({"role": "system", "content": text})))
}

/// The texts of blocks that stand beside each other, a blank line between.
pub(super) fn join<'t>(texts: impl IntoIterator<Item = &'t str>) -> String {
    texts.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n\n")
}

fn text_of<'v>(block: &Fields<'v>) -> Result<&'v str, ApiError> {
    let kind = fields::string(block.required("type")?, &block.path("type"))?;
    if kind != "text" {
        let path = block.path("type");
        let message = format!("'{path}' must be \"text\", not {}.", fields::quoted(kind));
        return Err(ApiError::parameter(path, message).unlogged());
    }
    fields::string(block.required("text")?, &block.path("text"))
}

/// The text without the line for the accounts, should it begin with one.
fn without_billing(text: &str) -> &str {
    if !text.trim_start().starts_with(BILLING) {
        return text;
    }
    text.trim_start().split_once('\n').map_or("", |(_, rest)| rest)
}

#[cfg(test)]
mod tests {
    use super::read;
    use crate::fields::Fields;
    use serde_json::{Value, json};

    fn text(system: Value) -> Option<String> {
        let request = json!({"system": system});
        let message = read(&Fields::of(&request, "").expect("an object")).expect("fine")?;
        assert_eq!(message["role"], "system");
        message["content"].as_str().map(str::to_owned)
    }

    #[test]
    fn a_string_or_blocks() {
        let block = |text: &str| json!({"type": "text", "text": text, "cache_control": {"type": "ephemeral"}});
        assert_eq!(text(json!("Be brief.")).as_deref(), Some("Be brief."));
        assert_eq!(text(json!([block("a"), block(""), block("b")])).as_deref(), Some("a\n\nb"));
        for nothing in [Value::Null, json!(""), json!([]), json!([block("")])] {
            assert_eq!(text(nothing), None);
        }
        for (wrong, path) in [
            (json!(7), "system"),
            (json!([7]), "system[0]"),
            (json!([{"type": "image"}]), "system[0].type"),
            (json!([block("a"), {"type": "text"}]), "system[1].text"),
        ] {
            let request = json!({"system": wrong});
            let error = read(&Fields::of(&request, "").expect("an object")).expect_err("wrong");
            assert_eq!(error.body()["error"]["param"], path);
        }
    }

    #[test]
    fn the_line_for_the_accounts_is_left_out() {
        let line = |hash: &str| format!("x-anthropic-billing-header: cc_version=2.1.1; cch={hash};");
        let blocks = |hash: &str| json!([{"type": "text", "text": line(hash)}, {"type": "text", "text": "You help."}]);
        assert_eq!(text(blocks("1")).as_deref(), Some("You help."));
        assert_eq!(text(blocks("1")), text(blocks("2")));
        assert_eq!(text(json!(format!("{}\nYou help.", line("3")))).as_deref(), Some("You help."));
        assert_eq!(text(json!(line("3"))), None);
        let quoted = format!("The header is {}", line("4"));
        assert_eq!(text(json!(quoted)).as_deref(), Some(quoted.as_str()));
    }
}

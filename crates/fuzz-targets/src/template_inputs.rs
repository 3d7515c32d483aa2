//! The chat template of the 35B, and what keeps messages from being control.

use arbitrary::{Result, Unstructured};
use lily_chat::{Guard, Prompt};
use serde_json::{Map, Value};

use crate::conversation::{any, messages, tools};
use crate::tiny::{TEMPLATE, TOKENIZER};

/// Any bytes are messages, tools and what else a template reads.
///
/// It renders them or says why not. With the guard's marks it makes the same text, and of the tokens only those are control that
/// it writes itself: as many as where the messages hold nothing that looks like one.
pub fn template_inputs(data: &[u8]) {
    let Ok(prompt) = prompt(&mut Unstructured::new(data)) else { return };
    let harmless = Prompt {
        messages: prompt.messages.iter().map(disarmed).collect(),
        tools: prompt.tools.iter().map(disarmed).collect(),
        kwargs: prompt.kwargs.clone(),
        ..prompt
    };
    let guard = Guard::new(&TOKENIZER);
    let plain = TEMPLATE.render(&prompt);
    let guarded = TEMPLATE.render_guarded(&prompt, &guard);
    let other = TEMPLATE.render(&harmless);
    let (Ok(plain), Ok(guarded), Ok(other)) = (&plain, &guarded, &other) else {
        assert!(plain.is_err() && guarded.is_err() && other.is_err(), "{plain:?}, {guarded:?}, {other:?}");
        assert_eq!(
            plain.map_err(|error| error.to_string()),
            guarded.map_err(|error| error.to_string()),
            "marks are not shown"
        );
        return;
    };
    assert_eq!(guard.clean(guarded), *plain);
    let tokens = guard.encode(guarded).expect("tokens");
    let expected = TOKENIZER.encode(other).expect("tokens");
    assert_eq!(control(&tokens), control(&expected), "of {plain:?}");
    if plain.is_ascii() {
        let bytes: Vec<u8> = tokens.iter().flat_map(|&token| TOKENIZER.bytes(token)).copied().collect();
        assert_eq!(String::from_utf8_lossy(&bytes), *plain);
    }
}

fn prompt(source: &mut Unstructured<'_>) -> Result<Prompt> {
    let mut kwargs = Map::new();
    for name in ["enable_thinking", "preserve_thinking"] {
        if source.arbitrary()? {
            kwargs.insert(name.into(), source.arbitrary::<bool>()?.into());
        }
    }
    let add_generation_prompt = source.arbitrary()?;
    let messages = messages(source)?;
    let tools = tools(source, |source| any(source, 3))?;
    Ok(Prompt { messages, tools, add_generation_prompt, kwargs })
}

/// The control tokens of a prompt.
fn control(tokens: &[u32]) -> Vec<u32> {
    tokens.iter().copied().filter(|&token| TOKENIZER.is_special(token)).collect()
}

/// The value without the texts of control tokens, and without parts of them that could join to one.
fn disarmed(value: &Value) -> Value {
    let text = |text: &str| text.replace('|', "!").replace("<tts_", "<tss_");
    match value {
        Value::String(string) => text(string).into(),
        Value::Array(items) => items.iter().map(disarmed).collect(),
        Value::Object(map) => map.iter().map(|(key, value)| (text(key), disarmed(value))).collect(),
        other => other.clone(),
    }
}

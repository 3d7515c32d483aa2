//! Grammars of calls of one function, `f`.
#![allow(dead_code, reason = "each test binary uses its own part")]

use lily_chat::{ForcedCalls, GrammarError, ReplyGrammar};
use serde_json::{Value, json};

use crate::vocabulary::{Vocabulary, tiny};

/// A grammar of one function with these parameters.
pub(crate) fn of(vocabulary: &Vocabulary, parameters: &Value, strict: bool) -> Result<ReplyGrammar, GrammarError> {
    let function = json!({"name": "f", "parameters": parameters, "strict": strict});
    let definitions = [json!({"type": "function", "function": function})];
    let calls = ForcedCalls { definitions: &definitions, function: None, parallel: false };
    vocabulary.grammars.calls(&calls, "<tool_call>\n<function=f>\n")
}

/// Why there is none.
pub(crate) fn refusal(parameters: &Value, strict: bool) -> (String, String) {
    match of(tiny(), parameters, strict) {
        Err(GrammarError::Parameter { function, path, reason }) => {
            assert_eq!(function, "f");
            (path, reason)
        }
        other => panic!("{parameters}: {other:?}"),
    }
}

/// Whether the parameter `x` may be these texts, and none of the others.
pub(crate) fn takes(vocabulary: &Vocabulary, grammar: &ReplyGrammar, yes: &[&str], no: &[&str], schema: &Value) {
    let rest = |text: &str| format!("<parameter=x>\n{text}\n</parameter>\n</function>\n</tool_call>");
    for text in yes {
        let ends = vocabulary.follow(&mut grammar.clone(), &rest(text));
        assert_eq!(ends, Ok(vec![rest(text).len()]), "{schema} {text:?}");
    }
    for text in no {
        vocabulary.follow(&mut grammar.clone(), &rest(text)).expect_err(&format!("{schema} {text:?}"));
    }
}

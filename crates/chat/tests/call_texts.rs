//! Texts in forced calls: what the grammar lets through is what the parser reads back.

mod common;
mod one_function;
mod vocabulary;
mod walk;

use lily_chat::ForcedCalls;
use one_function::of;
use proptest::prelude::*;
use serde_json::{Value, json};
use vocabulary::{both, tiny};

/// A closing tag that begins a line ends a text, also where the model would end the call without what is required, or go on
/// with a parameter that there is not: it is never a part of the text, with which the model would not come to an end.
#[test]
fn a_closing_tag_on_a_line_of_its_own_ends_a_text() {
    let parameters =
        json!({"required": ["x", "y"], "properties": {"x": {"type": "string"}, "y": {"enum": ["a", "b"]}}});
    let (close, rest) = ("\n</parameter>", "\n<parameter=y>\na\n</parameter>\n</function>\n</tool_call>");
    let quoted = "<tool_call>\n<function=g>\n<parameter=z>\n1\n</parameter>\n</function>\n</tool_call>";
    for vocabulary in both() {
        let grammar = of(vocabulary, &parameters, true).expect("a grammar");
        let follow = |text: &str| vocabulary.follow(&mut grammar.clone(), &format!("<parameter=x>\n{text}"));
        for text in ["Oslo", "", "a </parameter> b", "a\n </function>\nb", quoted] {
            follow(&format!("{text}{close}{rest}")).unwrap_or_else(|error| panic!("{text:?}: {error}"));
            for next in ["\n</", "\n\n", "\n<parameter=x", "\n<parameter=z", "\n<function", "\na", " ", "a"] {
                follow(&format!("{text}{close}{next}")).expect_err(&format!("{text:?} {next:?}"));
            }
        }
        for text in ["</parameter>", "Oslo\n</function>", "</function>", &format!("{quoted}\n</function>")] {
            follow(text).expect_err(text);
        }
    }
}

/// Pieces of texts about calls.
fn markup() -> impl Strategy<Value = String> {
    let pieces = [
        "</tool_call>",
        "<tool_call>",
        "<function=f>",
        "<function=x>",
        "</function>",
        "<parameter=x>",
        "<parameter=y>",
        "</parameter>",
        "\n",
        "\n",
        " ",
        "\r\n",
        "a",
        "é🦔",
        "<",
        "</",
        ">",
        "=",
        "\n</parameter>\n",
        "\n<function=f>\n<parameter=x>\n",
        "\u{a0}",
        "null",
    ];
    prop::collection::vec(prop::sample::select(pieces.to_vec()), 0..12).prop_map(|pieces| pieces.concat())
}

/// What ends a value, and where.
const CLOSE: &str = "\n</parameter>\n<";

/// Whether the parser may tell such a text and the grammar not: a text that is held to something has no tags; in one that is
/// free none are too near each other, and a line begins with `</parameter>` or `</function>` only in a quoted call.
fn excepted(text: &str, bounded: bool) -> bool {
    const NEAR: [&str; 4] = [
        // The parser looks whether the function is known.
        r"</parameter>[ \t\r\n]*<function=",
        // It takes a name to be anything up to its end.
        r"<function=[^>\n]*<",
        r"<function=>",
        r"</function>[ \t\r]*<function=",
    ];
    if bounded {
        return ["</parameter>", "</tool_call>", "<function="].iter().any(|tag| text.contains(tag));
    }
    const QUOTED: &str = r"(?ms)^[ \t\r]*<function=[^<>\n]+>\r?\n[ \t]*(<parameter=.*?)?</function>";
    let expression = |text: &str| regex::Regex::new(text).expect("an expression");
    // What follows a quoted call on its line is taken to begin one.
    let outside = expression(QUOTED).replace_all(text, "");
    expression("(?m)^</(parameter|function)>").is_match(&outside)
        || NEAR.iter().any(|near| expression(near).is_match(text))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Field case 20: a text about calls that the grammar lets through is read back byte for byte; and it lets through what
    /// the parser can tell, but for what is [excepted].
    #[test]
    fn case_20_texts_of_forced_calls_are_byte_exact(text in markup(), bounded: bool) {
        let schema = if bounded { json!({"type": "string", "maxLength": 500}) } else { json!({"type": "string"}) };
        let parameters = json!({"properties": {"x": schema, "y": {"type": "string"}}, "required": ["x"]});
        let definitions = [json!({"type": "function", "function": {"name": "f", "parameters": parameters}})];
        let calls = ForcedCalls { definitions: &definitions, function: None, parallel: true };
        let primed = "<tool_call>\n<function=f>\n";
        let grammar = tiny().grammars.calls(&calls, primed).expect("a grammar");
        for rest in ["</function>\n</tool_call>", "<parameter=y>\n\n</parameter>\n</function>\n</tool_call>"] {
            let whole = format!("<parameter=x>\n{text}\n</parameter>\n{rest}");
            let ends = tiny().follow(&mut grammar.clone(), &whole);
            let fits = ends.is_ok_and(|ends| ends.last() == Some(&whole.len()));
            let read = walk::read(&format!("{primed}{whole}"), &definitions);
            let expected = if rest.contains('y') { json!({"x": text, "y": ""}) } else { json!({"x": text}) };
            let exact = read.as_ref().is_some_and(|calls| {
                calls.len() == 1 && serde_json::from_str::<Value>(&calls[0]).is_ok_and(|arguments| arguments == expected)
            });
            // A line within may be the value's end, and what follows another parameter.
            let x = read.as_ref().and_then(|calls| serde_json::from_str::<Value>(&calls[0]).ok()?["x"].as_str().map(str::to_owned));
            let closed = format!("{text}{CLOSE}");
            let ends_within = closed.match_indices(CLOSE).any(|(end, _)| end < text.len() && x.as_deref() == Some(&text[..end]));
            prop_assert!(!fits || exact || ends_within, "{text:?} is read as {read:?}");
            prop_assert!(fits || !exact || excepted(&text, bounded), "{text:?} could be told");
        }
    }
}

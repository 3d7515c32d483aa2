//! Grammars of calls that a reply must make: whatever it writes is a call as the parser reads them, and no call that it has
//! begun is without a way to its end.

mod common;
mod one_function;
mod vocabulary;
mod walk;

use lily_chat::{ForcedCalls, GrammarError, ReplyGrammar};
use one_function::{of, refusal, takes};
use proptest::prelude::*;
use serde_json::{Value, json};
use vocabulary::{Vocabulary, both, real, schemas, tiny, tools};
use walk::{Walk, allows};

fn calls(function: Option<&'static str>, parallel: bool, primed: &str, vocabulary: &Vocabulary) -> ReplyGrammar {
    let definitions = tools();
    let calls = ForcedCalls { definitions: &definitions, function, parallel };
    vocabulary.grammars.calls(&calls, primed).expect("a grammar")
}

/// Field cases 22 and 24: the grammar takes the tokens that the model writes, `=get` among them.
#[test]
fn forced_calls_are_of_the_declared_parameters() {
    let whole = "<parameter=city>\n  São\n\nPaulo </tool_call> 🦔\n</parameter>\n<parameter=days>\n3\n</parameter>\n";
    for vocabulary in both() {
        let end = "</function>\n</tool_call>";
        let any = || calls(None, true, "<tool_call>\n<function", vocabulary);
        for text in [
            format!("=get_weather>\n{whole}{end}"),
            format!("=get_weather>\n{whole}<parameter=unit>\nC\n</parameter>\n{end}"),
            format!("=get_weather>\n{whole}<parameter=options>\n{{\"wind\": true}}\n</parameter>\n{end}"),
            format!("=get>\n{end}"),
            format!("=any>\n<parameter=x>\n1\n</parameter>\n{end}"),
            format!("=get>\n{end}\n<tool_call>\n<function=get>\n{end}"),
        ] {
            let mut grammar = any();
            let ends = vocabulary.follow(&mut grammar, &text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
            assert_eq!(ends.last(), Some(&text.len()), "{text:?}");
            assert_eq!(vocabulary.end(&grammar), Some(false), "there may be another");
        }
        for text in [
            format!("=get_wea>\n{end}"),
            format!("=get_weather>\n{end}"),
            "=get_weather>\n<parameter=days>".into(),
            "=get_weather>\n<parameter=city>\nx\n</parameter>\n<parameter=days>\n15".into(),
            format!("=get_weather>\n{whole}<parameter=unit>\nK"),
            format!("=get_weather>\n{whole}<parameter=other>"),
            "=get>\n<parameter=x>".into(),
            format!("=get>\n{end}\n\nThat"),
        ] {
            vocabulary.follow(&mut any(), &text).expect_err(&text);
        }
        let mut single = calls(Some("get"), false, "<tool_call>\n<function=get>\n", vocabulary);
        vocabulary.follow(&mut single, end).expect("a call without arguments");
        assert_eq!(vocabulary.end(&single), Some(true), "and nothing else");
    }
    let get = real().tokenizer.encode("=get_weather").expect("tokens")[0];
    assert_eq!(real().tokenizer.bytes(get), b"=get");
    assert!(allows(&calls(None, true, "<tool_call>\n<function", real()), get));
}

/// Lengths beside other values, filled to their end: what is accepted never fails midway.
#[test]
fn no_reply_dies_midway() {
    let html = "<div class=\"x\"> é <p>\n</p></div>".repeat(100);
    let cut = |count: usize| html.chars().take(count).collect::<String>();
    for (schema, texts) in [
        (
            json!({"anyOf": [{"type": "string", "maxLength": 100}, {"type": "null"}]}),
            vec!["null".to_owned(), "null pointer".into(), cut(100)],
        ),
        (json!({"anyOf": [{"type": "string", "maxLength": 3000}, {"type": "null"}]}), vec!["null".into(), cut(3000)]),
        (json!({"type": ["string", "boolean"], "maxLength": 50}), vec!["true".into(), "truer".into(), cut(50)]),
        (json!({"type": ["string", "integer"], "maxLength": 30}), vec!["5".into(), "5 apples".into(), cut(30)]),
        (json!({"type": ["string", "integer"], "minLength": 50}), vec!["5".into(), cut(80)]),
        (json!({"type": ["string", "integer"], "minLength": 50, "minimum": 3}), vec!["5".into(), cut(80)]),
        (
            json!({"type": ["string", "array"], "maxLength": 50, "items": {"type": "integer"}}),
            vec!["[1, 2]".into(), cut(50), format!("[{}1]", "1, ".repeat(50))],
        ),
    ] {
        let parameters = json!({"properties": {"x": schema}});
        for vocabulary in both() {
            let grammar = of(vocabulary, &parameters, false).unwrap_or_else(|error| panic!("{schema}: {error}"));
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            takes(vocabulary, &grammar, &texts, &[], &schema);
        }
    }
    // Alternatives of one text, each of which fits.
    let ways = [
        json!({"maxLength": 400}),
        json!({"pattern": "^([a-z]{1,40}-)*[0-9]{3,60}$"}),
        json!({"pattern": "e[a-z ]{9}$"}),
    ];
    for way in &ways {
        of(tiny(), &json!({"properties": {"x": {"type": "string", "allOf": [way]}}}), true).expect("it fits");
    }
    let (path, reason) = refusal(&json!({"properties": {"x": {"type": "string", "anyOf": ways}}}), true);
    assert!(path == "properties.x" && reason.contains("alternatives come to together"), "{path}: {reason}");
    // Names are texts, too.
    let names = |count: usize| -> serde_json::Map<String, Value> {
        (0..count).map(|index| (format!("{index}{}", "n".repeat(250)), json!({}))).collect()
    };
    for parameters in [
        json!({"properties": {"x": {"type": "array", "items": {"properties": names(975)}}}}),
        json!({"properties": names(975)}),
    ] {
        let error = of(tiny(), &parameters, true).expect_err("too much").to_string();
        assert!(error.contains("takes more than one reply may"), "{error}");
    }
    // Within JSON as well.
    let schema = json!({"type": "array", "items": {"type": "string", "maxLength": 2000}});
    let grammar = of(real(), &json!({"properties": {"x": schema}}), true).expect("it fits");
    let texts = [2000, 2001].map(|count| json!([cut(count)]).to_string());
    takes(real(), &grammar, &[&texts[0]], &[&texts[1]], &schema);
    let html = html.repeat(4);
    let text = Value::from(html.chars().take(10_000).collect::<String>()).to_string();
    let mut grammar = real().schema(json!({"type": "string", "maxLength": 10_000}));
    assert_eq!(real().follow(&mut grammar, &text).map(|ends| ends.last().copied()), Ok(Some(text.len())));
    let text = |length: usize| json!({"type": "string", "maxLength": length});
    let two = json!({"properties": {"a": text(3000), "b": text(2999), "c": {"type": "array", "items": text(2998)}}, "required": ["a", "b"]});
    let (path, reason) = refusal(&two, true);
    assert!(path == "properties.b" && reason.contains("a length of 2999"), "{path}: {reason}");
    let grammar = of(real(), &two, false).expect("looser");
    let [a, b] = [cut(3000), cut(3200)];
    let whole =
        format!("<parameter=a>\n{a}\n</parameter>\n<parameter=b>\n{b}\n</parameter>\n</function>\n</tool_call>");
    assert_eq!(real().follow(&mut grammar.clone(), &whole), Ok(vec![whole.len()]));
    let whole = format!("<parameter=a>\n{b}");
    real().follow(&mut grammar.clone(), &whole).expect_err("the first is held to its length");
}

#[test]
fn a_refusal_of_all_parameters_names_the_function() {
    let error = of(tiny(), &json!({"type": "string"}), false).err().map(|error| error.to_string());
    assert_eq!(error.as_deref(), Some("the parameters of the function 'f': no arguments satisfy it"));
}

/// Of two functions of one name the first counts, as where calls are read.
#[test]
fn the_first_of_two_functions_of_one_name_counts() {
    let function = |kind: &str| json!({"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {"type": kind}}}}});
    let definitions = [function("integer"), function("boolean")];
    let calls = ForcedCalls { definitions: &definitions, function: None, parallel: false };
    let grammar = tiny().grammars.calls(&calls, "<tool_call>\n<function=f>\n").expect("a grammar");
    takes(tiny(), &grammar, &["1"], &["true"], &definitions[0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Whichever of the allowed tokens come, the reply is a call as the parser reads them, with arguments of the schema.
    #[test]
    fn any_walk_of_calls_is_read_as_calls(
        parts in prop::collection::vec((schemas(), any::<bool>()), 0..3),
        seed: u64,
        use_real in prop::bool::weighted(0.3),
    ) {
        let vocabulary = if use_real { real() } else { tiny() };
        let properties: serde_json::Map<String, Value> =
            parts.iter().enumerate().map(|(index, (schema, _))| (format!("p{index}"), schema.clone())).collect();
        let required: Vec<String> =
            parts.iter().enumerate().filter(|(_, (_, required))| *required).map(|(index, _)| format!("p{index}")).collect();
        let parameters = json!({"type": "object", "properties": properties, "required": required});
        // What cannot be followed would be left out, and arguments not be of the schema.
        let function = json!({"name": "f", "parameters": parameters, "strict": true});
        let definitions = [json!({"type": "function", "function": function})];
        let calls = ForcedCalls { definitions: &definitions, function: None, parallel: true };
        let primed = "<tool_call>\n<function=f>\n";
        let mut walk = Walk::new(seed, &vocabulary.tokenizer, &vocabulary.stops);
        let grammar = match vocabulary.grammars.calls(&calls, primed) {
            Err(GrammarError::Parameter { reason, .. }) if ["a number beside a string", "a length of"].iter().any(|known| reason.contains(known)) => return Ok(()),
            grammar => grammar.expect("a grammar"),
        };
        let text = primed.to_owned() + &walk.reply(grammar);
        for arguments in walk::arguments(&text, &definitions) {
            let given: Value = serde_json::from_str(&arguments).expect("JSON");
            prop_assert!(required.iter().all(|name| given.get(name).is_some()), "{arguments} {text}");
            for (name, value) in given.as_object().expect("an object") {
                let schema = properties.get(name).expect("a declared parameter");
                prop_assert!(jsonschema::is_valid(schema, value), "{name}: {value} of {schema}: {text}");
            }
        }
    }
}

//! Schemas as tool servers, agents and frameworks send them (`fixtures/schemas.json`): each is followed as a reply's format and in
//! a forced call, strict or not. What is of it may come, and whatever comes is of it.

mod common;
mod one_function;
mod vocabulary;
mod walk;

use lily_chat::Format;
use serde::Deserialize;
use serde_json::{Value, json};
use vocabulary::tiny;
use walk::Walk;

/// A schema of an object, with values that are of it and others that are not. Their properties are in its order.
#[derive(Deserialize)]
struct Sent {
    name: String,
    schema: Value,
    values: Vec<Value>,
    #[serde(default)]
    others: Vec<Value>,
    /// Whether tokens drawn at random may never come to an end.
    #[serde(default)]
    grows: bool,
}

fn sent() -> Vec<Sent> {
    serde_json::from_slice(&common::fixture("schemas.json")).expect("schemas")
}

const PRIMED: &str = "<tool_call>\n<function=f>\n";

/// The rest of a call with these arguments.
fn written(arguments: &Value) -> String {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let parameters = arguments.as_object().expect("an object").iter();
    let parameters = parameters.map(|(name, value)| format!("<parameter={name}>\n{}\n</parameter>\n", text(value)));
    parameters.collect::<String>() + "</function>\n</tool_call>"
}

/// The arguments of a call that begins as it is primed.
fn read(rest: &str, schema: &Value) -> Value {
    let definitions = [json!({"type": "function", "function": {"name": "f", "parameters": schema}})];
    let calls = walk::arguments(&format!("{PRIMED}{rest}"), &definitions);
    serde_json::from_str(&calls[0]).unwrap_or_else(|error| panic!("{error}: {calls:?}"))
}

#[test]
fn values_of_what_is_sent_may_come() {
    for Sent { name, schema, values, others, .. } in sent() {
        let format = tiny().answer(Format::JsonSchema(schema.clone()));
        let calls = [false, true].map(|strict| {
            one_function::of(tiny(), &schema, strict).unwrap_or_else(|error| panic!("{name}, strict {strict}: {error}"))
        });
        for value in values {
            for text in [value.to_string(), serde_json::to_string_pretty(&value).expect("JSON")] {
                assert_eq!(tiny().follow(&mut format.clone(), &text), Ok(vec![text.len()]), "{name}: {text}");
            }
            let rest = written(&value);
            for call in &calls {
                assert_eq!(tiny().follow(&mut call.clone(), &rest), Ok(vec![rest.len()]), "{name}: {rest}");
            }
            assert_eq!(read(&rest, &schema), value, "{name}");
        }
        for value in others {
            tiny().follow(&mut format.clone(), &value.to_string()).expect_err(&name);
            for call in &calls {
                tiny().follow(&mut call.clone(), &written(&value)).expect_err(&name);
            }
        }
    }
}

#[test]
fn whatever_comes_is_of_what_is_sent() {
    for (index, Sent { name, schema, .. }) in sent().into_iter().enumerate().filter(|(_, sent)| !sent.grows) {
        let validator = jsonschema::options().should_validate_formats(true).build(&schema).expect("a schema");
        let mut walk = Walk::new(index as u64 + 1, &tiny().tokenizer, &tiny().stops);
        for _ in 0..3 {
            let answer = walk.reply(tiny().schema(schema.clone()));
            let call = walk.reply(one_function::of(tiny(), &schema, true).expect("a grammar"));
            // JSON has numbers that are beyond any float, which serde_json does not read.
            let value = serde_json::from_str(&answer).unwrap_or_else(|error| {
                assert!(error.to_string().starts_with("number out of range"), "{name}: {error}: {answer}");
                read(&written(&json!({"x": answer})), &json!({"properties": {"x": schema}}))["x"].take()
            });
            assert!(validator.is_valid(&value), "{name}: {answer:?}");
            assert!(validator.is_valid(&read(&call, &schema)), "{name}: {call:?}");
        }
    }
}

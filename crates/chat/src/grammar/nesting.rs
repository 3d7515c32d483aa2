//! Bounds on how deep schemas and grammars refer to each other: their compilers recurse, and a stack that is full cannot be
//! told to a client.

use std::collections::HashSet;

use serde_json::Value;

use super::GrammarError;
use super::reason::refused;
use crate::tools::target;

/// Levels of a schema, from its root through everything nested and referred to.
const DEEPEST_SCHEMA: usize = 400;
/// Bytes of a schema as JSON, of a grammar, an expression or a list of choices: some of what is done with them takes time with
/// the square of their length.
const LONGEST: usize = 256 << 10;
/// Rules of a Lark grammar, each of which may lead to the next; schemas in it count by their references.
const MOST_RULES: usize = 5000;

/// Properties of an object, alternatives of a schema, functions that may be called: a parser keeps some items for each of
/// those that may come next.
const MOST_SIDE_BY_SIDE: usize = 1000;
/// Properties of all alternatives of one value: a fifth of the [items](super::MOST_ITEMS) that a parser may have, of which it
/// has four for each.
const MOST_ALTERNATIVE: usize = 2000;

/// `patternProperties` of a schema, of which the compiler compares each two of an object: 400 took half a minute.
const MOST_PATTERNS: usize = 100;

/// Refuses more side by side than a reply's parser takes.
pub(super) fn check_side_by_side(what: &str, count: usize) -> Result<(), GrammarError> {
    if count > MOST_SIDE_BY_SIDE {
        return Err(refused(format!("there are {count} {what}; at most {MOST_SIDE_BY_SIDE} are taken")));
    }
    Ok(())
}

/// Refuses more properties, in all alternatives of one value, than a reply's parser takes.
pub(super) fn check_alternatives(properties: usize) -> Result<(), GrammarError> {
    if properties > MOST_ALTERNATIVE {
        return Err(refused(format!(
            "its alternatives have {properties} properties together; at most {MOST_ALTERNATIVE} are taken"
        )));
    }
    Ok(())
}

/// Refuses what is too long to be compiled.
pub(super) fn check_length(what: &str, bytes: usize) -> Result<(), GrammarError> {
    if bytes > LONGEST {
        return Err(refused(format!("the {what} has {bytes} bytes; at most {LONGEST} are taken")));
    }
    Ok(())
}

/// Refuses a schema that is too long, or is nested too deep, counting a reference's target as nested where it is first referred to, as
/// compilers go.
pub(super) fn check_schema(root: &Value) -> Result<(), GrammarError> {
    check_length("schema", root.to_string().len())?;
    check_sizes(root)?;
    let patterns = patterns(root);
    if patterns > MOST_PATTERNS {
        return Err(refused(format!("the schema has {patterns} patternProperties; at most {MOST_PATTERNS} are taken")));
    }
    let mut seen = HashSet::new();
    if fits(root, root, 0, &mut seen) {
        return Ok(());
    }
    Err(refused(format!("the schema is nested over {DEEPEST_SCHEMA} levels deep, counting what it refers to")))
}

fn check_sizes(value: &Value) -> Result<(), GrammarError> {
    match value {
        Value::Object(map) => {
            let count = |name: &str| {
                map.get(name).map_or(0, |part| match part {
                    Value::Object(map) => map.len(),
                    Value::Array(items) => items.len(),
                    _ => 0,
                })
            };
            check_side_by_side("properties of one object", count("properties"))?;
            for name in ["anyOf", "oneOf"] {
                check_side_by_side("alternatives of one schema", count(name))?;
            }
            map.values().try_for_each(check_sizes)
        }
        Value::Array(items) => items.iter().try_for_each(check_sizes),
        _ => Ok(()),
    }
}

/// All `patternProperties` there are.
fn patterns(value: &Value) -> usize {
    match value {
        Value::Object(map) => {
            let own = map.get("patternProperties").and_then(Value::as_object).map_or(0, |patterns| patterns.len());
            own + map.values().map(patterns).sum::<usize>()
        }
        Value::Array(items) => items.iter().map(patterns).sum(),
        _ => 0,
    }
}

fn fits<'s>(value: &'s Value, root: &'s Value, depth: usize, seen: &mut HashSet<&'s str>) -> bool {
    if depth > DEEPEST_SCHEMA {
        return false;
    }
    match value {
        Value::Object(map) => {
            let reference = map
                .get("$ref")
                .and_then(Value::as_str)
                .filter(|reference| seen.insert(reference.trim_end_matches('/')));
            reference
                .and_then(|reference| target(root, reference))
                .is_none_or(|target| fits(target, root, depth + 1, seen))
                && map.values().all(|value| fits(value, root, depth + 1, seen))
        }
        Value::Array(items) => items.iter().all(|item| fits(item, root, depth + 1, seen)),
        _ => true,
    }
}

/// Refuses a Lark grammar that could be nested too deep. Its brackets are bounded by its compiler.
pub(super) fn check_lark(grammar: &str) -> Result<(), GrammarError> {
    check_length("grammar", grammar.len())?;
    if grammar.contains("::=") {
        return Err(refused(
            "this is GBNF or another EBNF; grammars are taken in Lark's syntax, as llguidance reads it",
        ));
    }
    // Every rule has a colon, and every reference of a schema two.
    let rules = grammar.matches(':').count();
    if rules > MOST_RULES {
        return Err(refused(format!(
            "the grammar has {rules} colons, so up to as many rules; at most {MOST_RULES} are taken"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::check_schema;

    #[test]
    fn patterns_of_names_are_counted_wherever_they_are() {
        let object = |count: usize| {
            let patterns = (0..count).map(|index| (format!("^k{index}_"), json!({"type": "integer"})));
            json!({"patternProperties": Value::Object(patterns.collect())})
        };
        let all = |count: usize| json!({"properties": {"a": object(40)}, "items": [object(30), {"$ref": "#/items/0"}], "anyOf": [object(count)]});
        check_schema(&all(30)).expect("as many as are taken");
        for schema in [object(101), all(31)] {
            let error = check_schema(&schema).expect_err("too many").to_string();
            assert!(error.contains("101 patternProperties"), "{error}");
        }
    }

    #[test]
    fn a_chain_of_references_is_as_deep_as_it_is_long() {
        let chain = |length: usize| {
            let link = |index: usize| (format!("d{index}"), json!({"$ref": format!("#/$defs/d{}", index + 1)}));
            let mut links: serde_json::Map<String, Value> = (0..length).map(link).collect();
            links.insert(format!("d{length}"), json!({"type": "string"}));
            json!({"$defs": links, "$ref": "#/$defs/d0"})
        };
        check_schema(&chain(300)).expect("deep enough for anybody");
        check_schema(&chain(500)).expect_err("too deep");
        let circle = json!({"type": "object", "properties": {"next": {"$ref": "#"}, "more": {"$ref": "#/properties"}}});
        check_schema(&circle).expect("a circle is looked at once");
    }
}

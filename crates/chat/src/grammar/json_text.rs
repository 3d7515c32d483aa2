//! Strings within JSON that are held to a length or a pattern, which share the lexer's states with all others of a reply.

use llguidance::derivre::{JsonQuoteOptions, RegexAst};
use serde_json::{Map, Value};

use super::latitude::{Latitude, MOST_LISTED};
use super::schema::{NAMED, ONE, SEVERAL};
use super::{GrammarError, formats, text};
use crate::tools::Kinds;

/// States of a lexer for each character of a length, and besides. A test counts them.
const STATES: (usize, usize) = (18, 100);
/// How many times as many they may be where others say something of the same string, which is not counted together.
const COMPOSED: usize = 16;
/// The largest length that is counted together with an expression.
const LONGEST: u64 = 1000;
const TOO_MUCH_OF_NAMES: &str =
    "a pattern of names takes more than one reply may, with the other lengths and patterns of the tools";
/// Schemas whose values are not within the value of what has them.
const OWN: [&str; 3] = ["allOf", "anyOf", "oneOf"];

/// Leaves out of a schema what takes more states than there are left. `within`: whether its strings stand in JSON.
///
/// # Errors
/// If something would have to be left out, and may not be.
pub(super) fn fit(schema: &mut Value, within: bool, latitude: &Latitude<'_>, path: &str) -> Result<(), GrammarError> {
    fit_part(schema, within, false, latitude, path)
}

/// `composed`: whether others say something of the same value.
fn fit_part(
    schema: &mut Value,
    within: bool,
    composed: bool,
    latitude: &Latitude<'_>,
    path: &str,
) -> Result<(), GrammarError> {
    let Some(map) = schema.as_object_mut() else { return Ok(()) };
    let composed = composed || map.contains_key("$ref") || OWN.iter().any(|name| map.contains_key(*name));
    fit_listed(map, latitude, path)?;
    fit_names(map, latitude, path)?;
    if within {
        fit_one(map, composed, latitude, path)?;
    }
    for (keyword, value) in map.iter_mut() {
        let keyword = keyword.as_str();
        let is_own = OWN.contains(&keyword);
        let (within, composed) = (within || !is_own, composed && is_own);
        let fit = |part: &mut Value| fit_part(part, within, composed, latitude, path);
        match value {
            Value::Object(parts) if NAMED.contains(&keyword) => {
                parts.values_mut().try_for_each(fit)?;
            }
            Value::Array(parts) if SEVERAL.contains(&keyword) => {
                parts.iter_mut().try_for_each(fit)?;
            }
            value if ONE.contains(&keyword) => fit(value)?,
            _ => {}
        }
    }
    Ok(())
}

/// Values that are listed.
fn fit_listed(map: &mut Map<String, Value>, latitude: &Latitude<'_>, path: &str) -> Result<(), GrammarError> {
    for name in ["const", "enum"] {
        let Some(listed) = map.get(name) else { continue };
        let text = listed.to_string();
        if latitude.states.take_listed(&text, text.len()) {
            continue;
        }
        latitude.leave_out(path, MOST_LISTED)?;
        let only = std::slice::from_ref(listed);
        let values = if name == "enum" { listed.as_array().map_or(only, Vec::as_slice) } else { only };
        let kinds = values.iter().map(Kinds::of).fold(Kinds::NONE, Kinds::with);
        map.entry("type").or_insert_with(|| kinds.names().into());
        map.shift_remove(name);
    }
    Ok(())
}

/// Patterns of names, which are strings of the reply, too.
fn fit_names(map: &mut Map<String, Value>, latitude: &Latitude<'_>, path: &str) -> Result<(), GrammarError> {
    let Some(patterns) = map.get("patternProperties").and_then(Value::as_object) else { return Ok(()) };
    let fits = patterns.keys().try_for_each(|pattern| {
        let expression = latitude.states.expression(pattern).map_err(|error| error.to_string())?;
        let key = format!("{:?}", (0, None::<u64>, [&expression]));
        let counted = latitude.states.take_counted(&key, &quoted(&[expression], 0, None));
        if counted == Some(false) { Err(format!("{TOO_MUCH_OF_NAMES}: {pattern:?}")) } else { Ok(()) }
    });
    let Err(reason) = fits else { return Ok(()) };
    latitude.leave_out(path, reason)?;
    // What is said of other names would be said of these, too.
    ["patternProperties", "additionalProperties"].into_iter().for_each(|name| drop(map.shift_remove(name)));
    Ok(())
}

fn fit_one(
    map: &mut Map<String, Value>,
    composed: bool,
    latitude: &Latitude<'_>,
    path: &str,
) -> Result<(), GrammarError> {
    let length = |name: &str| map.get(name).and_then(|value| text::length(value, name).ok());
    let (least, most) = (length("minLength").unwrap_or(0), length("maxLength"));
    let longest = most.unwrap_or(0).max(least);
    let mut expressions = Vec::new();
    expressions
        .extend(map.get("pattern").and_then(Value::as_str).and_then(|text| latitude.states.expression(text).ok()));
    expressions.extend(map.get("format").and_then(Value::as_str).and_then(formats::expression));
    let key = format!("{:?}", (least, most, &expressions));
    let fits = if expressions.is_empty() {
        let each = usize::try_from(longest).unwrap_or(usize::MAX).saturating_mul(STATES.0);
        let (each, key) =
            if composed { (each.saturating_mul(COMPOSED), format!("composed {key}")) } else { (each, key) };
        longest == 0 || latitude.states.take(&key, each.saturating_add(STATES.1))
    } else {
        // What is empty the compiler says better.
        longest <= LONGEST && latitude.states.take_counted(&key, &quoted(&expressions, least, most)) != Some(false)
    };
    if fits {
        return Ok(());
    }
    let names = if longest > 0 { ["minLength", "maxLength"] } else { ["pattern", "format"] };
    let what = if longest > 0 { format!("a length of {longest}") } else { "the pattern".into() };
    let reason = format!("{what} takes more than one reply may, with the other lengths and patterns of the tools");
    latitude.leave_out(path, reason)?;
    names.into_iter().for_each(|name| drop(map.shift_remove(name)));
    fit_one(map, composed, latitude, path)
}

/// A string as it stands in JSON.
fn quoted(expressions: &[String], least: u64, most: Option<u64>) -> RegexAst {
    let most = most.map(|most| most.to_string()).unwrap_or_default();
    let mut parts: Vec<RegexAst> = expressions.iter().map(|text| RegexAst::Regex(text.clone())).collect();
    parts.push(RegexAst::Regex(format!("(?s:.{{{least},{most}}})")));
    RegexAst::JsonQuote(Box::new(RegexAst::And(parts)), JsonQuoteOptions::regular())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{STATES, fit, quoted};
    use crate::grammar::latitude::{Latitude, States};
    use crate::grammar::states::{Counter, Measure, measure};

    /// What is left of schemas that stand in one request.
    fn fitted(mut schema: Value, strict: bool) -> Result<Value, String> {
        let counter = Counter::default();
        let states = States::new(&counter);
        let latitude = Latitude { function: "f", strict, states: &states };
        fit(&mut schema, false, &latitude, "x").map_err(|error| error.to_string()).map(|()| schema)
    }

    #[test]
    fn what_takes_too_many_states_is_left_out() {
        let names = |pattern: &str| json!({"patternProperties": {pattern: {}}, "additionalProperties": false});
        let long = "word ".repeat(12_000);
        let both = |length: u64| json!({"items": {"allOf": [{"maxLength": length}, {"pattern": "^[a-z]*$"}]}});
        for (schema, left, reason) in [
            (names("e[a-z ]{40}"), json!({}), "a pattern of names"),
            (names(&r"\pL".repeat(2000)), json!({}), "at most 65536"),
            (json!({"items": {"const": long}}), json!({"items": {"type": ["string"]}}), "the values that are listed"),
            (json!({"enum": [1, long]}), json!({"type": ["string", "integer"]}), "the values that are listed"),
            (both(1000), json!({"items": {"allOf": [{}, {"pattern": "^[a-z]*$"}]}}), "a length of 1000"),
        ] {
            assert_eq!(fitted(schema.clone(), false), Ok(left));
            assert!(fitted(schema, true).is_err_and(|error| error.contains(reason)), "{reason}");
        }
        for schema in [names("^x-[a-z]{1,20}$"), json!({"enum": vec!["a value"; 1000]}), both(20)] {
            assert_eq!(fitted(schema.clone(), true), Ok(schema));
        }
    }

    #[test]
    fn a_length_alone_is_no_length_with_others() {
        let alone = json!({"items": {"maxLength": 200}});
        let composed = json!({"items": {"allOf": [{"maxLength": 200}, {"pattern": "^[a-z]*$"}]}});
        assert_eq!(fitted(alone.clone(), true), Ok(alone.clone()));
        let after = json!({"allOf": [alone, composed]});
        assert!(fitted(after, true).is_err());
    }

    #[test]
    fn lengths_take_no_more_states_than_is_said() {
        for (least, most) in [(0, Some(20)), (0, Some(50)), (50, None), (20, Some(60)), (200, Some(200))] {
            let bound = most.unwrap_or(least) as usize * STATES.0 + STATES.1;
            let Measure::States(count) = measure(&quoted(&[], least, most), 2 * bound) else {
                panic!("{least} {most:?}")
            };
            assert!((bound / 3..=bound).contains(&count), "{least} {most:?}: {count}");
        }
    }
}

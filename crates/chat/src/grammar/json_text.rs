//! Strings within JSON that are held to a length or a pattern, which share the lexer's states with all others of a reply.

use llguidance::derivre::{JsonQuoteOptions, RegexAst};
use serde_json::{Map, Value};

use super::latitude::Latitude;
use super::schema::{NAMED, ONE, SEVERAL};
use super::{GrammarError, formats, pattern, text};

/// States of a lexer for each character of a length, and besides. A test counts them.
const STATES: (usize, usize) = (18, 100);
/// How many times as many they may be where others say something of the same string, which is not counted together.
const COMPOSED: usize = 16;
/// The largest length that is counted together with an expression.
const LONGEST: u64 = 1000;
/// Schemas whose values are not within the value of what has them.
const OWN: [&str; 3] = ["allOf", "anyOf", "oneOf"];

/// Leaves out of a schema what takes more states than there are left. `within`: whether its strings stand in JSON.
///
/// # Errors
/// If something would have to be left out, and may not be.
pub(super) fn fit(schema: &mut Value, within: bool, latitude: &Latitude<'_>, path: &str) -> Result<(), GrammarError> {
    let Some(map) = schema.as_object_mut() else { return Ok(()) };
    if within {
        fit_one(map, latitude, path)?;
    }
    for (keyword, value) in map.iter_mut() {
        let keyword = keyword.as_str();
        let within = within || !OWN.contains(&keyword);
        match value {
            Value::Object(parts) if NAMED.contains(&keyword) => {
                parts.values_mut().try_for_each(|part| fit(part, within, latitude, path))?;
            }
            Value::Array(parts) if SEVERAL.contains(&keyword) => {
                parts.iter_mut().try_for_each(|part| fit(part, within, latitude, path))?;
            }
            value if ONE.contains(&keyword) => fit(value, within, latitude, path)?,
            _ => {}
        }
    }
    Ok(())
}

fn fit_one(map: &mut Map<String, Value>, latitude: &Latitude<'_>, path: &str) -> Result<(), GrammarError> {
    let length = |name: &str| map.get(name).and_then(|value| text::length(value, name).ok());
    let (least, most) = (length("minLength").unwrap_or(0), length("maxLength"));
    let longest = most.unwrap_or(0).max(least);
    let mut expressions = Vec::new();
    expressions.extend(map.get("pattern").and_then(Value::as_str).and_then(|text| pattern::anywhere(text).ok()));
    expressions.extend(map.get("format").and_then(Value::as_str).and_then(formats::expression));
    let key = format!("{:?}", (least, most, &expressions));
    let composed = map.contains_key("$ref") || OWN.iter().any(|name| map.contains_key(*name));
    let fits = if expressions.is_empty() {
        let each = usize::try_from(longest).unwrap_or(usize::MAX).saturating_mul(STATES.0);
        let each = if composed { each.saturating_mul(COMPOSED) } else { each };
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
    fit_one(map, latitude, path)
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
    use super::{STATES, quoted};
    use crate::grammar::states::{Measure, measure};

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

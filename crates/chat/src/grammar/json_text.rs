//! What JSON takes of the lexer's states, which it shares with all other texts of a reply: strings that are held to a length or
//! a pattern, values that are listed, names.

use std::collections::{BTreeMap, HashSet};

use llguidance::derivre::{JsonQuoteOptions, RegexAst};
use serde_json::{Map, Value};

use super::GrammarError;
use super::branches::{Branch, all_of};
use super::document::{Budget, Document};
use super::latitude::{Latitude, Need, States};
use super::nesting::check_alternatives;
use super::reason::refused;
use super::schema::{NAMED, ONE, SEVERAL};
use super::text::Text;
use crate::tools::{Kinds, target};

/// Lengths that are left out before shorter ones are.
const LONG: u64 = 1000;

/// What is left out of a schema that takes too much, one after the other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leave {
    LongLengths,
    Lengths,
    Patterns,
    Lists,
}

/// Leaves out of a schema, which has its definitions with it, what takes more states than there are left. `within`: whether its
/// strings stand in JSON.
///
/// # Errors
/// If something would have to be left out, and may not be, or all that can be is not enough.
pub(super) fn fit(
    schema: &mut Value,
    within: bool,
    budget: &Budget,
    latitude: &Latitude<'_>,
    path: &str,
) -> Result<(), GrammarError> {
    for leave in [Leave::LongLengths, Leave::Lengths, Leave::Patterns, Leave::Lists] {
        let Err(reason) = take(schema, within, budget, latitude.states) else { return Ok(()) };
        if budget.is_spent() {
            return Err(reason);
        }
        latitude.leave_out(path, reason)?;
        each_map(schema, &|map| leave_out(map, leave));
    }
    take(schema, within, budget, latitude.states)
}

/// Takes the states that a schema comes to, all or none.
///
/// # Errors
/// What takes more than there are left.
pub(super) fn take(schema: &Value, within: bool, budget: &Budget, states: &States<'_>) -> Result<(), GrammarError> {
    let document = Document { root: schema, budget };
    let mut walk = Walk { document: &document, states, need: Need::new(), seen: HashSet::new(), ahead: Vec::new() };
    walk.ahead.push((vec![schema], within));
    while let Some((schemas, within)) = walk.ahead.pop() {
        walk.value(&schemas, within)?;
    }
    states.take(walk.need).map_err(refused)
}

fn leave_out(map: &mut Map<String, Value>, leave: Leave) {
    let mut remove = |names: &[&str]| names.iter().for_each(|name| drop(map.shift_remove(*name)));
    match leave {
        Leave::LongLengths => {
            let is_long = |value: &Value| value.as_f64().is_some_and(|length| length > LONG as f64);
            for name in ["minLength", "maxLength"] {
                if map.get(name).is_some_and(is_long) {
                    map.shift_remove(name);
                }
            }
        }
        Leave::Lengths => remove(&["minLength", "maxLength"]),
        Leave::Patterns => {
            remove(&["pattern", "format"]);
            // What is said of other names would be said of these, too.
            if map.shift_remove("patternProperties").is_some() {
                map.shift_remove("additionalProperties");
            }
        }
        Leave::Lists => {
            for name in ["const", "enum"] {
                let Some(listed) = map.shift_remove(name) else { continue };
                let only = std::slice::from_ref(&listed);
                let values = if name == "enum" { listed.as_array().map_or(only, Vec::as_slice) } else { only };
                let kinds = values.iter().map(Kinds::of).fold(Kinds::NONE, Kinds::with);
                map.entry("type").or_insert_with(|| kinds.names().into());
            }
        }
    }
}

/// Changes a schema and all that are within it.
pub(super) fn each_map(schema: &mut Value, change: &impl Fn(&mut Map<String, Value>)) {
    let Some(map) = schema.as_object_mut() else { return };
    change(map);
    for (keyword, value) in map.iter_mut() {
        let keyword = keyword.as_str();
        match value {
            Value::Object(parts) if NAMED.contains(&keyword) => {
                parts.values_mut().for_each(|part| each_map(part, change));
            }
            Value::Array(parts) if SEVERAL.contains(&keyword) => {
                parts.iter_mut().for_each(|part| each_map(part, change));
            }
            value if ONE.contains(&keyword) => each_map(value, change),
            _ => {}
        }
    }
}

/// Goes through the values that a schema tells of, each with all the schemas that say something of it.
struct Walk<'w, 's> {
    document: &'w Document<'s>,
    states: &'w States<'w>,
    need: Need,
    seen: HashSet<Vec<*const Value>>,
    ahead: Vec<(Vec<&'s Value>, bool)>,
}

impl<'s> Walk<'_, 's> {
    /// `within`: whether it stands in JSON if it is a string.
    fn value(&mut self, schemas: &[&'s Value], within: bool) -> Result<(), GrammarError> {
        self.document.budget.spend(schemas.len())?;
        if !self.seen.insert(schemas.iter().map(|schema| std::ptr::from_ref(*schema)).collect()) {
            return Ok(());
        }
        let branches = match all_of(schemas, self.document) {
            Ok(branches) => branches,
            Err(error) if self.document.budget.is_spent() => return Err(error),
            Err(_) => self.apart(schemas, within)?,
        };
        check_properties(branches.iter().flat_map(|branch| branch.0.iter().copied()))?;
        for list in branches.iter().flat_map(Branch::listed) {
            list.iter().try_for_each(|value| self.document.budget.spend_on_copy(value))?;
            let text = list.iter().map(Value::to_string).collect::<Vec<_>>().join(",");
            self.need.insert(text.clone(), (text.len(), "a list of values".into()));
        }
        if within {
            self.strings(&branches)?;
        }
        branches.iter().try_for_each(|branch| self.inner(branch))
    }

    /// Of what is composed of too much each part by itself.
    fn apart(&mut self, schemas: &[&'s Value], within: bool) -> Result<Vec<Branch<'s>>, GrammarError> {
        let root = self.document.root;
        let maps: Vec<_> = schemas.iter().filter_map(|schema| schema.as_object()).collect();
        for map in &maps {
            let parts = ["allOf", "anyOf", "oneOf"].iter().filter_map(|name| map.get(*name)?.as_array());
            let parts: Vec<&Value> = parts.flatten().chain(referred(root, map)).collect();
            let meant = parts.iter().filter_map(|part| part.as_object());
            check_properties(meant.map(|part| referred(root, part).and_then(Value::as_object).unwrap_or(part)))?;
            self.ahead.extend(parts.into_iter().map(|part| (vec![part], within)));
        }
        Ok(vec![Branch(maps)])
    }

    /// The values that one of another schema has in it.
    fn inner(&mut self, branch: &Branch<'s>) -> Result<(), GrammarError> {
        let kinds = branch.kinds();
        if kinds.has(Kinds::OBJECT) {
            let mut named: BTreeMap<&str, Vec<&'s Value>> = BTreeMap::new();
            for (name, schema) in branch.each("properties").filter_map(Value::as_object).flatten() {
                named.entry(name).or_default().push(schema);
            }
            for map in &branch.0 {
                let own = map.get("properties").and_then(Value::as_object);
                let Some(others) = map.get("additionalProperties").filter(|others| others.is_object()) else {
                    continue;
                };
                self.document.budget.spend(named.len())?;
                let not_own = named.iter_mut().filter(|(name, _)| !own.is_some_and(|own| own.contains_key(**name)));
                not_own.for_each(|(_, schemas)| schemas.push(others));
            }
            for (name, schemas) in named {
                self.need.insert(format!("{name:?}"), (name.len() + 4, "the names of its properties".into()));
                self.ahead.push((schemas, true));
            }
            for (pattern, schema) in branch.each("patternProperties").filter_map(Value::as_object).flatten() {
                let text = Text::of_pattern(self.states.expression(pattern)?);
                self.hold(&[text], &format!("a pattern of names ({pattern:?})"))?;
                self.ahead.push((vec![schema], true));
            }
            self.ahead.push((branch.each("additionalProperties").collect(), true));
        }
        if kinds.has(Kinds::ARRAY) {
            let first = |map: &&'s Map<String, Value>| map.get("prefixItems").and_then(Value::as_array);
            let longest = branch.0.iter().filter_map(first).map(Vec::len).max().unwrap_or(0);
            self.document.budget.spend(longest.saturating_mul(branch.0.len()))?;
            for index in 0..longest {
                let at = |map: &&'s Map<String, Value>| {
                    first(map).and_then(|first| first.get(index)).or_else(|| map.get("items"))
                };
                self.ahead.push((branch.0.iter().filter_map(at).collect(), true));
            }
            self.ahead.push((branch.each("items").collect(), true));
        }
        Ok(())
    }

    /// Strings of these alternatives, which the lexer has all at the same time.
    fn strings(&mut self, branches: &[Branch<'s>]) -> Result<(), GrammarError> {
        let mut texts = Vec::new();
        for branch in branches.iter().filter(|branch| branch.kinds().has(Kinds::STRING)) {
            if branch.listed().next().is_some() {
                continue;
            }
            for pattern in branch.each("pattern").filter_map(Value::as_str) {
                self.states.expression(pattern)?;
            }
            // Of what there is none the compiler says so better.
            if let Ok(text) = Text::of(branch, self.states)
                && !text.is_free()
                && !texts.contains(&text)
            {
                texts.push(text);
            }
        }
        self.hold(&texts, "the pattern")
    }

    fn hold(&mut self, texts: &[Text], pattern: &str) -> Result<(), GrammarError> {
        // Lengths alone do not multiply.
        if texts.iter().all(|text| !text.has_expressions()) {
            return texts.iter().try_for_each(|text| self.hold_all(std::slice::from_ref(text), pattern));
        }
        self.hold_all(texts, pattern)
    }

    fn hold_all(&mut self, texts: &[Text], pattern: &str) -> Result<(), GrammarError> {
        if texts.is_empty() {
            return Ok(());
        }
        let length = texts.iter().map(Text::length).max().unwrap_or(0);
        let what = if length > 0 { format!("a length of {length}") } else { pattern.to_owned() };
        let quoted = |texts: &[Text]| RegexAst::Or(texts.iter().map(quoted).collect());
        let count =
            self.states.count(&["JSON"], texts, &quoted).map_err(|reason| refused(format!("{what} {reason}")))?;
        self.need.extend(count.map(|count| (format!("JSON {texts:?}"), (count, what))));
        Ok(())
    }
}

/// What a schema refers to.
fn referred<'s>(root: &'s Value, map: &Map<String, Value>) -> Option<&'s Value> {
    map.get("$ref").and_then(Value::as_str).and_then(|name| target(root, name))
}

/// Refuses more properties in alternatives of one value than a reply's parser takes.
fn check_properties<'s>(maps: impl Iterator<Item = &'s Map<String, Value>>) -> Result<(), GrammarError> {
    let count = |map: &Map<String, Value>| map.get("properties").and_then(Value::as_object).map_or(0, Map::len);
    check_alternatives(maps.map(count).sum())
}

/// A string as it stands in JSON.
fn quoted(text: &Text) -> RegexAst {
    let mut parts = text.parts();
    parts.push(RegexAst::Regex("(?s:.*)".into()));
    RegexAst::JsonQuote(Box::new(RegexAst::And(parts)), JsonQuoteOptions::regular())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Budget, fit, quoted};
    use crate::grammar::latitude::{Latitude, States};
    use crate::grammar::states::{Counter, Measure, measure_up_to};
    use crate::grammar::text::Text;

    /// What is left of schemas that stand in one request.
    fn fitted(mut schema: Value, strict: bool) -> Result<Value, String> {
        let (counter, budget) = (Counter::default(), Budget::default());
        let states = States::new(&counter);
        let latitude = Latitude { function: "f", strict, states: &states };
        fit(&mut schema, false, &budget, &latitude, "x").map_err(|error| error.to_string()).map(|()| schema)
    }

    #[test]
    fn what_takes_too_many_states_is_left_out() {
        let names = |pattern: &str| json!({"patternProperties": {pattern: {}}, "additionalProperties": false});
        let long = "word ".repeat(50_000);
        for (schema, left, reason) in [
            (names("e[a-z ]{40}"), json!({}), "a pattern of names"),
            (json!({"items": {"const": long}}), json!({"items": {"type": ["string"]}}), "a list of values"),
            (json!({"enum": [1, long]}), json!({"type": ["string", "integer"]}), "a list of values"),
            (
                json!({"items": {"maxLength": 100_000}, "properties": {"a": {"maxLength": 10}}}),
                json!({"items": {}, "properties": {"a": {"maxLength": 10}}}),
                "a length of 100000",
            ),
        ] {
            assert_eq!(fitted(schema.clone(), false), Ok(left));
            assert!(fitted(schema, true).is_err_and(|error| error.contains(reason)), "{reason}");
        }
        let objects = json!({"items": {"allOf": vec![json!({"properties": {"a": {"maxLength": 5000}}}); 2]}});
        for schema in [names("^x-[a-z]{1,20}$"), json!({"enum": vec!["a value"; 1000]}), objects] {
            assert_eq!(fitted(schema.clone(), true), Ok(schema));
        }
    }

    /// A length and a pattern of one string multiply, wherever they stand.
    #[test]
    fn what_is_said_of_one_string_is_counted_together() {
        let (length, pattern) = (json!({"maxLength": 1000}), json!({"pattern": "e[a-z ]{7}$"}));
        for apart in [length.clone(), pattern.clone(), json!({"anyOf": [length, {"type": "null"}]})] {
            assert_eq!(fitted(json!({"items": apart}), true), Ok(json!({"items": apart})));
        }
        let (of_length, of_pattern) = (json!({"$ref": "#/$defs/L"}), json!({"$ref": "#/$defs/P"}));
        let object = |part: &Value| json!({"properties": {"a": part}});
        for together in [
            json!({"maxLength": 1000, "pattern": "e[a-z ]{7}$"}),
            json!({"allOf": [length, pattern]}),
            json!({"allOf": [of_length, of_pattern]}),
            json!({"$ref": "#/$defs/L", "pattern": "e[a-z ]{7}$"}),
            json!({"anyOf": [of_length, of_pattern]}),
            json!({"allOf": [object(&length), object(&of_pattern)]}),
            json!({"additionalProperties": of_length, "allOf": [object(&pattern)]}),
            json!({"allOf": [{"items": length}, {"prefixItems": [pattern]}]}),
        ] {
            let schema = json!({"items": together, "$defs": {"L": length, "P": pattern}});
            let error = fitted(schema, true).expect_err(&together.to_string());
            assert!(error.contains("a length of 1000 takes"), "{together}: {error}");
        }
    }

    #[test]
    fn lengths_take_no_more_states_than_is_said() {
        for (least, most) in [(0, 20), (0, 50), (50, 50), (20, 60), (200, 200)] {
            let (counter, budget) = (Counter::default(), Budget::default());
            let states = States::new(&counter);
            let schema = json!({"minLength": least, "maxLength": most});
            let document = super::Document { root: &schema, budget: &budget };
            let branch = &super::all_of(&[&schema], &document).expect("alternatives")[0];
            let text = Text::of(branch, &states).expect("a text");
            let count = states.count(&["JSON"], std::slice::from_ref(&text), &|texts| quoted(&texts[0]));
            let (made, _) = measure_up_to(&quoted(&text), 100_000, u64::MAX);
            let (Ok(Some(count)), Measure::States(made)) = (count, made) else { panic!("{count:?} {made:?}") };
            assert!((made..=2 * made).contains(&count), "{least} {most:?}: {count}, {made}");
        }
    }
}

//! Which properties an object may have, and how many, as far as a grammar can say it: it does not remember names.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::tools::target;

/// Bytes of schemas that are said once for each name.
const LONGEST: usize = 64 << 10;

/// What an object says of its properties' names.
struct Names<'m> {
    /// Those that it requires.
    required: usize,
    /// The others that it names.
    optional: usize,
    /// Whether there are no more than these.
    closed: bool,
    map: &'m Map<String, Value>,
}

/// Whether a count of properties has to be said, or says nothing. `closed`: whether properties that are not named are not allowed.
///
/// # Errors
/// Why it cannot be said.
pub(super) fn count_says_something(map: &Map<String, Value>, keyword: &str, closed: bool) -> Result<bool, String> {
    let names = Names::of(map, closed);
    let Some(count) = names.count(keyword) else { return Ok(true) };
    match keyword {
        "minProperties" => names.least(count),
        _ => names.most(count),
    }
}

/// Whether an object may have just as many properties as it names, so that no others are meant.
pub(super) fn are_all_named(map: &Map<String, Value>) -> bool {
    let Some(named) = map.get("properties").and_then(Value::as_object) else { return false };
    let required = map.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    map.get("maxProperties").and_then(Value::as_f64) == Some(named.len() as f64)
        && required.into_iter().all(|name| named.contains_key(name))
}

/// An object whose `propertyNames` are a list or a pattern, said as the properties that it may have; `None` if they are neither, or
/// properties are named beside a pattern.
pub(super) fn named(map: &Map<String, Value>, root: &Value) -> Option<Map<String, Value>> {
    let names = map.get("propertyNames")?;
    let reference = names.get("$ref").and_then(Value::as_str);
    let names = reference.and_then(|reference| target(root, reference)).unwrap_or(names).as_object()?;
    if map.contains_key("patternProperties") {
        return None;
    }
    let known = ["description", "enum", "pattern", "title", "type"];
    let strings = names.get("type").is_none_or(|kind| kind == "string");
    if !strings || !names.keys().all(|keyword| known.contains(&keyword.as_str())) {
        return None;
    }
    let others = map.get("additionalProperties").unwrap_or(&Value::Bool(true));
    let mut said = map.clone();
    said.shift_remove("propertyNames");
    if let Some(pattern) = names.get("pattern") {
        if map.contains_key("properties") || names.contains_key("enum") {
            return None;
        }
        said.insert(
            "patternProperties".into(),
            Map::from_iter([(pattern.as_str()?.to_owned(), others.clone())]).into(),
        );
    } else {
        let listed = names.get("enum")?.as_array()?;
        if others.to_string().len().saturating_mul(listed.len()) > LONGEST {
            return None;
        }
        let declared = map.get("properties").and_then(Value::as_object);
        let mut properties = Map::new();
        for name in listed.iter().filter_map(Value::as_str) {
            if !properties.contains_key(name) {
                let own = declared.and_then(|declared| declared.get(name)).unwrap_or(others);
                properties.insert(name.to_owned(), own.clone());
            }
        }
        said.insert("properties".into(), properties.into());
    }
    said.insert("additionalProperties".into(), false.into());
    Some(said)
}

impl<'m> Names<'m> {
    fn of(map: &'m Map<String, Value>, closed: bool) -> Self {
        let required = map.get("required").and_then(Value::as_array).into_iter().flatten();
        let required: HashSet<&str> = required.filter_map(Value::as_str).collect();
        let named = map.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::keys);
        let optional = named.filter(|name| !required.contains(name.as_str())).count();
        Self { required: required.len(), optional, closed: closed && !map.contains_key("patternProperties"), map }
    }

    fn count(&self, keyword: &str) -> Option<usize> {
        self.map.get(keyword).and_then(Value::as_f64).map(|count| count as usize)
    }

    fn least(&self, least: usize) -> Result<bool, String> {
        if least > self.required + 1 {
            return Err(format!(
                "a minProperties of {least} is supported only where \"required\" names all of them but one: a name could come twice"
            ));
        }
        let most = self.count("maxProperties").filter(|most| self.most(*most) == Ok(true));
        let one = self.closed && most.is_none_or(|most| most == self.required + 1);
        if least > self.required && self.optional > 0 && !one {
            return Err("minProperties is supported only where all properties that are named are required, or no others may come".into());
        }
        Ok(least > self.required)
    }

    fn most(&self, most: usize) -> Result<bool, String> {
        if self.closed && most >= self.required + self.optional {
            return Ok(false);
        }
        if self.optional > 0 && !(self.closed && most == self.required + 1) {
            return Err("maxProperties is supported only where all properties that are named are required, or no others and one of those that are not may come".into());
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::count_says_something;

    #[test]
    fn counts_that_a_grammar_can_say() {
        let object = |required: &[&str], count: Value| {
            let mut schema = json!({"properties": {"a": {}, "b": {}, "c": {}}, "required": required});
            count.as_object().expect("counts").iter().for_each(|(name, count)| schema[name] = count.clone());
            schema
        };
        let least = |count: u64| json!({"minProperties": count});
        let most = |count: u64| json!({"maxProperties": count});
        let both = |one: u64, other: u64| json!({"minProperties": one, "maxProperties": other});
        for (schema, keyword, open, closed) in [
            (object(&["a"], least(1)), "minProperties", Some(false), Some(false)),
            (object(&[], least(1)), "minProperties", None, Some(true)),
            (object(&["a", "b", "c"], least(4)), "minProperties", Some(true), Some(true)),
            (object(&["a"], least(3)), "minProperties", None, None),
            (object(&[], both(1, 1)), "minProperties", None, Some(true)),
            (object(&[], both(1, 2)), "minProperties", None, Some(true)),
            (object(&[], both(1, 3)), "minProperties", None, Some(true)),
            (object(&[], most(3)), "maxProperties", None, Some(false)),
            (object(&[], most(1)), "maxProperties", None, Some(true)),
            (object(&["a"], most(1)), "maxProperties", None, None),
            (object(&["a", "b", "c"], most(5)), "maxProperties", Some(true), Some(false)),
            (json!({"maxProperties": 5}), "maxProperties", Some(true), Some(false)),
        ] {
            let map = schema.as_object().expect("an object");
            assert_eq!(count_says_something(map, keyword, false).ok(), open, "{schema}");
            assert_eq!(count_says_something(map, keyword, true).ok(), closed, "{schema}, closed");
        }
        let patterns = json!({"properties": {"a": {}}, "patternProperties": {"^b": {}}, "maxProperties": 1});
        assert!(count_says_something(patterns.as_object().expect("an object"), "maxProperties", true).is_err());
    }
}

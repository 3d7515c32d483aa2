//! Where in a client's schema the fault is that its compiler tells of. It says what is wrong, not where; but a part of the schema
//! that is refused for the same reason as the whole has it within.

use serde_json::Value;

use super::definitions::reached;
use super::schema::{NAMED, ONE, SEVERAL};

/// Parts that are tried, each by compiling it.
const MOST_TRIED: usize = 256;
/// Bytes of all that are tried; for large schemas, so many times their own.
const MOST_BYTES: usize = 256 << 10;
const MOST_SIZES: usize = 4;

/// The way to the innermost part that is refused as the whole is, as `properties.city`, and what is said of that part; the way is
/// empty for the whole itself. `why` says why a schema is refused.
pub(super) fn of_fault(root: &Value, reason: String, why: impl Fn(&Value) -> Option<String>) -> (String, String) {
    let (mut tried, mut bytes) = (0, MOST_BYTES.max(root.to_string().len() * MOST_SIZES));
    let mut said_of = |part: &Value| {
        // A part with all that it refers to may be as large as the whole.
        if tried == MOST_TRIED || bytes == 0 {
            return None;
        }
        tried += 1;
        let alone = alone(part, root)?;
        let left = bytes.checked_sub(alone.to_string().len());
        bytes = left.unwrap_or(0);
        left.and_then(|_| why(&alone))
    };
    let (mut here, mut reason, mut path) = (root, reason, Vec::new());
    // Of the whole it may be said at some length what is wrong with a part.
    while let Some((name, part, inner)) = parts(here).into_iter().find_map(|(name, part)| {
        let inner = said_of(part).filter(|inner| reason.ends_with(inner))?;
        Some((name, part, inner))
    }) {
        path.push(name);
        (here, reason) = (part, inner);
    }
    (path.join("."), reason)
}

/// A part with the definitions that it refers to; `None` if it refers to anything else.
fn alone(part: &Value, root: &Value) -> Option<Value> {
    let mut map = part.as_object()?.clone();
    for (name, definitions) in reached(part, root).ok()? {
        map.insert(name.into(), definitions.into());
    }
    Some(map.into())
}

/// The schemas that a schema is made of, definitions first: what refers to one has its fault, too.
fn parts(schema: &Value) -> Vec<(String, &Value)> {
    let Some(map) = schema.as_object() else { return Vec::new() };
    let named = NAMED.iter().filter_map(|key| Some((key, map.get(*key)?.as_object()?)));
    let named = named.flat_map(|(key, all)| all.iter().map(move |(name, part)| (format!("{key}.{name}"), part)));
    let several = SEVERAL.iter().filter_map(|key| Some((key, map.get(*key)?.as_array()?)));
    let several =
        several.flat_map(|(key, all)| all.iter().enumerate().map(move |(at, part)| (format!("{key}.{at}"), part)));
    let one = ONE.iter().filter_map(|key| Some(((*key).to_owned(), map.get(*key)?)));
    named.chain(several).chain(one).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    fn of_fault(root: &Value, reason: &str, why: impl Fn(&Value) -> Option<String>) -> String {
        super::of_fault(root, reason.to_owned(), why).0
    }

    /// Refuses what has `fault` anywhere.
    fn why(schema: &Value) -> Option<String> {
        let text = schema.to_string();
        text.contains("\"fault\"").then(|| "there is a fault".to_owned())
    }

    #[test]
    fn the_innermost_part_is_named() {
        let fault = json!({"fault": 1});
        for (schema, place) in [
            (fault.clone(), ""),
            (json!({"properties": {"a": {}, "b": {"items": fault}}}), "properties.b.items"),
            (json!({"anyOf": [{}, {"prefixItems": [true, fault]}]}), "anyOf.1.prefixItems.1"),
            (json!({"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"not": fault}}}), "$defs.A.not"),
            (json!({"properties": {"a": {"$ref": "#/properties/b"}, "b": {"fault": {}}}}), "properties.b"),
        ] {
            assert_eq!(of_fault(&schema, "there is a fault", why), place, "{schema}");
        }
        let longer = super::of_fault(&json!({"items": {"fault": 1}}), "an item: there is a fault".into(), why);
        assert_eq!(longer, ("items".into(), "there is a fault".into()));
        let other = of_fault(&json!({"properties": {"a": {"fault": 1}}}), "another", why);
        assert_eq!(other, "", "a part that is refused for a reason of its own is not why the whole is");
    }

    #[test]
    fn the_search_comes_to_an_end() {
        let within = |fault: Value, levels: usize| (0..levels).fold(fault, |inner, _| json!({ "items": inner }));
        let depth = |schema: &Value| of_fault(schema, "there is a fault", why).matches("items").count();
        assert_eq!(depth(&within(json!({"fault": 1}), 100)), 100, "deep enough for anybody");
        let long = depth(&within(json!({"fault": "x".repeat(200_000)}), 100));
        assert!((1..=super::MOST_SIZES).contains(&long), "{long}, by bytes");
        let wide: serde_json::Map<String, Value> =
            (0..300).map(|at| (at.to_string(), json!({"type": "null"}))).collect();
        let wide = json!({"properties": wide, "items": {"fault": 1}});
        assert_eq!(of_fault(&wide, "there is a fault", why), "", "by parts");
    }
}

//! The definitions that a part of a schema needs where it stands alone.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value};

use super::GrammarError;
use super::reason::refused;
use super::schema::NAMED;
use crate::tools::unescaped;

/// Where definitions stand.
const NAMES: [&str; 2] = ["$defs", "definitions"];

/// Keywords whose value is no schema, whatever it looks like.
const DATA: [&str; 4] = ["const", "default", "enum", "examples"];

/// The definitions of `root` that a schema refers to, also through others, by where they stand.
pub(super) fn reached(
    schema: &Value,
    root: &Value,
) -> Result<BTreeMap<&'static str, Map<String, Value>>, GrammarError> {
    let (mut found, mut seen) = (BTreeMap::<_, Map<String, Value>>::new(), HashSet::new());
    // Each with whether its keys are names.
    let mut ahead = vec![(schema, false)];
    while let Some((value, named)) = ahead.pop() {
        match value {
            Value::Array(items) => ahead.extend(items.iter().map(|item| (item, false))),
            Value::Object(map) if named => ahead.extend(map.values().map(|schema| (schema, false))),
            Value::Object(map) => {
                let parts = map.iter().filter(|(key, _)| !DATA.contains(&key.as_str()));
                ahead.extend(parts.map(|(key, part)| (part, NAMED.contains(&key.as_str()))));
                let Some(reference) = map.get("$ref").and_then(Value::as_str) else { continue };
                let (name, key) = place(reference).ok_or_else(|| {
                    refused(format!(
                        "only references to definitions, as #/$defs/name, are supported, not {reference:?}"
                    ))
                })?;
                let definition = root.get(name).and_then(|all| all.get(&key));
                let definition = definition.ok_or_else(|| refused(format!("there is no {reference:?}")))?;
                if seen.insert((name, key.clone())) {
                    found.entry(name).or_default().insert(key, definition.clone());
                    ahead.push((definition, false));
                }
            }
            _ => {}
        }
    }
    Ok(found)
}

/// The definition that a reference leads to, or into.
fn place(reference: &str) -> Option<(&'static str, String)> {
    let reference = unescaped(reference)?;
    let path = reference.strip_prefix("#/")?;
    let name = NAMES.into_iter().find(|name| path.strip_prefix(name).is_some_and(|rest| rest.starts_with('/')))?;
    let key = path[name.len() + 1..].split('/').next().filter(|key| !key.is_empty())?;
    Some((name, key.replace("~1", "/").replace("~0", "~")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::reached;

    #[test]
    fn definitions_are_reached_through_others() {
        let root = json!({
            "$defs": {"A": {"properties": {"of": {"$ref": "#/definitions/B"}}}, "x/y": {"type": "null"}, "My T": {}, "unused": true},
            "definitions": {"B": {"type": "object", "properties": {"b": {"$ref": "#/definitions/B"}}}}});
        let names = |schema| {
            let found = reached(&schema, &root).expect("fine");
            found.values().flat_map(|all| all.keys().cloned()).collect::<Vec<_>>()
        };
        assert_eq!(names(json!({"$ref": "#/$defs/A/properties/of"})), ["A", "B"]);
        assert_eq!(names(json!({"items": [{"$ref": "#/$defs/x~1y"}]})), ["x/y"]);
        assert_eq!(names(json!({"$ref": "#/$defs/My%20T"})), ["My T"]);
        assert_eq!(names(json!({"type": "integer"})), [""; 0]);
        let data = json!({"$ref": "foo"});
        for key in ["const", "default", "enum", "examples"] {
            assert_eq!(names(json!({"type": "object", key: data})), [""; 0], "{key}");
            assert_eq!(names(json!({"properties": {key: {"$ref": "#/definitions/B"}}})), ["B"], "{key}");
        }
        assert_eq!(names(json!({"properties": {"$ref": {"type": "string"}}})), [""; 0]);
        for (reference, reason) in
            [("#", "only references"), ("#/properties/a", "only references"), ("#/$defs/C", "no \"#")]
        {
            let given = reached(&json!({ "$ref": reference }), &root).expect_err("refused").to_string();
            assert!(given.contains(reason), "{given}");
        }
    }
}

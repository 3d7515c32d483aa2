//! The `quantization` object of a `config.json`: which layout the weights have, and the bits of each module.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::{Bits, Error, GROUP};

/// The bits of each module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantization {
    /// Of every module that is not in `overrides`.
    pub bits: Bits,
    /// By module path without the `language_model.` prefix: `model.layers.0.mlp.gate`.
    pub overrides: BTreeMap<String, Bits>,
}

impl Quantization {
    /// The bits of a module, by its path with or without the `language_model.` prefix.
    #[must_use]
    pub fn bits(&self, module: &str) -> Bits {
        self.overrides.get(plain(module)).copied().unwrap_or(self.bits)
    }

    /// Reads `quantization`, or its copy `quantization_config`. Overrides of modules that are not loaded are ignored.
    pub(crate) fn parse(config: &Map<String, Value>) -> Result<Self, Error> {
        let Some((key, value)) = ["quantization", "quantization_config"]
            .into_iter()
            .find_map(|key| config.get(key).filter(|value| !value.is_null()).map(|value| (key, value)))
        else {
            return Err(Error::Config(
                "there is no `quantization`: these are unquantised weights (bf16), not MLX 4-bit".into(),
            ));
        };
        let Some(object) = value.as_object() else {
            return Err(Error::Config(format!("{key} is not an object")));
        };
        if let Some(method) = object.get("quant_method") {
            let method = method.as_str().unwrap_or("?");
            return Err(Error::Config(format!(
                "{key}.quant_method is \"{method}\": packed as {}, not as MLX does",
                method.to_uppercase()
            )));
        }
        let bits = module_bits(key, object, None)?;
        let mut overrides = BTreeMap::new();
        for (module, value) in object {
            let module = plain(module);
            if ["group_size", "bits", "mode"].contains(&module) || crate::tensors::is_skipped(module) {
                continue;
            }
            let bits = match value {
                Value::Object(own) => module_bits(module, own, Some(bits))?,
                Value::Bool(true) => bits,
                other => {
                    return Err(Error::Config(format!("{key}: {module} is {other}, expected 4 or 8 bits")));
                }
            };
            if overrides.insert(module.to_owned(), bits).is_some_and(|earlier| earlier != bits) {
                return Err(Error::Config(format!("{key} names {module} twice, with different bits")));
            }
        }
        Ok(Self { bits, overrides })
    }
}

fn plain(module: &str) -> &str {
    module.strip_prefix("language_model.").unwrap_or(module)
}

/// Checks the group size and mode that an object states and gives its bits; a module's own object may leave out what
/// the whole checkpoint's (`default`) says.
fn module_bits(name: &str, object: &Map<String, Value>, default: Option<Bits>) -> Result<Bits, Error> {
    let wrong = |key: &str, found: &Value, expected: &str| {
        Err(Error::Config(format!("{name}: {key} is {found}, expected {expected}")))
    };
    match object.get("mode") {
        None => {}
        Some(mode) if mode == "affine" => {}
        Some(mode) => return wrong("mode", mode, "\"affine\""),
    }
    match (object.get("group_size"), default) {
        (None, Some(_)) => {}
        (Some(group), _) if group.as_u64() == Some(GROUP as u64) => {}
        (group, _) => return wrong("group_size", group.unwrap_or(&Value::Null), "64"),
    }
    match (object.get("bits"), default) {
        (None, Some(bits)) => Ok(bits),
        (Some(bits), _) if bits.as_u64() == Some(4) => Ok(Bits::Four),
        (Some(bits), _) if bits.as_u64() == Some(8) => Ok(Bits::Eight),
        (bits, _) => wrong("bits", bits.unwrap_or(&Value::Null), "4 or 8"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Quantization, String> {
        let value: Value = serde_json::from_str(json).unwrap();
        Quantization::parse(value.as_object().unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn overrides_are_found_with_and_without_the_prefix() {
        let quantization = parse(
            r#"{"quantization": {"group_size": 64, "bits": 4, "mode": "affine",
                "language_model.model.layers.0.mlp.gate": {"group_size": 64, "bits": 8},
                "model.layers.1.mlp.gate": {"bits": 8}, "model.layers.2.mlp.gate": true,
                "vision_tower.blocks.0": false, "mtp.fc": {"bits": 5}}}"#,
        )
        .unwrap();
        for prefix in ["", "language_model."] {
            for (layer, bits) in [(0, Bits::Eight), (1, Bits::Eight), (2, Bits::Four), (3, Bits::Four)] {
                assert_eq!(quantization.bits(&format!("{prefix}model.layers.{layer}.mlp.gate")), bits);
            }
        }
        assert_eq!(quantization.overrides.len(), 3);
    }

    #[test]
    fn quantization_config_alone_is_enough_and_quantization_wins() {
        let eight = parse(r#"{"quantization_config": {"group_size": 64, "bits": 8}}"#).unwrap();
        assert_eq!(eight.bits, Bits::Eight);
        let both = r#"{"quantization_config": {"bits": 3}, "quantization": {"group_size": 64, "bits": 4}}"#;
        assert_eq!(parse(both).unwrap().bits, Bits::Four);
    }

    #[test]
    fn other_layouts_are_named() {
        for (json, expected) in [
            ("{}", "unquantised weights (bf16)"),
            (r#"{"quantization": null}"#, "unquantised weights (bf16)"),
            (r#"{"quantization": 4}"#, "quantization is not an object"),
            (r#"{"quantization_config": {"quant_method": "gptq", "bits": 4}}"#, "packed as GPTQ"),
            (r#"{"quantization_config": {"quant_method": "awq", "bits": 4}}"#, "packed as AWQ"),
            (r#"{"quantization_config": {"quant_method": "fp8"}}"#, "packed as FP8"),
            (r#"{"quantization": {"group_size": 64, "bits": 4, "mode": "mxfp4"}}"#, "mode is \"mxfp4\""),
            (r#"{"quantization": {"group_size": 32, "bits": 4}}"#, "group_size is 32, expected 64"),
            (r#"{"quantization": {"bits": 4}}"#, "group_size is null, expected 64"),
            (r#"{"quantization": {"group_size": 64, "bits": 6}}"#, "bits is 6, expected 4 or 8"),
            (r#"{"quantization": {"group_size": 64}}"#, "bits is null, expected 4 or 8"),
            (
                r#"{"quantization": {"group_size": 64, "bits": 4, "model.layers.3.mlp.gate": {"bits": 5}}}"#,
                "model.layers.3.mlp.gate: bits is 5, expected 4 or 8",
            ),
            (
                r#"{"quantization": {"group_size": 64, "bits": 4, "lm_head": false}}"#,
                "lm_head is false, expected 4 or 8 bits",
            ),
            (
                r#"{"quantization": {"group_size": 64, "bits": 4, "lm_head": {"bits": 8}, "language_model.lm_head": {"bits": 4}}}"#,
                "names lm_head twice",
            ),
        ] {
            let error = parse(json).unwrap_err();
            assert!(error.contains(expected), "{json}: {error}");
        }
    }
}

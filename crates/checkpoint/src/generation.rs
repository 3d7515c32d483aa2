//! `generation_config.json`: how the checkpoint's makers sample from it, and where replies end.

use serde_json::{Map, Value};

use crate::Error;

/// What to use where a request says nothing. Absent fields are `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// Tokens that end a reply, each below the vocabulary's size.
    pub eos_token_ids: Vec<u32>,
    /// False: greedy unless asked otherwise.
    pub do_sample: bool,
    /// At least 0.
    pub temperature: Option<f32>,
    /// The most likely tokens to keep; 0 keeps all.
    pub top_k: Option<u32>,
    /// From 0 to 1.
    pub top_p: Option<f32>,
    /// From 0 to 1.
    pub min_p: Option<f32>,
    /// Above 0; 1 is none.
    pub repetition_penalty: Option<f32>,
}

const FILE: &str = "generation_config.json";
const CONFIG: &str = "config.json";

impl GenerationConfig {
    /// Reads `generation_config.json`, if there is one, and takes the end tokens from `config.json` if it has none.
    ///
    /// # Errors
    /// If a field has a value that cannot be meant, with its name.
    pub fn parse(generation: Option<&[u8]>, config: &[u8], vocab_size: usize) -> Result<Self, Error> {
        let fields = object(FILE, generation.unwrap_or(b"{}"))?;
        let config = object(CONFIG, config)?;
        let text_config = config.get("text_config").and_then(Value::as_object);
        let eos = [(FILE, Some(&fields)), (CONFIG, Some(&config)), (CONFIG, text_config)]
            .into_iter()
            .find_map(|(file, object)| Some((file, present(object?, "eos_token_id")?)));
        Ok(Self {
            eos_token_ids: eos.map_or(Ok(Vec::new()), |(file, ids)| token_ids(file, ids, vocab_size))?,
            do_sample: match present(&fields, "do_sample") {
                None => false,
                Some(value) => value.as_bool().ok_or_else(|| wrong(FILE, "do_sample", value, "true or false"))?,
            },
            temperature: number(&fields, "temperature", 0.0, f32::MAX)?,
            top_k: match present(&fields, "top_k") {
                None => None,
                Some(value) => Some(
                    value
                        .as_u64()
                        .and_then(|count| u32::try_from(count).ok())
                        .ok_or_else(|| wrong(FILE, "top_k", value, "a whole number"))?,
                ),
            },
            top_p: number(&fields, "top_p", 0.0, 1.0)?,
            min_p: number(&fields, "min_p", 0.0, 1.0)?,
            repetition_penalty: number(&fields, "repetition_penalty", f32::MIN_POSITIVE, f32::MAX)?,
        })
    }
}

fn object(file: &str, json: &[u8]) -> Result<Map<String, Value>, Error> {
    serde_json::from_slice(json)
        .map_err(|error| Error::Corrupt { file: file.into(), problem: format!("not a JSON object: {error}") })
}

fn present<'a>(fields: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    fields.get(key).filter(|value| !value.is_null())
}

fn wrong(file: &str, key: &str, found: &Value, expected: &str) -> Error {
    Error::Corrupt { file: file.into(), problem: format!("{key} is {found}, expected {expected}") }
}

fn number(fields: &Map<String, Value>, key: &str, min: f32, max: f32) -> Result<Option<f32>, Error> {
    let Some(value) = present(fields, key) else { return Ok(None) };
    match value.as_f64().map(|number| number as f32).filter(|number| (min..=max).contains(number)) {
        Some(number) => Ok(Some(number)),
        None => Err(wrong(FILE, key, value, &format!("a number from {min:?} to {max:?}"))),
    }
}

/// A token id or a list of them.
fn token_ids(file: &str, value: &Value, vocab_size: usize) -> Result<Vec<u32>, Error> {
    let list = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    let id = |value: &Value| {
        let id = value.as_u64().filter(|&id| id < vocab_size as u64).and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| wrong(file, "eos_token_id", value, &format!("a token id below {vocab_size}")))
    };
    list.iter().map(id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(generation: Option<&str>, config: &str) -> Result<GenerationConfig, String> {
        GenerationConfig::parse(generation.map(str::as_bytes), config.as_bytes(), 100)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn end_tokens_come_from_the_first_file_that_has_them() {
        let ids = |generation, config| parse(generation, config).unwrap().eos_token_ids;
        let config = r#"{"eos_token_id": 5, "text_config": {"eos_token_id": 6}}"#;
        assert_eq!(ids(Some(r#"{"eos_token_id": [3, 4]}"#), config), [3, 4]);
        assert_eq!(ids(Some(r#"{"eos_token_id": null}"#), config), [5]);
        assert_eq!(ids(None, config), [5]);
        assert_eq!(ids(None, r#"{"text_config": {"eos_token_id": 6}}"#), [6]);
        assert!(ids(None, "{}").is_empty());
    }

    #[test]
    fn a_missing_file_is_greedy() {
        assert_eq!(parse(None, "{}").unwrap(), GenerationConfig::default());
    }

    #[test]
    fn values_that_cannot_be_meant_are_named() {
        for (json, expected) in [
            ("[]", "not a JSON object"),
            ("{", "not a JSON object"),
            (r#"{"eos_token_id": 100}"#, "eos_token_id is 100, expected a token id below 100"),
            (r#"{"eos_token_id": [1, -1]}"#, "eos_token_id is -1"),
            (r#"{"eos_token_id": "a"}"#, "eos_token_id is \"a\""),
            (r#"{"do_sample": 1}"#, "do_sample is 1, expected true or false"),
            (r#"{"temperature": -0.1}"#, "temperature is -0.1"),
            (r#"{"temperature": 1e300}"#, "temperature is 1e+300"),
            (r#"{"top_k": 1.5}"#, "top_k is 1.5, expected a whole number"),
            (r#"{"top_k": 4294967296}"#, "top_k is 4294967296"),
            (r#"{"top_p": 1.1}"#, "top_p is 1.1, expected a number from 0.0 to 1.0"),
            (r#"{"min_p": "x"}"#, "min_p is \"x\""),
            (r#"{"repetition_penalty": 0}"#, "repetition_penalty is 0"),
        ] {
            let error = parse(Some(json), "{}").unwrap_err();
            assert!(error.contains(expected) && error.starts_with(FILE), "{json}: {error}");
        }
        for config in [r#"{"eos_token_id": 100}"#, r#"{"text_config": {"eos_token_id": 100}}"#] {
            let error = parse(None, config).unwrap_err();
            assert!(error.starts_with("config.json: eos_token_id is 100"), "{config}: {error}");
        }
    }
}

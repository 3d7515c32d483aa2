//! The parameters that the endpoints share, read from a request and checked.

use crate::Defaults;
use crate::error::ApiError;
use crate::fields::{self, Fields, quoted};
use lily_backend::Sampling;
use lily_engine::Penalties;
use serde_json::Value;

/// Choices one prompt may ask for.
pub(crate) const MAX_N: i64 = 8;
/// Stop strings one request may give: OpenAI allows 4.
const MAX_STOPS: usize = 16;
/// Bytes of one stop string; a reply's text is held back by up to this much while it might become one.
const MAX_STOP_BYTES: usize = 1024;
/// Alternatives one token may be given with.
pub(crate) const MAX_TOP_LOGPROBS: i64 = 20;

/// What the server can do, against which a request is checked.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Tokens a sequence may hold.
    pub(crate) max_context: usize,
    /// Whether the model could do with a longer context than the server was started with.
    pub(crate) context_can_grow: bool,
    /// One more than the highest token id.
    pub(crate) vocabulary: usize,
    /// Bytes of the longest token: what bounds a prompt's tokens from below without counting them.
    pub(crate) longest_token: usize,
    /// What applies where the request is silent.
    pub(crate) defaults: Defaults,
}

impl Limits {
    /// For a prompt that is only looked at: it may be of any length.
    pub(crate) fn unbounded(&self) -> Self {
        Self { max_context: usize::MAX, ..self.clone() }
    }
}

/// How to generate, as asked for or by default.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parameters {
    pub(crate) sampling: Sampling,
    pub(crate) penalties: Penalties,
    pub(crate) logit_bias: Vec<(u32, f32)>,
    pub(crate) seed: Option<u64>,
    /// `None`: what the context leaves.
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stop: Vec<String>,
    /// `n`.
    pub(crate) choices: usize,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    /// Whether a stream tells how far its prompt is.
    pub(crate) return_progress: bool,
}

impl Parameters {
    pub(crate) fn read(request: &Fields<'_>, limits: &Limits) -> Result<Self, ApiError> {
        // Any name is answered by the one model there is, so that clients with a fixed name work; only the type counts.
        request.string("model")?;
        let stream_options = request.object("stream_options")?;
        let include_usage = match &stream_options {
            Some(options) => options.boolean("include_usage")?,
            None => None,
        };
        let defaults = &limits.defaults;
        Ok(Self {
            sampling: sampling(request, defaults)?,
            penalties: Penalties {
                presence: request.number("presence_penalty", -2.0..=2.0)?.unwrap_or(defaults.presence_penalty),
                frequency: request.number("frequency_penalty", -2.0..=2.0)?.unwrap_or(0.0),
                repetition: request.positive("repetition_penalty", 10.0)?.unwrap_or(defaults.repetition_penalty),
            },
            logit_bias: logit_bias(request, limits.vocabulary)?,
            // Any 64 bits do as a seed.
            seed: request.integer("seed", i64::MIN..=i64::MAX)?.map(|seed| seed as u64),
            max_tokens: max_tokens(request, limits.max_context)?.or(defaults.max_tokens),
            stop: stop_strings(request, "stop")?,
            choices: request.integer("n", 1..=MAX_N)?.unwrap_or(1) as usize,
            stream: request.boolean("stream")?.unwrap_or(false),
            include_usage: include_usage.unwrap_or(false),
            return_progress: request.boolean("return_progress")?.unwrap_or(false),
        })
    }
}

fn sampling(request: &Fields<'_>, defaults: &Defaults) -> Result<Sampling, ApiError> {
    let top_k = match request.integer("top_k", -1..=i64::from(u32::MAX))? {
        // Other servers write "all" as -1.
        Some(top_k) => top_k.max(0) as usize,
        None => defaults.sampling.top_k,
    };
    Ok(Sampling {
        temperature: request.number("temperature", 0.0..=2.0)?.unwrap_or(defaults.sampling.temperature),
        top_k,
        top_p: request.positive("top_p", 1.0)?.unwrap_or(defaults.sampling.top_p),
        min_p: request.number("min_p", 0.0..=1.0)?.unwrap_or(defaults.sampling.min_p),
    })
}

/// `max_completion_tokens` is the newer name of `max_tokens` and goes before it. A count that the context cannot hold,
/// as agents send it for "enough", stands for what the context leaves.
fn max_tokens(request: &Fields<'_>, max_context: usize) -> Result<Option<usize>, ApiError> {
    let mut chosen = None;
    for name in ["max_tokens", "max_completion_tokens"] {
        if let Some(count) = request.integer(name, 1..=i64::MAX)? {
            chosen = Some(usize::try_from(count).unwrap_or(max_context).min(max_context));
        }
    }
    Ok(chosen)
}

/// One string or several, in the field `name`.
pub(crate) fn stop_strings(request: &Fields<'_>, name: &str) -> Result<Vec<String>, ApiError> {
    let stops = match request.value(name) {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => vec![(name.to_owned(), text.as_str())],
        Some(Value::Array(items)) => items
            .iter()
            .enumerate()
            .map(|(index, item)| {
                let path = format!("{name}[{index}]");
                fields::string(item, &path).map(|text| (path, text))
            })
            .collect::<Result<_, _>>()?,
        Some(other) => return Err(fields::wrong_type(name, "a string or an array of strings", other)),
    };
    if stops.len() > MAX_STOPS {
        let message = format!("'{name}' holds {} strings; at most {MAX_STOPS} are taken.", stops.len());
        return Err(ApiError::parameter(name, message));
    }
    stops
        .into_iter()
        .map(|(path, text)| match text.len() {
            0 => Err(ApiError::parameter(&path, format!("'{path}' is empty."))),
            1..=MAX_STOP_BYTES => Ok(text.to_owned()),
            bytes => {
                let message = format!("'{path}' has {bytes} bytes; at most {MAX_STOP_BYTES} are taken.");
                Err(ApiError::parameter(&path, message))
            }
        })
        .collect()
}

fn logit_bias(request: &Fields<'_>, vocabulary: usize) -> Result<Vec<(u32, f32)>, ApiError> {
    const NAME: &str = "logit_bias";
    let Some(map) = request.object(NAME)? else { return Ok(Vec::new()) };
    map.entries()
        .map(|(key, value)| {
            let token: Option<u32> = key.parse().ok();
            // Any other word of the client's is none that may be logged.
            let token = token.filter(|&token| (token as usize) < vocabulary).ok_or_else(|| {
                let message =
                    format!("'{NAME}' has the key {}; its keys must be token ids below {vocabulary}.", quoted(key));
                ApiError::parameter(NAME, message).unlogged()
            })?;
            Ok((token, fields::number(value, &map.path(&token.to_string()), -100.0..=100.0)?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Limits, Parameters};
    use crate::Defaults;
    use crate::fields::Fields;
    use serde_json::{Value, json};

    fn read(request: Value) -> Result<Parameters, Value> {
        let limits = Limits {
            max_context: 1000,
            context_can_grow: false,
            vocabulary: 50,
            longest_token: 8,
            defaults: Defaults::default(),
        };
        Parameters::read(&Fields::of(&request, "").expect("an object"), &limits).map_err(|error| error.body())
    }

    #[test]
    fn what_is_not_said_is_the_default() {
        let silent = read(json!({})).expect("fine");
        assert_eq!(silent.sampling, Defaults::default().sampling);
        let nulls = json!({"temperature": null, "top_p": null, "stop": null, "seed": null, "n": null, "stream": null,
                           "max_tokens": null, "logit_bias": null, "stream_options": null, "unheard_of": [1]});
        assert_eq!(read(nulls).expect("fine"), silent);
    }

    #[test]
    fn every_parameter_is_read() {
        let read = read(json!({"temperature": 0, "top_p": 0.5, "top_k": -1, "min_p": 0.1, "presence_penalty": 1.5,
            "frequency_penalty": -2, "repetition_penalty": 1.1, "logit_bias": {"7": -100}, "seed": -1, "max_tokens": 9,
            "max_completion_tokens": 8, "stop": "x", "n": 2, "stream": true, "stream_options": {"include_usage": true}}))
        .expect("fine");
        assert_eq!((read.sampling.temperature, read.sampling.top_k, read.sampling.top_p), (0.0, 0, 0.5));
        assert_eq!((read.penalties.presence, read.penalties.frequency), (1.5, -2.0));
        assert_eq!((read.logit_bias.as_slice(), read.seed), ([(7, -100.0)].as_slice(), Some(u64::MAX)));
        assert_eq!((read.max_tokens, read.stop.as_slice(), read.choices), (Some(8), ["x".to_owned()].as_slice(), 2));
        assert!(read.stream && read.include_usage);
    }

    #[test]
    fn more_tokens_than_the_context_holds_are_what_it_leaves() {
        for count in [1000, 1001, 32_000, i64::MAX] {
            assert_eq!(read(json!({"max_tokens": count})).expect("fine").max_tokens, Some(1000));
        }
    }

    #[test]
    fn an_error_names_the_parameter() {
        for (request, param) in [
            (json!({"temperature": -0.1}), "temperature"),
            (json!({"temperature": "1"}), "temperature"),
            (json!({"top_p": 0}), "top_p"),
            (json!({"top_k": 1.5}), "top_k"),
            (json!({"n": 9}), "n"),
            (json!({"n": true}), "n"),
            (json!({"stop": ["a", 1]}), "stop[1]"),
            (json!({"stop": ["a", ""]}), "stop[1]"),
            (json!({"stop": vec!["a"; 17]}), "stop"),
            (json!({"stop": 1}), "stop"),
            (json!({"seed": u64::MAX}), "seed"),
            (json!({"max_tokens": 0}), "max_tokens"),
            (json!({"max_tokens": u64::MAX}), "max_tokens"),
            (json!({"logit_bias": {"50": 1}}), "logit_bias"),
            (json!({"logit_bias": {"1": 101}}), "logit_bias.1"),
            (json!({"logit_bias": [1]}), "logit_bias"),
            (json!({"stream_options": {"include_usage": 1}}), "stream_options.include_usage"),
            (json!({"model": 1}), "model"),
        ] {
            assert_eq!(read(request.clone()).expect_err("wrong")["error"]["param"], param, "{request}");
        }
    }
}

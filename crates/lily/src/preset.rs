//! Sampling as the model's makers advise it, by what the model is used for.

use clap::ValueEnum;
use lily_backend::Sampling;
use lily_server::Defaults;

/// What the server is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Preset {
    /// General tasks, with thinking: temperature 1.0, top_p 0.95, top_k 20, presence_penalty 1.5.
    Thinking,
    /// Precise coding, with thinking: temperature 0.6, top_p 0.95, top_k 20.
    Coding,
    /// General tasks, without thinking unless a request asks for it: temperature 0.7, top_p 0.8, top_k 20,
    /// presence_penalty 1.5.
    Instruct,
}

impl Preset {
    /// What applies where a request is silent.
    pub(crate) fn defaults(self) -> Defaults {
        let (temperature, top_p, presence_penalty) = match self {
            Self::Thinking => (1.0, 0.95, 1.5),
            Self::Coding => (0.6, 0.95, 0.0),
            Self::Instruct => (0.7, 0.8, 1.5),
        };
        Defaults {
            sampling: Sampling { temperature, top_k: 20, top_p, min_p: 0.0 },
            presence_penalty,
            thinking: self != Self::Instruct,
            ..Defaults::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Preset;
    use clap::ValueEnum;

    /// What `--help` says of each is what it does.
    #[test]
    fn presets_are_what_their_help_says() {
        for preset in Preset::value_variants() {
            let value = preset.to_possible_value().expect("shown");
            let help = value.get_help().expect("a help").to_string();
            let defaults = preset.defaults();
            let sampling = defaults.sampling;
            let mut said =
                format!("temperature {:.1}, top_p {}, top_k {}", sampling.temperature, sampling.top_p, sampling.top_k);
            if defaults.presence_penalty != 0.0 {
                said += &format!(", presence_penalty {}", defaults.presence_penalty);
            }
            assert!(help.trim_end_matches('.').ends_with(&said), "{help} / {said}");
            assert_eq!(help.contains("without thinking"), !defaults.thinking);
            assert_eq!((sampling.min_p, defaults.repetition_penalty), (0.0, 1.0));
        }
    }
}

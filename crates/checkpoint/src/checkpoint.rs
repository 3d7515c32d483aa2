//! A whole checkpoint: opened from a directory, or the one inside the program.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

use serde_json::Value;

use crate::assemble::assemble;
use crate::tensors::{Skipped, Tensors};
use crate::{Bytes, Config, Error, GenerationConfig, Weights, directory};

/// A model that can be run: sizes, weights, and the files that the chat side needs.
pub struct Checkpoint {
    /// The model's sizes.
    pub config: Config,
    /// Defaults for sampling, and the end tokens.
    pub generation: GenerationConfig,
    /// Views of the weights, checked against `config`.
    pub weights: Weights,
    /// Tokenizer and template.
    pub files: ChatFiles,
    /// Tensors that are there and not used.
    pub skipped: Skipped,
    name: String,
}

/// What turns chats into tokens, as it lies in the checkpoint.
pub struct ChatFiles {
    /// `tokenizer.json`
    pub tokenizer: Vec<u8>,
    /// `tokenizer_config.json`
    pub tokenizer_config: Option<Vec<u8>>,
    /// The Jinja source of the chat template: `chat_template.jinja`, or else the one in `tokenizer_config.json`.
    pub chat_template: Option<String>,
}

impl Checkpoint {
    /// Opens a directory as Hugging Face lays it out. The weight files are mapped; of the weights only the small
    /// vectors (norms, convolutions, decays) are read.
    ///
    /// # Errors
    /// If the directory is something else, is incomplete or contradicts itself. The error says which and what to do.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        directory::check(dir)?;
        let config_json = directory::read(dir, "config.json")?;
        // Before any other file is missed: what the config describes may be another model altogether.
        let config = Config::parse(&config_json)?;
        let weight_files = directory::weight_files(dir)?;
        let mut tensors = Tensors::default();
        let mut shards = Vec::with_capacity(weight_files.names.len());
        for file in &weight_files.names {
            let shard = directory::map(dir, file)?;
            tensors.add_file(file, &shard)?;
            shards.push(shard);
        }
        tensors.check_index(&weight_files.index)?;
        let generation = directory::read_optional(dir, "generation_config.json")?;
        let files = ChatFiles::new(
            directory::read(dir, "tokenizer.json")?,
            directory::read_optional(dir, "tokenizer_config.json")?,
            directory::read_optional(dir, "chat_template.jinja")?,
        )?;
        let opened = Self::new(name(dir), (config, &config_json), generation.as_deref(), tensors, files)?;
        // Not before: each small vector read until now would have brought a huge page from the disk.
        shards.iter().for_each(Bytes::prefer_huge_pages);
        Ok(opened)
    }

    /// Opens the small checkpoint that is part of the program, without a copy of its weights.
    ///
    /// # Errors
    /// Only if the program was built from a damaged `models/tiny`.
    pub fn embedded() -> Result<Self, Error> {
        let config_json = include_bytes!("../../../models/tiny/config.json");
        let generation = include_bytes!("../../../models/tiny/generation_config.json");
        let weights = Bytes::from_static(include_bytes!("../../../models/tiny/model.safetensors"));
        let mut tensors = Tensors::default();
        tensors.add_file("model.safetensors", &weights)?;
        let files = ChatFiles::new(
            include_bytes!("../../../models/tiny/tokenizer.json").to_vec(),
            Some(include_bytes!("../../../models/tiny/tokenizer_config.json").to_vec()),
            Some(include_bytes!("../../../models/tiny/chat_template.jinja").to_vec()),
        )?;
        let config = Config::parse(config_json)?;
        Self::new("lily-tiny".into(), (config, config_json), Some(generation), tensors, files)
    }

    fn new(
        name: String,
        (config, config_json): (Config, &[u8]),
        generation: Option<&[u8]>,
        mut tensors: Tensors,
        files: ChatFiles,
    ) -> Result<Self, Error> {
        let generation = GenerationConfig::parse(generation, config_json, config.vocab_size)?;
        let weights = assemble(&config, &mut tensors)?;
        Ok(Self { skipped: tensors.finish()?, config, generation, weights, files, name })
    }

    /// For people and for `/v1/models`: `lily-tiny`, the directory's name, or `owner/model` for one in the Hugging
    /// Face cache.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoint").field("name", &self.name).field("config", &self.config).finish_non_exhaustive()
    }
}

impl ChatFiles {
    fn new(tokenizer: Vec<u8>, tokenizer_config: Option<Vec<u8>>, template: Option<Vec<u8>>) -> Result<Self, Error> {
        let chat_template = match (template, &tokenizer_config) {
            (Some(source), _) => Some(String::from_utf8(source).map_err(|error| Error::Corrupt {
                file: "chat_template.jinja".into(),
                problem: format!("not UTF-8 at byte {}", error.utf8_error().valid_up_to()),
            })?),
            (None, Some(json)) => template_in(json)?,
            (None, None) => None,
        };
        Ok(Self { tokenizer, tokenizer_config, chat_template })
    }
}

/// The template inside `tokenizer_config.json`: a string, or a list of named ones of which `default` is meant.
fn template_in(tokenizer_config: &[u8]) -> Result<Option<String>, Error> {
    let corrupt = |problem: String| Error::Corrupt { file: "tokenizer_config.json".into(), problem };
    let config: Value =
        serde_json::from_slice(tokenizer_config).map_err(|error| corrupt(format!("not JSON: {error}")))?;
    let template = match config.get("chat_template") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(named)) => named
            .iter()
            .find(|entry| entry.get("name").is_some_and(|name| name == "default"))
            .and_then(|entry| entry.get("template")),
        single => single,
    };
    match template.and_then(Value::as_str) {
        Some(source) => Ok(Some(source.to_owned())),
        None => Err(corrupt("chat_template is neither a string nor a list with a template named \"default\"".into())),
    }
}

/// A model's name from its path: `…/models--owner--model/snapshots/revision` is `owner/model`.
fn name(dir: &Path) -> String {
    let dir = if dir.file_name().is_none() {
        dir.canonicalize().map_or(Cow::Borrowed(dir), Cow::Owned)
    } else {
        Cow::Borrowed(dir)
    };
    let component = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let entry = dir.parent().filter(|parent| parent.ends_with("snapshots")).and_then(Path::parent).and_then(component);
    match entry.as_deref().and_then(|entry| entry.strip_prefix("models--")) {
        Some(model) => model.replacen("--", "/", 1),
        None => component(&dir).unwrap_or_else(|| dir.display().to_string()),
    }
}

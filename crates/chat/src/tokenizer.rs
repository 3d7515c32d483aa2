//! Text to ids.

use std::borrow::Cow;
use std::collections::HashMap;

use aho_corasick::{AhoCorasick, Input, MatchKind};
use serde::Deserialize;
use serde_json::Value;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::NFC;
use tokenizers::{Model, NormalizedString, Normalizer};

use crate::guard;
use crate::pretokenizer::Pretokenizer;
use crate::tiktoken::{byte_of_char, char_of_byte};

/// Markers that parsers of a reply look for. They are text even where a converter declared them special.
const TEXT_MARKERS: [&str; 4] = ["<think>", "</think>", "<tool_call>", "</tool_call>"];

/// Why a tokenizer could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A file is no JSON of the expected form.
    #[error("{file}: {reason}; the file is damaged or of another kind, fetch the checkpoint's own again")]
    Malformed {
        /// The file's name.
        file: &'static str,
        /// What the parser says.
        reason: String,
    },
    /// The tokenizer works in a way that Lily does not know.
    #[error("tokenizer.json: {0}; Lily knows Qwen's byte-level BPE")]
    Unsupported(String),
    /// Two declarations of tokens exclude each other.
    #[error("token {id} {content:?} of {file}: {conflict}")]
    Conflict {
        /// The file's name.
        file: &'static str,
        /// The declared id.
        id: u32,
        /// The declared text.
        content: String,
        /// What it collides with.
        conflict: String,
    },
    /// The merges could not be applied to a text.
    #[error("tokenizing failed: {0}")]
    Encode(String),
}

/// Byte-level BPE with added tokens, as a checkpoint's tokenizer.json and tokenizer_config.json declare it.
///
/// Added tokens are found first, in the raw text, the longest at each place. What lies between is brought to NFC (if
/// the file asks for it), cut into words by the file's pattern, and merged. Nothing is added at either end.
#[derive(Debug)]
pub struct Tokenizer {
    bpe: BPE,
    nfc: bool,
    pretokenizer: Pretokenizer,
    added: Vec<AddedToken>,
    /// Finds the contents of `added`, by index.
    finder: AhoCorasick,
    ids: HashMap<String, u32>,
    special: Vec<bool>,
    /// `bytes[starts[id]..starts[id + 1]]` are a token's bytes.
    bytes: Vec<u8>,
    starts: Vec<usize>,
}

#[derive(Deserialize)]
struct TokenizerFile {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    model: BPE,
}

#[derive(Deserialize)]
struct TokenizerConfig {
    #[serde(default)]
    added_tokens_decoder: serde_json::Map<String, Value>,
}

#[derive(Clone, Debug, Deserialize)]
struct AddedToken {
    #[serde(default)]
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    special: bool,
}

/// Bytes of a word that are merged at once. Only text without structure (megabytes of one letter, of spaces, of Base64)
/// has longer words; merging them whole takes 60 bytes of memory a byte and over a second a megabyte. In pieces it may
/// give other tokens than the published tokenizer at the cuts, and nowhere else.
const LONGEST_WORD: usize = 1 << 14;

const TOKENIZER: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";

impl Tokenizer {
    /// From the bytes of tokenizer.json, and those of tokenizer_config.json for the added tokens that only it has
    /// (in the real checkpoint 248070 to 248076).
    ///
    /// # Errors
    /// If a file is malformed, the tokenizer is of another kind than byte-level BPE with Qwen's kind of pattern, or a
    /// token can't have the id that is declared for it.
    pub fn from_files(tokenizer_json: &[u8], tokenizer_config: Option<&[u8]>) -> Result<Self, TokenizerError> {
        let file: TokenizerFile = parse(TOKENIZER, tokenizer_json)?;
        let nfc = normalizes(file.normalizer.as_ref())?;
        let pretokenizer = pretokenizer(file.pre_tokenizer.as_ref())?;
        check_model(&file.model)?;

        let mut vocabulary = Vocabulary::new(&file.model)?;
        for token in file.added_tokens {
            vocabulary.add(TOKENIZER, token)?;
        }
        if let Some(config) = tokenizer_config {
            let config: TokenizerConfig = parse(CONFIG, config)?;
            for (id, token) in config.added_tokens_decoder {
                let malformed = |reason: String| TokenizerError::Malformed { file: CONFIG, reason };
                let mut token: AddedToken = serde_json::from_value(token)
                    .map_err(|error| malformed(format!("added_tokens_decoder, {id:?}: {error}")))?;
                token.id = id.parse().map_err(|_| malformed(format!("added_tokens_decoder: {id:?} is no token id")))?;
                vocabulary.add(CONFIG, token)?;
            }
        }
        vocabulary.into_tokenizer(file.model, nfc, pretokenizer)
    }

    /// The ids of `text`. Added tokens in it are recognised, special or not; none is added.
    ///
    /// # Errors
    /// If the merges can't be applied; with a tokenizer that loaded there is no such text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.encode_by(text, |plain| plain.into())
    }

    /// As [`Self::encode`], without the `mark`s in the text, which are taken out once added tokens have been looked for.
    pub(crate) fn encode_marked(&self, text: &str, mark: &str) -> Result<Vec<u32>, TokenizerError> {
        self.encode_by(text, |plain| guard::without(plain, mark))
    }

    /// `plain`: what is to be encoded of the text between added tokens.
    fn encode_by<'t>(
        &self,
        text: &'t str,
        plain: impl Fn(&'t str) -> Cow<'t, str>,
    ) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::with_capacity(text.len() / 4);
        let mut at = 0;
        for found in self.finder.find_iter(text) {
            self.encode_plain(&plain(&text[at..found.start()]), &mut ids)?;
            ids.push(self.added[found.pattern().as_usize()].id);
            at = found.end();
        }
        self.encode_plain(&plain(&text[at..]), &mut ids)?;
        Ok(ids)
    }

    /// Where something must be put into `text` so that no control token is found in it, whatever text follows: after the
    /// first character of each.
    pub(crate) fn control_breaks(&self, text: &str) -> Vec<usize> {
        let after_first = |at: usize| at + text[at..].chars().next().map_or(0, char::len_utf8);
        let mut breaks = Vec::new();
        let mut from = 0;
        // One may begin within another.
        while let Some(found) = self.finder.find(Input::new(text).range(from..)) {
            from = after_first(found.start());
            if self.is_special(self.added[found.pattern().as_usize()].id) {
                breaks.push(from);
            }
        }
        let control = || self.added.iter().filter(|token| self.is_special(token.id));
        let longest = control().map(|token| token.content.len()).max().unwrap_or(0);
        let tail = text.ceil_char_boundary(text.len().saturating_sub(longest.saturating_sub(1)));
        for (at, _) in text[tail..].char_indices() {
            let end = &text[tail + at..];
            if control().any(|token| token.content.len() > end.len() && token.content.starts_with(end)) {
                breaks.push(after_first(tail + at));
            }
        }
        breaks.sort_unstable();
        breaks.dedup();
        breaks
    }

    /// The ids whose bytes joined are `text`: as [`Self::encode`], but the text is not normalised, and what looks like a
    /// control token in it is text.
    pub(crate) fn encode_exactly(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::new();
        let mut at = 0;
        for found in self.finder.find_iter(text) {
            let id = self.added[found.pattern().as_usize()].id;
            if !self.is_special(id) {
                self.encode_words(&text[at..found.start()], &mut ids)?;
                ids.push(id);
                at = found.end();
            }
        }
        self.encode_words(&text[at..], &mut ids)?;
        Ok(ids)
    }

    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let normalized: String;
        // By the library that normalised the training text: it has its own version of Unicode, in which newer marks are not
        // reordered. What is NFC in a newer version is NFC in an older.
        let text = if self.nfc && !unicode_normalization::is_nfc(text) {
            let mut aligned = NormalizedString::from(text);
            NFC.normalize(&mut aligned).map_err(|error| TokenizerError::Encode(error.to_string()))?;
            normalized = aligned.get().to_owned();
            &normalized
        } else {
            text
        };
        self.encode_words(text, ids)
    }

    fn encode_words(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let mut spelled = String::new();
        // Long words are not in the model's own cache, but where they occur they tend to repeat: a run of one character.
        let (mut last, mut last_ids) = ("", 0);
        for word in self.pretokenizer.words(text).flat_map(pieces) {
            if word == last {
                ids.extend_from_within(ids.len() - last_ids..);
                continue;
            }
            spelled.clear();
            spelled.extend(word.bytes().map(char_of_byte));
            let tokens = self.bpe.tokenize(&spelled).map_err(|error| TokenizerError::Encode(error.to_string()))?;
            ids.extend(tokens.iter().map(|token| token.id));
            (last, last_ids) = (word, tokens.len());
        }
        Ok(())
    }

    /// One more than the highest id that stands for something; the model's logits may have more rows.
    pub fn vocabulary(&self) -> usize {
        self.special.len()
    }

    /// The id of an added token by its text, or of a base token by its spelling in tokenizer.json.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.ids.get(token).copied().or_else(|| self.bpe.token_to_id(token))
    }

    /// A token's bytes, which need not be whole characters; an added token's are its text, special or not. Empty for
    /// an id that stands for nothing.
    pub fn bytes(&self, id: u32) -> &[u8] {
        match self.starts.get(id as usize..).and_then(|starts| starts.first_chunk()) {
            Some(&[start, end]) => &self.bytes[start..end],
            None => &[],
        }
    }

    /// Whether a token is for control and no text: declared special, and not one of the reply's markers (`<think>`,
    /// `</think>`, `<tool_call>`, `</tool_call>`), which are text however they are declared.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }

    /// The text of `ids` without special tokens; bytes that are no UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> =
            ids.iter().filter(|&&id| !self.is_special(id)).flat_map(|&id| self.bytes(id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// The tokens by id while the declarations are gathered.
struct Vocabulary {
    /// A base token's bytes, or an added token's text.
    bytes: Vec<Option<Vec<u8>>>,
    added: Vec<AddedToken>,
    added_ids: HashMap<String, u32>,
}

impl Vocabulary {
    fn new(model: &BPE) -> Result<Self, TokenizerError> {
        let mut bytes = Vec::new();
        for (token, id) in model.get_vocab() {
            let slot = slot(&mut bytes, TOKENIZER, id, &token)?;
            if let Some(taken) = slot {
                let conflict = format!("the id also stands for {:?}", String::from_utf8_lossy(taken));
                return Err(TokenizerError::Conflict { file: TOKENIZER, id, content: token, conflict });
            }
            let raw = token.chars().map(byte_of_char).collect::<Option<Vec<u8>>>();
            // A base token outside the byte-level alphabet can never be merged; it can only be an added token's text.
            *slot = Some(raw.unwrap_or_else(|| token.into_bytes()));
        }
        Ok(Self { bytes, added: Vec::new(), added_ids: HashMap::new() })
    }

    fn add(&mut self, file: &'static str, token: AddedToken) -> Result<(), TokenizerError> {
        let conflict = |conflict: String| TokenizerError::Conflict {
            file,
            id: token.id,
            content: token.content.clone(),
            conflict,
        };
        if token.content.is_empty() {
            return Err(conflict("an added token can't be empty".into()));
        }
        if token.single_word || token.lstrip || token.rstrip {
            return Err(conflict("single_word, lstrip and rstrip are not supported".into()));
        }
        match self.added_ids.get(&token.content) {
            Some(&id) if id == token.id => return Ok(()),
            Some(&id) => return Err(conflict(format!("already declared as {id}"))),
            None => {}
        }
        let slot = slot(&mut self.bytes, file, token.id, &token.content)?;
        match slot {
            Some(taken) if taken != token.content.as_bytes() => {
                return Err(conflict(format!("the id already stands for {:?}", String::from_utf8_lossy(taken))));
            }
            _ => *slot = Some(token.content.clone().into_bytes()),
        }
        self.added_ids.insert(token.content.clone(), token.id);
        self.added.push(token);
        Ok(())
    }

    fn into_tokenizer(self, bpe: BPE, nfc: bool, pretokenizer: Pretokenizer) -> Result<Tokenizer, TokenizerError> {
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(self.added.iter().map(|token| &token.content))
            .map_err(|error| TokenizerError::Unsupported(format!("added tokens: {error}")))?;
        let mut special = vec![false; self.bytes.len()];
        for token in &self.added {
            special[token.id as usize] = token.special && !TEXT_MARKERS.contains(&token.content.as_str());
        }
        let mut starts = vec![0];
        let mut bytes = Vec::new();
        for token in &self.bytes {
            bytes.extend_from_slice(token.as_deref().unwrap_or_default());
            starts.push(bytes.len());
        }
        Ok(Tokenizer { bpe, nfc, pretokenizer, added: self.added, finder, ids: self.added_ids, special, bytes, starts })
    }
}

/// The place of `id`, made if need be. Ids are bounded so that a damaged file can't ask for any amount of memory.
fn slot<'b>(
    bytes: &'b mut Vec<Option<Vec<u8>>>,
    file: &'static str,
    id: u32,
    content: &str,
) -> Result<&'b mut Option<Vec<u8>>, TokenizerError> {
    const MOST: usize = 1 << 22;
    let index = id as usize;
    if index >= MOST {
        let conflict = format!("ids go up to {}", MOST - 1);
        return Err(TokenizerError::Conflict { file, id, content: content.to_owned(), conflict });
    }
    if index >= bytes.len() {
        bytes.resize(index + 1, None);
    }
    Ok(&mut bytes[index])
}

fn parse<'j, T: Deserialize<'j>>(file: &'static str, json: &'j [u8]) -> Result<T, TokenizerError> {
    serde_json::from_slice(json).map_err(|error| TokenizerError::Malformed { file, reason: error.to_string() })
}

fn kind(part: &Value) -> &str {
    part.get("type").and_then(Value::as_str).unwrap_or_default()
}

/// A word in pieces of at most [`LONGEST_WORD`] bytes, cut between characters.
fn pieces(word: &str) -> impl Iterator<Item = &str> {
    let mut rest = word;
    std::iter::from_fn(move || {
        let (piece, after) = rest.split_at(rest.floor_char_boundary(LONGEST_WORD));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Whether text is brought to NFC.
fn normalizes(normalizer: Option<&Value>) -> Result<bool, TokenizerError> {
    match normalizer {
        None => Ok(false),
        Some(normalizer) if kind(normalizer) == "NFC" => Ok(true),
        Some(other) => Err(TokenizerError::Unsupported(format!("the normalizer is {other}, not NFC"))),
    }
}

/// A split by a pattern, then the byte-level alphabet.
fn pretokenizer(declared: Option<&Value>) -> Result<Pretokenizer, TokenizerError> {
    let unsupported = || {
        let declared = declared.map_or_else(|| "missing".to_owned(), Value::to_string);
        TokenizerError::Unsupported(format!("the pre-tokenizer is {declared}, not a split and ByteLevel"))
    };
    let parts = declared.and_then(|sequence| sequence.get("pretokenizers")).and_then(Value::as_array);
    let Some([split, byte_level]) = parts.map(Vec::as_slice) else { return Err(unsupported()) };
    let pattern = split.pointer("/pattern/Regex").and_then(Value::as_str);
    let plain = |part: &Value, flag: &str| part.get(flag).and_then(Value::as_bool) == Some(false);
    match pattern {
        Some(pattern)
            if kind(split) == "Split"
                && split.get("behavior").and_then(Value::as_str) == Some("Isolated")
                && plain(split, "invert")
                && kind(byte_level) == "ByteLevel"
                && plain(byte_level, "add_prefix_space")
                && plain(byte_level, "use_regex") =>
        {
            Pretokenizer::new(pattern).map_err(TokenizerError::Unsupported)
        }
        _ => Err(unsupported()),
    }
}

/// Every byte must have a token, so that every text can be encoded.
fn check_model(model: &BPE) -> Result<(), TokenizerError> {
    if model.dropout.is_some_and(|dropout| dropout != 0.0)
        || model.continuing_subword_prefix.as_ref().is_some_and(|prefix| !prefix.is_empty())
        || model.end_of_word_suffix.as_ref().is_some_and(|suffix| !suffix.is_empty())
    {
        return Err(TokenizerError::Unsupported("the BPE has dropout, a subword prefix or a word suffix".into()));
    }
    let missing = (0..=u8::MAX).find(|&byte| model.token_to_id(char_of_byte(byte).encode_utf8(&mut [0; 4])).is_none());
    match missing {
        Some(byte) => Err(TokenizerError::Unsupported(format!("the vocabulary lacks the byte {byte:#04x}"))),
        None => Ok(()),
    }
}

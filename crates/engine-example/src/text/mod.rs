//! Text to tokens and back, and a conversation to a prompt.

mod chat;
mod gguf;
mod stream;
mod tiktoken;

pub use chat::{ChatTemplate, Message};
pub use stream::TextStream;

use crate::error::EngineError;
use expert_tier::pool::gguf::Metadata;
use serde_json::{Map, Value};
use std::path::Path;
use tokenizers::Tokenizer;

const TOKENIZER: &str = "tokenizer.json";

/// The tokenizer of a model folder with what belongs to it: the ids that end a text and the
/// chat template.
#[derive(Clone, Debug)]
pub struct Text {
    tokenizer: Tokenizer,
    vocab_size: usize,
    stop_ids: Vec<u32>,
    chat: Option<ChatTemplate>,
}

impl Text {
    /// Reads `tokenizer.json`, or without one `tiktoken.model` (Kimi's ranks, with the added
    /// tokens of `tokenizer_config.json`), and, where they are there, `generation_config.json` and
    /// `config.json` (end-of-text ids), `chat_template.jinja` and `tokenizer_config.json`.
    ///
    /// # Errors
    /// `io` or `tokenizer-invalid`, naming the file.
    pub fn open(dir: &Path) -> Result<Self, EngineError> {
        let path = dir.join(TOKENIZER);
        let bytes = match std::fs::read(&path) {
            Err(_) if !path.exists() && dir.join(tiktoken::NAME).exists() => {
                tiktoken::tokenizer_json(dir)?.to_string().into_bytes()
            }
            bytes => bytes.map_err(|source| EngineError::Io { path: path.clone(), source })?,
        };
        let tokenizer = Tokenizer::from_bytes(bytes).map_err(|error| EngineError::Tokenizer {
            what: path.display().to_string(),
            problem: error.to_string(),
        })?;
        let stop_ids = match stop_ids(dir, "generation_config.json")? {
            Some(ids) => ids,
            None => stop_ids(dir, "config.json")?.unwrap_or_default(),
        };
        Ok(Self::new(tokenizer, stop_ids, ChatTemplate::open(dir)?))
    }

    /// Whether [`Text::open`] would find a tokenizer in `dir`.
    #[must_use]
    pub fn is_in(dir: &Path) -> bool {
        [TOKENIZER, tiktoken::NAME].iter().any(|name| dir.join(name).exists())
    }

    fn new(tokenizer: Tokenizer, stop_ids: Vec<u32>, chat: Option<ChatTemplate>) -> Self {
        // Added tokens may stand in the model's own table too: each counts once.
        let vocab_size = tokenizer.get_vocab(true).len();
        Self { tokenizer, vocab_size, stop_ids, chat }
    }

    /// The tokenizer in the metadata of a GGUF file (`tokenizer.ggml.*`, `tokenizer.chat_template`);
    /// `None` if there is none in it. Read the metadata whole: its arrays are needed.
    ///
    /// # Errors
    /// `unsupported` for a tokenizer that is no byte-level BPE, or one whose splitter is not
    /// known; `config-inconsistent` or `tokenizer-invalid` for broken tables.
    pub fn from_gguf(metadata: &Metadata) -> Result<Option<Self>, EngineError> {
        let Some(mut json) = gguf::tokenizer_json(metadata)? else { return Ok(None) };
        let bos = gguf::token_text(metadata, "tokenizer.ggml.bos_token_id")?;
        if metadata.bool("tokenizer.ggml.add_bos_token")? == Some(true) && !bos.is_empty() {
            let id = metadata.unsigned("tokenizer.ggml.bos_token_id")?;
            json["post_processor"] = serde_json::json!({ "type": "TemplateProcessing",
                "single": [{ "SpecialToken": { "id": bos, "type_id": 0 } },
                    { "Sequence": { "id": "A", "type_id": 0 } }],
                "pair": [{ "Sequence": { "id": "A", "type_id": 0 } },
                    { "Sequence": { "id": "B", "type_id": 1 } }],
                "special_tokens": { &bos: { "id": bos, "ids": [id], "tokens": [bos] } } });
        }
        let invalid = |problem: String| EngineError::Tokenizer {
            what: format!("{}: tokenizer.ggml", metadata.path().display()),
            problem,
        };
        let tokenizer =
            Tokenizer::from_bytes(json.to_string()).map_err(|error| invalid(error.to_string()))?;
        let eos = gguf::token_text(metadata, "tokenizer.ggml.eos_token_id")?;
        let template = metadata.text("tokenizer.chat_template")?;
        let chat = template.map(|source| ChatTemplate::new(source.to_owned(), bos, eos));
        Ok(Some(Self::new(tokenizer, gguf::stop_ids(metadata)?, chat.transpose()?)))
    }

    /// Tokens of `text`. Special tokens that are spelled out in it are recognised, and
    /// whatever the tokenizer adds around a text is added.
    ///
    /// # Errors
    /// `tokenizer-invalid`.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, EngineError> {
        let encoding =
            self.tokenizer.encode_fast(text, true).map_err(|e| failed("encoding", &*e))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Text of `ids`. Broken UTF-8 becomes U+FFFD; special tokens are left out or spelled out.
    ///
    /// # Errors
    /// `token-out-of-range` for an id that the tokenizer does not know.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, EngineError> {
        for (position, &id) in ids.iter().enumerate() {
            if self.tokenizer.id_to_token(id).is_none() {
                let vocab_size = self.vocab_size();
                return Err(EngineError::TokenOutOfRange { id, position, vocab_size });
            }
        }
        self.tokenizer.decode(ids, skip_special).map_err(|e| failed("decoding", &*e))
    }

    /// Decodes token by token, starting with a new text. Special tokens are left out.
    #[must_use]
    pub fn stream(&self) -> TextStream<'_> {
        TextStream::new(self)
    }

    /// Tokens the tokenizer knows, the added ones too.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The ids that end a text.
    #[must_use]
    pub fn stop_ids(&self) -> &[u32] {
        &self.stop_ids
    }

    /// The chat template, if the model has one.
    #[must_use]
    pub fn chat(&self) -> Option<&ChatTemplate> {
        self.chat.as_ref()
    }
}

fn failed(what: &str, error: &(dyn std::error::Error + Send + Sync)) -> EngineError {
    EngineError::Tokenizer { what: what.to_owned(), problem: error.to_string() }
}

/// A JSON object of the model folder; `None` if there is no such file.
fn read_object(dir: &Path, name: &str) -> Result<Option<Map<String, Value>>, EngineError> {
    let path = dir.join(name);
    match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            let what = path.display().to_string();
            EngineError::Tokenizer { what, problem: error.to_string() }
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(EngineError::Io { path, source }),
    }
}

/// `eos_token_id` of `name`: one id or a list.
fn stop_ids(dir: &Path, name: &str) -> Result<Option<Vec<u32>>, EngineError> {
    let Some(object) = read_object(dir, name)? else { return Ok(None) };
    let value = match object.get("eos_token_id") {
        None | Some(Value::Null) => return Ok(None),
        Some(value) => value,
    };
    let list = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    let ids: Option<Vec<u32>> =
        list.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect();
    let problem = format!("{name}: must be an id or a list of ids");
    ids.map(Some).ok_or_else(|| EngineError::config("eos_token_id", value, problem))
}

/// The letter that stands for each byte in byte-level vocabularies: the byte's own where that
/// can be seen, else one from U+0100 on.
pub(crate) fn byte_letters() -> [char; 256] {
    let mut next = 0x100_u32;
    std::array::from_fn(|byte| {
        let byte = byte as u8;
        let seen = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        if seen {
            return char::from(byte);
        }
        next += 1;
        char::from_u32(next - 1).unwrap_or(char::REPLACEMENT_CHARACTER)
    })
}

//! A tokenizer from a GGUF file's metadata: rewritten as the `tokenizer.json` that it came from.

use crate::error::EngineError;
use expert_tier::pool::gguf::{Array, Metadata};
use serde_json::{Map, Value, json};

/// Kinds of tokens, ggml's `LLAMA_TOKEN_TYPE_*`.
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

/// What one kind of splitter does, by the name that converters give it (`tokenizer.ggml.pre`).
struct Splitter {
    /// Patterns of texts that are cut before merging, applied one after the other.
    patterns: &'static [&'static str],
    /// Whether texts are composed (NFC) before, as the model's own tokenizer does.
    composed: bool,
    /// Whether a whole piece that is a token is taken as it is.
    ignore_merges: bool,
}

const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const DEEPSEEK_DIGITS: &str = r"\p{N}{1,3}";
const DEEPSEEK_CJK: &str = "[一-龥\u{3040}-ゟ゠-ヿ]+";
const DEEPSEEK_WORDS: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

/// Kimi's splitter: Han runs are cut from other letters. From `tokenization_kimi.py`.
pub(super) const KIMI: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

fn splitter(name: &str) -> Option<Splitter> {
    let plain = |patterns| Splitter { patterns, composed: false, ignore_merges: false };
    Some(match name {
        "qwen2" | "deepseek-r1-qwen" => Splitter { composed: true, ..plain(&[QWEN2]) },
        "llama-bpe" | "llama3" | "llama-v3" | "glm4" => {
            Splitter { ignore_merges: true, ..plain(&[LLAMA3]) }
        }
        "gpt-2" => plain(&[GPT2]),
        "deepseek-v3" => plain(&[DEEPSEEK_DIGITS, DEEPSEEK_CJK, DEEPSEEK_WORDS]),
        "kimi-k2" => Splitter { ignore_merges: true, ..plain(&[KIMI]) },
        _ => return None,
    })
}

/// Parts of a `tokenizer.json`.
pub(super) struct Pieces<'a> {
    /// Every token, the added ones too: so each keeps its id wherever there are gaps.
    pub(super) vocab: Map<String, Value>,
    pub(super) merges: Vec<Value>,
    /// Texts that are found before anything is split, and whether they are special.
    pub(super) added: Vec<(&'a str, bool)>,
}

/// The whole `tokenizer.json` of a byte-level BPE.
pub(super) fn byte_level(
    pieces: &Pieces<'_>,
    patterns: &[&str],
    composed: bool,
    ignore_merges: bool,
) -> Value {
    let mut steps: Vec<Value> = patterns
        .iter()
        .map(|pattern| {
            json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated",
                "invert": false })
        })
        .collect();
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": false });
    steps.push(bytes.clone());
    let added: Vec<Value> = pieces
        .added
        .iter()
        .map(|(content, special)| {
            json!({ "id": pieces.vocab[*content], "content": content, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": special })
        })
        .collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": if composed { json!({ "type": "NFC" }) } else { Value::Null },
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": steps },
        "post_processor": null, "decoder": bytes,
        "model": { "type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
            "byte_fallback": false, "ignore_merges": ignore_merges, "vocab": pieces.vocab,
            "merges": pieces.merges },
    })
}

/// The `tokenizer.json` behind the metadata; `None` if there is no tokenizer in it.
///
/// # Errors
/// `unsupported` for a kind of tokenizer that is not known, `config-inconsistent` for values of
/// another type or lists that do not fit each other.
pub(super) fn tokenizer_json(metadata: &Metadata) -> Result<Option<Value>, EngineError> {
    let Some(tokens) = metadata.texts("tokenizer.ggml.tokens")? else { return Ok(None) };
    let text = |key| Ok::<_, EngineError>(metadata.text(key)?.unwrap_or("absent"));
    let model = text("tokenizer.ggml.model")?;
    if model != "gpt2" {
        let reason = "byte-level BPE (gpt2) is";
        return Err(EngineError::unsupported("tokenizer.ggml.model", &model, reason));
    }
    let pre = text("tokenizer.ggml.pre")?;
    let Splitter { patterns, composed, ignore_merges } = splitter(pre).ok_or_else(|| {
        let reason = "qwen2, deepseek-v3, kimi-k2, llama-bpe, glm4 and gpt-2 are";
        EngineError::unsupported("tokenizer.ggml.pre", &pre, reason)
    })?;
    let types = kinds(metadata, tokens.len())?;
    let (mut vocab, mut added) = (Map::new(), Vec::new());
    for ((id, token), kind) in (0_u32..).zip(tokens).zip(types) {
        if kind == CONTROL || kind == USER_DEFINED {
            added.push((token.as_str(), kind == CONTROL));
        }
        if vocab.insert(token.clone(), id.into()).is_some() {
            let problem = format!("token {id} is there twice");
            return Err(EngineError::config("tokenizer.ggml.tokens", token, problem));
        }
    }
    let merges = metadata.texts("tokenizer.ggml.merges")?.unwrap_or_default();
    let merges = merges.iter().map(|pair| Value::String(pair.clone())).collect();
    Ok(Some(byte_level(&Pieces { vocab, merges, added }, patterns, composed, ignore_merges)))
}

fn kinds(metadata: &Metadata, tokens: usize) -> Result<Vec<i64>, EngineError> {
    let key = "tokenizer.ggml.token_type";
    let kinds = match metadata.array(key)? {
        None => vec![1; tokens],
        Some(Array::Signed(kinds)) => kinds.clone(),
        Some(Array::Unsigned(kinds)) => kinds.iter().map(|&kind| kind.cast_signed()).collect(),
        Some(other) => {
            let problem = "must be an array of whole numbers";
            return Err(EngineError::config(key, &format!("{} others", other.len()), problem));
        }
    };
    if kinds.len() == tokens {
        return Ok(kinds);
    }
    let problem = format!("there are {tokens} tokens");
    Err(EngineError::config(key, &format!("{} entries", kinds.len()), problem))
}

/// The ids that end a text.
pub(super) fn stop_ids(metadata: &Metadata) -> Result<Vec<u32>, EngineError> {
    let mut ids = Vec::new();
    for key in ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"] {
        let Some(id) = metadata.unsigned(key)? else { continue };
        let id =
            u32::try_from(id).map_err(|_| EngineError::config(key, &id, "is no token's id"))?;
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    Ok(ids)
}

/// The text of the token that `key` names; empty without one.
pub(super) fn token_text(metadata: &Metadata, key: &str) -> Result<String, EngineError> {
    let tokens = metadata.texts("tokenizer.ggml.tokens")?.unwrap_or_default();
    let id = metadata.unsigned(key)?.and_then(|id| usize::try_from(id).ok());
    Ok(id.and_then(|id| tokens.get(id)).cloned().unwrap_or_default())
}

//! The tokenizer of models that ship `tiktoken.model` and no `tokenizer.json` (Kimi): a list of
//! byte strings, each with its rank, and special tokens in slots behind them.

use super::read_object;
use crate::error::EngineError;
use crate::text::byte_letters;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::path::Path;
use tokenizers::Tokenizer;

pub(super) const FILE: &str = "tiktoken.model";

/// Slots for special tokens behind the base tokens, named or not. A gap is never closed: that
/// would shift the ids behind it.
const SPECIAL_SLOTS: u32 = 256;

/// How text is cut before pairs are merged, as in Moonshot's `tokenization_kimi.py`: runs of Han
/// first, so that they never join with letters.
const PATTERN: &str = concat!(
    r"[\p{Han}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+",
    r"|\s+(?!\S)",
    r"|\s+",
);

/// Reads `tiktoken.model` and the names of special tokens in `tokenizer_config.json`.
///
/// # Errors
/// `io` or `tokenizer-invalid`, naming the file and the line.
pub(super) fn open(dir: &Path) -> Result<Tokenizer, EngineError> {
    let path = dir.join(FILE);
    let text = std::fs::read_to_string(&path)
        .map_err(|source| EngineError::Io { path: path.clone(), source })?;
    let invalid =
        |problem: String| EngineError::Tokenizer { what: path.display().to_string(), problem };
    let tokens = parse(&text).map_err(invalid)?;
    let config = read_object(dir, "tokenizer_config.json")?.unwrap_or_default();
    let json = as_json(&tokens, &specials(&config)).map_err(invalid)?;
    Tokenizer::from_bytes(json.to_string()).map_err(|error| invalid(error.to_string()))
}

/// The byte strings in the order of their ranks, which must be 0, 1, 2 and so on.
fn parse(text: &str) -> Result<Vec<Vec<u8>>, String> {
    let mut tokens = Vec::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.is_empty()) {
        let token = line.split_once(' ').and_then(|(token, rank)| {
            let rank: usize = rank.trim_end().parse().ok()?;
            (rank == tokens.len()).then_some(token)
        });
        let bytes = token.and_then(|token| base64::decode(token).ok()).filter(|t| !t.is_empty());
        tokens.push(bytes.ok_or_else(|| {
            format!("line {number} is not a token in base64 and its rank {}", tokens.len())
        })?);
    }
    if tokens.len() > (u32::MAX - SPECIAL_SLOTS) as usize {
        return Err(format!("{} tokens are more than ids", tokens.len()));
    }
    Ok(tokens)
}

/// Named special tokens by id.
fn specials(config: &Map<String, Value>) -> HashMap<u32, String> {
    let named = config.get("added_tokens_decoder").and_then(Value::as_object);
    named
        .into_iter()
        .flatten()
        .filter_map(|(id, token)| Some((id.parse().ok()?, token.get("content")?.as_str()?.into())))
        .collect()
}

/// The same tokenizer in the form that the tokenizers crate reads: byte-level pairs, of which
/// every pair of tokens that makes a token is one, ranked as what it makes.
fn as_json(tokens: &[Vec<u8>], specials: &HashMap<u32, String>) -> Result<Value, String> {
    let letters = byte_letters();
    let spell =
        |bytes: &[u8]| -> String { bytes.iter().map(|byte| letters[usize::from(*byte)]).collect() };
    let known: HashMap<&[u8], u32> = (0..).zip(tokens).map(|(id, t)| (t.as_slice(), id)).collect();
    if known.len() < tokens.len() {
        return Err("a token is there twice".to_owned());
    }
    let mut merges = Vec::new();
    for token in tokens {
        let splits = (1..token.len()).map(|at| token.split_at(at));
        let mut pairs: Vec<_> = splits
            .filter_map(|(left, right)| Some((*known.get(left)?, *known.get(right)?, left, right)))
            .collect();
        pairs.sort_unstable();
        merges.extend(pairs.iter().map(|(_, _, left, right)| json!([spell(left), spell(right)])));
    }
    let mut vocab: Map<String, Value> =
        (0_u32..).zip(tokens).map(|(id, token)| (spell(token), json!(id))).collect();
    let mut added = Vec::new();
    for id in (tokens.len() as u32..).take(SPECIAL_SLOTS as usize) {
        let name = specials.get(&id).cloned();
        let name = name.unwrap_or_else(|| format!("<|reserved_token_{id}|>"));
        // Without an entry here the tokenizer would give it an id of its own choice.
        if vocab.insert(name.clone(), json!(id)).is_some() {
            return Err(format!("special token {name} is there twice"));
        }
        added.push(json!({
            "id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        }));
    }
    let byte_level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false,
    });
    let split = json!({
        "type": "Split", "pattern": { "Regex": PATTERN }, "behavior": "Isolated", "invert": false,
    });
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": [split, byte_level] },
        "post_processor": null,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
            // A whole piece that is a token is that token, whatever merges would make of it.
            "byte_fallback": false, "ignore_merges": true, "vocab": vocab, "merges": merges,
        },
    }))
}

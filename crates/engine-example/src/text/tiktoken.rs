//! Kimi's tokenizer files: `tiktoken.model`, ranks of byte strings, and the names of special
//! tokens in `tokenizer_config.json`; rewritten as a `tokenizer.json`.

use super::gguf::{KIMI, Pieces, byte_level};
use super::{byte_letters, read_object};
use crate::error::EngineError;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// The file.
pub(super) const NAME: &str = "tiktoken.model";
/// Slots for special tokens behind the ranks; those without a name are kept.
const SPECIAL_SLOTS: u32 = 256;
/// A table beyond this is something else: the known one has 2.8 MB.
const CAP: u64 = 64 << 20;

/// The `tokenizer.json` behind a folder's `tiktoken.model`.
///
/// # Errors
/// `io`, or `tokenizer-invalid` naming the file and the line.
pub(super) fn tokenizer_json(dir: &Path) -> Result<Value, EngineError> {
    let path = dir.join(NAME);
    let invalid =
        |problem: String| EngineError::Tokenizer { what: path.display().to_string(), problem };
    let io = |source| EngineError::Io { path: path.clone(), source };
    let len = std::fs::metadata(&path).map_err(io)?.len();
    if len > CAP {
        return Err(invalid(format!("has {len} bytes, at most {CAP} are read")));
    }
    let text = std::fs::read_to_string(&path).map_err(io)?;
    let ranks = ranks(&text).map_err(invalid)?;
    let base = u32::try_from(ranks.len()).unwrap_or(u32::MAX - SPECIAL_SLOTS);
    let named = named(dir)?;
    if let Some((id, text)) =
        named.iter().find(|(id, _)| !(base..base + SPECIAL_SLOTS).contains(id))
    {
        return Err(invalid(format!(
            "added token {text:?} has id {id}, the slots are {base} to {}",
            base + SPECIAL_SLOTS - 1
        )));
    }
    let slots: Vec<String> = (base..base + SPECIAL_SLOTS)
        .map(|id| named.get(&id).cloned().unwrap_or_else(|| format!("<|reserved_token_{id}|>")))
        .collect();
    let alphabet = byte_letters();
    let spelled = |bytes: &[u8]| -> String {
        bytes.iter().map(|&byte| alphabet[usize::from(byte)]).collect()
    };
    let mut vocab = Map::new();
    for (rank, bytes) in (0_u32..).zip(&ranks) {
        if vocab.insert(spelled(bytes), rank.into()).is_some() {
            return Err(invalid(format!("the token of rank {rank} is there twice")));
        }
    }
    for (id, slot) in (base..).zip(&slots) {
        if vocab.insert(slot.clone(), id.into()).is_some() {
            return Err(invalid(format!("special token {slot:?} is there twice")));
        }
    }
    let merges = merges(&ranks)
        .into_iter()
        .map(|(left, right)| Value::from(vec![spelled(left), spelled(right)]))
        .collect();
    let added = slots.iter().map(|slot| (slot.as_str(), true)).collect();
    // A piece that is a token as a whole is taken as it is, as tiktoken does.
    Ok(byte_level(&Pieces { vocab, merges, added }, &[KIMI], false, true))
}

/// Byte strings by rank: lines of base64 and rank, ranks from 0 without gaps.
fn ranks(text: &str) -> Result<Vec<Vec<u8>>, String> {
    let mut ranks = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let at = |problem: &str| format!("line {}: {problem}", number + 1);
        let (encoded, rank) =
            line.split_once(' ').ok_or_else(|| at("wanted base64, a space and a rank"))?;
        let bytes = base64::decode(encoded).map_err(|error| at(&error.to_string()))?;
        if rank.trim().parse() != Ok(ranks.len()) {
            return Err(at(&format!("rank {rank:?} where {} comes next", ranks.len())));
        }
        if bytes.is_empty() {
            return Err(at("an empty token"));
        }
        ranks.push(bytes);
    }
    if ranks.is_empty() { Err("there are no ranks".to_owned()) } else { Ok(ranks) }
}

/// Every way to make a token of two others, in the order of what they make: the pair of the
/// lowest rank is merged first, as tiktoken does.
fn merges(ranks: &[Vec<u8>]) -> Vec<(&[u8], &[u8])> {
    let by_bytes: HashMap<&[u8], usize> =
        ranks.iter().enumerate().map(|(rank, bytes)| (bytes.as_slice(), rank)).collect();
    let mut merges = Vec::new();
    for bytes in ranks {
        let splits = (1..bytes.len()).map(|at| bytes.split_at(at));
        merges.extend(
            splits.filter(|(left, right)| {
                by_bytes.contains_key(left) && by_bytes.contains_key(right)
            }),
        );
    }
    merges
}

/// `added_tokens_decoder` of the tokenizer's config: names by id.
fn named(dir: &Path) -> Result<BTreeMap<u32, String>, EngineError> {
    let config = read_object(dir, "tokenizer_config.json")?.unwrap_or_default();
    let mut named = BTreeMap::new();
    let entries = config.get("added_tokens_decoder").and_then(Value::as_object);
    for (id, token) in entries.into_iter().flatten() {
        let parsed = id.parse().ok().zip(token.get("content").and_then(Value::as_str));
        let (id, content) = parsed.ok_or_else(|| {
            let problem = "tokenizer_config.json: must be an id with a content";
            EngineError::config("added_tokens_decoder", &format!("{id}: {token}"), problem)
        })?;
        named.insert(id, content.to_owned());
    }
    Ok(named)
}

//! A tokenizer of single bytes, so that text works with random weights too.

use crate::text::byte_letters;
use serde_json::{Map, Value, json};

/// The first ids are the bytes; this one ends a text.
const END_OF_TEXT: u32 = 256;

/// The id that ends a text, if the vocabulary has room for it.
pub(super) fn end_of_text(vocab: u32) -> Option<u32> {
    (vocab > END_OF_TEXT).then_some(END_OF_TEXT)
}

/// `tokenizer.json`; `None` if not every byte has an id. Ids behind the bytes, which a random
/// model will choose, decode to a space and their number.
pub(super) fn tokenizer(vocab: u32) -> Option<Value> {
    let end = end_of_text(vocab)?;
    let mut ids = Map::new();
    for (id, letter) in byte_letters().into_iter().enumerate() {
        ids.insert(letter.to_string(), json!(id));
    }
    // Without an entry here the tokenizer would give it an id of its own choice.
    ids.insert("<|endoftext|>".to_owned(), json!(end));
    for id in end + 1..vocab {
        ids.insert(format!("\u{120}{id}"), json!(id));
    }
    Some(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [{
            "id": end, "content": "<|endoftext|>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true,
        }],
        "normalizer": null,
        "pre_tokenizer": {
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": false,
        },
        "post_processor": null,
        "decoder": {
            "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
            "use_regex": true,
        },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
            "byte_fallback": false, "ignore_merges": false, "vocab": ids, "merges": [],
        },
    }))
}

//! GGUF files: what their metadata says, and where their tensors lie.
//!
//! A total parser of the format's versions 2 and 3 (`ggml/docs/gguf.md`): it never panics, reads
//! nothing behind the header, believes no count before the bytes for it are there, and keeps long
//! arrays (a tokenizer's vocabulary) only for who asks for them with [`Metadata::read`].
//!
//! Written here because what there is on crates.io either reads whole arrays unasked and trusts
//! their counts (`candle-core`, `gguf-rs`), wraps products of dimensions, or knows no split sets.

mod config;
mod cursor;
mod header;
mod names;
mod split;
mod value;
mod write;

pub use value::{Array, Metadata, Value};

pub(super) use config::{checkpoint, tensors_tell_dense_layers};
pub(super) use header::{Tensor, read_header, read_header_alone};
pub(super) use names::{Name, classify};
pub(super) use split::{SplitKeys, collect_dir, collect_file, is_gguf_name};
pub(crate) use write::{Listed, Pairs, padding};

/// The first bytes of every file.
pub(super) const MAGIC: &[u8; 4] = b"GGUF";

//! The packed pool: every expert aligned for 2 MiB folios, in one file.
//!
//! # FORMAT, versions 1 and 2
//!
//! A folder with
//!
//! | file | content |
//! |---|---|
//! | `pool.json` | the index; written last, by rename, after everything else was synced |
//! | `experts.bin` | the experts |
//! | `spine.safetensors` | the spine (`spine-00001-of-00003.safetensors` if it is cut) |
//! | `config.json` and others | the source's config, tokenizer and chat template, as they were |
//!
//! Version 2 is that of pools made from GGUF: instead of the last two they have `spine.gguf`.
//!
//! **`experts.bin`.** Every expert begins at a multiple of 2 MiB; what is left of its last
//! 2 MiB window is a hole that takes no room on the disk, and so the file's length is a
//! multiple of 2 MiB too. Inside an expert its parts follow each other in the order gate, gate
//! scale, up, up scale, down, down scale; each begins at the first multiple of 64 bytes behind
//! the one before it, the first at 0, and the bytes between are zero. A part's bytes are those
//! of its tensor in the source: nothing is converted, and `config.json` says what they mean.
//!
//! **`pool.json`.** One JSON object; readers ignore keys that they do not know.
//!
//! | key | value |
//! |---|---|
//! | `format` | `"expert-tier-pool"` |
//! | `version` | 1, or 2 with `spine.gguf`; readers refuse other numbers before they look at anything else |
//! | `created_by` | who wrote it, for people |
//! | `align` | 2097152 |
//! | `experts_len` | the exact length of `experts.bin` |
//! | `spine` | list of `{"file", "len", "xxh3"}` |
//! | `schemas` | list of `{"len", "parts": [{"role", "dtype", "rows", "cols", "offset", "len"}]}` |
//! | `experts` | list of `[layer, index, schema, offset, len, "xxh3"]` |
//!
//! Roles are `gate`, `gate-scale`, `up`, `up-scale`, `down`, `down-scale`; element types have
//! their safetensors names, block types ggml's; `rows` and `cols` count stored elements. A part's `offset` counts
//! from the start of its expert, an expert's from the start of `experts.bin`. `schema` is a
//! place in `schemas`, whose `len` the expert's must be. `xxh3` is XXH3-64 (seed 0) as 16
//! lower-case hex digits: of the expert's `len` bytes, or of the whole spine file. One row an
//! expert is about 55 bytes: 4.5 MB for the 82,432 experts of the largest open model.
//!
//! **Spine.** Safetensors; a tensor's name is `model.` and its canonical name (see
//! [`crate::Pool::spine`]), the head keeps its own (`lm_head.weight`).
//!
//! **`spine.gguf`.** A GGUF file, version 3, with the source's metadata as it was stored (without
//! what is about the file itself: its alignment, its place in a split set) and the tensors that
//! are no experts', under their own names and in their own types.
//!
//! **Unfinished.** While a pool is being packed there is a `pack.journal` and no `pool.json`:
//! such a folder does not open.

mod index;
#[cfg(test)]
mod tests;

pub(crate) use index::{
    GGUF_SPINE, Index, PlacedExpert, Schema, SchemaPart, SpineFile, padded, spine_name,
};

use super::collect::{Collected, Origin, RawPart, open_regular};
use super::expert::{Extent, Part};
use super::{FileIdentity, Hole, PoolFile, names, source};
use crate::error::{OffsetProblem, OutputError, TierError};
use crate::notice::Notice;
use nix::unistd::{Whence, lseek};
use router_trace::ExpertId;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Every expert begins at a multiple of this.
pub const ALIGN: u64 = 2 << 20;
/// Every part begins at a multiple of this inside its expert.
pub const PART_ALIGN: u64 = 64;

pub(crate) const INDEX: &str = "pool.json";
pub(crate) const EXPERTS: &str = "experts.bin";
pub(crate) const JOURNAL: &str = "pack.journal";

/// More separate holes than this add nothing to a warning.
const MAX_HOLES: usize = 256;

/// What the index says of the bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Checksums {
    /// By layer and index.
    experts: BTreeMap<u16, Vec<u64>>,
    files: Vec<Option<u64>>,
}

impl Checksums {
    pub(crate) fn present(&self) -> bool {
        !self.experts.is_empty()
    }

    pub(crate) fn expert(&self, id: ExpertId) -> Option<u64> {
        self.experts.get(&id.layer)?.get(usize::from(id.index)).copied()
    }

    pub(crate) fn file(&self, file: u32) -> Option<u64> {
        *self.files.get(file as usize)?
    }
}

/// The index of the packed pool that `path` means, if it means one.
pub(super) fn index_of(path: &Path) -> Result<Option<PathBuf>, TierError> {
    if !path.is_dir() {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name == INDEX {
            return Ok(Some(path.to_owned()));
        }
        let spine = name.starts_with("spine") && source::is_tensor_file(name);
        let part = name == EXPERTS || name == GGUF_SPINE || spine;
        // An unfinished pack's files are as closed as its folder.
        return if part { index_of(source::parent(path)) } else { Ok(None) };
    }
    let there = |name: &str| path.join(name).exists();
    if !there(INDEX) {
        return match there(JOURNAL) {
            true => Err(TierError::Output(OutputError::Unfinished { path: path.to_owned() })),
            false => Ok(None),
        };
    }
    for other in ["model.safetensors", "model.safetensors.index.json"] {
        if there(other) {
            let reason = format!("holds two models: {INDEX}, and {other}");
            return Err(TierError::Ambiguous { path: path.to_owned(), reason });
        }
    }
    Ok(Some(path.join(INDEX)))
}

/// Reads the index and the headers of the spine, and checks them against the files.
pub(super) fn collect(path: &Path) -> Result<(Collected, Checksums), TierError> {
    let text = super::shards::read_index(path)?;
    let index = Index::parse(&text, path)?;
    drop(text);
    let dir = source::parent(path);
    check_present(&index, path, dir)?;
    let mut collected = Collected::default();
    let mut checksums = Checksums::default();
    add_experts(&index, path, &dir.join(EXPERTS), &mut collected, &mut checksums)?;
    let parts = collected.parts.len();
    for spine in &index.spine {
        let file = dir.join(&spine.file);
        if spine.file == GGUF_SPINE {
            collected.add_gguf(&file, &[])?;
        } else {
            collected.add_file(&file, &[], &mut |_| ())?;
        }
        checksums.files.push(Some(spine.checksum));
        let present = collected.files.last().map_or(0, |file| file.identity.len);
        let inconsistent = |reason: String| TierError::ShardSetInconsistent {
            index: path.to_owned(),
            tensor: format!("(all of {})", spine.file),
            reason,
        };
        if present != spine.len {
            let reason = format!("said to be {} bytes, the file has {present}", spine.len);
            return Err(inconsistent(reason));
        }
        if collected.parts.len() != parts || !collected.stacks.is_empty() {
            return Err(inconsistent("it holds tensors of routed experts".to_owned()));
        }
    }
    Ok((collected, checksums))
}

fn check_present(index: &Index, path: &Path, dir: &Path) -> Result<(), TierError> {
    let names = std::iter::once(EXPERTS).chain(index.spine.iter().map(|spine| &*spine.file));
    let mut missing: Vec<String> =
        names.filter(|name| !dir.join(name).exists()).map(str::to_owned).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let total = index.spine.len() + 1;
    let unreachable =
        if missing.iter().any(|name| name == EXPERTS) { index.experts.len() } else { 0 };
    missing.sort();
    Err(TierError::MissingShard {
        index: path.to_owned(),
        present: total - missing.len(),
        missing,
        total,
        unreachable,
        tensors: index.experts.len(),
    })
}

fn add_experts(
    index: &Index,
    index_path: &Path,
    path: &Path,
    collected: &mut Collected,
    checksums: &mut Checksums,
) -> Result<(), TierError> {
    let (file, metadata) = open_regular(path)?;
    let present = metadata.len();
    let last = index.experts.iter().max_by_key(|expert| expert.offset);
    let tensor = last.map_or_else(|| "(none)".to_owned(), |expert| expert_name(expert.id));
    if present < index.experts_len {
        let needed = index.experts_len;
        return Err(TierError::TruncatedData { path: path.to_owned(), tensor, needed, present });
    }
    if present > index.experts_len {
        let problem = OffsetProblem::Trailing { end: index.experts_len, data_len: present };
        return Err(TierError::BadOffsets { path: path.to_owned(), tensor, problem });
    }
    let identity = FileIdentity::of(&file).map_err(|source| TierError::Io {
        path: path.to_owned(),
        operation: "stat",
        source,
    })?;
    for expert in &index.experts {
        let ExpertId { layer, index: number } = expert.id;
        let sums = checksums.experts.entry(layer).or_default();
        // In order of ids; a gap is an error of the set, found when it is assembled.
        if sums.len() == usize::from(number) {
            sums.push(expert.checksum);
        }
        let schema = &index.schemas[expert.schema as usize];
        collected.tensor_bytes = collected.tensor_bytes.saturating_add(schema.len);
        collected.parts.extend(schema.parts.iter().map(|part| RawPart {
            layer,
            index: number,
            origin: Origin::Packed,
            part: Part {
                role: part.role,
                dtype: part.dtype,
                rows: part.rows,
                cols: part.cols,
                extent: Extent { file: 0, offset: expert.offset + part.offset, len: part.len },
            },
        }));
    }
    collected.files.push(PoolFile { path: path.to_owned(), identity });
    checksums.files.push(None);
    let holes = holes(&file, &index.experts);
    if let Some(first) = holes.first() {
        collected.notices.push(Notice::warning(format!(
            "{}: {}: bytes [{},{}) were never written ({} such experts in {}); they read as \
             zeros, this looks like an unfinished copy",
            path.display(),
            first.tensor,
            first.extent.offset,
            first.extent.end(),
            holes.len(),
            index_path.display(),
        )));
    }
    collected.holes.extend(holes);
    Ok(())
}

/// Experts that the file system says were not written wholly, one hole for each. File systems
/// that cannot tell have none.
fn holes(file: &File, experts: &[PlacedExpert]) -> Vec<Hole> {
    let mut order: Vec<&PlacedExpert> = experts.iter().collect();
    order.sort_unstable_by_key(|expert| expert.offset);
    let mut found = Vec::new();
    // No hole lies in front of this: experts without a tail are one long run of data.
    let mut data_to = 0;
    for expert in order {
        let end = expert.offset + expert.len;
        if end <= data_to {
            continue;
        }
        let Some(hole) = next_hole(file, expert.offset) else { break };
        data_to = hole;
        if hole < end {
            found.push(Hole {
                tensor: expert_name(expert.id),
                extent: Extent { file: 0, offset: hole, len: end - hole },
            });
            if found.len() == MAX_HOLES {
                break;
            }
        }
    }
    found
}

/// The first byte at or behind `offset` that was never written (the end of the file counts).
pub(crate) fn next_hole(file: &File, offset: u64) -> Option<u64> {
    let hole = lseek(file, i64::try_from(offset).ok()?, Whence::SeekHole).ok()?;
    u64::try_from(hole).ok()
}

pub(super) fn expert_name(id: ExpertId) -> String {
    format!("layer {} expert {}", id.layer, id.index)
}

/// What errors call a part of a packed expert.
pub(super) fn part_name(part: &RawPart) -> String {
    format!("layer {} expert {} {}", part.layer, part.index, index::role_name(part.part.role))
}

/// The name under which a canonical spine name is stored.
pub(crate) fn stored_name(canonical: &str) -> Option<String> {
    let reads_back = |stored: &String| {
        matches!(names::classify(stored, Path::new("")), Ok(names::TensorName::Spine(name))
            if name == canonical)
    };
    let prefixed = format!("model.{canonical}");
    let plain = canonical.to_owned();
    let order =
        if canonical.starts_with("lm_head.") { [plain, prefixed] } else { [prefixed, plain] };
    order.into_iter().find(reads_back)
}

//! What is packed: an open pool, or anything else that can tell its bytes.

use super::disk;
use crate::error::TierError;
use crate::notice::Notice;
use crate::pool::gguf::Pairs;
use crate::pool::handles::{Handles, OpenAs};
use crate::pool::{Dtype, FileIdentity, PartRole, Pool};
use router_trace::ExpertId;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// One tensor of an expert that is to be packed. Its length follows from its shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PackPart {
    /// What it is for.
    pub role: PartRole,
    /// Element type.
    pub dtype: Dtype,
    /// Rows of stored elements.
    pub rows: u32,
    /// Columns of stored elements.
    pub cols: u32,
}

/// An expert that is to be packed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PackExpert {
    /// Which.
    pub id: ExpertId,
    /// Its tensors by role.
    pub parts: Vec<PackPart>,
}

/// A spine tensor that is to be packed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PackTensor {
    /// Canonical name, see [`Pool::spine`].
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Shape.
    pub shape: Vec<u64>,
}

/// A small file that belongs to the model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PackFile {
    /// Its name in the packed pool's folder.
    pub name: String,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// What a packed GGUF spine keeps of its source beside the tensors' bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GgufHead {
    pub(super) pairs: Pairs,
    /// The names of the spine's tensors there.
    pub(super) names: Vec<String>,
}

/// What a packed pool is made from. Threads read several experts at once.
pub trait PackSource: Sync {
    /// Lines that must be the same for an unfinished pack to be continued.
    fn identity(&self) -> Vec<String>;

    /// Every expert, by layer and index.
    fn experts(&self) -> Vec<PackExpert>;

    /// The bytes of one part; `out` has its length.
    ///
    /// # Errors
    /// Bytes that cannot be had.
    fn read_part(&self, id: ExpertId, role: PartRole, out: &mut [u8]) -> Result<(), TierError>;

    /// The spine's tensors, in the order in which they shall lie.
    fn spine(&self) -> Vec<PackTensor>;

    /// Bytes of [`PackSource::spine`]`[tensor]` from `offset` on.
    ///
    /// # Errors
    /// Bytes that cannot be had.
    fn read_spine(&self, tensor: usize, offset: u64, out: &mut [u8]) -> Result<(), TierError>;

    /// What a GGUF file says of the model, where [`PackSource::spine`] is one's: then the packed
    /// spine is a GGUF file too.
    ///
    /// # Errors
    /// Bytes that cannot be had.
    fn gguf(&self) -> Result<Option<GgufHead>, TierError> {
        Ok(None)
    }

    /// Config, tokenizer and what else lies beside the weights.
    ///
    /// # Errors
    /// A file that cannot be read.
    fn files(&self) -> Result<Vec<PackFile>, TierError>;

    /// Called when all was read: the source must still be what it was.
    ///
    /// # Errors
    /// `io-changed`.
    fn check_unchanged(&self) -> Result<(), TierError>;
}

/// Files that go along if they are there.
const COMPANIONS: [&str; 13] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "tiktoken.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
];
/// What the names of a model's terms begin with, in either case: they go along with any copy.
const TERMS: [&str; 2] = ["license", "notice"];
/// A companion beyond this is something else.
const COMPANION_CAP: u64 = 256 << 20;

/// An open pool as a source.
#[derive(Debug)]
pub struct PoolSource {
    pool: Pool,
    handles: Handles,
    /// Canonical names, in the order of [`PackSource::spine`].
    spine: Vec<String>,
}

impl PoolSource {
    /// Makes sure that the files of `pool` are still there.
    ///
    /// # Errors
    /// A file that cannot be opened or is not the one any more.
    pub fn open(pool: &Pool) -> Result<Self, TierError> {
        let handles = Handles::new(pool, OpenAs::Sequential);
        let spine = pool.spine().keys().cloned().collect();
        let source = Self { pool: pool.clone(), handles, spine };
        source.check_unchanged()?;
        Ok(source)
    }

    fn read(&self, file: u32, offset: u64, out: &mut [u8]) -> Result<(), TierError> {
        let handle = self.handles.get(file)?;
        let len = out.len() as u64;
        handle.read_exact_at(out, offset).map_err(|source| TierError::Fill {
            path: self.pool.path_of(file).to_owned(),
            offset,
            len,
            file_len: handle.metadata().map_or(0, |metadata| metadata.len()),
            source,
        })?;
        disk::forget(&handle, offset, len);
        Ok(())
    }
}

fn check(file: &File, path: &Path, opened: FileIdentity) -> Result<(), TierError> {
    let found = FileIdentity::of(file).map_err(disk::io_error(path, "stat"))?;
    if found == opened {
        return Ok(());
    }
    Err(TierError::FileChanged {
        path: path.to_owned(),
        opened: Box::new(opened),
        found: Box::new(found),
    })
}

/// The folder whose small files belong to the pool.
pub(super) fn folder(pool: &Pool) -> PathBuf {
    let root = pool.root();
    match root.parent() {
        _ if root.is_dir() => root.to_owned(),
        Some(dir) if !dir.as_os_str().is_empty() => dir.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// The names of what looks like licences and notices in `dir`, sorted. A folder that may be entered
/// but not listed hides them.
fn terms(dir: &Path) -> Result<Vec<String>, TierError> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(Vec::new()),
        entries => entries.map_err(disk::io_error(dir, "list"))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(disk::io_error(dir, "list"))?;
        // Names that are not UTF-8 are no terms of ours to know.
        let Ok(name) = entry.file_name().into_string() else { continue };
        let lower = name.to_ascii_lowercase();
        let weights = [".safetensors", ".gguf"].iter().any(|ending| lower.ends_with(ending));
        if !weights && TERMS.iter().any(|start| lower.starts_with(start)) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

impl PackSource for PoolSource {
    fn identity(&self) -> Vec<String> {
        let line = |file: &crate::pool::PoolFile| {
            let path = fs::canonicalize(&file.path).unwrap_or_else(|_| file.path.clone());
            let FileIdentity { len, mtime_ns, .. } = file.identity;
            format!("{} of {len} bytes, written at {mtime_ns} ns", path.display())
        };
        self.pool.files().iter().map(line).collect()
    }

    fn experts(&self) -> Vec<PackExpert> {
        let experts = self.pool.layout().iter().map(|(id, expert)| PackExpert {
            id,
            parts: expert
                .parts
                .iter()
                .map(|&part| PackPart {
                    role: part.role,
                    dtype: part.dtype,
                    rows: part.rows,
                    cols: part.cols,
                })
                .collect(),
        });
        experts.collect()
    }

    fn read_part(&self, id: ExpertId, role: PartRole, out: &mut [u8]) -> Result<(), TierError> {
        let layout = self.pool.layout();
        let part = layout.expert(id).and_then(|expert| expert.part(role));
        let Some(part) = part else {
            return Err(TierError::UnknownExpert { id, in_layer: layout.layer(id.layer).len() });
        };
        self.read(part.extent.file, part.extent.offset, out)
    }

    fn spine(&self) -> Vec<PackTensor> {
        let tensors = self.pool.spine().iter().map(|(name, tensor)| PackTensor {
            name: name.clone(),
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
        });
        tensors.collect()
    }

    fn read_spine(&self, tensor: usize, offset: u64, out: &mut [u8]) -> Result<(), TierError> {
        let extent = self.pool.spine()[&self.spine[tensor]].extent;
        self.read(extent.file, extent.offset + offset, out)
    }

    fn gguf(&self) -> Result<Option<GgufHead>, TierError> {
        let Some(metadata) = self.pool.gguf() else { return Ok(None) };
        let names = self.pool.spine().values().map(|tensor| tensor.stored_name.clone());
        Ok(Some(GgufHead { pairs: Pairs::read(metadata.path())?, names: names.collect() }))
    }

    fn files(&self) -> Result<Vec<PackFile>, TierError> {
        let dir = folder(&self.pool);
        let mut names = terms(&dir)?;
        // What else lies beside a GGUF file may be of another model: it speaks for itself.
        if self.pool.gguf().is_none() {
            names.extend(COMPANIONS.map(str::to_owned));
        }
        let mut files = Vec::new();
        for name in names {
            let path = dir.join(&name);
            let Ok(metadata) = fs::metadata(&path) else { continue };
            if !metadata.is_file() {
                continue;
            }
            if metadata.len() > COMPANION_CAP {
                return Err(TierError::Limit {
                    path,
                    what: "the length of a file that goes along".to_owned(),
                    value: metadata.len(),
                    most: COMPANION_CAP,
                });
            }
            let bytes = fs::read(&path).map_err(disk::io_error(&path, "read"))?;
            files.push(PackFile { name, bytes });
        }
        Ok(files)
    }

    fn check_unchanged(&self) -> Result<(), TierError> {
        for (index, entry) in (0_u32..).zip(self.pool.files()) {
            check(&*self.handles.get(index)?, &entry.path, entry.identity)?;
        }
        Ok(())
    }
}

/// What a pool has that a packed pool will not.
pub(super) fn left_out(pool: &Pool) -> Vec<Notice> {
    let root = pool.root().display();
    let mut notices = Vec::new();
    for (aside, what) in [
        (pool.foreign(), "tensors of other models"),
        (pool.beyond_last_layer(), "tensors of layers behind the last one"),
        (pool.unknown_expert_tensors(), "expert tensors of a kind that is not served"),
    ] {
        if aside.tensors > 0 {
            let (tensors, bytes) = (aside.tensors, aside.bytes);
            notices
                .push(Notice::info(format!("{root}: left out: {tensors} {what}, {bytes} bytes")));
        }
    }
    let shapes = pool.weight_shapes().len();
    if shapes > 0 {
        let text =
            format!("{root}: left out: {shapes} shapes of packed weights, as the config has them");
        notices.push(Notice::info(text));
    }
    notices
}

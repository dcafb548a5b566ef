//! What lies where: the immutable set of all routed experts, and the spine beside them.

mod assemble;
mod checks;
mod coalesce;
mod collect;
mod config;
mod dtype;
mod expert;
mod find;
pub mod gguf;
pub(crate) mod handles;
mod json;
mod loose;
pub(crate) mod map;
mod names;
mod open;
pub mod packed;
mod quant;
mod safetensors;
mod shards;
mod sizes;
mod sniff;
mod source;
mod stacks;
mod verify;

pub use config::{CheckpointConfig, Family, Setting, SettingSource};
pub use dtype::Dtype;
pub use expert::{ExpertLayout, Extent, Part, PartRole, PoolLayout};
pub use quant::{Quantization, ScaleGrid, ScaleMismatch};
pub use sizes::{HeaderSizes, KnownSizes, KvSizes, ModelSizes, PartSizes, SizeSource};
pub use verify::{Problem, VerifyReport, verify};

use crate::notice::Notice;
use router_trace::ExpertId;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a file was when the pool was opened; a running tier compares against it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileIdentity {
    /// Device number (`st_dev`).
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Length in bytes.
    pub len: u64,
    /// Modification time in nanoseconds since the epoch.
    pub mtime_ns: i128,
}

impl FileIdentity {
    /// The identity of an open file.
    ///
    /// # Errors
    /// The system's answer to `fstat`.
    pub fn of(file: &std::fs::File) -> std::io::Result<Self> {
        use std::os::unix::fs::MetadataExt;
        let stat = file.metadata()?;
        let mtime_ns = i128::from(stat.mtime()) * 1_000_000_000 + i128::from(stat.mtime_nsec());
        Ok(Self { dev: stat.dev(), ino: stat.ino(), len: stat.len(), mtime_ns })
    }
}

/// One file that holds tensors of the pool.
#[derive(Clone, Debug)]
pub struct PoolFile {
    /// Where it is.
    pub path: PathBuf,
    /// What it was when it was opened.
    pub identity: FileIdentity,
}

/// A tensor of the spine: a weight that every token uses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpineTensor {
    /// The name in the file, with its prefix.
    pub stored_name: String,
    /// Stored element type.
    pub dtype: Dtype,
    /// Stored shape.
    pub shape: Vec<u64>,
    /// Where its bytes lie. `len` may be zero for an empty tensor.
    pub extent: Extent,
}

/// The logical shape of a packed expert weight, stored as a tensor of its own. It is never
/// read when the pool is opened and is no part of the expert.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct WeightShape {
    /// The expert.
    pub id: ExpertId,
    /// The projection it describes.
    pub role: PartRole,
    /// Stored element type (`I32` or `I64`).
    pub dtype: Dtype,
    /// Where its bytes lie.
    pub extent: Extent,
}

/// Bytes of a tensor that the file system says were never written.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Hole {
    /// The first tensor that it hits, as stored.
    pub tensor: String,
    /// The range.
    pub extent: Extent,
}

/// Tensors that are counted but not served.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct SetAside {
    /// How many.
    pub tensors: usize,
    /// Their size in bytes.
    pub bytes: u64,
    /// The first one's stored name.
    pub example: Option<String>,
}

impl SetAside {
    fn add(&mut self, name: &str, bytes: u64) {
        self.tensors += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        self.example.get_or_insert_with(|| name.to_owned());
    }
}

/// Where the weights of the head are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeadKind {
    /// The embedding serves as the head: one copy for both.
    Tied,
    /// `lm_head.weight`.
    Separate,
}

/// How a pool's files are laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum PoolFormat {
    /// One safetensors file.
    Safetensors,
    /// Several safetensors files: under one index, or of one model that needs none.
    SafetensorsShards,
    /// Aligned experts in one file: [`packed`].
    Packed,
    /// One GGUF file.
    Gguf,
    /// Several GGUF files that belong together.
    GgufSplit,
}

impl PoolFormat {
    /// The name used in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Safetensors => "safetensors",
            Self::SafetensorsShards => "safetensors-shards",
            Self::Packed => "packed",
            Self::Gguf => "gguf",
            Self::GgufSplit => "gguf-split",
        }
    }
}

/// An opened pool: headers were read, no weight was.
///
/// `Send + Sync`, cheap to clone.
#[derive(Clone, Debug)]
pub struct Pool {
    inner: Arc<PoolInner>,
}

#[derive(Debug)]
pub(crate) struct PoolInner {
    pub(crate) root: PathBuf,
    pub(crate) files: Vec<PoolFile>,
    pub(crate) layout: PoolLayout,
    pub(crate) spine: BTreeMap<String, SpineTensor>,
    pub(crate) notices: Vec<Notice>,
    pub(crate) config: Option<CheckpointConfig>,
    pub(crate) weight_shapes: Vec<WeightShape>,
    pub(crate) foreign: SetAside,
    pub(crate) beyond: SetAside,
    pub(crate) unknown: SetAside,
    pub(crate) holes: Vec<Hole>,
    pub(crate) format: PoolFormat,
    pub(crate) checksums: packed::Checksums,
    pub(crate) gguf: Option<gguf::Metadata>,
}

impl Pool {
    /// The path that was opened.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.inner.root
    }

    /// The files that hold the pool's tensors; [`Extent::file`] indexes them.
    #[must_use]
    pub fn files(&self) -> &[PoolFile] {
        &self.inner.files
    }

    /// How the files are laid out.
    #[must_use]
    pub fn format(&self) -> PoolFormat {
        self.inner.format
    }

    /// XXH3-64 of an expert's bytes, from the first of its only extent to the last; `None` in
    /// formats that store none.
    #[must_use]
    pub fn checksum(&self, id: ExpertId) -> Option<u64> {
        self.inner.checksums.expert(id)
    }

    /// XXH3-64 of a whole file of the spine; `None` for other files and in formats that store
    /// none.
    #[must_use]
    pub fn file_checksum(&self, file: u32) -> Option<u64> {
        self.inner.checksums.file(file)
    }

    /// What a GGUF file says of itself, without long arrays; `None` in other formats.
    #[must_use]
    pub fn gguf(&self) -> Option<&gguf::Metadata> {
        self.inner.gguf.as_ref()
    }

    /// Where every routed expert lies.
    #[must_use]
    pub fn layout(&self) -> &PoolLayout {
        &self.inner.layout
    }

    /// The spine's tensors by canonical name: the stored name without the dialect's prefix,
    /// for example `layers.0.self_attn.q_proj.weight`, `embed_tokens.weight`, `lm_head.weight`.
    #[must_use]
    pub fn spine(&self) -> &BTreeMap<String, SpineTensor> {
        &self.inner.spine
    }

    /// What a person should know about the files although they can be used.
    #[must_use]
    pub fn notices(&self) -> &[Notice] {
        &self.inner.notices
    }

    /// What `config.json` says; `None` if there is none.
    #[must_use]
    pub fn config(&self) -> Option<&CheckpointConfig> {
        self.inner.config.as_ref()
    }

    /// Stored logical shapes of packed expert weights, in order of the files.
    pub fn weight_shapes(&self) -> impl ExactSizeIterator<Item = &WeightShape> {
        self.inner.weight_shapes.iter()
    }

    /// Tensors of other models in the same files (vision towers, projectors).
    #[must_use]
    pub fn foreign(&self) -> &SetAside {
        &self.inner.foreign
    }

    /// Tensors of layers behind the model's last one, experts and spine together.
    #[must_use]
    pub fn beyond_last_layer(&self) -> &SetAside {
        &self.inner.beyond
    }

    /// Expert tensors of a kind that is not served (zero points, biases, unknown stacks).
    #[must_use]
    pub fn unknown_expert_tensors(&self) -> &SetAside {
        &self.inner.unknown
    }

    /// Ranges of tensors that were never written, as far as the file system tells.
    #[must_use]
    pub fn holes(&self) -> &[Hole] {
        &self.inner.holes
    }

    /// The path of a file; the root for a number that no file has.
    #[must_use]
    pub fn path_of(&self, file: u32) -> &Path {
        self.files().get(file as usize).map_or(self.root(), |file| file.path.as_path())
    }
}

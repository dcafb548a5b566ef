//! What lies where: the immutable set of all routed experts, and the spine beside them.

mod dtype;
mod expert;

pub use dtype::Dtype;
pub use expert::{ExpertLayout, Extent, Part, PartRole, PoolLayout};

use crate::notice::Notice;
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
}

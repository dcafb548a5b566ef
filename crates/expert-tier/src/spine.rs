use crate::error::TierError;
use crate::observe::SystemRoot;
use crate::pool::handles::{Handles, OpenAs};
use crate::pool::{Dtype, Pool, SpineTensor};
use memmap2::{Advice, MmapMut};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Where the dense part of the model lives. In neither case in the page cache: there it would
/// compete with the experts for every byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpinePlacement {
    /// In anonymous memory.
    #[default]
    Anonymous,
    /// In anonymous memory, locked: it can be neither swapped nor reclaimed.
    Locked,
}

/// The dense part, read once into memory of our own. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Spine {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    memory: MmapMut,
    tensors: BTreeMap<String, (SpineTensor, usize)>,
    placement: SpinePlacement,
}

/// One tensor of the spine.
#[derive(Clone, Copy, Debug)]
pub struct SpineView<'a> {
    /// Stored element type.
    pub dtype: Dtype,
    /// Stored shape.
    pub shape: &'a [u64],
    /// Its bytes, at an address that is a multiple of 64.
    pub bytes: &'a [u8],
}

/// Tensors start at multiples of this, so that vector loads do not straddle cache lines.
const ALIGN: usize = 64;

/// One read; also the unit in which progress is told.
const READ_BYTES: usize = 8 << 20;

impl Spine {
    /// Read every spine tensor of `pool`; `progress(done, total)` is called in bytes.
    ///
    /// # Errors
    /// A file that cannot be read, memory that cannot be had or locked: [`TierError::Lock`] names
    /// the limit and the bytes, and is found before the kernel would have to kill.
    pub fn load(
        pool: &Pool,
        placement: SpinePlacement,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<Self, TierError> {
        let mut tensors = BTreeMap::new();
        let mut total = 0_usize;
        for (name, tensor) in pool.spine() {
            tensors.insert(name.clone(), (tensor.clone(), total));
            let len = usize::try_from(tensor.extent.len).unwrap_or(usize::MAX);
            total = total.saturating_add(len).next_multiple_of(ALIGN);
        }
        let mut memory = MmapMut::map_anon(total.max(1)).map_err(|source| TierError::Memory {
            what: "the spine",
            bytes: total,
            source,
        })?;
        // 4 KiB pages would cost every token TLB misses; without huge pages it works all the same.
        drop(memory.advise(Advice::HugePage));
        if placement == SpinePlacement::Locked {
            crate::lock::lock(&memory, "the spine", &SystemRoot::default())?;
        }
        let files = Handles::new(pool, OpenAs::Plain);
        let mut done = 0_u64;
        for (tensor, start) in tensors.values() {
            let target = &mut memory[*start..*start + tensor.extent.len as usize];
            let file = &*files.get(tensor.extent.file)?;
            for (index, chunk) in target.chunks_mut(READ_BYTES).enumerate() {
                let offset = tensor.extent.offset + (index * READ_BYTES) as u64;
                file.read_exact_at(chunk, offset).map_err(|source| TierError::Fill {
                    path: pool.files()[tensor.extent.file as usize].path.clone(),
                    offset,
                    len: chunk.len() as u64,
                    file_len: file.metadata().map_or(0, |metadata| metadata.len()),
                    source,
                })?;
                done += chunk.len() as u64;
                progress(done, total as u64);
            }
            if let Err(error) = forget(file, tensor) {
                // Only a request: a second copy that stays costs room, nothing else.
                tracing::debug!(%error, tensor = tensor.stored_name, "not evicted");
            }
        }
        Ok(Self { inner: Arc::new(Inner { memory, tensors, placement }) })
    }

    /// A tensor by canonical name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<SpineView<'_>> {
        let (tensor, start) = self.inner.tensors.get(name)?;
        let bytes = &self.inner.memory[*start..*start + tensor.extent.len as usize];
        Some(SpineView { dtype: tensor.dtype, shape: &tensor.shape, bytes })
    }

    /// The same as a handle of its own, for layers that keep their weights' bytes alive.
    #[must_use]
    pub fn bytes_of(&self, name: &str) -> Option<SpineBytes> {
        let (tensor, start) = self.inner.tensors.get(name)?;
        let range = *start..*start + tensor.extent.len as usize;
        Some(SpineBytes { inner: Arc::clone(&self.inner), range })
    }

    /// Canonical names, sorted.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.inner.tensors.keys().map(String::as_str)
    }

    /// Bytes of memory it holds.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.inner.memory.len()
    }

    /// Where it lives.
    #[must_use]
    pub fn placement(&self) -> SpinePlacement {
        self.inner.placement
    }
}

/// Bytes of one tensor that keep the spine's memory alive.
#[derive(Clone, Debug)]
pub struct SpineBytes {
    inner: Arc<Inner>,
    range: Range<usize>,
}

impl AsRef<[u8]> for SpineBytes {
    fn as_ref(&self) -> &[u8] {
        &self.inner.memory[self.range.clone()]
    }
}

/// The copy is ours now; the page cache need not keep a second one.
fn forget(file: &File, tensor: &SpineTensor) -> io::Result<()> {
    let (offset, len) = (tensor.extent.offset.cast_signed(), tensor.extent.len.cast_signed());
    if len > 0 {
        posix_fadvise(file, offset, len, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
    }
    Ok(())
}

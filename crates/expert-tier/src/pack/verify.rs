//! Reads a packed pool and compares it with its own checksums.

use super::disk::{forget, io_error};
use crate::error::TierError;
use crate::pool::Pool;
use crate::pool::handles::{Handles, OpenAs};
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use router_trace::ExpertId;
use serde::Serialize;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use xxhash_rust::xxh3::Xxh3;

/// Bytes that one thread holds.
const CHUNK_BYTES: u64 = 4 << 20;
/// Experts between two words to the caller.
const STEP: usize = 64;

/// Bytes that are not what they were when the pool was packed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct VerifyMismatch {
    /// The file.
    pub path: PathBuf,
    /// The expert; `None` for a file of the spine.
    pub expert: Option<ExpertId>,
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// The checksum in the index.
    pub wanted: u64,
    /// The checksum of the bytes.
    pub found: u64,
}

impl fmt::Display for VerifyMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, offset, len, wanted, found, .. } = self;
        write!(f, "{}: ", path.display())?;
        if let Some(id) = self.expert {
            write!(f, "{id}: ")?;
        }
        let end = offset + len;
        write!(f, "bytes {offset} to {end} have checksum {found:016x}, packed as {wanted:016x}")
    }
}

/// What a verification found.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct VerifyReport {
    /// Experts read.
    pub experts: usize,
    /// Spine files read.
    pub spine_files: usize,
    /// Bytes read.
    pub bytes: u64,
    /// What is wrong, in order of the files.
    pub mismatches: Vec<VerifyMismatch>,
}

struct Item {
    file: u32,
    expert: Option<ExpertId>,
    offset: u64,
    len: u64,
    wanted: u64,
}

/// Reads everything that has a checksum; `progress(done, total)` is called in bytes. Runs on
/// the threads of the current rayon pool.
///
/// # Errors
///
/// `unsupported` if the pool's format has no checksums, `io` for bytes that cannot be read.
/// Bytes that differ are no error but stand in the report.
pub fn verify(pool: &Pool, mut progress: impl FnMut(u64, u64)) -> Result<VerifyReport, TierError> {
    let items = items(pool);
    if items.is_empty() {
        return Err(TierError::Unsupported {
            path: pool.root().to_owned(),
            thing: "checksums".to_owned(),
            reason: "only packed pools have some".to_owned(),
        });
    }
    let handles = Handles::new(pool, OpenAs::Sequential);
    let total = items.iter().map(|item| item.len).sum();
    let done = AtomicU64::new(0);
    let mut report = VerifyReport::default();
    for step in items.chunks(STEP) {
        let found = step.par_iter().map_init(Vec::new, |buffer, item| {
            let file = handles.get(item.file)?;
            let hash = hash_range(&file, item.offset, item.len, buffer)
                .map_err(|error| io_error(pool.path_of(item.file), "read")(error))?;
            done.fetch_add(item.len, Ordering::Relaxed);
            Ok((item, hash))
        });
        for (item, found) in found.collect::<Result<Vec<_>, TierError>>()? {
            report.bytes += item.len;
            match item.expert {
                Some(_) => report.experts += 1,
                None => report.spine_files += 1,
            }
            if found != item.wanted {
                report.mismatches.push(VerifyMismatch {
                    path: pool.path_of(item.file).to_owned(),
                    expert: item.expert,
                    offset: item.offset,
                    len: item.len,
                    wanted: item.wanted,
                    found,
                });
            }
        }
        progress(done.load(Ordering::Relaxed), total);
    }
    Ok(report)
}

fn items(pool: &Pool) -> Vec<Item> {
    let experts = pool.layout().iter().filter_map(|(id, expert)| {
        let (wanted, extent) = (pool.checksum(id)?, expert.extents.first()?);
        let (file, offset, len) = (extent.file, extent.offset, extent.len);
        Some(Item { file, expert: Some(id), offset, len, wanted })
    });
    let spine = (0_u32..).zip(pool.files()).filter_map(|(file, entry)| {
        let (wanted, len) = (pool.file_checksum(file)?, entry.identity.len);
        Some(Item { file, expert: None, offset: 0, len, wanted })
    });
    experts.chain(spine).collect()
}

/// XXH3-64 of a range; the page cache does not keep it.
pub(super) fn hash_range(
    file: &File,
    offset: u64,
    len: u64,
    buffer: &mut Vec<u8>,
) -> io::Result<u64> {
    let mut hash = Xxh3::new();
    let mut read = 0;
    while read < len {
        let chunk = CHUNK_BYTES.min(len - read);
        buffer.resize(chunk as usize, 0);
        file.read_exact_at(buffer, offset + read)?;
        forget(file, offset + read, chunk);
        hash.update(buffer);
        read += chunk;
    }
    Ok(hash.digest())
}

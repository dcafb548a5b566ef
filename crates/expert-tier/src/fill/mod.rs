//! Cold to warm: a whole route's missing extents at once, in large pieces, from several threads,
//! before the compute touches any of them.
//!
//! Why not simply touch the mapping: a fault reads 3-4 times the bytes at queue depth 1.
//! Why `MADV_RANDOM` only around the fill: on a `VM_HUGEPAGE` range it keeps the fault from
//! reading the next window too, but left on it hides the mapping from the kernel's recency.

pub(crate) mod direct;
mod plan;

pub(crate) use plan::{FillPlan, Piece, PlanLimits};

use crate::error::TierError;
use crate::pool::map::{MappedFile, Mapping};
use memmap2::Advice;
use rayon::iter::{IntoParallelIterator, IntoParallelRefIterator, ParallelIterator};
use rayon::{ThreadPool, ThreadPoolBuilder};
use serde::Serialize;
use std::io;
use std::os::unix::fs::FileExt;

/// How missing pages are brought into the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FillMethod {
    /// `MADV_POPULATE_READ` (Linux 5.14): reads and maps, and turns a bad sector into an error.
    Populate,
    /// Plain reads into a scratch buffer: works everywhere, costs a copy.
    Read,
}

impl FillMethod {
    /// The best method this kernel has.
    #[must_use]
    pub fn detect() -> Self {
        if Advice::PopulateRead.is_supported() { Self::Populate } else { Self::Read }
    }
}

/// Threads that only wait for storage, and the method they use.
#[derive(Debug)]
pub(crate) struct Filler {
    pool: ThreadPool,
    method: FillMethod,
}

impl Filler {
    pub(crate) fn new(threads: usize, method: FillMethod) -> Result<Self, TierError> {
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|index| format!("tier-fill-{index}"))
            .build()
            .map_err(|source| TierError::Threads { threads, reason: source.to_string() })?;
        Ok(Self { pool, method })
    }

    pub(crate) fn method(&self) -> FillMethod {
        self.method
    }

    /// Run `job` on the fill threads: parallel iterators inside it use them.
    pub(crate) fn run<R: Send>(&self, job: impl FnOnce() -> R + Send) -> R {
        self.pool.install(job)
    }

    /// Bring every piece of `plan` in. Returns at the first error; what was read stays cached.
    pub(crate) fn fill(&self, mapping: &Mapping, plan: &FillPlan) -> Result<(), TierError> {
        self.run(|| match self.method {
            FillMethod::Populate => populate(mapping, plan),
            FillMethod::Read => [&plan.windows, &plan.edges]
                .into_par_iter()
                .flat_map(IntoParallelRefIterator::par_iter)
                .try_for_each(|piece| read_through(mapping.file(piece.file), *piece)),
        })
    }
}

fn populate(mapping: &Mapping, plan: &FillPlan) -> Result<(), TierError> {
    let advise =
        |advice, piece: &Piece| mapping.file(piece.file).advise(advice, piece.offset, piece.len);
    // Hints first: they queue the edges' reads and return. A refused hint costs only time,
    // since the populate below reads what is missing.
    let hint = || plan.edges.par_iter().for_each(|piece| drop(advise(Advice::WillNeed, piece)));
    let windows = || {
        plan.windows.par_iter().try_for_each(|piece| {
            let random = advise(Advice::Random, piece);
            let filled = random.and_then(|()| advise(Advice::PopulateRead, piece));
            let normal = advise(Advice::Normal, piece);
            filled
                .and(normal)
                .map_err(|source| piece_error(mapping.file(piece.file), *piece, source))
        })
    };
    let ((), windows) = rayon::join(hint, windows);
    windows?;
    plan.edges.par_iter().try_for_each(|piece| {
        advise(Advice::PopulateRead, piece)
            .map_err(|source| piece_error(mapping.file(piece.file), *piece, source))
    })
}

/// Read a piece through the page cache and throw the copy away.
fn read_through(file: &MappedFile, piece: Piece) -> Result<(), TierError> {
    const CHUNK: usize = 256 << 10; // stays in the L2 cache, so the copy costs little
    let mut scratch = vec![0_u8; CHUNK.min(piece.len as usize)];
    let mut done = 0;
    while done < piece.len {
        let want = scratch.len().min((piece.len - done) as usize);
        match file.file.read_at(&mut scratch[..want], piece.offset + done) {
            Ok(0) => {
                return Err(piece_error(file, piece, io::ErrorKind::UnexpectedEof.into()));
            }
            Ok(read) => done += read as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(piece_error(file, piece, error)),
        }
    }
    Ok(())
}

pub(crate) fn piece_error(file: &MappedFile, piece: Piece, source: io::Error) -> TierError {
    let file_len = file.file.metadata().map_or(0, |metadata| metadata.len());
    TierError::Fill {
        path: file.path.clone(),
        offset: piece.offset,
        len: piece.len,
        file_len,
        source,
    }
}

//! Cold to warm: a whole route's missing extents at once, in large pieces, from several threads,
//! before the compute touches any of them.
//!
//! Why not simply touch the mapping: a fault reads 3-4 times the bytes at queue depth 1.
//! Why `MADV_RANDOM` only around the fill: on a `VM_HUGEPAGE` range it keeps the fault from
//! reading the next window too, but left on it hides the mapping from the kernel's recency.

pub(crate) mod direct;
mod method;
mod plan;
#[cfg(feature = "io-uring")]
mod uring;
#[cfg(not(feature = "io-uring"))]
#[path = "no_uring.rs"]
mod uring;

pub use method::FillMethod;
pub(crate) use plan::{FillPlan, Piece, PlanLimits};

use crate::error::TierError;
use crate::notice::Notice;
use crate::pool::map::{MappedFile, Mapping};
use memmap2::Advice;
use rayon::iter::{IntoParallelIterator, IntoParallelRefIterator, ParallelIterator};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::io;
use std::os::unix::fs::FileExt;
use uring::Ring;

/// Threads that only wait for storage, and the method they use.
#[derive(Debug)]
pub(crate) struct Filler {
    pool: ThreadPool,
    method: FillMethod,
    /// For [`FillMethod::Uring`].
    ring: Option<Ring>,
}

impl Filler {
    /// `asked` is used or refused; without it the best method is found, and `notices` hears what
    /// could not be had.
    pub(crate) fn new(
        threads: usize,
        asked: Option<FillMethod>,
        notices: &mut Vec<Notice>,
    ) -> Result<Self, TierError> {
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|index| format!("tier-fill-{index}"))
            .build()
            .map_err(|source| TierError::Threads { threads, reason: source.to_string() })?;
        let kernel = Kernel {
            populate: Advice::PopulateRead.is_supported(),
            ring: cfg!(feature = "io-uring"),
        };
        let (method, ring) = choose(asked, kernel, || Ring::new(threads), notices)?;
        Ok(Self { pool, method, ring })
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
        if let Some(ring) = &self.ring {
            return ring.fill(mapping, plan);
        }
        self.run(|| match self.method {
            FillMethod::Read => [&plan.windows, &plan.edges]
                .into_par_iter()
                .flat_map(IntoParallelRefIterator::par_iter)
                .try_for_each(|piece| read_through(mapping, *piece)),
            FillMethod::WillNeed if !Advice::PopulateRead.is_supported() => {
                hint(mapping, &plan.edges);
                plan.edges.par_iter().try_for_each(|piece| read_through(mapping, *piece))
            }
            FillMethod::Populate | FillMethod::WillNeed | FillMethod::Uring => {
                populate(mapping, plan)
            }
        })
    }
}

/// What a choice of method depends on.
#[derive(Clone, Copy)]
struct Kernel {
    /// It has `MADV_POPULATE_READ`.
    populate: bool,
    /// A ring is worth a try even if nobody asked for one.
    ring: bool,
}

fn choose<R>(
    asked: Option<FillMethod>,
    kernel: Kernel,
    ring: impl FnOnce() -> io::Result<R>,
    notices: &mut Vec<Notice>,
) -> Result<(FillMethod, Option<R>), TierError> {
    let unavailable = |method: FillMethod| {
        move |source| TierError::FillUnavailable { method: method.name(), source }
    };
    match asked {
        Some(FillMethod::Uring) => {
            let ring = ring().map_err(unavailable(FillMethod::Uring))?;
            Ok((FillMethod::Uring, Some(ring)))
        }
        Some(FillMethod::Populate) if !kernel.populate => {
            let source = io::Error::new(io::ErrorKind::Unsupported, NO_POPULATE);
            Err(unavailable(FillMethod::Populate)(source))
        }
        Some(method) => Ok((method, None)),
        None if !kernel.populate => {
            let text = format!("missing pages are read into a scratch buffer: {NO_POPULATE}");
            notices.push(Notice::warning(text));
            Ok((FillMethod::Read, None))
        }
        None if kernel.ring => match ring() {
            Ok(ring) => Ok((FillMethod::Uring, Some(ring))),
            Err(error) => {
                let text = format!("missing pages are read by threads: no io_uring: {error}");
                notices.push(Notice::warning(text));
                Ok((FillMethod::Populate, None))
            }
        },
        None => Ok((FillMethod::Populate, None)),
    }
}

const NO_POPULATE: &str = "this kernel has no MADV_POPULATE_READ (Linux 5.14)";

fn advise(mapping: &Mapping, advice: Advice, piece: &Piece) -> io::Result<()> {
    mapping.file(piece.file).advise(advice, piece.offset, piece.len)
}

/// Queue the reads of `edges` and return. A refused hint costs only time, since what is missing
/// is read afterwards.
fn hint(mapping: &Mapping, edges: &[Piece]) {
    edges.par_iter().for_each(|piece| drop(advise(mapping, Advice::WillNeed, piece)));
}

fn populate(mapping: &Mapping, plan: &FillPlan) -> Result<(), TierError> {
    let failed = |piece: Piece| move |source| piece_error(mapping.file(piece.file), piece, source);
    let windows = || {
        plan.windows.par_iter().try_for_each(|piece| {
            let random = advise(mapping, Advice::Random, piece);
            let filled = random.and_then(|()| advise(mapping, Advice::PopulateRead, piece));
            let normal = advise(mapping, Advice::Normal, piece);
            filled.and(normal).map_err(failed(*piece))
        })
    };
    // Hints first: they only queue reads.
    let ((), windows) = rayon::join(|| hint(mapping, &plan.edges), windows);
    windows?;
    plan.edges
        .par_iter()
        .try_for_each(|piece| advise(mapping, Advice::PopulateRead, piece).map_err(failed(*piece)))
}

/// Read a piece through the page cache and throw the copy away.
fn read_through(mapping: &Mapping, piece: Piece) -> Result<(), TierError> {
    const CHUNK: usize = 256 << 10; // stays in the L2 cache, so the copy costs little
    let mapped = mapping.file(piece.file);
    let file = mapping.handle(piece.file)?;
    let mut scratch = vec![0_u8; CHUNK.min(piece.len as usize)];
    let mut done = 0;
    while done < piece.len {
        let want = scratch.len().min((piece.len - done) as usize);
        match file.read_at(&mut scratch[..want], piece.offset + done) {
            Ok(0) => {
                return Err(piece_error(mapped, piece, io::ErrorKind::UnexpectedEof.into()));
            }
            Ok(read) => done += read as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(piece_error(mapped, piece, error)),
        }
    }
    Ok(())
}

pub(crate) fn piece_error(file: &MappedFile, piece: Piece, source: io::Error) -> TierError {
    let file_len = std::fs::metadata(&file.path).map_or(0, |metadata| metadata.len());
    TierError::Fill {
        path: file.path.clone(),
        offset: piece.offset,
        len: piece.len,
        file_len,
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Kernel = Kernel { populate: false, ring: true };
    const NEW: Kernel = Kernel { populate: true, ring: true };
    const NO_RING: Kernel = Kernel { populate: true, ring: false };

    fn refused() -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EPERM))
    }

    #[test]
    fn what_is_asked_for_is_used_or_refused_with_the_reason() {
        let mut notices = Vec::new();
        for method in [FillMethod::Read, FillMethod::WillNeed] {
            let found = choose(Some(method), OLD, refused, &mut notices).unwrap();
            assert_eq!(found, (method, None));
        }
        for (method, kernel, why) in [
            (FillMethod::Uring, NEW, "os error 1"),
            (FillMethod::Populate, OLD, "MADV_POPULATE_READ"),
        ] {
            let error = choose(Some(method), kernel, refused, &mut notices).unwrap_err();
            assert_eq!(error.kind(), "device-unavailable");
            let text = error.to_string();
            assert!(text.contains(method.name()) && text.contains(why), "{text}");
        }
        assert_eq!(notices, []);
    }

    #[test]
    fn the_best_there_is_and_one_notice_of_what_is_not() {
        for (kernel, ring, wanted, told) in [
            (NEW, Ok(()), (FillMethod::Uring, Some(())), None),
            (NEW, refused(), (FillMethod::Populate, None), Some("io_uring")),
            (NO_RING, refused(), (FillMethod::Populate, None), None),
            (OLD, refused(), (FillMethod::Read, None), Some("MADV_POPULATE_READ")),
        ] {
            let mut notices = Vec::new();
            assert_eq!(choose(None, kernel, || ring, &mut notices).unwrap(), wanted);
            assert_eq!(notices.len(), usize::from(told.is_some()), "{notices:?}");
            if let Some(told) = told {
                assert!(notices[0].warning && notices[0].text.contains(told), "{notices:?}");
            }
        }
    }
}

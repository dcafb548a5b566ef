//! Cold to warm: a whole route's missing extents at once, in large pieces, from several threads,
//! each expert before the compute touches it.
//!
//! Why not simply touch the mapping: a fault reads 3-4 times the bytes at queue depth 1.
//! Why `MADV_RANDOM` only around the fill: on a `VM_HUGEPAGE` range it keeps the fault from
//! reading the next window too, but left on it hides the mapping from the kernel's recency.

pub(crate) mod advice;
mod arrival;
pub(crate) mod buffer;
pub(crate) mod direct;
mod method;
mod plan;
pub(crate) mod priority;
mod route;
#[cfg(feature = "io-uring")]
mod uring;
#[cfg(not(feature = "io-uring"))]
#[path = "no_uring.rs"]
mod uring;

pub(crate) use arrival::Arrival;
pub use method::FillMethod;
pub(crate) use plan::{FillPlan, Piece, PlanLimits};

use crate::error::TierError;
use crate::notice::Notice;
use crate::pool::map::{MappedFile, Mapping};
use memmap2::Advice;
use rayon::{ThreadPool, ThreadPoolBuilder};
use route::RouteFill;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use uring::Ring;

/// Threads that only wait for storage, and the method they use.
#[derive(Debug)]
pub(crate) struct Filler {
    pool: ThreadPool,
    method: FillMethod,
    /// For [`FillMethod::Uring`].
    ring: Option<Arc<Ring>>,
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
        Ok(Self { pool, method, ring: ring.map(Arc::new) })
    }

    pub(crate) fn method(&self) -> FillMethod {
        self.method
    }

    /// Have `job` run on a fill thread, behind those that were asked for before.
    pub(crate) fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        self.pool.spawn_fifo(job);
    }

    /// Threads that wait for storage.
    pub(crate) fn threads(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// Begin to bring in the experts of `plans`, one plan an expert, and return. `closed` hears
    /// of each expert's number just before it arrives, or after its reads were given up.
    pub(crate) fn start(
        &self,
        mapping: &Arc<Mapping>,
        plans: Vec<FillPlan>,
        closed: Box<dyn Fn(usize) + Send + Sync>,
    ) -> Arc<Arrival> {
        RouteFill::new(self, mapping, plans, closed).start(self)
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

/// Queue the reads of a piece and return. A refused hint costs only time, since what is missing
/// is read afterwards.
fn hint(mapping: &Mapping, edge: &Piece) {
    drop(advise(mapping, Advice::WillNeed, edge));
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

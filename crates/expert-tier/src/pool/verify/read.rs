//! One pass over all bytes, by several threads in the order of the files.

use super::scan;
use super::units::{Job, PIECE_BYTES, Plan, Use};
use crate::error::TierError;
use crate::pool::{Dtype, Extent, Pool, Quantization};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

/// Values of one unit that are not finite.
#[derive(Clone, Copy, Debug)]
pub(super) struct NotFinite {
    pub(super) unit: usize,
    pub(super) count: u64,
    /// The first one, counted from the start of the tensor.
    pub(super) element: u64,
    pub(super) infinite: bool,
}

/// Bytes that could not be read.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) file: u32,
    pub(super) start: u64,
    pub(super) end: u64,
    /// The system's answer; `None`: the file ended before them.
    pub(super) source: Option<io::Error>,
}

/// What the threads came across. Most pools leave all but `shapes` empty.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) not_finite: Vec<NotFinite>,
    /// Units with scales that are not above zero.
    pub(super) scales: Vec<usize>,
    /// Stored logical shapes.
    pub(super) shapes: Vec<(usize, [i64; 2])>,
    pub(super) failed: Vec<Failed>,
}

impl Findings {
    fn append(&mut self, mut other: Self) {
        self.not_finite.append(&mut other.not_finite);
        self.scales.append(&mut other.scales);
        self.shapes.append(&mut other.shapes);
        self.failed.append(&mut other.failed);
    }

    /// The order must not depend on which thread was faster.
    fn sort(&mut self) {
        self.not_finite.sort_unstable_by_key(|found| (found.unit, found.element));
        self.scales.sort_unstable();
        self.scales.dedup();
        self.shapes.sort_unstable();
        self.failed.sort_by_key(|failed| (failed.file, failed.start));
    }
}

/// The pass: what the threads share.
pub(super) struct Pass<'a, P> {
    pool: &'a Pool,
    plan: &'a Plan,
    progress: &'a P,
    packed_zero: Option<u8>,
    next_job: AtomicUsize,
    /// Bytes behind us, read or not.
    passed: AtomicU64,
    read: AtomicU64,
    /// Units that cannot be called zero.
    not_zero: Vec<AtomicBool>,
}

impl<'a, P: Fn(u64, u64) + Sync> Pass<'a, P> {
    pub(super) fn new(pool: &'a Pool, plan: &'a Plan, progress: &'a P) -> Self {
        let quantization = pool.config().map(|config| &config.quantization);
        let packed_zero = match quantization {
            // Stored values are shifted to be positive: zero is 8 of 0 to 15.
            Some(Quantization::PackQuantized { bits: 4, symmetric: true, .. }) => Some(0x88),
            _ => None,
        };
        Self {
            pool,
            plan,
            progress,
            packed_zero,
            next_job: AtomicUsize::new(0),
            passed: AtomicU64::new(0),
            read: AtomicU64::new(0),
            not_zero: plan.units.iter().map(|_| AtomicBool::new(false)).collect(),
        }
    }

    /// Reads everything; no fault in the data stops it.
    pub(super) fn run(&self, threads: usize) -> Result<Findings, TierError> {
        let threads = threads.min(self.plan.jobs.len()).max(1);
        let mut findings = thread::scope(|scope| {
            let started: Result<Vec<_>, io::Error> = (0..threads)
                .map(|index| {
                    let name = format!("tier-verify-{index}");
                    thread::Builder::new().name(name).spawn_scoped(scope, || self.work())
                })
                .collect();
            let started = started.map_err(|source| {
                // Those that run find no more jobs.
                self.next_job.store(self.plan.jobs.len(), Ordering::Relaxed);
                TierError::Threads { threads, reason: source.to_string() }
            })?;
            let mut all = Findings::default();
            for handle in started {
                match handle.join() {
                    Ok(found) => all.append(found),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            Ok(all)
        })?;
        findings.sort();
        self.forget_files();
        Ok(findings)
    }

    /// Bytes that were read, headers included.
    pub(super) fn bytes_read(&self) -> u64 {
        self.plan.header_bytes + self.read.load(Ordering::Relaxed)
    }

    /// Whether every byte of a unit was read and all its values are zero.
    pub(super) fn is_zero(&self, unit: usize) -> bool {
        !self.not_zero[unit].load(Ordering::Relaxed)
    }

    fn work(&self) -> Findings {
        let mut findings = Findings::default();
        let mut buffer = Vec::new();
        // Each thread has handles of its own: the kernel's read-ahead state lives in them.
        let mut open: Option<(u32, File)> = None;
        let total = self.plan.data_bytes();
        loop {
            let Some(job) = self.plan.jobs.get(self.next_job.fetch_add(1, Ordering::Relaxed))
            else {
                return findings;
            };
            if open.as_ref().is_none_or(|(file, _)| *file != job.file) {
                open = match self.open(job.file) {
                    Ok(file) => Some((job.file, file)),
                    Err(source) => {
                        self.fail(job, job.bytes.start, Some(source), &mut findings);
                        None
                    }
                };
            }
            if let Some((_, file)) = &open {
                self.read_job(file, job, &mut buffer, &mut findings);
            }
            let len = job.bytes.end - job.bytes.start;
            let passed = self.passed.fetch_add(len, Ordering::Relaxed) + len;
            (self.progress)(passed, total);
        }
    }

    fn open(&self, index: u32) -> io::Result<File> {
        let file = File::open(self.pool.path_of(index))?;
        // Advice: without it the data is the same.
        let _ = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_SEQUENTIAL);
        Ok(file)
    }

    fn read_job(&self, file: &File, job: &Job, buffer: &mut Vec<u8>, findings: &mut Findings) {
        let len = (job.bytes.end - job.bytes.start) as usize;
        if buffer.len() < len {
            buffer.resize(len.max(PIECE_BYTES as usize), 0);
        }
        let (read, stopped) = read_up_to(file, &mut buffer[..len], job.bytes.start);
        self.read.fetch_add(read as u64, Ordering::Relaxed);
        forget(file, job.bytes.start, len as u64);
        let bytes = &buffer[..read];
        for unit in job.units.clone() {
            self.look(unit, job, bytes, findings);
        }
        if read < len {
            self.fail(job, job.bytes.start + read as u64, stopped, findings);
        }
    }

    /// Looks at the part of `unit` that lies in `bytes`, the read bytes of `job`.
    fn look(&self, index: usize, job: &Job, bytes: &[u8], findings: &mut Findings) {
        let unit = &self.plan.units[index];
        let start = unit.extent.offset.max(job.bytes.start);
        let end = unit.extent.end().min(job.bytes.start + bytes.len() as u64);
        if start >= end {
            return;
        }
        let at = |offset: u64| (offset - job.bytes.start) as usize;
        let bytes = &bytes[at(start)..at(end)];
        let scan = scan::scan(unit.dtype, bytes, self.packed_zero);
        if !scan.zero {
            self.not_zero[index].store(true, Ordering::Relaxed);
        }
        if scan.not_finite > 0 {
            let (size, each) = (unit.dtype.size_bytes(), unit.dtype.block_elements());
            let before = (start - unit.extent.offset) / size;
            findings.not_finite.push(NotFinite {
                unit: index,
                count: scan.not_finite,
                element: unit.element + (before + scan.first as u64) * each,
                infinite: scan.infinite,
            });
        }
        match unit.purpose {
            Use::Scale if scan::zeros(unit.dtype, bytes) > 0 => findings.scales.push(index),
            Use::Shape(..) if bytes.len() as u64 == unit.extent.len => {
                // Anything but two integers stays [-1, -1], which no weight has.
                let shape = shape(unit.dtype, bytes).unwrap_or([-1, -1]);
                findings.shapes.push((index, shape));
            }
            _ => {}
        }
    }

    fn fail(&self, job: &Job, start: u64, source: Option<io::Error>, findings: &mut Findings) {
        for unit in job.units.clone() {
            if self.plan.units[unit].extent.end() > start {
                self.not_zero[unit].store(true, Ordering::Relaxed);
            }
        }
        findings.failed.push(Failed { file: job.file, start, end: job.bytes.end, source });
    }

    /// Pages that two pieces share, and folios that were in use, are still there.
    fn forget_files(&self) {
        for (index, _) in (0_u32..).zip(&self.plan.readable).filter(|(_, readable)| **readable) {
            if let Ok(file) = File::open(self.pool.path_of(index)) {
                forget(&file, 0, 0);
            }
        }
    }
}

/// Asks the page cache to drop a range (`len` 0: to the end). Advice: refusal changes nothing.
fn forget(file: &File, offset: u64, len: u64) {
    let (offset, len) = (offset.cast_signed(), len.cast_signed());
    let _ = posix_fadvise(file, offset, len, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
}

/// Fills `buffer` as far as possible; says how far that was and what was in the way (`None`
/// for the end of the file).
fn read_up_to(file: &File, buffer: &mut [u8], offset: u64) -> (usize, Option<io::Error>) {
    let mut read = 0;
    while read < buffer.len() {
        match file.read_at(&mut buffer[read..], offset + read as u64) {
            Ok(0) => return (read, None),
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (read, Some(error)),
        }
    }
    (read, None)
}

/// A whole extent, for the few that need a second look.
pub(super) fn read_extent(pool: &Pool, extent: Extent) -> io::Result<Vec<u8>> {
    let file = File::open(pool.path_of(extent.file))?;
    let mut bytes = vec![0; extent.len as usize];
    file.read_exact_at(&mut bytes, extent.offset)?;
    forget(&file, extent.offset, extent.len);
    Ok(bytes)
}

/// Two integers.
fn shape(dtype: Dtype, bytes: &[u8]) -> Option<[i64; 2]> {
    let pair = |a: i64, b: i64| Some([a, b]);
    match (dtype, bytes.len()) {
        (Dtype::I64, 16) => {
            let (words, _) = bytes.as_chunks::<8>();
            pair(i64::from_le_bytes(words[0]), i64::from_le_bytes(words[1]))
        }
        (Dtype::I32, 8) => {
            let (words, _) = bytes.as_chunks::<4>();
            pair(i32::from_le_bytes(words[0]).into(), i32::from_le_bytes(words[1]).into())
        }
        _ => None,
    }
}

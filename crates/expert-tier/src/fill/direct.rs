//! The unbuffered comparators: reads into buffers of ours that leave nothing in the page cache.
//!
//! What a file system calls direct need not be: some take `O_DIRECT` and read through the cache
//! all the same. So each is tried once when the tier opens, on a page that a probe found absent,
//! and called unbuffered only if the probe still finds it absent afterwards.
#![expect(unsafe_code, reason = "island 2: statx and preadv2 have no safe wrapper for these flags")]

use super::buffer::{BufferExpert, allocate};
use super::{Arrival, Filler, Piece, piece_error};
use crate::admission::Admission;
use crate::error::TierError;
use crate::host::{FsKind, Storage, logical_block_bytes, page_bytes};
use crate::observe::SystemRoot;
use crate::pool::handles::{Handles, OpenAs, refused};
use crate::pool::map::{HUGE_BYTES, Mapping};
use crate::pool::{ExpertLayout, Extent, Pool};
use crate::residency::{ProbeKind, ResidencyProbe};
use memmap2::MmapMut;
use parking_lot::Mutex;
use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};
use router_trace::ExpertId;
use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Block size where neither the file system nor the device says one: the largest in use.
const FALLBACK_BLOCK_BYTES: u64 = 4096;

/// One read: large enough for a device's full rate, small enough to spread over the threads.
pub(super) const READ_BYTES: usize = 1 << 20;

/// How bytes get past the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Method {
    Direct,
    DontCache,
    /// Not past it at all: copies out of the page cache, as most programs read.
    Copy,
    /// The same without read-ahead.
    CopyRandom,
}

/// Reads experts into buffers of ours.
#[derive(Debug)]
pub(crate) struct BufferReader {
    method: Method,
    handles: Handles,
    /// By file: offsets and lengths of reads are multiples of this.
    block_bytes: Vec<u64>,
    pub(super) page_bytes: u64,
    /// The file systems of which no absent page could be had to watch.
    unproved: usize,
    pub(super) spare: Mutex<Vec<MmapMut>>,
}

impl Method {
    /// The method of an arm; `None` for arms that use the mapping.
    pub(crate) fn of(admission: Admission) -> Option<Self> {
        match admission {
            Admission::Admit | Admission::DropBehind | Admission::Auto => None,
            Admission::Direct => Some(Self::Direct),
            Admission::DontCache => Some(Self::DontCache),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Direct => Admission::Direct.name(),
            Self::DontCache => Admission::DontCache.name(),
            Self::Copy => "copying",
            Self::CopyRandom => "copying without read-ahead",
        }
    }

    fn read_at(self, file: &File, target: &mut [u8], offset: u64) -> io::Result<usize> {
        match self {
            Self::Direct | Self::Copy | Self::CopyRandom => file.read_at(target, offset),
            Self::DontCache => read_dont_cache(file, target, offset),
        }
    }
}

impl BufferReader {
    /// Find out how each file wants to be read, and on each file system that it does what the
    /// method claims.
    pub(crate) fn open(
        pool: &Pool,
        method: Method,
        mapping: &Mapping,
        probes: &[ResidencyProbe],
    ) -> Result<Self, TierError> {
        let open_as = match method {
            Method::Direct => OpenAs::Direct,
            Method::DontCache | Method::CopyRandom => OpenAs::Random,
            Method::Copy => OpenAs::Plain,
        };
        let handles = Handles::new(pool, open_as);
        let page_bytes = page_bytes();
        let mut reader = Self {
            method,
            handles,
            block_bytes: Vec::with_capacity(probes.len()),
            page_bytes,
            unproved: 0,
            spare: Mutex::default(),
        };
        let mut tried = HashSet::new();
        for ((index, mapped), probe) in (0_u32..).zip(mapping.files()).zip(probes) {
            let block_bytes = match method {
                Method::Direct => reader.direct_block_bytes(mapping, index)?,
                Method::DontCache | Method::Copy | Method::CopyRandom => page_bytes,
            };
            reader.block_bytes.push(block_bytes);
            let claims = !matches!(method, Method::Copy | Method::CopyRandom);
            if claims && mapped.len() > 0 && tried.insert(mapped.dev) {
                reader.unproved += usize::from(!reader.try_out(mapping, *probe, index)?);
            }
        }
        Ok(reader)
    }

    /// How the bytes are read, for reports.
    pub(crate) fn channel(&self) -> String {
        let least = self.block_bytes.iter().min().copied().unwrap_or(self.page_bytes);
        let most = self.block_bytes.iter().max().copied().unwrap_or(self.page_bytes);
        let doubt = if self.unproved > 0 { ", not proved" } else { "" };
        match self.method {
            Method::Direct if least == most => format!("o-direct (align {least}{doubt})"),
            Method::Direct => format!("o-direct (align {least} to {most}{doubt})"),
            Method::DontCache if self.unproved > 0 => "rwf-dontcache (not proved)".to_owned(),
            Method::DontCache => "rwf-dontcache".to_owned(),
            Method::Copy => "pread copies".to_owned(),
            Method::CopyRandom => "pread copies without read-ahead".to_owned(),
        }
    }

    /// File systems on which it could not be shown that nothing is cached.
    pub(crate) fn unproved(&self) -> usize {
        self.unproved
    }

    /// Give the spare buffers back to the system.
    pub(crate) fn give_back(&self) {
        let spare = std::mem::take(&mut *self.spare.lock());
        // Unmapping takes its time: not under the lock.
        drop(spare);
    }

    /// Begin to read `ids` of `pool`, in this order, each into a buffer of its own.
    pub(crate) fn start(
        self: &Arc<Self>,
        filler: &Filler,
        mapping: &Arc<Mapping>,
        pool: &Pool,
        ids: &[ExpertId],
    ) -> Result<Arc<Arrival>, TierError> {
        let mut queue = VecDeque::with_capacity(ids.len());
        let mut most_pieces = 1;
        for (index, &id) in ids.iter().enumerate() {
            let expert = pool.layout().expert(id).expect("the caller asked the layout");
            let buffer = self.reserve(expert)?;
            most_pieces = most_pieces.max(expert.nominal_bytes().div_ceil(READ_BYTES as u64));
            queue.push_back((index, id, buffer));
        }
        let arrival = Arc::new(Arrival::new(ids.len()));
        // As many experts at once as keep every thread reading, and one more: the fewer, the
        // sooner the first is there.
        let at_once = filler.threads().div_ceil(most_pieces as usize) + 1;
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..at_once.min(ids.len()) {
            let (reader, mapping, pool) = (Arc::clone(self), Arc::clone(mapping), pool.clone());
            let (queue, arrival) = (Arc::clone(&queue), Arc::clone(&arrival));
            filler.spawn(move || {
                loop {
                    let next = queue.lock().pop_front();
                    let Some((index, id, mut buffer)) = next else { return };
                    let expert = pool.layout().expert(id).expect("asked above");
                    if !arrival.stopped()
                        && let Err(error) = reader.fill(&mapping, &mut buffer, expert)
                    {
                        arrival.fail(error);
                    }
                    arrival.close(index, Some(buffer));
                }
            });
        }
        Ok(arrival)
    }

    /// On a fill thread: the others help.
    fn fill(
        &self,
        mapping: &Mapping,
        buffer: &mut BufferExpert,
        expert: &ExpertLayout,
    ) -> Result<(), TierError> {
        buffer
            .pieces(expert)
            .into_par_iter()
            .with_max_len(1)
            .try_for_each(|(piece, target)| self.read_piece(mapping, piece, target))
    }

    fn reserve(self: &Arc<Self>, expert: &ExpertLayout) -> Result<BufferExpert, TierError> {
        let mut starts = Vec::with_capacity(expert.extents.len());
        let mut total = 0_usize;
        for extent in &expert.extents {
            starts.push(total);
            total += self.aligned(*extent).1.next_multiple_of(self.page_bytes) as usize;
        }
        let found = {
            let mut spare = self.spare.lock();
            let position = spare.iter().position(|buffer| buffer.len() >= total);
            position.map(|position| spare.swap_remove(position))
        };
        let buffer = match found {
            Some(buffer) => buffer,
            None => allocate(total)?,
        };
        Ok(BufferExpert::new(buffer, Arc::clone(self), starts.into()))
    }

    /// Start and length of the aligned range around `extent`.
    pub(super) fn aligned(&self, extent: Extent) -> (u64, u64) {
        let block = self.block_bytes[extent.file as usize];
        let start = extent.offset / block * block;
        (start, extent.end().next_multiple_of(block) - start)
    }

    /// `target` is `piece` rounded up to whole blocks, which may lie past the end of the file.
    fn read_piece(
        &self,
        mapping: &Mapping,
        piece: Piece,
        target: &mut [u8],
    ) -> Result<(), TierError> {
        let mapped = mapping.file(piece.file);
        let file = self.handles.get(piece.file)?;
        let block = self.block_bytes[piece.file as usize] as usize;
        let mut done = 0_usize;
        while (done as u64) < piece.len {
            // After a short read, again from the start of the block in which it stopped.
            let from = done / block * block;
            match self.method.read_at(&file, &mut target[from..], piece.offset + from as u64) {
                Ok(read) if from + read <= done => {
                    return Err(piece_error(mapped, piece, io::ErrorKind::UnexpectedEof.into()));
                }
                Ok(read) => done = from + read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(piece_error(mapped, piece, error)),
            }
        }
        Ok(())
    }

    /// What offsets and lengths must be multiples of: the file system's own word, else the
    /// device's block, else the largest block in use.
    fn direct_block_bytes(&self, mapping: &Mapping, index: u32) -> Result<u64, TierError> {
        let mapped = mapping.file(index);
        let file = self.handles.get(index)?;
        let (memory, offset) = match dio_align(&file) {
            Some((memory, offset)) => (memory, offset),
            None => {
                let root = SystemRoot::default();
                let device = logical_block_bytes(mapped.dev, &mapped.path, &root);
                let block = device.filter(|bytes| bytes.is_power_of_two());
                let block = block.unwrap_or(FALLBACK_BLOCK_BYTES);
                (block, block)
            }
        };
        // Buffers begin at a page, and each extent in them.
        let usable = offset.is_power_of_two() && memory <= self.page_bytes;
        if usable {
            return Ok(offset);
        }
        Err(self.unavailable(
            mapping,
            index,
            format!("statx says: memory aligned to {memory}, offsets to {offset} (0: none at all)"),
            None,
        ))
    }

    /// Read one page that is absent and look whether it still is. `false` if no page could be
    /// made absent, so that nothing can be said.
    fn try_out(
        &self,
        mapping: &Mapping,
        probe: ResidencyProbe,
        index: u32,
    ) -> Result<bool, TierError> {
        let mapped = mapping.file(index);
        let file = self.handles.get(index)?;
        let unit = self.page_bytes.max(self.block_bytes[index as usize]);
        let mut buffer = allocate(unit as usize)?;
        let mut cached = false;
        for offset in candidates(mapped.len(), unit) {
            let len = unit.min(mapped.len() - offset);
            let absent = || -> Result<bool, TierError> {
                Ok(missing_bytes(mapping, probe, index, offset, len)? == len)
            };
            let forget = |offset, len| match mapping.forget(index, offset, len) {
                // A system that keeps its pages is one where this cannot be told.
                Err(TierError::Io { .. }) => Ok(()),
                other => other,
            };
            let mut cold = absent()?;
            if !cold {
                forget(offset, unit)?;
                cold = absent()?;
            }
            if !cold {
                // A page of a 2 MiB folio leaves only with all of it.
                forget(offset / HUGE_BYTES * HUGE_BYTES, HUGE_BYTES)?;
                cold = absent()?;
            }
            if let Err(source) = self.method.read_at(&file, &mut buffer[..unit as usize], offset) {
                return Err(self.read_refused(mapping, index, offset, unit, source));
            }
            // This probe reads what it asks for: it cannot tell who did.
            if cold && probe.kind() != ProbeKind::ReadNoWait {
                if absent()? {
                    return Ok(true);
                }
                cached = true;
            }
        }
        let fs = Storage::probe(&mapped.path, &SystemRoot::default()).ok().map(|found| found.fs);
        let memory = fs.as_ref().is_some_and(|fs| fs.kind == FsKind::Memory);
        if cached || memory {
            let name = fs.map_or_else(String::new, |fs| format!(" ({})", fs.name));
            let reason = format!("reads of this file system{name} are buffered");
            return Err(self.unavailable(mapping, index, reason, None));
        }
        Ok(false)
    }

    fn read_refused(
        &self,
        mapping: &Mapping,
        index: u32,
        offset: u64,
        len: u64,
        source: io::Error,
    ) -> TierError {
        let mapped = mapping.file(index);
        if !refused(&source) {
            let piece = Piece { file: index, offset, len };
            return piece_error(mapped, piece, source);
        }
        let reason = match self.method {
            Method::Direct => {
                let block = self.block_bytes[index as usize];
                format!("reading {len} bytes at {offset}, aligned to {block}, is refused")
            }
            Method::DontCache | Method::Copy | Method::CopyRandom => {
                let fs = Storage::probe(&mapped.path, &SystemRoot::default());
                let fs = fs.map_or_else(|_| "its file system".to_owned(), |found| found.fs.name);
                let kernel = nix::sys::utsname::uname();
                let kernel = kernel.as_ref().map(|name| name.release().to_string_lossy());
                let kernel = kernel.unwrap_or_default();
                format!("{fs} of Linux {kernel} does not take RWF_DONTCACHE (6.14)")
            }
        };
        self.unavailable(mapping, index, reason, Some(source))
    }

    fn unavailable(
        &self,
        mapping: &Mapping,
        index: u32,
        reason: String,
        source: Option<io::Error>,
    ) -> TierError {
        let path = mapping.file(index).path.clone();
        TierError::DirectUnavailable { path, reads: self.method.name(), reason, source }
    }
}

/// Bytes of a range of the file that are not in the page cache.
pub(crate) fn missing_bytes(
    mapping: &Mapping,
    probe: ResidencyProbe,
    index: u32,
    offset: u64,
    len: u64,
) -> Result<u64, TierError> {
    let mapped = mapping.file(index);
    let handle = if probe.needs_file() { Some(mapping.handle(index)?) } else { None };
    probe.missing(handle.as_deref(), mapped.map(), offset, len).map_err(|source| TierError::Io {
        path: mapped.path.clone(),
        operation: "probe",
        source,
    })
}

/// Pages to try: the middle of the file is less likely to be in use than its header.
fn candidates(len: u64, unit: u64) -> Vec<u64> {
    let mut offsets: Vec<u64> =
        [len / 2, len / 4 * 3, len - 1, 0].iter().map(|at| at / unit * unit).collect();
    offsets.dedup();
    offsets
}

/// What memory and offsets of direct reads of this file must be aligned to, as the file system
/// says it (Linux 6.1); 0 for offsets means that it does no direct reads.
fn dio_align(file: &File) -> Option<(u64, u64)> {
    let mut answer = std::mem::MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path is a literal with its NUL, and empty with AT_EMPTY_PATH: the call is about
    // the descriptor, which `file` keeps open; the kernel writes one `struct statx` at the last
    // pointer, which is to a live value of that type in this frame, and keeps neither pointer.
    let rc = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            answer.as_mut_ptr(),
        )
    };
    // SAFETY: `zeroed` above: `struct statx` is plain integers, for which all bits zero is a
    // value, and the kernel wrote integers over them.
    let answer = unsafe { answer.assume_init() };
    let known = rc == 0 && answer.stx_mask & libc::STATX_DIOALIGN != 0;
    known.then_some((answer.stx_dio_mem_align.into(), answer.stx_dio_offset_align.into()))
}

fn read_dont_cache(file: &File, target: &mut [u8], offset: u64) -> io::Result<usize> {
    let iov = libc::iovec { iov_base: target.as_mut_ptr().cast(), iov_len: target.len() };
    let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
    // SAFETY: the one vector is `target`, borrowed exclusively until the call returns; the kernel
    // writes bytes into it and keeps no pointer. `file` keeps the descriptor open.
    let rc =
        unsafe { libc::preadv2(file.as_raw_fd(), &raw const iov, 1, offset, libc::RWF_DONTCACHE) };
    usize::try_from(rc).map_err(|_| io::Error::last_os_error())
}

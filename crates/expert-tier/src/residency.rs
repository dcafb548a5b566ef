//! Which bytes of a file are in the page cache: measured, never assumed.
//!
//! Three ways to ask the kernel, because none works everywhere:
//!
//! | probe | asks | precise | where it fails |
//! |---|---|---|---|
//! | `mincore` | page tables of the mapping, then the cache | yes, page by page | claims "all present" for a file that one neither owns nor may write |
//! | `cachestat` | the cache, by descriptor | counts a page from the moment its read *begins* | Linux before 6.5 (`ENOSYS`); the same files (`EPERM`) |
//! | `preadv2(RWF_NOWAIT)` | the cache, by reading the last byte | no: all or nothing, by the last page | file systems without it; starts a read of what is absent |
//!
//! [`ResidencyProbe::choose`] takes the first of them that can be trusted for the file.
//!
//! Why `mincore` goes first although `cachestat` is often cheaper: right after `WILLNEED`
//! of a cold 18 MiB, `mincore` still missed 16 MiB and `cachestat` none, because it counts
//! pages whose read has only been queued. Bytes that a demand would still wait for are not
//! resident. The costs do not decide: microseconds a 4.5 MiB question, median of 201,
//! Linux 6.18.44, ext4, shared machine (`measure_the_cost_of_a_probe` prints the table):
//!
//! | state of the extent | `mincore` | `cachestat` | `preadv2` |
//! |---|---|---|---|
//! | 4 KiB folios, mapped | 2.2 | 11.7 | 0.3 |
//! | 4 KiB folios, cached but not mapped | 28.8 | 11.3 | 0.3 |
//! | 2 MiB folios, mapped | 1.0 | 0.3 | 0.3 |
//! | 2 MiB folios, cached but not mapped | 27.9 | 0.3 | 0.3 |
//! | absent | 11.4 | 0.2 | 0.3 (each call also starts a read) |
//!
//! A warm expert is mapped, so the common question costs 1 to 2 µs, and a missing one is
//! followed by a fill of milliseconds. The dear case is an expert that is cached in 2 MiB
//! folios but was never touched through this mapping: 28 µs, once, until it is mapped.
#![expect(unsafe_code, reason = "the residency system calls have no safe wrapper")]

use crate::host::page_bytes;
use memmap2::MmapOptions;
use serde::Serialize;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

/// Pages that one `mincore` call answers for: 16 MiB of 4 KiB pages, on the stack.
const PAGES_PER_CALL: usize = 4096;

/// A way to ask the kernel what is in its page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProbeKind {
    /// `mincore(2)` on the mapping.
    Mincore,
    /// `cachestat(2)` on the descriptor, since Linux 6.5.
    Cachestat,
    /// `preadv2(2)` of the last byte with `RWF_NOWAIT`.
    ReadNoWait,
}

/// Tells which bytes of one file are in the page cache.
///
/// `Copy`; borrows the file and its mapping for each question and allocates nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResidencyProbe {
    kind: ProbeKind,
    page_bytes: u64,
}

impl ResidencyProbe {
    /// The best probe that tells the truth about `file`, or the `forced` one.
    ///
    /// Asks for the cache state of pages far behind the end of the file: what answers
    /// "present" there would claim so everywhere.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::Unsupported`] if no probe, or not the forced one, works for this
    /// file; the residency of its bytes is then unknown.
    pub fn choose(file: &File, forced: Option<ProbeKind>) -> io::Result<Self> {
        let kinds = match forced {
            Some(kind) => vec![kind],
            None => vec![ProbeKind::Mincore, ProbeKind::Cachestat, ProbeKind::ReadNoWait],
        };
        let page_bytes = page_bytes();
        let mut why = String::from("no residency probe works for this file");
        for kind in kinds {
            let probe = Self { kind, page_bytes };
            match probe.tells_the_truth(file) {
                Ok(true) => return Ok(probe),
                Ok(false) => why.push_str(&format!("; {kind:?}: claims pages that are absent")),
                Err(error) => why.push_str(&format!("; {kind:?}: {error}")),
            }
        }
        Err(io::Error::new(io::ErrorKind::Unsupported, why))
    }

    /// How this probe asks.
    #[must_use]
    pub fn kind(&self) -> ProbeKind {
        self.kind
    }

    /// Bytes of the extent that are not in the page cache, in whole pages, at most `len`.
    ///
    /// `map` is the mapping of `file` from its first byte on. [`ProbeKind::ReadNoWait`]
    /// answers 0 or `len`, by the page of the last byte.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::InvalidInput`] if the extent is not inside the mapping; otherwise
    /// what the kernel answers.
    pub fn missing_bytes(&self, file: &File, map: &[u8], offset: u64, len: u64) -> io::Result<u64> {
        self.missing(Some(file), map, offset, len)
    }

    /// Whether a question needs a descriptor of the file; without, the mapping is enough.
    pub(crate) fn needs_file(&self) -> bool {
        self.kind != ProbeKind::Mincore
    }

    /// The same as [`missing_bytes`](Self::missing_bytes); `file` may be missing if it is not
    /// [needed](Self::needs_file).
    pub(crate) fn missing(
        &self,
        file: Option<&File>,
        map: &[u8],
        offset: u64,
        len: u64,
    ) -> io::Result<u64> {
        let file = || {
            let why = "this probe needs an open file";
            file.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, why))
        };
        let inside = offset.checked_add(len).is_some_and(|end| end <= map.len() as u64);
        if !inside {
            let text = format!(
                "extent of {len} bytes at {offset} is outside the mapping of {} bytes",
                map.len()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        if len == 0 {
            return Ok(0);
        }
        // Outward to whole pages.
        let first = offset / self.page_bytes;
        let pages = (offset + len).div_ceil(self.page_bytes) - first;
        let missing_pages = match self.kind {
            ProbeKind::Mincore => {
                let start = (first * self.page_bytes) as usize;
                let end = (offset + len) as usize;
                pages - mincore_present(&map[start..end], self.page_bytes)?
            }
            ProbeKind::Cachestat => {
                let present =
                    cachestat_present(file()?, first * self.page_bytes, pages * self.page_bytes)?;
                pages.saturating_sub(present)
            }
            ProbeKind::ReadNoWait => {
                if last_byte_present(file()?, offset + len - 1)? {
                    0
                } else {
                    pages
                }
            }
        };
        Ok((missing_pages * self.page_bytes).min(len))
    }

    /// Whether the whole extent is in the page cache.
    ///
    /// # Errors
    ///
    /// As [`missing_bytes`](Self::missing_bytes).
    pub fn is_resident(&self, file: &File, map: &[u8], offset: u64, len: u64) -> io::Result<bool> {
        self.missing_bytes(file, map, offset, len).map(|missing| missing == 0)
    }

    fn tells_the_truth(&self, file: &File) -> io::Result<bool> {
        // No folio reaches this far behind the end: the largest has a few MiB.
        let behind = (file.metadata()?.size() / self.page_bytes) * self.page_bytes + (1 << 30);
        match self.kind {
            ProbeKind::Mincore => {
                let mut options = MmapOptions::new();
                options.offset(behind).len(self.page_bytes as usize);
                // SAFETY: the bytes behind the end of the file are never read: the slice is
                // only handed to `mincore_present`, which uses its address and length.
                let map = unsafe { options.map(file) }?;
                Ok(mincore_present(&map, self.page_bytes)? == 0)
            }
            ProbeKind::Cachestat => Ok(cachestat_present(file, behind, self.page_bytes)? == 0),
            // Reading behind the end says nothing; that the call is known is enough.
            ProbeKind::ReadNoWait => last_byte_present(file, 0).map(|_| true),
        }
    }
}

/// Pages of `range`, which begins at a page of a mapping, that are in the cache.
fn mincore_present(range: &[u8], page_bytes: u64) -> io::Result<u64> {
    let page_bytes = page_bytes as usize;
    // Not zeroed: that would cost as much as the kernel's answer for a small expert.
    let mut answer = [MaybeUninit::<u8>::uninit(); PAGES_PER_CALL];
    let mut present = 0;
    for piece in range.chunks(PAGES_PER_CALL * page_bytes) {
        let pages = piece.len().div_ceil(page_bytes);
        // SAFETY: `mincore` writes one byte a page of the piece, `pages` bytes in all, and
        // `chunks` above makes that at most PAGES_PER_CALL, the length of `answer`. It does
        // not touch the memory of the piece and answers ENOMEM where nothing is mapped.
        let rc = unsafe {
            libc::mincore(piece.as_ptr().cast_mut().cast(), piece.len(), answer.as_mut_ptr().cast())
        };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call succeeded, so the kernel has written one byte a page: the first
        // `pages` of `answer`.
        let answer = unsafe { answer[..pages].assume_init_ref() };
        // Bit 0 alone is defined. Sums that fit into a byte are what the CPU adds many at once.
        let counts = answer.chunks(255).map(|part| part.iter().map(|byte| byte & 1).sum::<u8>());
        present += counts.map(u64::from).sum::<u64>();
    }
    Ok(present)
}

/// `struct cachestat_range` of `linux/mman.h`.
#[repr(C)]
struct CachestatRange {
    offset: u64,
    len: u64,
}

/// `struct cachestat` of `linux/mman.h`, in pages.
#[repr(C)]
#[derive(Default)]
struct Cachestat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Pages of the file's range that are in the cache; `len` must not be 0 (that means "to
/// the end").
fn cachestat_present(file: &File, offset: u64, len: u64) -> io::Result<u64> {
    /// One number on every architecture, as all system calls since 5.1 (alpha aside).
    const SYS_CACHESTAT: libc::c_long = 451;
    debug_assert!(len > 0);
    let range = CachestatRange { offset, len };
    let mut stat = Cachestat::default();
    // SAFETY: both pointers are to live `repr(C)` values of this frame whose layouts are
    // those of `linux/mman.h`; the kernel reads the first, writes the second and keeps
    // neither. `file` keeps the descriptor open.
    let rc = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut stat, 0)
    };
    if rc == 0 { Ok(stat.cached) } else { Err(io::Error::last_os_error()) }
}

/// Whether the byte at `offset` can be read without waiting for the device.
fn last_byte_present(file: &File, offset: u64) -> io::Result<bool> {
    let mut byte = 0_u8;
    let iov = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
    // SAFETY: the one vector is of one byte, `byte`, which outlives the call; `file` keeps
    // the descriptor open.
    let rc =
        unsafe { libc::preadv2(file.as_raw_fd(), &raw const iov, 1, offset, libc::RWF_NOWAIT) };
    if rc >= 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        error => Err(error),
    }
}

#[cfg(test)]
#[path = "residency_tests.rs"]
mod tests;

//! The one mapping: every file of the pool, mapped shared and read-only for the tier's life.
#![expect(unsafe_code, reason = "island 1: mapping files and zapping page-table entries")]

use super::{Extent, Pool};
use crate::error::TierError;
use memmap2::{Advice, Mmap, MmapOptions, UncheckedAdvice};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use std::fs::File;
use std::io;
use std::path::PathBuf;

/// A 2 MiB window: the unit in which the kernel can hold and map a file with one entry.
pub(crate) const HUGE_BYTES: u64 = 2 << 20;

/// The pool's files, mapped.
///
/// **Contract.** The mapping is shared with the page cache: whoever truncates or rewrites a file
/// of a running tier pulls the bytes away under it. Pools are immutable by definition (see the
/// README's limits); [`crate::Tier`] compares each file's identity with the one that was opened
/// before it maps.
#[derive(Debug)]
pub(crate) struct Mapping {
    files: Vec<MappedFile>,
}

#[derive(Debug)]
pub(crate) struct MappedFile {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    /// `None` for an empty file: there is nothing to map.
    map: Option<Mmap>,
    /// Addresses are congruent to file offsets modulo 2 MiB, and the kernel took `MADV_HUGEPAGE`.
    pub(crate) huge: bool,
}

impl Mapping {
    /// Map every file of `pool`. `huge` asks for 2 MiB folios where the kernel has them.
    pub(crate) fn open(pool: &Pool, huge: bool) -> Result<Self, TierError> {
        let files = pool.files().iter().map(|entry| {
            let io_error = |operation| {
                move |source| TierError::Io { path: entry.path.clone(), operation, source }
            };
            let file = File::open(&entry.path).map_err(io_error("open"))?;
            let found = super::FileIdentity::of(&file).map_err(io_error("stat"))?;
            if found != entry.identity {
                return Err(TierError::FileChanged {
                    path: entry.path.clone(),
                    opened: Box::new(entry.identity),
                    found: Box::new(found),
                });
            }
            let map = map_file(&file, found.len).map_err(io_error("map"))?;
            let huge = huge && map.as_ref().is_some_and(ask_for_huge_folios);
            Ok(MappedFile { path: entry.path.clone(), file, map, huge })
        });
        Ok(Self { files: files.collect::<Result<_, _>>()? })
    }

    pub(crate) fn file(&self, index: u32) -> &MappedFile {
        &self.files[index as usize]
    }

    pub(crate) fn files(&self) -> &[MappedFile] {
        &self.files
    }

    /// The bytes of `extent`, which must be one of the layout's: these were checked against the
    /// file's length when the pool was opened, and the length again when it was mapped.
    pub(crate) fn bytes(&self, extent: Extent) -> &[u8] {
        let map = self.file(extent.file).map.as_deref().unwrap_or(&[]);
        &map[extent.offset as usize..extent.end() as usize]
    }
}

impl MappedFile {
    pub(crate) fn map(&self) -> Option<&Mmap> {
        self.map.as_ref()
    }

    fn mapped(&self) -> io::Result<&Mmap> {
        self.map.as_ref().ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))
    }

    /// `madvise` on a byte range; the kernel rounds the start down to a page, memmap2 does that.
    pub(crate) fn advise(&self, advice: Advice, offset: u64, len: u64) -> io::Result<()> {
        self.mapped()?.advise_range(advice, offset as usize, len as usize)
    }

    /// Ask the page cache to forget a range: first the page-table entries (a mapped page is
    /// not dropped), then the pages. Pages that are dirty or held by others stay.
    pub(crate) fn forget(&self, offset: u64, len: u64) -> io::Result<()> {
        if let Some(map) = &self.map {
            // SAFETY: MADV_DONTNEED on a shared file mapping only drops page-table entries; the
            // next touch faults the same file bytes in again (madvise(2)), so slices into the
            // mapping keep their meaning. The mapping is shared and read-only: `map_file`.
            unsafe {
                map.unchecked_advise_range(UncheckedAdvice::DontNeed, offset as usize, len as usize)
            }?;
        }
        let (offset, len) = (offset.cast_signed(), len.cast_signed());
        posix_fadvise(&self.file, offset, len, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
        Ok(())
    }
}

fn map_file(file: &File, len: u64) -> io::Result<Option<Mmap>> {
    if len == 0 {
        return Ok(None);
    }
    let len = usize::try_from(len).map_err(io::Error::other)?;
    // SAFETY: the mapping is read-only and lives as long as the `Mapping` that owns it, which
    // leases keep alive; that nobody truncates or rewrites the file is the contract stated on
    // `Mapping` and checked against the opened identity in `Mapping::open`.
    unsafe { MmapOptions::new().len(len).map(file) }.map(Some)
}

/// Whether the kernel can put 2 MiB folios behind `map`, after asking for them.
fn ask_for_huge_folios(map: &Mmap) -> bool {
    // ext4, XFS and Btrfs place large mappings at 2 MiB themselves; elsewhere the address may be
    // incongruent, and then a huge entry is impossible whatever the folio's size.
    let congruent = (map.as_ptr() as u64).is_multiple_of(HUGE_BYTES);
    congruent && map.advise(Advice::HugePage).is_ok()
}

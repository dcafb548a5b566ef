//! The one mapping: every file of the pool, mapped shared and read-only for the tier's life.
#![expect(unsafe_code, reason = "island 1: mapping files and zapping page-table entries")]

use super::handles::{Handles, OpenAs};
use super::{Extent, Pool};
use crate::error::TierError;
use crate::observe::{ProcessLimits, SystemRoot};
use memmap2::{Advice, Mmap, MmapOptions, UncheckedAdvice};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// A 2 MiB window: the unit in which the kernel can hold and map a file with one entry.
pub(crate) const HUGE_BYTES: u64 = 2 << 20;

/// The pool's files, mapped.
///
/// **Contract.** The mapping is shared with the page cache: whoever truncates or rewrites a file
/// of a running tier pulls the bytes away under it. Pools are immutable by definition (see the
/// README's limits); [`crate::Tier`] compares each file's identity with the one that was opened
/// before it maps.
///
/// A mapping needs no descriptor: files are closed once they are mapped, and opened again for
/// the few calls that want one.
#[derive(Debug)]
pub(crate) struct Mapping {
    files: Vec<MappedFile>,
    handles: Handles,
}

#[derive(Debug)]
pub(crate) struct MappedFile {
    pub(crate) path: PathBuf,
    /// `st_dev` of the file system it lies on.
    pub(crate) dev: u64,
    /// `None` for an empty file: there is nothing to map.
    map: Option<Mmap>,
    /// Addresses are congruent to file offsets modulo 2 MiB, and the kernel took `MADV_HUGEPAGE`.
    pub(crate) huge: bool,
    /// Why not, where it was asked for.
    pub(crate) not_huge: Option<String>,
}

impl Mapping {
    /// Map every file of `pool`. `huge` asks for 2 MiB folios where the kernel has them.
    pub(crate) fn open(pool: &Pool, huge: bool) -> Result<Self, TierError> {
        check_room(pool, &SystemRoot::default())?;
        let handles = Handles::new(pool, OpenAs::Plain);
        let files = (0_u32..).zip(pool.files()).map(|(index, entry)| {
            let file = handles.get(index)?;
            let map = map_file(&file, entry.identity.len).map_err(|source| TierError::Io {
                path: entry.path.clone(),
                operation: "map",
                source,
            })?;
            let asked = map.as_ref().filter(|_| huge).map(ask_for_huge_folios);
            let (huge, not_huge) = match asked {
                None => (false, None),
                Some(Ok(())) => (true, None),
                Some(Err(reason)) => (false, Some(reason)),
            };
            Ok(MappedFile {
                path: entry.path.clone(),
                dev: entry.identity.dev,
                map,
                huge,
                not_huge,
            })
        });
        let files = files.collect::<Result<_, TierError>>()?;
        Ok(Self { files, handles })
    }

    pub(crate) fn file(&self, index: u32) -> &MappedFile {
        &self.files[index as usize]
    }

    pub(crate) fn files(&self) -> &[MappedFile] {
        &self.files
    }

    /// A descriptor of the mapped file; [`TierError::FileChanged`] if another file has taken its
    /// place since.
    pub(crate) fn handle(&self, index: u32) -> Result<Arc<File>, TierError> {
        self.handles.get(index)
    }

    /// The bytes of `extent`, which must be one of the layout's: these were checked against the
    /// file's length when the pool was opened, and the length again when it was mapped.
    pub(crate) fn bytes(&self, extent: Extent) -> &[u8] {
        &self.file(extent.file).map()[extent.offset as usize..extent.end() as usize]
    }

    /// Ask the page cache to forget a range: first the page-table entries (a mapped page is
    /// not dropped), then the pages. Pages that are dirty or held by others stay.
    pub(crate) fn forget(&self, file: u32, offset: u64, len: u64) -> Result<(), TierError> {
        let mapped = self.file(file);
        let handle = self.handle(file)?;
        mapped
            .unmap_pages(offset, len)
            .and_then(|()| {
                let (offset, len) = (offset.cast_signed(), len.cast_signed());
                Ok(posix_fadvise(&handle, offset, len, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?)
            })
            .map_err(|source| TierError::Io {
                path: mapped.path.clone(),
                operation: "evict",
                source,
            })
    }
}

impl MappedFile {
    /// The file's bytes; none for an empty file.
    pub(crate) fn map(&self) -> &[u8] {
        self.map.as_deref().unwrap_or(&[])
    }

    /// Its length when it was mapped.
    pub(crate) fn len(&self) -> u64 {
        self.map().len() as u64
    }

    fn mapped(&self) -> io::Result<&Mmap> {
        self.map.as_ref().ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))
    }

    /// `madvise` on a byte range; the kernel rounds the start down to a page, memmap2 does that.
    pub(crate) fn advise(&self, advice: Advice, offset: u64, len: u64) -> io::Result<()> {
        self.mapped()?.advise_range(advice, offset as usize, len as usize)
    }

    fn unmap_pages(&self, offset: u64, len: u64) -> io::Result<()> {
        let Some(map) = self.map.as_ref().filter(|map| offset < map.len() as u64) else {
            return Ok(());
        };
        // What lies behind the mapping's last page belongs to someone else.
        let len = len.min(map.len() as u64 - offset) as usize;
        // SAFETY: MADV_DONTNEED on a shared file mapping only drops page-table entries; the
        // next touch faults the same file bytes in again (madvise(2)), so slices into the
        // mapping keep their meaning. The mapping is shared and read-only: `map_file`. The range
        // lies inside it: `len` is cut to its end just above.
        unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, offset as usize, len) }
    }
}

/// Refuses before the first file what the kernel would refuse at one of the last, with no other
/// word than that memory is short.
fn check_room(pool: &Pool, root: &SystemRoot) -> Result<(), TierError> {
    let limits = ProcessLimits::read(root);
    let files = pool.files().iter().filter(|file| file.identity.len > 0).count() as u64;
    match (limits.mappings_short(files), limits.mappings) {
        (Some(needed), Ok(most)) => {
            Err(TierError::Mappings { path: pool.root().to_owned(), files, needed, most })
        }
        _ => Ok(()),
    }
}

fn map_file(file: &File, len: u64) -> io::Result<Option<Mmap>> {
    if len == 0 {
        return Ok(None);
    }
    let len = usize::try_from(len).map_err(io::Error::other)?;
    // SAFETY: the mapping is read-only and lives as long as the `Mapping` that owns it, which
    // leases keep alive; that nobody truncates or rewrites the file is the contract stated on
    // `Mapping` and checked against the opened identity by `Handles::get`.
    unsafe { MmapOptions::new().len(len).map(file) }.map(Some)
}

/// Ask for 2 MiB folios behind `map`, or say why the kernel cannot put any there.
fn ask_for_huge_folios(map: &Mmap) -> Result<(), String> {
    // ext4, XFS and Btrfs place large mappings at 2 MiB themselves; elsewhere the address may be
    // incongruent, and then a huge entry is impossible whatever the folio's size.
    let address = map.as_ptr() as u64;
    if !address.is_multiple_of(HUGE_BYTES) {
        return Err(format!("it is mapped at {address:#x}, not at a multiple of 2 MiB"));
    }
    map.advise(Advice::HugePage).map_err(|error| format!("MADV_HUGEPAGE: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_files_than_mappings_are_refused_with_the_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let header = br#"{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}   "#;
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        bytes.extend([1; 8]);
        std::fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
        let pool = Pool::open(dir.path()).unwrap();
        let fake = |most: &str| {
            let root = tempfile::tempdir().unwrap();
            for (file, text) in [("sys/vm/max_map_count", most), ("self/maps", "a\nb\nc\n")] {
                let path = root.path().join("proc").join(file);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            check_room(&pool, &SystemRoot::at(root.path()))
        };
        fake("260").unwrap();
        let error = fake("259").unwrap_err();
        assert_eq!(error.kind(), "limit");
        let text = error.to_string();
        assert!(text.contains("259") && text.contains("sysctl -w vm.max_map_count=260"), "{text}");
    }
}

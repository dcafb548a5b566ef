//! Bytes of a pool as they are on disk, past the tier: buffered, or direct where that works.

use crate::error::TierError;
use crate::pool::{Extent, Pool};
use memmap2::MmapMut;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Offsets, lengths and addresses of direct reads are multiples of this, as every device with
/// 512 or 4096 byte sectors wants; one that wants more refuses, and is then read buffered.
const ALIGN_BYTES: u64 = 4096;

const READ_BYTES: u64 = 1 << 20;

/// How [`read_extent`] read.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct RawRead {
    /// Bytes handed over.
    pub bytes: u64,
    /// Whether they came past the page cache.
    pub direct_io: bool,
    /// Why not, where direct reads were asked for.
    pub not_direct_because: Option<String>,
}

/// Read `extent` of `pool` in order, handing pieces to `sink`; with `direct` past the page cache,
/// or buffered (and saying why) where the file system or the device refuses that.
///
/// # Errors
/// A file that cannot be opened or read, or that ends before the extent does; what `sink` answers.
pub fn read_extent(
    pool: &Pool,
    extent: Extent,
    direct: bool,
    mut sink: impl FnMut(&[u8]) -> io::Result<()>,
) -> Result<RawRead, TierError> {
    let path = pool.path_of(extent.file);
    let mut buffer = MmapMut::map_anon(READ_BYTES as usize).map_err(|source| {
        TierError::Memory { what: "a read buffer", bytes: READ_BYTES as usize, source }
    })?;
    let mut done = 0;
    let refused = if direct {
        match open(path, libc::O_DIRECT) {
            Ok(file) => {
                let read = copy(&file, path, extent, ALIGN_BYTES, &mut buffer, &mut |piece| {
                    done += piece.len() as u64;
                    sink(piece)
                });
                match read {
                    // The first read is where a device says that it wants another alignment.
                    Err(TierError::Fill { source, .. }) if done == 0 && refuses(&source) => source,
                    read => {
                        read?;
                        let bytes = extent.len;
                        return Ok(RawRead { bytes, direct_io: true, not_direct_because: None });
                    }
                }
            }
            Err(error) if refuses(&error) => error,
            Err(source) => return Err(io_error(path, "open", source)),
        }
    } else {
        let file = open(path, 0).map_err(|source| io_error(path, "open", source))?;
        copy(&file, path, extent, 1, &mut buffer, &mut sink)?;
        return Ok(RawRead { bytes: extent.len, direct_io: false, not_direct_because: None });
    };
    let file = open(path, 0).map_err(|source| io_error(path, "open", source))?;
    copy(&file, path, extent, 1, &mut buffer, &mut sink)?;
    let reason = format!("{}: direct reads are refused: {refused}", path.display());
    Ok(RawRead { bytes: extent.len, direct_io: false, not_direct_because: Some(reason) })
}

fn open(path: &Path, flags: i32) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

fn refuses(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::EPERM))
}

fn copy(
    file: &File,
    path: &Path,
    extent: Extent,
    align: u64,
    buffer: &mut [u8],
    sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> Result<(), TierError> {
    let mut at = extent.offset;
    while at < extent.end() {
        let start = at / align * align;
        let wanted = (extent.end() - start).next_multiple_of(align).min(buffer.len() as u64);
        let fail = |source| TierError::Fill {
            path: path.to_owned(),
            offset: at,
            len: extent.end() - at,
            file_len: file.metadata().map_or(0, |metadata| metadata.len()),
            source,
        };
        let read = match file.read_at(&mut buffer[..wanted as usize], start) {
            Ok(read) => read as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(fail(error)),
        };
        let end = (start + read).min(extent.end());
        if end <= at {
            return Err(fail(io::ErrorKind::UnexpectedEof.into()));
        }
        sink(&buffer[(at - start) as usize..(end - start) as usize])
            .map_err(|source| io_error(Path::new("output"), "write", source))?;
        at = end;
    }
    Ok(())
}

fn io_error(path: &Path, operation: &'static str, source: io::Error) -> TierError {
    TierError::Io { path: path.to_owned(), operation, source }
}

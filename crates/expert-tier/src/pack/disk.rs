//! Every change on the disk goes through here, so that tests can end a pack at any of them.

use crate::error::{OutputError, TierError};
use nix::errno::Errno;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A change that is about to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    MakeDir,
    Create,
    SetLen,
    Write(usize),
    Sync,
    Rename,
    Remove,
}

/// A change that a gate does not let pass.
#[derive(Debug)]
pub(super) struct Refusal {
    /// Bytes that still reach the file (a torn write).
    pub(super) written: usize,
    pub(super) error: io::Error,
}

type Gate<'a> = dyn Fn(&Path, Change) -> Result<(), Refusal> + Sync + 'a;

/// The file system, behind a gate.
pub(super) struct Disk<'a> {
    gate: Box<Gate<'a>>,
}

impl<'a> Disk<'a> {
    pub(super) fn new() -> Self {
        Self { gate: Box::new(|_, _| Ok(())) }
    }

    #[cfg(test)]
    pub(super) fn gated(gate: impl Fn(&Path, Change) -> Result<(), Refusal> + Sync + 'a) -> Self {
        Self { gate: Box::new(gate) }
    }

    fn pass(&self, path: &Path, change: Change) -> io::Result<()> {
        (self.gate)(path, change).map_err(|refusal| refusal.error)
    }

    pub(super) fn make_dirs(&self, path: &Path) -> Result<(), TierError> {
        self.pass(path, Change::MakeDir)
            .and_then(|()| fs::create_dir_all(path))
            .map_err(io_error(path, "create"))
    }

    /// Opens a file for reading and writing; `fresh` empties it.
    pub(super) fn open(&self, path: &Path, fresh: bool) -> Result<File, TierError> {
        let open = || {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(fresh).open(path)
        };
        self.pass(path, Change::Create).and_then(|()| open()).map_err(io_error(path, "create"))
    }

    /// The new room is a hole.
    pub(super) fn set_len(&self, file: &File, path: &Path, len: u64) -> io::Result<()> {
        self.pass(path, Change::SetLen)?;
        file.set_len(len)
    }

    pub(super) fn write(
        &self,
        file: &File,
        path: &Path,
        bytes: &[u8],
        offset: u64,
    ) -> io::Result<()> {
        match (self.gate)(path, Change::Write(bytes.len())) {
            Ok(()) => file.write_all_at(bytes, offset),
            Err(Refusal { written, error }) => {
                file.write_all_at(&bytes[..written.min(bytes.len())], offset)?;
                Err(error)
            }
        }
    }

    pub(super) fn sync(&self, file: &File, path: &Path) -> io::Result<()> {
        self.pass(path, Change::Sync)?;
        file.sync_data()
    }

    /// Makes new names in a folder last.
    pub(super) fn sync_dir(&self, dir: &Path) -> Result<(), TierError> {
        self.pass(dir, Change::Sync)
            .and_then(|()| File::open(dir))
            .and_then(|dir| dir.sync_all())
            .map_err(io_error(dir, "sync"))
    }

    pub(super) fn rename(&self, from: &Path, to: &Path) -> Result<(), TierError> {
        self.pass(to, Change::Rename)
            .and_then(|()| fs::rename(from, to))
            .map_err(io_error(from, "rename"))
    }

    pub(super) fn remove(&self, path: &Path) -> Result<(), TierError> {
        self.pass(path, Change::Remove)
            .and_then(|()| fs::remove_file(path))
            .map_err(io_error(path, "remove"))
    }
}

pub(super) fn io_error(
    path: &Path,
    operation: &'static str,
) -> impl FnOnce(io::Error) -> TierError {
    move |source| TierError::Io { path: path.to_owned(), operation, source }
}

/// A write that failed; `needed` is all that is still to be written.
pub(super) fn write_error(path: &Path, needed: u64) -> impl FnOnce(io::Error) -> TierError {
    move |source| {
        let full = [Errno::ENOSPC, Errno::EDQUOT, Errno::EFBIG].map(|errno| errno as i32);
        if source.raw_os_error().is_some_and(|errno| full.contains(&errno)) {
            let available = super::target::free_bytes(path.parent().unwrap_or(path));
            let path = path.to_owned();
            let source = Some(source);
            let full = OutputError::DiskFull { path, needed, available, source };
            return TierError::Output(full);
        }
        io_error(path, "write")(source)
    }
}

/// The page cache need not keep what nobody will read soon. A hint: that it is not taken is
/// no error.
pub(super) fn forget(file: &File, offset: u64, len: u64) {
    let (offset, len) = (offset.cast_signed(), len.cast_signed());
    posix_fadvise(file, offset, len, PosixFadviseAdvice::POSIX_FADV_DONTNEED).ok();
}

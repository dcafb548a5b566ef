//! Open files of a pool, a few at a time: a mapping needs no descriptor, and a pool may have
//! more files than a process may have open.

use super::{FileIdentity, Pool};
use crate::error::TierError;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use parking_lot::Mutex;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

/// Descriptors kept for the next call. Threads that use one hold it beyond that, so at most this
/// many and one a thread are open.
const KEPT_OPEN: usize = 16;

/// What the descriptors are for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OpenAs {
    /// Mapping, advising, asking.
    Plain,
    /// Reads past the page cache.
    Direct,
    /// Reads without read-ahead: the flag belongs to the open file, so it has to be another one
    /// than that of the mapping, whose faults it would change.
    Random,
    /// Reads from one end to the other.
    Sequential,
}

/// The files of a pool, opened on demand. Each open checks that the file is still the one that
/// the pool was made from, so a file that took its place is never read, nor evicted.
#[derive(Debug)]
pub(crate) struct Handles {
    pool: Pool,
    open_as: OpenAs,
    /// The most recently used one last.
    open: Mutex<Vec<(u32, Arc<File>)>>,
}

impl Handles {
    pub(crate) fn new(pool: &Pool, open_as: OpenAs) -> Self {
        Self { pool: pool.clone(), open_as, open: Mutex::default() }
    }

    /// The file, opened now if it is not open.
    pub(crate) fn get(&self, index: u32) -> Result<Arc<File>, TierError> {
        if let Some(file) = self.kept(index) {
            return Ok(file);
        }
        let file = Arc::new(self.open(index)?);
        let mut open = self.open.lock();
        if open.len() >= KEPT_OPEN {
            open.remove(0);
        }
        open.push((index, Arc::clone(&file)));
        Ok(file)
    }

    fn kept(&self, index: u32) -> Option<Arc<File>> {
        let mut open = self.open.lock();
        let position = open.iter().position(|(kept, _)| *kept == index)?;
        let entry = open.remove(position);
        let file = Arc::clone(&entry.1);
        open.push(entry);
        Some(file)
    }

    fn open(&self, index: u32) -> Result<File, TierError> {
        let entry = &self.pool.files()[index as usize];
        let io_error =
            |operation| move |source| TierError::Io { path: entry.path.clone(), operation, source };
        let mut options = OpenOptions::new();
        options.read(true);
        if self.open_as == OpenAs::Direct {
            options.custom_flags(libc::O_DIRECT);
        }
        let file = options.open(&entry.path).map_err(|source| match self.open_as {
            OpenAs::Direct if refused(&source) => TierError::DirectUnavailable {
                path: entry.path.clone(),
                reads: "direct",
                reason: "the file system refuses to open it".to_owned(),
                source: Some(source),
            },
            _ => io_error("open")(source),
        })?;
        let found = FileIdentity::of(&file).map_err(io_error("stat"))?;
        if found != entry.identity {
            return Err(TierError::FileChanged {
                path: entry.path.clone(),
                opened: Box::new(entry.identity),
                found: Box::new(found),
            });
        }
        let advice = match self.open_as {
            OpenAs::Random => Some(PosixFadviseAdvice::POSIX_FADV_RANDOM),
            OpenAs::Sequential => Some(PosixFadviseAdvice::POSIX_FADV_SEQUENTIAL),
            OpenAs::Plain | OpenAs::Direct => None,
        };
        if let Some(advice) = advice {
            // Only a hint: without it more or less is read ahead, nothing else changes.
            let _ = posix_fadvise(&file, 0, 0, advice);
        }
        Ok(file)
    }
}

/// Whether the answer says that this is not offered here (as opposed to: failed this time).
pub(crate) fn refused(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn checkpoint(dir: &std::path::Path) -> PathBuf {
        let header = br#"{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}   "#;
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        bytes.extend([1; 8]);
        let path = dir.join("model.safetensors");
        std::fs::write(&path, bytes).unwrap();
        path
    }

    #[test]
    fn a_kept_file_is_reused_and_a_replaced_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = checkpoint(dir.path());
        let pool = Pool::open(dir.path()).unwrap();
        let handles = Handles::new(&pool, OpenAs::Plain);
        let first = handles.get(0).unwrap();
        assert!(Arc::ptr_eq(&first, &handles.get(0).unwrap()));
        std::fs::rename(&path, dir.path().join("old")).unwrap();
        checkpoint(dir.path());
        assert!(Arc::ptr_eq(&first, &handles.get(0).unwrap()), "still the old file");
        let error = Handles::new(&pool, OpenAs::Plain).get(0).unwrap_err();
        assert_eq!(error.kind(), "io-changed");
    }
}

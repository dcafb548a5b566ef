//! Are the bytes of a lease still those of the file that was opened?

use crate::error::TierError;
use crate::notice::Notice;
use crate::pool::map::Mapping;
use crate::pool::{Extent, FileIdentity, Pool};
use crate::sigbus::{self, Registration, SLOTS};
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// Files of a pool that are kept open so that the handler can see where a cut file ends. Pools of
/// more files do without: the handler then gives up pages, windows and at last the whole file.
const KEPT_OPEN: usize = 16;

/// Watches the files of one mapping. Must be dropped before it.
#[derive(Debug)]
pub(crate) struct Guard {
    /// One a file; `None` for an empty file, or where the registry is full.
    registrations: Vec<Option<Registration>>,
    /// What the registrations' descriptors belong to.
    _files: Vec<Arc<File>>,
    notice: Option<Notice>,
}

impl Guard {
    pub(crate) fn new(mapping: &Mapping) -> Self {
        if let Err(error) = sigbus::install() {
            let text = format!(
                "a mapped file that shrinks will end the process: no SIGBUS handler: {error}"
            );
            let registrations = mapping.files().iter().map(|_| None).collect();
            let notice = Some(Notice::warning(text));
            return Self { registrations, _files: Vec::new(), notice };
        }
        let (mut unguarded, mut files) = (0, Vec::new());
        let keep_open = mapping.files().len() <= KEPT_OPEN;
        let registrations = (0_u32..).zip(mapping.files()).map(|(index, file)| {
            let map = file.map();
            if map.is_empty() {
                return None;
            }
            let handle = if keep_open { mapping.handle(index).ok() } else { None };
            let descriptor = handle.as_ref().map_or(-1, AsRawFd::as_raw_fd);
            files.extend(handle);
            let guarded = Registration::new(map.as_ptr() as usize, map.len(), descriptor);
            unguarded += usize::from(guarded.is_none());
            guarded
        });
        let registrations: Vec<_> = registrations.collect();
        let notice = (unguarded > 0).then(|| {
            Notice::warning(format!(
                "{unguarded} of {} files are mapped without a guard (at most {SLOTS} mappings \
                 a process): if one of these shrinks while it is in use, the process ends",
                registrations.len()
            ))
        });
        Self { registrations, _files: files, notice }
    }

    /// What a person should know.
    pub(crate) fn notice(&self) -> Option<&Notice> {
        self.notice.as_ref()
    }

    /// Fails if one of the files is no longer what was opened, or if pages of these extents were
    /// found unreadable while someone used them.
    pub(crate) fn check(
        &self,
        mapping: &Mapping,
        pool: &Pool,
        extents: impl Iterator<Item = Extent>,
    ) -> Result<(), TierError> {
        let mut seen = Vec::with_capacity(4); // experts lie in few files; one `fstat` each
        for extent in extents {
            let mapped = mapping.file(extent.file);
            let registration = self.registrations[extent.file as usize].as_ref();
            if let Some((offset, len)) =
                registration.and_then(|found| found.lost(extent.offset, extent.len))
            {
                return Err(TierError::Poisoned { path: mapped.path.clone(), offset, len });
            }
            if seen.contains(&extent.file) {
                continue;
            }
            seen.push(extent.file);
            let opened = pool.files()[extent.file as usize].identity;
            let found = match mapping.handle(extent.file) {
                Ok(handle) => FileIdentity::of(&handle).map_err(|source| TierError::Io {
                    path: mapped.path.clone(),
                    operation: "stat",
                    source,
                })?,
                // The name now leads to another file, or nowhere: the mapping still holds the one
                // that was opened.
                Err(TierError::FileChanged { found, .. })
                    if (found.dev, found.ino) != (opened.dev, opened.ino) =>
                {
                    continue;
                }
                Err(TierError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                    continue;
                }
                Err(error) => return Err(error),
            };
            if found != opened {
                return Err(TierError::FileChanged {
                    path: mapped.path.clone(),
                    opened: Box::new(opened),
                    found: Box::new(found),
                });
            }
        }
        Ok(())
    }
}

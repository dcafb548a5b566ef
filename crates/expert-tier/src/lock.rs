//! Locking memory without being killed for it.
#![expect(unsafe_code, reason = "locking a part of a mapping has no safe wrapper")]

use crate::error::TierError;
use crate::observe::{MemoryLimits, SystemRoot};
use memmap2::MmapMut;
use nix::sys::mman::{mlock, munlock};
use nix::sys::resource::{Resource, getrlimit};
use std::io;
use std::ptr::NonNull;

/// Lock `memory`, after asking whether it fits: past a control group's limit the kernel does not
/// answer `mlock` with an error but kills the process.
pub(crate) fn lock(
    memory: &MmapMut,
    what: &'static str,
    root: &SystemRoot,
) -> Result<(), TierError> {
    check_headroom(memory.len() as u64, what, root)?;
    memory.lock().map_err(|source| refused(memory.len() as u64, what, source))
}

/// Lock the pages of `range`, a part of a mapping, one of several that are `all_bytes` together;
/// the caller has looked whether there is room.
pub(crate) fn lock_range(
    range: &[u8],
    all_bytes: u64,
    what: &'static str,
) -> Result<(), TierError> {
    let start = NonNull::from(range).cast();
    // SAFETY: `mlock` reads the pages in and keeps them in memory; it changes no byte, and fails
    // where nothing is mapped.
    unsafe { mlock(start, range.len()) }.map_err(|errno| refused(all_bytes, what, errno.into()))
}

/// Let the pages of `range` go again.
pub(crate) fn unlock_range(range: &[u8]) {
    // SAFETY: `munlock` changes no byte, only whether the pages may be evicted.
    if let Err(error) = unsafe { munlock(NonNull::from(range).cast(), range.len()) } {
        tracing::warn!(%error, bytes = range.len(), "a locked range could not be unlocked");
    }
}

/// What the kernel's refusal to lock means: the process's own limit is in the way.
pub(crate) fn refused(bytes: u64, what: &'static str, source: io::Error) -> TierError {
    let soft = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(0, |(soft, _)| soft);
    TierError::Lock {
        what,
        bytes,
        limit: "RLIMIT_MEMLOCK (ulimit -l)".to_owned(),
        limit_bytes: soft,
        source: Some(source),
    }
}

/// Whether so many bytes can be locked without the kernel having to kill.
pub(crate) fn check_headroom(
    bytes: u64,
    what: &'static str,
    root: &SystemRoot,
) -> Result<(), TierError> {
    let Some((headroom, limit)) = headroom(root) else { return Ok(()) };
    if bytes <= headroom {
        return Ok(());
    }
    Err(TierError::Lock { what, bytes, limit, limit_bytes: headroom, source: None })
}

/// Bytes that can still be had, and what limits them in words; `None` if nothing is known.
pub(crate) fn headroom(root: &SystemRoot) -> Option<(u64, String)> {
    let limits = MemoryLimits::read(root);
    let headroom = limits.headroom_bytes()?;
    let by_group = limits.available_bytes.is_none_or(|available| headroom < available);
    let limit = match (limits.limit_bytes, &limits.limit_path) {
        (Some(most), Some(path)) if by_group => {
            format!("what is left of the control group's {most} ({})", path.display())
        }
        _ => "what is left of the machine's memory".to_owned(),
    };
    Some((headroom, limit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn tree(available_kb: u64) -> (tempfile::TempDir, SystemRoot) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("proc")).unwrap();
        let meminfo =
            format!("MemTotal: 99999999 kB\nMemFree: 1 kB\nMemAvailable: {available_kb} kB\n");
        fs::write(dir.path().join("proc/meminfo"), meminfo).unwrap();
        let root = SystemRoot::at(dir.path());
        (dir, root)
    }

    #[test]
    fn what_does_not_fit_is_refused_before_the_kernel_is_asked() {
        let (_dir, root) = tree(1024);
        let memory = MmapMut::map_anon(2 << 20).unwrap();
        let error = lock(&memory, "the spine", &root).unwrap_err();
        assert_eq!(error.kind(), "limit");
        let text = error.to_string();
        assert!(text.contains("2097152") && text.contains("1048576"), "{text}");
    }

    #[test]
    fn what_fits_is_locked_or_refused_by_the_limit_by_name() {
        let (_dir, root) = tree(1 << 20);
        let memory = MmapMut::map_anon(64 << 10).unwrap();
        match lock(&memory, "the spine", &root) {
            Ok(()) => assert!(memory.unlock().is_ok()),
            Err(error) => assert!(error.to_string().contains("RLIMIT_MEMLOCK"), "{error}"),
        }
    }
}

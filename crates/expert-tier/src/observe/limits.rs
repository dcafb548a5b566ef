use super::root::{SystemRoot, Unavailable};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use serde::Serialize;

/// What this process may have; `None` means unlimited.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ProcessLimits {
    /// Open files (`RLIMIT_NOFILE`), soft.
    pub open_files: Option<u64>,
    /// Open files, hard.
    pub open_files_hard: Option<u64>,
    /// Locked bytes (`RLIMIT_MEMLOCK`), soft.
    pub locked_bytes: Option<u64>,
    /// Locked bytes, hard.
    pub locked_bytes_hard: Option<u64>,
    /// Mappings (`vm.max_map_count`).
    pub mappings: Result<u64, Unavailable>,
    /// Mappings that the process has (lines of `/proc/self/maps`).
    pub mappings_used: Result<u64, Unavailable>,
}

/// Mappings that a process needs beside those of a pool's files: a fill splits one in up to three
/// for as long as it runs, and threads bring two each.
const SPARE_MAPPINGS: u64 = 256;

impl ProcessLimits {
    /// Reads them; `vm.max_map_count` through `root`.
    #[must_use]
    pub fn read(root: &SystemRoot) -> Self {
        let limit = |resource| match getrlimit(resource) {
            Ok((soft, hard)) => (finite(soft), finite(hard)),
            Err(_) => (None, None),
        };
        let (open_files, open_files_hard) = limit(Resource::RLIMIT_NOFILE);
        let (locked_bytes, locked_bytes_hard) = limit(Resource::RLIMIT_MEMLOCK);
        let mappings = root.read_number("/proc/sys/vm/max_map_count");
        let maps = root.read("/proc/self/maps");
        let mappings_used = maps.map(|text| text.lines().count() as u64);
        Self {
            open_files,
            open_files_hard,
            locked_bytes,
            locked_bytes_hard,
            mappings,
            mappings_used,
        }
    }

    /// `vm.max_map_count` that this process would need with `files` more mapped, where it has
    /// less; `None` where it is enough, or not known. Where the mappings that it has are not
    /// known they count as none: it needs that much at least.
    #[must_use]
    pub fn mappings_short(&self, files: u64) -> Option<u64> {
        let most = self.mappings.as_ref().ok()?;
        let used = self.mappings_used.as_ref().copied().unwrap_or(0);
        let needed = used.saturating_add(files).saturating_add(SPARE_MAPPINGS);
        (needed > *most).then_some(needed)
    }
}

fn finite(limit: u64) -> Option<u64> {
    (limit != RLIM_INFINITY).then_some(limit)
}

/// Raise the soft limit on open files to the hard one: a pool may have more files than the
/// customary 1024, and no code here uses `select`. For programs to call when they start.
///
/// # Errors
/// What the system answers; the limit is then as before.
pub fn raise_open_files_limit() -> std::io::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_and_the_soft_one_goes_up() {
        let dir = tempfile::tempdir().unwrap();
        let root = SystemRoot::at(dir.path());
        let before = ProcessLimits::read(&root);
        assert_eq!(before.mappings_short(1 << 40), None, "not known");
        assert!(before.mappings.unwrap_err().reason.contains("max_map_count"));
        std::fs::create_dir_all(dir.path().join("proc/sys/vm")).unwrap();
        std::fs::write(dir.path().join("proc/sys/vm/max_map_count"), "300\n").unwrap();
        let unused = ProcessLimits::read(&root);
        assert!(unused.mappings_used.is_err());
        assert_eq!((unused.mappings_short(44), unused.mappings_short(45)), (None, Some(301)));
        std::fs::create_dir_all(dir.path().join("proc/self")).unwrap();
        std::fs::write(dir.path().join("proc/self/maps"), "a\nb\n").unwrap();
        raise_open_files_limit().unwrap();
        let after = ProcessLimits::read(&root);
        assert_eq!((&after.mappings, &after.mappings_used), (&Ok(300), &Ok(2)));
        assert_eq!((after.mappings_short(42), after.mappings_short(43)), (None, Some(301)));
        assert_eq!(after.open_files, after.open_files_hard);
        assert_eq!(after.open_files_hard, before.open_files_hard);
    }
}

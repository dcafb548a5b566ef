use super::cgroup::MemoryLimits;
use super::root::{SystemRoot, Unavailable};
use serde::Serialize;
use std::path::PathBuf;

/// The memory that the file cache can have now, as far as this process is concerned.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct FileBudget {
    /// Bytes: what is free and what can be dropped, cached files included.
    pub bytes: u64,
    /// The control group's file that sets it; `None` where the machine's memory does.
    pub limited_by: Option<PathBuf>,
}

impl FileBudget {
    /// The smaller of the machine's `MemAvailable` (free memory and droppable cache) and the
    /// room of the tightest control group, cached files counted as room.
    ///
    /// # Errors
    /// [`Unavailable`] where neither is known.
    pub fn read(root: &SystemRoot) -> Result<Self, Unavailable> {
        let limits = MemoryLimits::read(root);
        let bytes = limits.headroom_bytes().ok_or_else(|| {
            Unavailable::new("file budget unknown: no MemAvailable and no control group limit")
        })?;
        let by_group = limits.available_bytes.is_none_or(|available| bytes < available);
        Ok(Self { bytes, limited_by: limits.limit_path.filter(|_| by_group) })
    }
}

/// The share of memory that cannot be evicted (`Unevictable` over `MemTotal`): locked arenas,
/// ramfs and the like.
///
/// # Errors
/// [`Unavailable`] where `/proc/meminfo` does not say it.
pub fn unevictable_share(root: &SystemRoot) -> Result<f64, Unavailable> {
    let value = |key: &str| {
        root.meminfo_bytes(key).ok_or_else(|| Unavailable::new(format!("/proc/meminfo: no {key}")))
    };
    let total = value("MemTotal")?.max(1);
    Ok(value("Unevictable")? as f64 / total as f64)
}

#[cfg(test)]
mod tests {
    use super::super::fixture::tree;
    use super::*;

    const MEMINFO: (&str, &str) = (
        "proc/meminfo",
        "MemTotal: 1000 kB\nMemAvailable: 600 kB\nUnevictable: 810 kB\nMlocked: 800 kB\n",
    );

    #[test]
    fn the_machine_or_the_group_whichever_has_less() {
        let (_dir, root) = tree(&[MEMINFO]);
        let budget = FileBudget::read(&root).unwrap();
        assert_eq!(budget, FileBudget { bytes: 600 << 10, limited_by: None });
        let group = [
            MEMINFO,
            ("proc/self/cgroup", "0::/job\n"),
            ("proc/self/mountinfo", "1 0 0:9 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
            ("sys/fs/cgroup/job/memory.max", "409600\n"),
            ("sys/fs/cgroup/job/memory.current", "300000\n"),
            ("sys/fs/cgroup/job/memory.stat", "inactive_file 200000\nactive_file 50000\n"),
        ];
        let (_dir, root) = tree(&group);
        let budget = FileBudget::read(&root).unwrap();
        assert_eq!(budget.bytes, 409_600 - 50_000, "cached files are room");
        assert!(budget.limited_by.unwrap().ends_with("job/memory.max"));
        // A group with more room than the machine does not limit.
        let mut wide = group;
        wide[3].1 = "900000000\n";
        let (_dir, root) = tree(&wide);
        assert_eq!(FileBudget::read(&root).unwrap().limited_by, None);
    }

    #[test]
    fn what_is_not_known_is_not_zero() {
        let (_dir, root) = tree(&[]);
        assert!(FileBudget::read(&root).unwrap_err().reason.contains("MemAvailable"));
        assert!(unevictable_share(&root).is_err());
        let (_dir, root) = tree(&[MEMINFO]);
        assert!((unevictable_share(&root).unwrap() - 0.81).abs() < 1e-12);
    }
}

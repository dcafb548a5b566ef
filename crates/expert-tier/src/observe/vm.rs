use super::root::{SystemRoot, Unavailable};
use serde::Serialize;

/// What reclaim did, from `/proc/vmstat`: pages, for the whole machine, since it started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct VmCounters {
    /// Pages that the background reclaimer looked at.
    pub kswapd_scan_pages: u64,
    /// Pages that it took.
    pub kswapd_steal_pages: u64,
    /// Pages that tasks in need of memory looked at themselves.
    pub direct_scan_pages: u64,
    /// Pages that they took.
    pub direct_steal_pages: u64,
    /// File pages that were read again soon after they had been taken.
    pub file_refault_pages: u64,
}

impl VmCounters {
    /// Reads the counters.
    ///
    /// # Errors
    /// [`Unavailable`] where the table or one of the counters is not there.
    pub fn now(root: &SystemRoot) -> Result<Self, Unavailable> {
        const PATH: &str = "/proc/vmstat";
        let text = root.read(PATH)?;
        let find = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
            line.and_then(|value| value.trim().parse().ok())
        };
        let count =
            |key: &str| find(key).ok_or_else(|| Unavailable::new(format!("{PATH}: no {key}")));
        Ok(Self {
            kswapd_scan_pages: count("pgscan_kswapd")?,
            kswapd_steal_pages: count("pgsteal_kswapd")?,
            direct_scan_pages: count("pgscan_direct")?,
            direct_steal_pages: count("pgsteal_direct")?,
            // Before Linux 5.9 only files were counted, under the shorter name.
            file_refault_pages: count("workingset_refault_file")
                .or_else(|error| find("workingset_refault").ok_or(error))?,
        })
    }

    /// What was counted after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            kswapd_scan_pages: self.kswapd_scan_pages.saturating_sub(earlier.kswapd_scan_pages),
            kswapd_steal_pages: self.kswapd_steal_pages.saturating_sub(earlier.kswapd_steal_pages),
            direct_scan_pages: self.direct_scan_pages.saturating_sub(earlier.direct_scan_pages),
            direct_steal_pages: self.direct_steal_pages.saturating_sub(earlier.direct_steal_pages),
            file_refault_pages: self.file_refault_pages.saturating_sub(earlier.file_refault_pages),
        }
    }

    /// Pages looked at for each page taken by the background reclaimer: 1 where it finds at once
    /// what it wants. Above 2 in every case of the paper (section 5) whose device traffic was more
    /// than twice its misses, and in none without. `None` while it took nothing.
    #[must_use]
    pub fn kswapd_scan_per_steal(&self) -> Option<f64> {
        (self.kswapd_steal_pages > 0)
            .then(|| self.kswapd_scan_pages as f64 / self.kswapd_steal_pages as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn counters(text: &str) -> Result<VmCounters, Unavailable> {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("proc")).unwrap();
        fs::write(dir.path().join("proc/vmstat"), text).unwrap();
        VmCounters::now(&SystemRoot::at(dir.path()))
    }

    const TABLE: &str = "nr_free_pages 5\nworkingset_refault_anon 1\n\
        workingset_refault_file 40\npgsteal_kswapd 100\npgsteal_direct 7\npgscan_kswapd 240\n\
        pgscan_direct 9\npgscan_direct_throttle 3\n";

    #[test]
    fn counters_by_their_whole_names() {
        let now = counters(TABLE).unwrap();
        let wanted = VmCounters {
            kswapd_scan_pages: 240,
            kswapd_steal_pages: 100,
            direct_scan_pages: 9,
            direct_steal_pages: 7,
            file_refault_pages: 40,
        };
        assert_eq!(now, wanted);
        assert_eq!(now.kswapd_scan_per_steal(), Some(2.4));
        assert_eq!(now.since(&now), VmCounters::default());
        assert_eq!(now.since(&now).kswapd_scan_per_steal(), None);
        assert_eq!(now.since(&VmCounters { file_refault_pages: 15, ..now }).file_refault_pages, 25);
    }

    #[test]
    fn older_kernels_and_missing_counters() {
        let old = TABLE.replace("workingset_refault_file", "workingset_refault");
        assert_eq!(counters(&old).unwrap().file_refault_pages, 40);
        for key in ["pgscan_kswapd", "pgsteal_direct", "workingset_refault_file"] {
            let error = counters(&TABLE.replace(key, "other")).unwrap_err();
            assert!(error.reason.contains(key), "{error}");
        }
        assert!(VmCounters::now(&SystemRoot::at("/nowhere")).is_err());
    }
}

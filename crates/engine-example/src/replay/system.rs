use expert_tier::observe::SystemRoot;
use serde::{Deserialize, Serialize};

/// What the machine counted up to one moment. A value that the kernel does not tell is `None`,
/// never zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SystemSample {
    /// `MemAvailable` of `/proc/meminfo`.
    pub mem_available_bytes: Option<u64>,
    /// `Cached`: all files in the page cache, shared memory included.
    pub cached_bytes: Option<u64>,
    /// `Mlocked`.
    pub mlocked_bytes: Option<u64>,
    /// `Unevictable`.
    pub unevictable_bytes: Option<u64>,
    /// `VmLck` of this process.
    pub locked_bytes: Option<u64>,
    /// Pages that background reclaim looked at (`pgscan_kswapd` of `/proc/vmstat`).
    pub kswapd_scanned_pages: Option<u64>,
    /// Pages that it took.
    pub kswapd_stolen_pages: Option<u64>,
    /// Pages that tasks which wanted memory looked at.
    pub direct_scanned_pages: Option<u64>,
    /// Pages that they took.
    pub direct_stolen_pages: Option<u64>,
    /// File pages that were read again soon after they were evicted.
    pub refaulted_file_pages: Option<u64>,
    /// Faults that waited for a device.
    pub major_faults: Option<u64>,
    /// Pages read back from swap.
    pub swapped_in_pages: Option<u64>,
    /// Time that tasks waited for memory and for storage.
    pub stalls: Stalls,
}

/// Totals of `/proc/pressure`, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Stalls {
    /// At least one task waited for memory.
    pub memory_some_us: Option<u64>,
    /// All tasks did.
    pub memory_full_us: Option<u64>,
    /// At least one task waited for storage.
    pub io_some_us: Option<u64>,
    /// All tasks did.
    pub io_full_us: Option<u64>,
}

impl SystemSample {
    /// Reads it all now.
    #[must_use]
    pub fn now(root: &SystemRoot) -> Self {
        let meminfo = text(root, "/proc/meminfo");
        let vmstat = text(root, "/proc/vmstat");
        let bytes = |key: &str| field(&meminfo, key, " kB").and_then(|kb| kb.checked_mul(1024));
        let count = |key: &str| field(&vmstat, key, "");
        Self {
            mem_available_bytes: bytes("MemAvailable:"),
            cached_bytes: bytes("Cached:"),
            mlocked_bytes: bytes("Mlocked:"),
            unevictable_bytes: bytes("Unevictable:"),
            locked_bytes: locked_bytes(None, root),
            kswapd_scanned_pages: count("pgscan_kswapd"),
            kswapd_stolen_pages: count("pgsteal_kswapd"),
            direct_scanned_pages: count("pgscan_direct"),
            direct_stolen_pages: count("pgsteal_direct"),
            refaulted_file_pages: count("workingset_refault_file"),
            major_faults: count("pgmajfault"),
            swapped_in_pages: count("pswpin"),
            stalls: Stalls {
                memory_some_us: stalled(root, "memory", "some"),
                memory_full_us: stalled(root, "memory", "full"),
                io_some_us: stalled(root, "io", "some"),
                io_full_us: stalled(root, "io", "full"),
            },
        }
    }

    /// The counters' difference to an `earlier` sample; levels stay as they are now.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let minus = |now: Option<u64>, then: Option<u64>| now?.checked_sub(then?);
        Self {
            kswapd_scanned_pages: minus(self.kswapd_scanned_pages, earlier.kswapd_scanned_pages),
            kswapd_stolen_pages: minus(self.kswapd_stolen_pages, earlier.kswapd_stolen_pages),
            direct_scanned_pages: minus(self.direct_scanned_pages, earlier.direct_scanned_pages),
            direct_stolen_pages: minus(self.direct_stolen_pages, earlier.direct_stolen_pages),
            refaulted_file_pages: minus(self.refaulted_file_pages, earlier.refaulted_file_pages),
            major_faults: minus(self.major_faults, earlier.major_faults),
            swapped_in_pages: minus(self.swapped_in_pages, earlier.swapped_in_pages),
            stalls: Stalls {
                memory_some_us: minus(self.stalls.memory_some_us, earlier.stalls.memory_some_us),
                memory_full_us: minus(self.stalls.memory_full_us, earlier.stalls.memory_full_us),
                io_some_us: minus(self.stalls.io_some_us, earlier.stalls.io_some_us),
                io_full_us: minus(self.stalls.io_full_us, earlier.stalls.io_full_us),
            },
            ..*self
        }
    }

    /// Pages looked at for each page taken, background and direct reclaim together: near 1 where
    /// reclaim finds what it needs at once. `None` if nothing was taken.
    #[must_use]
    pub fn scan_per_steal(&self) -> Option<f64> {
        let scanned = self.kswapd_scanned_pages? + self.direct_scanned_pages?;
        let stolen = self.kswapd_stolen_pages? + self.direct_stolen_pages?;
        (stolen > 0).then(|| scanned as f64 / stolen as f64)
    }
}

/// `VmLck` of the process `pid`, or of this one: memory that it has locked, in bytes.
#[must_use]
pub fn locked_bytes(pid: Option<u32>, root: &SystemRoot) -> Option<u64> {
    let pid = pid.map_or_else(|| "self".to_owned(), |pid| pid.to_string());
    field(&text(root, &format!("/proc/{pid}/status")), "VmLck:", " kB")?.checked_mul(1024)
}

/// A value of `/proc/meminfo`.
pub(super) fn meminfo_bytes(root: &SystemRoot, key: &str) -> Option<u64> {
    field(&text(root, "/proc/meminfo"), &format!("{key}:"), " kB")?.checked_mul(1024)
}

fn text(root: &SystemRoot, path: &str) -> String {
    std::fs::read_to_string(root.path(path)).unwrap_or_default()
}

/// The number behind `key` at the start of a line.
fn field(text: &str, key: &str, unit: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let value = line.strip_prefix(key)?.strip_suffix(unit)?;
        if value.starts_with([' ', '\t']) { value.trim().parse().ok() } else { None }
    })
}

fn stalled(root: &SystemRoot, resource: &str, who: &str) -> Option<u64> {
    let text = text(root, &format!("/proc/pressure/{resource}"));
    let line = text.lines().find_map(|line| line.strip_prefix(who)?.strip_prefix(' '))?;
    line.split(' ').find_map(|word| word.strip_prefix("total=")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn machine(scanned: u64) -> (tempfile::TempDir, SystemRoot) {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: String| {
            let path = dir.path().join("proc").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(
            "meminfo",
            "MemAvailable:    2048 kB\nCached:  100 kB\nMlocked:   0 kB\nSwapCached: 7 kB\n".into(),
        );
        write(
            "vmstat",
            format!(
                "pgscan_kswapd {scanned}\npgsteal_kswapd 10\npgscan_direct 5\npgsteal_direct 5\n\
                 pgscan_direct_throttle 99\n"
            ),
        );
        write("self/status", "VmPeak:\t  9 kB\nVmLck:\t    12 kB\n".into());
        write("77/status", "VmLck:\t 4 kB\n".into());
        write(
            "pressure/memory",
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=31\nfull avg10=0.00 total=7\n".into(),
        );
        let root = SystemRoot::at(dir.path());
        (dir, root)
    }

    #[test]
    fn levels_and_counters_are_read_or_unknown() {
        let (_dir, root) = machine(25);
        let sample = SystemSample::now(&root);
        assert_eq!(sample.mem_available_bytes, Some(2 << 20));
        assert_eq!((sample.cached_bytes, sample.mlocked_bytes), (Some(102_400), Some(0)));
        assert_eq!((sample.unevictable_bytes, sample.locked_bytes), (None, Some(12_288)));
        assert_eq!(sample.direct_scanned_pages, Some(5), "not the throttled ones");
        assert_eq!(sample.stalls.memory_full_us, Some(7));
        assert_eq!(sample.stalls.io_some_us, None);
        assert_eq!(sample.scan_per_steal(), Some(2.0));
        assert_eq!(locked_bytes(Some(77), &root), Some(4096));
        assert_eq!(locked_bytes(Some(78), &root), None);
    }

    #[test]
    fn counters_are_subtracted_and_never_wrap() {
        let (_one, before) = machine(25);
        let (_two, after) = machine(40);
        let (before, after) = (SystemSample::now(&before), SystemSample::now(&after));
        let between = after.since(&before);
        assert_eq!(between.kswapd_scanned_pages, Some(15));
        assert_eq!(between.mem_available_bytes, after.mem_available_bytes);
        assert_eq!(between.scan_per_steal(), None, "nothing was taken meanwhile");
        assert_eq!(before.since(&after).kswapd_scanned_pages, None);
    }
}

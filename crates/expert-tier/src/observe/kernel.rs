use super::root::{SystemRoot, Unavailable};
use serde::Serialize;

/// Who may make an io_uring (`kernel.io_uring_disabled`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum IoUring {
    /// Everyone, as far as the setting goes; also kernels before 6.6, which have no such setting.
    Allowed,
    /// Only privileged processes and those of `kernel.io_uring_group`.
    Privileged,
    /// Nobody, not even root.
    Disabled,
}

impl IoUring {
    /// Reads the setting.
    ///
    /// # Errors
    /// [`Unavailable`] for a value that is not known. A missing file is [`IoUring::Allowed`].
    pub fn read(root: &SystemRoot) -> Result<Self, Unavailable> {
        const PATH: &str = "/proc/sys/kernel/io_uring_disabled";
        if !root.path(PATH).exists() {
            return Ok(Self::Allowed);
        }
        match root.read_number(PATH)? {
            0 => Ok(Self::Allowed),
            1 => Ok(Self::Privileged),
            2 => Ok(Self::Disabled),
            other => Err(Unavailable::new(format!("{PATH}: {other} is not 0, 1 or 2"))),
        }
    }
}

/// Huge pages that are set aside, and whether ordinary memory gets them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct HugePages {
    /// Bytes set aside for hugetlbfs: nobody else can use them, the page cache least.
    pub reserved_bytes: Result<u64, Unavailable>,
    /// Of these, bytes that nobody uses.
    pub free_bytes: Result<u64, Unavailable>,
    /// How hard the kernel tries for a huge page when one is wanted
    /// (`transparent_hugepage/defrag`), as it prints it.
    pub defrag: Result<String, Unavailable>,
}

impl HugePages {
    /// Reads them from `/proc/meminfo` (pages of the default size) and `/sys`.
    #[must_use]
    pub fn read(root: &SystemRoot) -> Self {
        let table = root.read("/proc/meminfo");
        let pages = |key: &str| {
            let table = table.as_ref().map_err(Unavailable::clone)?;
            let line = table.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            let count: Option<u64> = line.and_then(|count| count.trim().parse().ok());
            let size = root.meminfo_bytes("Hugepagesize");
            count.zip(size).map(|(count, size)| count.saturating_mul(size)).ok_or_else(|| {
                Unavailable::new(format!("/proc/meminfo: no {key} or no Hugepagesize"))
            })
        };
        Self {
            reserved_bytes: pages("HugePages_Total"),
            free_bytes: pages("HugePages_Free"),
            defrag: root.read("/sys/kernel/mm/transparent_hugepage/defrag"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::tree;
    use super::*;

    #[test]
    fn io_uring_by_its_setting() {
        const PATH: &str = "proc/sys/kernel/io_uring_disabled";
        let read = |text: &str| {
            let (_dir, root) = tree(&[(PATH, text)]);
            IoUring::read(&root)
        };
        assert_eq!(read("0\n"), Ok(IoUring::Allowed));
        assert_eq!(read("1\n"), Ok(IoUring::Privileged));
        assert_eq!(read("2\n"), Ok(IoUring::Disabled));
        assert!(read("3\n").is_err() && read("x\n").is_err());
        let (_dir, root) = tree(&[]);
        assert_eq!(IoUring::read(&root), Ok(IoUring::Allowed));
    }

    #[test]
    fn huge_pages_set_aside() {
        let (_dir, root) = tree(&[
            (
                "proc/meminfo",
                "HugePages_Total:     512\nHugePages_Free:      500\nHugepagesize:       2048 kB\n",
            ),
            ("sys/kernel/mm/transparent_hugepage/defrag", "always defer [madvise] never\n"),
        ]);
        let huge = HugePages::read(&root);
        assert_eq!((huge.reserved_bytes, huge.free_bytes), (Ok(1 << 30), Ok(500 << 21)));
        assert!(huge.defrag.unwrap().contains("[madvise]"));
        let (_dir, root) = tree(&[("proc/meminfo", "MemTotal: 1 kB\n")]);
        assert!(HugePages::read(&root).reserved_bytes.unwrap_err().reason.contains("HugePages"));
    }
}

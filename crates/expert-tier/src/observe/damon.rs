use super::{SystemRoot, Unavailable};
use serde::Serialize;

/// Kernel threads and schemes that are looked at; a machine has one or two.
const MOST: u64 = 16;

/// What the kernel's access monitor (DAMON) does by itself to memory that looks unused.
///
/// A `pageout` scheme empties the page cache of experts that rest, even where memory is free: a
/// pool on such a machine turns cold between two questions.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct DamonScheme {
    /// The action, for example `pageout`, as `/sys/kernel/mm/damon/admin` names it.
    pub action: String,
    /// How long memory must look unused before, in milliseconds.
    pub idle_ms: u64,
}

impl DamonScheme {
    /// The schemes that run now; none where the kernel has no DAMON.
    ///
    /// # Errors
    /// [`Unavailable`] if a running scheme cannot be read.
    pub fn running(root: &SystemRoot) -> Result<Vec<Self>, Unavailable> {
        const ADMIN: &str = "/sys/kernel/mm/damon/admin/kdamonds";
        let mut schemes = Vec::new();
        // What is not there counts nothing; what may not be read is not nothing.
        let count = |path: String| {
            let there = root.path(&path).exists();
            if there { root.read_number(path).map(|count| count.min(MOST)) } else { Ok(0) }
        };
        for thread in 0..count(format!("{ADMIN}/nr_kdamonds"))? {
            let thread = format!("{ADMIN}/{thread}");
            if root.read(format!("{thread}/state"))? != "on" {
                continue;
            }
            for context in 0..count(format!("{thread}/contexts/nr_contexts"))? {
                let context = format!("{thread}/contexts/{context}");
                let interval = format!("{context}/monitoring_attrs/intervals/aggr_us");
                let interval_us = root.read_number(interval)?;
                for scheme in 0..count(format!("{context}/schemes/nr_schemes"))? {
                    let scheme = format!("{context}/schemes/{scheme}");
                    let age = root.read_number(format!("{scheme}/access_pattern/age/min"))?;
                    schemes.push(Self {
                        action: root.read(format!("{scheme}/action"))?,
                        idle_ms: age.saturating_mul(interval_us) / 1000,
                    });
                }
            }
        }
        Ok(schemes)
    }

    /// Whether it takes pages away.
    #[must_use]
    pub fn evicts(&self) -> bool {
        matches!(self.action.as_str(), "pageout" | "cold" | "lru_deprio")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, SystemRoot) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join("sys/kernel/mm/damon/admin/kdamonds").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let root = SystemRoot::at(dir.path());
        (dir, root)
    }

    const PAGEOUT: [(&str, &str); 7] = [
        ("nr_kdamonds", "1\n"),
        ("0/state", "on\n"),
        ("0/contexts/nr_contexts", "1\n"),
        ("0/contexts/0/monitoring_attrs/intervals/aggr_us", "5000000\n"),
        ("0/contexts/0/schemes/nr_schemes", "1\n"),
        ("0/contexts/0/schemes/0/action", "pageout\n"),
        ("0/contexts/0/schemes/0/access_pattern/age/min", "12\n"),
    ];

    #[test]
    fn a_running_scheme_is_told_with_its_patience() {
        let (_dir, root) = tree(&PAGEOUT);
        let found = DamonScheme::running(&root).unwrap();
        assert_eq!(found, [DamonScheme { action: "pageout".to_owned(), idle_ms: 60_000 }]);
        assert!(found[0].evicts());
    }

    #[test]
    fn what_does_not_run_does_nothing() {
        let (_dir, root) = tree(&[]);
        assert_eq!(DamonScheme::running(&root).unwrap(), []);
        let mut off = PAGEOUT;
        off[1].1 = "off\n";
        let (_dir, root) = tree(&off);
        assert_eq!(DamonScheme::running(&root).unwrap(), []);
    }

    #[test]
    fn what_cannot_be_read_is_unknown_and_not_none() {
        let (_dir, root) = tree(&PAGEOUT[..5]);
        let error = DamonScheme::running(&root).unwrap_err();
        assert!(error.reason.contains("schemes/0"), "{error}");
        // As for everyone but root.
        let (_dir, root) = tree(&[("nr_kdamonds/unreadable", "")]);
        let error = DamonScheme::running(&root).unwrap_err();
        assert!(error.reason.contains("nr_kdamonds"), "{error}");
    }
}

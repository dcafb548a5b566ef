use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};

/// Where `/proc` and `/sys` are read: the machine itself, or a tree that looks like one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SystemRoot {
    root: PathBuf,
}

impl Default for SystemRoot {
    /// This machine.
    fn default() -> Self {
        Self::at("/")
    }
}

impl SystemRoot {
    /// The tree below `root`, which has `proc` and `sys` in it.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Where the absolute path `path` lies in this tree.
    #[must_use]
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The text at `path`, without surrounding white space.
    pub(crate) fn read(&self, path: impl AsRef<Path>) -> Result<String, Unavailable> {
        let place = self.path(&path);
        std::fs::read(&place)
            .map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned())
            .map_err(|error| Unavailable::new(format!("{}: {error}", path.as_ref().display())))
    }

    /// The number at `path`.
    pub(crate) fn read_number(&self, path: impl AsRef<Path>) -> Result<u64, Unavailable> {
        let text = self.read(&path)?;
        text.parse().map_err(|_| {
            Unavailable::new(format!("{}: {text:?} is not a number", path.as_ref().display()))
        })
    }

    /// `key: value kB` of `/proc/meminfo`, in bytes.
    pub(crate) fn meminfo_bytes(&self, key: &str) -> Option<u64> {
        let text = self.read("/proc/meminfo").ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    }
}

/// A value that cannot be known here, and why.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, thiserror::Error)]
pub struct Unavailable {
    /// One line for a person.
    pub reason: String,
}

impl Unavailable {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

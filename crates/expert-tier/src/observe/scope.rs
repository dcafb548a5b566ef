use super::cgroup::{CgroupVersion, MemoryLimits, find_groups};
use super::root::{SystemRoot, Unavailable};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What a hierarchy's version calls its files.
struct Files {
    limit: &'static str,
    usage: &'static str,
    peak: &'static str,
    events: &'static str,
}

const V1: Files = Files {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    peak: "memory.max_usage_in_bytes",
    events: "memory.oom_control",
};
const V2: Files = Files {
    limit: "memory.max",
    usage: "memory.current",
    peak: "memory.peak",
    events: "memory.events",
};

/// How often and how long the group is tried to be removed: a child's last page may take a moment
/// to be given back.
const REMOVE_ATTEMPTS: usize = 50;
const REMOVE_PAUSE: Duration = Duration::from_millis(20);

/// A memory control group that we made, with a limit and without swap, for children of ours.
/// Removed when dropped.
///
/// On version 1, also beside a version 2 without memory, it lies below this process's own group,
/// whose limits go on to hold. On version 2, where a group that has processes can have no groups
/// with controllers below it, it lies below the nearest group upwards that can.
#[derive(Debug)]
pub struct MemoryScope {
    root: SystemRoot,
    version: CgroupVersion,
    /// Absolute in `root`.
    dir: PathBuf,
    limit_bytes: u64,
}

impl MemoryScope {
    /// Makes the group `name` with a limit of `limit_bytes`.
    ///
    /// # Errors
    /// [`Unavailable`] says what is in the way: no control groups for memory, a limit on this
    /// process that is lower, a group that is there already, no right to make one.
    pub fn create(name: &str, limit_bytes: u64, root: &SystemRoot) -> Result<Self, Unavailable> {
        let own = MemoryLimits::read(root);
        if let (Some(limit), Some(path)) = (own.limit_bytes, &own.limit_path)
            && limit < limit_bytes
        {
            return Err(Unavailable::new(format!(
                "this process may only use {limit} bytes itself ({}), {limit_bytes} are wanted",
                path.display()
            )));
        }
        let Some((version, dirs)) = find_groups(root) else {
            return Err(Unavailable::new("no control groups for memory can be found here"));
        };
        let parents = match version {
            CgroupVersion::V1 => &dirs[..dirs.len().min(1)],
            CgroupVersion::V2 => &dirs[..],
        };
        let mut why = Unavailable::new("this process's control group cannot be found");
        for parent in parents {
            match Self::create_in(parent, version, name, limit_bytes, root) {
                Ok(scope) => return Ok(scope),
                // The first reason is about the place that was meant.
                Err(error) if parent == &parents[0] => why = error,
                Err(_) => {}
            }
        }
        Err(why)
    }

    fn create_in(
        parent: &Path,
        version: CgroupVersion,
        name: &str,
        limit_bytes: u64,
        root: &SystemRoot,
    ) -> Result<Self, Unavailable> {
        let dir = parent.join(name);
        fs::create_dir(root.path(&dir))
            .map_err(|error| Unavailable::new(format!("mkdir {}: {error}", dir.display())))?;
        let scope = Self { root: root.clone(), version, dir, limit_bytes };
        let limit = limit_bytes.to_string();
        if version == CgroupVersion::V2 && scope.write(scope.files().limit, &limit).is_err() {
            // Its parent does not hand the controller down yet.
            let control = root.path(parent.join("cgroup.subtree_control"));
            drop(fs::write(control, "+memory"));
        }
        scope.write(scope.files().limit, &limit)?;
        // What is swapped out would leave the limit; without swap accounting there is no such file.
        drop(match version {
            CgroupVersion::V1 => scope.write("memory.memsw.limit_in_bytes", &limit),
            CgroupVersion::V2 => scope.write("memory.swap.max", "0"),
        });
        let found = scope.read_number(scope.files().limit)?;
        if found.abs_diff(limit_bytes) > 64 << 10 {
            return Err(Unavailable::new(format!(
                "{}: the limit is {found} bytes after {limit_bytes} were written",
                scope.dir.display()
            )));
        }
        Ok(scope)
    }

    /// Puts the process `pid` into the group, with what it will allocate and read from now on.
    ///
    /// # Errors
    /// [`Unavailable`]: the system refuses.
    pub fn add(&self, pid: u32) -> Result<(), Unavailable> {
        self.write("cgroup.procs", &pid.to_string())
    }

    /// Which controller it belongs to.
    #[must_use]
    pub fn version(&self) -> CgroupVersion {
        self.version
    }

    /// Where it lies.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its limit in bytes.
    #[must_use]
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Bytes charged to it now, page cache included.
    ///
    /// # Errors
    /// [`Unavailable`]: the group is gone, or cannot be read.
    pub fn usage_bytes(&self) -> Result<u64, Unavailable> {
        self.read_number(self.files().usage)
    }

    /// The most that was charged to it.
    ///
    /// # Errors
    /// As [`usage_bytes`](Self::usage_bytes); version 2 tells it since Linux 5.19.
    pub fn peak_bytes(&self) -> Result<u64, Unavailable> {
        self.read_number(self.files().peak)
    }

    /// Processes of it that were killed for want of memory.
    ///
    /// # Errors
    /// As [`usage_bytes`](Self::usage_bytes); version 1 tells it since Linux 4.13.
    pub fn oom_kills(&self) -> Result<u64, Unavailable> {
        let path = self.dir.join(self.files().events);
        let text = self.root.read(&path)?;
        let value =
            text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok());
        value.ok_or_else(|| Unavailable::new(format!("{}: no oom_kill", path.display())))
    }

    fn files(&self) -> &'static Files {
        match self.version {
            CgroupVersion::V1 => &V1,
            CgroupVersion::V2 => &V2,
        }
    }

    fn write(&self, file: &str, text: &str) -> Result<(), Unavailable> {
        let path = self.dir.join(file);
        fs::write(self.root.path(&path), text)
            .map_err(|error| Unavailable::new(format!("{}: {error}", path.display())))
    }

    fn read_number(&self, file: &str) -> Result<u64, Unavailable> {
        self.root.read_number(self.dir.join(file))
    }
}

impl Drop for MemoryScope {
    fn drop(&mut self) {
        let dir = self.root.path(&self.dir);
        for _ in 0..REMOVE_ATTEMPTS {
            match fs::remove_dir(&dir) {
                Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(REMOVE_PAUSE);
                }
                _ => return,
            }
        }
        tracing::warn!(dir = %self.dir.display(), "a memory control group could not be removed");
    }
}

#[cfg(test)]
#[path = "scope_tests.rs"]
mod tests;

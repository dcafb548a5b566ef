//! A memory control group of our own, for a child of ours.

use anyhow::{Context, Result, bail};
use expert_tier::observe::{CgroupVersion, MemoryLimits, SystemRoot};
use std::fs;
use std::path::{Path, PathBuf};

/// A group with a limit; gone when dropped.
#[derive(Debug)]
pub(crate) struct Group {
    dir: PathBuf,
    pub(crate) version: &'static str,
}

impl Group {
    /// Makes a group that may hold `limit_bytes`.
    ///
    /// Only where nothing limits this process yet: a group beside our own would leave that limit.
    pub(crate) fn new(limit_bytes: u64) -> Result<Self> {
        let now = MemoryLimits::read(&SystemRoot::default());
        if let Some(limit) = now.limit_bytes {
            bail!("this process is already limited to {limit} bytes by its control group");
        }
        let name = format!("tier-bench-{}", std::process::id());
        let (dir, version, files): (PathBuf, _, &[&str]) = match now.version {
            Some(CgroupVersion::V1) => {
                (Path::new("/sys/fs/cgroup/memory").join(name), "v1", &["memory.limit_in_bytes"])
            }
            Some(CgroupVersion::V2) => {
                (Path::new("/sys/fs/cgroup").join(name), "v2", &["memory.max"])
            }
            None => bail!("no memory control groups here"),
        };
        fs::create_dir(&dir).with_context(|| format!("mkdir {}", dir.display()))?;
        let group = Self { dir, version };
        for file in files {
            let path = group.dir.join(file);
            fs::write(&path, limit_bytes.to_string())
                .with_context(|| format!("write {}", path.display()))?;
        }
        Ok(group)
    }

    pub(crate) fn add(&self, pid: u32) -> Result<()> {
        let path = self.dir.join("cgroup.procs");
        fs::write(&path, pid.to_string()).with_context(|| format!("write {}", path.display()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The child's last page may take a moment to be given back.
        for _ in 0..50 {
            match fs::remove_dir(&self.dir) {
                Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
                _ => return,
            }
        }
    }
}

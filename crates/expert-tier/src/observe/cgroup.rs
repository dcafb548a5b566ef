use super::mounts::{Mount, Mounts};
use super::root::{SystemRoot, Unavailable};
use crate::notice::Notice;
use serde::{Deserialize, Serialize};
use std::path::{Component, Path, PathBuf};

/// Version 1 writes "no limit" as the largest page-aligned `i64`: with 4 KiB pages
/// 9223372036854771712, less with larger ones. No machine has a quarter of it.
const V1_NO_LIMIT_BYTES: u64 = 1 << 62;

/// Which controller limits this process's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CgroupVersion {
    /// `memory.limit_in_bytes`; also where version 2 is mounted beside it without memory.
    V1,
    /// `memory.max` and `memory.high`.
    V2,
}

/// The memory that this process may use: the machine's, or less by its control groups.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct MemoryLimits {
    /// The controller found; `None` without control groups for memory.
    pub version: Option<CgroupVersion>,
    /// The smallest limit from the process's group upwards, in bytes; `None` if no group
    /// has one. Zero is a limit.
    pub limit_bytes: Option<u64>,
    /// The file that sets it.
    pub limit_path: Option<PathBuf>,
    /// Memory charged to the group that has the least room, page cache included.
    pub used_bytes: u64,
    /// The part of it that the kernel drops when asked: file cache that is not locked,
    /// and reclaimable slab.
    pub reclaimable_bytes: u64,
    /// `MemTotal`; `None` if `/proc/meminfo` cannot be read.
    pub total_bytes: Option<u64>,
    /// `MemAvailable`.
    pub available_bytes: Option<u64>,
    /// What a person should know: unreadable limits, no groups at all.
    pub notices: Vec<Notice>,
    /// Room of the tightest group in bytes.
    cgroup_room_bytes: Option<u64>,
}

/// One group on the path from the process's own to the root.
struct Level {
    limit: Option<(u64, PathBuf)>,
    used_bytes: u64,
    reclaimable_bytes: u64,
}

impl MemoryLimits {
    /// Reads what applies to this process.
    ///
    /// Never fails: what cannot be read is told in [`notices`](Self::notices) and does
    /// not limit.
    #[must_use]
    pub fn read(root: &SystemRoot) -> Self {
        let mut limits = Self {
            version: None,
            limit_bytes: None,
            limit_path: None,
            used_bytes: 0,
            reclaimable_bytes: 0,
            total_bytes: root.meminfo_bytes("MemTotal"),
            available_bytes: root.meminfo_bytes("MemAvailable"),
            notices: Vec::new(),
            cgroup_room_bytes: None,
        };
        let Some((version, dirs)) = find_groups(root) else {
            let text = "no control group limits this process's memory as far as can be seen";
            limits.notices.push(Notice::info(text));
            return limits;
        };
        limits.version = Some(version);
        for dir in dirs {
            match read_level(version, &dir, root) {
                Ok(level) => limits.apply(level),
                Err(error) => limits.notices.push(Notice::warning(format!(
                    "memory limit ignored because it cannot be read: {error}"
                ))),
            }
        }
        limits
    }

    /// The limit to plan against: the smallest group limit or the machine's memory,
    /// in bytes; `None` if neither is known.
    #[must_use]
    pub fn effective_limit_bytes(&self) -> Option<u64> {
        least(self.limit_bytes, self.total_bytes)
    }

    /// Bytes that can still be used or locked without swapping or being killed: file
    /// cache that can be dropped counts as free. `None` if nothing is known.
    #[must_use]
    pub fn headroom_bytes(&self) -> Option<u64> {
        least(self.cgroup_room_bytes, self.available_bytes)
    }

    fn apply(&mut self, level: Level) {
        let Some((limit_bytes, path)) = level.limit else { return };
        let reclaimable_bytes = level.reclaimable_bytes.min(level.used_bytes);
        let held_bytes = level.used_bytes - reclaimable_bytes;
        let room_bytes = limit_bytes.saturating_sub(held_bytes);
        if self.limit_bytes.is_none_or(|least| limit_bytes < least) {
            self.limit_bytes = Some(limit_bytes);
            self.limit_path = Some(path);
        }
        if self.cgroup_room_bytes.is_none_or(|least| room_bytes < least) {
            self.cgroup_room_bytes = Some(room_bytes);
            self.used_bytes = level.used_bytes;
            self.reclaimable_bytes = reclaimable_bytes;
        }
    }
}

fn least(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.into_iter().chain(b).min()
}

/// The groups of this process, its own first, as absolute paths.
pub(super) fn find_groups(root: &SystemRoot) -> Option<(CgroupVersion, Vec<PathBuf>)> {
    let table = root.read("/proc/self/cgroup").ok()?;
    let mounts = Mounts::read(root);
    let rows = || table.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    // Memory belongs to one hierarchy: if version 1 has it, version 2 does not.
    let v1 = rows().find(|(controllers, _)| has(controllers, "memory")).and_then(|(_, path)| {
        let mount = mounts
            .iter()
            .find(|mount| mount.fs_type == "cgroup" && has(&mount.super_options, "memory"))?;
        Some((CgroupVersion::V1, upwards(mount, Path::new(path), root)))
    });
    v1.or_else(|| {
        let (_, path) = rows().find(|(controllers, _)| controllers.is_empty())?;
        let mount = mounts.iter().find(|mount| mount.fs_type == "cgroup2")?;
        Some((CgroupVersion::V2, upwards(mount, Path::new(path), root)))
    })
}

fn has(list: &str, word: &str) -> bool {
    list.split(',').any(|item| item == word)
}

/// The directories from the group `path` up to where the hierarchy is mounted.
fn upwards(mount: &Mount, path: &Path, root: &SystemRoot) -> Vec<PathBuf> {
    // In a container the mount may show only the container's own part of the hierarchy.
    let inside = path.strip_prefix(&mount.root).ok().map(Path::to_owned);
    let inside = inside.filter(|path| {
        let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
        plain && root.path(mount.point.join(path)).is_dir()
    });
    let own = mount.point.join(inside.unwrap_or_default());
    own.ancestors().take_while(|dir| dir.starts_with(&mount.point)).map(Path::to_owned).collect()
}

fn read_level(version: CgroupVersion, dir: &Path, root: &SystemRoot) -> Result<Level, Unavailable> {
    let (limit, usage_name) = match version {
        CgroupVersion::V1 => {
            let path = dir.join("memory.limit_in_bytes");
            let limit = read_limit(&path, root)?.filter(|&(limit, _)| limit < V1_NO_LIMIT_BYTES);
            (limit, "memory.usage_in_bytes")
        }
        CgroupVersion::V2 => {
            // Above `high` the kernel throttles instead of killing: no place to work.
            let max = read_limit(&dir.join("memory.max"), root)?;
            let high = read_limit(&dir.join("memory.high"), root)?;
            (max.into_iter().chain(high).min(), "memory.current")
        }
    };
    if limit.is_none() {
        return Ok(Level { limit, used_bytes: 0, reclaimable_bytes: 0 });
    }
    let used_bytes = root.read_number(dir.join(usage_name))?;
    // Without statistics nothing counts as reclaimable: the careful side.
    let stat = root.read(dir.join("memory.stat")).unwrap_or_default();
    let reclaimable_bytes = ["inactive_file", "active_file", "slab_reclaimable"]
        .iter()
        .filter_map(|&key| match version {
            CgroupVersion::V1 => {
                stat_value(&stat, &format!("total_{key}")).or_else(|| stat_value(&stat, key))
            }
            CgroupVersion::V2 => stat_value(&stat, key),
        })
        .fold(0_u64, u64::saturating_add);
    Ok(Level { limit, used_bytes, reclaimable_bytes })
}

/// The limit in the file at `path`; `None` for "max" and where there is no such file (the
/// root group has none).
fn read_limit(path: &Path, root: &SystemRoot) -> Result<Option<(u64, PathBuf)>, Unavailable> {
    if !root.path(path).exists() {
        return Ok(None);
    }
    match root.read(path)?.as_str() {
        "max" => Ok(None),
        _ => root.read_number(path).map(|limit| Some((limit, path.to_owned()))),
    }
}

fn stat_value(stat: &str, key: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
#[path = "cgroup_tests.rs"]
mod tests;

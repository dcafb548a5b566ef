//! What machine the numbers are from.

use anyhow::{Context, Result};
use expert_tier::host::{Host, Storage};
use expert_tier::observe::{MemoryLimits, SystemRoot};
use serde::Serialize;
use std::fmt;
use std::fs;
use std::path::Path;

/// The machine, and where the pools lie on it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) host: Host,
    pub(crate) cpu_model: Option<String>,
    /// Largest cache, in KiB.
    pub(crate) last_level_cache_kb: Option<u64>,
    pub(crate) storage: Storage,
    /// `None`: no group limits this process.
    pub(crate) cgroup_limit_bytes: Option<u64>,
    /// How the tier's arms read: the mapping in place.
    pub(crate) read_channel: &'static str,
    /// One-minute load when the bench began: what else ran.
    pub(crate) load_before: Option<f64>,
    /// And when it ended.
    pub(crate) load_after: Option<f64>,
}

impl Machine {
    pub(crate) fn probe(dir: &Path) -> Result<Self> {
        let root = SystemRoot::default();
        Ok(Self {
            host: Host::probe(&root),
            cpu_model: cpu_model(),
            last_level_cache_kb: last_level_cache_kb(),
            storage: Storage::probe(dir, &root).with_context(|| dir.display().to_string())?,
            cgroup_limit_bytes: MemoryLimits::read(&root).limit_bytes,
            read_channel: "shared file mapping, read in place",
            load_before: load(),
            load_after: None,
        })
    }

    pub(crate) fn finish(mut self) -> Self {
        self.load_after = load();
        self
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unknown = || "?".to_owned();
        let kb = |value: &Result<u64, _>| value.as_ref().map_or_else(|_| unknown(), u64::to_string);
        let load = |value: Option<f64>| value.map_or_else(unknown, |load| format!("{load:.1}"));
        write!(
            f,
            "Linux {}, {}, {} cores, {:.1} GiB, LLC {} KiB, {}, read-ahead {} KiB, max request \
             {} KiB, THP {}, reclaim {:?}, DAMON {}, group limit {}, {}, load {} to {}",
            self.host.kernel.as_deref().unwrap_or("?"),
            self.cpu_model.as_deref().unwrap_or("?"),
            self.host.cpus,
            self.host.memory_total_bytes.unwrap_or(0) as f64 / f64::from(1 << 30),
            self.last_level_cache_kb.map_or_else(unknown, |kb| kb.to_string()),
            self.storage.fs.name,
            kb(&self.storage.read_ahead_kb),
            kb(&self.storage.max_sectors_kb),
            self.host.thp.as_deref().unwrap_or("none"),
            self.host.reclaim,
            damon(&self.host),
            self.cgroup_limit_bytes.map_or("none".to_owned(), |bytes| bytes.to_string()),
            self.read_channel,
            load(self.load_before),
            load(self.load_after),
        )
    }
}

fn damon(host: &Host) -> String {
    match &host.damon {
        Err(_) => "?".to_owned(),
        Ok(schemes) if schemes.is_empty() => "off".to_owned(),
        Ok(schemes) => {
            let words = schemes.iter().map(|s| format!("{} after {} ms", s.action, s.idle_ms));
            words.collect::<Vec<_>>().join(" + ")
        }
    }
}

fn cpu_model() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn last_level_cache_kb() -> Option<u64> {
    let size = |index: u32| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        fs::read_to_string(path).ok()?.trim().strip_suffix('K')?.parse().ok()
    };
    (0..8).filter_map(size).max()
}

fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// Bytes that this process made the block layer read.
pub(crate) fn process_read_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/io").ok()?;
    text.lines().find_map(|line| line.strip_prefix("read_bytes: ")?.parse().ok())
}

/// Sum of `key` in bytes over this process's mappings of `path` (of anonymous memory, with
/// `None`): which pages were really got.
pub(crate) fn mapped_bytes(path: Option<&Path>, key: &str) -> u64 {
    let Ok(text) = fs::read_to_string("/proc/self/smaps") else { return 0 };
    let wanted = path.map(|path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()));
    let (mut inside, mut sum) = (false, 0);
    for line in text.lines() {
        let first = line.split(' ').next().unwrap_or("");
        if first.contains('-') && !first.ends_with(':') {
            let name = line.split_ascii_whitespace().nth(5);
            inside = match &wanted {
                Some(path) => name.is_some_and(|name| Path::new(name) == path),
                None => name.is_none(),
            };
        } else if inside && first.strip_suffix(':') == Some(key) {
            let kb = line.split_ascii_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok());
            sum += kb.unwrap_or(0) * 1024;
        }
    }
    sum
}

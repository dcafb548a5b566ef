//! What machine is this: page size, limits, and the device behind a path.

use crate::observe::{
    DamonScheme, DeviceNumber, Mounts, SystemRoot, Unavailable, behind_anonymous,
};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::sys::statfs::statfs;
use nix::unistd::{SysconfVar, sysconf};
use serde::Serialize;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What this machine is, as far as a tier cares. Printed with every measured number.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Host {
    /// Bytes of a page.
    pub page_bytes: u64,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// The kernel's release, for example `6.18.44`.
    pub kernel: Option<String>,
    /// Whether the kernel is that of the Windows Subsystem for Linux.
    pub wsl: bool,
    /// Transparent huge pages: `always`, `madvise` or `never`; `None` if the kernel has none.
    pub thp: Option<String>,
    /// Soft limit on locked memory in bytes; `None` means unlimited.
    pub memlock_limit_bytes: Option<u64>,
    /// `MemTotal` in bytes.
    pub memory_total_bytes: Option<u64>,
    /// `MemAvailable` in bytes.
    pub memory_available_bytes: Option<u64>,
    /// Which reclaim the kernel runs.
    pub reclaim: Reclaim,
    /// What the kernel's access monitor does to memory that rests.
    pub damon: Result<Vec<DamonScheme>, Unavailable>,
}

/// Which algorithm decides what leaves the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Reclaim {
    /// Active and inactive lists; also where the multi-generational LRU is switched off.
    Legacy,
    /// The multi-generational LRU.
    Mglru {
        /// Bit mask of `/sys/kernel/mm/lru_gen/enabled`.
        features: u64,
        /// Working-set protection in milliseconds.
        min_ttl_ms: u64,
    },
}

/// The file system and device that a path lies on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Storage {
    /// The file system.
    pub fs: FsType,
    /// Read-ahead window in KiB.
    pub read_ahead_kb: Result<u64, Unavailable>,
    /// Largest request the device is sent, in KiB.
    pub max_sectors_kb: Result<u64, Unavailable>,
}

impl Host {
    /// Looks at this machine, reading `/proc` and `/sys` through `root`.
    ///
    /// Never fails: what cannot be read is `None`.
    #[must_use]
    pub fn probe(root: &SystemRoot) -> Self {
        let kernel = kernel_release(root);
        let wsl = kernel.as_ref().is_some_and(|text| text.to_lowercase().contains("microsoft"));
        let memlock = getrlimit(Resource::RLIMIT_MEMLOCK).ok().map(|(soft, _)| soft);
        Self {
            page_bytes: page_bytes(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            kernel,
            wsl,
            thp: bracketed(root.read("/sys/kernel/mm/transparent_hugepage/enabled").ok()),
            memlock_limit_bytes: memlock.filter(|&soft| soft != RLIM_INFINITY),
            memory_total_bytes: root.meminfo_bytes("MemTotal"),
            memory_available_bytes: root.meminfo_bytes("MemAvailable"),
            reclaim: reclaim(root),
            damon: DamonScheme::running(root),
        }
    }
}

impl Storage {
    /// Looks at what holds `path`, reading `/proc` and `/sys` through `root`.
    ///
    /// # Errors
    ///
    /// What `stat` and `statfs` of the path answer.
    pub fn probe(path: &Path, root: &SystemRoot) -> io::Result<Self> {
        let device = DeviceNumber::from_st_dev(std::fs::metadata(path)?.dev());
        let magic = statfs(path)?.filesystem_type().0;
        // The type differs in sign and width between C libraries; its 32 bits do not.
        let fs = FsType::from_magic((magic as u64) & u64::from(u32::MAX));
        let path = std::path::absolute(path)?;
        Ok(Self::of_device(fs, device, &path, root))
    }

    fn of_device(fs: FsType, device: DeviceNumber, path: &Path, root: &SystemRoot) -> Self {
        let devices = match device.major {
            0 => behind_anonymous(device, Some(path), root),
            _ => Ok(vec![device]),
        };
        // Of several devices the first speaks for all.
        let queue = |name: &str| {
            let devices = devices.as_ref().map_err(Unavailable::clone)?;
            queue_number(devices.first().copied().unwrap_or(device), name, root)
        };
        // The window belongs to the file system's bdi, which network and multi-device
        // file systems have as well; its number may be that of the mount, not of st_dev.
        let mounts = Mounts::read(root);
        let bdi = mounts.of_path(path).map_or(device, |mount| mount.device);
        let read_ahead_kb = [device, bdi]
            .iter()
            .find_map(|bdi| root.read_number(format!("/sys/class/bdi/{bdi}/read_ahead_kb")).ok())
            .map_or_else(|| queue("read_ahead_kb"), Ok);
        Self { fs, read_ahead_kb, max_sectors_kb: queue("max_sectors_kb") }
    }
}

/// Logical block size of the device that holds `path`, the least that it reads.
pub(crate) fn logical_block_bytes(st_dev: u64, path: &Path, root: &SystemRoot) -> Option<u64> {
    let device = DeviceNumber::from_st_dev(st_dev);
    let device = match device.major {
        0 => *behind_anonymous(device, Some(path), root).ok()?.first()?,
        _ => device,
    };
    queue_number(device, "logical_block_size", root).ok()
}

/// A partition has no queue of its own: its disk, the directory above, has.
fn queue_number(device: DeviceNumber, name: &str, root: &SystemRoot) -> Result<u64, Unavailable> {
    let own = format!("/sys/dev/block/{device}/queue/{name}");
    let disk = format!("/sys/dev/block/{device}/../queue/{name}");
    root.read_number(&own).or_else(|error| root.read_number(disk).map_err(|_| error))
}

/// Bytes of a page.
#[must_use]
pub fn page_bytes() -> u64 {
    let answer = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    answer.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(4096)
}

fn kernel_release(root: &SystemRoot) -> Option<String> {
    root.read("/proc/sys/kernel/osrelease").ok().or_else(|| {
        let version = root.read("/proc/version").ok()?;
        version.split(' ').nth(2).map(str::to_owned)
    })
}

/// `always [madvise] never` is `madvise`.
fn bracketed(text: Option<String>) -> Option<String> {
    let text = text?;
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word.to_owned())
}

fn reclaim(root: &SystemRoot) -> Reclaim {
    let enabled = root.read("/sys/kernel/mm/lru_gen/enabled").unwrap_or_default();
    match u64::from_str_radix(enabled.trim_start_matches("0x"), 16) {
        Ok(features) if features != 0 => Reclaim::Mglru {
            features,
            min_ttl_ms: root.read_number("/sys/kernel/mm/lru_gen/min_ttl_ms").unwrap_or(0),
        },
        _ => Reclaim::Legacy,
    }
}

/// Where a file system keeps its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FsKind {
    /// On a device of this machine.
    Local,
    /// On other machines.
    Network,
    /// Behind a program (FUSE).
    UserSpace,
    /// Behind the hypervisor.
    VirtualMachineShare,
    /// In memory: there is nothing below it.
    Memory,
    /// On local devices, with a cache of its own beside the page cache.
    SecondCache,
    /// Compressed: bytes read are fewer than bytes seen.
    Compressed,
    /// On other file systems.
    Layered,
    /// Not in our list.
    Unknown,
}

/// A file system type as `statfs` tells it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct FsType {
    /// `f_type`.
    pub magic: u64,
    /// Its name; the number in hexadecimal if it is not known.
    pub name: String,
    /// Where it keeps its bytes.
    pub kind: FsKind,
}

/// `f_type`, name, kind: `statfs(2)` and `linux/magic.h`.
const FS_TYPES: [(u64, &str, FsKind); 22] = [
    (0x6969, "nfs", FsKind::Network),
    (0xff53_4d42, "cifs", FsKind::Network),
    (0xfe53_4d42, "smb2", FsKind::Network),
    (0x0bd0_0bd0, "lustre", FsKind::Network),
    (0x00c3_6400, "ceph", FsKind::Network),
    (0x4750_4653, "gpfs", FsKind::Network),
    (0x6573_5546, "fuse", FsKind::UserSpace),
    (0x0102_1997, "9p", FsKind::VirtualMachineShare),
    (0x786f_4256, "vboxsf", FsKind::VirtualMachineShare),
    (0x0102_1994, "tmpfs", FsKind::Memory),
    (0x8584_58f6, "ramfs", FsKind::Memory),
    (0x9584_58f6, "hugetlbfs", FsKind::Memory),
    (0x2fc1_2fc1, "zfs", FsKind::SecondCache),
    (0x7371_7368, "squashfs", FsKind::Compressed),
    (0xe0f5_e1e2, "erofs", FsKind::Compressed),
    (0x794c_7630, "overlay", FsKind::Layered),
    (0xef53, "ext4", FsKind::Local),
    (0x5846_5342, "xfs", FsKind::Local),
    (0x9123_683e, "btrfs", FsKind::Local),
    (0xf2f5_2010, "f2fs", FsKind::Local),
    (0x5346_544e, "ntfs", FsKind::Local),
    (0x7366_746e, "ntfs3", FsKind::Local),
];

impl FsType {
    /// The type that `statfs` numbers `magic`.
    #[must_use]
    pub fn from_magic(magic: u64) -> Self {
        let known = FS_TYPES.iter().find(|(number, ..)| *number == magic);
        let (name, kind) = match known {
            Some(&(_, name, kind)) => (name.to_owned(), kind),
            None => (format!("{magic:#x}"), FsKind::Unknown),
        };
        Self { magic, name, kind }
    }

    /// What to tell a person before a model is mapped from here: paging by mapping is
    /// slow where each page is a message to someone else.
    #[must_use]
    pub fn mapping_warning(&self) -> Option<String> {
        let place = match self.kind {
            FsKind::Network => "a network file system",
            FsKind::UserSpace => "a user-space file system",
            FsKind::VirtualMachineShare => "a virtual machine share",
            _ => return None,
        };
        Some(format!(
            "{} is {place}: paging by mapping is slow there; read with large preads instead, \
             or copy the model to a local disk",
            self.name
        ))
    }
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;

use super::mounts::Mounts;
use super::root::{SystemRoot, Unavailable};
use std::fmt;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The kernel counts in units of 512 bytes, whatever the device's own sector is.
const SECTOR_BYTES: u64 = 512;

/// A device number as `/sys/dev/block` and `mountinfo` spell it: `major:minor`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DeviceNumber {
    /// Which driver; 0 for file systems without a device of their own.
    pub major: u64,
    /// Which device of it.
    pub minor: u64,
}

impl DeviceNumber {
    /// The number in a file's `st_dev`.
    #[must_use]
    pub fn from_st_dev(st_dev: u64) -> Self {
        Self { major: libc::major(st_dev).into(), minor: libc::minor(st_dev).into() }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.trim().split_once(':')?;
        Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// Bytes that the block devices behind one file system have read, for everyone.
///
/// Usually one device: the partition the file system lies on, whose own counter is used,
/// so that neither its disk nor its neighbours are counted. A btrfs of several devices
/// counts them all. Devices stacked below (RAID, LUKS, loop) are not added: the bytes
/// would count twice.
#[derive(Clone, Debug)]
pub struct BlockCounter {
    root: SystemRoot,
    sources: Vec<Source>,
    start: Vec<u64>,
}

/// Where one device's counter is read.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Source {
    /// `/sys/dev/block/M:m/stat`, or its line of `/proc/diskstats`.
    Number(DeviceNumber),
    /// A hidden path of a multipath device: it has a line of `/proc/diskstats` only.
    Name(String),
}

impl BlockCounter {
    /// The counter behind the open file `file` at `path`.
    ///
    /// The path is needed where `st_dev` names no device (btrfs subvolumes).
    ///
    /// # Errors
    ///
    /// [`Unavailable`] says why no device is known: overlay, tmpfs, network.
    pub fn for_file(file: &File, path: &Path, root: &SystemRoot) -> Result<Self, Unavailable> {
        let metadata = file
            .metadata()
            .map_err(|error| Unavailable::new(format!("{}: {error}", path.display())))?;
        let device = DeviceNumber::from_st_dev(metadata.dev());
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Self::for_device(device, Some(&path), root)
    }

    /// The counter behind `device`, a file's `st_dev`, and the absolute `path` of the file.
    ///
    /// # Errors
    ///
    /// As [`for_file`](Self::for_file).
    pub fn for_device(
        device: DeviceNumber,
        path: Option<&Path>,
        root: &SystemRoot,
    ) -> Result<Self, Unavailable> {
        let devices =
            if device.major == 0 { behind_anonymous(device, path, root)? } else { vec![device] };
        let mut sources = Vec::new();
        for device in devices {
            sources.extend(sources_of(device, root)?);
        }
        sources.sort();
        sources.dedup();
        let start = sources.iter().map(|source| source.sectors(root)).collect::<Result<_, _>>()?;
        Ok(Self { root: root.clone(), sources, start })
    }

    /// Bytes read since this counter was made.
    ///
    /// # Errors
    ///
    /// [`Unavailable`] if the device went away or its counter went back: never a number
    /// from a wrap-around.
    pub fn read_bytes(&self) -> Result<u64, Unavailable> {
        let mut sectors: u64 = 0;
        for (source, &start) in self.sources.iter().zip(&self.start) {
            let now = source.sectors(&self.root)?;
            let read = now.checked_sub(start).ok_or_else(|| {
                Unavailable::new(format!(
                    "device bytes unknown: the counter of {source} went back from {start} to {now} sectors"
                ))
            })?;
            sectors = sectors.saturating_add(read);
        }
        Ok(sectors.saturating_mul(SECTOR_BYTES))
    }
}

/// The counters behind several files: each device once.
///
/// Files on a loop or RAID device and on the disk below it still count twice.
#[derive(Clone, Debug)]
pub struct BlockCounters {
    counter: BlockCounter,
}

impl BlockCounters {
    /// The counters behind the open `files`, each with its path.
    ///
    /// # Errors
    ///
    /// [`Unavailable`] if any file's device is unknown: a sum that lacks a device is wrong.
    pub fn for_files<'a>(
        files: impl IntoIterator<Item = (&'a File, &'a Path)>,
        root: &SystemRoot,
    ) -> Result<Self, Unavailable> {
        let mut all = BlockCounter { root: root.clone(), sources: Vec::new(), start: Vec::new() };
        for (file, path) in files {
            let one = BlockCounter::for_file(file, path, root)?;
            for (source, start) in one.sources.into_iter().zip(one.start) {
                if !all.sources.contains(&source) {
                    all.sources.push(source);
                    all.start.push(start);
                }
            }
        }
        Ok(Self { counter: all })
    }

    /// Bytes read by all the devices since these counters were made.
    ///
    /// # Errors
    ///
    /// As [`BlockCounter::read_bytes`].
    pub fn read_bytes(&self) -> Result<u64, Unavailable> {
        self.counter.read_bytes()
    }
}

impl Source {
    fn sectors(&self, root: &SystemRoot) -> Result<u64, Unavailable> {
        if let Self::Number(device) = self
            && let Ok(stat) = root.read(format!("/sys/dev/block/{device}/stat"))
        {
            return nth_number(&stat, 2).ok_or_else(|| {
                Unavailable::new(format!("/sys/dev/block/{device}/stat: {stat:?}"))
            });
        }
        let table = root.read("/proc/diskstats")?;
        table
            .lines()
            .find(|line| self.is_line(line))
            .and_then(|line| nth_number(line, 5))
            .ok_or_else(|| Unavailable::new(format!("device bytes unknown: no counter of {self}")))
    }

    fn is_line(&self, line: &str) -> bool {
        match self {
            Self::Number(device) => {
                nth_number(line, 0) == Some(device.major)
                    && nth_number(line, 1) == Some(device.minor)
            }
            Self::Name(name) => line.split_ascii_whitespace().nth(2) == Some(name),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(device) => write!(f, "device {device}"),
            Self::Name(name) => write!(f, "device {name}"),
        }
    }
}

fn nth_number(line: &str, n: usize) -> Option<u64> {
    line.split_ascii_whitespace().nth(n)?.parse().ok()
}

/// The counters to read for one block device: itself, or the paths of a multipath head
/// that counts nothing itself.
fn sources_of(device: DeviceNumber, root: &SystemRoot) -> Result<Vec<Source>, Unavailable> {
    let own = Source::Number(device);
    let paths = names_in(&root.path(format!("/sys/dev/block/{device}/multipath")));
    let sectors = own.sectors(root)?;
    if paths.is_empty() || sectors > 0 {
        return Ok(vec![own]);
    }
    Ok(paths.into_iter().map(Source::Name).collect())
}

fn names_in(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// The block devices of a file system whose device number names none.
pub(crate) fn behind_anonymous(
    device: DeviceNumber,
    path: Option<&Path>,
    root: &SystemRoot,
) -> Result<Vec<DeviceNumber>, Unavailable> {
    let mounts = Mounts::read(root);
    // A btrfs subvolume has a number that no mount shows: there only the path helps.
    let mount = mounts
        .of_device(device)
        .or_else(|| path.and_then(|path| mounts.of_path(path)))
        .ok_or_else(|| {
            Unavailable::new(format!("device bytes unknown: device {device} is not in mountinfo"))
        })?;
    let unknown = |why: &str| {
        let (fs_type, point) = (&mount.fs_type, mount.point.display());
        Unavailable::new(format!("device bytes unknown: {fs_type} at {point} {why}"))
    };
    let Some(name) = mount.source.strip_prefix("/dev/") else {
        return Err(unknown("has no block device of its own"));
    };
    let name = device_name(name, root);
    let members = btrfs_members(&name, root);
    let names = if members.is_empty() { vec![name] } else { members };
    names
        .iter()
        .map(|name| {
            root.read(format!("/sys/class/block/{name}/dev"))
                .ok()
                .and_then(|text| DeviceNumber::parse(&text))
                .ok_or_else(|| unknown(&format!("lies on {name}, which has no device number")))
        })
        .collect()
}

/// The kernel's name of `/dev/NAME`: `/dev/mapper/x` is a link to `/dev/dm-0`.
fn device_name(name: &str, root: &SystemRoot) -> String {
    let place: PathBuf = root.path("/dev").join(name);
    let real = std::fs::canonicalize(&place).unwrap_or(place);
    real.file_name().map_or_else(|| name.to_owned(), |name| name.to_string_lossy().into_owned())
}

/// All devices of the btrfs that has the device `name`; empty if none has.
fn btrfs_members(name: &str, root: &SystemRoot) -> Vec<String> {
    names_in(&root.path("/sys/fs/btrfs"))
        .iter()
        .map(|id| names_in(&root.path(format!("/sys/fs/btrfs/{id}/devices"))))
        .find(|members| members.iter().any(|member| member == name))
        .unwrap_or_default()
}

#[cfg(test)]
#[path = "block_tests.rs"]
mod tests;

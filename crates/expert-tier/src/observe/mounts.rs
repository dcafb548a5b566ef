use super::block::DeviceNumber;
use super::root::SystemRoot;
use std::path::{Path, PathBuf};

/// One line of `/proc/self/mountinfo`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mount {
    pub(crate) device: DeviceNumber,
    /// The directory of the file system that is mounted.
    pub(crate) root: PathBuf,
    /// Where it is mounted.
    pub(crate) point: PathBuf,
    pub(crate) fs_type: String,
    pub(crate) source: String,
    pub(crate) super_options: String,
}

/// The mounts this process sees.
pub(crate) struct Mounts(Vec<Mount>);

impl Mounts {
    /// Reads the table; lines that do not look like mounts are passed over, and without
    /// a table there are no mounts.
    pub(crate) fn read(root: &SystemRoot) -> Self {
        let text = root.read("/proc/self/mountinfo").unwrap_or_default();
        Self(text.lines().filter_map(parse).collect())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Mount> {
        self.0.iter()
    }

    /// The mount of device `device`; the last one wins, as in the kernel's lookup.
    pub(crate) fn of_device(&self, device: DeviceNumber) -> Option<&Mount> {
        self.0.iter().rev().find(|mount| mount.device == device)
    }

    /// The mount that holds the absolute path `path`.
    pub(crate) fn of_path(&self, path: &Path) -> Option<&Mount> {
        // Among equal points the later mount covers the earlier one.
        self.0
            .iter()
            .filter(|mount| path.starts_with(&mount.point))
            .max_by_key(|mount| mount.point.components().count())
    }
}

fn parse(line: &str) -> Option<Mount> {
    // id parent major:minor root point options [optional…] - type source super-options
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(2);
    let device = DeviceNumber::parse(left.next()?)?;
    let root = unescape(left.next()?).into();
    let point = unescape(left.next()?).into();
    let mut right = right.split(' ');
    let fs_type = right.next()?.to_owned();
    let source = unescape(right.next()?);
    let super_options = right.next().unwrap_or_default().to_owned();
    Some(Mount { device, root, point, fs_type, source, super_options })
}

/// Undoes the kernel's octal escapes of white space: `\040` is a blank.
fn unescape(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let code = tail
            .get(..3)
            .filter(|_| *first == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        out.push(code.unwrap_or(*first));
        rest = if code.is_some() { &tail[3..] } else { tail };
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_the_kernel_prints() {
        let line = r"36 35 98:0 /mnt1 /mnt\0402 rw,noatime master:1 shared:2 - ext3 /dev/ro\134ot rw,errors=continue";
        let mount = parse(line).unwrap();
        assert_eq!(mount.device, DeviceNumber { major: 98, minor: 0 });
        assert_eq!(mount.point, Path::new("/mnt 2"));
        assert_eq!((mount.fs_type.as_str(), mount.source.as_str()), ("ext3", r"/dev/ro\ot"));
        assert_eq!(mount.super_options, "rw,errors=continue");
        assert!(parse("garbage - ").is_none() && parse("").is_none());
    }

    #[test]
    fn unescape_is_total() {
        for text in ["\\", "\\0", "\\04", "\\999", "a\\", "\\777"] {
            unescape(text);
        }
        assert_eq!(unescape(r"\011x\"), "\tx\\");
    }

    #[test]
    fn the_deepest_and_latest_mount_holds_a_path() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("proc/self")).unwrap();
        let table = "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 8:2 / /m rw - xfs /dev/b rw\n\
                     3 1 8:3 / /m rw - btrfs /dev/c rw\n";
        std::fs::write(dir.path().join("proc/self/mountinfo"), table).unwrap();
        let mounts = Mounts::read(&SystemRoot::at(dir.path()));
        assert_eq!(mounts.of_path(Path::new("/m/x")).unwrap().fs_type, "btrfs");
        assert_eq!(mounts.of_path(Path::new("/mx")).unwrap().fs_type, "ext4");
    }
}

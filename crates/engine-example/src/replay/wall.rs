use super::system::meminfo_bytes;
use expert_tier::observe::SystemRoot;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What keeps a replay from using all the memory there is.
///
/// Text form: `none`, `cgroup=1G`, `balloon=2GiB`, `mem`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Wall {
    /// Nothing.
    #[default]
    None,
    /// A memory control group that may hold so much, page cache and all.
    Cgroup {
        /// The limit in bytes.
        target_bytes: u64,
    },
    /// Another process that locks so much: what is left is the machine's.
    Balloon {
        /// What it locks, in bytes.
        target_bytes: u64,
    },
    /// The machine booted with less memory than it has (`mem=` on the kernel's command line).
    Mem,
}

/// What the boot says of memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct BootMemory {
    /// `MemTotal`.
    pub(super) total_bytes: Option<u64>,
    /// The last `mem=` with a size.
    mem: Option<String>,
}

impl BootMemory {
    pub(super) fn read(root: &SystemRoot) -> Self {
        let line = std::fs::read_to_string(root.path("/proc/cmdline")).unwrap_or_default();
        let sizes = line.split_whitespace().filter_map(|word| word.strip_prefix("mem="));
        let mut sizes = sizes.filter(|size| size.starts_with(|c: char| c.is_ascii_digit()));
        Self {
            total_bytes: meminfo_bytes(root, "MemTotal"),
            mem: sizes.next_back().map(str::to_owned),
        }
    }

    /// The limit as the kernel was told it, or why there is none.
    pub(super) fn limit(&self) -> Result<&str, String> {
        self.mem.as_deref().ok_or_else(|| {
            let total = self.total_bytes.map_or_else(|| "?".to_owned(), |bytes| bytes.to_string());
            format!("the kernel was booted without mem=SIZE, MemTotal is {total} bytes")
        })
    }
}

impl FromStr for Wall {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?}: expected none, cgroup=BYTES, balloon=BYTES or mem");
        if text == "none" {
            return Ok(Self::None);
        }
        if text == "mem" {
            return Ok(Self::Mem);
        }
        let (kind, bytes) = text.split_once('=').ok_or_else(wrong)?;
        let target_bytes = parse_bytes(bytes)?;
        match kind {
            "cgroup" => Ok(Self::Cgroup { target_bytes }),
            "balloon" => Ok(Self::Balloon { target_bytes }),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Wall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Mem => f.write_str("mem"),
            Self::Cgroup { target_bytes } => write!(f, "cgroup={target_bytes}"),
            Self::Balloon { target_bytes } => write!(f, "balloon={target_bytes}"),
        }
    }
}

/// Bytes as people write them: `1073741824`, `1G` and `1GiB` are the same, `1GB` is 10^9.
///
/// # Errors
/// A text that is not such a number, that is 0, or that does not fit 64 bits.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (letter, decimal) = match unit.strip_suffix("iB") {
        Some(letter) => (letter, false),
        None => (unit.strip_suffix('B').unwrap_or(unit), unit.len() > 1),
    };
    let power = match letter {
        "" if unit != "iB" => Some(0),
        "k" | "K" => Some(1),
        "M" => Some(2),
        "G" => Some(3),
        "T" => Some(4),
        _ => None,
    };
    let scale = power.map(|power| if decimal { 1000_u64.pow(power) } else { 1024_u64.pow(power) });
    let bytes = number.parse::<u64>().ok().zip(scale).and_then(|(n, scale)| n.checked_mul(scale));
    bytes.filter(|&bytes| bytes > 0).ok_or_else(|| {
        format!("{text:?}: expected a number of bytes above 0, such as 800M, 1G, 1GiB or 2GB")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_as_they_are_written() {
        for (text, bytes) in [
            ("1", 1),
            ("4096B", 4096),
            ("3k", 3 << 10),
            ("800M", 800 << 20),
            ("1G", 1 << 30),
            ("1GiB", 1 << 30),
            ("2GB", 2_000_000_000),
            ("1T", 1 << 40),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "0", "-1", "1.5G", "1 G", "1X", "1iB", "99999999T", "1GG", "1Bi"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_boot_is_a_wall_only_where_it_was_told_a_size() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("proc")).unwrap();
        let read = |cmdline: &str| {
            std::fs::write(dir.path().join("proc/cmdline"), cmdline).unwrap();
            let meminfo = dir.path().join("proc/meminfo");
            std::fs::write(meminfo, "MemTotal:  4096 kB\n").unwrap();
            BootMemory::read(&SystemRoot::at(dir.path()))
        };
        let boot = read("quiet mem=nopentium mem=4G memmap=1G@2G\n");
        assert_eq!((boot.limit(), boot.total_bytes), (Ok("4G"), Some(4 << 20)));
        let error = read("quiet memmap=1G@2G").limit().unwrap_err().to_owned();
        assert!(error.contains("4194304"), "{error}");
    }

    #[test]
    fn walls_round_trip() {
        for text in ["none", "cgroup=1073741824", "balloon=4096", "mem"] {
            assert_eq!(text.parse::<Wall>().unwrap().to_string(), text);
        }
        for text in ["", "cgroup", "cgroup=", "cgroup=x", "fence=1G", "None"] {
            assert!(text.parse::<Wall>().is_err(), "{text}");
        }
    }
}

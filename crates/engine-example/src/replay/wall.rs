use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// What keeps a replay from using all the memory there is.
///
/// Text form: `none`, `cgroup=1G`, `balloon=2GiB`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
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
}

impl FromStr for Wall {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?}: expected none, cgroup=BYTES or balloon=BYTES");
        if text == "none" {
            return Ok(Self::None);
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
    fn walls_round_trip() {
        for text in ["none", "cgroup=1073741824", "balloon=4096"] {
            assert_eq!(text.parse::<Wall>().unwrap().to_string(), text);
        }
        for text in ["", "cgroup", "cgroup=", "cgroup=x", "fence=1G", "None"] {
            assert!(text.parse::<Wall>().is_err(), "{text}");
        }
    }
}

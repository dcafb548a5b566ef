use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// Whether demand-read pages stay in the page cache. The answer never depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Admission {
    /// Read through the page cache and leave the pages there: the kernel decides what to evict.
    #[default]
    Admit,
    /// Read through the page cache, forget the pages when the last lease on the expert drops.
    DropBehind,
    /// `O_DIRECT` into buffers of the tier: nothing is cached.
    Direct,
    /// `preadv2` with `RWF_DONTCACHE` (Linux 6.14) into buffers of the tier: read through the
    /// page cache, which drops each page as soon as it is copied.
    DontCache,
    /// [`Admission::Admit`] or unbuffered reads of what is missing, whichever is found to wait
    /// less on the pool at hand: measured in short trials, and measured again when the memory
    /// left to files changes (see [`crate::AutoConfig`]). What is in the page cache is used there
    /// either way.
    Auto,
}

impl Admission {
    /// Every arm, the admitting one first.
    pub const ALL: [Self; 5] =
        [Self::Admit, Self::DropBehind, Self::Direct, Self::DontCache, Self::Auto];

    /// The name used on command lines and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Admit => "admit",
            Self::DropBehind => "drop-behind",
            Self::Direct => "direct",
            Self::DontCache => "dont-cache",
            Self::Auto => "auto",
        }
    }
}

impl fmt::Display for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Admission {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|arm| arm.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("unknown admission {name:?}, expected one of: {names}")
        })
    }
}

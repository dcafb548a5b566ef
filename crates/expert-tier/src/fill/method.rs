use memmap2::Advice;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How missing pages are brought into the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FillMethod {
    /// `MADV_POPULATE_READ` (Linux 5.14) by several threads: reads and maps, and turns a bad
    /// sector into an error.
    Populate,
    /// Plain reads into a scratch buffer: works everywhere, costs a copy.
    Read,
    /// `MADV_WILLNEED` in pieces that the device honours, then a populate that finds the pages
    /// there: for file systems without large folios, and never with 2 MiB ones.
    WillNeed,
    /// The same calls as [`FillMethod::Populate`], by the workers of an `io_uring`. Needs the
    /// cargo feature `io-uring`; without it, asking for this is an error.
    Uring,
    /// Nothing is read ahead of its use: each first touch of a page faults, as with a plain
    /// mapping. The losing recipe that the others are held against; never chosen by itself.
    Fault,
}

impl FillMethod {
    /// Every method.
    pub const ALL: [Self; 5] =
        [Self::Populate, Self::Read, Self::WillNeed, Self::Uring, Self::Fault];

    /// The best method that needs nothing but this kernel.
    #[must_use]
    pub fn detect() -> Self {
        if Advice::PopulateRead.is_supported() { Self::Populate } else { Self::Read }
    }

    /// The name used on command lines and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Populate => "populate",
            Self::Read => "read",
            Self::WillNeed => "willneed",
            Self::Uring => "uring",
            Self::Fault => "fault",
        }
    }
}

impl fmt::Display for FillMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for FillMethod {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|method| method.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("unknown fill method {name:?}, expected one of: {names}")
        })
    }
}

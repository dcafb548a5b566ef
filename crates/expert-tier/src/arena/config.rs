use router_trace::policy::PolicyKind;
use serde::Serialize;

/// How an [`Arena`](crate::Arena) works. Plain data, validated once when it opens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct ArenaConfig {
    /// Experts that are kept at most.
    pub places: usize,
    /// Who has to go: any policy that decides by what it has seen.
    pub policy: PolicyKind,
    /// How experts that are not kept are read.
    pub reads: ArenaReads,
    /// Threads that wait for storage, as [`TierConfig`](crate::TierConfig)'s.
    pub fill_threads: usize,
}

impl Default for ArenaConfig {
    /// LRU by direct reads on eight threads, and no places.
    fn default() -> Self {
        Self { places: 0, policy: PolicyKind::Lru, reads: ArenaReads::Direct, fill_threads: 8 }
    }
}

/// How an arena reads what it does not keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ArenaReads {
    /// `O_DIRECT`: nothing lies in the page cache a second time.
    #[default]
    Direct,
    /// `pread` through the page cache, which then keeps what fits beside the arena; with the
    /// kernel's read-ahead, as most programs read.
    Copies,
    /// The same without read-ahead (`POSIX_FADV_RANDOM`).
    CopiesRandom,
}

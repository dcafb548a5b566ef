use expert_tier::{
    Admission, Adopt, Arena, ArenaConfig, ArenaReads, FillMethod, LockedExperts, Pool, Tier,
    TierConfig, TierError,
};
use router_trace::ExpertId;
use router_trace::policy::PolicyKind;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// One way of serving a pool's experts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReplayArm {
    /// The tier: the page cache, used where it lies.
    Mapped,
    /// Through the page cache into buffers, copied for every use.
    Pread,
    /// The hottest experts of the trace in locked memory of ours, the rest by direct reads.
    PinnedArena,
    /// The same experts locked inside the mapping, the rest as `mapped`.
    LockedSet,
    /// Exact LRU in memory of ours, filled by direct reads.
    LruArena,
    /// The tier without admission: forgotten behind every use.
    DropBehind,
    /// Direct reads for every use.
    Direct,
}

/// What an arm is opened with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArmSettings {
    /// Experts that arenas and the locked set keep.
    pub places: usize,
    /// Threads that wait for storage.
    pub fill_threads: usize,
    /// How missing pages are read, for the arms that use the mapping.
    pub fill_method: Option<FillMethod>,
}

/// An arm that is ready to serve.
pub struct Served {
    adopt: Box<dyn Adopt>,
    locked_set: Option<LockedExperts>,
    locked_bytes: u64,
    kept_experts: usize,
    channel: String,
}

impl ReplayArm {
    /// Every arm, the tier first.
    pub const ALL: [Self; 7] = [
        Self::Mapped,
        Self::Pread,
        Self::PinnedArena,
        Self::LockedSet,
        Self::LruArena,
        Self::DropBehind,
        Self::Direct,
    ];

    /// The name used on command lines and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Mapped => "mapped",
            Self::Pread => "pread",
            Self::PinnedArena => "pinned-arena",
            Self::LockedSet => "locked-set",
            Self::LruArena => "lru-arena",
            Self::DropBehind => "drop-behind",
            Self::Direct => "direct",
        }
    }

    /// Whether it keeps the hottest experts of the trace.
    #[must_use]
    pub fn needs_hot_set(self) -> bool {
        matches!(self, Self::PinnedArena | Self::LockedSet)
    }

    /// Opens it over `pool`; `hot` are the experts that pinned arms keep: read, and locked, here.
    ///
    /// # Errors
    /// What the tier or the arena answers, for example that so much cannot be locked.
    pub fn open(
        self,
        pool: Pool,
        hot: &[ExpertId],
        settings: &ArmSettings,
    ) -> Result<Served, TierError> {
        let tier = |pool, admission| {
            let ArmSettings { fill_threads, fill_method, .. } = *settings;
            let config =
                TierConfig { admission, fill_threads, fill_method, ..TierConfig::default() };
            Tier::open(pool, config)
        };
        let arena = |policy, reads, places| ArenaConfig {
            places,
            policy,
            reads,
            fill_threads: settings.fill_threads,
        };
        match self {
            Self::Mapped => Ok(Served::tier(tier(pool, Admission::Admit)?)),
            Self::DropBehind => Ok(Served::tier(tier(pool, Admission::DropBehind)?)),
            Self::Direct => Ok(Served::tier(tier(pool, Admission::Direct)?)),
            Self::LockedSet => {
                let tier = tier(pool, Admission::Admit)?;
                let locked = tier.lock_experts(hot)?;
                let channel = format!("{}, {} locked in it", tier.read_channel(), hot.len());
                let locked_bytes = locked.bytes();
                let served = Served::tier(tier);
                Ok(Served { locked_set: Some(locked), locked_bytes, channel, ..served })
            }
            Self::Pread => {
                let config = arena(PolicyKind::Never, ArenaReads::Copies, 0);
                let arena = Arena::open(pool, &config)?;
                Ok(Served { channel: "pread copies".to_owned(), ..Served::arena(arena, 0) })
            }
            Self::LruArena => {
                let places = settings.places;
                let config = arena(PolicyKind::Lru, ArenaReads::Direct, places);
                Ok(Served::arena(Arena::open(pool, &config)?, places))
            }
            Self::PinnedArena => {
                let config = arena(PolicyKind::Lru, ArenaReads::Direct, hot.len());
                Ok(Served::arena(Arena::pinned(pool, hot, &config)?, hot.len()))
            }
        }
    }
}

impl Served {
    fn tier(tier: Tier) -> Self {
        let channel = tier.read_channel();
        let adopt = Box::new(tier);
        Self { adopt, locked_set: None, locked_bytes: 0, kept_experts: 0, channel }
    }

    fn arena(arena: Arena, kept_experts: usize) -> Self {
        let (channel, locked_bytes) = (arena.read_channel(), arena.locked_bytes());
        Self { adopt: Box::new(arena), locked_set: None, locked_bytes, kept_experts, channel }
    }

    /// What serves.
    #[must_use]
    pub fn adopt(&self) -> &dyn Adopt {
        &*self.adopt
    }

    /// What `VmLck` must say while it serves.
    #[must_use]
    pub fn locked_bytes(&self) -> u64 {
        self.locked_bytes
    }

    /// Experts that it keeps in memory of ours.
    #[must_use]
    pub fn kept_experts(&self) -> usize {
        self.kept_experts
    }

    /// Whether experts are locked inside the mapping.
    #[must_use]
    pub fn locks_in_mapping(&self) -> bool {
        self.locked_set.is_some()
    }

    /// How the bytes come to the CPU.
    #[must_use]
    pub fn channel(&self) -> &str {
        &self.channel
    }
}

impl fmt::Display for ReplayArm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ReplayArm {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|arm| arm.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("unknown arm {name:?}, expected one of: {names}")
        })
    }
}

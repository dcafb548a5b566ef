use super::live::LiveSet;
use super::plan::PlannedPass;
use expert_tier::{
    Admission, Adopt, Arena, ArenaConfig, ArenaReads, FillMethod, LockedExperts, Pool, Tier,
    TierConfig, TierError,
};
use parking_lot::Mutex;
use router_trace::ExpertId;
use router_trace::policy::PolicyKind;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// One way of serving a pool's experts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReplayArm {
    /// The tier: the page cache, used where it lies.
    Mapped,
    /// The same by read-ahead advice in pieces that the device honours, in 4 KiB folios.
    Willneed,
    /// The same by plain page faults, with the kernel's read-ahead: how a mapping is read by
    /// default.
    Faults,
    /// Through the page cache into buffers, copied for every use, with the kernel's read-ahead.
    Pread,
    /// The same without read-ahead (`POSIX_FADV_RANDOM`).
    PreadRandom,
    /// The hottest experts of the trace in locked memory of ours, the rest by direct reads.
    PinnedArena,
    /// The same with only as many experts as miss what `mapped` missed in the run before: what is
    /// left of the difference is the price of a hit.
    PinnedEqual,
    /// Half the budget as `pinned-arena`, the rest copied out of the page cache.
    Hybrid,
    /// The experts of `pinned-arena` locked inside the mapping, the rest as `mapped`.
    LockedSet,
    /// As `locked-set`, but chosen anew every few iterations from the routes seen so far.
    LockedLive,
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
    /// Experts that arenas and locked sets keep.
    pub places: usize,
    /// Threads that wait for storage.
    pub fill_threads: usize,
    /// How missing pages are read, for the arms that use the mapping.
    pub fill_method: Option<FillMethod>,
}

/// An arm that is ready to serve.
pub struct Served {
    adopt: Box<dyn Adopt>,
    locked: Locked,
    kept_experts: usize,
    channel: String,
}

/// What an arm holds locked.
enum Locked {
    Nothing,
    Arena(u64),
    Set(LockedExperts),
    Live(Mutex<LiveSet>),
}

impl ReplayArm {
    /// Every arm, the tier first.
    pub const ALL: [Self; 13] = [
        Self::Mapped,
        Self::Willneed,
        Self::Faults,
        Self::Pread,
        Self::PreadRandom,
        Self::PinnedArena,
        Self::PinnedEqual,
        Self::Hybrid,
        Self::LockedSet,
        Self::LockedLive,
        Self::LruArena,
        Self::DropBehind,
        Self::Direct,
    ];

    /// Those that are run where none is named: one of each kind.
    pub const USUAL: [Self; 7] = [
        Self::Mapped,
        Self::Pread,
        Self::PinnedArena,
        Self::LockedSet,
        Self::LruArena,
        Self::DropBehind,
        Self::Direct,
    ];

    /// Puts `mapped` before `pinned-equal`, which is sized by it, where `order` has both.
    pub fn mapped_first(order: &mut [Self]) {
        let place = |arm| order.iter().position(|&other| other == arm);
        if let (Some(mapped), Some(equal)) = (place(Self::Mapped), place(Self::PinnedEqual))
            && equal < mapped
        {
            order.swap(mapped, equal);
        }
    }

    /// The name used on command lines and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Mapped => "mapped",
            Self::Willneed => "willneed",
            Self::Faults => "faults",
            Self::Pread => "pread",
            Self::PreadRandom => "pread-random",
            Self::PinnedArena => "pinned-arena",
            Self::PinnedEqual => "pinned-equal",
            Self::Hybrid => "hybrid",
            Self::LockedSet => "locked-set",
            Self::LockedLive => "locked-live",
            Self::LruArena => "lru-arena",
            Self::DropBehind => "drop-behind",
            Self::Direct => "direct",
        }
    }

    /// Whether it keeps the hottest experts of the whole trace: knows what is to come.
    #[must_use]
    pub fn is_oracle(self) -> bool {
        use ReplayArm::{Hybrid, LockedSet, PinnedArena, PinnedEqual};
        matches!(self, PinnedArena | PinnedEqual | Hybrid | LockedSet)
    }

    /// Opens it over `pool`; `hot` are the experts that oracles keep: read, and locked, here.
    ///
    /// # Errors
    /// What the tier or the arena answers, for example that so much cannot be locked.
    pub fn open(
        self,
        pool: Pool,
        hot: &[ExpertId],
        settings: &ArmSettings,
    ) -> Result<Served, TierError> {
        let ArmSettings { places, fill_threads, fill_method } = *settings;
        let tier = |pool, admission, fill_method| {
            let config =
                TierConfig { admission, fill_threads, fill_method, ..TierConfig::default() };
            Tier::open(pool, config)
        };
        let arena = |policy, reads, places| ArenaConfig { places, policy, reads, fill_threads };
        let pinned = |pool, reads| {
            let config = arena(PolicyKind::Lru, reads, hot.len());
            Ok(Served::arena(Arena::pinned(pool, hot, &config)?, hot.len()))
        };
        let copies = |pool, reads| {
            let arena = Arena::open(pool, &arena(PolicyKind::Never, reads, 0))?;
            Ok(Served::arena(arena, 0))
        };
        let admit = Admission::Admit;
        match self {
            Self::Mapped => Ok(Served::tier(tier(pool, admit, fill_method)?)),
            Self::Willneed => Ok(Served::tier(tier(pool, admit, Some(FillMethod::WillNeed))?)),
            Self::Faults => Ok(Served::tier(tier(pool, admit, Some(FillMethod::Fault))?)),
            Self::DropBehind => Ok(Served::tier(tier(pool, Admission::DropBehind, fill_method)?)),
            Self::Direct => Ok(Served::tier(tier(pool, Admission::Direct, fill_method)?)),
            Self::LockedSet => Served::locked_set(tier(pool, admit, fill_method)?, hot),
            Self::LockedLive => {
                let tier = tier(pool, admit, fill_method)?;
                let live = LiveSet::new(tier.clone(), places);
                let channel = format!("{}, {live}", tier.read_channel());
                let locked = Locked::Live(Mutex::new(live));
                Ok(Served { locked, channel, ..Served::tier(tier) })
            }
            Self::Pread => copies(pool, ArenaReads::Copies),
            Self::PreadRandom => copies(pool, ArenaReads::CopiesRandom),
            Self::LruArena => {
                let config = arena(PolicyKind::Lru, ArenaReads::Direct, places);
                Ok(Served::arena(Arena::open(pool, &config)?, places))
            }
            Self::PinnedArena | Self::PinnedEqual => pinned(pool, ArenaReads::Direct),
            Self::Hybrid => pinned(pool, ArenaReads::CopiesRandom),
        }
    }
}

impl Served {
    fn tier(tier: Tier) -> Self {
        let channel = tier.read_channel();
        Self { adopt: Box::new(tier), locked: Locked::Nothing, kept_experts: 0, channel }
    }

    fn locked_set(tier: Tier, hot: &[ExpertId]) -> Result<Self, TierError> {
        let locked = Locked::Set(tier.lock_experts(hot)?);
        let channel = format!("{}, {} locked in it", tier.read_channel(), hot.len());
        Ok(Self { locked, channel, ..Self::tier(tier) })
    }

    fn arena(arena: Arena, kept_experts: usize) -> Self {
        let (channel, locked) = (arena.read_channel(), Locked::Arena(arena.locked_bytes()));
        Self { adopt: Box::new(arena), locked, kept_experts, channel }
    }

    /// What serves.
    #[must_use]
    pub fn adopt(&self) -> &dyn Adopt {
        &*self.adopt
    }

    /// What `VmLck` must say now.
    #[must_use]
    pub fn locked_bytes(&self) -> u64 {
        match &self.locked {
            Locked::Nothing => 0,
            Locked::Arena(bytes) => *bytes,
            Locked::Set(set) => set.bytes(),
            Locked::Live(live) => live.lock().bytes(),
        }
    }

    /// Experts that it keeps in memory of ours.
    #[must_use]
    pub fn kept_experts(&self) -> usize {
        self.kept_experts
    }

    /// Tells it what an iteration chose, after the iteration: a set chosen from live counts is
    /// chosen anew now and then. Others do nothing.
    ///
    /// # Errors
    /// What locking answers.
    pub fn learn(&self, passes: &[PlannedPass]) -> Result<(), TierError> {
        match &self.locked {
            Locked::Live(live) => live.lock().learn(passes),
            _ => Ok(()),
        }
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

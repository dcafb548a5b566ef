use crate::admission::Admission;
use crate::error::TierError;
use crate::fill::FillMethod;
use crate::residency::ProbeKind;
use serde::Serialize;

/// How a [`crate::Tier`] serves a pool. Plain data, validated once by [`crate::Tier::open`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct TierConfig {
    /// Whether demand-read pages stay in the page cache. [`Admission::Auto`] is not the default:
    /// it takes no instruction more of a warm adoption, and its trials at most 0.5 % of the time
    /// waited for reads, but whether it stays within 1 % of [`Admission::Admit`] under pressure
    /// could not be told: two rounds of `tier-bench pressure --quick` gave 0.81 and 1.11 times its
    /// time, on a machine whose device varies as much.
    pub admission: Admission,
    /// Threads that wait for storage, 1 to [`TierConfig::MAX_FILL_THREADS`]. Eight keep a
    /// device's queue busy; they burn no CPU while they wait.
    pub fill_threads: usize,
    /// How missing pages are read; `None` takes the best this kernel has, a method is either
    /// used or refused.
    pub fill_method: Option<FillMethod>,
    /// Ask for 2 MiB folios behind extents that cover whole 2 MiB windows.
    pub huge_folios: bool,
    /// Bring in the end of an expert, where it does not fill its last 2 MiB window, with the rest
    /// of the window. Only to be forced where that rest is nobody else's; `None` does it for
    /// packed pools that fit into memory with these rests.
    pub whole_tails: Option<bool>,
    /// How residency is probed; `None` takes the cheapest one that tells the truth here.
    pub probe: Option<ProbeKind>,
}

impl Default for TierConfig {
    fn default() -> Self {
        Self {
            admission: Admission::Admit,
            fill_threads: 8,
            fill_method: None,
            huge_folios: true,
            whole_tails: None,
            probe: None,
        }
    }
}

impl TierConfig {
    /// The most fill threads: past this, threads only add lock traffic.
    pub const MAX_FILL_THREADS: usize = 64;

    pub(crate) fn validate(&self) -> Result<(), TierError> {
        if (1..=Self::MAX_FILL_THREADS).contains(&self.fill_threads) {
            return Ok(());
        }
        Err(TierError::SettingLimit {
            what: "fill_threads",
            value: self.fill_threads as u64,
            min: 1,
            max: Self::MAX_FILL_THREADS as u64,
        })
    }
}

//! Memory we own, as a comparator: what the page cache is held against.

mod config;
mod pinned;
mod places;

pub use config::{ArenaConfig, ArenaReads};
pub use pinned::hottest;
pub(crate) use places::{Pins, Places};

use crate::adopting::Adopting;
use crate::config::TierConfig;
use crate::error::TierError;
use crate::fill::direct::{BufferReader, Method};
use crate::lease::Adopted;
use crate::lock;
use crate::observe::SystemRoot;
use crate::pool::{ExpertLayout, Pool};
use crate::stats::Snapshot;
use crate::tier::Tier;
use router_trace::policy::Keeper;
use router_trace::{ModelShape, Route};
use std::collections::HashMap;
use std::sync::Arc;

/// Keeps experts in buffers of its own and decides by a policy of
/// [`router_trace::policy`], as user-space expert caches do.
///
/// It gives the leases that a [`Tier`] gives. Its counters are a tier's, where warm is what the
/// policy kept and cold is what it did not: driven with a trace they are exactly what
/// [`simulate`](mod@router_trace::simulate) counts with
/// [`Pins::Pass`](router_trace::simulate::Pins::Pass), for the policy is the same object.
///
/// - Experts of a lease that is alive are pinned. Where a route needs more places than there are,
///   the rest is read for this one use.
/// - An adoption is all or nothing: the policy hears of it, and buffers are given up, only after
///   all its bytes are there. So while it reads it takes buffers beyond the places, at most one an
///   expert that it reads; whoever compares at equal memory leaves room for one route's.
/// - An expert that the policy gives up for another of the same route counts as missed when its
///   turn comes, although the lease holds its bytes and nothing is read again:
///   [`Snapshot::missing_bytes`] says what was read.
/// - Two threads that miss the same expert at once each read it; one copy is kept.
#[derive(Debug)]
pub struct Arena {
    tier: Tier,
    reader: Arc<BufferReader>,
    places: Arc<Places>,
    policy: String,
    locked_bytes: u64,
}

impl Arena {
    /// An empty arena over `pool`.
    ///
    /// # Errors
    /// What [`Tier::open`] and direct reads may lack; [`TierError::Policy`] for a policy that
    /// needs hindsight, [`TierError::NoRoom`] for more places than memory has room for.
    pub fn open(pool: Pool, config: &ArenaConfig) -> Result<Self, TierError> {
        let keeper = Keeper::new(&shape(&pool), config.policy, config.places)
            .map_err(|source| TierError::Policy { source })?;
        let bytes = largest_bytes(&pool, config.places);
        if let Some((limit_bytes, limit)) = lock::headroom(&SystemRoot::default())
            && bytes > limit_bytes
        {
            return Err(TierError::NoRoom { what: "the arena", bytes, limit, limit_bytes });
        }
        let (tier, reader) = open_reader(pool, config)?;
        let places = Arc::new(Places::new(keeper, HashMap::new()));
        let policy = format!("{} of {}", config.policy, config.places);
        Ok(Self { tier, reader, places, policy, locked_bytes: 0 })
    }

    /// As [`Tier::adopt`].
    ///
    /// # Errors
    /// As there; neither counters nor the policy then know of the call.
    pub fn adopt(&self, route: &Route) -> Result<Adopted, TierError> {
        self.adopt_batch(route.layer(), route.experts())
    }

    /// As [`Tier::adopt_batch`].
    ///
    /// # Errors
    /// As [`Arena::adopt`].
    pub fn adopt_batch(&self, layer: u16, experts: &[u16]) -> Result<Adopted, TierError> {
        self.begin(layer, experts)?.finish()
    }

    /// As [`Tier::begin`]: experts that are kept are usable at once, the others in the order in
    /// which they are named.
    ///
    /// # Errors
    /// As there.
    pub fn begin(&self, layer: u16, experts: &[u16]) -> Result<Adopting, TierError> {
        Adopting::begin_in_arena(&self.tier.shared, &self.reader, &self.places, layer, experts)
    }

    /// Counters since the arena was opened; what is read through [`Arena::tier`] counts too.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.tier.snapshot()
    }

    /// The tier whose files, probes and threads the arena uses.
    #[must_use]
    pub fn tier(&self) -> &Tier {
        &self.tier
    }

    /// Experts kept now.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.places.len().0
    }

    /// Bytes of the buffers that are locked, in whole pages: what `VmLck` rose by.
    #[must_use]
    pub fn locked_bytes(&self) -> u64 {
        self.locked_bytes
    }

    /// Experts that leases hold now, once for each lease.
    #[must_use]
    pub fn pinned_now(&self) -> usize {
        self.places.len().1
    }

    /// How the bytes are kept and read, in words for a report, for example
    /// `lru of 256 in buffers, o-direct (align 512)`.
    #[must_use]
    pub fn read_channel(&self) -> String {
        format!("{} in buffers, {}", self.policy, self.reader.channel())
    }
}

/// What reads into buffers, and the tier that it belongs to.
fn open_reader(pool: Pool, config: &ArenaConfig) -> Result<(Tier, Arc<BufferReader>), TierError> {
    let tier = Tier::open(
        pool,
        TierConfig {
            fill_threads: config.fill_threads,
            huge_folios: false,
            ..TierConfig::default()
        },
    )?;
    let method = match config.reads {
        ArenaReads::Direct => Method::Direct,
        ArenaReads::Copies => Method::Copy,
        ArenaReads::CopiesRandom => Method::CopyRandom,
    };
    let shared = &tier.shared;
    let reader = BufferReader::open(&shared.pool, method, &shared.mapping, &shared.probes)?;
    Ok((tier, Arc::new(reader)))
}

/// The shape by which a pool's experts become keys; how many a token chooses says nothing here.
fn shape(pool: &Pool) -> ModelShape {
    pool.layout().shape(1)
}

/// Bytes of the `count` largest experts: what an arena of as many places may come to hold.
fn largest_bytes(pool: &Pool, count: usize) -> u64 {
    let mut sizes: Vec<u64> =
        pool.layout().iter().map(|(_, expert)| ExpertLayout::nominal_bytes(expert)).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes.iter().take(count).sum()
}

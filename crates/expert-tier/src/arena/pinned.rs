use super::{Arena, ArenaConfig, Places, open_reader, shape};
use crate::error::TierError;
use crate::fill::Arrival;
use crate::fill::buffer::BufferExpert;
use crate::lock;
use crate::observe::SystemRoot;
use crate::pool::Pool;
use router_trace::policy::{Keeper, StaticSet};
use router_trace::simulate::Span;
use router_trace::{ExpertId, KeySpace};
use std::collections::HashMap;
use std::sync::Arc;

/// Experts that are read together while the arena is filled: bounds what is on its way.
const PRELOAD: usize = 64;
const WHAT: &str = "the pinned arena";

/// The experts that `span` uses most, at most `count`: what an oracle would pin for it. Of equals
/// the lower ones; experts that are never used are not among them.
///
/// The same choice as [`PolicyKind::OracleStatic`](router_trace::policy::PolicyKind)'s, so that
/// what is pinned is what is simulated.
#[must_use]
pub fn hottest(span: &Span<'_>, count: usize) -> Vec<ExpertId> {
    let space = span.trace.key_space();
    let mut uses = vec![0; space.n_keys()];
    for &key in span.keys() {
        // One-off objects are no experts.
        if let Some(uses) = uses.get_mut(key as usize) {
            *uses += 1;
        }
    }
    let set = StaticSet::oracle(count, &uses);
    let kept = (0..).zip(&uses).map(|(key, _)| key);
    let kept = kept.filter(|&key| router_trace::policy::Policy::contains(&set, key));
    kept.filter_map(|key| space.id(key)).collect()
}

impl Arena {
    /// An arena that keeps exactly `experts`, read now and locked in memory; the others are read
    /// for each use, as [`ArenaConfig::reads`] says. [`ArenaConfig::places`] and
    /// [`ArenaConfig::policy`] are not asked.
    ///
    /// # Errors
    /// What [`Tier::open`](crate::Tier::open) and direct reads may lack;
    /// [`TierError::UnknownExpert`]; [`TierError::Lock`] where the experts cannot be locked, found
    /// before the kernel would have to kill; a read that fails.
    pub fn pinned(
        pool: Pool,
        experts: &[ExpertId],
        config: &ArenaConfig,
    ) -> Result<Self, TierError> {
        let shape = shape(&pool);
        let space = KeySpace::new(&shape).map_err(|source| TierError::Policy { source })?;
        let mut uses = vec![0; space.n_keys()];
        let mut bytes = 0;
        let mut wanted: Vec<ExpertId> = experts.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        for &id in &wanted {
            let in_layer = pool.layout().layer(id.layer).len();
            let unknown = TierError::UnknownExpert { id, in_layer };
            let (Some(expert), Some(key)) = (pool.layout().expert(id), space.key(id)) else {
                return Err(unknown);
            };
            bytes += expert.nominal_bytes();
            uses[key as usize] = 1;
        }
        lock::check_headroom(bytes, WHAT, &SystemRoot::default())?;
        let set = StaticSet::trained(wanted.len(), &uses);
        let keeper = Keeper::of(&shape, Box::new(set));
        let keeper = keeper.map_err(|source| TierError::Policy { source })?;
        let (tier, reader) = open_reader(pool, config)?;
        let mut kept = HashMap::with_capacity(wanted.len());
        for ids in wanted.chunks(PRELOAD) {
            let shared = &tier.shared;
            let arrival = reader.start(&shared.filler, &shared.mapping, &shared.pool, ids)?;
            let done = take_all(&arrival, ids, bytes, &mut kept);
            arrival.wait_closed();
            done?;
        }
        tier.shared.check(wanted.iter().copied())?;
        let locked_bytes = kept.values().map(|buffer| buffer.len() as u64).sum();
        let places = Arc::new(Places::new(keeper, kept));
        let policy = format!("{} pinned and locked", wanted.len());
        Ok(Self { tier, reader, places, policy, locked_bytes })
    }
}

fn take_all(
    arrival: &Arrival,
    ids: &[ExpertId],
    all_bytes: u64,
    kept: &mut HashMap<ExpertId, Arc<BufferExpert>>,
) -> Result<(), TierError> {
    for (index, &id) in ids.iter().enumerate() {
        if let Some(buffer) = arrival.wait(index)? {
            buffer.lock(all_bytes, WHAT)?;
            kept.insert(id, Arc::new(buffer));
        }
    }
    Ok(())
}

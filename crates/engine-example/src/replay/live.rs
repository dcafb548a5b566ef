use super::plan::PlannedPass;
use expert_tier::{LockedExperts, Tier, TierError};
use router_trace::ExpertId;
use std::collections::BTreeMap;
use std::fmt;

/// Iterations between two choices.
const PERIOD: u64 = 16;

/// A hot set in the mapping that follows the routes: every few iterations the experts that were
/// used most are locked, and the others let go. Counts are halved then, so that it forgets.
#[derive(Debug)]
pub(super) struct LiveSet {
    tier: Tier,
    places: usize,
    uses: BTreeMap<ExpertId, u32>,
    iterations: u64,
    locked: Option<LockedExperts>,
}

impl LiveSet {
    /// A set of at most `places` experts; nothing is locked before the first choice.
    pub(super) fn new(tier: Tier, places: usize) -> Self {
        Self { tier, places, uses: BTreeMap::new(), iterations: 0, locked: None }
    }

    /// Bytes locked now.
    pub(super) fn bytes(&self) -> u64 {
        self.locked.as_ref().map_or(0, LockedExperts::bytes)
    }

    /// Counts an iteration's routes, and chooses anew when it is time.
    pub(super) fn learn(&mut self, passes: &[PlannedPass]) -> Result<(), TierError> {
        for pass in passes {
            for &index in &pass.experts {
                *self.uses.entry(ExpertId::new(pass.layer, index)).or_default() += 1;
            }
        }
        self.iterations += 1;
        if !self.iterations.is_multiple_of(PERIOD) {
            return Ok(());
        }
        let hot = most_used(&self.uses, self.places);
        // Unlocked pages stay in the cache: what is locked again is not read again.
        self.locked = None;
        self.locked = Some(self.tier.lock_experts(&hot)?);
        self.uses.values_mut().for_each(|uses| *uses /= 2);
        self.uses.retain(|_, uses| *uses > 0);
        Ok(())
    }
}

/// The `count` most used experts; of equals the lower ones.
fn most_used(uses: &BTreeMap<ExpertId, u32>, count: usize) -> Vec<ExpertId> {
    let mut ranked: Vec<(ExpertId, u32)> = uses.iter().map(|(&id, &uses)| (id, uses)).collect();
    // Stable, and the map is in order.
    ranked.sort_by_key(|&(_, uses)| std::cmp::Reverse(uses));
    ranked.into_iter().take(count).map(|(id, _)| id).collect()
}

impl fmt::Display for LiveSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "up to {} locked in it, chosen every {PERIOD} iterations", self.places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_used_are_chosen_and_of_equals_the_lower() {
        let uses = [(3, 2), (1, 5), (2, 2), (0, 1)];
        let uses = uses.map(|(index, uses)| (ExpertId::new(0, index), uses)).into();
        let ids = |count| most_used(&uses, count).iter().map(|id| id.index).collect::<Vec<_>>();
        assert_eq!(ids(3), [1, 2, 3]);
        assert_eq!(ids(9), [1, 2, 3, 0]);
    }
}

use crate::policy::{Key, Policy};
use serde::{Deserialize, Serialize};

/// What was counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Count {
    /// Experts asked for.
    pub accesses: u64,
    /// Of these, how many were kept at that moment.
    pub hits: u64,
}

impl Count {
    /// Accesses that were no hits.
    #[must_use]
    pub fn misses(self) -> u64 {
        self.accesses - self.hits
    }

    /// Hits an access; 0 where there are none.
    #[must_use]
    pub fn hit_rate(self) -> f64 {
        if self.accesses == 0 { 0.0 } else { self.hits as f64 / self.accesses as f64 }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.accesses += other.accesses;
        self.hits += other.hits;
    }
}

/// A policy and its counts, fed pass by pass: the simulator's inner part, for streams that
/// are never all in memory. It holds nothing but the policy and two numbers a layer.
pub struct Meter<P> {
    policy: P,
    layers: Vec<Count>,
}

impl<P: Policy> Meter<P> {
    /// Counts for `n_slots` layers.
    #[must_use]
    pub fn new(policy: P, n_slots: usize) -> Self {
        Self { policy, layers: vec![Count::default(); n_slots] }
    }

    /// Shows the policy one pass without counting it.
    pub fn warm(&mut self, keys: &[Key]) {
        for &key in keys {
            self.policy.access(key, &[]);
        }
    }

    /// Counts one pass of the layer at `slot`.
    ///
    /// # Panics
    ///
    /// If there is no such slot.
    pub fn score(&mut self, slot: u16, keys: &[Key]) {
        let hits = keys.iter().filter(|&&key| self.policy.access(key, &[]).is_hit()).count();
        let count = Count { accesses: keys.len() as u64, hits: hits as u64 };
        self.layers[usize::from(slot)].add(count);
    }

    /// The policy as it is now.
    #[must_use]
    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// Counts of each layer slot.
    #[must_use]
    pub fn layers(&self) -> &[Count] {
        &self.layers
    }

    /// Counts of all layers.
    #[must_use]
    pub fn total(&self) -> Count {
        let mut total = Count::default();
        for &layer in &self.layers {
            total.add(layer);
        }
        total
    }
}

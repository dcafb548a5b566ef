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

/// What cannot be evicted while a pass is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pins {
    /// Nothing: every access is on its own, as in the literature.
    #[default]
    None,
    /// What the pass has used so far: its experts are needed together, so a tier holds them
    /// until the pass is done. LRU decides the same where a pass fits the capacity.
    Pass,
}

/// A policy and its counts, fed pass by pass: the simulator's inner part, for streams that
/// are never all in memory. It holds nothing but the policy and two numbers a layer.
pub struct Meter<P> {
    policy: P,
    pins: Pins,
    layers: Vec<Count>,
}

impl<P: Policy> Meter<P> {
    /// Counts for `n_slots` layers.
    #[must_use]
    pub fn new(policy: P, n_slots: usize, pins: Pins) -> Self {
        Self { policy, pins, layers: vec![Count::default(); n_slots] }
    }

    /// Shows the policy one pass without counting it.
    pub fn warm(&mut self, keys: &[Key]) {
        self.hits(keys);
    }

    /// Counts one pass of the layer at `slot`.
    ///
    /// # Panics
    ///
    /// If there is no such slot.
    pub fn score(&mut self, slot: u16, keys: &[Key]) {
        let count = Count { accesses: keys.len() as u64, hits: self.hits(keys) };
        self.layers[usize::from(slot)].add(count);
    }

    fn hits(&mut self, keys: &[Key]) -> u64 {
        let mut hits = 0;
        for (at, &key) in keys.iter().enumerate() {
            let pinned = match self.pins {
                Pins::None => &[],
                Pins::Pass => &keys[..at],
            };
            hits += u64::from(self.policy.access(key, pinned).is_hit());
        }
        hits
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

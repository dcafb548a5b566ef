use crate::accesses::KeySpace;
use crate::error::TraceError;
use crate::ids::ModelShape;
use crate::policy::{Lru, Policy};
use crate::route::Route;
use serde::{Deserialize, Serialize};

/// The nominal miss demand of a decode: what must come from the device if the file cache
/// were an exact LRU of whole experts.
///
/// The demand model of the paper, section 4: simulate LRU at the capacity, multiply its
/// misses by the size of an expert. It has no fitted constant and predicts no time; measured
/// device bytes divided by it is the amplification. It runs beside a live decode: a route
/// costs tens of nanoseconds an expert and no allocation, and the capacity may change while
/// it runs, as the memory that the kernel leaves to the file cache does.
///
/// ```
/// use router_trace::{DemandModel, ModelShape, Route};
///
/// let shape = ModelShape { moe_layers: vec![0, 1], n_experts: 4, top_k: 2 };
/// let mut demand = DemandModel::new(&shape, 1_000, 4_000)?;
/// let start = demand.count();
/// for experts in [[0, 1], [0, 2]] {
///     demand.observe(&Route::new(0, &experts).unwrap())?;
///     demand.observe(&Route::new(1, &experts).unwrap())?;
///     demand.end_iteration();
/// }
/// let count = demand.count().since(&start);
/// assert_eq!((count.accesses, count.misses, count.iterations), (8, 6, 2));
/// assert_eq!(count.miss_bytes_per_iteration(), 3_000.0);
/// # Ok::<(), router_trace::TraceError>(())
/// ```
pub struct DemandModel {
    space: KeySpace,
    lru: Lru,
    expert_bytes: u64,
    count: DemandCount,
}

/// What a [`DemandModel`] has counted since it was made; it never goes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DemandCount {
    /// Iterations that ended.
    pub iterations: u64,
    /// Experts asked for.
    pub accesses: u64,
    /// Of these, how many an LRU of the capacity at that moment would have had to read.
    pub misses: u64,
    /// The same in bytes.
    pub miss_bytes: u64,
}

impl DemandCount {
    /// What was counted after `earlier`, a count of the same model.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            iterations: self.iterations.saturating_sub(earlier.iterations),
            accesses: self.accesses.saturating_sub(earlier.accesses),
            misses: self.misses.saturating_sub(earlier.misses),
            miss_bytes: self.miss_bytes.saturating_sub(earlier.miss_bytes),
        }
    }

    /// Nominal miss demand of one iteration in bytes; 0 before the first one ended.
    #[must_use]
    pub fn miss_bytes_per_iteration(&self) -> f64 {
        if self.iterations == 0 { 0.0 } else { self.miss_bytes as f64 / self.iterations as f64 }
    }

    /// Measured device bytes over nominal ones; `None` where nothing had to be read.
    #[must_use]
    pub fn amplification(&self, device_bytes: u64) -> Option<f64> {
        (self.miss_bytes > 0).then(|| device_bytes as f64 / self.miss_bytes as f64)
    }
}

impl DemandModel {
    /// A cold cache of `capacity_bytes` for a model whose experts have `expert_bytes` each.
    ///
    /// # Errors
    ///
    /// [`TraceError::TooMany`] for a model above [`MAX_KEYS`](crate::policy::MAX_KEYS)
    /// experts, [`TraceError::Setting`] if experts have no bytes.
    pub fn new(
        shape: &ModelShape,
        expert_bytes: u64,
        capacity_bytes: u64,
    ) -> Result<Self, TraceError> {
        if expert_bytes == 0 {
            return Err(TraceError::Setting {
                what: "expert size in bytes",
                value: "0".to_owned(),
                expected: "at least 1".to_owned(),
            });
        }
        let space = KeySpace::new(shape)?;
        let lru = Lru::new(whole_experts(capacity_bytes, expert_bytes), space.n_keys());
        Ok(Self { space, lru, expert_bytes, count: DemandCount::default() })
    }

    /// Follows the memory that the file cache has now; what no longer fits is evicted, the
    /// least recently used first.
    pub fn set_capacity_bytes(&mut self, capacity_bytes: u64) {
        self.lru.set_capacity(whole_experts(capacity_bytes, self.expert_bytes), |_| {});
    }

    /// Whole experts that fit now.
    #[must_use]
    pub fn capacity_experts(&self) -> usize {
        self.lru.capacity()
    }

    /// One token's experts at one layer; gives the misses among them.
    ///
    /// # Errors
    ///
    /// [`TraceError::ForeignExpert`] if the model does not have one of them; nothing is
    /// counted then.
    pub fn observe(&mut self, route: &Route) -> Result<u32, TraceError> {
        if let Some(id) = route.ids().find(|&id| self.space.key(id).is_none()) {
            return Err(self.space.foreign(self.count.iterations, id));
        }
        let mut misses = 0;
        for id in route.ids() {
            let key = self.space.key(id).expect("looked up before");
            misses += u32::from(!self.lru.access(key, &[]).is_hit());
        }
        self.count.accesses += route.experts().len() as u64;
        self.count.misses += u64::from(misses);
        self.count.miss_bytes += u64::from(misses) * self.expert_bytes;
        Ok(misses)
    }

    /// A forward pass over all layers is complete.
    pub fn end_iteration(&mut self) {
        self.count.iterations += 1;
    }

    /// What was counted so far.
    #[must_use]
    pub fn count(&self) -> DemandCount {
        self.count
    }
}

fn whole_experts(capacity_bytes: u64, expert_bytes: u64) -> usize {
    usize::try_from(capacity_bytes / expert_bytes).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(capacity_bytes: u64) -> DemandModel {
        let shape = ModelShape { moe_layers: vec![3], n_experts: 8, top_k: 2 };
        DemandModel::new(&shape, 100, capacity_bytes).unwrap()
    }

    fn misses(model: &mut DemandModel, experts: &[u16]) -> u32 {
        model.observe(&Route::new(3, experts).unwrap()).unwrap()
    }

    #[test]
    fn the_capacity_may_change_while_it_runs() {
        let mut model = model(499);
        assert_eq!(model.capacity_experts(), 4);
        assert_eq!(misses(&mut model, &[0, 1, 2, 3]), 4);
        assert_eq!(misses(&mut model, &[0, 1, 2, 3]), 0);
        model.set_capacity_bytes(200); // 0 and 1 go
        assert_eq!(misses(&mut model, &[2, 3]), 0);
        assert_eq!(misses(&mut model, &[0, 1]), 2);
        model.set_capacity_bytes(300); // 0 and 1 stay, one more fits
        assert_eq!(misses(&mut model, &[5, 0, 1]), 1);
        model.set_capacity_bytes(0);
        assert_eq!(misses(&mut model, &[5, 5]), 2);
        let count = model.count();
        assert_eq!((count.accesses, count.misses, count.miss_bytes), (17, 9, 900));
        assert_eq!(count.amplification(1800), Some(2.0));
        assert_eq!(count.since(&count).amplification(1), None);
    }

    #[test]
    fn foreign_experts_are_refused_uncounted() {
        let mut model = model(400);
        for (layer, experts) in [(3, [0, 8]), (2, [0, 1])] {
            let error = model.observe(&Route::new(layer, &experts).unwrap()).unwrap_err();
            assert_eq!(error.kind(), "trace-invalid");
        }
        assert_eq!(model.count(), DemandCount::default());
        assert_eq!(misses(&mut model, &[0, 1]), 2);
    }

    #[test]
    fn experts_without_bytes_are_refused() {
        let shape = ModelShape { moe_layers: vec![3], n_experts: 8, top_k: 2 };
        assert!(DemandModel::new(&shape, 0, 400).is_err());
    }
}

//! The demand model beside a live tier.

use super::{Shared, Tier};
use crate::demand::{DemandConfig, DemandReport, DemandWatch, Kept};
use crate::error::TierError;
use crate::lease::Adopted;
use crate::observe::SystemRoot;
use router_trace::{DemandModel, ExpertId};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Tier {
    /// Compute from now on what exact LRU would read within the memory left to files, and hold
    /// the devices' reads against it. A second call changes nothing.
    ///
    /// # Errors
    /// `limit` for a pool with more experts than the model can follow, or without any.
    pub fn watch_demand(&self, config: DemandConfig, root: &SystemRoot) -> Result<(), TierError> {
        if self.shared.demand.get().is_some() {
            return Ok(());
        }
        let layout = self.pool().layout();
        let experts = layout.total_experts() as u64;
        let expert_bytes = layout.total_bytes().checked_div(experts).unwrap_or(0);
        let top_k = self.pool().config().and_then(|config| config.top_k).unwrap_or(1);
        let model = DemandModel::new(&layout.shape(top_k), expert_bytes, 0).map_err(|_| {
            TierError::Limit {
                path: self.pool().root().to_owned(),
                what: "experts whose demand is watched".to_owned(),
                value: experts,
                most: router_trace::policy::MAX_KEYS as u64,
            }
        })?;
        let device = self.device_counters(root);
        let kept = Kept {
            admits: Arc::clone(&self.shared.admits),
            passed_bytes: Arc::clone(&self.shared.passed_bytes),
        };
        let watch = DemandWatch::new(model, expert_bytes, kept, device, config, root);
        // Whoever came first keeps counting.
        let _ = self.shared.demand.set(Arc::new(watch));
        Ok(())
    }

    /// What was computed and measured since [`Tier::watch_demand`]; `None` before.
    #[must_use]
    pub fn demand(&self) -> Option<DemandReport> {
        self.shared.demand.get().map(|watch| watch.report())
    }
}

impl Shared {
    /// Tell the demand model, if there is one, of experts that a call begun at `now` has adopted.
    /// Once an adoption, and a function of its own, so that its cost can be told apart.
    #[inline(never)]
    pub(crate) fn note_demand(&self, ids: impl ExactSizeIterator<Item = ExpertId>, now: Instant) {
        if let Some(watch) = self.demand.get()
            && watch.note(ids, now)
        {
            self.follow_demand(watch);
        }
    }

    /// Some experts passed: those that were in the page cache were used there, of the others it
    /// knows nothing.
    pub(crate) fn note_passed(&self, adopted: &Adopted, passed_bytes: u64, now: Instant) {
        self.passed_bytes.fetch_add(passed_bytes, Ordering::Relaxed);
        let warm: Vec<ExpertId> = adopted.in_place().collect();
        self.note_demand(warm.into_iter(), now);
    }

    /// On a fill thread: they have nothing to do while everything is warm, and wait for the
    /// device otherwise.
    #[cold]
    fn follow_demand(&self, watch: &Arc<DemandWatch>) {
        if watch.can_wait() {
            let watch = Arc::clone(watch);
            self.filler.spawn(move || watch.follow());
        } else {
            watch.follow();
        }
    }
}

use parking_lot::{Condvar, Mutex};
use router_trace::ExpertId;
use std::collections::HashSet;

/// Experts that some fill is bringing in right now: whoever else needs one waits for that fill.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    experts: Mutex<HashSet<ExpertId>>,
    left: Condvar,
}

impl InFlight {
    /// `true` if nobody fills `id` yet; the caller then has to, and to release it afterwards.
    pub(crate) fn claim(&self, id: ExpertId) -> bool {
        self.experts.lock().insert(id)
    }

    pub(crate) fn release(&self, id: ExpertId) {
        self.experts.lock().remove(&id);
        self.left.notify_all();
    }

    /// Wait until nobody fills `id`.
    pub(crate) fn wait_for(&self, id: ExpertId) {
        let mut experts = self.experts.lock();
        self.left.wait_while(&mut experts, |experts| experts.contains(&id));
    }
}

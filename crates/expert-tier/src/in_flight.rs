use parking_lot::{Condvar, Mutex};
use router_trace::ExpertId;
use std::collections::HashSet;

/// Experts that somebody is bringing in right now. Whoever demands one waits for the fill of
/// another demand, and never for advice: what advice has begun, at most a piece, the page cache
/// hands to both, and the rest it leaves to demand.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    state: Mutex<State>,
    left: Condvar,
}

#[derive(Debug, Default)]
struct State {
    demanded: HashSet<ExpertId>,
    advised: HashSet<ExpertId>,
}

/// Advice on one expert, until dropped.
#[derive(Debug)]
pub(crate) struct AdviceClaim<'a> {
    in_flight: &'a InFlight,
    id: ExpertId,
}

impl InFlight {
    /// `true` if nobody fills `id` yet; the caller then has to, and to release it afterwards.
    pub(crate) fn claim(&self, id: ExpertId) -> bool {
        self.state.lock().demanded.insert(id)
    }

    pub(crate) fn release(&self, id: ExpertId) {
        self.state.lock().demanded.remove(&id);
        self.left.notify_all();
    }

    /// Wait until nobody fills `id`.
    pub(crate) fn wait_for(&self, id: ExpertId) {
        let mut state = self.state.lock();
        self.left.wait_while(&mut state, |state| state.demanded.contains(&id));
    }

    /// Begin advice on `id`; `None` where demand or other advice is bringing it already.
    pub(crate) fn advise(&self, id: ExpertId) -> Option<AdviceClaim<'_>> {
        let mut state = self.state.lock();
        let free = !state.demanded.contains(&id) && state.advised.insert(id);
        // Not `then_some`: a claim that is made and dropped would take the lock, and the place.
        free.then(|| AdviceClaim { in_flight: self, id })
    }
}

impl AdviceClaim<'_> {
    /// Whether demand has begun to fill the expert: all that is not begun is now its own.
    pub(crate) fn overtaken(&self) -> bool {
        self.in_flight.state.lock().demanded.contains(&self.id)
    }
}

impl Drop for AdviceClaim<'_> {
    fn drop(&mut self) {
        self.in_flight.state.lock().advised.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demand_takes_over_and_advice_never_holds_it_up() {
        let in_flight = InFlight::default();
        let id = ExpertId::new(3, 7);
        let advice = in_flight.advise(id).unwrap();
        assert!(in_flight.advise(id).is_none(), "one advice an expert");
        assert!(in_flight.advise(ExpertId::new(3, 8)).is_some());
        assert!(!advice.overtaken());
        in_flight.wait_for(id); // returns: advice is nothing to wait for
        assert!(in_flight.claim(id));
        assert!(advice.overtaken());
        drop(advice);
        assert!(in_flight.advise(id).is_none(), "demand is at it");
        in_flight.release(id);
        assert!(in_flight.advise(id).is_some());
    }
}

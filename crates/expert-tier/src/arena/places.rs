use crate::fill::buffer::BufferExpert;
use crate::lease::AdoptedExpert;
use parking_lot::Mutex;
use router_trace::ExpertId;
use router_trace::policy::{Decision, Keeper};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// The experts that an arena keeps, and who decides.
pub(crate) struct Places {
    state: Mutex<State>,
}

struct State {
    keeper: Keeper,
    /// Exactly the experts that the keeper keeps.
    kept: HashMap<ExpertId, Arc<BufferExpert>>,
    /// The experts of leases that are alive, once for each.
    pinned: Vec<ExpertId>,
}

/// Experts of one lease that are not to be given up; gone when dropped.
#[derive(Debug)]
pub(crate) struct Pins {
    places: Arc<Places>,
    ids: Vec<ExpertId>,
}

impl Places {
    pub(crate) fn new(keeper: Keeper, kept: HashMap<ExpertId, Arc<BufferExpert>>) -> Self {
        Self { state: Mutex::new(State { keeper, kept, pinned: Vec::new() }) }
    }

    /// What is kept of `ids`, and pins on these. The keeper does not hear of it yet.
    pub(crate) fn hold(
        self: &Arc<Self>,
        ids: &[ExpertId],
    ) -> (Vec<Option<Arc<BufferExpert>>>, Pins) {
        let mut state = self.state.lock();
        let found: Vec<_> = ids.iter().map(|id| state.kept.get(id).cloned()).collect();
        let held = ids.iter().zip(&found).filter(|(_, buffer)| buffer.is_some());
        let pins = Pins { places: Arc::clone(self), ids: held.map(|(&id, _)| id).collect() };
        state.pinned.extend(&pins.ids);
        (found, pins)
    }

    /// Experts kept now, and those in use.
    pub(crate) fn len(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.kept.len(), state.pinned.len())
    }
}

impl Pins {
    /// All bytes of a lease are there: the keeper hears of its experts one after the other, those
    /// before each pinned, and decides which buffers stay. Says which experts were kept already
    /// when their turn came.
    pub(crate) fn settle(&mut self, experts: &mut [AdoptedExpert]) -> Vec<bool> {
        let mut given_up = Vec::new(); // unmapped, if at all, without the lock
        let mut state = self.places.state.lock();
        let State { keeper, kept, pinned } = &mut *state;
        unpin(pinned, &self.ids);
        self.ids.clear();
        let settle = |expert: &mut AdoptedExpert| {
            let id = expert.id;
            let decision = keeper.access(id, pinned).expect("the keeper is of this pool's shape");
            pinned.push(id);
            self.ids.push(id);
            match decision {
                Decision::Hit => {
                    // Ours is a second copy if another thread brought the expert meanwhile.
                    given_up.extend(expert.buffer.take());
                    expert.buffer = kept.get(&id).cloned();
                }
                Decision::Admit { evicted } => {
                    given_up.extend(evicted.and_then(|evicted| kept.remove(&evicted)));
                    kept.extend(expert.buffer.clone().map(|buffer| (id, buffer)));
                }
                Decision::Bypass => {}
            }
            decision == Decision::Hit
        };
        let hits = experts.iter_mut().map(settle).collect();
        drop(state);
        drop(given_up);
        hits
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        unpin(&mut self.places.state.lock().pinned, &self.ids);
    }
}

/// Takes each of `ids` once out of `pinned`.
fn unpin(pinned: &mut Vec<ExpertId>, ids: &[ExpertId]) {
    for id in ids {
        let place = pinned.iter().position(|pinned| pinned == id);
        pinned.swap_remove(place.expect("pinned by the lease that unpins it"));
    }
}

impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Places")
            .field("policy", &state.keeper.policy().name())
            .field("capacity", &state.keeper.policy().capacity())
            .field("kept", &state.kept.len())
            .field("pinned", &state.pinned.len())
            .finish()
    }
}

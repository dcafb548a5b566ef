use super::buffer::BufferExpert;
use crate::error::TierError;
use parking_lot::{Condvar, Mutex};

/// How far the fill of a route has come: told by the threads that read, awaited by the one that
/// asked.
#[derive(Debug)]
pub(crate) struct Arrival {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    experts: Vec<Slot>,
    /// Experts that are neither here nor given up.
    open: usize,
    /// After the first error nothing new is begun.
    stopped: bool,
    error: Option<TierError>,
}

#[derive(Debug)]
enum Slot {
    Open,
    /// Usable; with a buffer where it does not lie in the mapping.
    Here(Option<BufferExpert>),
    Given,
}

impl Arrival {
    pub(crate) fn new(experts: usize) -> Self {
        let slots = (0..experts).map(|_| Slot::Open).collect();
        let state = State { experts: slots, open: experts, stopped: false, error: None };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Whether a read has failed, so that the rest need not be begun.
    pub(crate) fn stopped(&self) -> bool {
        self.state.lock().stopped
    }

    /// The first error counts: the others are most often its echoes.
    pub(crate) fn fail(&self, error: TierError) {
        let mut state = self.state.lock();
        if !state.stopped {
            state.stopped = true;
            state.error = Some(error);
        }
        self.changed.notify_all();
    }

    /// Nobody reads for expert `index` any more: it is here, or the fill has failed.
    pub(crate) fn close(&self, index: usize, buffer: Option<BufferExpert>) {
        let mut state = self.state.lock();
        state.experts[index] = Slot::Here(buffer);
        state.open -= 1;
        self.changed.notify_all();
    }

    /// Wait until expert `index` is usable.
    ///
    /// # Errors
    /// What made the fill fail, whichever expert it was for.
    pub(crate) fn wait(&self, index: usize) -> Result<Option<BufferExpert>, TierError> {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| {
            !state.stopped && matches!(state.experts[index], Slot::Open)
        });
        state.take(index).unwrap_or(Ok(None))
    }

    /// The same without waiting: `None` if it is not here yet.
    pub(crate) fn try_take(&self, index: usize) -> Option<Result<Option<BufferExpert>, TierError>> {
        self.state.lock().take(index)
    }

    /// Wait until nobody reads any more.
    pub(crate) fn wait_closed(&self) {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| state.open > 0);
    }
}

impl State {
    fn take(&mut self, index: usize) -> Option<Result<Option<BufferExpert>, TierError>> {
        if self.stopped {
            let told = TierError::FillStopped;
            return Some(Err(self.error.take().unwrap_or(told)));
        }
        let slot = &mut self.experts[index];
        match std::mem::replace(slot, Slot::Given) {
            Slot::Here(buffer) => Some(Ok(buffer)),
            other => {
                *slot = other;
                None
            }
        }
    }
}

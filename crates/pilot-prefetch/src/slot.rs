//! The hand-over from the decode thread to the worker: one place, and what is newest wins.
//!
//! Three cells go round between the two threads, and one word says which of them lies in the
//! middle: the poster fills its own cell and exchanges it for the middle one, the taker exchanges
//! its own for a middle one that is fresh. So neither ever waits for the other, nothing is
//! allocated, and a cell is only ever touched by the thread that owns it: its lock is always free,
//! which the model checker proves (`RUSTFLAGS="--cfg loom" cargo test -p pilot-prefetch --release
//! --lib loom --target-dir target/loom`).

#[cfg(loom)]
use loom::{
    sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    sync::{Arc, Mutex, MutexGuard},
    thread,
};
use serde::{Deserialize, Serialize};
use std::sync::TryLockError;
#[cfg(not(loom))]
use std::{
    sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    sync::{Arc, Mutex, MutexGuard},
    thread,
};

/// Which cell lies in the middle.
const CELL: u8 = 0b011;
/// It was posted and not taken yet.
const FRESH: u8 = 0b100;

/// What became of the plans that were posted. Each of them is, in the end, overwritten, taken or
/// left behind at the close; each that was taken is completed or stale.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SlotCounts {
    /// Plans that were posted.
    pub submitted: u64,
    /// Plans that a newer one replaced before they were taken.
    pub overwritten: u64,
    /// Plans that the worker took.
    pub taken: u64,
    /// Of these, plans that were worked off.
    pub completed: u64,
    /// Of these, plans that were given up: their layer had begun its demand, or a newer plan came.
    pub stale: u64,
}

/// The decode thread's end. Dropping it closes the slot.
#[derive(Debug)]
pub(crate) struct Poster<T> {
    shared: Arc<Shared<T>>,
    own: u8,
    taker: thread::Thread,
}

/// The worker's end.
#[derive(Debug)]
pub(crate) struct Taker<T> {
    shared: Arc<Shared<T>>,
    own: u8,
}

/// A plan that was taken: stale unless completed.
pub(crate) struct Taken<'a, T> {
    cell: MutexGuard<'a, Entry<T>>,
    shared: &'a Shared<T>,
    completed: bool,
}

/// Reads the counts from any thread.
#[derive(Debug)]
pub(crate) struct Counts<T>(Arc<Shared<T>>);

#[derive(Debug)]
struct Entry<T> {
    position: u64,
    value: T,
}

#[derive(Debug)]
struct Shared<T> {
    cells: [Mutex<Entry<T>>; 3],
    middle: AtomicU8,
    closed: AtomicBool,
    /// One more than the last position whose demand has begun; 0 before the first.
    demanded: AtomicU64,
    submitted: AtomicU64,
    overwritten: AtomicU64,
    taken: AtomicU64,
    completed: AtomicU64,
    stale: AtomicU64,
}

/// The order in which layers are decoded: pass by pass, layer by layer.
#[cfg(not(loom))]
pub(crate) fn position(step: u64, layer: u16) -> u64 {
    (step.min(u64::MAX >> 17) << 16) | u64::from(layer)
}

/// A slot of values that `make` makes three of, and a thread that runs `body` with its far end.
pub(crate) fn spawn<T: Send + 'static>(
    make: impl Fn() -> T,
    start: impl FnOnce(Taker<T>) -> std::io::Result<thread::JoinHandle<()>>,
) -> std::io::Result<(Poster<T>, Counts<T>, thread::JoinHandle<()>)> {
    let cell = || Mutex::new(Entry { position: 0, value: make() });
    let zero = || AtomicU64::new(0);
    let shared = Arc::new(Shared {
        cells: [cell(), cell(), cell()],
        middle: AtomicU8::new(1),
        closed: AtomicBool::new(false),
        demanded: zero(),
        submitted: zero(),
        overwritten: zero(),
        taken: zero(),
        completed: zero(),
        stale: zero(),
    });
    let handle = start(Taker { shared: Arc::clone(&shared), own: 0 })?;
    let taker = handle.thread().clone();
    let counts = Counts(Arc::clone(&shared));
    Ok((Poster { shared, own: 2, taker }, counts, handle))
}

impl<T> Poster<T> {
    /// Puts a plan into the slot, written by `write` over an older one, in place of what was
    /// there. Never waits.
    pub(crate) fn post(&mut self, position: u64, write: impl FnOnce(&mut T)) {
        {
            let mut cell = self.shared.cell(self.own);
            cell.position = position;
            write(&mut cell.value);
        }
        // The counts are read for reports only; the exchange orders the cells.
        self.shared.submitted.fetch_add(1, Ordering::Relaxed);
        let before = self.shared.middle.swap(self.own | FRESH, Ordering::AcqRel);
        if before & FRESH != 0 {
            self.shared.overwritten.fetch_add(1, Ordering::Relaxed);
        }
        self.own = before & CELL;
        self.taker.unpark();
    }

    /// The demand at `position` has begun: plans for it, or for what lies before, are stale.
    pub(crate) fn begin_demand(&self, position: u64) {
        self.shared.demanded.fetch_max(position + 1, Ordering::Release);
    }
}

impl<T> Drop for Poster<T> {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        self.taker.unpark();
    }
}

impl<T> Taker<T> {
    /// Waits for a plan that is not stale yet; `None` once the slot is closed.
    pub(crate) fn take(&mut self) -> Option<Taken<'_, T>> {
        while !self.shared.closed.load(Ordering::Acquire) {
            if !self.exchange() {
                // A post or the close after the looks above leaves a token that ends this at once.
                thread::park();
                continue;
            }
            if !self.shared.is_stale(self.shared.cell(self.own).position) {
                let Self { shared, own } = self;
                return Some(Taken { cell: shared.cell(*own), shared, completed: false });
            }
            self.shared.stale.fetch_add(1, Ordering::Relaxed);
        }
        None
    }

    /// Whether there was a fresh plan; it is then in our own cell.
    fn exchange(&mut self) -> bool {
        // Nobody but us takes the mark away.
        if self.shared.middle.load(Ordering::Acquire) & FRESH == 0 {
            return false;
        }
        self.own = self.shared.middle.swap(self.own, Ordering::AcqRel) & CELL;
        self.shared.taken.fetch_add(1, Ordering::Relaxed);
        true
    }
}

impl<T> Taken<'_, T> {
    /// The plan.
    pub(crate) fn value(&self) -> &T {
        &self.cell.value
    }

    /// Whether it is not worth going on with: demand has come, a newer plan, or the end.
    pub(crate) fn is_stale(&self) -> bool {
        self.shared.is_stale(self.cell.position)
            || self.shared.middle.load(Ordering::Relaxed) & FRESH != 0
            || self.shared.closed.load(Ordering::Relaxed)
    }

    /// All of it was done.
    pub(crate) fn complete(mut self) {
        self.completed = true;
    }
}

impl<T> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        let count = if self.completed { &self.shared.completed } else { &self.shared.stale };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

impl<T> Counts<T> {
    pub(crate) fn now(&self) -> SlotCounts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        SlotCounts {
            submitted: read(&self.0.submitted),
            overwritten: read(&self.0.overwritten),
            taken: read(&self.0.taken),
            completed: read(&self.0.completed),
            stale: read(&self.0.stale),
        }
    }
}

impl<T> Shared<T> {
    fn is_stale(&self, position: u64) -> bool {
        self.demanded.load(Ordering::Acquire) > position
    }

    /// A cell that the calling thread owns.
    fn cell(&self, index: u8) -> MutexGuard<'_, Entry<T>> {
        match self.cells[usize::from(index)].try_lock() {
            Ok(cell) => cell,
            // Whoever panicked over it left a plan that is whole or about to be overwritten.
            Err(TryLockError::Poisoned(cell)) => cell.into_inner(),
            Err(TryLockError::WouldBlock) => unreachable!("a cell has one owner at a time"),
        }
    }
}

#[cfg(test)]
#[path = "slot_tests.rs"]
mod tests;

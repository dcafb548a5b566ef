//! Threads of a pool that spin for a moment before they park.
//!
//! A decode step forks some thirty times, tens of microseconds apart, and a parked thread wakes
//! later than the others need for its share: it would find nothing left to do.

use rayon::Yield;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long a thread that found no work looks for more before it parks: longer than any stretch
/// on one thread between two forks of a layer, shorter than a read from a device.
const PATIENCE: Duration = Duration::from_micros(200);

/// Rounds without work between two looks at the clock, which also let another thread of the
/// machine have the core if there is one.
const ROUNDS_PER_LOOK: u32 = 32;

/// Keeps the threads of one rayon pool spinning between forks that follow each other closely.
///
/// Clones speak of the same pool.
#[derive(Clone, Debug)]
pub struct Spinners(Arc<State>);

#[derive(Debug)]
struct State {
    /// By the thread's index in its pool.
    spins: Vec<AtomicBool>,
    spinning: AtomicUsize,
}

impl Spinners {
    /// For a pool of `threads` threads.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        let spins = (0..threads).map(|_| AtomicBool::new(false)).collect();
        Self(Arc::new(State { spins, spinning: AtomicUsize::new(0) }))
    }

    /// Makes every other thread of the pool that this is called on look for work from now on,
    /// and for 200 µs after the last that it found. Costs next to nothing while they
    /// do; nothing happens outside of a pool.
    pub fn keep(&self) {
        let Some(caller) = rayon::current_thread_index() else { return };
        // Both only decide whether to ask again: being late by a call does no harm.
        if self.0.others(caller) + 1 >= self.0.spins.len() {
            return;
        }
        let state = Arc::clone(&self.0);
        rayon::spawn_broadcast(move |thread| {
            if thread.index() != caller {
                state.spin(thread.index());
            }
        });
    }

    /// Threads that spin or work on what they found.
    #[must_use]
    pub fn spinning(&self) -> usize {
        self.0.spinning.load(Ordering::Relaxed)
    }
}

impl State {
    /// Spinning threads besides the caller, which is one of them where it found this very work
    /// while it spun.
    fn others(&self, caller: usize) -> usize {
        let itself = self.spins.get(caller).is_some_and(|own| own.load(Ordering::Relaxed));
        self.spinning.load(Ordering::Relaxed).saturating_sub(usize::from(itself))
    }

    fn spin(&self, index: usize) {
        // Asked twice, a thread would spin inside of its own spinning.
        let Some(own) = self.spins.get(index).filter(|own| !own.swap(true, Ordering::Relaxed))
        else {
            return;
        };
        self.spinning.fetch_add(1, Ordering::Relaxed);
        let (mut since, mut rounds) = (Instant::now(), 0_u32);
        loop {
            if rayon::yield_now() == Some(Yield::Executed) {
                (since, rounds) = (Instant::now(), 0);
                continue;
            }
            std::hint::spin_loop();
            rounds += 1;
            if rounds.is_multiple_of(ROUNDS_PER_LOOK) {
                if since.elapsed() > PATIENCE {
                    break;
                }
                std::thread::yield_now();
            }
        }
        self.spinning.fetch_sub(1, Ordering::Relaxed);
        own.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rayon::{ThreadPool, ThreadPoolBuilder};
    use std::sync::mpsc;

    fn pool(threads: usize) -> ThreadPool {
        ThreadPoolBuilder::new().num_threads(threads).build().unwrap()
    }

    fn until(reached: impl Fn() -> bool) {
        let begun = Instant::now();
        while !reached() {
            assert!(begun.elapsed() < Duration::from_secs(20), "never reached");
            std::thread::yield_now();
        }
    }

    #[test]
    fn all_others_spin_and_then_park() {
        for threads in 2..5 {
            let (pool, spinners) = (pool(threads), Spinners::new(threads));
            pool.install(|| {
                // Asked over and over, none does it twice at a time.
                until(|| {
                    spinners.keep();
                    assert!(spinners.spinning() < threads);
                    spinners.spinning() == threads - 1
                });
            });
            until(|| spinners.spinning() == 0);
        }
    }

    #[test]
    fn a_spinning_thread_works() {
        let (pool, spinners) = (pool(2), Spinners::new(2));
        pool.install(|| {
            until(|| {
                spinners.keep();
                spinners.spinning() == 1
            });
            let (done, answer) = mpsc::channel();
            // This thread is busy in the scope's body: only the other can run what it spawned.
            rayon::in_place_scope(|scope| {
                scope.spawn(|_| done.send(rayon::current_thread_index()).unwrap());
                let other = answer.recv_timeout(Duration::from_secs(20)).unwrap();
                assert_ne!(other, rayon::current_thread_index());
            });
        });
    }

    #[test]
    fn a_caller_that_spins_itself_asks_the_others() {
        let (pool, spinners) = (pool(2), Spinners::new(2));
        let (done, answer) = mpsc::channel();
        pool.install(|| {
            until(|| {
                spinners.keep();
                spinners.spinning() == 1
            });
            let (begun, beginning) = mpsc::channel();
            let inner = spinners.clone();
            rayon::spawn(move || {
                begun.send(()).unwrap();
                until(|| {
                    inner.keep();
                    inner.spinning() == 2
                });
                done.send(()).unwrap();
            });
            // This thread waits, so that the one that spins begins it.
            beginning.recv_timeout(Duration::from_secs(20)).unwrap();
        });
        answer.recv_timeout(Duration::from_secs(30)).unwrap();
    }

    #[test]
    fn one_thread_and_no_pool_are_left_alone() {
        let spinners = Spinners::new(1);
        spinners.keep();
        pool(1).install(|| spinners.keep());
        assert_eq!(spinners.spinning(), 0);
    }
}

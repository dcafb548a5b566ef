use super::plan::PlannedPass;
use super::touch::sum_bytes;
use crate::error::EngineError;
use expert_tier::{Adopt, TierError};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

/// The most demand threads.
const MAX_THREADS: usize = 256;

/// One iteration of a replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Iteration {
    /// From the first adoption to the last byte read, in nanoseconds.
    pub wall_ns: u64,
    /// Experts asked for.
    pub logical_accesses: u64,
    /// Their nominal bytes, all of which were read by the CPU.
    pub logical_bytes: u64,
    /// Sum of all 64-bit words read: the same whatever serves them.
    pub checksum: u64,
}

/// Replays `iterations` through `adopt` on `threads` demand threads: the passes of an iteration are
/// taken in order, each by the next free thread, which adopts its experts and reads all their bytes
/// as they come; the iteration is over when all are read. With one thread that is a decoder's own
/// order; with N the experts of N consecutive layers are on their way at once.
///
/// `between` is called after each iteration, with its number and what was measured of it, while
/// nothing runs: what it does counts only if it adds its time there.
///
/// # Errors
/// [`EngineError::Limit`] for a number of threads out of 1 to 256, the first error of an adoption,
/// what `between` answers.
pub fn replay(
    adopt: &dyn Adopt,
    iterations: &[Vec<PlannedPass>],
    threads: usize,
    mut between: impl FnMut(usize, &mut Iteration) -> Result<(), TierError>,
) -> Result<Vec<Iteration>, EngineError> {
    if !(1..=MAX_THREADS).contains(&threads) {
        return Err(EngineError::Limit {
            what: "demand threads".to_owned(),
            value: threads,
            problem: format!("must be 1 to {MAX_THREADS}"),
        });
    }
    let crew = Crew::new(threads);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| crew.work(adopt, iterations));
        }
        let mut done = Vec::with_capacity(iterations.len());
        let mut run = || {
            for number in 0..iterations.len() {
                let mut iteration = crew.iteration(number)?;
                between(number, &mut iteration)?;
                done.push(iteration);
            }
            Ok(())
        };
        let result = run();
        crew.stop();
        result.map(|()| done)
    })
}

/// Threads that wait at a barrier for the next iteration.
struct Crew {
    barrier: Barrier,
    over: AtomicBool,
    iteration: AtomicUsize,
    next_pass: AtomicUsize,
    sum: Mutex<Iteration>,
    error: Mutex<Option<TierError>>,
}

impl Crew {
    fn new(threads: usize) -> Self {
        Self {
            barrier: Barrier::new(threads + 1),
            over: AtomicBool::new(false),
            iteration: AtomicUsize::new(0),
            next_pass: AtomicUsize::new(0),
            sum: Mutex::default(),
            error: Mutex::default(),
        }
    }

    // The barrier orders all of the numbers below.
    fn iteration(&self, number: usize) -> Result<Iteration, EngineError> {
        self.iteration.store(number, Ordering::Relaxed);
        self.next_pass.store(0, Ordering::Relaxed);
        *self.sum.lock() = Iteration::default();
        let started = Instant::now();
        self.barrier.wait();
        self.barrier.wait();
        let wall_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        match self.error.lock().take() {
            Some(error) => Err(error.into()),
            None => Ok(Iteration { wall_ns, ..*self.sum.lock() }),
        }
    }

    fn stop(&self) {
        self.over.store(true, Ordering::Relaxed);
        self.barrier.wait();
    }

    fn work(&self, adopt: &dyn Adopt, iterations: &[Vec<PlannedPass>]) {
        loop {
            self.barrier.wait();
            if self.over.load(Ordering::Relaxed) {
                return;
            }
            let passes = &iterations[self.iteration.load(Ordering::Relaxed)];
            let mut sum = Iteration::default();
            while let Some(pass) = passes.get(self.next_pass.fetch_add(1, Ordering::Relaxed)) {
                if let Err(error) = serve(adopt, pass, &mut sum) {
                    self.error.lock().get_or_insert(error);
                    break;
                }
            }
            let mut all = self.sum.lock();
            all.logical_accesses += sum.logical_accesses;
            all.logical_bytes += sum.logical_bytes;
            all.checksum = all.checksum.wrapping_add(sum.checksum);
            drop(all);
            self.barrier.wait();
        }
    }
}

/// Adopts a pass's experts and reads each as it comes.
fn serve(adopt: &dyn Adopt, pass: &PlannedPass, sum: &mut Iteration) -> Result<(), TierError> {
    let mut adopting = adopt.begin(pass.layer, &pass.experts)?;
    loop {
        let more = adopting.wait()?;
        if more.is_empty() {
            break;
        }
        for expert in adopting.experts().skip(more.start) {
            for bytes in expert.parts().iter().filter_map(|part| part.bytes.host()) {
                sum.logical_bytes += bytes.len() as u64;
                sum.checksum = sum.checksum.wrapping_add(sum_bytes(bytes));
            }
            sum.logical_accesses += 1;
        }
    }
    adopting.finish().map(drop)
}

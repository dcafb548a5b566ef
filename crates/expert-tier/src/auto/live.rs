//! A tier's own measurements for [`AutoAdmission`], and its answer on the way to each read.
//!
//! Only adoptions that miss something come here, and only between their reads: a warm adoption
//! costs nothing, and no lock is held while anybody reads.

use super::config::AutoConfig;
use super::machine::{AdmissionTrial, AdmissionWindow, AutoAdmission};
use super::memory::{MemoryReader, MemoryState};
use crate::admission::Admission;
use crate::error::TierError;
use crate::fill::direct::BufferReader;
use crate::observe::SystemRoot;
use crate::stats::Snapshot;
use parking_lot::Mutex;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// How the missing experts of one adoption are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lane {
    /// Into the page cache, as the mode says.
    Through,
    /// The same, to hold a trial against.
    Control,
    /// Past it, as the mode says.
    Past,
    /// Past it, to see what that costs.
    Trial,
    /// Past it, so that its buffers are there when it is timed.
    WarmUp,
}

impl Lane {
    pub(crate) fn is_past(self) -> bool {
        matches!(self, Self::Past | Self::Trial | Self::WarmUp)
    }
}

/// What a tier has chosen, and what that rests on.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct AutoChoice {
    /// [`Admission::Admit`] or [`Admission::Direct`].
    pub mode: Admission,
    /// Why, in one sentence with the numbers.
    pub why: String,
    /// Waiting time in nanoseconds a byte adopted with admission; `None` before it was measured.
    pub admit_ns_per_byte: Option<f64>,
    /// The same past the page cache: measured, or by the last trial.
    pub direct_ns_per_byte: Option<f64>,
    /// Bytes read over bytes adopted, in the last window.
    pub miss_share: Option<f64>,
    /// Trials finished.
    pub trials: u64,
    /// Time that trials waited, in nanoseconds.
    pub trial_ns: u64,
    /// All time waited for reads in windows that are over, in nanoseconds.
    pub demand_ns: u64,
    /// Changes of mode.
    pub switches: u64,
    /// Times that admission was tried again.
    pub rechecks: u64,
    /// Windows seen.
    pub windows: u64,
    /// Seconds since a window was last judged; `None` before the first.
    pub checked_s_ago: Option<f64>,
    /// Memory as it was last read.
    pub memory: MemoryState,
}

/// Lanes of the moment.
const ADMIT: u8 = 0;
const DIRECT: u8 = 1;
const TRIAL: u8 = 2;

/// The part of a tier that measures and chooses.
#[derive(Debug)]
pub(crate) struct Auto {
    /// `ADMIT`, `DIRECT` or `TRIAL`. Read without the lock: a read that goes the old way once
    /// more does no harm.
    lanes: AtomicU8,
    /// Takes turns in a trial.
    turn: AtomicU32,
    /// Opened for the first trial: a pool that fits never needs it.
    reader: OnceLock<Arc<BufferReader>>,
    live: Mutex<Live>,
}

#[derive(Debug)]
struct Live {
    config: AutoConfig,
    machine: AutoAdmission,
    window: AdmissionWindow,
    /// The tier's adopted bytes when the window began, and of them since then those that trials
    /// read.
    adopted_before: u64,
    adopted_in_trials: u64,
    trial: Option<Running>,
    memory: Option<MemoryReader>,
    memory_due: Instant,
    checked: Option<Instant>,
}

/// A trial under way.
#[derive(Clone, Copy, Debug)]
struct Running {
    most_ns: u64,
    past_routes: u32,
    through_routes: u32,
    done: AdmissionTrial,
}

/// Something for another thread to do.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// What an adoption leaves to be done without the lock.
enum Errand {
    None,
    OpenReader {
        most_ns: u64,
    },
    /// Buffers are no longer needed.
    GiveBack,
}

impl Auto {
    pub(crate) fn new(
        config: AutoConfig,
        pool_bytes: u64,
        adopted_bytes: u64,
        root: &SystemRoot,
    ) -> Result<Self, TierError> {
        let live = Live {
            config,
            machine: AutoAdmission::new(config, pool_bytes)?,
            window: AdmissionWindow::default(),
            adopted_before: adopted_bytes,
            adopted_in_trials: 0,
            trial: None,
            memory: Some(MemoryReader::new(root)),
            memory_due: Instant::now(),
            checked: None,
        };
        Ok(Self {
            lanes: AtomicU8::new(ADMIT),
            turn: AtomicU32::new(0),
            reader: OnceLock::new(),
            live: Mutex::new(live),
        })
    }

    /// Begin anew with another config.
    pub(crate) fn restart(
        &self,
        config: AutoConfig,
        pool_bytes: u64,
        adopted_bytes: u64,
        root: &SystemRoot,
    ) -> Result<(), TierError> {
        let fresh = Self::new(config, pool_bytes, adopted_bytes, root)?.live.into_inner();
        let mut live = self.live.lock();
        *live = fresh;
        self.lanes.store(ADMIT, Ordering::Relaxed);
        Ok(())
    }

    /// Everything is admitted, for this reason.
    pub(crate) fn disable(&self, reason: String) {
        self.live.lock().machine.disable(reason);
    }

    /// How the missing experts of an adoption are to be read.
    pub(crate) fn lane(&self) -> Lane {
        match self.lanes.load(Ordering::Relaxed) {
            ADMIT => Lane::Through,
            DIRECT => Lane::Past,
            _ => match self.turn.fetch_add(1, Ordering::Relaxed) {
                0 => Lane::WarmUp,
                turn if turn % 2 == 0 => Lane::Trial,
                _ => Lane::Control,
            },
        }
    }

    /// Reads past the page cache; there is one whenever [`Auto::lane`] says so.
    pub(crate) fn reader(&self) -> Option<&Arc<BufferReader>> {
        self.reader.get()
    }

    /// An adoption that missed something is complete: `delta` is what it took, `adopted_bytes` the
    /// tier's counter with it. `open` opens the reader, `spawn` has another thread do a job.
    pub(crate) fn note(
        self: &Arc<Self>,
        lane: Lane,
        delta: &Snapshot,
        adopted_bytes: u64,
        admits: &AtomicBool,
        spawn: impl FnOnce(Job),
        open: impl FnOnce() -> Result<Arc<BufferReader>, String>,
    ) {
        let due = {
            let mut live = self.live.lock();
            live.count(lane, delta);
            live.due_memory()
        };
        if let Some(reader) = due {
            let auto = Arc::clone(self);
            spawn(Box::new(move || auto.read_memory(reader)));
        }
        let errand = {
            let mut live = self.live.lock();
            let errand = live.judge(adopted_bytes, &self.lanes);
            admits.store(live.machine.mode() == Admission::Admit, Ordering::Relaxed);
            errand
        };
        match errand {
            Errand::None => {}
            Errand::GiveBack => {
                if let Some(reader) = self.reader.get() {
                    reader.give_back();
                }
            }
            Errand::OpenReader { most_ns } => self.begin_trial(most_ns, open),
        }
    }

    /// Files of the kernel: neither on a decode thread nor under the lock.
    fn read_memory(&self, mut reader: MemoryReader) {
        let memory = reader.read();
        let mut live = self.live.lock();
        live.machine.tell_memory(memory);
        live.memory = Some(reader);
    }

    /// Not under the lock: opening reads a page of each file system.
    fn begin_trial(&self, most_ns: u64, open: impl FnOnce() -> Result<Arc<BufferReader>, String>) {
        let started = Instant::now();
        if self.reader.get().is_none() {
            match open() {
                // Whoever was first has as good a one.
                Ok(reader) => drop(self.reader.set(reader)),
                Err(reason) => {
                    tracing::info!(%reason, "admission: everything is admitted");
                    return self.disable(reason);
                }
            }
        }
        let mut live = self.live.lock();
        let cost_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if live.trial.is_none() && live.machine.mode() == Admission::Admit {
            let done = AdmissionTrial { cost_ns, ..AdmissionTrial::default() };
            live.trial = Some(Running { most_ns, past_routes: 0, through_routes: 0, done });
            self.turn.store(0, Ordering::Relaxed);
            self.lanes.store(TRIAL, Ordering::Relaxed);
        }
    }

    /// What is chosen now.
    pub(crate) fn choice(&self) -> AutoChoice {
        let live = self.live.lock();
        let machine = &live.machine;
        let counts = machine.counts();
        AutoChoice {
            mode: machine.mode(),
            why: machine.why(),
            admit_ns_per_byte: machine.admit_ns_per_byte(),
            direct_ns_per_byte: machine.direct_ns_per_byte(),
            miss_share: machine.miss_share(),
            trials: counts.trials,
            trial_ns: counts.trial_ns,
            demand_ns: counts.demand_ns,
            switches: counts.switches,
            rechecks: counts.rechecks,
            windows: counts.windows,
            checked_s_ago: live.checked.map(|at| at.elapsed().as_secs_f64()),
            memory: *machine.memory(),
        }
    }
}

impl Live {
    fn count(&mut self, lane: Lane, delta: &Snapshot) {
        let (bytes, ns) = (delta.missing_bytes, delta.fill_ns);
        if let Some(trial) = self.trial.as_mut() {
            match lane {
                Lane::Control => {
                    trial.through_routes += 1;
                    trial.done.through_bytes += bytes;
                    trial.done.through_ns += ns;
                }
                Lane::Trial => {
                    trial.past_routes += 1;
                    trial.done.past_bytes += bytes;
                    trial.done.past_ns += ns;
                    trial.done.cost_ns += ns;
                }
                Lane::WarmUp => trial.done.cost_ns += ns,
                Lane::Through | Lane::Past => {}
            }
        }
        if matches!(lane, Lane::Trial | Lane::WarmUp) {
            self.adopted_in_trials += delta.adopted_bytes;
        } else {
            self.window.missing_bytes += bytes;
            self.window.wait_ns += ns;
        }
    }

    /// The reader of memory, if it is time and nobody else has it.
    fn due_memory(&mut self) -> Option<MemoryReader> {
        let now = Instant::now();
        if now < self.memory_due {
            return None;
        }
        self.memory_due = now + self.config.refresh;
        self.memory.take()
    }

    fn judge(&mut self, adopted_bytes: u64, lanes: &AtomicU8) -> Errand {
        let adopted = adopted_bytes.saturating_sub(self.adopted_before);
        self.window.adopted_bytes = adopted.saturating_sub(self.adopted_in_trials);
        if let Some(trial) = self.trial {
            if !trial.is_over(&self.config) {
                return Errand::None;
            }
            self.trial = None;
            self.window.trial = Some(trial.outcome(&self.config));
            lanes.store(ADMIT, Ordering::Relaxed);
            return Errand::GiveBack;
        }
        if self.window.trial.is_none()
            && let Some(most_ns) = self.machine.trial_ns(&self.window)
        {
            return Errand::OpenReader { most_ns };
        }
        if self.window.missing_bytes < self.machine.window_bytes() {
            return Errand::None;
        }
        let before = self.machine.mode();
        self.window.memory = *self.machine.memory();
        let after = self.machine.observe(&self.window);
        if before != after {
            tracing::info!(mode = %after, why = %self.machine.why(), "admission changed");
        }
        lanes.store(if after == Admission::Direct { DIRECT } else { ADMIT }, Ordering::Relaxed);
        self.window = AdmissionWindow::default();
        (self.adopted_before, self.adopted_in_trials) = (adopted_bytes, 0);
        self.checked = Some(Instant::now());
        let unused = (before, after) == (Admission::Direct, Admission::Admit);
        if unused { Errand::GiveBack } else { Errand::None }
    }
}

impl Running {
    /// What is told of it: too few routes say nothing about the ratio, and cost all the same.
    fn outcome(&self, config: &AutoConfig) -> AdmissionTrial {
        if self.past_routes.min(self.through_routes) < config.trial_routes {
            let cost_ns = self.done.cost_ns;
            return AdmissionTrial { cost_ns, ..AdmissionTrial::default() };
        }
        self.done
    }

    /// It has read enough each way, or taken all the time that it may.
    fn is_over(&self, config: &AutoConfig) -> bool {
        let enough =
            |routes: u32, bytes: u64| routes >= config.trial_routes && bytes >= config.trial_bytes;
        let done = &self.done;
        done.cost_ns >= self.most_ns
            || enough(self.past_routes, done.past_bytes)
                && enough(self.through_routes, done.through_bytes)
    }
}

#[cfg(test)]
#[path = "live_tests.rs"]
mod tests;

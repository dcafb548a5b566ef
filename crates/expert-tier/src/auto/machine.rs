//! The choice itself: fed with what was measured, answers with a mode. It reads no clock, no file
//! and no counter, so that every course of events can be played to it.

use super::config::AutoConfig;
use super::memory::MemoryState;
use super::why::Why;
use crate::admission::Admission;

/// What a tier saw while so many missing bytes were read as the mode says.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct AdmissionWindow {
    /// Nominal bytes of all experts adopted, warm and cold, those of a trial's reads left out.
    pub adopted_bytes: u64,
    /// Bytes read for them.
    pub missing_bytes: u64,
    /// Time waited for these reads.
    pub wait_ns: u64,
    /// A trial that was finished meanwhile.
    pub trial: Option<AdmissionTrial>,
    /// Memory at the end of the window.
    pub memory: MemoryState,
}

/// Reads past the page cache and reads through it, in turn.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct AdmissionTrial {
    /// Bytes read past the page cache.
    pub past_bytes: u64,
    /// Time waited for them.
    pub past_ns: u64,
    /// Bytes read through it in between.
    pub through_bytes: u64,
    /// Time waited for them.
    pub through_ns: u64,
    /// All time that unbuffered reads of the trial took, those included that only prepared it.
    pub cost_ns: u64,
}

impl AdmissionTrial {
    /// What a byte past the cache costs, over one through it.
    fn ratio(&self) -> Option<f64> {
        let past = self.past_ns as f64 / self.past_bytes as f64;
        let through = self.through_ns as f64 / self.through_bytes as f64;
        Some(past / through).filter(|ratio| ratio.is_finite() && *ratio > 0.0)
    }
}

/// What the machine has counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AutoCounts {
    /// Windows seen.
    pub windows: u64,
    /// Trials finished.
    pub trials: u64,
    /// Changes of mode that were decided, looks whether admission is worth it again not among
    /// them.
    pub switches: u64,
    /// Such looks: admission for a bounded time.
    pub rechecks: u64,
    /// Time waited for reads.
    pub demand_ns: u64,
    /// The part of it that trials took.
    pub trial_ns: u64,
}

/// Chooses between admission and unbuffered reads.
///
/// Costs are waiting time a byte *adopted*: what is found in the page cache costs nothing, so
/// with admission that is (1 - h) t_m, and past the cache at most t_d, where nothing is found any
/// more. While admitting, t_d / t_m comes from trials, in which both ways take turns and the
/// device's mood hits both; unbuffered reads measure their own cost. What admission would cost by
/// then cannot be told without admitting, so this is done for eight windows at a time: when the
/// memory has changed, when unbuffered reads turn out dearer than expected, and after a while that
/// doubles.
#[derive(Clone, Debug)]
pub struct AutoAdmission {
    config: AutoConfig,
    pool_bytes: u64,
    phase: Phase,
    counts: AutoCounts,
    /// Windows that admitted since that began: a cache that is not full yet misses more than it
    /// will.
    admitted_windows: u64,
    /// How long the next change is held.
    hold: u32,
    /// Windows that pass unhurried until the next trial, and the pause after that.
    rest: u32,
    pause: u32,
    admit_ns_per_byte: Option<f64>,
    direct_ns_per_byte: Option<f64>,
    miss_share: Option<f64>,
    memory: MemoryState,
    /// Memory when the choice was last made or confirmed.
    reference: Option<MemoryState>,
    disabled: bool,
    why: Why,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Phase {
    /// `won`: trials in a row in which unbuffered reads were cheaper.
    Admit { won: u32 },
    /// `lost`: windows in a row that were dearer than admission was.
    Direct { windows: u32, lost: u32 },
    /// Admitting to see what that costs now. `won`: windows in a row in which it was cheaper.
    Recheck { left: u32, won: u32 },
}

/// Windows that read as much as the memory for files holds.
pub(super) const TURNOVER: u32 = 8;

impl AutoAdmission {
    /// Begins by admitting.
    ///
    /// # Errors
    /// A config out of its limits.
    pub fn new(config: AutoConfig, pool_bytes: u64) -> Result<Self, crate::TierError> {
        config.validate()?;
        Ok(Self {
            config,
            pool_bytes,
            phase: Phase::Admit { won: 0 },
            counts: AutoCounts::default(),
            admitted_windows: 0,
            hold: config.hold_windows,
            rest: 0,
            pause: 1,
            admit_ns_per_byte: None,
            direct_ns_per_byte: None,
            miss_share: None,
            memory: MemoryState::default(),
            reference: None,
            disabled: false,
            why: Why::Young,
        })
    }

    /// How misses are to be read: [`Admission::Admit`] or [`Admission::Direct`].
    #[must_use]
    pub fn mode(&self) -> Admission {
        match self.phase {
            Phase::Admit { .. } | Phase::Recheck { .. } => Admission::Admit,
            Phase::Direct { .. } => Admission::Direct,
        }
    }

    /// Why, in one sentence with the numbers.
    #[must_use]
    pub fn why(&self) -> String {
        self.why.sentence(self)
    }

    /// What was counted.
    #[must_use]
    pub fn counts(&self) -> AutoCounts {
        self.counts
    }

    /// Waiting time in nanoseconds a byte adopted with admission, as last measured.
    #[must_use]
    pub fn admit_ns_per_byte(&self) -> Option<f64> {
        self.admit_ns_per_byte
    }

    /// The same past the page cache: measured, or by the last trial.
    #[must_use]
    pub fn direct_ns_per_byte(&self) -> Option<f64> {
        self.direct_ns_per_byte
    }

    /// Missing bytes over adopted ones in the last window.
    #[must_use]
    pub fn miss_share(&self) -> Option<f64> {
        self.miss_share
    }

    /// Memory as last told.
    #[must_use]
    pub fn memory(&self) -> &MemoryState {
        &self.memory
    }

    pub(super) fn pool_bytes(&self) -> u64 {
        self.pool_bytes
    }

    /// Missing bytes after which a window is over.
    #[must_use]
    pub fn window_bytes(&self) -> u64 {
        let room = self.memory.room_bytes.unwrap_or(0);
        (room / u64::from(TURNOVER)).max(self.config.least_window_bytes)
    }

    /// Unbuffered reads cannot be had: everything is admitted from now on.
    pub fn disable(&mut self, reason: String) {
        self.phase = Phase::Admit { won: 0 };
        self.disabled = true;
        self.why = Why::Unable { reason };
    }

    /// Memory was looked at; a window's end tells it as well.
    pub fn tell_memory(&mut self, memory: MemoryState) {
        self.memory = memory;
    }

    /// The time that a trial may take now, if there is to be one: `window` is the one that is
    /// under way. Never more than is left of the share of all waiting.
    #[must_use]
    pub fn trial_ns(&self, window: &AdmissionWindow) -> Option<u64> {
        let Phase::Admit { .. } = self.phase else { return None };
        let full = self.admitted_windows >= u64::from(TURNOVER);
        let misses = window.missing_bytes as f64
            >= self.config.least_miss_share * window.adopted_bytes as f64;
        if self.disabled
            || !full
            || self.rest > 0
            || !misses
            || window.missing_bytes == 0
            || self.fits(0)
        {
            return None;
        }
        let demand = self.counts.demand_ns.saturating_add(window.wait_ns);
        let allowed = (self.config.trial_share * demand as f64) as u64;
        let left = allowed.checked_sub(self.counts.trial_ns)?;
        // Half as much again for what prepares it, and for reads slower than those so far.
        let bytes = 1.5 * self.config.trial_bytes as f64;
        let expected = bytes * window.wait_ns as f64 / window.missing_bytes as f64;
        (left as f64 >= expected.max(1.0)).then_some(left)
    }

    /// Whether the pool fits into the memory for files, with `spare` of it left over.
    fn fits(&self, spare: u64) -> bool {
        self.memory.room_bytes.is_some_and(|room| room.saturating_sub(spare) >= self.pool_bytes)
    }

    /// A window is over. Gives the mode from now on.
    pub fn observe(&mut self, window: &AdmissionWindow) -> Admission {
        self.counts.windows += 1;
        self.counts.demand_ns = self.counts.demand_ns.saturating_add(window.wait_ns);
        self.memory = window.memory;
        if let Some(trial) = &window.trial {
            self.counts.trials += 1;
            self.counts.trial_ns = self.counts.trial_ns.saturating_add(trial.cost_ns);
            self.counts.demand_ns = self.counts.demand_ns.saturating_add(trial.cost_ns);
        }
        let adopted = window.adopted_bytes.max(1) as f64;
        let cost = window.wait_ns as f64 / adopted;
        self.miss_share = Some(window.missing_bytes as f64 / adopted);
        match self.phase {
            Phase::Admit { won } => self.admitted(window, cost, won),
            Phase::Direct { windows, lost } => self.read_past(cost, windows + 1, lost),
            Phase::Recheck { left, won } => self.rechecked(cost, left - 1, won),
        }
        self.mode()
    }

    fn admitted(&mut self, window: &AdmissionWindow, cost: f64, won: u32) {
        self.admit_ns_per_byte = Some(cost);
        self.admitted_windows += 1;
        self.rest = self.rest.saturating_sub(1);
        if self.disabled {
            return;
        }
        if self.fits(0) {
            self.phase = Phase::Admit { won: 0 };
            self.why = Why::Fits;
            return;
        }
        self.heed_memory();
        let tried = window.trial.as_ref().and_then(AdmissionTrial::ratio);
        let Some(ratio) = tried.filter(|_| window.missing_bytes > 0) else {
            if self.direct_ns_per_byte.is_none() {
                self.why = Why::Young;
            }
            return;
        };
        let direct = window.wait_ns as f64 / window.missing_bytes as f64 * ratio;
        self.direct_ns_per_byte = Some(direct);
        if direct < (1.0 - self.config.enter_margin) * cost {
            if won + 1 >= self.config.agreeing {
                self.change(Phase::Direct { windows: 0, lost: 0 }, Why::DirectCheaper);
                return;
            }
            self.phase = Phase::Admit { won: won + 1 };
            self.why = Why::Wavering { won: won + 1, of: self.config.agreeing };
        } else {
            self.phase = Phase::Admit { won: 0 };
            self.why = Why::AdmitCheaper;
            self.rest = self.pause;
            self.pause = self.pause.saturating_mul(2).min(self.config.most_hold_windows);
        }
    }

    /// While admitting: what was found under another pressure no longer holds.
    fn heed_memory(&mut self) {
        let reference = *self.reference.get_or_insert(self.memory);
        if self.memory.change_since(&reference).is_none() {
            return;
        }
        self.reference = Some(self.memory);
        self.pause = 1;
        self.rest = self.rest.min(TURNOVER);
        if self.memory.room_bytes > reference.room_bytes {
            // Misses as long as it fills.
            self.admitted_windows = 0;
        }
    }

    fn read_past(&mut self, cost: f64, windows: u32, lost: u32) {
        self.direct_ns_per_byte = Some(cost);
        let dearer = self
            .admit_ns_per_byte
            .is_some_and(|admit| admit < (1.0 - self.config.leave_margin) * cost);
        let lost = if dearer { lost + 1 } else { 0 };
        self.phase = Phase::Direct { windows, lost };
        if self.fits(self.pool_bytes / 16) {
            self.change(Phase::Admit { won: 0 }, Why::Fits);
            return;
        }
        // The change itself moves pressure and refaults: what comes of it is taken as it settles.
        if windows <= TURNOVER {
            self.reference = Some(self.memory);
        }
        let soon = self.config.hold_windows.max(self.hold / 4);
        let changed = self.reference.and_then(|then| self.memory.change_since(&then));
        let cause = match changed {
            _ if windows >= self.hold => Some(format!("{windows} windows are over")),
            Some(change) if windows >= soon => Some(change),
            _ if lost >= self.config.agreeing && windows >= soon.min(self.hold) => {
                Some("unbuffered reads cost more than admission did".to_owned())
            }
            _ => None,
        };
        if let Some(cause) = cause {
            self.counts.rechecks += 1;
            self.phase = Phase::Recheck { left: TURNOVER, won: 0 };
            self.why = Why::Rechecking { cause };
        }
    }

    fn rechecked(&mut self, cost: f64, left: u32, won: u32) {
        self.admit_ns_per_byte = Some(cost);
        let direct = self.direct_ns_per_byte.unwrap_or(f64::INFINITY);
        let won = if cost < (1.0 - self.config.leave_margin) * direct { won + 1 } else { 0 };
        self.phase = Phase::Recheck { left, won };
        if self.fits(0) {
            self.change(Phase::Admit { won: 0 }, Why::Fits);
        } else if won >= self.config.agreeing.min(TURNOVER) {
            self.change(Phase::Admit { won: 0 }, Why::AdmitCheaper);
        } else if left == 0 {
            self.back_off();
            self.reference = Some(self.memory);
            self.phase = Phase::Direct { windows: 0, lost: 0 };
            self.why = Why::DirectCheaper;
        }
    }

    /// A change is held twice as long as the one before, so that they become ever rarer.
    fn change(&mut self, to: Phase, why: Why) {
        self.counts.switches += 1;
        self.reference = Some(self.memory);
        if let Phase::Admit { .. } = to {
            self.admitted_windows = 0;
            self.rest = self.hold;
            self.pause = 1;
            self.back_off();
        }
        self.phase = to;
        self.why = why;
    }

    fn back_off(&mut self) {
        self.hold = self.hold.saturating_mul(2).min(self.config.most_hold_windows);
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;

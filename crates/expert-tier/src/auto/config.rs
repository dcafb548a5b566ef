use crate::error::TierError;
use serde::Serialize;
use std::time::Duration;

/// How [`crate::Admission::Auto`] measures and when it changes over. Plain data, validated once.
///
/// A *window* is the unit of everything that takes time: an eighth of the memory that files can
/// have, in missed bytes. Eight windows read as much as that memory holds, after which exact LRU
/// has forgotten how it began.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct AutoConfig {
    /// The most of the time waited for reads that trials may take, 0 (never tried, so that
    /// everything is admitted) to 1.
    pub trial_share: f64,
    /// Bytes that a trial reads each way, at least.
    pub trial_bytes: u64,
    /// Routes that a trial reads each way, at least.
    pub trial_routes: u32,
    /// Trials and windows in a row that must agree before anything changes, 1 to 1000.
    pub agreeing: u32,
    /// Unbuffered reads are begun where they cost less than `1 - enter_margin` times admission;
    /// below 1. A negative margin begins them although they cost more.
    pub enter_margin: f64,
    /// Admission is begun again where it costs less than `1 - leave_margin` times unbuffered
    /// reads; 0 to below 1.
    pub leave_margin: f64,
    /// Below this share of missing bytes nothing is tried: no unbuffered read on record took less
    /// than a fifth of the time of one through the page cache.
    pub least_miss_share: f64,
    /// Missing bytes of a window, at least.
    pub least_window_bytes: u64,
    /// Windows between a change and the first look whether it still holds, 1 to 1 000 000;
    /// doubled each time that it does.
    pub hold_windows: u32,
    /// As far as that doubles.
    pub most_hold_windows: u32,
    /// How often the memory left to files and its pressure are read anew.
    pub refresh: Duration,
}

impl Default for AutoConfig {
    fn default() -> Self {
        Self {
            trial_share: 0.005,
            trial_bytes: 32 << 20,
            trial_routes: 4,
            agreeing: 3,
            enter_margin: 0.10,
            leave_margin: 0.03,
            least_miss_share: 0.2,
            least_window_bytes: 16 << 20,
            hold_windows: 32,
            most_hold_windows: 1024,
            refresh: Duration::from_secs(1),
        }
    }
}

impl AutoConfig {
    /// # Errors
    /// [`TierError::Setting`] with the name and the value of the first one that is out of range.
    pub(crate) fn validate(&self) -> Result<(), TierError> {
        let bad = |what, value: &dyn ToString, expected| {
            Err(TierError::Setting { what, value: value.to_string(), expected })
        };
        if !(0.0..=1.0).contains(&self.trial_share) {
            return bad("trial_share", &self.trial_share, "0 to 1");
        }
        if !(self.enter_margin.is_finite() && self.enter_margin < 1.0) {
            return bad("enter_margin", &self.enter_margin, "a number below 1");
        }
        if !(0.0..1.0).contains(&self.leave_margin) {
            return bad("leave_margin", &self.leave_margin, "0 to below 1");
        }
        if !(0.0..=1.0).contains(&self.least_miss_share) {
            return bad("least_miss_share", &self.least_miss_share, "0 to 1");
        }
        if !(1..=1000).contains(&self.agreeing) {
            return bad("agreeing", &self.agreeing, "1 to 1000");
        }
        if !(1..=1_000_000).contains(&self.hold_windows) {
            return bad("hold_windows", &self.hold_windows, "1 to 1000000");
        }
        if !(self.hold_windows..=1_000_000).contains(&self.most_hold_windows) {
            return bad("most_hold_windows", &self.most_hold_windows, "hold_windows to 1000000");
        }
        Ok(())
    }
}

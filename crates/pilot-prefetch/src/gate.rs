//! Which layers' hints are worth giving, and how many of them: decided by counting.
//!
//! Every plan is scored against the route that came, given or not: that costs a few comparisons
//! and no byte. So a layer begins switched off, and what is wrong from the start never reads
//! anything.
//!
//! **When a hint pays.** Let `p` be the share of hints at a rank that the route chose, `idle` the
//! share of the time in which demand leaves the device idle, `c` what a wrong byte costs in memory
//! (it pushes another out, which may have to be read again) and `d` the part of a wrong read by
//! which demand is held up where it wants the device at the same time (little: it yields at once
//! and has one piece under way), both in units of the byte's own read. A right hint hides the part
//! `idle` of its read, so it pays where `p idle > (1 - p) (c + d (1 - idle))`, that is where
//!
//! ```text
//! p > p* = w / (w + idle)   with   w = c + d (1 - idle)
//! ```
//!
//! Measured by `tier-bench prefetch` (a quarter of the pool in memory, `idle` 0.58): a wrong read
//! cost 0.53 of its own time, a right one won 0.5 to 0.7; `c` 0.3 and `d` 0.25 lie on the side of
//! the hints, since hints for what is there already cost nothing and count here.
//!
//! Hysteresis: a layer is switched on above `p* + margin` and off below `p* - margin`, each judged
//! over a whole window; each time that it has to be switched off again soon, it stays off twice as
//! many windows as the time before.

use crate::plan::{MAX_WIDTH, Plan};
use serde::{Deserialize, Serialize};

/// Share of the older counts that a new window leaves.
const KEPT: f64 = 0.5;
/// Windows switched on after which the back-off starts anew.
const TRUSTED_WINDOWS: u32 = 16;
/// Where measuring the device says nothing yet.
const UNKNOWN_IDLE: f64 = 0.5;

/// How a [`Gate`] decides. Plain data.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct GateConfig {
    /// Plans of a layer that make a window, at least 1.
    pub window: u32,
    /// What a wrong byte costs in memory, in units of its own read, at least 0.
    pub wrong_cost: f64,
    /// Part of a wrong read by which a demand at the same time is held up, 0 to 1.
    pub delay: f64,
    /// Distance of the thresholds from the point where a hint pays.
    pub margin: f64,
    /// The most hints a plan, 1 to [`MAX_WIDTH`].
    pub max_width: usize,
    /// The most windows that a layer is kept off before it is tried again.
    pub max_back_off: u32,
}

impl Default for GateConfig {
    fn default() -> Self {
        Self {
            window: 8,
            wrong_cost: 0.3,
            delay: 0.25,
            margin: 0.05,
            max_width: 32,
            max_back_off: 64,
        }
    }
}

impl GateConfig {
    /// The same within its limits.
    fn bounded(self) -> Self {
        let real = |value: f64, or: f64| if value.is_finite() { value.max(0.0) } else { or };
        Self {
            window: self.window.max(1),
            wrong_cost: real(self.wrong_cost, 0.3),
            delay: real(self.delay, 0.25).min(1.0),
            margin: real(self.margin, 0.05).min(0.5),
            max_width: self.max_width.clamp(1, MAX_WIDTH),
            max_back_off: self.max_back_off.max(1),
        }
    }
}

/// What one layer's gate has seen and decided.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LayerGate {
    /// Hints that may be given of the next plan; 0: the layer is switched off.
    pub width: usize,
    /// Share of the first `width` hints that the route chose (of the first hints, while it is
    /// off), as counted; `None` before the first window.
    pub precision: Option<f64>,
    /// What it must be for a hint to pay, at the last decision.
    pub pays_above: f64,
    /// Share of time in which demand left the device idle, as counted.
    pub idle: Option<f64>,
    /// Windows judged.
    pub windows: u64,
    /// Times that it was switched on.
    pub switched_on: u64,
    /// Times that it was switched off again.
    pub switched_off: u64,
    /// Windows for which it stays off whatever it counts.
    pub off_for: u32,
    back_off: u32,
    on_for: u32,
    in_window: u32,
    window: Counts,
    past: Counts,
    waited_ns: f64,
    passed_ns: f64,
}

/// Hints given and chosen, by rank.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
struct Counts {
    tried: Vec<f64>,
    chosen: Vec<f64>,
}

/// Switches hints on and off, layer by layer. A pure state machine: it sees no clock, no device.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Gate {
    config: GateConfig,
    layers: Vec<LayerGate>,
}

impl Gate {
    /// A gate for layers numbered below `layers`, all switched off.
    #[must_use]
    pub fn new(layers: u16, config: GateConfig) -> Self {
        let layers = (0..layers).map(|_| LayerGate::new()).collect();
        Self { config: config.bounded(), layers }
    }

    /// How it decides.
    #[must_use]
    pub fn config(&self) -> &GateConfig {
        &self.config
    }

    /// What it has decided, by layer number.
    #[must_use]
    pub fn layers(&self) -> &[LayerGate] {
        &self.layers
    }

    /// How many hints of the next plan for `layer` may be given: none while it is switched off.
    #[must_use]
    pub fn width(&self, layer: u16) -> usize {
        self.layers.get(usize::from(layer)).map_or(0, |gate| gate.width)
    }

    /// Score `plan` against the `experts` that its layer demanded, whether it was given or not.
    /// `waited_ns` of the `passed_ns` since the layer before was demanded, demand kept the device
    /// busy; zeros where nobody measured.
    pub fn observe(&mut self, plan: &Plan, experts: &[u16], waited_ns: u64, passed_ns: u64) {
        let config = self.config;
        let Some(gate) = self.layers.get_mut(usize::from(plan.layer())) else { return };
        let hints = plan.hints().iter().take(config.max_width);
        for (rank, hint) in hints.enumerate() {
            gate.window.count(rank, experts.contains(&hint.expert));
        }
        if passed_ns > 0 {
            gate.waited_ns += waited_ns.min(passed_ns) as f64;
            gate.passed_ns += passed_ns as f64;
        }
        gate.in_window += 1;
        if gate.in_window >= config.window {
            gate.judge(&config);
        }
    }
}

impl LayerGate {
    fn new() -> Self {
        Self {
            width: 0,
            precision: None,
            pays_above: 1.0,
            idle: None,
            windows: 0,
            switched_on: 0,
            switched_off: 0,
            off_for: 0,
            back_off: 1,
            on_for: 0,
            in_window: 0,
            window: Counts::default(),
            past: Counts::default(),
            waited_ns: 0.0,
            passed_ns: 0.0,
        }
    }

    /// A window is full.
    fn judge(&mut self, config: &GateConfig) {
        let window = std::mem::take(&mut self.window);
        self.past.mix(&window);
        self.in_window = 0;
        self.windows += 1;
        if self.passed_ns > 0.0 {
            self.idle = Some((1.0 - self.waited_ns / self.passed_ns).clamp(0.0, 1.0));
            self.waited_ns *= KEPT;
            self.passed_ns *= KEPT;
        }
        let idle = self.idle.unwrap_or(UNKNOWN_IDLE);
        let wrong = config.wrong_cost + config.delay * (1.0 - idle);
        // A device that is never idle hides nothing, whatever is right.
        self.pays_above = if idle > 0.0 { wrong / (wrong + idle) } else { 1.0 };
        let least = match self.width {
            0 => self.pays_above + config.margin,
            _ => self.pays_above - config.margin,
        };
        // What nothing can reach is not asked for: all hints right is all that there can be.
        let wanted = self.past.widest(least.min(1.0), config.max_width);
        let shown = if wanted == 0 { self.width.max(1) } else { wanted };
        self.precision = self.past.precision(shown);
        self.decide(wanted, config);
    }

    fn decide(&mut self, wanted: usize, config: &GateConfig) {
        if self.width > 0 {
            self.on_for = self.on_for.saturating_add(1);
            if self.on_for == TRUSTED_WINDOWS {
                self.back_off = 1;
            }
        }
        match (self.width, wanted) {
            (0, 0) => self.off_for = self.off_for.saturating_sub(1),
            (0, _) if self.off_for > 0 => self.off_for -= 1,
            (0, _) => {
                self.switched_on += 1;
                (self.width, self.on_for) = (wanted, 0);
            }
            (_, 0) => {
                self.switched_off += 1;
                self.width = 0;
                self.off_for = self.back_off;
                self.back_off = (self.back_off * 2).min(config.max_back_off);
            }
            _ => self.width = wanted,
        }
    }
}

impl Counts {
    fn count(&mut self, rank: usize, chosen: bool) {
        if self.tried.len() <= rank {
            self.tried.resize(rank + 1, 0.0);
            self.chosen.resize(rank + 1, 0.0);
        }
        self.tried[rank] += 1.0;
        self.chosen[rank] += f64::from(u8::from(chosen));
    }

    /// A mean that forgets: `newer` counts whole, what was before in part.
    fn mix(&mut self, newer: &Self) {
        let ranks = self.tried.len().max(newer.tried.len());
        for (ours, theirs) in [(&mut self.tried, &newer.tried), (&mut self.chosen, &newer.chosen)] {
            ours.resize(ranks, 0.0);
            let more = theirs.iter().copied().chain(std::iter::repeat(0.0));
            ours.iter_mut().zip(more).for_each(|(ours, more)| *ours = *ours * KEPT + more);
        }
    }

    /// The widest plan of which the last rank is chosen at least so often. Ranks are in order of
    /// likelihood, so their shares are taken to fall: the falling steps that lie nearest to the
    /// counts (pooled adjacent violators; Ayer et al. 1955), which a chance low count in the
    /// middle does not cut short.
    fn widest(&self, least: f64, max_width: usize) -> usize {
        // Ranks of a step, hints tried at them, hints chosen.
        let mut steps: Vec<(usize, f64, f64)> = Vec::with_capacity(max_width);
        for (&tried, &chosen) in self.tried.iter().zip(&self.chosen).take(max_width) {
            steps.push((1, tried, chosen));
            while let [.., upper, lower] = steps[..]
                && lower.2 * upper.1 >= upper.2 * lower.1
            {
                steps.truncate(steps.len() - 2);
                steps.push((upper.0 + lower.0, upper.1 + lower.1, upper.2 + lower.2));
            }
        }
        let good = steps.iter().take_while(|step| step.1 > 0.0 && step.2 >= least * step.1);
        good.map(|step| step.0).sum()
    }

    fn precision(&self, width: usize) -> Option<f64> {
        let tried: f64 = self.tried.iter().take(width).sum();
        let chosen: f64 = self.chosen.iter().take(width).sum();
        (tried > 0.0).then(|| chosen / tried)
    }
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;

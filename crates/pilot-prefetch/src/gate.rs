//! Which layers' hints are worth giving, and how likely each must be: decided by counting.
//!
//! Every plan is scored against the route that came, given or not: that costs a few comparisons
//! and no byte. So a layer begins switched off, and what is wrong from the start never reads
//! anything.
//!
//! What a plan says of its hints is not believed but counted: hints of about the same probability
//! are one group, and a group is given where so many of it came true that they pay. A predictor
//! that is unsure of one token gives few hints of it and many of another, where a limit on their
//! number would give the unlikely ones of the one and withhold the likely ones of the other (on
//! the bundled model's routes the blend covered 61 % of the missing experts by ranks and would
//! cover 81 % by probabilities).
//!
//! **When a hint pays.** Let `p` be the share of a group that the route chose, `idle` the share of the time in which demand leaves the device idle, `c` what a wrong byte costs in memory
//! (it pushes another out, which may have to be read again) and `d` the part of a wrong read by
//! which demand is held up where it wants the device at the same time (little: it yields at once
//! and has one piece under way), both in units of the byte's own read. A right hint hides the part
//! `idle` of its read, so it pays where `p idle > (1 - p) (c + d (1 - idle))`, that is where
//!
//! ```text
//! p > p* = w / (w + idle)   with   w = c + d (1 - idle)
//! ```
//!
//! `c` and `d` are set by hand, from `tier-bench prefetch` (a quarter of the pool in memory). `c` is
//! small since what a wrong read pushes out is hinted itself when it is needed: with `c` at 0.3,
//! 0.15, 0.1 and 0.05 the bundled model's blend won 0.58, 0.59, 0.67 and 0.68 of what an oracle wins
//! (device idle 0.95 of the time, four rounds), a predictor of recall 0.65 won 0.62, 0.54, 0.58
//! and 0.56 (idle 0.79, three rounds, and that is their spread).
//!
//! Hysteresis: a layer is switched on above `p* + margin` and off below `p* - margin`, each judged
//! over a whole window; each time that it has to be switched off again soon, it stays off twice as
//! many windows as the time before.

use crate::plan::{Hint, MAX_WIDTH, Plan};
use serde::{Deserialize, Serialize};

/// Groups of hints by their probability, of one size, the likeliest first.
const GROUPS: usize = 20;
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
            wrong_cost: 0.1,
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
            wrong_cost: real(self.wrong_cost, 0.1),
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
    /// How likely a hint of the next plan must call itself to be given; `None`: the layer is
    /// switched off.
    pub least: Option<f32>,
    /// Share of such hints that the route chose (of the likeliest, while it is off), as counted;
    /// `None` before the first window.
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
    /// Groups that may be given.
    groups: usize,
    back_off: u32,
    on_for: u32,
    in_window: u32,
    window: Counts,
    past: Counts,
    waited_ns: f64,
    passed_ns: f64,
}

/// Hints and how many of them were chosen, by group.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
struct Counts {
    tried: [f64; GROUPS],
    chosen: [f64; GROUPS],
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

    /// Whether any hint of the next plan for `layer` may be given.
    #[must_use]
    pub fn is_open(&self, layer: u16) -> bool {
        self.layers.get(usize::from(layer)).is_some_and(|gate| gate.groups > 0)
    }

    /// How many hints of `plan` may be given, the likeliest ones.
    #[must_use]
    pub fn width(&self, plan: &Plan) -> usize {
        let gate = self.layers.get(usize::from(plan.layer()));
        let groups = gate.map_or(0, |gate| gate.groups);
        let good = |hint: &&Hint| group(hint.probability) < groups;
        plan.hints().iter().take(self.config.max_width).take_while(good).count()
    }

    /// Score `plan` against the `experts` that its layer demanded, whether it was given or not.
    /// `waited_ns` of the `passed_ns` since the layer before was demanded, demand kept the device
    /// busy; zeros where nobody measured.
    pub fn observe(&mut self, plan: &Plan, experts: &[u16], waited_ns: u64, passed_ns: u64) {
        let config = self.config;
        let Some(gate) = self.layers.get_mut(usize::from(plan.layer())) else { return };
        let hints = plan.hints().iter().take(config.max_width);
        for hint in hints {
            gate.window.count(hint.probability, experts.contains(&hint.expert));
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
            least: None,
            precision: None,
            pays_above: 1.0,
            idle: None,
            windows: 0,
            switched_on: 0,
            switched_off: 0,
            off_for: 0,
            groups: 0,
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
        let share = match self.groups {
            0 => self.pays_above + config.margin,
            _ => self.pays_above - config.margin,
        };
        // What nothing can reach is not asked for: all hints right is all that there can be.
        let good = self.past.good_groups(share.min(1.0));
        let shown = match (good, self.groups) {
            (0, 0) => self.past.first_group(),
            (0, before) => before,
            _ => good,
        };
        self.precision = self.past.precision(shown);
        self.decide(good, config);
        self.least = (self.groups > 0).then(|| 1.0 - self.groups as f32 / GROUPS as f32);
    }

    fn decide(&mut self, wanted: usize, config: &GateConfig) {
        if self.groups > 0 {
            self.on_for = self.on_for.saturating_add(1);
            if self.on_for == TRUSTED_WINDOWS {
                self.back_off = 1;
            }
        }
        match (self.groups, wanted) {
            (0, 0) => self.off_for = self.off_for.saturating_sub(1),
            (0, _) if self.off_for > 0 => self.off_for -= 1,
            (0, _) => {
                self.switched_on += 1;
                (self.groups, self.on_for) = (wanted, 0);
            }
            (_, 0) => {
                self.switched_off += 1;
                self.groups = 0;
                self.off_for = self.back_off;
                self.back_off = (self.back_off * 2).min(config.max_back_off);
            }
            _ => self.groups = wanted,
        }
    }
}

/// The group of hints that call themselves so likely: group `g` reaches from `1 - (g + 1) / GROUPS`
/// up to, not with, the limit of the group before; the first holds 1 as well.
fn group(probability: f32) -> usize {
    let from_top = (1.0 - probability.clamp(0.0, 1.0)) * GROUPS as f32;
    (from_top.ceil() as usize).saturating_sub(1).min(GROUPS - 1)
}

impl Counts {
    fn count(&mut self, probability: f32, chosen: bool) {
        let group = group(probability);
        self.tried[group] += 1.0;
        self.chosen[group] += f64::from(u8::from(chosen));
    }

    /// A mean that forgets: `newer` counts whole, what was before in part.
    fn mix(&mut self, newer: &Self) {
        for (ours, theirs) in [(&mut self.tried, &newer.tried), (&mut self.chosen, &newer.chosen)] {
            ours.iter_mut().zip(theirs).for_each(|(ours, more)| *ours = *ours * KEPT + more);
        }
    }

    /// How many groups, the likeliest first, came true at least so often, down to the last that
    /// was tried. Shares are taken to fall with what hints call themselves: the falling steps that
    /// lie nearest to the counts (pooled adjacent violators; Ayer et al. 1955), which a chance low
    /// count in the middle does not cut short.
    fn good_groups(&self, least: f64) -> usize {
        // The last group of a step and what follows it, hints tried, hints chosen.
        let mut steps: Vec<(usize, f64, f64)> = Vec::with_capacity(GROUPS);
        for (number, (&tried, &chosen)) in self.tried.iter().zip(&self.chosen).enumerate() {
            if tried == 0.0 {
                continue;
            }
            steps.push((number + 1, tried, chosen));
            while let [.., upper, lower] = steps[..]
                && lower.2 * upper.1 >= upper.2 * lower.1
            {
                steps.truncate(steps.len() - 2);
                steps.push((lower.0, upper.1 + lower.1, upper.2 + lower.2));
            }
        }
        let good = steps.iter().take_while(|step| step.2 >= least * step.1);
        good.last().map_or(0, |step| step.0)
    }

    /// Groups down to the first that was tried.
    fn first_group(&self) -> usize {
        self.tried.iter().position(|&tried| tried > 0.0).map_or(0, |first| first + 1)
    }

    /// Share of the hints of the first `groups` that were chosen.
    fn precision(&self, groups: usize) -> Option<f64> {
        let tried: f64 = self.tried.iter().take(groups).sum();
        let chosen: f64 = self.chosen.iter().take(groups).sum();
        (tried > 0.0).then(|| chosen / tried)
    }
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;

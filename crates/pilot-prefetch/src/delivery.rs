//! From a plan to advice: the gate decides, the worker reads, and both learn what came of it.

use crate::gate::{Gate, GateConfig};
use crate::plan::{MAX_WIDTH, Plan};
use crate::worker::{Worker, WorkerSnapshot};
use expert_tier::Notice;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Plans that wait for their layer's demand: one a layer that is looked ahead, and a few that
/// were never demanded.
const AWAITED: usize = 16;

/// What was delivered so far.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeliverySnapshot {
    /// What the worker did.
    pub worker: WorkerSnapshot,
    /// Plans that the gate let through, wholly or in part.
    pub given_plans: u64,
    /// Plans of layers that are switched off.
    pub withheld_plans: u64,
    /// The gate, if there is one.
    pub gate: Option<Gate>,
}

/// What a decode thread holds: plans go in, and what its layers then demanded.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use expert_tier::{Pool, Tier, TierConfig};
/// use pilot_prefetch::{Delivery, GateConfig, Plan, Worker, WorkerConfig};
///
/// let tier = Tier::open(Pool::open("model")?, TierConfig::default())?;
/// let worker = Worker::start(tier.advisor(), WorkerConfig::default())?;
/// let mut delivery = Delivery::gated(worker, 48, GateConfig::default());
/// # let (plan, step, layer, route) = (Plan::new(0, 1), 0, 0, [3_u16, 9]);
/// delivery.post(&plan); // a guess at a later layer; never waits
/// delivery.begin_demand(step, layer, &route); // the truth of this one
/// let before = tier.snapshot();
/// let adopting = tier.begin(layer, &route)?;
/// let missing: Vec<u16> = adopting.missing().collect();
/// let adopted = adopting.finish()?;
/// delivery.demanded((tier.snapshot() - before).adopt_ns, missing); // the wait is over
/// # drop(adopted);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Delivery {
    worker: Worker,
    gate: Option<Gate>,
    /// The newest last.
    awaited: VecDeque<Plan>,
    given_plans: u64,
    withheld_plans: u64,
    clock: Clock,
}

/// When demand began and ended.
#[derive(Debug, Default)]
struct Clock {
    began: Option<Instant>,
    /// Of the demand before.
    waited_ns: u64,
    passed: Duration,
}

impl Delivery {
    /// Every plan goes to `worker` whole.
    #[must_use]
    pub fn ungated(worker: Worker) -> Self {
        let (awaited, clock) = (VecDeque::with_capacity(AWAITED), Clock::default());
        Self { worker, gate: None, awaited, given_plans: 0, withheld_plans: 0, clock }
    }

    /// Plans go to `worker` as far as a gate for layers numbered below `layers` lets them.
    #[must_use]
    pub fn gated(worker: Worker, layers: u16, config: GateConfig) -> Self {
        Self { gate: Some(Gate::new(layers, config)), ..Self::ungated(worker) }
    }

    /// Deliver `plan`. Never waits.
    pub fn post(&mut self, plan: &Plan) {
        let width = self.gate.as_ref().map_or(MAX_WIDTH, |gate| gate.width(plan));
        if self.gate.is_some() {
            // The oldest gives its memory to the newest.
            let mut kept = match self.awaited.len() {
                AWAITED => self.awaited.pop_front(),
                _ => None,
            };
            let place = kept.get_or_insert_with(|| Plan::new(0, 0));
            place.copy_first(plan, MAX_WIDTH);
            self.awaited.extend(kept);
        }
        if width == 0 {
            self.withheld_plans += 1;
        } else {
            self.given_plans += 1;
            self.worker.post_first(plan, width);
        }
    }

    /// Whether any hint of a plan for `layer` would be given now, so that a predictor can save its
    /// work where the gate is shut. It must predict now and then all the same: what is not scored
    /// is never switched on again.
    #[must_use]
    pub fn is_open(&self, layer: u16) -> bool {
        self.gate.as_ref().is_none_or(|gate| gate.is_open(layer))
    }

    /// Layer `layer` of pass `step` begins to demand `experts`: call this just before they are
    /// adopted. Never waits.
    pub fn begin_demand(&mut self, step: u64, layer: u16, experts: &[u16]) {
        self.worker.begin_demand(step, layer, experts);
        let now = Instant::now();
        if let Some(began) = self.clock.began.replace(now) {
            self.clock.passed = now - began;
        }
        let Some(gate) = &mut self.gate else { return };
        let found = self.awaited.iter().rposition(|p| (p.step(), p.layer()) == (step, layer));
        if let Some(plan) = found.map(|place| &self.awaited[place]) {
            let passed_ns = u64::try_from(self.clock.passed.as_nanos()).unwrap_or(u64::MAX);
            gate.observe(plan, experts, self.clock.waited_ns, passed_ns);
        }
    }

    /// The demand of the last [`begin_demand`](Self::begin_demand) is served: it found `missing`
    /// of its experts missing ([`Adopting::missing`](expert_tier::Adopting::missing)), and
    /// `waited_ns` of it were spent waiting for the device (what `Snapshot::adopt_ns` of the tier
    /// has grown by), not what was computed with the first experts while the last were read.
    /// Without this call the gate takes the device to be always idle, and what hints brought
    /// counts as used a layer later, wherever it went meanwhile.
    pub fn demanded(&mut self, waited_ns: u64, missing: impl IntoIterator<Item = u16>) {
        self.clock.waited_ns = waited_ns;
        self.worker.demanded(missing);
    }

    /// Counters and state since the start.
    #[must_use]
    pub fn snapshot(&self) -> DeliverySnapshot {
        DeliverySnapshot {
            worker: self.worker.snapshot(),
            given_plans: self.given_plans,
            withheld_plans: self.withheld_plans,
            gate: self.gate.clone(),
        }
    }

    /// What a person should know, each thing once.
    #[must_use]
    pub fn notices(&self) -> Vec<Notice> {
        self.worker.notices()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Hint;
    use crate::worker::{NoAdvice, WorkerConfig};

    fn plan(step: u64, layer: u16, first: u16) -> Plan {
        let mut plan = Plan::new(step, layer);
        let hint = |expert| Hint { expert, probability: 0.5 };
        plan.rank((first..first + 4).map(hint), MAX_WIDTH);
        plan
    }

    fn worker() -> Worker {
        Worker::with(NoAdvice, WorkerConfig::default()).unwrap()
    }

    #[test]
    fn the_gate_lets_a_layer_through_once_it_was_right_and_no_other() {
        let mut delivery = Delivery::gated(worker(), 4, GateConfig::default());
        for step in 0..20 {
            for layer in 0..4 {
                // Layer 2 is always guessed right, the others never.
                let first = if layer == 2 { 0 } else { 50 };
                delivery.post(&plan(step, layer, first));
                delivery.begin_demand(step, layer, &[0, 1, 2, 3]);
                std::thread::sleep(Duration::from_micros(20));
            }
        }
        let found = delivery.snapshot();
        assert_eq!(found.given_plans + found.withheld_plans, 80);
        let window = u64::from(GateConfig::default().window);
        assert_eq!(found.given_plans, 20 - window);
        assert_eq!(found.worker.plans.submitted, found.given_plans);
        let open = [0, 1, 2, 3].map(|layer| delivery.is_open(layer));
        assert_eq!(open, [false, false, true, false]);
    }

    #[test]
    fn plans_wait_for_their_own_demand_and_without_a_gate_all_are_given() {
        let mut delivery =
            Delivery::gated(worker(), 4, GateConfig { window: 1, ..GateConfig::default() });
        // Two layers ahead.
        delivery.post(&plan(0, 2, 0));
        delivery.post(&plan(0, 3, 50));
        delivery.begin_demand(0, 1, &[0, 1]);
        delivery.demanded(1000, []);
        assert!(!delivery.is_open(2), "not scored yet");
        delivery.begin_demand(0, 2, &[0, 1, 2, 3]);
        delivery.begin_demand(0, 3, &[0, 1, 2, 3]);
        assert_eq!((delivery.is_open(2), delivery.is_open(3)), (true, false));
        for step in 0..100 {
            delivery.post(&plan(step, 0, 0));
        }
        assert_eq!(delivery.awaited.len(), AWAITED);

        let mut all = Delivery::ungated(worker());
        all.post(&plan(0, 3, 50));
        assert_eq!((all.snapshot().given_plans, all.is_open(3)), (1, true));
    }
}

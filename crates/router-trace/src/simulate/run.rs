use super::budget::Budget;
use super::meter::{Count, Meter, Pins};
use super::replay::{Replay, Span};
use super::result::{Facts, LayerRow, Row, Simulation};
use crate::error::TraceError;
use crate::policy::{Hindsight, Key, PerLayer, Policy, PolicyKind, split_evenly};
use serde::{Deserialize, Serialize};

/// How a budget is shared between layers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Allocation {
    /// One pool for all, as a page cache is.
    #[default]
    Global,
    /// A cache for each layer with an equal part of the budget; the first layers get one
    /// more where it does not divide.
    PerLayer,
}

/// What to try: every policy at every budget in every allocation.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// The policies.
    pub policies: Vec<PolicyKind>,
    /// The budgets.
    pub budgets: Vec<Budget>,
    /// The allocations.
    pub allocations: Vec<Allocation>,
    /// What cannot be evicted while a pass is served.
    #[serde(default)]
    pub pins: Pins,
}

impl Default for Plan {
    /// Every policy in one pool of a quarter of the experts.
    fn default() -> Self {
        Self {
            policies: PolicyKind::ALL.to_vec(),
            budgets: vec![Budget::Percent(25.0)],
            allocations: vec![Allocation::Global],
            pins: Pins::None,
        }
    }
}

/// Runs a plan; `on_row` is shown each row when it is there, for progress.
///
/// Takes O(experts) memory a policy beside the trace itself, O(accesses) for Belady.
///
/// # Errors
///
/// [`TraceError::Setting`] if a budget cannot be told in experts.
pub fn simulate(
    replay: &Replay<'_>,
    plan: &Plan,
    mut on_row: impl FnMut(&Row),
) -> Result<Simulation, TraceError> {
    let trace = replay.scored.trace;
    let facts = Facts::of(replay);
    let knowledge = Knowledge::of(replay, plan);
    let mut rows = Vec::new();
    for &allocation in &plan.allocations {
        for &budget in &plan.budgets {
            let capacity = budget.experts(trace)?;
            for &policy in &plan.policies {
                let built = knowledge.build(policy, capacity, allocation);
                let meter = play(replay, built, plan.pins);
                let row = row(replay, &facts, (policy, allocation, budget, capacity), &meter);
                on_row(&row);
                rows.push(row);
            }
        }
    }
    Ok(Simulation {
        warm_iterations: replay.warm.iterations.len() as u64,
        scored_iterations: replay.scored.iterations.len() as u64,
        pool_experts: trace.key_space().n_keys() as u64,
        expert_bytes: trace.expert_bytes(),
        accesses: facts.accesses,
        distinct_experts: facts.distinct_by_slot.iter().sum(),
        compulsory_misses: facts.compulsory,
        rows,
    })
}

/// Replays through one policy, which must take the keys of the replay: warms it, then counts.
pub fn play<P: Policy>(replay: &Replay<'_>, policy: P, pins: Pins) -> Meter<P> {
    let n_slots = replay.scored.trace.key_space().shape().moe_layers.len();
    let mut meter = Meter::new(policy, n_slots, pins);
    for (_, keys) in replay.warm.passes() {
        meter.warm(keys);
    }
    for (slot, keys) in replay.scored.passes() {
        meter.score(slot, keys);
    }
    meter
}

fn row<P: Policy>(
    replay: &Replay<'_>,
    facts: &Facts,
    (policy, allocation, budget, capacity): (PolicyKind, Allocation, Budget, usize),
    meter: &Meter<P>,
) -> Row {
    let trace = replay.scored.trace;
    let shape = trace.key_space().shape();
    let count = meter.total();
    let iterations = replay.scored.iterations.len() as f64;
    let bytes = |experts: u64| Some(trace.expert_bytes()?.saturating_mul(experts));
    let layers = meter.layers().iter().zip(&shape.moe_layers).zip(&facts.distinct_by_slot);
    let layer_row = |((&count, &layer), &distinct_experts): ((&Count, &u16), &u64)| LayerRow {
        layer,
        count,
        hit_rate: count.hit_rate(),
        distinct_experts,
    };
    let miss_bytes = bytes(count.misses());
    Row {
        policy,
        allocation,
        budget,
        budget_experts: capacity as u64,
        budget_percent: 100.0 * capacity as f64 / shape.total_experts() as f64,
        budget_bytes: bytes(capacity as u64),
        count,
        hit_rate: count.hit_rate(),
        misses: count.misses(),
        misses_per_iteration: count.misses() as f64 / iterations,
        miss_bytes,
        miss_bytes_per_iteration: miss_bytes.map(|bytes| bytes as f64 / iterations),
        layers: layers.map(layer_row).collect(),
    }
}

/// What policies with hindsight are told, for one pool and for each layer.
struct Knowledge {
    slots: Vec<u16>,
    whole: Known,
    parts: Vec<Known>,
}

#[derive(Default)]
struct Known {
    warm_uses: Vec<u32>,
    scored_uses: Vec<u32>,
    accesses: Vec<Key>,
}

impl Known {
    fn hindsight(&self) -> Hindsight<'_> {
        let Self { warm_uses, scored_uses, accesses } = self;
        Hindsight { warm_uses, scored_uses, accesses }
    }
}

impl Knowledge {
    fn of(replay: &Replay<'_>, plan: &Plan) -> Self {
        let bounds = [PolicyKind::Belady, PolicyKind::BeladyBypass];
        let offline = plan.policies.iter().any(|policy| bounds.contains(policy));
        let uses = |span: &Span<'_>| {
            let mut uses = vec![0; replay.n_keys()];
            for &key in span.keys() {
                uses[key as usize] += 1;
            }
            uses
        };
        let whole = Known {
            warm_uses: uses(&replay.trained),
            scored_uses: uses(&replay.scored),
            accesses: if offline { replay.keys() } else { Vec::new() },
        };
        let slots = replay.scored.trace.slots();
        let split = plan.allocations.contains(&Allocation::PerLayer);
        let n_slots = replay.scored.trace.key_space().shape().moe_layers.len();
        let parts = if split { whole.split(&slots, n_slots) } else { Vec::new() };
        Self { slots, whole, parts }
    }

    fn build(
        &self,
        policy: PolicyKind,
        capacity: usize,
        allocation: Allocation,
    ) -> Box<dyn Policy + Send + '_> {
        if allocation == Allocation::Global {
            return policy.build(capacity, self.slots.len(), &self.whole.hindsight());
        }
        let capacities = split_evenly(capacity, self.parts.len());
        let parts = capacities.iter().zip(&self.parts);
        let parts =
            parts.map(|(&c, known)| policy.build(c, known.warm_uses.len(), &known.hindsight()));
        Box::new(PerLayer::new(parts.collect(), &self.slots))
    }
}

impl Known {
    fn split(&self, slots: &[u16], n_slots: usize) -> Vec<Self> {
        let (places, keys) = PerLayer::<Box<dyn Policy>>::places(n_slots, slots);
        let part = |keys: &Vec<Key>| Self {
            warm_uses: keys.iter().map(|&key| self.warm_uses[key as usize]).collect(),
            scored_uses: keys.iter().map(|&key| self.scored_uses[key as usize]).collect(),
            accesses: Vec::new(),
        };
        let mut parts: Vec<Self> = keys.iter().map(part).collect();
        for &key in &self.accesses {
            let (slot, local) = places[key as usize];
            parts[usize::from(slot)].accesses.push(local);
        }
        parts
    }
}

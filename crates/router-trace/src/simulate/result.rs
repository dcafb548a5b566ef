use super::budget::Budget;
use super::meter::Count;
use super::replay::Replay;
use super::run::Allocation;
use crate::policy::PolicyKind;
use serde::{Deserialize, Serialize};

/// What a simulation found, with what is the same for every row.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Simulation {
    /// Iterations that warmed the policies.
    pub warm_iterations: u64,
    /// Iterations that were scored.
    pub scored_iterations: u64,
    /// Experts in the model.
    pub pool_experts: u64,
    /// Bytes of one expert, where known.
    pub expert_bytes: Option<u64>,
    /// Accesses in the scored window.
    pub accesses: u64,
    /// Different experts in the scored window.
    pub distinct_experts: u64,
    /// Of these, those that the warm window did not have: misses of every policy that cannot
    /// know them.
    pub compulsory_misses: u64,
    /// One row for each policy, budget and allocation, in the plan's order.
    pub rows: Vec<Row>,
}

/// One policy at one budget.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The policy with its parameters.
    pub policy: PolicyKind,
    /// One pool or one for each layer.
    pub allocation: Allocation,
    /// The budget as it was given.
    pub budget: Budget,
    /// The budget in experts.
    pub budget_experts: u64,
    /// The same in per cent of the model's experts.
    pub budget_percent: f64,
    /// The same in bytes, where an expert's size is known.
    pub budget_bytes: Option<u64>,
    /// Accesses and hits of the scored window.
    #[serde(flatten)]
    pub count: Count,
    /// Hits an access.
    pub hit_rate: f64,
    /// Accesses that missed.
    pub misses: u64,
    /// Misses an iteration.
    pub misses_per_iteration: f64,
    /// Bytes that the device must deliver for the misses, where an expert's size is known.
    pub miss_bytes: Option<u64>,
    /// The same for one iteration: the nominal miss demand.
    pub miss_bytes_per_iteration: Option<f64>,
    /// The same for each layer.
    pub layers: Vec<LayerRow>,
}

/// One layer's part of a row.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LayerRow {
    /// The layer, numbered as in the checkpoint.
    pub layer: u16,
    /// Accesses and hits of the scored window.
    #[serde(flatten)]
    pub count: Count,
    /// Hits an access.
    pub hit_rate: f64,
    /// Different experts of this layer in the scored window.
    pub distinct_experts: u64,
}

/// What the scored window is like, whatever the policy.
pub(super) struct Facts {
    pub(super) accesses: u64,
    pub(super) distinct_by_slot: Vec<u64>,
    pub(super) compulsory: u64,
}

impl Facts {
    pub(super) fn of(replay: &Replay<'_>) -> Self {
        const WARM: u8 = 1;
        const SCORED: u8 = 2;
        let mut seen = vec![0; replay.n_keys()];
        for &key in replay.warm.keys() {
            seen[key as usize] |= WARM;
        }
        let mut distinct_by_slot =
            vec![0; replay.scored.trace.key_space().shape().moe_layers.len()];
        let mut compulsory = 0;
        for (slot, keys) in replay.scored.passes() {
            for &key in keys {
                let seen = &mut seen[key as usize];
                if *seen & SCORED == 0 {
                    compulsory += u64::from(*seen == 0);
                    distinct_by_slot[usize::from(slot)] += 1;
                    *seen |= SCORED;
                }
            }
        }
        Self { accesses: replay.scored.keys().len() as u64, distinct_by_slot, compulsory }
    }
}

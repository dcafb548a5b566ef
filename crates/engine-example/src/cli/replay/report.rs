//! What a replay says: runs as they were, arms as medians of the runs that were kept.

use engine_example::replay::{
    ArmSummary, Nominal, ReplayArm, ReplayRun, ReplaySession, WallFacts, WholeRun,
};
use expert_tier::host::{Host, Storage};
use router_trace::{DemandModel, Route};
use serde::Serialize;
use serde_json::{Value, json};
use std::path::PathBuf;

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) pool: PathBuf,
    pub(crate) trace: PathBuf,
    pub(crate) plan: PlanFacts,
    pub(crate) wall: WallFacts,
    /// What arenas and locked sets keep.
    pub(crate) places: usize,
    /// What is left of the wall's memory beside them.
    pub(crate) slack_bytes: u64,
    pub(crate) threads: usize,
    pub(crate) fill_threads: usize,
    pub(crate) rounds: usize,
    pub(crate) arms: Vec<ArmSummary>,
    pub(crate) discarded: Vec<Discarded>,
    pub(crate) runs: Vec<ReplayRun>,
    /// Of the first kept run of the tier, from its cold start to its end: with `demand` what
    /// `plan --verify` compares.
    pub(crate) counters: Option<WholeRun>,
    pub(crate) demand: Option<Demand>,
    /// Not null where that run began cold.
    pub(crate) cold_start: Option<Value>,
    pub(crate) host: Host,
    pub(crate) storage: Option<Storage>,
    pub(crate) notices: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct PlanFacts {
    pub(crate) iterations: usize,
    /// Experts asked for in one replay, each once a pass.
    pub(crate) logical_accesses: u64,
    pub(crate) expert_bytes: u64,
    pub(crate) pool_experts: usize,
}

/// A run that does not count.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Discarded {
    pub(crate) arm: ReplayArm,
    pub(crate) round: usize,
    pub(crate) reason: String,
}

/// Exact LRU beside that run, at the memory that files had.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Demand {
    budget: Value,
    computed_misses: u64,
    computed_miss_bytes: u64,
}

impl Report {
    /// Sums up `runs`, which `session` made of the arms of `args`.
    pub(crate) fn new(
        args: &super::ReplayArgs,
        session: &ReplaySession<'_>,
        nominal: &Nominal<'_>,
        pool: &expert_tier::Pool,
        runs: Vec<ReplayRun>,
    ) -> Self {
        let plan = nominal.plan();
        let root = expert_tier::observe::SystemRoot::default();
        let discarded = runs.iter().filter_map(|run| {
            let ReplayRun { arm, round, .. } = *run;
            Some(Discarded { arm, round, reason: run.discarded.clone()? })
        });
        let tier = runs.iter().find(|run| run.kept() && run.arm == ReplayArm::Mapped);
        let counters = tier.and_then(|run| Some(run.measurement.as_ref()?.whole));
        Self {
            pool: args.pool.clone(),
            trace: args.trace.clone(),
            plan: PlanFacts {
                iterations: plan.accesses().n_iterations(),
                logical_accesses: plan.accesses().keys().len() as u64,
                expert_bytes: plan.expert_bytes(),
                pool_experts: pool.layout().total_experts(),
            },
            wall: session.wall().clone(),
            places: session.places(),
            slack_bytes: session.slack_bytes(),
            threads: args.threads,
            fill_threads: args.fill_threads,
            rounds: args.rounds,
            arms: args.arms.iter().map(|&arm| ArmSummary::of(arm, &runs, nominal)).collect(),
            discarded: discarded.collect(),
            counters,
            demand: counters.and_then(|counters| Demand::of(nominal, counters.file_budget_bytes?)),
            // A run that was not cold is not kept.
            cold_start: counters.map(|_| json!({ "resident_bytes": 0 })),
            runs,
            host: Host::probe(&root),
            storage: Storage::probe(pool.root(), &root).ok(),
            notices: plan.notices().iter().map(ToString::to_string).collect(),
        }
    }
}

impl Demand {
    /// The plan twice through exact LRU of `budget_bytes` from an empty cache, as a run does it.
    fn of(nominal: &Nominal<'_>, budget_bytes: u64) -> Option<Self> {
        let plan = nominal.plan();
        let shape = plan.accesses().key_space().shape();
        let mut demand = DemandModel::new(shape, plan.expert_bytes(), budget_bytes).ok()?;
        let passes = plan.iterations();
        for pass in passes.iter().chain(&passes).flatten() {
            // One token's route is bounded, a pass is not.
            for experts in pass.experts.chunks(router_trace::MAX_TOP_K) {
                demand.observe(&Route::new(pass.layer, experts)?).ok()?;
            }
        }
        let count = demand.count();
        let budget = json!({ "Ok": { "bytes": budget_bytes } });
        let (computed_misses, computed_miss_bytes) = (count.misses, count.miss_bytes);
        Some(Self { budget, computed_misses, computed_miss_bytes })
    }
}

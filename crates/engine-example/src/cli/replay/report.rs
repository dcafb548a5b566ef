//! What a replay says: runs as they were, arms as medians of the runs that were kept.

use crate::cli::pairs::Spread;
use engine_example::replay::{Iteration, Measurement, ReplayArm, ReplayPlan, UsagePoint, Wall};
use expert_tier::host::{Host, Storage};
use router_trace::simulate::HitCurve;
use serde::Serialize;
use std::path::PathBuf;

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) pool: PathBuf,
    pub(crate) trace: PathBuf,
    pub(crate) plan: PlanFacts,
    pub(crate) wall: WallFacts,
    /// What arenas and locked sets keep.
    pub(crate) places: usize,
    /// What is left of a control group's limit beside them.
    pub(crate) slack_bytes: Option<u64>,
    pub(crate) threads: usize,
    pub(crate) fill_threads: usize,
    pub(crate) rounds: usize,
    pub(crate) arms: Vec<Arm>,
    pub(crate) discarded: Vec<Discarded>,
    pub(crate) runs: Vec<Run>,
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

#[derive(Debug, Serialize)]
pub(crate) struct WallFacts {
    #[serde(flatten)]
    pub(crate) wall: Wall,
    /// Whether it stood; if not, `reason` says why, and every number is without it.
    pub(crate) enforced: bool,
    pub(crate) reason: Option<String>,
    /// Of a control group: `v1` or `v2`.
    pub(crate) version: Option<expert_tier::observe::CgroupVersion>,
}

/// A run that does not count.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Discarded {
    pub(crate) arm: ReplayArm,
    pub(crate) round: usize,
    pub(crate) reason: String,
}

/// One process's run.
#[derive(Debug, Serialize)]
pub(crate) struct Run {
    pub(crate) arm: ReplayArm,
    pub(crate) round: usize,
    /// Place in the round's order.
    pub(crate) place: usize,
    pub(crate) kept: bool,
    pub(crate) scope: Option<ScopeFacts>,
    pub(crate) measurement: Option<Measurement>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ScopeFacts {
    pub(crate) peak_bytes: Option<u64>,
    pub(crate) oom_kills: Option<u64>,
    pub(crate) timeline: Vec<UsagePoint>,
}

/// One arm: medians over its runs that were kept.
#[derive(Debug, Serialize)]
pub(crate) struct Arm {
    pub(crate) arm: ReplayArm,
    pub(crate) channel: Option<String>,
    pub(crate) kept_runs: usize,
    pub(crate) discarded_runs: usize,
    /// Of all iterations of all kept runs.
    pub(crate) iteration_ms: Option<Times>,
    /// Time of a whole replay, divided by the time of `mapped` in the same round.
    pub(crate) ratio: Option<Spread>,
    /// What the machine had left when the measured replay began.
    pub(crate) mem_available_bytes: Option<u64>,
    /// Pages of the pool in the page cache, mean over the measured replay.
    pub(crate) resident_file_bytes: Option<u64>,
    /// `VmLck`.
    pub(crate) locked_bytes: Option<u64>,
    /// The most that the control group held.
    pub(crate) peak_bytes: Option<u64>,
    pub(crate) logical_accesses: u64,
    pub(crate) logical_bytes: Option<u64>,
    /// Read by the block layer in the measured replay, for everyone on the machine.
    pub(crate) block_layer_bytes: Option<u64>,
    /// The part of it that the run caused.
    pub(crate) process_read_bytes: Option<u64>,
    /// Experts kept by the arm and in the page cache: what the nominal misses are of.
    pub(crate) budget_experts: Option<u64>,
    /// What exact LRU of as many experts misses in the same replay, after the same warm-up.
    pub(crate) nominal_miss_experts: Option<u64>,
    pub(crate) nominal_miss_bytes: Option<u64>,
    /// The same for the best fixed set of as many experts as were pinned; only of pinned arms.
    pub(crate) fixed_set_miss_bytes: Option<u64>,
    /// Block-layer bytes a nominal miss byte; `None` where nothing is missed.
    pub(crate) amplification: Option<f64>,
    pub(crate) warm_ratio: Option<f64>,
    /// Pages that reclaim looked at for each that it took.
    pub(crate) scan_per_steal: Option<f64>,
}

/// Milliseconds an iteration.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Times {
    pub(crate) median: f64,
    /// The nearest rank: 95 % took no longer.
    pub(crate) p95: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Times {
    pub(crate) fn of(iterations: impl Iterator<Item = Iteration>) -> Option<Self> {
        let mut ms: Vec<f64> = iterations.map(|one| one.wall_ns as f64 / 1e6).collect();
        ms.sort_by(f64::total_cmp);
        let Spread { median, min, max } = Spread::of(&ms)?;
        let rank = (ms.len() * 95).div_ceil(100);
        Some(Self { median, p95: ms[rank.saturating_sub(1)], min, max })
    }
}

/// What the arms are compared by.
pub(crate) struct Nominal<'p> {
    pub(crate) plan: &'p ReplayPlan,
    pub(crate) lru: HitCurve,
}

impl Arm {
    pub(crate) fn of(arm: ReplayArm, runs: &[Run], nominal: &Nominal<'_>) -> Self {
        let all: Vec<&Run> = runs.iter().filter(|run| run.arm == arm).collect();
        let kept: Vec<&Run> = all.iter().copied().filter(|run| run.kept).collect();
        let measured: Vec<&Measurement> =
            kept.iter().filter_map(|run| run.measurement.as_ref()).collect();
        let iterations = measured.iter().flat_map(|one| one.iterations.iter().copied());
        let level = |value: &dyn Fn(&Measurement) -> Option<u64>| {
            median(measured.iter().filter_map(|one| value(one)))
        };
        let expert_bytes = nominal.plan.expert_bytes();
        let resident = level(&|one| Some(one.resident_file_bytes));
        let held = level(&|one| Some(one.kept_experts));
        let budget_experts = held
            .zip(resident)
            .map(|(held, resident)| held + resident.checked_div(expert_bytes).unwrap_or(0));
        let misses = budget_experts.map(|budget| {
            let capacity = usize::try_from(budget).unwrap_or(usize::MAX);
            nominal.lru.accesses() - nominal.lru.hits(capacity)
        });
        let nominal_miss_bytes = misses.map(|misses| misses * expert_bytes);
        let block_layer_bytes = level(&|one| one.block_layer_bytes);
        let pinned = level(&|one| one.wanted_locked_bytes.checked_div(expert_bytes));
        let pinned = pinned.filter(|_| arm.needs_hot_set());
        let warm: u64 = measured.iter().map(|one| one.warm_experts).sum();
        let adopted: u64 = measured.iter().map(|one| one.adopted_experts).sum();
        let scans = measured.iter().filter_map(|one| one.during.scan_per_steal());
        Self {
            arm,
            channel: measured.first().map(|one| one.channel.clone()),
            kept_runs: kept.len(),
            discarded_runs: all.len() - kept.len(),
            iteration_ms: Times::of(iterations),
            ratio: ratio(&kept, runs),
            mem_available_bytes: level(&|one| one.entry.mem_available_bytes),
            resident_file_bytes: resident,
            locked_bytes: level(&|one| one.entry.locked_bytes),
            peak_bytes: median(kept.iter().filter_map(|run| run.scope.as_ref()?.peak_bytes)),
            logical_accesses: nominal.lru.accesses(),
            logical_bytes: level(&|one| {
                Some(one.iterations.iter().map(|iteration| iteration.logical_bytes).sum())
            }),
            block_layer_bytes,
            process_read_bytes: level(&|one| one.process_read_bytes),
            budget_experts,
            nominal_miss_experts: misses,
            nominal_miss_bytes,
            fixed_set_miss_bytes: pinned.map(|count| {
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                nominal.plan.fixed_set_misses(count) * expert_bytes
            }),
            amplification: block_layer_bytes
                .zip(nominal_miss_bytes.filter(|&bytes| bytes > 0))
                .map(|(read, missed)| read as f64 / missed as f64),
            warm_ratio: (adopted > 0).then(|| warm as f64 / adopted as f64),
            scan_per_steal: Spread::of(&scans.collect::<Vec<_>>()).map(|spread| spread.median),
        }
    }
}

/// The time of these runs by that of `mapped`, both of one round.
fn ratio(kept: &[&Run], runs: &[Run]) -> Option<Spread> {
    let ratios: Vec<f64> = kept
        .iter()
        .filter(|run| run.arm != ReplayArm::Mapped)
        .filter_map(|run| {
            let base = runs.iter().find(|base| {
                base.kept && base.arm == ReplayArm::Mapped && base.round == run.round
            })?;
            Some(run.wall_ns()? as f64 / base.wall_ns()? as f64)
        })
        .collect();
    Spread::of(&ratios)
}

impl Run {
    fn wall_ns(&self) -> Option<u64> {
        Some(self.measurement.as_ref()?.iterations.iter().map(|one| one.wall_ns).sum())
    }
}

/// The middle one, of an even number the lower.
fn median(values: impl Iterator<Item = u64>) -> Option<u64> {
    let mut sorted: Vec<u64> = values.collect();
    sorted.sort_unstable();
    sorted.get(sorted.len().checked_sub(1)? / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p95_is_the_nearest_rank() {
        let of = |count: u64| {
            let ms =
                (1..=count).map(|ms| Iteration { wall_ns: ms * 1_000_000, ..Iteration::default() });
            Times::of(ms).unwrap()
        };
        assert_eq!((of(100).p95, of(100).median, of(100).max), (95.0, 50.5, 100.0));
        assert_eq!((of(1).p95, of(20).p95, of(21).p95), (1.0, 19.0, 20.0));
        assert_eq!(Times::of(std::iter::empty()), None);
    }

    #[test]
    fn a_median_is_one_of_the_values() {
        assert_eq!(median([5, 1, 9].into_iter()), Some(5));
        assert_eq!(median([5, 1].into_iter()), Some(1));
        assert_eq!(median(std::iter::empty()), None);
    }
}

use super::arm::ReplayArm;
use super::measure::Measurement;
use super::plan::ReplayPlan;
use super::run::Iteration;
use super::session::ReplayRun;
use crate::pairs::Spread;
use router_trace::simulate::HitCurve;
use serde::Serialize;

/// What runs are held against: exact LRU over the same plan.
#[derive(Debug)]
pub struct Nominal<'p> {
    plan: &'p ReplayPlan,
    lru: HitCurve,
}

impl<'p> Nominal<'p> {
    /// Exact LRU over `plan`, warmed by the same accesses.
    #[must_use]
    pub fn of(plan: &'p ReplayPlan) -> Self {
        Self { plan, lru: plan.lru() }
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &'p ReplayPlan {
        self.plan
    }

    /// Experts that exact LRU of `places` misses in one replay.
    #[must_use]
    pub fn misses(&self, places: u64) -> u64 {
        let places = usize::try_from(places).unwrap_or(usize::MAX);
        self.lru.accesses() - self.lru.hits(places)
    }
}

/// One arm: medians over its runs that were kept.
#[derive(Clone, Debug, Serialize)]
pub struct ArmSummary {
    /// What served.
    pub arm: ReplayArm,
    /// How the bytes came to the CPU.
    pub channel: Option<String>,
    /// Runs that count.
    pub kept_runs: usize,
    /// Runs that do not.
    pub discarded_runs: usize,
    /// Of all iterations of all kept runs.
    pub iteration_ms: Option<Times>,
    /// Mean time of an iteration in each run: how well the arm repeats.
    pub run_ms: Option<Spread>,
    /// Time of a whole replay, divided by the time of `mapped` in the same round.
    pub ratio: Option<Spread>,
    /// What the machine had left when the measured replay began.
    pub mem_available_bytes: Option<u64>,
    /// Pages of the pool in the page cache, mean over the measured replay.
    pub resident_file_bytes: Option<u64>,
    /// `VmLck`.
    pub locked_bytes: Option<u64>,
    /// The most that the control group held.
    pub peak_bytes: Option<u64>,
    /// Experts asked for in one replay.
    pub logical_accesses: u64,
    /// Their bytes.
    pub logical_bytes: Option<u64>,
    /// Read by the block layer in the measured replay, for everyone on the machine.
    pub block_layer_bytes: Option<u64>,
    /// Largest over smallest of that over the runs, less one; `None` for fewer than two runs.
    pub block_layer_spread: Option<f64>,
    /// The part of it that the run caused.
    pub process_read_bytes: Option<u64>,
    /// Experts kept by the arm and in the page cache: what the nominal misses are of.
    pub budget_experts: Option<u64>,
    /// What exact LRU of as many experts misses in the same replay, after the same warm-up.
    pub nominal_miss_experts: Option<u64>,
    /// The same in bytes.
    pub nominal_miss_bytes: Option<u64>,
    /// The same for the best fixed set of as many experts as were pinned; only of oracles.
    pub fixed_set_miss_bytes: Option<u64>,
    /// Block-layer bytes a nominal miss byte; `None` where nothing is missed.
    pub amplification: Option<f64>,
    /// Share of the adopted experts that were there.
    pub warm_ratio: Option<f64>,
    /// Pages that reclaim looked at for each that it took.
    pub scan_per_steal: Option<f64>,
}

/// Milliseconds an iteration.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Times {
    /// The middle one.
    pub median: f64,
    /// The nearest rank: 95 % took no longer.
    pub p95: f64,
    /// The fastest.
    pub min: f64,
    /// The slowest.
    pub max: f64,
}

impl Times {
    fn of(iterations: impl Iterator<Item = Iteration>) -> Option<Self> {
        let mut ms: Vec<f64> = iterations.map(|one| one.wall_ns as f64 / 1e6).collect();
        ms.sort_by(f64::total_cmp);
        let Spread { median, min, max } = Spread::of(&ms)?;
        let rank = (ms.len() * 95).div_ceil(100);
        Some(Self { median, p95: ms[rank.saturating_sub(1)], min, max })
    }
}

impl ArmSummary {
    /// Sums up the runs of `arm` among `runs`, which were made behind one wall.
    #[must_use]
    pub fn of(arm: ReplayArm, runs: &[ReplayRun], nominal: &Nominal<'_>) -> Self {
        let all: Vec<&ReplayRun> = runs.iter().filter(|run| run.arm == arm).collect();
        let kept: Vec<&ReplayRun> = all.iter().copied().filter(|run| run.kept()).collect();
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
        let misses = budget_experts.map(|budget| nominal.misses(budget));
        let nominal_miss_bytes = misses.map(|misses| misses * expert_bytes);
        let block_layer_bytes = level(&|one| one.block_layer_bytes);
        let pinned = level(&|one| one.wanted_locked_bytes.checked_div(expert_bytes));
        let pinned = pinned.filter(|_| arm.is_oracle());
        let warm: u64 = measured.iter().map(|one| one.warm_experts).sum();
        let adopted: u64 = measured.iter().map(|one| one.adopted_experts).sum();
        let scans = measured.iter().filter_map(|one| one.during.scan_per_steal());
        Self {
            arm,
            channel: measured.first().map(|one| one.channel.clone()),
            kept_runs: kept.len(),
            discarded_runs: all.len() - kept.len(),
            iteration_ms: Times::of(iterations),
            run_ms: run_ms(&kept),
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
            block_layer_spread: spread(measured.iter().filter_map(|one| one.block_layer_bytes)),
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
fn ratio(kept: &[&ReplayRun], runs: &[ReplayRun]) -> Option<Spread> {
    let ratios: Vec<f64> = kept
        .iter()
        .filter(|run| run.arm != ReplayArm::Mapped)
        .filter_map(|run| {
            let base = runs.iter().find(|base| {
                base.kept() && base.arm == ReplayArm::Mapped && base.round == run.round
            })?;
            Some(run.wall_ns()? as f64 / base.wall_ns()? as f64)
        })
        .collect();
    Spread::of(&ratios)
}

fn run_ms(kept: &[&ReplayRun]) -> Option<Spread> {
    let mean = |run: &&ReplayRun| {
        let iterations = run.measurement.as_ref()?.iterations.len().max(1);
        Some(run.wall_ns()? as f64 / 1e6 / iterations as f64)
    };
    Spread::of(&kept.iter().filter_map(mean).collect::<Vec<_>>())
}

fn spread(values: impl Iterator<Item = u64>) -> Option<f64> {
    let values: Vec<u64> = values.collect();
    let (least, most) = (*values.iter().min()?, *values.iter().max()?);
    (values.len() > 1 && least > 0).then(|| most as f64 / least as f64 - 1.0)
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

    #[test]
    fn a_spread_needs_two_runs_that_read_something() {
        assert_eq!(spread([100, 104, 102].into_iter()), Some(0.040_000_000_000_000_036));
        assert_eq!(spread([100].into_iter()), None);
        assert_eq!(spread([0, 100].into_iter()), None);
    }
}

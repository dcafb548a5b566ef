use super::meter::Pins;
use super::replay::Replay;
use super::run::play;
use super::window::Window;
use crate::accesses::Accesses;
use crate::error::TraceError;
use crate::policy::{Hindsight, PolicyKind};
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// What LRU must reach, in accesses a second on one core.
pub const LRU_TARGET_PER_S: f64 = 20e6;
/// What every other policy must reach that uses its past or its future.
pub const OTHERS_TARGET_PER_S: f64 = 3e6;

/// How fast the simulator is: measured, one policy after the other, on one thread.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SpeedReport {
    /// Accesses of the trace.
    pub accesses: u64,
    /// Different experts in it.
    pub distinct_experts: u64,
    /// Experts that fit.
    pub capacity_experts: u64,
    /// Times that each policy was measured, always next to LRU.
    pub rounds: u32,
    /// One row a policy, LRU first.
    pub rows: Vec<SpeedRow>,
}

/// One policy's speed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SpeedRow {
    /// The policy.
    pub policy: PolicyKind,
    /// Accesses a second, building the policy included: the median of the rounds.
    pub accesses_per_s: f64,
    /// The slowest round.
    pub min_per_s: f64,
    /// The fastest round.
    pub max_per_s: f64,
    /// The policy's time over that of the LRU run just before it: the median of the rounds.
    /// Unlike wall time it stands when the machine is busy with something else.
    pub time_over_lru: f64,
    /// Hits an access, so that a wrong answer cannot be fast.
    pub hit_rate: f64,
}

impl SpeedReport {
    /// Replays `trace` from cold through every policy, `rounds` times each and LRU before
    /// each of them; `on_row` is shown each row when it is there.
    ///
    /// # Errors
    ///
    /// [`TraceError::Setting`] if `rounds` is 0 or the trace is empty.
    pub fn measure(
        trace: &Accesses,
        capacity: usize,
        rounds: u32,
        mut on_row: impl FnMut(&SpeedRow),
    ) -> Result<Self, TraceError> {
        if rounds == 0 {
            return Err(TraceError::Setting {
                what: "rounds",
                value: "0".to_owned(),
                expected: "at least 1".to_owned(),
            });
        }
        let bench = Bench::new(trace, capacity)?;
        let (mut rows, mut lru_rates, mut lru_hit_rate) = (Vec::new(), Vec::new(), 0.0);
        for policy in PolicyKind::ALL.into_iter().filter(|&policy| policy != PolicyKind::Lru) {
            let (mut rates, mut ratios, mut hit_rate) = (Vec::new(), Vec::new(), 0.0);
            for _ in 0..rounds {
                let lru = bench.run(PolicyKind::Lru);
                let own = bench.run(policy);
                lru_rates.push(bench.accesses / lru.seconds);
                rates.push(bench.accesses / own.seconds);
                ratios.push(own.seconds / lru.seconds);
                (lru_hit_rate, hit_rate) = (lru.hit_rate, own.hit_rate);
            }
            let row = SpeedRow::new(policy, &mut rates, median(&mut ratios), hit_rate);
            on_row(&row);
            rows.push(row);
        }
        let lru = SpeedRow::new(PolicyKind::Lru, &mut lru_rates, 1.0, lru_hit_rate);
        on_row(&lru);
        rows.insert(0, lru);
        Ok(Self {
            accesses: trace.keys().len() as u64,
            distinct_experts: bench.uses.iter().filter(|&&uses| uses > 0).count() as u64,
            capacity_experts: capacity as u64,
            rounds,
            rows,
        })
    }

    /// Each policy's target in accesses a second and whether it is met.
    pub fn targets(&self) -> impl Iterator<Item = (&SpeedRow, f64, bool)> {
        self.rows.iter().map(|row| {
            let target = match row.policy {
                PolicyKind::Lru => LRU_TARGET_PER_S,
                _ => OTHERS_TARGET_PER_S,
            };
            (row, target, row.accesses_per_s >= target)
        })
    }
}

impl SpeedRow {
    fn new(policy: PolicyKind, rates: &mut [f64], time_over_lru: f64, hit_rate: f64) -> Self {
        let accesses_per_s = median(rates);
        let (min_per_s, max_per_s) = (rates[0], rates[rates.len() - 1]);
        Self { policy, accesses_per_s, min_per_s, max_per_s, time_over_lru, hit_rate }
    }
}

struct Bench<'t> {
    replay: Replay<'t>,
    uses: Vec<u32>,
    capacity: usize,
    accesses: f64,
}

struct Run {
    seconds: f64,
    hit_rate: f64,
}

impl<'t> Bench<'t> {
    fn new(trace: &'t Accesses, capacity: usize) -> Result<Self, TraceError> {
        let replay = Replay::of(trace, Window::COLD)?;
        let mut uses = vec![0; trace.n_keys()];
        for &key in trace.keys() {
            uses[key as usize] += 1;
        }
        Ok(Self { replay, uses, capacity, accesses: trace.keys().len() as f64 })
    }

    fn run(&self, policy: PolicyKind) -> Run {
        let accesses = self.replay.scored.keys();
        let hindsight = Hindsight { warm_uses: &self.uses, scored_uses: &self.uses, accesses };
        let start = Instant::now();
        let policy = policy.build(self.capacity, self.uses.len(), &hindsight);
        let meter = play(&self.replay, policy, Pins::None);
        Run { seconds: start.elapsed().as_secs_f64(), hit_rate: meter.total().hit_rate() }
    }
}

/// Sorts and gives the middle value, of an even number the lower one.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() - 1) / 2]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accesses::Synthetic;
    use crate::ids::ModelShape;

    #[test]
    fn every_policy_is_measured_and_its_hits_are_the_simulators() {
        let shape = ModelShape { moe_layers: vec![0, 1], n_experts: 64, top_k: 4 };
        let trace = Synthetic { shape, accesses: 4000, seed: 3 }.generate().unwrap();
        let mut shown = 0;
        let report = SpeedReport::measure(&trace, 40, 2, |_| shown += 1).unwrap();
        assert_eq!((shown, report.rows.len()), (13, 13));
        assert_eq!(report.rows[0].policy, PolicyKind::Lru);
        let replay = Replay::of(&trace, Window::COLD).unwrap();
        let lru = play(&replay, crate::policy::Lru::new(40, trace.n_keys()), Pins::None);
        assert_eq!(report.rows[0].hit_rate, lru.total().hit_rate());
        assert_eq!(report.targets().count(), 13);
        for row in &report.rows {
            assert!(row.min_per_s <= row.accesses_per_s && row.accesses_per_s <= row.max_per_s);
        }
        assert!(SpeedReport::measure(&trace, 40, 0, |_| {}).is_err());
    }
}
